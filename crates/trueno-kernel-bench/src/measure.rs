//! Runs all kernels over one corpus: checks each, then times them in turn, round after round.

use std::time::Duration;

use trueno_bench_engines::nvcomp::{Batch, NvComp};
use trueno_bench_engines::timing::median;
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_core::gpu::GpuError;
use trueno_zram_core::gpu::raw::{Event, GpuContext, Stream};

use crate::args::{Options, Verify};
use crate::corpora::Corpus;
use crate::index;
use crate::kernels::{Accepts, Blocks, COPY, Direction, Facts, Loaded};
use crate::report::{NVCOMP, Row};
use crate::resident::Resident;
use crate::verify;

/// Rounds that are not counted: clocks rise, caches fill.
const WARM_UP_ROUNDS: usize = 2;
/// A kernel that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The source of blocks that a CPU made.
const C_LZ4: &str = "C lz4";

/// One thing to time.
struct Runner<'a> {
    prepare: Box<dyn Fn() -> Result<(), String> + 'a>,
    launch: Box<dyn Fn() -> Result<(), String> + 'a>,
}

/// What the rounds of a runner took.
struct Times {
    kernel_ms: Vec<f64>,
    with_zeroing_ms: Vec<f64>,
}

/// All rows of a corpus.
pub(crate) fn corpus(
    context: &GpuContext,
    stream: &Stream,
    kernels: &[Loaded],
    nvcomp: Option<&NvComp>,
    corpus: &Corpus,
    options: &Options,
) -> Result<Vec<Row>, String> {
    let input = corpus.repeated(options.pages);
    let data = Resident::new(context, stream, &input)?;
    let rival = nvcomp.map(|nvcomp| nvcomp.batch(context, stream, &data.input, &data.decoded)).transpose()?;
    let mut run = Run::new(context, stream, corpus, &input, data, options);
    run.rival = rival.as_ref();
    let (compressors, decompressors) = by_direction(kernels);
    let (mut rows, ratios) = run.compress(&compressors)?;
    if !decompressors.is_empty() {
        for (kernel, ratio) in compressors.iter().zip(&ratios) {
            if kernel.blocks != Blocks::Decompressed {
                continue;
            }
            run.run_once(kernel)?;
            run.data.get_packed(stream)?;
            rows.extend(run.decompress(&decompressors, &kernel.name, *ratio)?);
        }
        let (packed, index) = index::pack(&corpus.c_lz4_blocks, options.pages);
        run.data.set_packed(stream, &packed, &index)?;
        rows.extend(run.decompress(&decompressors, C_LZ4, corpus.c_lz4_ratio())?);
    } else if rival.is_some() {
        rows.extend(run.decompress(&[], C_LZ4, corpus.c_lz4_ratio())?);
    }
    Ok(rows)
}

/// Launches each compressor once, and each decompressor once on what the first of each mode made.
pub(crate) fn once(
    context: &GpuContext,
    stream: &Stream,
    kernels: &[Loaded],
    corpus: &Corpus,
    options: &Options,
) -> Result<(), String> {
    let input = corpus.repeated(options.pages);
    let data = Resident::new(context, stream, &input)?;
    let mut run = Run::new(context, stream, corpus, &input, data, options);
    let (compressors, decompressors) = by_direction(kernels);
    println!("{}: {} pages", corpus.name, options.pages);
    for compressor in compressors {
        println!("compress {}", compressor.name);
        run.run_once(compressor)?;
        if compressor.blocks != Blocks::Decompressed {
            continue;
        }
        let (entries, packed) = run.data.get_packed(stream)?;
        verify::packed(&entries, &packed, &input, run.checked)?;
        for decompressor in decompressors.iter().filter(|kernel| kernel.accepts == compressor.accepts) {
            println!("decompress {} of {}", decompressor.name, compressor.name);
            run.run_once(decompressor)?;
            run.check_decoded()?;
        }
    }
    Ok(())
}

fn by_direction(kernels: &[Loaded]) -> (Vec<&Loaded>, Vec<&Loaded>) {
    kernels.iter().partition(|kernel| kernel.direction == Direction::Compress)
}

/// The state of a corpus's run.
struct Run<'a> {
    context: &'a GpuContext,
    stream: &'a Stream,
    corpus: &'a Corpus,
    input: &'a [u8],
    data: Resident,
    rival: Option<&'a Batch<'a>>,
    /// How many pages are decoded and compared.
    checked: usize,
    reps: usize,
}

impl<'a> Run<'a> {
    fn new(
        context: &'a GpuContext,
        stream: &'a Stream,
        corpus: &'a Corpus,
        input: &'a [u8],
        data: Resident,
        options: &Options,
    ) -> Self {
        let checked = match options.verify {
            Verify::OneCopy => corpus.pages.len().min(options.pages as usize),
            Verify::EveryPage => options.pages as usize,
        };
        Self { context, stream, corpus, input, data, rival: None, checked, reps: options.reps }
    }

    /// Rows of the compressors and the rival, and the compressors' ratios.
    fn compress(&mut self, kernels: &[&Loaded]) -> Result<(Vec<Row>, Vec<f64>), String> {
        let mut ratios = Vec::new();
        // What the first kernel of each mode made: the others must make the same.
        let mut by_mode = Vec::new();
        for kernel in kernels {
            self.data.spoil(self.stream, &self.data.packed)?;
            self.run_once(kernel)?;
            let (entries, packed) = self.data.get_packed(self.stream)?;
            let found = verify::packed(&entries, &packed, self.input, self.checked)
                .map_err(|e| format!("{} on {}: {e}", kernel.name, self.corpus.name))?;
            ratios.push(self.input.len() as f64 / found.held_bytes as f64);
            let made = (entries, packed);
            match (kernel.mode, by_mode.iter().find(|(mode, _)| kernel.mode == Some(*mode))) {
                (Some(mode), None) => by_mode.push((mode, made)),
                (Some(_), Some((_, first))) if *first != made => {
                    return Err(format!("{} on {}: not the bytes of the same mode", kernel.name, self.corpus.name));
                }
                _ => {}
            }
        }
        let mut runners: Vec<Runner<'_>> = kernels.iter().map(|kernel| self.runner(kernel)).collect();
        let mut rival_ratio = 0.0;
        if let Some(rival) = self.rival {
            rival.compress()?;
            self.finish()?;
            rival_ratio = self.input.len() as f64 / rival.held_bytes()? as f64;
            runners.push(Runner { prepare: Box::new(|| Ok(())), launch: Box::new(|| Ok(rival.compress()?)) });
        }
        let times = self.time(&runners)?;
        let mut rows = Vec::new();
        for ((kernel, ratio), times) in kernels.iter().zip(&ratios).zip(&times) {
            rows.push(self.row(Some(kernel), Direction::Compress, "", *ratio, times));
        }
        if self.rival.is_some() {
            rows.push(self.row(None, Direction::Compress, "", rival_ratio, &times[kernels.len()]));
        }
        set_quotients(&mut rows);
        Ok((rows, ratios))
    }

    /// Rows of the decompressors on what is packed now, and of the rival on what it packed itself.
    fn decompress(&self, kernels: &[&Loaded], source: &str, ratio: f64) -> Result<Vec<Row>, String> {
        // The copied pages are all raw: they show a copy's speed, and nothing of a decoder's.
        let wanted = if source == COPY { Accepts::RawPages } else { Accepts::Everything };
        let kernels: Vec<&Loaded> = kernels.iter().filter(|kernel| kernel.accepts == wanted).copied().collect();
        for kernel in &kernels {
            self.data.spoil(self.stream, &self.data.decoded)?;
            self.data.spoil(self.stream, &self.data.status)?;
            self.run_once(kernel)?;
            self.check_decoded().map_err(|e| format!("{} of {source}'s {}: {e}", kernel.name, self.corpus.name))?;
        }
        let mut runners: Vec<Runner<'_>> = kernels.iter().map(|kernel| self.runner(kernel)).collect();
        if let Some(rival) = self.rival {
            self.data.spoil(self.stream, &self.data.decoded)?;
            self.data.zero(self.stream, &self.data.status)?;
            rival.decompress()?;
            self.finish()?;
            rival.check_statuses()?;
            self.check_decoded().map_err(|e| format!("nvCOMP on {}: {e}", self.corpus.name))?;
            runners.push(Runner { prepare: Box::new(|| Ok(())), launch: Box::new(|| Ok(rival.decompress()?)) });
        }
        let times = self.time(&runners)?;
        let mut rows = Vec::new();
        for (kernel, times) in kernels.iter().zip(&times) {
            rows.push(self.row(Some(kernel), Direction::Decompress, source, ratio, times));
        }
        if let Some(rival) = self.rival {
            let rival_ratio = self.input.len() as f64 / rival.held_bytes()? as f64;
            rows.push(self.row(None, Direction::Decompress, NVCOMP, rival_ratio, &times[kernels.len()]));
        }
        set_quotients(&mut rows);
        Ok(rows)
    }

    fn check_decoded(&self) -> Result<(), String> {
        let (decoded, status) = self.data.get_decoded(self.stream)?;
        verify::decoded(&decoded, &status, self.input, self.checked)
    }

    fn runner<'b>(&'b self, kernel: &'b Loaded) -> Runner<'b> {
        Runner {
            prepare: Box::new(|| kernel.prepare(self.stream, &self.data)),
            launch: Box::new(|| kernel.launch(self.stream, &self.data)),
        }
    }

    fn run_once(&self, kernel: &Loaded) -> Result<(), String> {
        kernel.prepare(self.stream, &self.data)?;
        kernel.launch(self.stream, &self.data)?;
        self.finish().map_err(|e| format!("{} on {}: {e}", kernel.name, self.corpus.name))
    }

    fn finish(&self) -> Result<(), String> {
        let end = Event::ordering(self.context).map_err(|e| e.to_string())?;
        self.stream.record(&end).map_err(|e| e.to_string())?;
        self.wait(&end)
    }

    /// Waits for an event, but not for ever: then nothing of the context is touched again, so that nothing waits.
    fn wait(&self, event: &Event) -> Result<(), String> {
        let waited = event.wait_for(TIMEOUT);
        if let Err(error @ GpuError::TimedOut { .. }) = &waited {
            self.context.abandon(&error.to_string());
        }
        waited.map_err(|e| e.to_string())
    }

    fn time(&self, runners: &[Runner<'_>]) -> Result<Vec<Times>, String> {
        let event = || Event::timed(self.context).map_err(|e| e.to_string());
        let [before, start, end] = [event()?, event()?, event()?];
        let record = |event| self.stream.record(event).map_err(|e| e.to_string());
        let ms = |end: &Event, start: &Event| match end.since(start) {
            Ok(time) => Ok(time.as_secs_f64() * 1e3),
            Err(error) => Err(error.to_string()),
        };
        let mut times: Vec<Times> =
            runners.iter().map(|_| Times { kernel_ms: Vec::new(), with_zeroing_ms: Vec::new() }).collect();
        for round in 0..WARM_UP_ROUNDS + self.reps {
            for (runner, times) in runners.iter().zip(&mut times) {
                record(&before)?;
                (runner.prepare)()?;
                record(&start)?;
                (runner.launch)()?;
                record(&end)?;
                self.wait(&end)?;
                if round >= WARM_UP_ROUNDS {
                    times.kernel_ms.push(ms(&end, &start)?);
                    times.with_zeroing_ms.push(ms(&end, &before)?);
                }
            }
        }
        Ok(times)
    }

    fn row(&self, kernel: Option<&Loaded>, direction: Direction, source: &str, ratio: f64, times: &Times) -> Row {
        let gbps = |ms: f64| self.input.len() as f64 / ms / 1e6;
        let scratch = match direction {
            Direction::Compress => {
                kernel.map_or_else(|| self.rival.map_or(0, Batch::temp_bytes), |kernel| kernel.scratch_bytes)
            }
            Direction::Decompress => 0,
        };
        let facts = kernel.map_or_else(Facts::default, |kernel| kernel.facts);
        let median_ms = median(&times.kernel_ms);
        Row {
            corpus: self.corpus.name.clone(),
            direction: direction.name(),
            kernel: kernel.map_or(NVCOMP, |kernel| &kernel.name).to_owned(),
            blocks_of: source.to_owned(),
            pages: self.input.len() / PAGE_SIZE,
            distinct_pages: self.corpus.pages.len(),
            same_filled_left_out: self.corpus.same_filled,
            verified_pages: self.checked,
            gbps: gbps(median_ms),
            kernel_ms: median_ms,
            kernel_ms_min: times.kernel_ms.iter().copied().fold(f64::INFINITY, f64::min),
            kernel_ms_max: times.kernel_ms.iter().copied().fold(0.0, f64::max),
            gbps_with_zeroing: gbps(median(&times.with_zeroing_ms)),
            ratio,
            ratio_vs_c_lz4: ratio / self.corpus.c_lz4_ratio(),
            vs_nvcomp: None,
            scratch_bytes: scratch,
            grid: facts.grid,
            block_threads: facts.block_threads,
            blocks_per_sm: facts.blocks_per_sm,
            dynamic_shared_bytes: facts.dynamic_shared_bytes,
            registers: facts.registers,
            local_bytes: facts.local_bytes,
        }
    }
}

/// Each kernel's speed over nvCOMP's, of the same rounds.
fn set_quotients(rows: &mut [Row]) {
    let Some(rival_gbps) = rows.iter().find(|row| row.kernel == NVCOMP).map(|row| row.gbps) else { return };
    for row in rows {
        row.vs_nvcomp = Some(row.gbps / rival_gbps);
    }
}
