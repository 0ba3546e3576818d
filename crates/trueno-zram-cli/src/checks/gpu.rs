//! The kernels on the GPUs that are there.
#![allow(unsafe_code)]

use trueno_gpu::kernels::lz4::Mode;
use trueno_zram_core::gpu::GpuError;
use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, Lz4Compressor, Lz4Decompressor, PackedPages, Stream};
use trueno_zram_core::gpu::{GpuBatchCompressor, GpuDeviceInfo, GpuOptions};
use trueno_zram_core::{CompressedBatch, PAGE_SIZE, Page};

use super::samples::Set;
use super::{Check, Codec, codec_checks, packed, proofs, ring};

/// The kernels on one device.
struct OnGpu {
    context: GpuContext,
    stream: Stream,
    compressor: Lz4Compressor,
    decompressor: Lz4Decompressor,
}

fn words(error: GpuError) -> String {
    error.to_string()
}

impl OnGpu {
    fn new(device_index: u32, mode: Mode) -> Result<Self, String> {
        let context = GpuContext::new(device_index).map_err(|e| e.to_string())?;
        let stream = Stream::new(&context).map_err(words)?;
        let compressor = Lz4Compressor::new(&context, mode).map_err(words)?;
        let decompressor = Lz4Decompressor::new(&context).map_err(words)?;
        Ok(Self { context, stream, compressor, decompressor })
    }

    /// A buffer whose bytes are known before a kernel writes it.
    fn filled(&self, len_bytes: usize) -> Result<DeviceBuffer, String> {
        let buffer = DeviceBuffer::new(&self.context, len_bytes).map_err(words)?;
        self.stream.fill(&buffer, 0..len_bytes, 0xee).map_err(words)?;
        Ok(buffer)
    }

    fn upload(&self, bytes: &[u8]) -> Result<DeviceBuffer, String> {
        let buffer = DeviceBuffer::new(&self.context, bytes.len()).map_err(words)?;
        self.stream.upload(&buffer, 0, bytes).map_err(words)?;
        Ok(buffer)
    }

    fn download(&self, buffer: &DeviceBuffer) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; buffer.len_bytes()];
        self.stream.download(buffer, 0, &mut bytes).map_err(words)?;
        Ok(bytes)
    }
}

impl Codec for OnGpu {
    fn compress(&mut self, pages: &[Page]) -> Result<CompressedBatch, String> {
        let input = self.upload(pages.as_flattened())?;
        let (output, index) = (self.filled(pages.len() * PAGE_SIZE)?, self.filled(pages.len() * 8)?);
        let count = u32::try_from(pages.len()).map_err(|e| e.to_string())?;
        // SAFETY: three buffers of our own, used by this stream alone until the downloads below have waited for it.
        unsafe { self.compressor.compress(&self.stream, &input, count, &output, &index) }.map_err(words)?;
        packed::unpack(&self.download(&index)?, &self.download(&output)?)
    }

    fn decompress(&mut self, batch: &CompressedBatch) -> Result<Vec<Option<Page>>, String> {
        let (index, bytes) = packed::pack(batch)?;
        let (index, packed_bytes) = (self.upload(&index)?, self.upload(&bytes)?);
        let (output, status) = (self.filled(batch.len() * PAGE_SIZE)?, self.filled(batch.len() * 4)?);
        let pages = u32::try_from(batch.len()).map_err(|e| e.to_string())?;
        let packed = PackedPages { bytes: &packed_bytes, len_bytes: bytes.len() as u64, index: &index, pages };
        // SAFETY: four buffers of our own, used by this stream alone until the downloads below have waited for it.
        unsafe { self.decompressor.decompress(&self.stream, packed, &output, &status) }.map_err(words)?;
        packed::restored(&self.download(&status)?, &self.download(&output)?)
    }
}

pub(super) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    for device in GpuDeviceInfo::all().into_iter().filter(GpuDeviceInfo::is_supported) {
        let (index, name) = (device.index, format!("gpu {}", device.index));
        checks.extend(codec_checks(&name, Set::large, move || OnGpu::new(index, Mode::Fast)));
        checks.push(Check::new(format!("{name}, ratio mode: round trip"), move || {
            proofs::round_trip(&mut OnGpu::new(index, Mode::Ratio)?, &Set::large().pages)
        }));
        checks.push(Check::new(format!("{name}, in batches: round trip"), move || {
            let compressor = GpuBatchCompressor::with_options(ring::config(index, 100), &GpuOptions::default());
            proofs::round_trip(&mut compressor.map_err(|e| e.to_string())?, &Set::large().pages)
        }));
    }
    checks
}
