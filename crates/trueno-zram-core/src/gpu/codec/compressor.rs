//! The compression kernel, for pages in device memory.
#![allow(unsafe_code)]

use std::num::{NonZeroU32, NonZeroUsize};

use trueno_gpu::kernels::packed::{Mode, PackedEntry, TableStores};

use super::kernels::{CompressKernel, PageFormat};
use super::page_kernel::PageKernel;
use super::{MAX_BATCH_PAGES, check_buffer, check_pages};
use crate::gpu::context::GpuContext;
use crate::gpu::error::GpuResult;
use crate::gpu::event::CudaEvent;
use crate::gpu::kernel::LoadedKernel;
use crate::gpu::lane_rule::lane_rule;
use crate::gpu::launch_args::LaunchArgs;
use crate::gpu::launch_shape::LaunchShape;
use crate::gpu::memory::DeviceBuffer;
use crate::gpu::stream::CudaStream;
use crate::page::PAGE_SIZE;

/// The buffers of a compression in device memory.
///
/// ```no_run
/// # use trueno_zram_core::gpu::raw::{CompressBuffers, DeviceBuffer, GpuContext};
/// # let context = GpuContext::new(0)?;
/// let buffer = |len_bytes| DeviceBuffer::new(&context, len_bytes);
/// let (input, output, index) = (buffer(3 * 4096)?, buffer(3 * 4096)?, buffer(3 * 8)?);
/// let buffers = CompressBuffers { input: &input, output: &output, index: &index, pages: 3 };
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CompressBuffers<'a> {
    /// The pages to compress.
    pub input: &'a DeviceBuffer,
    /// Receives the packed pages. It must have room for all pages uncompressed.
    pub output: &'a DeviceBuffer,
    /// Receives the index: one [`PackedEntry`] of 8 bytes per page.
    pub index: &'a DeviceBuffer,
    /// The number of pages.
    pub pages: u32,
}

impl CompressBuffers<'_> {
    /// Checks that the buffers are large enough for the pages.
    fn check(&self) -> GpuResult<()> {
        check_pages(self.pages)?;
        check_buffer("input", self.input.len_bytes(), self.pages, PAGE_SIZE)?;
        check_buffer("output", self.output.len_bytes(), self.pages, PAGE_SIZE)?;
        check_buffer("index", self.index.len_bytes(), self.pages, PackedEntry::BYTES)
    }
}

/// Compresses pages in device memory into packed pages and an index in device memory.
///
/// Each page becomes a block or frame of the compressor's [`PageFormat`], a word if it is same-filled, or an unchanged
/// copy. The packed pages lie in page order, at multiples of 16 bytes. Bytes and index depend only on the pages.
///
/// ```no_run
/// use trueno_gpu::kernels::packed::{Mode, PackedEntry};
/// use trueno_zram_core::gpu::raw::{CompressBuffers, CudaStream, DeviceBuffer, GpuContext, PageCompressor, PageFormat};
/// let context = GpuContext::new(0)?;
/// let stream = CudaStream::new(&context)?;
/// let pages = 1000;
/// let buffer = |bytes_per_page: usize| DeviceBuffer::new(&context, pages as usize * bytes_per_page);
/// let (input, output, index) = (buffer(4096)?, buffer(4096)?, buffer(8)?);
/// stream.fill(&input, 0..input.len_bytes(), 7)?;
/// let mut compressor = PageCompressor::new(&context, PageFormat::Zstd, Mode::Fast)?;
/// let buffers = CompressBuffers { input: &input, output: &output, index: &index, pages };
/// // SAFETY: one stream uses the buffers.
/// unsafe { compressor.compress(&stream, buffers, None) }?;
/// let mut entry = [0; 8];
/// stream.download(&index, 0, &mut entry)?; // waits
/// assert_eq!(PackedEntry::from_bits(u64::from_le_bytes(entry)).len_bytes(), 8);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub struct PageCompressor {
    kernel: CompressKernel,
    page_kernel: PageKernel,
    table_stores: TableStores,
}

impl PageCompressor {
    /// Creates a compressor with the best shape for the device, and with the faster table stores if a probe allows
    /// them.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::packed::Mode;
    /// use trueno_zram_core::gpu::raw::{GpuContext, PageCompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// let fast = PageCompressor::new(&context, PageFormat::Lz4, Mode::Fast)?;
    /// let tight = PageCompressor::new(&context, PageFormat::Zstd, Mode::Ratio)?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the kernel cannot be loaded or the probe cannot be run.
    pub fn new(context: &GpuContext, format: PageFormat, mode: Mode) -> GpuResult<Self> {
        let stores = lane_rule(context)?.table_stores();
        let shape = LaunchShape::best_for(context.info().compute_capability, context.limits());
        Self::with_shape(context, format, mode, stores, shape)
    }

    /// Creates a compressor with the given shape and table stores.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::packed::{Mode, TableStores};
    /// use trueno_zram_core::gpu::raw::{LaunchShape, GpuContext, PageCompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// let (stores, shape) = (TableStores::ReadBack, LaunchShape::EVERYWHERE); // runs on every device
    /// let compressor = PageCompressor::with_shape(&context, PageFormat::Lz4, Mode::Fast, stores, shape)?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the kernel cannot be loaded, for example because the shape is too large for the device.
    pub fn with_shape(
        context: &GpuContext,
        format: PageFormat,
        mode: Mode,
        table_stores: TableStores,
        shape: LaunchShape,
    ) -> GpuResult<Self> {
        let kernel = CompressKernel::new(format, MAX_BATCH_PAGES, mode, table_stores, shape);
        let page_kernel = PageKernel::new(context, kernel.kernel(), |blocks| kernel.scratch_bytes(blocks))?;
        Ok(Self { kernel, page_kernel, table_stores })
    }

    /// Returns the format that pages are compressed to.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::packed::Mode;
    /// use trueno_zram_core::gpu::raw::{GpuContext, PageCompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// let compressor = PageCompressor::new(&context, PageFormat::Zstd, Mode::Fast)?;
    /// assert_eq!(compressor.format(), PageFormat::Zstd);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn format(&self) -> PageFormat {
        self.kernel.format()
    }

    /// Returns the kernel loaded on the device.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::packed::Mode;
    /// use trueno_zram_core::gpu::raw::{GpuContext, PageCompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// let compressor = PageCompressor::new(&context, PageFormat::Zstd, Mode::Fast)?;
    /// println!("{} blocks at a time", compressor.loaded().resident_blocks());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn loaded(&self) -> &LoadedKernel {
        &self.page_kernel.loaded
    }

    /// Returns the table stores that the kernel uses.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::packed::{Mode, TableStores};
    /// use trueno_zram_core::gpu::raw::{GpuContext, PageCompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// let compressor = PageCompressor::new(&context, PageFormat::Zstd, Mode::Fast)?;
    /// if compressor.table_stores() == TableStores::ReadBack {
    ///     println!("the lowest lane did not win every conflict in the probe");
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn table_stores(&self) -> TableStores {
        self.table_stores
    }

    /// Limits later launches to `most` multiprocessors, which leaves room for other kernels. `None` removes the limit.
    ///
    /// The grid is cut to the number of blocks that fit on that many multiprocessors. This is exact if a block fills a
    /// multiprocessor ([`LaunchShape::WIDE`]); smaller blocks may be spread over more.
    ///
    /// ```no_run
    /// use std::num::NonZeroU32;
    /// use trueno_gpu::kernels::packed::Mode;
    /// use trueno_zram_core::gpu::raw::{GpuContext, PageCompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// let mut codec = PageCompressor::new(&context, PageFormat::Zstd, Mode::Fast)?;
    /// codec.limit_multiprocessors(NonZeroU32::new(context.limits().multiprocessors / 4));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn limit_multiprocessors(&mut self, most: Option<NonZeroU32>) {
        self.page_kernel.loaded.limit_multiprocessors(most);
    }

    /// Allows up to `launches` launches in different streams to run at the same time. Each takes scratch memory of its own;
    /// there are fewer if the device is out of memory. A new compressor runs its launches one after the other.
    ///
    /// A launch on a few thousand pages leaves multiprocessors idle while its last pages are compressed. The next launch
    /// uses them if it does not have to wait.
    ///
    /// ```no_run
    /// use std::num::NonZeroUsize;
    /// use trueno_gpu::kernels::packed::Mode;
    /// use trueno_zram_core::gpu::raw::{GpuContext, PageCompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// let mut compressor = PageCompressor::new(&context, PageFormat::Zstd, Mode::Fast)?;
    /// let of_one = compressor.scratch_bytes();
    /// compressor.allow_concurrent(NonZeroUsize::new(2).expect("not zero"))?;
    /// assert_eq!(compressor.scratch_bytes(), 2 * of_one);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The driver's error, unless it is that there is no more memory.
    pub fn allow_concurrent(&mut self, launches: NonZeroUsize) -> GpuResult<()> {
        self.page_kernel.allow_concurrent(launches.get())
    }

    /// Returns the size of the kernel's scratch memory on the device. It does not depend on the batch.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::packed::Mode;
    /// use trueno_zram_core::gpu::raw::{GpuContext, PageCompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// let compressor = PageCompressor::new(&context, PageFormat::Zstd, Mode::Fast)?;
    /// println!("{} MiB besides the pages", compressor.scratch_bytes() >> 20);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.page_kernel.scratch_bytes()
    }

    /// Queues the compression of pages. Records `kernel_start`, if given, after the preparations and before the kernel, so that
    /// the kernel can be timed on its own.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::packed::Mode;
    /// use trueno_zram_core::gpu::raw::{CompressBuffers, CudaEvent, CudaStream, DeviceBuffer, GpuContext, PageCompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// # let buffer = |bytes_per_page: usize| DeviceBuffer::new(&context, 1000 * bytes_per_page);
    /// # let mut compressor = PageCompressor::new(&context, PageFormat::Zstd, Mode::Fast)?;
    /// let (input, output, index) = (buffer(4096)?, buffer(4096)?, buffer(8)?);
    /// let buffers = CompressBuffers { input: &input, output: &output, index: &index, pages: 1000 };
    /// let (start, end) = (CudaEvent::timed(&context)?, CudaEvent::timed(&context)?);
    /// // SAFETY: three different buffers, used in one stream.
    /// unsafe { compressor.compress(&stream, buffers, Some(&start)) }?;
    /// stream.record(&end)?;
    /// end.wait()?;
    /// println!("the kernel took {:?}", end.since(&start)?);
    /// // SAFETY: as above. There is no room for one more page, so nothing is queued.
    /// assert!(unsafe { compressor.compress(&stream, CompressBuffers { pages: 1001, ..buffers }, None) }.is_err());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::ShortBuffer`](crate::gpu::GpuError::ShortBuffer);
    /// [`GpuError::OutOfRange`](crate::gpu::GpuError::OutOfRange) for more than [`MAX_BATCH_PAGES`]; or the driver's
    /// error.
    ///
    /// # Safety
    /// `input`, `output` and `index` are three different buffers. Until the stream has run the kernel, no other work
    /// writes `input` or `index`: the kernel reads each page's position in `output` from the index.
    pub unsafe fn compress(
        &mut self,
        stream: &CudaStream,
        buffers: CompressBuffers<'_>,
        kernel_start: Option<&CudaEvent>,
    ) -> GpuResult<()> {
        buffers.check()?;
        let CompressBuffers { input, output, index, pages } = buffers;
        self.page_kernel.reset_next(stream)?;
        // Widening: `usize` has 64 bits wherever CUDA runs.
        stream.fill(index, 0..pages as usize * PackedEntry::BYTES, 0)?;
        kernel_start.map_or(Ok(()), |event| stream.record(event))?;
        if pages == 0 {
            return Ok(());
        }
        let workspace = self.page_kernel.workspace();
        let args = LaunchArgs::new()
            .buffer(input)
            .buffer(output)
            .buffer(index)
            .buffer(&workspace.scratch)
            .buffer(&workspace.next_page)
            .u32(pages);
        let grid = self.kernel.kernel().grid(pages).min(self.loaded().resident_blocks());
        // SAFETY: by `CompressBuffers::check`, input, output and index are large enough for that many pages, and the scratch
        // memory is large enough for the largest grid. The packed pages never exceed the output: the index was zeroed above,
        // and by the caller's guarantee nothing else writes it. The workspace was reset above.
        unsafe { self.page_kernel.launch(stream, grid, &args) }
    }
}
