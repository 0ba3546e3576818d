//! Runs kernels over batches in the interpreter: buffers, arguments, limits and results of a launch.

use super::PackedEntry;
use crate::interp::{BufferId, DeviceMemory, Fault, FaultKind, Launch, LaunchReport};
use crate::kernels::Kernel;
use trueno_page::Page;

const STATUS_BYTES: usize = size_of::<u32>();
/// The initial value of the page counter.
const FIRST_PAGE: [u8; 4] = 0u32.to_le_bytes();

/// Number of blocks in the grid. With two, several warps draw pages at once.
const BLOCKS: u32 = 2;
/// Step limit per page, which ends runaway loops. It is high because waiting for another thread's page counts too.
const STEPS_PER_PAGE: u64 = 4_000_000;

/// The result of a compression kernel in the interpreter.
///
/// ```
/// use trueno_gpu::kernels::lz4::Lz4WarpCompressKernel;
/// let page = std::array::from_fn(|i| b"pattern!"[i % 8]);
/// let run = Lz4WarpCompressKernel::new(1).interpret(&[page], |launch| launch)?;
/// assert_eq!(run.packed[..8], *b"pattern!"); // a same-filled page is held as its word
/// assert_eq!(run.written.iter().filter(|written| **written).count(), 16); // the word, and padding
/// println!("{} instructions", run.report.total.instructions());
/// # Ok::<(), trueno_gpu::interp::Fault>(())
/// ```
#[derive(Clone, Debug)]
pub struct CompressRun {
    /// The packed pages: 4096 bytes for each page, zero where the kernel wrote nothing.
    pub packed: Vec<u8>,
    /// `true` for each of these bytes that the kernel wrote.
    pub written: Vec<bool>,
    /// One [`PackedEntry`] per page, [`PackedEntry::BYTES`] each.
    pub index: Vec<u8>,
    /// The cost of the run.
    pub report: LaunchReport,
}

/// The result of a decompression kernel in the interpreter, besides the pages.
///
/// ```
/// use trueno_gpu::kernels::lz4::Lz4WarpDecompressKernel;
/// use trueno_gpu::kernels::packed::PageStatus;
/// let mut pages = [[0xee; 4096]];
/// let no_entry = [0; 8];
/// let run = Lz4WarpDecompressKernel::new(1).interpret(&[], &no_entry, &mut pages, |launch| launch)?;
/// assert_eq!(run.status, (PageStatus::BadEntry as u32).to_le_bytes());
/// println!("{} instructions", run.report.total.instructions());
/// # Ok::<(), trueno_gpu::interp::Fault>(())
/// ```
#[derive(Clone, Debug)]
pub struct DecompressRun {
    /// One [`PageStatus`](super::PageStatus) per page, 4 bytes each. All bits are set where the kernel wrote none, so
    /// that no page counts as restored unless the kernel reports it.
    pub status: Vec<u8>,
    /// The cost of the run.
    pub report: LaunchReport,
}

/// Compresses pages in a grid of two blocks, unless `adjust` changes it. `scratch_bytes` gets the number of blocks.
pub(in crate::kernels) fn interpret_compress<'k>(
    kernel: &'k impl Kernel,
    scratch_bytes: impl FnOnce(u32) -> u64,
    pages: &[Page],
    adjust: impl FnOnce(Launch<'k>) -> Launch<'k>,
) -> Result<CompressRun, Fault> {
    let count = count_of(kernel, pages)?;
    let launch = adjust(launch(kernel, count));
    let mut memory = DeviceMemory::new();
    let input = memory.add("input", pages.as_flattened());
    let output = memory.add_uninit("output", size_of_val(pages));
    let index = memory.add("index", &vec![0; pages.len() * PackedEntry::BYTES]);
    let scratch = add_scratch(&mut memory, kernel, scratch_bytes(launch.blocks()))?;
    let next_page = memory.add("next_page", &FIRST_PAGE);
    let launch = launch.arg(input).arg(output).arg(index).arg(scratch).arg(next_page).arg(count);
    let report = launch.run(&mut memory)?;
    Ok(CompressRun {
        packed: memory.bytes_or(output, 0),
        written: memory.initialised(output),
        index: memory.bytes_or(index, 0),
        report,
    })
}

/// Restores packed pages in a grid of two blocks, unless `adjust` changes it. After a fault, `pages` are unchanged.
pub(in crate::kernels) fn interpret_decompress<'k>(
    kernel: &'k impl Kernel,
    packed: &[u8],
    index: &[u8],
    pages: &mut [Page],
    adjust: impl FnOnce(Launch<'k>) -> Launch<'k>,
) -> Result<DecompressRun, Fault> {
    let mut memory = DeviceMemory::new();
    let next_page = memory.add("next_page", &FIRST_PAGE);
    let count = count_of(kernel, pages)?;
    decompress(&[adjust(launch(kernel, count))], memory, next_page, packed, index, pages, count)
}

/// Like [`interpret_decompress`], for a kernel that has scratch memory and no counter, and runs after another one with
/// the same arguments. `scratch_bytes` gets the number of blocks; the first `zeroed_bytes` are 0 at the start.
pub(in crate::kernels) fn interpret_decompress_after<'k>(
    before: &impl Kernel,
    kernel: &'k impl Kernel,
    (scratch_bytes, zeroed_bytes): (impl FnOnce(u32) -> u64, u32),
    packed: &[u8],
    index: &[u8],
    pages: &mut [Page],
    adjust: impl FnOnce(Launch<'k>) -> Launch<'k>,
) -> Result<DecompressRun, Fault> {
    let count = count_of(kernel, pages)?;
    let last = adjust(launch(kernel, count));
    let mut memory = DeviceMemory::new();
    let scratch = add_scratch(&mut memory, kernel, scratch_bytes(last.blocks()))?;
    memory.write(scratch, 0, &vec![0; zeroed_bytes as usize]);
    let first = Launch::new(before.ir()).grid(before.grid(count).max(1));
    decompress(&[first, last], memory, scratch, packed, index, pages, count)
}

/// Runs kernels one after the other; `own` is the buffer of their own pointer. Reports the cost of the last one.
fn decompress(
    launches: &[Launch<'_>],
    mut memory: DeviceMemory,
    own: BufferId,
    packed: &[u8],
    index: &[u8],
    pages: &mut [Page],
    count: u32,
) -> Result<DecompressRun, Fault> {
    let input = memory.add("input", packed);
    let index = memory.add("index", index);
    let output = memory.add("output", pages.as_flattened());
    let status = memory.add_uninit("status", pages.len() * STATUS_BYTES);
    let mut report = LaunchReport::default();
    for launch in launches {
        let launch = launch.clone().arg(input).arg(packed.len() as u64).arg(index);
        report = launch.arg(output).arg(status).arg(own).arg(count).run(&mut memory)?;
    }
    pages.as_flattened_mut().copy_from_slice(&memory.bytes_or(output, 0));
    Ok(DecompressRun { status: memory.bytes_or(status, 0xff), report })
}

fn add_scratch(memory: &mut DeviceMemory, kernel: &impl Kernel, bytes: u64) -> Result<BufferId, Fault> {
    let bytes = usize::try_from(bytes).map_err(|_| refused(kernel, format!("{bytes} bytes of scratch memory")))?;
    Ok(memory.add_uninit("scratch", bytes))
}

fn launch(kernel: &impl Kernel, pages: u32) -> Launch<'_> {
    Launch::new(kernel.ir()).grid(BLOCKS).step_limit(STEPS_PER_PAGE * (u64::from(pages) + 1))
}

fn count_of(kernel: &impl Kernel, pages: &[Page]) -> Result<u32, Fault> {
    u32::try_from(pages.len()).map_err(|_| refused(kernel, format!("{} pages", pages.len())))
}

fn refused(kernel: &impl Kernel, why: String) -> Fault {
    Fault { kernel: kernel.name().to_owned(), site: None, kind: FaultKind::BadLaunch(why) }
}
