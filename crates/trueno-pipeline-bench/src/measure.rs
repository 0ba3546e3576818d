//! The measurements, section by section.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Instant;

use rayon::prelude::*;
use trueno_bench_engines::{BatchEngine, CLz4, Corpus, Memcpy, Pooled, TruenoCpu};
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::gpu::raw::GpuContext;
use trueno_zram_core::gpu::{BatchResult, BatchTimes, GpuBatchCompressor, GpuBatchConfig, GpuOptions, PinnedPages};
use trueno_zram_core::{Algorithm, BatchCompressor, CompressedBatch, CpuBatchCompressor, PAGE_SIZE, Page};

use crate::args::Options;
use crate::limits;
use crate::report::{Direction, Report, Row, Timing};

type Done<T = ()> = Result<T, String>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// What all measurements share.
pub(crate) struct Bench<'a> {
    options: &'a Options,
    context: GpuContext,
    threads: NonZeroUsize,
    corpora: Vec<Corpus>,
    mix: Vec<Page>,
    pub(crate) report: Report,
}

/// The name of all corpora together.
const MIX: &str = "mix";

impl<'a> Bench<'a> {
    pub(crate) fn new(
        options: &'a Options,
        context: GpuContext,
        threads: NonZeroUsize,
        corpora: Vec<Corpus>,
        report: Report,
    ) -> Self {
        let mix = corpora.iter().flat_map(|corpus| corpus.pages.iter().copied()).collect();
        Self { options, context, threads, corpora, mix, report }
    }

    pub(crate) fn run(&mut self) -> Done {
        let pages = repeated(&self.mix, self.options.pages);
        if self.options.has("limits") {
            self.limits(&pages)?;
        }
        if self.options.has("cpu") {
            self.cpu(&pages)?;
        }
        self.throughput(&pages)?;
        if self.options.has("both") {
            self.adaptive(&pages)?;
        }
        if self.options.has("serial") {
            self.serial(&pages)?;
        }
        if self.options.has("slots") {
            self.slots(&pages)?;
        }
        if self.options.has("share") {
            self.share(&pages)?;
        }
        if self.options.has("small") {
            self.small(&pages)?;
        }
        if self.options.has("corpora") {
            self.each_corpus()?;
        }
        Ok(())
    }

    fn config(&self) -> GpuBatchConfig {
        GpuBatchConfig {
            device_index: self.options.device,
            batch_size: self.options.batch_pages,
            ring_buffer_slots: self.options.slots,
            ..GpuBatchConfig::default()
        }
    }

    /// Runs it once to warm up, and then as often as asked for.
    fn timed(&self, mut work: impl FnMut() -> Done<Timing>) -> Done<Vec<Timing>> {
        work()?;
        (0..self.options.reps).map(|_| work()).collect()
    }

    /// The same for batches that say where their time went.
    fn timed_batch(&self, mut work: impl FnMut() -> trueno_zram_core::Result<BatchTimes>) -> Done<Vec<Timing>> {
        self.timed(|| work().map(Timing::from).map_err(text))
    }

    fn limits(&mut self, pages: &[Page]) -> Done {
        let bytes = pages.as_flattened().len();
        let (h2d, d2h, copied) = limits::bus(&self.context, bytes, self.options.reps).map_err(text)?;
        let copied_pages = copied / PAGE_SIZE;
        let timings = |times: Vec<_>| times.into_iter().map(Timing::from).collect::<Vec<_>>();
        let h2d = Row::new("limits", "pinned to device", "", copied_pages, &timings(h2d));
        self.report.h2d_gbps = Some(h2d.gbps);
        self.report.add(Direction::Compress, h2d);
        let d2h = Row::new("limits", "device to pinned", "", copied_pages, &timings(d2h));
        self.report.d2h_gbps = Some(d2h.gbps);
        self.report.add(Direction::Decompress, d2h);
        let mut memcpy = Memcpy::new(&Pooled::pool(self.threads).map_err(text)?);
        let times = self.timed(|| memcpy.compress(pages).map(Timing::from).map_err(text))?;
        self.report.add(Direction::Compress, Row::new("limits", "memcpy on all cores", "", pages.len(), &times));
        Ok(())
    }

    fn cpu(&mut self, pages: &[Page]) -> Done {
        // A quarter is enough where no bus is filled.
        let pages = &pages[..pages.len().div_ceil(4)];
        let pool = Pooled::pool(self.threads).map_err(text)?;
        let mut c_lz4 = Pooled::new(&pool, || Ok(CLz4::new())).map_err(text)?;
        let mut ours = TruenoCpu::new(self.threads).map_err(text)?;
        let mut restored = vec![[0; PAGE_SIZE]; pages.len()];
        for (name, engine) in [("C lz4", &mut c_lz4 as &mut dyn BatchEngine), ("our CPU path", &mut ours)] {
            let compress = self.timed(|| engine.compress(pages).map(Timing::from).map_err(text))?;
            let ratio = pages.as_flattened().len() as f64 / engine.held_bytes().map_err(text)? as f64;
            let decompress = self.timed(|| engine.decompress(&mut restored).map(Timing::from).map_err(text))?;
            verify_pages(name, &restored, pages)?;
            let what = format!("compress, {name}, all cores");
            let row = Row { ratio: Some(ratio), ..Row::new("cpu", &what, MIX, pages.len(), &compress) };
            let back = Row::new("cpu", &format!("decompress, {name}, all cores"), MIX, pages.len(), &decompress);
            if name == "C lz4" {
                (self.report.c_lz4_compress_gbps, self.report.c_lz4_decompress_gbps) =
                    (Some(row.gbps), Some(back.gbps));
            }
            self.report.add(Direction::Compress, row);
            self.report.add(Direction::Decompress, back);
        }
        Ok(())
    }

    fn throughput(&mut self, pages: &[Page]) -> Done {
        let (compress, decompress) = (self.options.has("compress"), self.options.has("decompress"));
        if !compress && !decompress {
            return Ok(());
        }
        let config = self.config();
        let mut gpu = GpuBatchCompressor::new(config.clone()).map_err(text)?;
        let mut pinned = gpu.pinned_pages(pages.len()).map_err(text)?;
        copy_to(&mut pinned, pages)?;
        let mut batch = CompressedBatch::new();
        let shaped =
            |row: Row| Row { batch_pages: Some(config.batch_size), slots: Some(config.ring_buffer_slots), ..row };
        let compress_row = |what: &str, times: &[Timing], ratio: f64| {
            shaped(Row { ratio: Some(ratio), ..Row::new("compress", what, MIX, pages.len(), times) })
        };
        if compress {
            let times = self.timed_batch(|| gpu.compress_pinned_into(&mut pinned, &mut batch, &()))?;
            verify_batch(&batch, pages)?;
            let ratio = batch.stats().ratio();
            self.report.add(Direction::Compress, compress_row("compress, pinned to arena", &times, ratio));
        }
        let mut packed = gpu.pinned_batch(pages.len()).map_err(text)?;
        let times = self.timed_batch(|| gpu.compress_all_pinned(&mut pinned, &mut packed, &()))?;
        if compress {
            let copy = CompressedBatch::from_parts(packed.arena().map_err(text)?.to_vec(), packed.index().to_vec());
            let copy = copy.map_err(text)?;
            verify_batch(&copy, pages)?;
            let row = compress_row("compress, pinned to pinned", &times, copy.stats().ratio());
            self.report.add(Direction::Compress, row);
        }
        let times = self.timed_batch(|| gpu.compress_into(pages, &mut batch, &()))?;
        verify_batch(&batch, pages)?;
        let ratio = batch.stats().ratio();
        if compress {
            self.report.add(Direction::Compress, compress_row("compress, pageable to arena", &times, ratio));
            let result = gpu.compress_batch(pages).map_err(text)?;
            let ratio = result.compression_ratio();
            verify_pages("compress_batch", &gpu.decompress_batch(&result.pages).map_err(text)?.pages, pages)?;
            drop(result);
            let times = self.timed(|| Ok(times_of(&gpu.compress_batch(pages).map_err(text)?)))?;
            self.report.add(Direction::Compress, compress_row("compress_batch to Vec, each dropped", &times, ratio));
            // Fresh memory for each result, as where they are to be kept.
            let mut kept = Vec::new();
            let times = self.timed(|| {
                let result = gpu.compress_batch(pages).map_err(text)?;
                let times = times_of(&result);
                kept.push(result);
                Ok(times)
            })?;
            self.report.add(Direction::Compress, compress_row("compress_batch to Vec, each kept", &times, ratio));
        }
        if decompress {
            let times = self.timed_batch(|| gpu.decompress_pinned_into(&batch, &mut pinned, &()))?;
            verify_pages("decompress to pinned", pinned.pages().map_err(text)?, pages)?;
            let row = shaped(Row::new("decompress", "decompress, arena to pinned", MIX, pages.len(), &times));
            self.report.add(Direction::Decompress, row);
            pinned.pages_mut().map_err(text)?.fill([0; PAGE_SIZE]);
            let times = self.timed_batch(|| gpu.decompress_all_pinned(&mut packed, &mut pinned, &()))?;
            verify_pages("decompress, pinned to pinned", pinned.pages().map_err(text)?, pages)?;
            let row = shaped(Row::new("decompress", "decompress, pinned to pinned", MIX, pages.len(), &times));
            self.report.add(Direction::Decompress, row);
            let mut restored = vec![[0; PAGE_SIZE]; pages.len()];
            let times = self.timed_batch(|| gpu.decompress_into(&batch, &mut restored, &()))?;
            verify_pages("decompress to pageable", &restored, pages)?;
            let row = shaped(Row::new("decompress", "decompress, arena to pageable", MIX, pages.len(), &times));
            self.report.add(Direction::Decompress, row);
        }
        no_fallback(&gpu)
    }

    /// The compressor that picks GPU, CPU or both by what it has measured: some batches to learn, and then the figure.
    fn adaptive(&mut self, pages: &[Page]) -> Done {
        const BATCHES_TO_LEARN: usize = 4;
        let mut either = BatchCompressor::new(self.config(), &GpuOptions::default()).map_err(text)?;
        let mut batch = CompressedBatch::new();
        for _ in 0..BATCHES_TO_LEARN {
            either.compress_into(pages, &mut batch, &()).map_err(text)?;
        }
        let times = self.timed(|| {
            let start = Instant::now();
            either.compress_into(pages, &mut batch, &()).map_err(text)?;
            Ok(start.elapsed().into())
        })?;
        verify_batch(&batch, pages)?;
        let chosen = either.last_placement().map_or_else(String::new, |choice| format!(" ({choice:?} chosen)"));
        let row = Row::new("both", &format!("compress, adaptive{chosen}"), MIX, pages.len(), &times);
        self.report.add(Direction::Compress, Row { ratio: Some(batch.stats().ratio()), ..row });
        let mut restored = vec![[0; PAGE_SIZE]; pages.len()];
        for _ in 0..BATCHES_TO_LEARN {
            either.decompress_into(&batch, &mut restored, &()).map_err(text)?;
        }
        let times = self.timed(|| {
            let start = Instant::now();
            either.decompress_into(&batch, &mut restored, &()).map_err(text)?;
            Ok(start.elapsed().into())
        })?;
        verify_pages("adaptive", &restored, pages)?;
        if let Some(reason) = either.gpu_stats().and_then(|stats| stats.fallback.last_reason.as_ref()) {
            return Err(format!("the GPU failed: {reason}"));
        }
        let chosen = either.last_placement().map_or_else(String::new, |choice| format!(" ({choice:?} chosen)"));
        let row = Row::new("both", &format!("decompress, adaptive{chosen}"), MIX, pages.len(), &times);
        self.report.add(Direction::Decompress, row);
        Ok(())
    }

    fn serial(&mut self, pages: &[Page]) -> Done {
        for (what, async_dma, slots) in
            [("serial: no async DMA, 1 slot", false, 1), ("pipelined", true, self.options.slots)]
        {
            let config = GpuBatchConfig { async_dma, ring_buffer_slots: slots, ..self.config() };
            let mut gpu = GpuBatchCompressor::new(config.clone()).map_err(text)?;
            let mut batch = CompressedBatch::new();
            let times = self.timed_batch(|| gpu.compress_into(pages, &mut batch, &()))?;
            no_fallback(&gpu)?;
            let row = Row::new("serial", what, MIX, pages.len(), &times);
            let row = Row { batch_pages: Some(config.batch_size), slots: Some(slots), ..row };
            self.report.add(Direction::Compress, row);
        }
        Ok(())
    }

    fn slots(&mut self, pages: &[Page]) -> Done {
        for (batch_size, slots) in
            [(1000, 4), (1000, 8), (2048, 4), (4096, 3), (4096, 6), (8192, 3), (8192, 4), (16384, 4)]
        {
            let config = GpuBatchConfig { batch_size, ring_buffer_slots: slots, ..self.config() };
            let mut gpu = GpuBatchCompressor::new(config).map_err(text)?;
            let mut batch = CompressedBatch::new();
            let mut pinned = gpu.pinned_pages(pages.len()).map_err(text)?;
            copy_to(&mut pinned, pages)?;
            let mut packed = gpu.pinned_batch(pages.len()).map_err(text)?;
            let times = self.timed_batch(|| gpu.compress_all_pinned(&mut pinned, &mut packed, &()))?;
            let shaped = |row: Row| Row { batch_pages: Some(batch_size), slots: Some(slots), ..row };
            let row = Row::new("slots", "compress, pinned to pinned", MIX, pages.len(), &times);
            self.report.add(Direction::Compress, shaped(row));
            let times = self.timed_batch(|| gpu.compress_into(pages, &mut batch, &()))?;
            let row = Row::new("slots", "compress, pageable to arena", MIX, pages.len(), &times);
            self.report.add(Direction::Compress, shaped(row));
            let times = self.timed_batch(|| gpu.decompress_pinned_into(&batch, &mut pinned, &()))?;
            let row = Row::new("slots", "decompress, arena to pinned", MIX, pages.len(), &times);
            self.report.add(Direction::Decompress, shaped(row));
            let times = self.timed_batch(|| gpu.decompress_all_pinned(&mut packed, &mut pinned, &()))?;
            let row = Row::new("slots", "decompress, pinned to pinned", MIX, pages.len(), &times);
            self.report.add(Direction::Decompress, shaped(row));
            no_fallback(&gpu)?;
        }
        Ok(())
    }

    fn share(&mut self, pages: &[Page]) -> Done {
        let all = self.context.limits().multiprocessors;
        let gpu = GpuBatchCompressor::new(self.config()).map_err(text)?;
        let mut pinned = gpu.pinned_pages(pages.len()).map_err(text)?;
        let mut packed = gpu.pinned_batch(pages.len()).map_err(text)?;
        drop(gpu);
        copy_to(&mut pinned, pages)?;
        for most in [8, 16, 24, 28, all / 4, all / 2, all] {
            let options = GpuOptions::new().multiprocessors(NonZeroU32::new(most));
            let mut gpu = GpuBatchCompressor::with_options(self.config(), &options).map_err(text)?;
            let times = self.timed_batch(|| gpu.compress_all_pinned(&mut pinned, &mut packed, &()))?;
            no_fallback(&gpu)?;
            let row = Row::new("share", &format!("compress, pinned, {most} of {all} SMs"), MIX, pages.len(), &times);
            self.report.add(Direction::Compress, Row { multiprocessors: Some(most), ..row });
        }
        Ok(())
    }

    /// Small batches: how long one takes, and where the GPU starts to beat the CPU.
    fn small(&mut self, pages: &[Page]) -> Done {
        let mut gpu = GpuBatchCompressor::new(self.config()).map_err(text)?;
        let mut cpu = trueno_zram_core::build_pool(self.threads)
            .and_then(|pool| CpuBatchCompressor::with_pool(Algorithm::Lz4, InstructionSet::detect(), pool))
            .map_err(text)?;
        let mut batch = CompressedBatch::new();
        let mut crossing = None;
        for count in [1, 16, 64, 128, 256, 512, 1000, 2000, 4000, 8000, 16_000, 64_000] {
            let Some(pages) = pages.get(..count) else { break };
            let reps = (200_000 / count).clamp(20, 500);
            let mut times = (Vec::new(), Vec::new());
            for _ in 0..reps {
                times.0.push(Timing::from(gpu.compress_into(pages, &mut batch, &()).map_err(text)?));
                let start = Instant::now();
                cpu.compress_into(pages, &mut batch, &()).map_err(text)?;
                times.1.push(Timing::from(start.elapsed()));
            }
            let on_gpu = Row::new("small", "a batch on the GPU", MIX, count, &times.0);
            let on_cpu = Row::new("small", "a batch on the CPU", MIX, count, &times.1);
            match crossing {
                None if on_gpu.seconds < on_cpu.seconds => crossing = Some(count),
                Some(_) if on_gpu.seconds >= on_cpu.seconds => crossing = None,
                _ => {}
            }
            self.report.add(Direction::Compress, on_gpu);
            self.report.add(Direction::Compress, on_cpu);
        }
        self.report.crossing_pages = crossing;
        match crossing {
            Some(pages) => println!("the GPU beats the CPU from {pages} pages on"),
            None => println!("the GPU never beats the CPU for good"),
        }
        no_fallback(&gpu)
    }

    fn each_corpus(&mut self) -> Done {
        let mut gpu = GpuBatchCompressor::new(self.config()).map_err(text)?;
        let mut batch = CompressedBatch::new();
        let count = self.options.pages.div_ceil(4);
        let mut pinned = gpu.pinned_pages(count).map_err(text)?;
        let mut packed = gpu.pinned_batch(count).map_err(text)?;
        for corpus in std::mem::take(&mut self.corpora) {
            let pages = repeated(&corpus.pages, count);
            copy_to(&mut pinned, &pages)?;
            let times = self.timed_batch(|| gpu.compress_all_pinned(&mut pinned, &mut packed, &()))?;
            let row = Row::new("corpora", "compress, pinned", &corpus.name, count, &times);
            self.report.add(Direction::Compress, row);
            pinned.pages_mut().map_err(text)?.fill([0; PAGE_SIZE]);
            let times = self.timed_batch(|| gpu.compress_into(&pages, &mut batch, &()))?;
            verify_batch(&batch, &pages)?;
            let row = Row::new("corpora", "compress, pageable", &corpus.name, count, &times);
            self.report.add(Direction::Compress, Row { ratio: Some(batch.stats().ratio()), ..row });
            let times = self.timed_batch(|| gpu.decompress_all_pinned(&mut packed, &mut pinned, &()))?;
            verify_pages(&corpus.name, pinned.pages().map_err(text)?, &pages)?;
            let row = Row::new("corpora", "decompress, pinned", &corpus.name, count, &times);
            self.report.add(Direction::Decompress, row);
        }
        no_fallback(&gpu)
    }
}

fn times_of(result: &BatchResult) -> Timing {
    Timing::from(BatchTimes {
        h2d_time_ns: result.h2d_time_ns,
        kernel_time_ns: result.kernel_time_ns,
        d2h_time_ns: result.d2h_time_ns,
        total_time_ns: result.total_time_ns,
    })
}

/// The pages over and over; the memory is first touched by all cores.
fn repeated(pages: &[Page], count: usize) -> Vec<Page> {
    let mut copies = vec![[0; PAGE_SIZE]; count];
    copies.par_iter_mut().enumerate().with_min_len(256).for_each(|(i, page)| *page = pages[i % pages.len()]);
    copies
}

fn copy_to(pinned: &mut PinnedPages, pages: &[Page]) -> Done {
    let to = pinned.pages_mut().map_err(text)?;
    to.par_chunks_mut(256).zip(pages.par_chunks(256)).for_each(|(to, from)| to.copy_from_slice(from));
    Ok(())
}

/// A figure of a run that fell back to the CPU would be none of the GPU.
fn no_fallback(gpu: &GpuBatchCompressor) -> Done {
    match &gpu.stats().fallback.last_reason {
        Some(reason) => Err(format!("the GPU failed: {reason}")),
        None => Ok(()),
    }
}

fn verify_batch(batch: &CompressedBatch, pages: &[Page]) -> Done {
    let restored = CpuBatchCompressor::default().decompress(batch).map_err(text)?;
    verify_pages("compressed pages", &restored, pages)
}

fn verify_pages(what: &str, restored: &[Page], pages: &[Page]) -> Done {
    let differs = restored.par_iter().zip(pages).position_first(|(restored, page)| restored != page);
    match differs {
        Some(page) => Err(format!("{what}: page {page} differs")),
        None if restored.len() != pages.len() => Err(format!("{what}: {} of {} pages", restored.len(), pages.len())),
        None => Ok(()),
    }
}
