//! The LZ4 kernels in the interpreter: what a launch needs of memory, arguments and limits, and what it leaves.

use super::{Lz4WarpCompressKernel, Lz4WarpDecompressKernel, PAGE_BYTES};
use crate::interp::{Fault, FaultKind, Launch, Memory, Report};
use crate::kernels::Kernel;

type Page = [u8; PAGE_BYTES as usize];

const INDEX_ENTRY_BYTES: usize = size_of::<u64>();
const STATUS_BYTES: usize = size_of::<u32>();
/// The page counter at the start.
const FIRST_PAGE: [u8; 4] = 0u32.to_le_bytes();

/// Blocks in the grid: two, so that pages are drawn by several at once.
const BLOCKS: u32 = 2;
/// What a page may take: a runaway loop ends here. Much, since waiting for another thread's page counts, too.
const STEPS_PER_PAGE: u64 = 4_000_000;

/// What a compression kernel left in memory.
///
/// ```
/// use trueno_gpu::kernels::lz4::Lz4WarpCompressKernel;
/// let page = std::array::from_fn(|i| b"pattern!"[i % 8]);
/// let run = Lz4WarpCompressKernel::new(1).interpret(&[page], |launch| launch)?;
/// assert_eq!(run.packed[..8], *b"pattern!"); // a same-filled page is held as its word
/// assert_eq!(run.written.iter().filter(|written| **written).count(), 16); // with what aligns the next page
/// println!("{} instructions", run.report.total.instructions());
/// # Ok::<(), trueno_gpu::interp::Fault>(())
/// ```
#[derive(Clone, Debug)]
pub struct CompressRun {
    /// The packed pages: 4096 bytes a page, zero where the kernel wrote nothing.
    pub packed: Vec<u8>,
    /// For each of these bytes, whether the kernel wrote it.
    pub written: Vec<bool>,
    /// One [`PackedEntry`](super::PackedEntry) a page, 8 bytes each.
    pub index: Vec<u8>,
    /// What it cost.
    pub report: Report,
}

/// What a decompression kernel left in memory, beside the pages.
///
/// ```
/// use trueno_gpu::kernels::lz4::{Lz4WarpDecompressKernel, PageStatus};
/// let mut pages = [[0xee; 4096]];
/// let no_entry = [0; 8];
/// let run = Lz4WarpDecompressKernel::new(1).interpret(&[], &no_entry, &mut pages, |launch| launch)?;
/// assert_eq!(run.status, (PageStatus::BadEntry as u32).to_le_bytes());
/// println!("{} instructions", run.report.total.instructions());
/// # Ok::<(), trueno_gpu::interp::Fault>(())
/// ```
#[derive(Clone, Debug)]
pub struct DecompressRun {
    /// One [`PageStatus`](super::PageStatus) a page, 4 bytes each; all ones where the kernel wrote none, so that no page
    /// counts as restored unless the kernel says so.
    pub status: Vec<u8>,
    /// What it cost.
    pub report: Report,
}

impl Lz4WarpCompressKernel {
    /// Compresses pages in the [interpreter](crate::interp), in a grid of two blocks. `adjust` may change how the launch
    /// runs: its grid, threads, lane order or step limit.
    ///
    /// ```
    /// use trueno_gpu::interp::LaneOrder;
    /// use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, PackedEntry, PageKind};
    /// let kernel = Lz4WarpCompressKernel::new(2);
    /// let text: [u8; 4096] = std::array::from_fn(|i| b"to be or not to be; "[i % 20]);
    /// let run = kernel.interpret(&[[7; 4096], text], |launch| launch.threads(1).lane_order(LaneOrder::Descending))?;
    /// let entries: Vec<_> =
    ///     run.index.as_chunks().0.iter().map(|word| PackedEntry::from_bits(u64::from_le_bytes(*word))).collect();
    /// assert_eq!(entries[0], PackedEntry::new(0, 8, PageKind::SameFilled));
    /// assert!(entries[1].kind() == Some(PageKind::Lz4) && entries[1].len_bytes() < 128);
    /// # Ok::<(), trueno_gpu::interp::Fault>(())
    /// ```
    ///
    /// # Errors
    /// The kernel's fault; or that of the launch, for more pages than a kernel can count.
    ///
    /// # Panics
    /// If pages or scratch memory take more than a buffer of [`Memory`] may have, a tebibyte.
    pub fn interpret<'k>(
        &'k self,
        pages: &[Page],
        adjust: impl FnOnce(Launch<'k>) -> Launch<'k>,
    ) -> Result<CompressRun, Fault> {
        let count = count_of(self, pages)?;
        let launch = adjust(launch(self, count));
        let scratch_bytes = self.scratch_bytes(launch.blocks());
        let scratch_bytes =
            usize::try_from(scratch_bytes).map_err(|_| refused(self, format!("{scratch_bytes} bytes of scratch")))?;
        let mut memory = Memory::new();
        let input = memory.add("input", pages.as_flattened());
        let output = memory.add_uninit("output", size_of_val(pages));
        let index = memory.add("index", &vec![0; pages.len() * INDEX_ENTRY_BYTES]);
        let scratch = memory.add_uninit("scratch", scratch_bytes);
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
}

impl Lz4WarpDecompressKernel {
    /// Restores packed pages in the [interpreter](crate::interp), in a grid of two blocks: as many as `pages` has. `index`
    /// has 8 bytes for each. A page that is refused keeps its bytes; after a fault, all do. `adjust` may change how the
    /// launch runs: its grid, threads, lane order or step limit.
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Lz4WarpDecompressKernel};
    /// let text: [u8; 4096] = std::array::from_fn(|i| b"to be or not to be; "[i % 20]);
    /// let packed = Lz4WarpCompressKernel::new(2).interpret(&[[7; 4096], text], |launch| launch)?;
    /// let mut pages = [[0xee; 4096]; 2];
    /// let kernel = Lz4WarpDecompressKernel::new(2);
    /// let run = kernel.interpret(&packed.packed, &packed.index, &mut pages, |launch| launch.threads(1))?;
    /// assert_eq!(run.status, [0; 8]); // both are restored
    /// assert!(pages == [[7; 4096], text]);
    /// # Ok::<(), trueno_gpu::interp::Fault>(())
    /// ```
    ///
    /// # Errors
    /// The kernel's fault, as for an index that is too short; or that of the launch, for more pages than a kernel can
    /// count.
    ///
    /// # Panics
    /// If the pages take more than a buffer of [`Memory`] may have, a tebibyte.
    pub fn interpret<'k>(
        &'k self,
        packed: &[u8],
        index: &[u8],
        pages: &mut [Page],
        adjust: impl FnOnce(Launch<'k>) -> Launch<'k>,
    ) -> Result<DecompressRun, Fault> {
        let count = count_of(self, pages)?;
        let launch = adjust(launch(self, count));
        let mut memory = Memory::new();
        let input = memory.add("input", packed);
        let index = memory.add("index", index);
        let output = memory.add("output", pages.as_flattened());
        let status = memory.add_uninit("status", pages.len() * STATUS_BYTES);
        let next_page = memory.add("next_page", &FIRST_PAGE);
        let launch = launch.arg(input).arg(packed.len() as u64).arg(index);
        let report = launch.arg(output).arg(status).arg(next_page).arg(count).run(&mut memory)?;
        pages.as_flattened_mut().copy_from_slice(&memory.bytes_or(output, 0));
        Ok(DecompressRun { status: memory.bytes_or(status, 0xff), report })
    }
}

fn launch(kernel: &impl Kernel, pages: u32) -> Launch<'_> {
    Launch::new(kernel.ir()).grid(BLOCKS).step_limit(STEPS_PER_PAGE * (u64::from(pages) + 1))
}

fn count_of(kernel: &impl Kernel, pages: &[Page]) -> Result<u32, Fault> {
    u32::try_from(pages.len()).map_err(|_| refused(kernel, format!("{} pages", pages.len())))
}

fn refused(kernel: &impl Kernel, why: String) -> Fault {
    Fault { kernel: kernel.name().to_owned(), place: None, kind: FaultKind::BadLaunch(why) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> [Page; 5] {
        std::array::from_fn(|n| std::array::from_fn(|i| (i * i / (n + 3)).to_le_bytes()[0]))
    }

    #[test]
    fn a_grid_of_any_size_has_its_scratch() {
        let kernel = Lz4WarpCompressKernel::new(5).with_warps_per_block(1);
        let expected = kernel.interpret(&pages(), |launch| launch).unwrap();
        for blocks in [1, 7] {
            let run = kernel.interpret(&pages(), |launch| launch.grid(blocks)).unwrap();
            assert!(run.packed == expected.packed && run.index == expected.index, "{blocks} blocks");
        }
    }

    #[test]
    fn after_a_fault_the_pages_are_as_they_were() {
        let packed = Lz4WarpCompressKernel::new(5).interpret(&pages(), |launch| launch).unwrap();
        let (mut restored, kernel) = ([[0xee; 4096]; 5], Lz4WarpDecompressKernel::new(5));
        let short = &packed.index[..4 * INDEX_ENTRY_BYTES];
        let fault = kernel.interpret(&packed.packed, short, &mut restored, |launch| launch).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::OutOfBounds { .. }), "{fault}");
        assert!(restored == [[0xee; 4096]; 5]);
        kernel.interpret(&packed.packed, &packed.index, &mut restored, |launch| launch).unwrap();
        assert!(restored == pages());
    }
}
