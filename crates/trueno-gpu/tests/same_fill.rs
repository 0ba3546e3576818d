//! The demonstration kernel in the interpreter, against the definition.

use trueno_gpu::interp::{Launch, Memory};
use trueno_gpu::kernels::{Kernel, SameFillKernel};

const PAGE_BYTES: usize = 4096;

fn pages() -> Vec<[u8; PAGE_BYTES]> {
    let word: Vec<u8> = 0xdead_beef_u32.to_le_bytes().repeat(PAGE_BYTES / 4);
    let filled: [u8; PAGE_BYTES] = word.try_into().expect("a page of words");
    let mut pages = vec![[0; PAGE_BYTES], [7; PAGE_BYTES], filled];
    // One byte off, in the first, a middle and the last word, and a page of two-byte units that is no page of words.
    for at in [0, 3, 16, 2047, 4092, 4095] {
        let mut page = filled;
        page[at] ^= 1;
        pages.push(page);
    }
    pages.push(std::array::from_fn(|i| if i % 8 < 4 { 1 } else { 2 }));
    pages
}

#[test]
fn flags_exactly_the_pages_of_one_word() {
    let (kernel, pages) = (SameFillKernel::new(), pages());
    let expected: Vec<u8> = pages
        .iter()
        .flat_map(|page| u32::from(page.chunks_exact(4).all(|word| word == &page[..4])).to_le_bytes())
        .collect();
    let count = u32::try_from(pages.len()).expect("few");
    let mut memory = Memory::new();
    let input = memory.add("pages", pages.as_flattened());
    let flags = memory.add_uninit("flags", pages.len() * 4);
    let launch = Launch::new(kernel.ir()).grid(kernel.grid(count)).arg(input).arg(flags).arg(count);
    launch.run(&mut memory).expect("no fault");
    assert_eq!(memory.bytes(flags).expect("all written"), expected);
}
