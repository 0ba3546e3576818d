//! The decompression kernels, for packed pages in device memory.
#![allow(unsafe_code)]

use std::num::{NonZeroU32, NonZeroUsize};

use trueno_gpu::kernels::packed::{PACK_ALIGN_BYTES, PackedEntry};

use super::group_kernels::GroupKernels;
use super::kernels::{DecompressKernel, PageFormat};
use super::page_kernel::PageKernel;
use super::{MAX_BATCH_PAGES, STATUS_BYTES, check_buffer, check_pages};
use crate::gpu::context::GpuContext;
use crate::gpu::error::{GpuError, GpuResult};
use crate::gpu::event::CudaEvent;
use crate::gpu::kernel::LoadedKernel;
use crate::gpu::launch_args::LaunchArgs;
use crate::gpu::launch_shape::LaunchShape;
use crate::gpu::memory::DeviceBuffer;
use crate::gpu::stream::CudaStream;
use crate::page::PAGE_SIZE;

/// The buffers of a decompression in device memory.
///
/// ```no_run
/// # use trueno_zram_core::gpu::raw::{DecompressBuffers, DeviceBuffer, GpuContext};
/// # let context = GpuContext::new(0)?;
/// let buffer = |len_bytes| DeviceBuffer::new(&context, len_bytes);
/// let (packed, index, output, status) = (&buffer(4096)?, &buffer(8)?, &buffer(4096)?, &buffer(4)?);
/// let buffers = DecompressBuffers { packed, packed_bytes: 4096, index, output, status, pages: 1 };
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DecompressBuffers<'a> {
    /// The packed pages.
    pub packed: &'a DeviceBuffer,
    /// Length of the packed pages in bytes, a multiple of 16.
    pub packed_bytes: u64,
    /// The index: one [`PackedEntry`] of 8 bytes per page.
    pub index: &'a DeviceBuffer,
    /// Receives the pages.
    pub output: &'a DeviceBuffer,
    /// Receives one [`PageStatus`](trueno_gpu::kernels::packed::PageStatus) of 4 bytes per page.
    pub status: &'a DeviceBuffer,
    /// The number of pages.
    pub pages: u32,
}

impl<'a> DecompressBuffers<'a> {
    /// Checks that the buffers are large enough for the pages, and that the packed length is aligned.
    fn check(&self) -> GpuResult<()> {
        let Self { packed, packed_bytes, index, output, status, pages } = *self;
        check_pages(pages)?;
        if packed_bytes > packed.len_bytes() as u64 {
            let (what, len_bytes, needed_bytes) = ("packed", packed.len_bytes(), packed_bytes);
            return Err(GpuError::ShortBuffer { what, len_bytes, needed_bytes });
        }
        if !packed_bytes.is_multiple_of(PACK_ALIGN_BYTES.into()) {
            return Err(GpuError::Misaligned { what: "packed length", value: packed_bytes, align: PACK_ALIGN_BYTES });
        }
        check_buffer("index", index.len_bytes(), pages, PackedEntry::BYTES)?;
        check_buffer("output", output.len_bytes(), pages, PAGE_SIZE)?;
        check_buffer("status", status.len_bytes(), pages, STATUS_BYTES)
    }

    /// Returns the arguments that all decompression kernels have; `memory` is the kernel's own.
    pub(super) fn launch_args<'b>(&self, memory: &'b DeviceBuffer) -> LaunchArgs<'b>
    where
        'a: 'b,
    {
        let args = LaunchArgs::new().buffer(self.packed).u64(self.packed_bytes).buffer(self.index);
        args.buffer(self.output).buffer(self.status).buffer(memory).u32(self.pages)
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
/// use trueno_zram_core::gpu::raw::{CudaStream, DecompressBuffers, GpuContext, PageDecompressor, PageFormat};
/// # fn restore(buffers: DecompressBuffers<'_>) -> Result<(), trueno_zram_core::Error> {
/// let context = GpuContext::new(0)?;
/// let stream = CudaStream::new(&context)?;
/// let mut decompressor = PageDecompressor::new(&context, PageFormat::Zstd)?;
/// // SAFETY: one stream uses the buffers.
/// unsafe { decompressor.decompress(&stream, buffers, None) }?;
/// let mut first = [0; 4];
/// stream.download(buffers.status, 0, &mut first)?; // waits
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
        Ok(Self { kernel, page_kernel, group_kernels })
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
        self.group_kernels.as_ref().map(GroupKernels::least_pages)
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
        &self.page_kernel.loaded
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
        self.page_kernel.loaded.limit_multiprocessors(most);
        if let Some(kernels) = &mut self.group_kernels {
            kernels.limit_multiprocessors(most);
        }
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

    /// Queues the restoring of packed pages. A rejected page leaves its part of the output unchanged. Records `kernel_start`, if
    /// given, after the preparations and before the first kernel, so that the kernels can be timed on their own.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{CudaEvent, CudaStream, DecompressBuffers, DeviceBuffer, GpuContext, PageDecompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// # let buffer = |len_bytes| DeviceBuffer::new(&context, len_bytes);
    /// # let mut decompressor = PageDecompressor::new(&context, PageFormat::Zstd)?;
    /// let (packed, index, output, status) = (&buffer(4096)?, &buffer(8)?, &buffer(4096)?, &buffer(4)?);
    /// let buffers = DecompressBuffers { packed, packed_bytes: 4096, index, output, status, pages: 1 };
    /// let (start, end) = (CudaEvent::timed(&context)?, CudaEvent::timed(&context)?);
    /// // SAFETY: four different buffers, used in one stream.
    /// unsafe { decompressor.decompress(&stream, buffers, Some(&start)) }?;
    /// stream.record(&end)?;
    /// end.wait()?;
    /// println!("the kernels took {:?}", end.since(&start)?);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::ShortBuffer`]; [`GpuError::Misaligned`] if the packed length is not a multiple of 16;
    /// [`GpuError::OutOfRange`] for more than [`MAX_BATCH_PAGES`](super::MAX_BATCH_PAGES); or the driver's error.
    ///
    /// # Safety
    /// The packed bytes, the index, the output and the status are four different buffers. Until the stream has run the
    /// kernels, no other work writes the packed bytes or the index. Their contents may be arbitrary.
    pub unsafe fn decompress(
        &mut self,
        stream: &CudaStream,
        buffers: DecompressBuffers<'_>,
        kernel_start: Option<&CudaEvent>,
    ) -> GpuResult<()> {
        buffers.check()?;
        let pages = buffers.pages;
        if let Some(kernels) = &mut self.group_kernels
            && pages >= kernels.least_pages()
            && kernels.reserve(pages)?
        {
            // SAFETY: the buffers were checked above, and the scratch memory was reserved for them; the caller guarantees the
            // rest.
            return unsafe { kernels.launch(stream, buffers, kernel_start) };
        }
        self.page_kernel.reset_next(stream)?;
        kernel_start.map_or(Ok(()), |event| stream.record(event))?;
        if pages == 0 {
            return Ok(());
        }
        let args = buffers.launch_args(&self.page_kernel.workspace().next_page);
        let grid = self.kernel.kernel().grid(pages).min(self.loaded().resident_blocks());
        // SAFETY: by `DecompressBuffers::check`, all buffers are large enough for that many pages. The kernel checks every entry
        // against the packed length and every block against the page. By the caller's guarantee, checked data does not
        // change. The workspace was reset above.
        unsafe { self.page_kernel.launch(stream, grid, &args) }
    }
}
