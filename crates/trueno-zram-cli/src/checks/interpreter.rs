//! The GPU's kernels in the interpreter, which stops at races, uninitialised reads and accesses out of bounds.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use trueno_gpu::interp::{Fault, Launch, Memory, Unwritten};
use trueno_gpu::kernels::Kernel;
use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Lz4WarpDecompressKernel, Mode};
use trueno_zram_core::gpu::{GpuBatchCompressor, GpuOptions};
use trueno_zram_core::{CompressedBatch, PAGE_SIZE, Page};

use super::samples::Set;
use super::{Check, Codec, codec_checks, packed, proofs, ring};

/// Blocks in the grid: two, so that pages are drawn by several at once.
const GRID: u32 = 2;
/// What a page may take: a runaway loop ends here. Much, since waiting for another thread's page counts, too.
const STEPS_PER_PAGE: u64 = 4_000_000;
/// Pages of the sample come in the number that the kernels are made for at most.
const MOST_PAGES: u32 = 1 << 16;

/// The kernels, on as many threads as there are cores.
struct Interpreted {
    compress: Lz4WarpCompressKernel,
    decompress: Lz4WarpDecompressKernel,
    threads: usize,
}

impl Interpreted {
    fn new(mode: Mode) -> Self {
        Self {
            compress: Lz4WarpCompressKernel::new(MOST_PAGES).with_mode(mode),
            decompress: Lz4WarpDecompressKernel::new(MOST_PAGES),
            threads: available_parallelism().map_or(1, NonZeroUsize::get),
        }
    }
}

impl Codec for Interpreted {
    fn compress(&mut self, pages: &[Page]) -> Result<CompressedBatch, String> {
        let mut memory = Memory::new();
        let input = memory.add("input", pages.as_flattened());
        let output = memory.add_uninit("output", pages.len() * PAGE_SIZE);
        let index = memory.add("index", &vec![0; pages.len() * 8]);
        let scratch_bytes = usize::try_from(self.compress.scratch_bytes(GRID)).map_err(|e| e.to_string())?;
        let scratch = memory.add_uninit("scratch", scratch_bytes);
        let next_page = memory.add("next_page", &[0; 4]);
        let launch = Launch::new(self.compress.ir())
            .grid(GRID)
            .arg(input)
            .arg(output)
            .arg(index)
            .arg(scratch)
            .arg(next_page)
            .arg(u32::try_from(pages.len()).map_err(|e| e.to_string())?)
            .threads(self.threads)
            .step_limit(STEPS_PER_PAGE * (pages.len() as u64 + 1));
        launch.run(&mut memory).map_err(fault)?;
        packed::unpack(&memory.bytes(index).map_err(unwritten)?, &memory.bytes_or(output, 0))
    }

    fn decompress(&mut self, batch: &CompressedBatch) -> Result<Vec<Option<Page>>, String> {
        let (index, bytes) = packed::pack(batch)?;
        let mut memory = Memory::new();
        let input = memory.add("input", &bytes);
        let index = memory.add("index", &index);
        // Filled, since pages that are refused are not written.
        let output = memory.add("output", &vec![0xee; batch.len() * PAGE_SIZE]);
        let status = memory.add_uninit("status", batch.len() * 4);
        let next_page = memory.add("next_page", &[0; 4]);
        let launch = Launch::new(self.decompress.ir())
            .grid(GRID)
            .arg(input)
            .arg(bytes.len() as u64)
            .arg(index)
            .arg(output)
            .arg(status)
            .arg(next_page)
            .arg(u32::try_from(batch.len()).map_err(|e| e.to_string())?)
            .threads(self.threads)
            .step_limit(STEPS_PER_PAGE * (batch.len() as u64 + 1));
        launch.run(&mut memory).map_err(fault)?;
        packed::restored(&memory.bytes(status).map_err(unwritten)?, &memory.bytes(output).map_err(unwritten)?)
    }
}

fn fault(fault: Fault) -> String {
    fault.to_string()
}

fn unwritten(unwritten: Unwritten) -> String {
    unwritten.to_string()
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
