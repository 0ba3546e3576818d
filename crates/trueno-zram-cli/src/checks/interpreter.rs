//! The GPU's kernels in the interpreter, which stops at races, uninitialised reads and accesses out of bounds.

use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Lz4WarpDecompressKernel, Mode};
use trueno_zram_core::gpu::{GpuBatchCompressor, GpuOptions};
use trueno_zram_core::{CompressedBatch, PAGE_SIZE, Page};

use super::samples::Set;
use super::{Check, Codec, codec_checks, packed, proofs, ring};

/// Pages of the sample come in the number that the kernels are made for at most.
const MOST_PAGES: u32 = 1 << 16;

/// The kernels by themselves: the ring would have the CPU do some of the pages.
struct Interpreted {
    compress: Lz4WarpCompressKernel,
    decompress: Lz4WarpDecompressKernel,
}

impl Interpreted {
    fn new(mode: Mode) -> Self {
        Self {
            compress: Lz4WarpCompressKernel::new(MOST_PAGES).with_mode(mode),
            decompress: Lz4WarpDecompressKernel::new(MOST_PAGES),
        }
    }
}

impl Codec for Interpreted {
    fn compress(&mut self, pages: &[Page]) -> Result<CompressedBatch, String> {
        let run = self.compress.interpret(pages, |launch| launch).map_err(|fault| fault.to_string())?;
        packed::unpack(&run.index, &run.packed)
    }

    fn decompress(&mut self, batch: &CompressedBatch) -> Result<Vec<Option<Page>>, String> {
        let (index, bytes) = packed::pack(batch)?;
        let mut pages = vec![[0xee; PAGE_SIZE]; batch.len()];
        let run = self.decompress.interpret(&bytes, &index, &mut pages, |launch| launch);
        packed::restored(&run.map_err(|fault| fault.to_string())?.status, pages.as_flattened())
    }
}

pub(super) fn checks() -> Vec<Check> {
    let mut checks = Vec::from(codec_checks("interpreter", Set::small, || Ok(Interpreted::new(Mode::Fast))));
    checks.push(Check::new("interpreter, ratio mode: round trip", || {
        proofs::round_trip(&mut Interpreted::new(Mode::Ratio), &Set::small().pages)
    }));
    checks.push(Check::new("interpreter, in batches: round trip", || {
        let compressor = GpuBatchCompressor::interpreted(ring::config(0, 7), &GpuOptions::default());
        proofs::round_trip(&mut compressor.map_err(|e| e.to_string())?, &Set::small().pages)
    }));
    checks
}
