//! Batches of pages that stay on the GPU.

use std::time::{Duration, Instant};

use super::gpu_batch_compressor::GpuBatchCompressor;
use super::result::BatchTimes;
use crate::codec::nanoseconds;
use crate::cpu::PageCodec;
use crate::error::Result;
use crate::gpu::codec::PageFormat;
use crate::gpu::resident;
use crate::gpu::ring::compressed_pages::{UnrestoredPage, UnrestoredReason};
use crate::gpu::ring::cuda::Cuda;
use crate::gpu::ring::device::RingDevice;
use crate::gpu::{DevicePages, PackedOnDevice};
use crate::page::{PAGE_SIZE, PageData};

/// Pages that stay on the GPU. There is no fallback: if the GPU fails, so does the call.
impl GpuBatchCompressor {
    /// Allocates device memory for pages, all zero.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let pages = compressor.device_pages(1000)?; // for a kernel to fill, or for `upload`
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu) if the device was given up, or there is not as much memory.
    pub fn device_pages(&self, pages: usize) -> Result<DevicePages> {
        DevicePages::new(self.device()?.context(), pages)
    }

    /// Allocates device memory for that many packed pages, however well they compress.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let packed = compressor.packed_on_device(1000)?;
    /// assert_eq!(packed.capacity(), 1000);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu) if the device was given up, or there is not as much memory.
    pub fn packed_on_device(&self, pages: usize) -> Result<PackedOnDevice> {
        PackedOnDevice::new(self.device()?.context(), pages)
    }

    /// Compresses pages that lie on the GPU, and leaves them there, packed. It waits for the kernel. Produces the same bytes as
    /// the other calls.
    ///
    /// Kernels that write the pages must have finished: no stream waits for another here. The stats count the packed bytes,
    /// with the padding between the pages.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// let mut compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let (pages, mut packed) = (compressor.device_pages(1000)?, compressor.packed_on_device(1000)?);
    /// let times = compressor.compress_resident(&pages, &mut packed)?;
    /// println!("{} bytes in {} ns", packed.len_bytes(), times.kernel_time_ns);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageCount`](crate::Error::PageCount) if there is no room for as many packed pages; [`Error::Gpu`](crate::Error::Gpu), with the call that failed,
    /// if the device was given up, fails, or does not finish in time. After an error there are no packed pages.
    pub fn compress_resident(&mut self, pages: &DevicePages, packed: &mut PackedOnDevice) -> Result<BatchTimes> {
        let start = Instant::now();
        let kernel = self.resident(|device, time_limit| resident::compress(device, pages, packed, time_limit))?;
        let times = kernel_times(kernel, start);
        self.stats.add_compressed(packed.len(), packed.len_bytes() as u64, times.total_time_ns);
        Ok(times)
    }

    /// Restores packed pages that lie on the GPU to pages on the GPU. It waits for the kernel.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// let mut compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let (mut pages, mut packed) = (compressor.device_pages(1000)?, compressor.packed_on_device(1000)?);
    /// compressor.compress_resident(&pages, &mut packed)?;
    /// compressor.decompress_resident(&packed, &mut pages)?;
    /// assert_eq!(pages.len(), packed.len());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageCount`](crate::Error::PageCount) if there is no room for as many pages; [`Error::InPage`](crate::Error::InPage) for the first page that is corrupt, with
    /// all other pages restored and its own place zeroed; and [`Error::Gpu`](crate::Error::Gpu) as
    /// [`compress_resident`](Self::compress_resident) returns it.
    pub fn decompress_resident(&mut self, packed: &PackedOnDevice, pages: &mut DevicePages) -> Result<BatchTimes> {
        let start = Instant::now();
        let (kernel, unrestored) =
            self.resident(|device, time_limit| resident::decompress(device, packed, pages, time_limit))?;
        let mut unsupported = 0;
        let restored =
            self.resident(|device, _| decode_unrestored(device.format(), packed, pages, &unrestored, &mut unsupported));
        self.note_unsupported(unsupported);
        let times = kernel_times(kernel, start);
        self.stats.add_decompressed(packed.len(), times.total_time_ns);
        restored.map(|()| times)
    }

    /// Runs `work` on the device, and drops the ring if the device was lost.
    fn resident<T>(&mut self, work: impl FnOnce(&mut Cuda, Duration) -> Result<T>) -> Result<T> {
        let (device, time_limit) = self.device_mut()?;
        work(device, time_limit).inspect_err(|_| self.drop_ring_if_lost())
    }
}

/// Decodes every page that the kernel did not restore on the CPU, and stores it or returns its error. Counts
/// the pages that the kernel does not support. The first error is that of the batch.
fn decode_unrestored(
    format: PageFormat,
    packed: &PackedOnDevice,
    pages: &mut DevicePages,
    unrestored: &[UnrestoredPage],
    unsupported: &mut usize,
) -> Result<()> {
    let mut codec = PageCodec::default();
    let mut result = Ok(());
    for UnrestoredPage { page, reason } in unrestored {
        // A place that stays without its page is zeroed: what it held is not of this batch.
        let mut place = [0; PAGE_SIZE];
        let decoded = packed.page(*page).and_then(|(kind, bytes)| {
            *unsupported += usize::from(*reason == UnrestoredReason::Unsupported || !format.reads(kind));
            codec.decompress(PageData::new(kind, &bytes)?, &mut place).inspect_err(|_| place.fill(0))
        });
        pages.put(*page, &place)?;
        result = result.and(decoded.map_err(|error| error.in_page(*page)));
    }
    result
}

fn kernel_times(kernel: Duration, start: Instant) -> BatchTimes {
    BatchTimes { kernel_time_ns: nanoseconds(kernel), ..BatchTimes::default() }.with_total(start.elapsed())
}
