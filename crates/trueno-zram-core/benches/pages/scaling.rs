//! The batch interface on one, two and all threads.

use std::num::NonZeroUsize;
use std::time::Instant;

use trueno_zram_core::cpu::Backend;
use trueno_zram_core::{Algorithm, CompressedBatch, CpuBatchCompressor, PAGE_SIZE, Page};

use crate::corpora::Corpus;
use crate::measure::gbps;
use crate::report::Row;

/// Pages in the batch: enough that threads have something to share out.
const BATCH_PAGES: usize = 32 * 1024;

/// One row a number of threads, over all corpora mixed.
pub(crate) fn measure(corpora: &[Corpus], rounds: usize) -> Result<Vec<Row>, String> {
    let mixed = corpora.iter().flat_map(|corpus| &corpus.pages).copied();
    let pages: Vec<Page> = mixed.collect::<Vec<_>>().into_iter().cycle().take(BATCH_PAGES).collect();
    let all = std::thread::available_parallelism().map_err(|e| e.to_string())?.get();
    let mut threads = vec![1, 2, all];
    threads.sort_unstable();
    threads.dedup();
    threads.retain(|n| *n <= all);
    let mut runs = threads.into_iter().map(Run::new).collect::<Result<Vec<_>, _>>()?;
    let mut restored = vec![[0; PAGE_SIZE]; pages.len()];
    for _ in 0..rounds {
        for run in &mut runs {
            run.round(&pages, &mut restored)?;
        }
    }
    if restored != pages {
        return Err("the batch interface does not restore its pages".into());
    }
    let gbps = |seconds: &[f64]| gbps(pages.len() * PAGE_SIZE, seconds);
    Ok(runs
        .iter()
        .map(|run| Row {
            corpus: "mixed".into(),
            engine: "trueno-cpu-batch".into(),
            threads: run.compressor.threads(),
            pages: pages.len(),
            same_filled: 0,
            ratio: run.batch.stats().ratio(),
            compress_gbps: gbps(&run.compress_s),
            decompress_gbps: gbps(&run.decompress_s),
            memcpy_gbps: Some(gbps(&run.memcpy_s)),
            compress_vs_c_lz4: f64::NAN,
            decompress_vs_c_lz4: f64::NAN,
            c_lz4_blocks_vs_c_lz4: None,
        })
        .collect())
}

struct Run {
    compressor: CpuBatchCompressor,
    batch: CompressedBatch,
    compress_s: Vec<f64>,
    decompress_s: Vec<f64>,
    /// The same pages moved as they are by as many threads: what the memory allows.
    memcpy_s: Vec<f64>,
}

impl Run {
    fn new(threads: usize) -> Result<Self, String> {
        let threads = NonZeroUsize::new(threads).ok_or("no threads")?;
        let compressor = CpuBatchCompressor::with(Algorithm::Lz4, Backend::detect(), threads);
        let compressor = compressor.map_err(|e| e.to_string())?;
        let (compress_s, decompress_s, memcpy_s) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { compressor, batch: CompressedBatch::new(), compress_s, decompress_s, memcpy_s })
    }

    fn round(&mut self, pages: &[Page], restored: &mut [Page]) -> Result<(), String> {
        let share = pages.len().div_ceil(self.compressor.threads());
        let start = Instant::now();
        std::thread::scope(|scope| {
            for (to, from) in restored.chunks_mut(share).zip(pages.chunks(share)) {
                scope.spawn(|| to.copy_from_slice(from));
            }
        });
        self.memcpy_s.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        self.compressor.compress_into(pages, &mut self.batch, &()).map_err(|e| e.to_string())?;
        self.compress_s.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        self.compressor.decompress_into(&self.batch, restored, &()).map_err(|e| e.to_string())?;
        self.decompress_s.push(start.elapsed().as_secs_f64());
        Ok(())
    }
}
