//! Decompression of packed pages in device memory: what to launch, and the checks before it.
#![allow(unsafe_code)]

use std::num::{NonZeroU32, NonZeroUsize};

use trueno_gpu::kernels::packed::{PACK_ALIGN_BYTES, PackedEntry};

use super::group_kernels::GroupKernels;
use super::kernels::{DecompressKernel, PageFormat};
use super::page_kernel::PageKernel;
use super::{MAX_BATCH_PAGES, STATUS_BYTES, check_pages, check_room, grid_of};
use crate::gpu::context::GpuContext;
use crate::gpu::error::{GpuError, GpuResult};
use crate::gpu::kernel::{LaunchShape, LoadedKernel};
use crate::gpu::launch::LaunchArgs;
use crate::gpu::memory::DeviceBuffer;
use crate::gpu::stream::CudaStream;
use crate::page::PAGE_SIZE;

/// Packed pages in device memory, the input of a decompression.
///
/// ```no_run
/// # use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, PackedPages};
/// # let context = GpuContext::new(0)?;
/// # let (bytes, index) = (DeviceBuffer::new(&context, 4096)?, DeviceBuffer::new(&context, 8)?);
/// let packed = PackedPages { bytes: &bytes, len_bytes: 4096, index: &index, pages: 1 };
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PackedPages<'a> {
    /// The packed pages.
    pub bytes: &'a DeviceBuffer,
    /// Length of the packed pages in bytes, a multiple of 16.
    pub len_bytes: u64,
    /// The index: one [`PackedEntry`](trueno_gpu::kernels::packed::PackedEntry) per page.
    pub index: &'a DeviceBuffer,
    /// The number of pages.
    pub pages: u32,
}

/// Buffers that are large enough for their pages. Created only by [`checked`](Self::checked).
pub(super) struct DecompressBatch<'a> {
    pub(super) packed: PackedPages<'a>,
    pub(super) output: &'a DeviceBuffer,
    pub(super) status: &'a DeviceBuffer,
}

impl<'a> DecompressBatch<'a> {
    fn checked(packed: PackedPages<'a>, output: &'a DeviceBuffer, status: &'a DeviceBuffer) -> GpuResult<Self> {
        let PackedPages { bytes, len_bytes: needed_bytes, index, pages } = packed;
        check_pages(pages)?;
        if needed_bytes > bytes.len_bytes() as u64 {
            return Err(GpuError::ShortBuffer { what: "packed", len_bytes: bytes.len_bytes(), needed_bytes });
        }
        if !needed_bytes.is_multiple_of(PACK_ALIGN_BYTES.into()) {
            let (what, value) = ("packed length", needed_bytes);
            return Err(GpuError::Misaligned { what, value, align: PACK_ALIGN_BYTES });
        }
        check_room("index", index.len_bytes(), pages, PackedEntry::BYTES)?;
        check_room("output", output.len_bytes(), pages, PAGE_SIZE)?;
        check_room("status", status.len_bytes(), pages, STATUS_BYTES)?;
        Ok(Self { packed, output, status })
    }

    /// Returns the arguments that all decompression kernels have; `memory` is the kernel's own.
    pub(super) fn launch_args<'b>(&self, memory: &'b DeviceBuffer) -> LaunchArgs<'b>
    where
        'a: 'b,
    {
        let PackedPages { bytes, len_bytes, index, pages } = self.packed;
        let args = LaunchArgs::new().buffer(bytes).u64(len_bytes).buffer(index);
        args.buffer(self.output).buffer(self.status).buffer(memory).u32(pages)
    }
}

/// Restores packed pages in device memory. Neither the packed bytes nor the index are trusted.
///
/// It decides how a batch is restored, and owns all device memory besides the caller's. There are two ways, with the same
/// result for every page:
///
/// - one launch with one page per warp, for LZ4 and for small batches of Zstandard;
/// - two launches that order the pages and restore them in groups, for batches of Zstandard from
///   [`least_group_pages`](Self::least_group_pages) on. They need [scratch memory](Self::scratch_bytes), which is allocated for the
///   first such batch and grows with the largest one. If the device has no room for it, the batch is restored the first way.
///
/// ```no_run
/// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, PackedPages, PageDecompressor, PageFormat, CudaStream};
/// # fn restore(packed: PackedPages<'_>, output: &DeviceBuffer) -> Result<(), trueno_zram_core::Error> {
/// let context = GpuContext::new(0)?;
/// let stream = CudaStream::new(&context)?;
/// let status = DeviceBuffer::new(&context, packed.pages as usize * 4)?;
/// let mut decompressor = PageDecompressor::new(&context, PageFormat::Zstd)?;
/// // SAFETY: one stream uses the buffers.
/// unsafe { decompressor.decompress(&stream, packed, output, &status) }?;
/// let mut first = [0; 4];
/// stream.download(&status, 0, &mut first)?; // waits
/// assert_eq!(first, [0; 4], "restored");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PageDecompressor {
    kernel: DecompressKernel,
    page_kernel: PageKernel,
    /// Only for Zstandard.
    group_kernels: Option<GroupKernels>,
    /// The kernels that the last call of `zero` prepared.
    prepared: PreparedKernels,
    multiprocessors: Option<NonZeroU32>,
}

/// The kernels that restore a batch.
#[derive(Clone, Copy, Debug)]
enum PreparedKernels {
    PageKernel,
    GroupKernels,
}

impl PageDecompressor {
    /// Creates a decompressor with the best shape for the device.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, PageDecompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// let mut decompressor = PageDecompressor::new(&context, PageFormat::Zstd)?; // create once: this compiles the kernels
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a kernel cannot be loaded.
    pub fn new(context: &GpuContext, format: PageFormat) -> GpuResult<Self> {
        let shape = match format {
            PageFormat::Lz4 => LaunchShape::best_for(context.info().compute_capability, context.limits()),
            // For small batches only, which blocks of few warps spread over more multiprocessors.
            PageFormat::Zstd => LaunchShape::EVERYWHERE,
        };
        Self::with_shape(context, format, shape)
    }

    /// Creates a decompressor with the given shape of the kernel with one page per warp.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{LaunchShape, GpuContext, PageDecompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// let decompressor = PageDecompressor::with_shape(&context, PageFormat::Lz4, LaunchShape::EVERYWHERE)?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a kernel cannot be loaded, for example because the shape is too large for the device.
    pub fn with_shape(context: &GpuContext, format: PageFormat, shape: LaunchShape) -> GpuResult<Self> {
        let kernel = DecompressKernel::new(format, MAX_BATCH_PAGES, shape);
        let page_kernel = PageKernel::new(context, kernel.kernel(), |_| 0)?;
        let group_kernels = match format {
            PageFormat::Lz4 => None,
            PageFormat::Zstd => Some(GroupKernels::new(context)?),
        };
        let (prepared, multiprocessors) = (PreparedKernels::PageKernel, None);
        Ok(Self { kernel, page_kernel, group_kernels, prepared, multiprocessors })
    }

    /// Returns the format that it restores, besides same-filled and raw pages.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, PageDecompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// assert_eq!(PageDecompressor::new(&context, PageFormat::Zstd)?.format(), PageFormat::Zstd);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn format(&self) -> PageFormat {
        self.kernel.format()
    }

    /// Returns the number of pages from which a batch is restored in groups, or `None` if the format has no kernels for that.
    /// [`limit_multiprocessors`](Self::limit_multiprocessors) changes it.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, PageDecompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// assert!(PageDecompressor::new(&context, PageFormat::Zstd)?.least_group_pages().is_some());
    /// assert_eq!(PageDecompressor::new(&context, PageFormat::Lz4)?.least_group_pages(), None);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn least_group_pages(&self) -> Option<u32> {
        self.group_kernels.as_ref().map(|kernels| kernels.least_pages(self.multiprocessors))
    }

    /// Returns the size of the scratch memory on the device: 0 until a batch is restored in groups.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, PageDecompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// assert_eq!(PageDecompressor::new(&context, PageFormat::Zstd)?.scratch_bytes(), 0);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.group_kernels.as_ref().map_or(0, GroupKernels::scratch_bytes)
    }

    /// Returns the kernel with one page per warp, as loaded on the device.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, PageDecompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// let decompressor = PageDecompressor::new(&context, PageFormat::Zstd)?;
    /// println!("{} registers per thread", decompressor.loaded().attributes()?.registers);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn loaded(&self) -> &LoadedKernel {
        self.page_kernel.loaded()
    }

    /// Returns the kernel that restores pages in groups, as loaded on the device, or `None` if the format has none.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, PageDecompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// let decompressor = PageDecompressor::new(&context, PageFormat::Zstd)?;
    /// let blocks = decompressor.loaded_group().map(|kernel| kernel.resident_blocks());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn loaded_group(&self) -> Option<&LoadedKernel> {
        self.group_kernels.as_ref().map(GroupKernels::loaded)
    }

    /// Limits later launches to `most` multiprocessors, which leaves room for other kernels. `None` removes the limit.
    ///
    /// The grid is cut to the number of blocks that fit on that many multiprocessors. This is exact if a block fills a
    /// multiprocessor ([`LaunchShape::WIDE`]); smaller blocks, such as those for groups, may be spread over more.
    ///
    /// ```no_run
    /// use std::num::NonZeroU32;
    /// use trueno_zram_core::gpu::raw::{GpuContext, PageDecompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// let mut codec = PageDecompressor::new(&context, PageFormat::Zstd)?;
    /// codec.limit_multiprocessors(NonZeroU32::new(context.limits().multiprocessors / 4));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn limit_multiprocessors(&mut self, most: Option<NonZeroU32>) {
        self.multiprocessors = most;
    }

    /// Allows up to `launches` launches in different streams to run at the same time, or fewer if the device is out of
    /// memory. Batches that are restored in groups still wait for each other: each of them fills the device.
    ///
    /// ```no_run
    /// use std::num::NonZeroUsize;
    /// use trueno_zram_core::gpu::raw::{GpuContext, PageDecompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// let mut decompressor = PageDecompressor::new(&context, PageFormat::Zstd)?;
    /// decompressor.allow_concurrent(NonZeroUsize::new(2).expect("not zero"))?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The driver's error, unless it is that there is no more memory.
    pub fn allow_concurrent(&mut self, launches: NonZeroUsize) -> GpuResult<()> {
        self.page_kernel.allow_concurrent(launches.get())
    }

    /// Queues the restoring of packed pages to `output` and writes a
    /// [`PageStatus`](trueno_gpu::kernels::packed::PageStatus) per page to `status`. A rejected page leaves its part of
    /// `output` unchanged.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, PackedPages, PageDecompressor, PageFormat, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// # let (bytes, index) = (DeviceBuffer::new(&context, 4096)?, DeviceBuffer::new(&context, 8)?);
    /// # let mut decompressor = PageDecompressor::new(&context, PageFormat::Zstd)?;
    /// let (output, status) = (DeviceBuffer::new(&context, 4096)?, DeviceBuffer::new(&context, 4)?);
    /// let packed = PackedPages { bytes: &bytes, len_bytes: 4096, index: &index, pages: 1 };
    /// // SAFETY: four different buffers, used in one stream.
    /// unsafe { decompressor.decompress(&stream, packed, &output, &status) }?;
    /// let mut word = [0; 4];
    /// stream.download(&status, 0, &mut word)?; // waits; 0 means that the page was restored
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::ShortBuffer`]; [`GpuError::Misaligned`] if the packed length is not a multiple of 16;
    /// [`GpuError::OutOfRange`] for more than [`MAX_BATCH_PAGES`](super::MAX_BATCH_PAGES); or the driver's error.
    ///
    /// # Safety
    /// The packed bytes, the index, `output` and `status` are four different buffers. Until the stream has run the
    /// kernels, no other work writes the packed bytes or the index. Their contents may be arbitrary.
    pub unsafe fn decompress(
        &mut self,
        stream: &CudaStream,
        packed: PackedPages<'_>,
        output: &DeviceBuffer,
        status: &DeviceBuffer,
    ) -> GpuResult<()> {
        let batch = DecompressBatch::checked(packed, output, status)?;
        self.zero(stream, packed.pages)?;
        // SAFETY: the counters were zeroed just before in the same stream; the caller guarantees the rest.
        unsafe { self.launch(stream, batch) }
    }

    /// The first half of [`decompress`](Self::decompress): chooses how a batch of `pages` is restored, gets memory for it and
    /// queues the zeroing of the counters.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, PackedPages, PageDecompressor, PageFormat, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// # let (bytes, index) = (DeviceBuffer::new(&context, 4096)?, DeviceBuffer::new(&context, 8)?);
    /// # let (output, status) = (DeviceBuffer::new(&context, 4096)?, DeviceBuffer::new(&context, 4)?);
    /// # let packed = PackedPages { bytes: &bytes, len_bytes: 4096, index: &index, pages: 1 };
    /// # let mut decompressor = PageDecompressor::new(&context, PageFormat::Zstd)?;
    /// decompressor.zero(&stream, packed.pages)?;
    /// // SAFETY: four different buffers, used in one stream; `zero` was called just before.
    /// unsafe { decompressor.launch_zeroed(&stream, packed, &output, &status) }?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The driver's error.
    pub fn zero(&mut self, stream: &CudaStream, pages: u32) -> GpuResult<()> {
        self.prepared = PreparedKernels::PageKernel;
        if let Some(kernels) = &mut self.group_kernels {
            let is_large = pages >= kernels.least_pages(self.multiprocessors);
            if is_large && kernels.reserve(self.multiprocessors, pages)? {
                kernels.zero(stream)?;
                self.prepared = PreparedKernels::GroupKernels;
                return Ok(());
            }
        }
        self.page_kernel.reset_next(stream)
    }

    /// The second half of [`decompress`](Self::decompress): queues only the kernels, so that they can be timed on their own.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, CudaEvent, GpuContext, PackedPages, PageDecompressor, PageFormat, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// # let (bytes, index) = (DeviceBuffer::new(&context, 4096)?, DeviceBuffer::new(&context, 8)?);
    /// # let (output, status) = (DeviceBuffer::new(&context, 4096)?, DeviceBuffer::new(&context, 4)?);
    /// # let packed = PackedPages { bytes: &bytes, len_bytes: 4096, index: &index, pages: 1 };
    /// # let mut decompressor = PageDecompressor::new(&context, PageFormat::Zstd)?;
    /// let (start, end) = (CudaEvent::timed(&context)?, CudaEvent::timed(&context)?);
    /// decompressor.zero(&stream, packed.pages)?;
    /// stream.record(&start)?;
    /// // SAFETY: four different buffers, used in one stream; `zero` was called just before.
    /// unsafe { decompressor.launch_zeroed(&stream, packed, &output, &status) }?;
    /// stream.record(&end)?;
    /// end.wait()?;
    /// println!("the kernels took {:?}", end.since(&start)?);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of `decompress`.
    ///
    /// # Safety
    /// The requirements of `decompress`. In addition, [`zero`](Self::zero) was the last call before, with the same
    /// stream and number of pages.
    pub unsafe fn launch_zeroed(
        &mut self,
        stream: &CudaStream,
        packed: PackedPages<'_>,
        output: &DeviceBuffer,
        status: &DeviceBuffer,
    ) -> GpuResult<()> {
        let batch = DecompressBatch::checked(packed, output, status)?;
        // SAFETY: the caller upholds the requirements.
        unsafe { self.launch(stream, batch) }
    }

    /// # Safety
    /// The requirements of [`launch_zeroed`](Self::launch_zeroed).
    unsafe fn launch(&self, stream: &CudaStream, batch: DecompressBatch<'_>) -> GpuResult<()> {
        match (self.prepared, &self.group_kernels) {
            (PreparedKernels::GroupKernels, Some(kernels)) => {
                // SAFETY: the caller upholds the requirements; `zero` prepared these kernels.
                unsafe { kernels.launch(stream, batch, self.multiprocessors) }
            }
            _ => {
                let pages = batch.packed.pages;
                if pages == 0 {
                    return Ok(());
                }
                let args = batch.launch_args(&self.page_kernel.workspace().next_page);
                let grid = grid_of(self.kernel.kernel(), self.loaded(), self.multiprocessors, pages);
                // SAFETY: by `DecompressBatch::checked`, all buffers are large enough for that many pages. The kernel checks
                // every entry against the packed length and every block against the page. By the caller's guarantee, checked
                // data does not change. `zero` reset the workspace.
                unsafe { self.page_kernel.launch(stream, grid, &args) }
            }
        }
    }
}
