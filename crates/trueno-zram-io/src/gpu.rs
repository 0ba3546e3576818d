//! A GPU as the compressor or the decoder of a pipeline.

use trueno_zram_archive::ReadSummary;
use trueno_zram_core::gpu::{GpuBatchCompressor, Interpreter, LazyGpu};
use trueno_zram_core::{BatchCodec, PageCodec};

use crate::compress::gpu::{compress_lazily, compress_on};
use crate::compress::{CompressJob, Compressed};
use crate::input::page_source::PageSource;
use crate::output::ArchiveOutput;
use crate::restore::Sink;
use crate::restore::gpu::{restore_lazily, restore_on};
use crate::restore::groups::{GroupFailure, GroupsJob};

/// A GPU, or the interpreter of its kernels.
///
/// ```
/// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
/// use trueno_zram_io::{Compressors, Gpu};
/// // `GpuBatchCompressor::new` and `Gpu::Cuda` on a machine with a GPU.
/// let mut gpu = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
/// let compressors = Compressors::Gpu { gpu: Gpu::Interpreter(&mut gpu), helpers: &mut [] };
/// # drop(compressors);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub enum Gpu<'a> {
    /// A GPU.
    Cuda(&'a mut GpuBatchCompressor),
    /// A GPU that is opened if that pays. Lanes on the CPU begin without it.
    Lazy(&'a mut LazyGpu),
    /// The interpreter.
    Interpreter(&'a mut GpuBatchCompressor<Interpreter>),
}

impl Gpu<'_> {
    /// Returns the GPU as a codec of batches, if it is open.
    pub(crate) fn codec(&mut self) -> Option<&mut dyn BatchCodec> {
        match self {
            Self::Cuda(gpu) => Some(*gpu),
            Self::Lazy(gpu) => gpu.get().map(|gpu| gpu as &mut dyn BatchCodec),
            Self::Interpreter(gpu) => Some(*gpu),
        }
    }

    pub(crate) fn compress<S: PageSource, W: ArchiveOutput>(
        self,
        job: CompressJob<'_, S, W>,
        helpers: &mut [PageCodec],
    ) -> Result<Compressed<S, W>, S::Error> {
        match self {
            Self::Cuda(gpu) => compress_on(gpu, job, helpers),
            Self::Lazy(gpu) => compress_lazily(gpu, job, helpers),
            Self::Interpreter(gpu) => compress_on(gpu, job, helpers),
        }
    }

    /// Restores the groups of an archive. With `cpu_helps`, lanes restore groups as well.
    pub(crate) fn restore_groups<K: Sink>(
        &mut self,
        job: GroupsJob<'_, K>,
        cpu_helps: bool,
    ) -> Result<ReadSummary, GroupFailure> {
        match self {
            Self::Cuda(gpu) => restore_on(gpu, job, cpu_helps),
            Self::Lazy(gpu) => restore_lazily(gpu, job),
            Self::Interpreter(gpu) => restore_on(gpu, job, cpu_helps),
        }
    }
}
