//! The kernels of each format, behind one type for each direction.

use trueno_gpu::interp::Fault;
use trueno_gpu::kernels::Kernel;
use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Lz4WarpDecompressKernel};
use trueno_gpu::kernels::packed::{CompressRun, DecompressRun, Mode, TableStores};
use trueno_gpu::kernels::zstd::{ZstdWarpCompressKernel, ZstdWarpDecompressKernel};

use crate::algorithm::Algorithm;
use crate::gpu::launch_shape::LaunchShape;
use crate::page::{Page, PageKind};

/// A compressed format that kernels write and read.
///
/// ```
/// use trueno_zram_core::{PageKind, gpu::raw::PageFormat};
/// assert_eq!(PageFormat::Zstd.kind(), PageKind::Zstd);
/// assert!(PageFormat::Zstd.reads(PageKind::Raw) && !PageFormat::Zstd.reads(PageKind::Lz4));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageFormat {
    /// LZ4 blocks.
    Lz4,
    /// Zstandard frames of one block.
    Zstd,
}

impl PageFormat {
    /// Both formats.
    ///
    /// ```
    /// use trueno_zram_core::gpu::raw::PageFormat;
    /// assert!(PageFormat::ALL.contains(&PageFormat::Lz4));
    /// ```
    pub const ALL: [Self; 2] = [Self::Lz4, Self::Zstd];

    /// Returns the kind of pages that were compressed to this format.
    ///
    /// ```
    /// use trueno_zram_core::{PageKind, gpu::raw::PageFormat};
    /// assert_eq!(PageFormat::Lz4.kind(), PageKind::Lz4);
    /// ```
    #[must_use]
    pub const fn kind(self) -> PageKind {
        match self {
            Self::Lz4 => PageKind::Lz4,
            Self::Zstd => PageKind::Zstd,
        }
    }

    /// Returns `true` if the format's decompression kernel restores pages of this kind. All kernels restore same-filled
    /// and raw pages.
    ///
    /// ```
    /// use trueno_zram_core::{PageKind, gpu::raw::PageFormat};
    /// assert!(PageFormat::Lz4.reads(PageKind::SameFilled) && !PageFormat::Lz4.reads(PageKind::Zstd));
    /// ```
    #[must_use]
    pub fn reads(self, kind: PageKind) -> bool {
        kind == self.kind() || matches!(kind, PageKind::SameFilled | PageKind::Raw)
    }

    /// Returns the format of an algorithm, or `None` if no kernel compresses with it.
    pub(crate) fn of(algorithm: Algorithm) -> Option<Self> {
        match algorithm {
            Algorithm::None => None,
            Algorithm::Lz4 => Some(Self::Lz4),
            Algorithm::Zstd { .. } => Some(Self::Zstd),
        }
    }
}

/// The compression kernel of a format.
#[derive(Clone, Debug)]
pub(crate) enum CompressKernel {
    Lz4(Lz4WarpCompressKernel),
    Zstd(ZstdWarpCompressKernel),
}

impl CompressKernel {
    pub(crate) fn new(
        format: PageFormat,
        max_pages: u32,
        mode: Mode,
        table_stores: TableStores,
        shape: LaunchShape,
    ) -> Self {
        let LaunchShape { warps_per_block, target } = shape;
        match format {
            PageFormat::Lz4 => Self::Lz4(
                Lz4WarpCompressKernel::new(max_pages)
                    .with_mode(mode)
                    .with_table_stores(table_stores)
                    .with_target(target)
                    .with_warps_per_block(warps_per_block),
            ),
            PageFormat::Zstd => Self::Zstd(
                ZstdWarpCompressKernel::new(max_pages)
                    .with_mode(mode)
                    .with_table_stores(table_stores)
                    .with_target(target)
                    .with_warps_per_block(warps_per_block),
            ),
        }
    }

    pub(crate) fn format(&self) -> PageFormat {
        match self {
            Self::Lz4(_) => PageFormat::Lz4,
            Self::Zstd(_) => PageFormat::Zstd,
        }
    }

    pub(crate) fn kernel(&self) -> &dyn Kernel {
        match self {
            Self::Lz4(kernel) => kernel,
            Self::Zstd(kernel) => kernel,
        }
    }

    /// Returns the bytes of scratch memory for a grid of `blocks`.
    pub(crate) fn scratch_bytes(&self, blocks: u32) -> u64 {
        match self {
            Self::Lz4(kernel) => kernel.scratch_bytes(blocks),
            Self::Zstd(kernel) => kernel.scratch_bytes(blocks),
        }
    }

    /// Compresses pages in the interpreter.
    pub(crate) fn interpret(&self, pages: &[Page]) -> Result<CompressRun, Fault> {
        match self {
            Self::Lz4(kernel) => kernel.interpret(pages, |launch| launch),
            Self::Zstd(kernel) => kernel.interpret(pages, |launch| launch),
        }
    }
}

/// The decompression kernel of a format that restores a batch in one launch.
#[derive(Clone, Debug)]
pub(crate) enum DecompressKernel {
    Lz4(Lz4WarpDecompressKernel),
    Zstd(ZstdWarpDecompressKernel),
}

impl DecompressKernel {
    pub(crate) fn new(format: PageFormat, max_pages: u32, shape: LaunchShape) -> Self {
        let LaunchShape { warps_per_block, target } = shape;
        match format {
            PageFormat::Lz4 => Self::Lz4(
                Lz4WarpDecompressKernel::new(max_pages).with_target(target).with_warps_per_block(warps_per_block),
            ),
            PageFormat::Zstd => Self::Zstd(
                ZstdWarpDecompressKernel::new(max_pages).with_target(target).with_warps_per_block(warps_per_block),
            ),
        }
    }

    pub(crate) fn format(&self) -> PageFormat {
        match self {
            Self::Lz4(_) => PageFormat::Lz4,
            Self::Zstd(_) => PageFormat::Zstd,
        }
    }

    pub(crate) fn kernel(&self) -> &dyn Kernel {
        match self {
            Self::Lz4(kernel) => kernel,
            Self::Zstd(kernel) => kernel,
        }
    }

    /// Restores packed pages in the interpreter.
    pub(crate) fn interpret(&self, packed: &[u8], index: &[u8], pages: &mut [Page]) -> Result<DecompressRun, Fault> {
        match self {
            Self::Lz4(kernel) => kernel.interpret(packed, index, pages, |launch| launch),
            Self::Zstd(kernel) => kernel.interpret(packed, index, pages, |launch| launch),
        }
    }
}
