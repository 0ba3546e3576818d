//! The LZ4 kernels in the interpreter.

use super::{Lz4WarpCompressKernel, Lz4WarpDecompressKernel};
use crate::interp::{Fault, Launch};
use crate::kernels::packed::{CompressRun, DecompressRun, interpret_compress, interpret_decompress};
use trueno_page::Page;

impl Lz4WarpCompressKernel {
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

impl Lz4WarpDecompressKernel {
    /// Restores packed pages in the [interpreter](crate::interp), in a grid of two blocks. `index` has 8 bytes for each
    /// of `pages`. A page that is refused is left unchanged; after a fault, all are. `adjust` can change the launch:
    /// its grid, threads, lane order or step limit.
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
        interpret_decompress(self, packed, index, pages, adjust)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp::FaultKind;
    use crate::kernels::packed::PackedEntry;

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
