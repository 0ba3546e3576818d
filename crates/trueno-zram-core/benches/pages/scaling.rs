//! The batch interface on one, two and all threads, beside copies of the same pages.

use std::num::NonZeroUsize;

use trueno_bench_engines::timing::gbps;
use trueno_bench_engines::{BatchEngine, Corpus, Memcpy, Pooled, Result, TruenoCpu, verify};
use trueno_zram_core::{PAGE_SIZE, Page};

use crate::report::Row;

/// Pages in the batch: enough that threads have something to share out.
const BATCH_PAGES: usize = 32 * 1024;

/// One row a number of threads, over all corpora mixed.
pub(crate) fn measure(corpora: &[Corpus], rounds: usize) -> Result<Vec<Row>> {
    let mixed = corpora.iter().flat_map(|corpus| &corpus.pages).copied();
    let pages: Vec<Page> = mixed.collect::<Vec<_>>().into_iter().cycle().take(BATCH_PAGES).collect();
    let all = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let mut threads = vec![NonZeroUsize::MIN, NonZeroUsize::MIN.saturating_add(1), all];
    threads.sort_unstable();
    threads.dedup();
    threads.retain(|n| *n <= all);
    let mut runs = threads.into_iter().map(Run::new).collect::<Result<Vec<_>>>()?;
    for run in &mut runs {
        verify(&mut run.compressor, &pages)?;
    }
    let mut restored = vec![[0; PAGE_SIZE]; pages.len()];
    for _ in 0..rounds {
        for run in &mut runs {
            run.round(&pages, &mut restored)?;
        }
    }
    runs.iter().map(|run| run.row(&pages)).collect()
}

struct Run {
    compressor: TruenoCpu,
    /// The same pages moved as they are by as many threads: what the memory allows.
    memcpy: Memcpy,
    compress_s: Vec<f64>,
    decompress_s: Vec<f64>,
    memcpy_s: Vec<f64>,
}

impl Run {
    fn new(threads: NonZeroUsize) -> Result<Self> {
        let (compressor, memcpy) = (TruenoCpu::new(threads)?, Memcpy::new(&Pooled::pool(threads)?));
        Ok(Self { compressor, memcpy, compress_s: Vec::new(), decompress_s: Vec::new(), memcpy_s: Vec::new() })
    }

    fn round(&mut self, pages: &[Page], restored: &mut [Page]) -> Result<()> {
        self.memcpy.compress(pages)?;
        self.memcpy_s.push(self.memcpy.decompress(restored)?.as_secs_f64());
        self.compress_s.push(self.compressor.compress(pages)?.as_secs_f64());
        self.decompress_s.push(self.compressor.decompress(restored)?.as_secs_f64());
        Ok(())
    }

    fn row(&self, pages: &[Page]) -> Result<Row> {
        let len_bytes = pages.len() * PAGE_SIZE;
        Ok(Row {
            corpus: "mixed".into(),
            engine: "trueno-cpu-batch".into(),
            threads: self.compressor.threads(),
            pages: pages.len(),
            same_filled: 0,
            ratio: len_bytes as f64 / self.compressor.held_bytes()? as f64,
            compress_gbps: gbps(len_bytes, &self.compress_s),
            decompress_gbps: gbps(len_bytes, &self.decompress_s),
            memcpy_gbps: Some(gbps(len_bytes, &self.memcpy_s)),
            compress_vs_c_lz4: f64::NAN,
            decompress_vs_c_lz4: f64::NAN,
            c_lz4_blocks_vs_c_lz4: None,
        })
    }
}
