//! The example kernel in the interpreter, compared with the definition on the CPU.

use trueno_gpu::interp::{DeviceMemory, Launch};
use trueno_gpu::kernels::{Kernel, SameFillKernel};
use trueno_page::{PAGE_SIZE, Page, fill_page, same_filled};

fn pages() -> Vec<Page> {
    let mut filled = [0; PAGE_SIZE];
    fill_page(&mut filled, *b"pattern!");
    let of_period = |period: usize| std::array::from_fn(|i| u8::from(i % period < period / 2));
    let mut pages = vec![[0; PAGE_SIZE], [7; PAGE_SIZE], filled, of_period(4), of_period(8), of_period(16)];
    // One byte different, in the first, a middle and the last word.
    for at in [0, 3, 4, 7, 16, 2047, 4092, 4095] {
        let mut page = filled;
        page[at] ^= 1;
        pages.push(page);
    }
    pages
}

#[test]
fn flags_exactly_the_same_filled_pages() {
    let (kernel, pages) = (SameFillKernel::new(), pages());
    let expected: Vec<u8> =
        pages.iter().flat_map(|page| u32::from(same_filled(page).is_some()).to_le_bytes()).collect();
    assert_eq!(expected.iter().filter(|byte| **byte == 1).count(), 5, "both answers occur");
    let count = u32::try_from(pages.len()).expect("few");
    let mut memory = DeviceMemory::new();
    let input = memory.add("pages", pages.as_flattened());
    let flags = memory.add_uninit("flags", pages.len() * 4);
    let launch = Launch::new(kernel.ir()).grid(kernel.grid(count)).arg(input).arg(flags).arg(count);
    launch.run(&mut memory).expect("no fault");
    assert_eq!(memory.bytes(flags).expect("all written"), expected);
}
