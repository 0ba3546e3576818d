//! The compression kernel on pages that lie in device memory.
#![allow(unsafe_code)]

use std::num::NonZeroU32;

use trueno_gpu::kernels::Kernel;
use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Mode, TableStores};

use super::{INDEX_ENTRY_BYTES, MAX_BATCH_PAGES, Workspace, check_pages, check_room, grid_of};
use crate::gpu::context::GpuContext;
use crate::gpu::error::GpuResult;
use crate::gpu::kernel::{BlockShape, LoadedKernel};
use crate::gpu::lane_rule::lane_rule;
use crate::gpu::launch::LaunchArgs;
use crate::gpu::memory::DeviceBuffer;
use crate::gpu::stream::Stream;
use crate::page::PAGE_SIZE;

/// Compresses pages in device memory into packed pages and an index in device memory.
///
/// Each page becomes an LZ4 block, its word if it is same-filled, or itself; they lie in the pages' order at multiples of
/// 16 bytes. The index has a [`PackedEntry`](trueno_gpu::kernels::packed::PackedEntry) for each. Bytes and index depend on
/// the pages alone.
///
/// ```no_run
/// use trueno_gpu::kernels::lz4::Mode;
/// use trueno_gpu::kernels::packed::PackedEntry;
/// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, Lz4Compressor, Stream};
/// let context = GpuContext::new(0)?;
/// let stream = Stream::new(&context)?;
/// let pages = 1000;
/// let buffer = |bytes_per_page: usize| DeviceBuffer::new(&context, pages as usize * bytes_per_page);
/// let (input, output, index) = (buffer(4096)?, buffer(4096)?, buffer(8)?);
/// stream.fill(&input, 0..input.len_bytes(), 7)?;
/// let mut compressor = Lz4Compressor::new(&context, Mode::Fast)?;
/// // SAFETY: one stream uses the buffers.
/// unsafe { compressor.compress(&stream, &input, pages, &output, &index) }?;
/// let mut entry = [0; 8];
/// stream.download(&index, 0, &mut entry)?; // waits
/// assert_eq!(PackedEntry::from_bits(u64::from_le_bytes(entry)).len_bytes(), 8);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Lz4Compressor {
    kernel: Lz4WarpCompressKernel,
    loaded: LoadedKernel,
    workspace: Workspace,
    table_stores: TableStores,
    multiprocessors: Option<NonZeroU32>,
}

impl Lz4Compressor {
    /// With the device's best shape, and the faster of the two table stores where a probe allows it.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::lz4::Mode;
    /// use trueno_zram_core::gpu::raw::{GpuContext, Lz4Compressor};
    /// # let context = GpuContext::new(0)?;
    /// let (fast, tight) = (Lz4Compressor::new(&context, Mode::Fast)?, Lz4Compressor::new(&context, Mode::Ratio)?);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the kernel cannot be loaded, or the probe not be run.
    pub fn new(context: &GpuContext, mode: Mode) -> GpuResult<Self> {
        let stores = lane_rule(context)?.table_stores();
        let shape = BlockShape::best_for(context.info().compute_capability, context.limits());
        Self::with_shape(context, mode, stores, shape)
    }

    /// With a shape and table stores of one's own choice.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::lz4::{Mode, TableStores};
    /// use trueno_zram_core::gpu::raw::{BlockShape, GpuContext, Lz4Compressor};
    /// # let context = GpuContext::new(0)?;
    /// let (stores, shape) = (TableStores::ReadBack, BlockShape::EVERYWHERE); // sure to run on every device
    /// let compressor = Lz4Compressor::with_shape(&context, Mode::Fast, stores, shape)?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the kernel cannot be loaded; in a shape that is too large for the device, for one.
    pub fn with_shape(
        context: &GpuContext,
        mode: Mode,
        table_stores: TableStores,
        shape: BlockShape,
    ) -> GpuResult<Self> {
        let kernel = Lz4WarpCompressKernel::new(MAX_BATCH_PAGES)
            .with_mode(mode)
            .with_table_stores(table_stores)
            .with_target(shape.target)
            .with_warps_per_block(shape.warps_per_block);
        let loaded = LoadedKernel::new(context, kernel.ir())?;
        let workspace = Workspace::new(context, kernel.scratch_bytes(loaded.resident_blocks()))?;
        Ok(Self { kernel, loaded, workspace, table_stores, multiprocessors: None })
    }

    /// The kernel on the device.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::lz4::Mode;
    /// use trueno_zram_core::gpu::raw::{GpuContext, Lz4Compressor};
    /// # let context = GpuContext::new(0)?;
    /// let compressor = Lz4Compressor::new(&context, Mode::Fast)?;
    /// println!("{} blocks at a time", compressor.loaded().resident_blocks());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn loaded(&self) -> &LoadedKernel {
        &self.loaded
    }

    /// What the kernel relies on.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::lz4::{Mode, TableStores};
    /// use trueno_zram_core::gpu::raw::{GpuContext, Lz4Compressor};
    /// # let context = GpuContext::new(0)?;
    /// let compressor = Lz4Compressor::new(&context, Mode::Fast)?;
    /// if compressor.table_stores() == TableStores::ReadBack {
    ///     println!("the probe did not see the lowest lane win each time");
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn table_stores(&self) -> TableStores {
        self.table_stores
    }

    /// Takes no more than so many multiprocessors from here on, so that other kernels find room; `None` for all.
    ///
    /// The kernel's grid is cut to the blocks that so many hold. That is exact where a block fills a multiprocessor
    /// ([`BlockShape::WIDE`]); smaller blocks may be spread over more.
    ///
    /// ```no_run
    /// use std::num::NonZeroU32;
    /// use trueno_gpu::kernels::lz4::Mode;
    /// use trueno_zram_core::gpu::raw::{GpuContext, Lz4Compressor};
    /// # let context = GpuContext::new(0)?;
    /// let mut codec = Lz4Compressor::new(&context, Mode::Fast)?;
    /// codec.limit_multiprocessors(NonZeroU32::new(context.limits().multiprocessors / 4));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn limit_multiprocessors(&mut self, most: Option<NonZeroU32>) {
        self.multiprocessors = most;
    }

    /// Device memory that it works in, whatever the batch.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::lz4::Mode;
    /// use trueno_zram_core::gpu::raw::{GpuContext, Lz4Compressor};
    /// # let context = GpuContext::new(0)?;
    /// let compressor = Lz4Compressor::new(&context, Mode::Fast)?;
    /// println!("{} MiB beside the pages", compressor.scratch_bytes() >> 20);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.workspace.scratch.len_bytes()
    }

    /// Queues the compression of the first `pages` pages of `input`. `output` must have room for all of them as they are,
    /// since that is what they may take; `index` 8 bytes a page.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::lz4::Mode;
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, Lz4Compressor, Stream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = Stream::new(&context)?;
    /// # let buffer = |bytes_per_page: usize| DeviceBuffer::new(&context, 1000 * bytes_per_page);
    /// # let mut compressor = Lz4Compressor::new(&context, Mode::Fast)?;
    /// let (input, output, index) = (buffer(4096)?, buffer(4096)?, buffer(8)?);
    /// // SAFETY: three buffers, used in one stream.
    /// unsafe { compressor.compress(&stream, &input, 1000, &output, &index) }?;
    /// // SAFETY: as above. There is no room for one page more: refused before anything is queued.
    /// assert!(unsafe { compressor.compress(&stream, &input, 1001, &output, &index) }.is_err());
    /// stream.synchronize()?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::ShortBuffer`](crate::gpu::GpuError::ShortBuffer),
    /// [`GpuError::OutOfRange`](crate::gpu::GpuError::OutOfRange) for more than [`MAX_BATCH_PAGES`], or what the driver
    /// says.
    ///
    /// # Safety
    /// `input`, `output` and `index` are three buffers. Until the stream has run it, no other work writes `input` or `index`:
    /// the kernel takes the pages' places in `output` from the index.
    pub unsafe fn compress(
        &mut self,
        stream: &Stream,
        input: &DeviceBuffer,
        pages: u32,
        output: &DeviceBuffer,
        index: &DeviceBuffer,
    ) -> GpuResult<()> {
        let batch = Batch::checked(input, pages, output, index)?;
        self.queue_zeroing(stream, pages, index)?;
        // SAFETY: the index was zeroed just before in the same stream; the rest is the caller's word.
        unsafe { self.queue_kernel(stream, batch) }
    }

    /// The first part of [`compress`](Self::compress): queues the zeroing of what must be zero.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::lz4::Mode;
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, Lz4Compressor, Stream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = Stream::new(&context)?;
    /// # let buffer = |bytes_per_page: usize| DeviceBuffer::new(&context, 1000 * bytes_per_page);
    /// # let (input, output, index) = (buffer(4096)?, buffer(4096)?, buffer(8)?);
    /// # let mut compressor = Lz4Compressor::new(&context, Mode::Fast)?;
    /// compressor.zero(&stream, 1000, &index)?;
    /// // SAFETY: three buffers, used in one stream; `zero` came just before, with the same.
    /// unsafe { compressor.launch_zeroed(&stream, &input, 1000, &output, &index) }?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As of `compress`.
    pub fn zero(&mut self, stream: &Stream, pages: u32, index: &DeviceBuffer) -> GpuResult<()> {
        check_pages(pages)?;
        check_room("index", index.len_bytes(), pages, INDEX_ENTRY_BYTES)?;
        self.queue_zeroing(stream, pages, index)
    }

    /// The second part of [`compress`](Self::compress): queues the kernel alone, so that it can be timed alone.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::lz4::Mode;
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, Event, GpuContext, Lz4Compressor, Stream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = Stream::new(&context)?;
    /// # let buffer = |bytes_per_page: usize| DeviceBuffer::new(&context, 1000 * bytes_per_page);
    /// # let (input, output, index) = (buffer(4096)?, buffer(4096)?, buffer(8)?);
    /// # let mut compressor = Lz4Compressor::new(&context, Mode::Fast)?;
    /// let (start, end) = (Event::timed(&context)?, Event::timed(&context)?);
    /// compressor.zero(&stream, 1000, &index)?;
    /// stream.record(&start)?;
    /// // SAFETY: three buffers, used in one stream; `zero` came just before, with the same.
    /// unsafe { compressor.launch_zeroed(&stream, &input, 1000, &output, &index) }?;
    /// stream.record(&end)?;
    /// end.wait()?;
    /// println!("the kernel took {:?}", end.since(&start)?);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As of `compress`.
    ///
    /// # Safety
    /// That of `compress`; and [`zero`](Self::zero) was the last call before, with the same stream, pages and index.
    pub unsafe fn launch_zeroed(
        &mut self,
        stream: &Stream,
        input: &DeviceBuffer,
        pages: u32,
        output: &DeviceBuffer,
        index: &DeviceBuffer,
    ) -> GpuResult<()> {
        let batch = Batch::checked(input, pages, output, index)?;
        // SAFETY: the caller's word.
        unsafe { self.queue_kernel(stream, batch) }
    }

    fn queue_zeroing(&mut self, stream: &Stream, pages: u32, index: &DeviceBuffer) -> GpuResult<()> {
        self.workspace.reset(stream)?;
        stream.fill(index, 0..pages as usize * INDEX_ENTRY_BYTES, 0)
    }

    /// # Safety
    /// That of [`launch_zeroed`](Self::launch_zeroed).
    unsafe fn queue_kernel(&mut self, stream: &Stream, batch: Batch<'_>) -> GpuResult<()> {
        let Batch { input, pages, output, index } = batch;
        if pages == 0 {
            return Ok(());
        }
        let args = LaunchArgs::new()
            .buffer(input)
            .buffer(output)
            .buffer(index)
            .buffer(&self.workspace.scratch)
            .buffer(&self.workspace.next_page)
            .u32(pages);
        // SAFETY: input, output and index have the bytes that so many pages need, by `Batch::checked`, and the scratch
        // those of the largest grid. The pages' places add up to at most the output, since the index was zeroed and
        // nothing else writes it, by the caller's word; no other launch works in the scratch, since the zeroing waits
        // for it.
        unsafe { self.loaded.launch(stream, grid_of(&self.kernel, &self.loaded, self.multiprocessors, pages), &args) }?;
        stream.record(&self.workspace.last_launch)
    }
}

/// Buffers with the room that so many pages need: made by [`checked`](Self::checked) alone.
struct Batch<'a> {
    input: &'a DeviceBuffer,
    pages: u32,
    output: &'a DeviceBuffer,
    index: &'a DeviceBuffer,
}

impl<'a> Batch<'a> {
    fn checked(
        input: &'a DeviceBuffer,
        pages: u32,
        output: &'a DeviceBuffer,
        index: &'a DeviceBuffer,
    ) -> GpuResult<Self> {
        check_pages(pages)?;
        check_room("input", input.len_bytes(), pages, PAGE_SIZE)?;
        check_room("output", output.len_bytes(), pages, PAGE_SIZE)?;
        check_room("index", index.len_bytes(), pages, INDEX_ENTRY_BYTES)?;
        Ok(Self { input, pages, output, index })
    }
}
