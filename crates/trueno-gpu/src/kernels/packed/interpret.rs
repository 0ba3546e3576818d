//! Runs kernels over batches in the interpreter: buffers, arguments, limits and results of a launch.

use super::{KernelFormat, PackedEntry, WarpCompressKernel, WarpDecompressKernel};
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

impl<F: KernelFormat> WarpCompressKernel<F> {
    /// Compresses pages in the [interpreter](crate::interp), in a grid of two blocks. `adjust` can change the launch:
    /// its grid, threads, lane order or step limit.
    ///
    /// ```
    /// use trueno_gpu::interp::LaneOrder;
    /// use trueno_gpu::kernels::lz4::Lz4WarpCompressKernel;
    /// use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
    /// let kernel = Lz4WarpCompressKernel::new(2);
    /// let text: [u8; 4096] = std::array::from_fn(|i| b"to be or not to be; "[i % 20]);
    /// let run = kernel.interpret(&[[7; 4096], text], |launch| launch.threads(1).lane_order(LaneOrder::Descending))?;
    /// let entries: Vec<_> =
    ///     run.index.as_chunks().0.iter().map(|word| PackedEntry::from_bits(u64::from_le_bytes(*word))).collect();
    /// assert_eq!(entries[0], PackedEntry::new(0, 8, PageKind::SameFilled));
    /// assert!(entries[1].kind() == PageKind::Lz4 && entries[1].len_bytes() < 128);
    /// # Ok::<(), trueno_gpu::interp::Fault>(())
    /// ```
    ///
    /// # Errors
    /// The fault of the kernel, or of the launch if there are more pages than a kernel can count.
    ///
    /// # Panics
    /// If the pages or the scratch memory need more than 1 TiB, the limit of a buffer in [`DeviceMemory`].
    pub fn interpret<'k>(
        &'k self,
        pages: &[Page],
        adjust: impl FnOnce(Launch<'k>) -> Launch<'k>,
    ) -> Result<CompressRun, Fault> {
        let count = page_count(self, pages)?;
        let launch = adjust(launch(self, count));
        let mut memory = DeviceMemory::new();
        let input = memory.add("input", pages.as_flattened());
        let output = memory.add_uninit("output", size_of_val(pages));
        let index = memory.add("index", &vec![0; pages.len() * PackedEntry::BYTES]);
        let scratch = add_scratch(&mut memory, self, self.scratch_bytes(launch.blocks()))?;
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

impl<F: KernelFormat> WarpDecompressKernel<F> {
    /// Restores packed pages in the [interpreter](crate::interp), in a grid of two blocks. `index` has 8 bytes for each
    /// of `pages`. A page that is refused is left unchanged; after a fault, all are. `adjust` can change the launch:
    /// its grid, threads, lane order or step limit.
    ///
    /// ```
    /// use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
    /// use trueno_gpu::kernels::zstd::ZstdWarpDecompressKernel;
    /// // A frame of one segment of 4096 bytes, whose last block is one byte 4096 times.
    /// let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x00, 0x0f, 0x03, 0x80, 0x00, b'x', 0, 0, 0, 0, 0];
    /// let index = PackedEntry::new(0, 11, PageKind::Zstd).bits().to_le_bytes();
    /// let mut pages = [[0xee; 4096]];
    /// let run = ZstdWarpDecompressKernel::new(1).interpret(&frame, &index, &mut pages, |launch| launch)?;
    /// assert_eq!(run.status, [0; 4]); // restored
    /// assert!(pages == [[b'x'; 4096]]);
    /// # Ok::<(), trueno_gpu::interp::Fault>(())
    /// ```
    ///
    /// # Errors
    /// The fault of the kernel, for example if the index is too short, or of the launch if there are more pages than a
    /// kernel can count.
    ///
    /// # Panics
    /// If the pages need more than 1 TiB, the limit of a buffer in [`DeviceMemory`].
    pub fn interpret<'k>(
        &'k self,
        packed: &[u8],
        index: &[u8],
        pages: &mut [Page],
        adjust: impl FnOnce(Launch<'k>) -> Launch<'k>,
    ) -> Result<DecompressRun, Fault> {
        let mut memory = DeviceMemory::new();
        let next_page = memory.add("next_page", &FIRST_PAGE);
        let launch = adjust(launch(self, page_count(self, pages)?));
        PackedBatch { packed, index, pages }.restore(&[launch], memory, next_page)
    }
}

/// A batch of packed pages, and the memory for the restored ones.
pub(in crate::kernels) struct PackedBatch<'a> {
    pub(in crate::kernels) packed: &'a [u8],
    pub(in crate::kernels) index: &'a [u8],
    pub(in crate::kernels) pages: &'a mut [Page],
}

impl PackedBatch<'_> {
    /// Runs decompression kernels one after the other; `own` is the buffer of their own pointer. Reports the cost of
    /// the last one. After a fault, the pages are unchanged.
    pub(in crate::kernels) fn restore(
        self,
        launches: &[Launch<'_>],
        mut memory: DeviceMemory,
        own: BufferId,
    ) -> Result<DecompressRun, Fault> {
        let Self { packed, index, pages } = self;
        let input = memory.add("input", packed);
        let index = memory.add("index", index);
        let output = memory.add("output", pages.as_flattened());
        let status = memory.add_uninit("status", pages.len() * STATUS_BYTES);
        let count = u32::try_from(pages.len()).expect("the launches were made for a count of 32 bits");
        let mut report = LaunchReport::default();
        for launch in launches {
            let launch = launch.clone().arg(input).arg(packed.len() as u64).arg(index);
            report = launch.arg(output).arg(status).arg(own).arg(count).run(&mut memory)?;
        }
        pages.as_flattened_mut().copy_from_slice(&memory.bytes_or(output, 0));
        Ok(DecompressRun { status: memory.bytes_or(status, 0xff), report })
    }
}

/// Adds a buffer for the scratch memory of a kernel.
pub(in crate::kernels) fn add_scratch(
    memory: &mut DeviceMemory,
    kernel: &impl Kernel,
    bytes: u64,
) -> Result<BufferId, Fault> {
    let bytes = usize::try_from(bytes).map_err(|_| refused(kernel, format!("{bytes} bytes of scratch memory")))?;
    Ok(memory.add_uninit("scratch", bytes))
}

/// Returns a launch of two blocks, without arguments.
pub(in crate::kernels) fn launch(kernel: &impl Kernel, pages: u32) -> Launch<'_> {
    Launch::new(kernel.ir()).grid(BLOCKS).step_limit(STEPS_PER_PAGE * (u64::from(pages) + 1))
}

/// Returns the number of pages as a kernel counts.
pub(in crate::kernels) fn page_count(kernel: &impl Kernel, pages: &[Page]) -> Result<u32, Fault> {
    u32::try_from(pages.len()).map_err(|_| refused(kernel, format!("{} pages", pages.len())))
}

fn refused(kernel: &impl Kernel, why: String) -> Fault {
    Fault { kernel: kernel.name().to_owned(), site: None, kind: FaultKind::BadLaunch(why) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::lz4::{Lz4WarpCompressKernel, Lz4WarpDecompressKernel};

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
        let short = &packed.index[..4 * PackedEntry::BYTES];
        let fault = kernel.interpret(&packed.packed, short, &mut restored, |launch| launch).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::OutOfBounds { .. }), "{fault}");
        assert!(restored == [[0xee; 4096]; 5]);
        kernel.interpret(&packed.packed, &packed.index, &mut restored, |launch| launch).unwrap();
        assert!(restored == pages());
    }
}
