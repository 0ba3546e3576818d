//! The pages on the device, and the memory that the kernels work in.

use std::sync::Arc;

use trueno_gpu::kernels::packed::PackedEntry;
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, PackedPages, Stream};

use crate::index;

/// Room behind the packed pages: copies of 16 bytes a lane may read past the last page's end.
const SLACK_BYTES: usize = 64 * 1024;

/// Buffers for one corpus.
pub(crate) struct Resident {
    pub(crate) pages: u32,
    pub(crate) input: Arc<DeviceBuffer>,
    pub(crate) packed: DeviceBuffer,
    pub(crate) index: DeviceBuffer,
    pub(crate) decoded: Arc<DeviceBuffer>,
    pub(crate) status: DeviceBuffer,
    used_bytes: usize,
}

impl Resident {
    pub(crate) fn new(context: &GpuContext, stream: &Stream, input: &[u8]) -> Result<Self, String> {
        let pages = input.len() / PAGE_SIZE;
        let buffer = |len_bytes| DeviceBuffer::new(context, len_bytes).map_err(|e| e.to_string());
        let resident = Self {
            pages: u32::try_from(pages).map_err(|_| "too many pages")?,
            input: Arc::new(buffer(input.len())?),
            packed: buffer(input.len() + SLACK_BYTES)?,
            index: buffer(pages * 8)?,
            decoded: Arc::new(buffer(input.len())?),
            status: buffer(pages * 4)?,
            used_bytes: 0,
        };
        stream.upload(&resident.input, 0, input).map_err(|e| e.to_string())?;
        Ok(resident)
    }

    pub(crate) fn zero(&self, stream: &Stream, buffer: &DeviceBuffer) -> Result<(), String> {
        self.fill(stream, buffer, 0)
    }

    /// What nothing has written must not look right by chance.
    pub(crate) fn spoil(&self, stream: &Stream, buffer: &DeviceBuffer) -> Result<(), String> {
        self.fill(stream, buffer, 0xee)
    }

    fn fill(&self, stream: &Stream, buffer: &DeviceBuffer, byte: u8) -> Result<(), String> {
        stream.fill(buffer, 0..buffer.len_bytes(), byte).map_err(|e| e.to_string())
    }

    /// Bytes of `packed` that pages take.
    pub(crate) fn packed_len_bytes(&self) -> u64 {
        self.used_bytes as u64
    }

    /// The packed pages, for a decompressor.
    pub(crate) fn packed_pages(&self) -> PackedPages<'_> {
        let (len_bytes, pages) = (self.packed_len_bytes(), self.pages);
        PackedPages { bytes: &self.packed, len_bytes, index: &self.index, pages }
    }

    /// Puts packed pages there that were made elsewhere.
    pub(crate) fn set_packed(&mut self, stream: &Stream, packed: &[u8], index: &[u8]) -> Result<(), String> {
        stream.upload(&self.packed, 0, packed).map_err(|e| e.to_string())?;
        stream.upload(&self.index, 0, index).map_err(|e| e.to_string())?;
        self.used_bytes = packed.len();
        Ok(())
    }

    /// Takes the packed pages from the device, and notes how many bytes they take.
    pub(crate) fn get_packed(&mut self, stream: &Stream) -> Result<(Vec<PackedEntry>, Vec<u8>), String> {
        let mut index_bytes = vec![0; self.index.len_bytes()];
        stream.download(&self.index, 0, &mut index_bytes).map_err(|e| e.to_string())?;
        let entries = index::from_bytes(&index_bytes);
        let end = entries.iter().map(|entry| index::end_bytes(*entry)).max().unwrap_or(0);
        let used_bytes = usize::try_from(end).map_err(|e| e.to_string())?;
        if used_bytes > self.packed.len_bytes() {
            return Err(format!("the index says {used_bytes} bytes, of {}", self.packed.len_bytes()));
        }
        self.used_bytes = used_bytes;
        let mut packed = vec![0; used_bytes];
        stream.download(&self.packed, 0, &mut packed).map_err(|e| e.to_string())?;
        Ok((entries, packed))
    }

    /// Takes the decoded pages and the statuses from the device.
    pub(crate) fn get_decoded(&self, stream: &Stream) -> Result<(Vec<u8>, Vec<u32>), String> {
        let mut decoded = vec![0; self.decoded.len_bytes()];
        stream.download(&self.decoded, 0, &mut decoded).map_err(|e| e.to_string())?;
        let mut status = vec![0; self.status.len_bytes()];
        stream.download(&self.status, 0, &mut status).map_err(|e| e.to_string())?;
        Ok((decoded, status.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()))
    }
}
