//! Kernels that compress or restore one page per warp, in any format.

use std::marker::PhantomData;

use super::compress::PAGE_AND_TABLE_BYTES;
use super::kernel::BatchKernel;
use super::{Mode, TableStores};
use crate::kernels::{Kernel, ResourceBudget};
use crate::{KernelBuilder, Target, ValidKernel};

/// A format of compressed pages that kernels write and read: [`Lz4`](crate::kernels::lz4::Lz4) or
/// [`Zstd`](crate::kernels::zstd::Zstd).
///
/// ```
/// use trueno_gpu::kernels::{Kernel, packed::{KernelFormat, WarpCompressKernel}};
/// fn entry_point<F: KernelFormat>() -> String { WarpCompressKernel::<F>::new(1).name().to_owned() }
/// assert_eq!(entry_point::<trueno_gpu::kernels::zstd::Zstd>(), "zstd_warp_compress");
/// ```
pub trait KernelFormat: Sized + 'static {
    #[doc(hidden)]
    const COMPRESS: CompressParts;
    #[doc(hidden)]
    const DECOMPRESS: DecompressParts;
}

/// The parts of a compression kernel that depend on the format.
#[derive(Debug)]
pub struct CompressParts {
    /// Name of the entry point.
    pub(in crate::kernels) name: &'static str,
    /// Scratch memory that each warp of the grid needs.
    pub(in crate::kernels) scratch_bytes_per_warp: u32,
    /// Registers per thread that blocks of up to four warps may use.
    pub(in crate::kernels) registers: u32,
    pub(in crate::kernels) build: fn(&KernelBuilder, Mode, TableStores),
}

/// The parts of a decompression kernel that depend on the format.
#[derive(Debug)]
pub struct DecompressParts {
    /// Name of the entry point.
    pub(in crate::kernels) name: &'static str,
    /// Shared memory of a warp, and what the warps of a block share.
    pub(in crate::kernels) warp_bytes: u32,
    pub(in crate::kernels) block_bytes: u32,
    pub(in crate::kernels) build: fn(&KernelBuilder),
}

/// Compresses pages to the format `F`, one page per warp.
///
/// Parameters of the kernel, in order:
///
/// | parameter | type | meaning |
/// | --- | --- | --- |
/// | `input` | pointer | the pages, aligned to 16 bytes |
/// | `output` | pointer | the packed pages, aligned to 16 bytes; at most 4096 bytes per page |
/// | `index` | pointer to u64 | one [`PackedEntry`](super::PackedEntry) per page, initially zero |
/// | `scratch` | pointer | [`scratch_bytes`](Self::scratch_bytes) for the launched grid |
/// | `next_page` | pointer to u32 | initially zero |
/// | `pages` | u32 | number of pages |
///
/// The compressed bytes and their place in the output depend only on the pages, not on the GPU, the grid or the timing.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, lz4::Lz4WarpCompressKernel};
/// let kernel = Lz4WarpCompressKernel::new(65536);
/// let ptx = kernel.emit_ptx();
/// assert!(ptx.contains(".entry lz4_warp_compress"));
/// assert_eq!((kernel.grid(1001), kernel.block()), (251, 128));
/// ```
#[derive(Clone, Debug)]
pub struct WarpCompressKernel<F> {
    mode: Mode,
    stores: TableStores,
    batch: BatchKernel,
    format: PhantomData<F>,
}

impl<F: KernelFormat> WarpCompressKernel<F> {
    /// Makes a kernel for batches of up to `max_pages`, with four warps per block, in fast mode, deterministic on every
    /// GPU.
    ///
    /// ```
    /// use trueno_gpu::kernels::{Kernel, lz4::Lz4WarpCompressKernel};
    /// let kernel = Lz4WarpCompressKernel::new(1000);
    /// assert_eq!((kernel.grid(1000), kernel.block()), (250, 128));
    /// assert_eq!(kernel.dynamic_shared_bytes(), 0);
    /// ```
    #[must_use]
    pub fn new(max_pages: u32) -> Self {
        let (mode, stores) = (Mode::Fast, TableStores::ReadBack);
        Self { mode, stores, batch: BatchKernel::new(max_pages), format: PhantomData }
    }

    /// Chooses the balance of speed and ratio.
    ///
    /// ```
    /// use trueno_gpu::kernels::zstd::{Mode, ZstdWarpCompressKernel};
    /// let kernel = ZstdWarpCompressKernel::new(1000).with_mode(Mode::Ratio);
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Self {
        Self { mode, batch: self.batch.unbuilt(), ..self }
    }

    /// Chooses how conflicting table stores are resolved; see [`TableStores`].
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, TableStores};
    /// let kernel = Lz4WarpCompressKernel::new(1000).with_table_stores(TableStores::LowestLaneWins);
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_table_stores(self, stores: TableStores) -> Self {
        Self { stores, batch: self.batch.unbuilt(), ..self }
    }

    /// Chooses the number of warps per block. Above 48 KiB, shared memory is dynamic. [`Kernel::ir`] panics if the
    /// target has too little of it.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::{Kernel, lz4::Lz4WarpCompressKernel}};
    /// let kernel = Lz4WarpCompressKernel::new(1000).with_target(Target::SM_90).with_warps_per_block(28);
    /// assert_eq!(kernel.block(), 896);
    /// ```
    #[must_use]
    pub fn with_warps_per_block(self, warps_per_block: u32) -> Self {
        Self { batch: self.batch.with_warps_per_block(warps_per_block), ..self }
    }

    /// Chooses the target.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::{Kernel, zstd::ZstdWarpCompressKernel}};
    /// let kernel = ZstdWarpCompressKernel::new(1000).with_target(Target::SM_90);
    /// assert!(kernel.emit_ptx().contains(".target sm_90"));
    /// ```
    #[must_use]
    pub fn with_target(self, target: Target) -> Self {
        Self { batch: self.batch.with_target(target), ..self }
    }

    /// Returns the bytes of scratch memory for a grid of `blocks`. They do not depend on the batch.
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::Lz4WarpCompressKernel;
    /// let kernel = Lz4WarpCompressKernel::new(65536).with_warps_per_block(28);
    /// assert_eq!(kernel.scratch_bytes(132), 132 * 28 * 12288);
    /// ```
    #[must_use]
    pub fn scratch_bytes(&self, blocks: u32) -> u64 {
        let warps = u64::from(blocks) * u64::from(self.batch.warps_per_block());
        warps * u64::from(F::COMPRESS.scratch_bytes_per_warp)
    }
}

impl<F: KernelFormat> Kernel for WarpCompressKernel<F> {
    fn ir(&self) -> &ValidKernel {
        self.batch.ir(F::COMPRESS.name, |k| (F::COMPRESS.build)(k, self.mode, self.stores))
    }

    fn budget(&self) -> ResourceBudget {
        // 28 warps leave 72 registers per thread. Aligning the page costs up to 3 KiB per block.
        let warps_per_block = self.batch.warps_per_block();
        let registers = if warps_per_block > 4 { 72 } else { F::COMPRESS.registers };
        ResourceBudget { registers, shared_bytes: warps_per_block * PAGE_AND_TABLE_BYTES + 3072 }
    }

    fn grid(&self, pages: u32) -> u32 {
        self.batch.grid(pages)
    }
}

/// Restores pages from the format `F`, one page per warp, whichever encoder compressed them.
///
/// Parameters of the kernel, in order:
///
/// | parameter | type | meaning |
/// | --- | --- | --- |
/// | `input` | pointer | packed pages, aligned to 16 bytes |
/// | `input_len` | u64 | number of bytes in `input`, a multiple of 16 |
/// | `index` | pointer to u64 | one [`PackedEntry`](super::PackedEntry) per page; not trusted |
/// | `output` | pointer | the pages, aligned to 16 bytes |
/// | `status` | pointer to u32 | one [`PageStatus`](super::PageStatus) per page |
/// | `next_page` | pointer to u32 | initially zero |
/// | `pages` | u32 | number of pages |
///
/// A malformed page gets an error status, and its place in the output is not written. All other pages are restored.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, lz4::Lz4WarpDecompressKernel};
/// let kernel = Lz4WarpDecompressKernel::new(65536);
/// assert!(kernel.emit_ptx().contains(".entry lz4_warp_decompress"));
/// ```
#[derive(Clone, Debug)]
pub struct WarpDecompressKernel<F> {
    batch: BatchKernel,
    format: PhantomData<F>,
}

impl<F: KernelFormat> WarpDecompressKernel<F> {
    /// Makes a kernel for batches of up to `max_pages`, with four warps per block.
    ///
    /// ```
    /// use trueno_gpu::kernels::{Kernel, lz4::Lz4WarpDecompressKernel};
    /// let kernel = Lz4WarpDecompressKernel::new(1000);
    /// assert_eq!((kernel.grid(1000), kernel.block()), (250, 128));
    /// assert_eq!(kernel.dynamic_shared_bytes(), 0);
    /// ```
    #[must_use]
    pub fn new(max_pages: u32) -> Self {
        Self { batch: BatchKernel::new(max_pages), format: PhantomData }
    }

    /// Chooses the number of warps per block. Above 48 KiB, shared memory is dynamic. [`Kernel::ir`] panics if the
    /// target has too little of it.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::{Kernel, zstd::ZstdWarpDecompressKernel}};
    /// let kernel = ZstdWarpDecompressKernel::new(1000).with_target(Target::SM_90).with_warps_per_block(28);
    /// assert_eq!(kernel.block(), 896);
    /// ```
    #[must_use]
    pub fn with_warps_per_block(self, warps_per_block: u32) -> Self {
        Self { batch: self.batch.with_warps_per_block(warps_per_block), ..self }
    }

    /// Chooses the target.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::{Kernel, lz4::Lz4WarpDecompressKernel}};
    /// let kernel = Lz4WarpDecompressKernel::new(1000).with_target(Target::SM_90);
    /// assert!(kernel.emit_ptx().contains(".target sm_90"));
    /// ```
    #[must_use]
    pub fn with_target(self, target: Target) -> Self {
        Self { batch: self.batch.with_target(target), ..self }
    }
}

impl<F: KernelFormat> Kernel for WarpDecompressKernel<F> {
    fn ir(&self) -> &ValidKernel {
        self.batch.ir(F::DECOMPRESS.name, F::DECOMPRESS.build)
    }

    fn budget(&self) -> ResourceBudget {
        // Seven blocks of four warps, or one of 28, leave 73 registers per thread.
        let shared_bytes = self.batch.warps_per_block() * F::DECOMPRESS.warp_bytes + F::DECOMPRESS.block_bytes;
        ResourceBudget { registers: 72, shared_bytes }
    }

    fn grid(&self, pages: u32) -> u32 {
        self.batch.grid(pages)
    }
}
