//! Uncompressed pages in device memory.

use super::{page_count, zeroed};
use crate::arena::{check_destination, check_room};
use crate::error::Result;
use crate::gpu::bounded_drop::BoundedDrop;
use crate::gpu::codec::STATUS_BYTES;
use crate::gpu::context::GpuContext;
use crate::gpu::memory::DeviceBuffer;
use crate::gpu::stream::CudaStream;
use crate::page::{PAGE_SIZE, Page};

/// Pages in device memory.
///
/// Created by [`GpuBatchCompressor::device_pages`](crate::gpu::GpuBatchCompressor::device_pages), and filled by
/// [`upload`](Self::upload) or by custom kernels that write to [`address`](Self::address). Such kernels must be done
/// before a call here uses the pages: their stream and ours do not wait for each other. Dropping waits for all kernels
/// of the context, but no longer than 10 seconds. Memory not freed by then is freed when the kernels end.
///
/// ```no_run
/// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
///
/// let mut compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
/// let mut pages = compressor.device_pages(1000)?;
/// let mut packed = compressor.packed_on_device(1000)?;
/// pages.upload(&[[7; 4096]; 1000])?; // or let a kernel write to `pages.address()`
/// compressor.compress_resident(&pages, &mut packed)?;
/// println!("{} bytes at {:#x}", packed.len_bytes(), packed.address());
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub struct DevicePages {
    pub(super) memory: BoundedDrop<DeviceBuffer>,
    /// The result of restoring each page. It is stored here because restoring takes `&mut self`.
    pub(super) status: BoundedDrop<DeviceBuffer>,
    pub(super) stream: CudaStream,
    pub(super) capacity: usize,
    pub(super) len: usize,
}

impl DevicePages {
    /// Allocates zeroed device memory for that many pages.
    pub(crate) fn new(context: &GpuContext, pages: usize) -> Result<Self> {
        page_count(pages)?;
        let stream = CudaStream::new(context)?;
        let memory = zeroed(context, &stream, pages * PAGE_SIZE)?;
        let status = zeroed(context, &stream, pages * STATUS_BYTES)?;
        stream.synchronize()?;
        Ok(Self { memory, status, stream, capacity: pages, len: pages })
    }

    /// Returns the number of pages.
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

    /// Returns `true` if there are no pages.
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

    /// Returns the number of pages that fit.
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

    /// Uses only the first `pages` of the allocated pages.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let mut pages = compressor.device_pages(100)?;
    /// pages.set_len(60)?; // a kernel has filled 60 pages
    /// assert!(pages.set_len(101).is_err());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageCount`](crate::Error::PageCount) if fewer pages were allocated.
    pub fn set_len(&mut self, pages: usize) -> Result<()> {
        check_room(pages, self.capacity)?;
        self.len = pages;
        Ok(())
    }

    /// Copies pages to the device and waits. They replace the previous pages, and their number becomes the new length.
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
    /// [`Error::PageCount`](crate::Error::PageCount) if the pages do not fit; [`Error::Gpu`](crate::Error::Gpu) if the copy fails.
    pub fn upload(&mut self, pages: &[Page]) -> Result<()> {
        check_room(pages.len(), self.capacity)?;
        self.stream.upload(&self.memory, 0, pages.as_flattened())?;
        self.len = pages.len();
        Ok(())
    }

    /// Copies all pages to the host and waits.
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
    /// [`Error::PageCount`](crate::Error::PageCount) if the destination has a different number of pages; [`Error::Gpu`](crate::Error::Gpu) if the copy fails.
    pub fn download(&self, pages: &mut [Page]) -> Result<()> {
        check_destination(self.len, pages.len())?;
        Ok(self.stream.download(&self.memory, 0, pages.as_flattened_mut())?)
    }

    /// Copies one page to its position and waits.
    pub(crate) fn put(&mut self, number: usize, page: &Page) -> Result<()> {
        Ok(self.stream.upload(&self.memory, number * PAGE_SIZE, page)?)
    }

    /// Returns the address of the first page on the device. The others follow at intervals of 4096 bytes. For custom
    /// kernels.
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
