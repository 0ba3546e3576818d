//! Pages in device memory, as they are.

use super::{STATUS_BYTES, check_capacity, check_room, download, upload, zeroed};
use crate::error::{Error, Result};
use crate::gpu::bounded_drop::BoundedDrop;
use crate::gpu::context::GpuContext;
use crate::gpu::memory::DeviceBuffer;
use crate::gpu::stream::Stream;
use crate::page::{PAGE_SIZE, Page};

/// Pages in device memory.
///
/// Made by [`GpuBatchCompressor::device_pages`](crate::gpu::GpuBatchCompressor::device_pages); filled by [`upload`](Self::upload), or by kernels of the
/// user's own that take [`address`](Self::address). Those must be done before a call here uses the pages: the streams of the two
/// do not wait for each other. Dropping waits for all kernels of the context, but not for ever: what is not freed after 10
/// seconds is freed when they end.
///
/// ```no_run
/// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
///
/// let mut compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
/// let mut pages = compressor.device_pages(1000)?;
/// let mut packed = compressor.packed_on_device(1000)?;
/// pages.upload(&[[7; 4096]; 1000])?; // or leave it to a kernel that writes to `pages.address()`
/// compressor.compress_resident(&pages, &mut packed)?;
/// println!("{} bytes at {:#x}", packed.len_bytes(), packed.address());
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub struct DevicePages {
    pub(super) memory: BoundedDrop<DeviceBuffer>,
    /// What became of each page when it was restored. It is here, since restoring takes `&mut` of this.
    pub(super) status: BoundedDrop<DeviceBuffer>,
    pub(super) stream: Stream,
    pub(super) capacity: usize,
    pub(super) len: usize,
}

impl DevicePages {
    /// Allocates device memory for pages, all zero.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::{DevicePages, raw::GpuContext};
    /// let context = GpuContext::new(0)?;
    /// let pages = DevicePages::new(&context, 1000)?;
    /// assert_eq!(pages.address() % 256, 0);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Gpu`] if there is not as much memory, or for more than
    /// [`MAX_BATCH_PAGES`](crate::gpu::raw::MAX_BATCH_PAGES).
    pub fn new(context: &GpuContext, pages: usize) -> Result<Self> {
        check_capacity(pages)?;
        let stream = Stream::new(context)?;
        let memory = zeroed(context, &stream, pages * PAGE_SIZE)?;
        let status = zeroed(context, &stream, pages * STATUS_BYTES)?;
        stream.synchronize()?;
        Ok(Self { memory, status, stream, capacity: pages, len: pages })
    }

    /// How many pages there are.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// assert_eq!(compressor.device_pages(100)?.len(), 100);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// assert!(compressor.device_pages(0)?.is_empty());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many pages there is room for.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let mut pages = compressor.device_pages(100)?;
    /// pages.upload(&[[1; 4096]; 60])?;
    /// assert_eq!((pages.len(), pages.capacity()), (60, 100));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Uses the first `pages` pages of those that there is room for.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let mut pages = compressor.device_pages(100)?;
    /// pages.set_len(60)?; // a kernel has filled so many
    /// assert!(pages.set_len(101).is_err());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageCount`] if there is no room for as many.
    pub fn set_len(&mut self, pages: usize) -> Result<()> {
        check_room(pages, self.capacity)?;
        self.len = pages;
        Ok(())
    }

    /// Copies pages there, and waits. They are the pages from here on, as many as they are.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let mut pages = compressor.device_pages(100)?;
    /// pages.upload(&[[1; 4096]; 60])?;
    /// assert_eq!(pages.len(), 60);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageCount`] if there is no room for as many, [`Error::Gpu`] if the copy fails.
    pub fn upload(&mut self, pages: &[Page]) -> Result<()> {
        check_room(pages.len(), self.capacity)?;
        upload(&self.stream, &self.memory, pages.as_flattened())?;
        self.len = pages.len();
        Ok(())
    }

    /// Copies all pages from there, and waits.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let pages = compressor.device_pages(100)?;
    /// let mut host = vec![[1; 4096]; pages.len()];
    /// pages.download(&mut host)?;
    /// assert_eq!(host[99], [0; 4096], "as allocated");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageCount`] if there are not exactly as many, [`Error::Gpu`] if the copy fails.
    pub fn download(&self, pages: &mut [Page]) -> Result<()> {
        if pages.len() != self.len {
            return Err(Error::PageCount { batch_pages: self.len, destination_pages: pages.len() });
        }
        Ok(download(&self.stream, &self.memory, pages.as_flattened_mut())?)
    }

    /// Puts one page in its place, and waits.
    pub(crate) fn put(&mut self, number: usize, page: &Page) -> Result<()> {
        Ok(self.stream.upload(&self.memory, number * PAGE_SIZE, page)?)
    }

    /// Where the first page lies on the device; the others follow, 4096 bytes each. For kernels of the user's own.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let pages = compressor.device_pages(100)?;
    /// let third = pages.address() + 2 * 4096;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory.address()
    }
}
