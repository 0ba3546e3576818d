//! The Zstandard decompression kernels for large batches in the interpreter.

use super::{ZstdGroupDecompressKernel, ZstdGroupOrderKernel};
use crate::interp::{DeviceMemory, Fault, Launch};
use crate::kernels::Kernel;
use crate::kernels::packed::{DecompressRun, PackedBatch, add_scratch, launch, page_count};
use std::sync::LazyLock;
use trueno_page::Page;

impl ZstdGroupDecompressKernel {
    /// Restores packed pages in the [interpreter](crate::interp), after [`ZstdGroupOrderKernel`], in a grid of two
    /// blocks. `index` has 8 bytes for each of `pages`. A page that is refused is left unchanged; after a fault, all
    /// are. `adjust` can change the launch: its grid, threads, lane order or step limit.
    ///
    /// ```
    /// use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
    /// use trueno_gpu::kernels::zstd::ZstdGroupDecompressKernel;
    /// // A frame of one segment of 4096 bytes, whose last block is one byte 4096 times.
    /// let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x00, 0x0f, 0x03, 0x80, 0x00, b'x', 0, 0, 0, 0, 0];
    /// let index = PackedEntry::new(0, 11, PageKind::Zstd).bits().to_le_bytes();
    /// let mut pages = [[0xee; 4096]];
    /// let run = ZstdGroupDecompressKernel::new(1).interpret(&frame, &index, &mut pages, |launch| launch)?;
    /// assert_eq!(run.status, [0; 4]);
    /// assert!(pages == [[b'x'; 4096]]);
    /// # Ok::<(), trueno_gpu::interp::Fault>(())
    /// ```
    ///
    /// # Errors
    /// The fault of the kernel, for example if the index is too short, or of the launch if there are more pages than a
    /// kernel can count.
    ///
    /// # Panics
    /// If the pages need more than 1 TiB, the limit of a buffer in [`DeviceMemory`](crate::interp::DeviceMemory).
    pub fn interpret<'k>(
        &'k self,
        packed: &[u8],
        index: &[u8],
        pages: &mut [Page],
        adjust: impl FnOnce(Launch<'k>) -> Launch<'k>,
    ) -> Result<DecompressRun, Fault> {
        // Made once, and lowered once.
        static ORDER: LazyLock<ZstdGroupOrderKernel> = LazyLock::new(|| ZstdGroupOrderKernel::new(u32::MAX));
        let count = page_count(self, pages)?;
        let order = Launch::new(ORDER.ir()).grid(ORDER.grid(count).max(1));
        let decompress = adjust(launch(self, count));
        let mut memory = DeviceMemory::new();
        let scratch = add_scratch(&mut memory, self, self.scratch_bytes(decompress.blocks(), count))?;
        memory.write(scratch, 0, &[0; ZstdGroupOrderKernel::ZEROED_BYTES as usize]);
        PackedBatch { packed, index, pages }.restore(&[order, decompress], memory, scratch)
    }
}
