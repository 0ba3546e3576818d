//! The decompression kernel on packed pages that lie in device memory.
#![allow(unsafe_code)]

use std::num::NonZeroU32;

use trueno_gpu::kernels::Kernel;
use trueno_gpu::kernels::lz4::Lz4WarpDecompressKernel;
use trueno_gpu::kernels::packed::PACK_ALIGN_BYTES;

use super::{INDEX_ENTRY_BYTES, MAX_BATCH_PAGES, STATUS_BYTES, Workspace, check_pages, check_room, grid_of};
use crate::gpu::context::GpuContext;
use crate::gpu::error::{GpuError, GpuResult};
use crate::gpu::kernel::{BlockShape, LoadedKernel};
use crate::gpu::launch::LaunchArgs;
use crate::gpu::memory::DeviceBuffer;
use crate::gpu::stream::Stream;
use crate::page::PAGE_SIZE;

/// Packed pages in device memory, on their way back.
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
    /// How many of the bytes are packed pages: a multiple of 16.
    pub len_bytes: u64,
    /// A [`PackedEntry`](trueno_gpu::kernels::packed::PackedEntry) a page.
    pub index: &'a DeviceBuffer,
    /// How many pages.
    pub pages: u32,
}

/// Buffers with the room that so many pages need: made by [`checked`](Self::checked) alone.
struct Batch<'a> {
    packed: PackedPages<'a>,
    output: &'a DeviceBuffer,
    status: &'a DeviceBuffer,
}

impl<'a> Batch<'a> {
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
        check_room("index", index.len_bytes(), pages, INDEX_ENTRY_BYTES)?;
        check_room("output", output.len_bytes(), pages, PAGE_SIZE)?;
        check_room("status", status.len_bytes(), pages, STATUS_BYTES)?;
        Ok(Self { packed, output, status })
    }
}

/// Restores packed pages in device memory. Neither the packed bytes nor the index are trusted.
///
/// ```no_run
/// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, Lz4Decompressor, PackedPages, Stream};
/// # fn restore(packed: PackedPages<'_>, output: &DeviceBuffer) -> Result<(), trueno_zram_core::Error> {
/// let context = GpuContext::new(0)?;
/// let stream = Stream::new(&context)?;
/// let status = DeviceBuffer::new(&context, packed.pages as usize * 4)?;
/// let mut decompressor = Lz4Decompressor::new(&context)?;
/// // SAFETY: one stream uses the buffers.
/// unsafe { decompressor.decompress(&stream, packed, output, &status) }?;
/// let mut first = [0; 4];
/// stream.download(&status, 0, &mut first)?; // waits
/// assert_eq!(first, [0; 4], "restored");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Lz4Decompressor {
    kernel: Lz4WarpDecompressKernel,
    loaded: LoadedKernel,
    workspace: Workspace,
    multiprocessors: Option<NonZeroU32>,
}

impl Lz4Decompressor {
    /// With the device's best shape.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, Lz4Decompressor};
    /// # let context = GpuContext::new(0)?;
    /// let mut decompressor = Lz4Decompressor::new(&context)?; // made once: this compiles the kernel
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the kernel cannot be loaded.
    pub fn new(context: &GpuContext) -> GpuResult<Self> {
        Self::with_shape(context, BlockShape::best_for(context.info().compute_capability, context.limits()))
    }

    /// With a shape of one's own choice.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{BlockShape, GpuContext, Lz4Decompressor};
    /// # let context = GpuContext::new(0)?;
    /// let decompressor = Lz4Decompressor::with_shape(&context, BlockShape::EVERYWHERE)?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the kernel cannot be loaded; in a shape that is too large for the device, for one.
    pub fn with_shape(context: &GpuContext, shape: BlockShape) -> GpuResult<Self> {
        let kernel = Lz4WarpDecompressKernel::new(MAX_BATCH_PAGES)
            .with_target(shape.target)
            .with_warps_per_block(shape.warps_per_block);
        let loaded = LoadedKernel::new(context, kernel.ir())?;
        Ok(Self { kernel, loaded, workspace: Workspace::new(context, 0)?, multiprocessors: None })
    }

    /// The kernel on the device.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, Lz4Decompressor};
    /// # let context = GpuContext::new(0)?;
    /// let decompressor = Lz4Decompressor::new(&context)?;
    /// println!("{} registers a thread", decompressor.loaded().attributes()?.registers);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn loaded(&self) -> &LoadedKernel {
        &self.loaded
    }

    /// Takes no more than so many multiprocessors from here on, so that other kernels find room; `None` for all.
    ///
    /// The kernel's grid is cut to the blocks that so many hold. That is exact where a block fills a multiprocessor
    /// ([`BlockShape::WIDE`]); smaller blocks may be spread over more.
    ///
    /// ```no_run
    /// use std::num::NonZeroU32;
    /// use trueno_zram_core::gpu::raw::{GpuContext, Lz4Decompressor};
    /// # let context = GpuContext::new(0)?;
    /// let mut codec = Lz4Decompressor::new(&context)?;
    /// codec.limit_multiprocessors(NonZeroU32::new(context.limits().multiprocessors / 4));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn limit_multiprocessors(&mut self, most: Option<NonZeroU32>) {
        self.multiprocessors = most;
    }

    /// Queues the restoring of packed pages to `output`, with a [`PageStatus`](trueno_gpu::kernels::packed::PageStatus) each
    /// in `status`. A page that is refused keeps what was at its place in `output`.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, Lz4Decompressor, PackedPages, Stream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = Stream::new(&context)?;
    /// # let (bytes, index) = (DeviceBuffer::new(&context, 4096)?, DeviceBuffer::new(&context, 8)?);
    /// # let mut decompressor = Lz4Decompressor::new(&context)?;
    /// let (output, status) = (DeviceBuffer::new(&context, 4096)?, DeviceBuffer::new(&context, 4)?);
    /// let packed = PackedPages { bytes: &bytes, len_bytes: 4096, index: &index, pages: 1 };
    /// // SAFETY: four buffers, used in one stream.
    /// unsafe { decompressor.decompress(&stream, packed, &output, &status) }?;
    /// let mut word = [0; 4];
    /// stream.download(&status, 0, &mut word)?; // waits; 0 says that the page is restored
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::ShortBuffer`], [`GpuError::Misaligned`] for a packed length that is no multiple of 16,
    /// [`GpuError::OutOfRange`] for more than [`MAX_BATCH_PAGES`], or what the driver says.
    ///
    /// # Safety
    /// The packed bytes, the index, `output` and `status` are four buffers. Until the stream has run it, no other work writes
    /// the packed bytes or the index. What they hold does not matter.
    pub unsafe fn decompress(
        &mut self,
        stream: &Stream,
        packed: PackedPages<'_>,
        output: &DeviceBuffer,
        status: &DeviceBuffer,
    ) -> GpuResult<()> {
        let batch = Batch::checked(packed, output, status)?;
        self.zero(stream)?;
        // SAFETY: the counter was zeroed just before in the same stream; the rest is the caller's word.
        unsafe { self.queue_kernel(stream, batch) }
    }

    /// The first part of [`decompress`](Self::decompress): queues the zeroing of the page counter.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, Lz4Decompressor, PackedPages, Stream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = Stream::new(&context)?;
    /// # let (bytes, index) = (DeviceBuffer::new(&context, 4096)?, DeviceBuffer::new(&context, 8)?);
    /// # let (output, status) = (DeviceBuffer::new(&context, 4096)?, DeviceBuffer::new(&context, 4)?);
    /// # let packed = PackedPages { bytes: &bytes, len_bytes: 4096, index: &index, pages: 1 };
    /// # let mut decompressor = Lz4Decompressor::new(&context)?;
    /// decompressor.zero(&stream)?;
    /// // SAFETY: four buffers, used in one stream; `zero` came just before.
    /// unsafe { decompressor.launch_zeroed(&stream, packed, &output, &status) }?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// What the driver says.
    pub fn zero(&mut self, stream: &Stream) -> GpuResult<()> {
        self.workspace.reset(stream)
    }

    /// The second part of [`decompress`](Self::decompress): queues the kernel alone, so that it can be timed alone.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, Event, GpuContext, Lz4Decompressor, PackedPages, Stream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = Stream::new(&context)?;
    /// # let (bytes, index) = (DeviceBuffer::new(&context, 4096)?, DeviceBuffer::new(&context, 8)?);
    /// # let (output, status) = (DeviceBuffer::new(&context, 4096)?, DeviceBuffer::new(&context, 4)?);
    /// # let packed = PackedPages { bytes: &bytes, len_bytes: 4096, index: &index, pages: 1 };
    /// # let mut decompressor = Lz4Decompressor::new(&context)?;
    /// let (start, end) = (Event::timed(&context)?, Event::timed(&context)?);
    /// decompressor.zero(&stream)?;
    /// stream.record(&start)?;
    /// // SAFETY: four buffers, used in one stream; `zero` came just before.
    /// unsafe { decompressor.launch_zeroed(&stream, packed, &output, &status) }?;
    /// stream.record(&end)?;
    /// end.wait()?;
    /// println!("the kernel took {:?}", end.since(&start)?);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As of `decompress`.
    ///
    /// # Safety
    /// That of `decompress`; and [`zero`](Self::zero) was the last call before, with the same stream.
    pub unsafe fn launch_zeroed(
        &mut self,
        stream: &Stream,
        packed: PackedPages<'_>,
        output: &DeviceBuffer,
        status: &DeviceBuffer,
    ) -> GpuResult<()> {
        let batch = Batch::checked(packed, output, status)?;
        // SAFETY: the caller's word.
        unsafe { self.queue_kernel(stream, batch) }
    }

    /// # Safety
    /// That of [`launch_zeroed`](Self::launch_zeroed).
    unsafe fn queue_kernel(&mut self, stream: &Stream, batch: Batch<'_>) -> GpuResult<()> {
        let Batch { packed, output, status } = batch;
        if packed.pages == 0 {
            return Ok(());
        }
        let args = LaunchArgs::new()
            .buffer(packed.bytes)
            .u64(packed.len_bytes)
            .buffer(packed.index)
            .buffer(output)
            .buffer(status)
            .buffer(&self.workspace.next_page)
            .u32(packed.pages);
        // SAFETY: all buffers have the bytes that so many pages need, by `Batch::checked`. The kernel checks every entry
        // against the packed length and every block against the page; what it has checked does not change, by the
        // caller's word.
        unsafe {
            self.loaded.launch(stream, grid_of(&self.kernel, &self.loaded, self.multiprocessors, packed.pages), &args)
        }?;
        stream.record(&self.workspace.last_launch)
    }
}
