//! The Zstandard kernel in the interpreter.

use super::ZstdWarpCompressKernel;
use crate::interp::{Fault, Launch};
use crate::kernels::packed::{CompressRun, interpret_compress};
use trueno_page::Page;

impl ZstdWarpCompressKernel {
    /// Compresses pages in the [interpreter](crate::interp), in a grid of two blocks. `adjust` can change the launch:
    /// its grid, threads, lane order or step limit.
    ///
    /// ```
    /// use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
    /// use trueno_gpu::kernels::zstd::ZstdWarpCompressKernel;
    /// let text: [u8; 4096] = std::array::from_fn(|i| b"to be or not to be; "[i % 20]);
    /// let run = ZstdWarpCompressKernel::new(1).interpret(&[text], |launch| launch.threads(1))?;
    /// let entry = PackedEntry::from_bits(u64::from_le_bytes(*run.index.first_chunk().unwrap()));
    /// assert!(entry.kind() == PageKind::Zstd && entry.len_bytes() < 64);
    /// assert_eq!(run.packed[..4], [0x28, 0xb5, 0x2f, 0xfd]); // a frame's magic number
    /// # Ok::<(), trueno_gpu::interp::Fault>(())
    /// ```
    ///
    /// # Errors
    /// The fault of the kernel, or of the launch if there are more pages than a kernel can count.
    ///
    /// # Panics
    /// If the pages or the scratch memory need more than 1 TiB, the limit of a buffer in
    /// [`DeviceMemory`](crate::interp::DeviceMemory).
    pub fn interpret<'k>(
        &'k self,
        pages: &[Page],
        adjust: impl FnOnce(Launch<'k>) -> Launch<'k>,
    ) -> Result<CompressRun, Fault> {
        interpret_compress(self, |blocks| self.scratch_bytes(blocks), pages, adjust)
    }
}
