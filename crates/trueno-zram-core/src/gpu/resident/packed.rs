//! Packed pages and their index in device memory.

use trueno_gpu::kernels::packed::{PACK_ALIGN_BYTES, PackedEntry};

use super::{page_count, zeroed};
use crate::arena::{CompressedBatch, check_room};
use crate::error::Result;
use crate::gpu::bounded_drop::BoundedDrop;
use crate::gpu::context::GpuContext;
use crate::gpu::error::GpuError;
use crate::gpu::memory::DeviceBuffer;
use crate::gpu::ring::slot_index::{checked_entry, next_place};
use crate::gpu::stream::CudaStream;
use crate::page::{PAGE_SIZE, PageKind};

/// Packed pages and their index in device memory.
///
/// Created by [`GpuBatchCompressor::packed_on_device`](crate::gpu::GpuBatchCompressor::packed_on_device), and filled by
/// a compression or by [`upload`](Self::upload). Pages lie in order, at multiples of 16 bytes. The index has one
/// [`PackedEntry`](trueno_gpu::kernels::packed::PackedEntry) of 8 bytes per page. Dropping works as for
/// [`DevicePages`](crate::gpu::DevicePages).
///
/// ```no_run
/// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
///
/// let mut compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
/// let mut packed = compressor.packed_on_device(1000)?;
/// let batch = trueno_zram_core::CpuBatchCompressor::default().compress(&[[7; 4096]; 1000])?;
/// packed.upload(&batch)?;
/// let mut pages = compressor.device_pages(1000)?;
/// compressor.decompress_resident(&packed, &mut pages)?;
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub struct PackedOnDevice {
    pub(super) bytes: BoundedDrop<DeviceBuffer>,
    pub(super) index: BoundedDrop<DeviceBuffer>,
    stream: CudaStream,
    pub(super) capacity: usize,
    pub(super) len: usize,
    /// Length of the packed pages, a multiple of 16.
    pub(super) len_bytes: usize,
}

impl PackedOnDevice {
    /// Allocates device memory for that many packed pages, however well they compress. It holds no pages at first.
    pub(crate) fn new(context: &GpuContext, pages: usize) -> Result<Self> {
        page_count(pages)?;
        let stream = CudaStream::new(context)?;
        let bytes = zeroed(context, &stream, pages * PAGE_SIZE)?;
        let index = zeroed(context, &stream, pages * PackedEntry::BYTES)?;
        stream.synchronize()?;
        Ok(Self { bytes, index, stream, capacity: pages, len: 0, len_bytes: 0 })
    }

    /// Returns the number of pages that fit.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let packed = compressor.packed_on_device(100)?;
    /// assert_eq!((packed.len(), packed.capacity()), (0, 100));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of pages.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let mut compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let (pages, mut packed) = (compressor.device_pages(60)?, compressor.packed_on_device(100)?);
    /// compressor.compress_resident(&pages, &mut packed)?;
    /// assert_eq!(packed.len(), 60);
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
    /// assert!(compressor.packed_on_device(100)?.is_empty(), "no pages packed yet");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of bytes from the start of the first packed page to the end of the last, rounded up to a
    /// multiple of 16.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let mut compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let (pages, mut packed) = (compressor.device_pages(3)?, compressor.packed_on_device(3)?);
    /// compressor.compress_resident(&pages, &mut packed)?;
    /// assert_eq!(packed.len_bytes(), 48, "three words of 16 bytes each");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns the address of the packed pages on the device. For custom kernels, to read.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let packed = compressor.packed_on_device(100)?;
    /// println!("{} bytes at {:#x}", packed.len_bytes(), packed.address());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn address(&self) -> u64 {
        self.bytes.address()
    }

    /// Returns the address of the index on the device. For custom kernels, to read.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let packed = compressor.packed_on_device(100)?;
    /// let entry_of_page_7 = packed.index_address() + 7 * 8;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn index_address(&self) -> u64 {
        self.index.address()
    }

    /// Copies the packed pages to the host and checks every entry of their index.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let mut compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let (pages, mut packed) = (compressor.device_pages(3)?, compressor.packed_on_device(3)?);
    /// compressor.compress_resident(&pages, &mut packed)?;
    /// let batch = packed.download()?;
    /// assert_eq!(batch.get(2).map(|page| page.bytes().to_vec()), Some(vec![0; 8]));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu) if a copy fails or the index does not describe packed pages.
    pub fn download(&self) -> Result<CompressedBatch> {
        let mut index = vec![0; self.len * PackedEntry::BYTES];
        let mut bytes = vec![0; self.len_bytes];
        self.stream.download(&self.index, 0, &mut index)?;
        self.stream.download(&self.bytes, 0, &mut bytes)?;
        let mut end = 0;
        let mut entries = Vec::with_capacity(self.len);
        for (page, bits) in index.as_chunks().0.iter().enumerate() {
            let entry = PackedEntry::from_bits(u64::from_le_bytes(*bits));
            let wrong = GpuError::WrongIndex { page, bits: entry.bits() };
            let entry = checked_entry(entry, end, bytes.len()).ok_or(wrong)?;
            end = next_place(entry);
            entries.push(entry);
        }
        CompressedBatch::from_parts(bytes, entries)
    }

    /// Copies compressed pages from the host, packed as the kernels expect them, and waits.
    ///
    /// ```no_run
    /// # use trueno_zram_core::{CpuBatchCompressor, gpu::{GpuBatchCompressor, GpuBatchConfig}};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let mut packed = compressor.packed_on_device(3)?;
    /// packed.upload(&CpuBatchCompressor::default().compress(&[[9; 4096]; 3])?)?;
    /// assert_eq!((packed.len(), packed.len_bytes()), (3, 48));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageCount`](crate::Error::PageCount) if the pages do not fit; [`Error::Gpu`](crate::Error::Gpu) if a copy
    /// fails. After an error there are no pages.
    pub fn upload(&mut self, batch: &CompressedBatch) -> Result<()> {
        check_room(batch.len(), self.capacity)?;
        let (bytes, index) = packed_for_device(batch);
        (self.len, self.len_bytes) = (0, 0);
        self.stream.upload(&self.bytes, 0, &bytes)?;
        self.stream.upload(&self.index, 0, &index)?;
        (self.len, self.len_bytes) = (batch.len(), bytes.len());
        Ok(())
    }

    /// Returns one page as it is held, for inspection by the CPU.
    pub(crate) fn page(&self, page: usize) -> Result<(PageKind, Vec<u8>)> {
        let mut bits = [0; PackedEntry::BYTES];
        self.stream.download(&self.index, page * PackedEntry::BYTES, &mut bits)?;
        let entry = PackedEntry::from_bits(u64::from_le_bytes(bits));
        let wrong = GpuError::WrongIndex { page, bits: entry.bits() };
        let checked = checked_entry(entry, entry.offset_bytes(), self.len_bytes).ok_or(wrong)?;
        let start = usize::try_from(checked.offset).expect("the offset was checked against the packed length");
        let mut bytes = vec![0; usize::from(checked.len_bytes)];
        self.stream.download(&self.bytes, start, &mut bytes)?;
        Ok((checked.kind, bytes))
    }
}

/// Packs a batch for the kernels: returns the packed pages and their index.
fn packed_for_device(batch: &CompressedBatch) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = Vec::with_capacity(batch.arena().len() + batch.len() * PACK_ALIGN_BYTES as usize);
    let mut index = Vec::with_capacity(batch.len() * PackedEntry::BYTES);
    for page in batch.iter() {
        let len_bytes = u16::try_from(page.bytes().len()).expect("PageData holds at most 4096 bytes");
        index.extend(PackedEntry::new(bytes.len() as u64, len_bytes, page.kind()).bits().to_le_bytes());
        bytes.extend_from_slice(page.bytes());
        bytes.resize(bytes.len().next_multiple_of(PACK_ALIGN_BYTES as usize), 0);
    }
    (bytes, index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageData;

    /// Creates a batch with pages of the given kinds and lengths. Their contents do not matter here.
    fn held(pages: &[(PageKind, usize)]) -> CompressedBatch {
        let mut batch = CompressedBatch::new();
        for (number, (kind, len_bytes)) in pages.iter().enumerate() {
            let bytes = vec![number.to_le_bytes()[0] + 1; *len_bytes];
            batch.push(PageData::new(*kind, &bytes).unwrap());
        }
        batch
    }

    #[test]
    fn packs_pages_at_multiples_of_16_with_valid_entries() {
        use PageKind::{Lz4, Raw, SameFilled, Zstd};
        let pages = [(SameFilled, 8), (Lz4, 1), (Raw, 4096), (Zstd, 4095), (Lz4, 16), (Zstd, 17), (SameFilled, 8)];
        let batch = held(&pages);
        let (bytes, index) = packed_for_device(&batch);
        let mut end = 0;
        for (number, bits) in index.as_chunks().0.iter().enumerate() {
            let entry = PackedEntry::from_bits(u64::from_le_bytes(*bits));
            let found = checked_entry(entry, end, bytes.len()).expect("an entry starts where the previous one ends");
            let start = usize::try_from(found.offset).unwrap();
            let page = batch.get(number).unwrap();
            assert_eq!(found.kind, page.kind());
            assert_eq!(&bytes[start..start + usize::from(found.len_bytes)], page.bytes());
            end = next_place(found);
        }
        assert_eq!((index.len(), end), (pages.len() * PackedEntry::BYTES, bytes.len() as u64));
        assert!(bytes.len() <= pages.len() * PAGE_SIZE, "the packed pages fit in the buffer");
    }

    #[test]
    fn raw_pages_exactly_fill_the_buffer() {
        let (bytes, _) = packed_for_device(&held(&[(PageKind::Raw, 4096); 3]));
        assert_eq!(bytes.len(), 3 * PAGE_SIZE);
        let (bytes, _) = packed_for_device(&held(&[(PageKind::Lz4, 4095); 3]));
        assert_eq!(bytes.len(), 3 * PAGE_SIZE);
    }
}
