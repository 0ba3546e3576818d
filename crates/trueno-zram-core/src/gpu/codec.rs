//! The LZ4 kernels on pages that lie in device memory.
#![allow(unsafe_code)]

use std::num::NonZeroU32;

use trueno_gpu::kernels::Kernel;
use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Lz4WarpDecompressKernel, Mode, PACK_ALIGN_BYTES, TableStores};

use super::context::GpuContext;
use super::error::{GpuError, GpuResult};
use super::event::Event;
use super::kernel::{BlockShape, LoadedKernel};
use super::lane_rule::lane_rule;
use super::launch::LaunchArgs;
use super::memory::DeviceBuffer;
use super::stream::Stream;
use crate::page::PAGE_SIZE;

/// The most pages of one launch: an index entry holds a place of 32 bits, in units of 16 bytes.
///
/// ```
/// assert_eq!(trueno_zram_core::gpu::raw::MAX_BATCH_PAGES, 16 << 20);
/// ```
pub const MAX_BATCH_PAGES: u32 = 16 << 20;

const INDEX_ENTRY_BYTES: usize = size_of::<u64>();
const STATUS_BYTES: usize = size_of::<u32>();
const COUNTER_BYTES: usize = size_of::<u32>();

/// What a launch needs beside the caller's buffers. One launch at a time works in it: each waits for the one before,
/// whatever their streams.
#[derive(Debug)]
struct Workspace {
    next_page: DeviceBuffer,
    scratch: DeviceBuffer,
    last_launch: Event,
}

impl Workspace {
    fn new(context: &GpuContext, scratch_bytes: u64) -> GpuResult<Self> {
        let out_of_range = |_| GpuError::OutOfRange { what: "scratch memory", value: scratch_bytes.into() };
        let scratch_bytes = usize::try_from(scratch_bytes).map_err(out_of_range)?;
        Ok(Self {
            next_page: DeviceBuffer::new(context, COUNTER_BYTES)?,
            scratch: DeviceBuffer::new(context, scratch_bytes)?,
            last_launch: Event::ordering(context)?,
        })
    }

    /// Waits for the launch before, and sets the page counter back.
    fn reset(&self, stream: &Stream) -> GpuResult<()> {
        stream.wait_for_event(&self.last_launch)?;
        stream.fill(&self.next_page, 0..COUNTER_BYTES, 0)
    }
}

/// The kernel's grid for a batch: as many blocks as fit the multiprocessors that it may take, or as have a page.
fn grid_of(kernel: &impl Kernel, loaded: &LoadedKernel, share: Option<NonZeroU32>, pages: u32) -> u32 {
    let share = share.map_or(u32::MAX, |share| loaded.blocks_per_multiprocessor().saturating_mul(share.get()));
    kernel.grid(pages).min(loaded.resident_blocks()).min(share)
}

fn check_pages(pages: u32) -> GpuResult<()> {
    if pages > MAX_BATCH_PAGES {
        return Err(GpuError::OutOfRange { what: "batch", value: pages.into() });
    }
    Ok(())
}

fn check_room(what: &'static str, len_bytes: usize, pages: u32, bytes_per_page: usize) -> GpuResult<()> {
    let needed_bytes = u64::from(pages) * bytes_per_page as u64;
    if (len_bytes as u64) < needed_bytes {
        return Err(GpuError::ShortBuffer { what, len_bytes, needed_bytes });
    }
    Ok(())
}

/// Compresses pages in device memory into packed pages and an index in device memory.
///
/// Each page becomes an LZ4 block, its word if it is same-filled, or itself; they lie in the pages' order at multiples of
/// 16 bytes. The index has a [`PackedEntry`](trueno_gpu::kernels::lz4::PackedEntry) for each. Bytes and index depend on
/// the pages alone.
///
/// ```no_run
/// use trueno_gpu::kernels::lz4::{Mode, PackedEntry};
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
    /// [`GpuError::ShortBuffer`], [`GpuError::OutOfRange`] for more than [`MAX_BATCH_PAGES`], or what the driver says.
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
        check(input, pages, output, index)?;
        self.zero(stream, pages, index)?;
        // SAFETY: the index was zeroed just before in the same stream; the rest is the caller's word.
        unsafe { self.launch_zeroed(stream, input, pages, output, index) }
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
        self.workspace.reset(stream)?;
        stream.fill(index, 0..pages as usize * INDEX_ENTRY_BYTES, 0)
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
        check(input, pages, output, index)?;
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
        // SAFETY: input, output and index have the bytes that so many pages need, and the scratch those of the largest
        // grid. The pages' places add up to at most the output, since the index was zeroed and nothing else writes it,
        // by the caller's word; no other launch works in the scratch, since `zero` waits for it.
        unsafe { self.loaded.launch(stream, grid_of(&self.kernel, &self.loaded, self.multiprocessors, pages), &args) }?;
        stream.record(&self.workspace.last_launch)
    }
}

fn check(input: &DeviceBuffer, pages: u32, output: &DeviceBuffer, index: &DeviceBuffer) -> GpuResult<()> {
    check_pages(pages)?;
    check_room("input", input.len_bytes(), pages, PAGE_SIZE)?;
    check_room("output", output.len_bytes(), pages, PAGE_SIZE)?;
    check_room("index", index.len_bytes(), pages, INDEX_ENTRY_BYTES)
}

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
    /// A [`PackedEntry`](trueno_gpu::kernels::lz4::PackedEntry) a page.
    pub index: &'a DeviceBuffer,
    /// How many pages.
    pub pages: u32,
}

impl PackedPages<'_> {
    fn check(&self, output: &DeviceBuffer, status: &DeviceBuffer) -> GpuResult<()> {
        check_pages(self.pages)?;
        if self.len_bytes > self.bytes.len_bytes() as u64 {
            let len_bytes = self.bytes.len_bytes();
            return Err(GpuError::ShortBuffer { what: "packed", len_bytes, needed_bytes: self.len_bytes });
        }
        if !self.len_bytes.is_multiple_of(PACK_ALIGN_BYTES.into()) {
            let (what, value) = ("packed length", self.len_bytes);
            return Err(GpuError::Misaligned { what, value, align: PACK_ALIGN_BYTES });
        }
        check_room("index", self.index.len_bytes(), self.pages, INDEX_ENTRY_BYTES)?;
        check_room("output", output.len_bytes(), self.pages, PAGE_SIZE)?;
        check_room("status", status.len_bytes(), self.pages, STATUS_BYTES)
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

    /// Queues the restoring of packed pages to `output`, with a [`PageStatus`](trueno_gpu::kernels::lz4::PageStatus) each
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
        packed.check(output, status)?;
        self.zero(stream)?;
        // SAFETY: the counter was zeroed just before in the same stream; the rest is the caller's word.
        unsafe { self.launch_zeroed(stream, packed, output, status) }
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
        packed.check(output, status)?;
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
        // SAFETY: all buffers have the bytes that so many pages need. The kernel checks every entry against the packed
        // length and every block against the page; what it has checked does not change, by the caller's word.
        unsafe {
            self.loaded.launch(stream, grid_of(&self.kernel, &self.loaded, self.multiprocessors, packed.pages), &args)
        }?;
        stream.record(&self.workspace.last_launch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_needs_its_room() {
        assert_eq!(check_room("input", 8192, 2, PAGE_SIZE), Ok(()));
        assert_eq!(check_room("input", 0, 0, PAGE_SIZE), Ok(()));
        let short = check_room("input", 8191, 2, PAGE_SIZE);
        assert_eq!(short, Err(GpuError::ShortBuffer { what: "input", len_bytes: 8191, needed_bytes: 8192 }));
        // No product wraps.
        assert!(check_room("index", usize::MAX >> 1, u32::MAX, 8).is_ok());
        assert!(check_room("output", 1 << 40, u32::MAX, PAGE_SIZE).is_err());
    }

    #[test]
    fn a_batch_has_no_more_pages_than_an_index_can_place() {
        assert_eq!(check_pages(MAX_BATCH_PAGES), Ok(()));
        assert!(check_pages(MAX_BATCH_PAGES + 1).is_err());
        let last = u64::from(MAX_BATCH_PAGES - 1) * PAGE_SIZE as u64 / u64::from(PACK_ALIGN_BYTES);
        assert!(u32::try_from(last).is_ok());
    }
}
