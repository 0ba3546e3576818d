//! The results of a run, as they are written to JSON and drawn in reports.

use std::num::NonZeroUsize;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use trueno_zram_core::PAGE_SIZE;

use crate::corpora::Corpus;
use crate::error::Result;
use crate::machine::BenchMachine;
use crate::measure::Timed;
use crate::timing::{gbps, geometric_mean, paired_quotient};

/// The findings of a run. Speeds count uncompressed bytes, in 10^9 per second.
#[derive(Debug, Serialize)]
pub struct Document {
    /// `bench`, `pages`, `kernels` or `pipeline`. The tool writes this and the machine in the form of all its commands.
    #[serde(skip)]
    pub(crate) command: &'static str,
    pub(crate) command_line: String,
    #[serde(skip)]
    pub(crate) machine: BenchMachine,
    /// The day in UTC: `2026-01-31`.
    pub(crate) date: String,
    pub(crate) run: RunSettings,
    /// Engines that the others are compared with.
    pub(crate) bars: Vec<&'static str>,
    pub(crate) corpora: Vec<CorpusFacts>,
    pub(crate) rows: Vec<Row>,
    pub(crate) quotients: Vec<Quotient>,
    /// Geometric means over the corpora.
    pub(crate) means: Vec<Mean>,
    pub(crate) scaling: Vec<Point>,
    pub(crate) stages: Vec<Stage>,
    /// The batch size from which the GPU is faster than the CPU; `None` if there is no GPU.
    pub(crate) crossing: Option<Crossing>,
    pub(crate) left_out: Vec<LeftOut>,
}

/// The settings of a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RunSettings {
    /// Rounds; the median of each figure counts.
    pub rounds: usize,
    /// The most pages in a batch.
    pub pages: usize,
    /// Threads of the rows that use all.
    pub threads: NonZeroUsize,
}

/// The description of a corpus.
#[derive(Debug, Serialize)]
pub(crate) struct CorpusFacts {
    pub(crate) name: String,
    /// Whole pages of the file.
    pub(crate) pages_in_all: usize,
    #[serde(rename = "same_filled_left_out")]
    pub(crate) same_filled: usize,
    /// Different pages that are measured: all that are not same-filled, or a sample of them.
    pub(crate) distinct_pages: usize,
    /// The number of rotations of each page in a batch.
    #[serde(rename = "rotations")]
    pub(crate) variants: usize,
}

/// One engine on one corpus. Same-filled pages are left out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) corpus: String,
    pub(crate) engine: String,
    pub(crate) threads: usize,
    /// Pages in the timed batch.
    pub(crate) pages: usize,
    /// Same-filled pages of the corpus, which were left out.
    #[serde(rename = "same_filled_left_out")]
    pub(crate) same_filled: usize,
    pub(crate) ratio: f64,
    pub(crate) compress_gbps: f64,
    pub(crate) decompress_gbps: f64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) note: String,
}

/// A row against a bar's in the same rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Quotient {
    pub(crate) corpus: String,
    pub(crate) engine: String,
    pub(crate) threads: usize,
    pub(crate) bar: &'static str,
    pub(crate) bar_threads: usize,
    pub(crate) ratio: f64,
    pub(crate) compress: f64,
    pub(crate) decompress: f64,
}

/// One engine over all corpora.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Mean {
    pub(crate) engine: String,
    pub(crate) threads: usize,
    pub(crate) corpora: usize,
    pub(crate) ratio: f64,
    pub(crate) compress_gbps: f64,
    pub(crate) decompress_gbps: f64,
    pub(crate) quotients: Vec<Quotient>,
}

/// The quantity that grows along a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Along {
    Batch,
    Threads,
}

/// One point of a series, over the pages of all corpora mixed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Point {
    pub(crate) along: Along,
    pub(crate) engine: String,
    pub(crate) threads: usize,
    pub(crate) pages: usize,
    pub(crate) compress_gbps: f64,
    pub(crate) decompress_gbps: f64,
}

/// The direction of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    Compress,
    Decompress,
}

impl Direction {
    pub(crate) const BOTH: [Self; 2] = [Self::Compress, Self::Decompress];

    pub(crate) fn name(self) -> &'static str {
        self.pick("compress", "decompress")
    }

    pub(crate) fn pick<T>(self, compress: T, decompress: T) -> T {
        match self {
            Self::Compress => compress,
            Self::Decompress => decompress,
        }
    }
}

/// The time of a page by stage.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stage {
    pub(crate) engine: String,
    pub(crate) direction: Direction,
    pub(crate) threads: usize,
    pub(crate) pages: usize,
    pub(crate) stage: &'static str,
    pub(crate) ns_per_page: f64,
}

/// The smallest measured batch from which the GPU stays faster than the CPU with all threads; `None` if it never does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Crossing {
    pub(crate) compress_pages: Option<usize>,
    pub(crate) decompress_pages: Option<usize>,
}

/// An engine that did not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LeftOut {
    pub(crate) engine: String,
    pub(crate) why: String,
}

impl Document {
    pub(crate) fn new(command: &'static str, run: RunSettings, bars: &[&'static str], corpora: &[Corpus]) -> Self {
        let facts = |corpus: &Corpus| CorpusFacts {
            name: corpus.name.clone(),
            pages_in_all: corpus.pages_in_all,
            same_filled: corpus.same_filled,
            distinct_pages: corpus.distinct_pages(),
            variants: corpus.variants_in(run.pages),
        };
        let today = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Self {
            command,
            command_line: command_line(),
            machine: BenchMachine::look(),
            date: date(today),
            run,
            bars: bars.to_vec(),
            corpora: corpora.iter().map(facts).collect(),
            rows: Vec::new(),
            quotients: Vec::new(),
            means: Vec::new(),
            scaling: Vec::new(),
            stages: Vec::new(),
            crossing: None,
            left_out: Vec::new(),
        }
    }

    /// Returns the document with its command and machine as JSON.
    ///
    /// # Errors
    /// None in practice: there is nothing in it that JSON cannot express.
    pub fn to_json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Whole<'a> {
            command: &'static str,
            machine: &'a BenchMachine,
            #[serde(flatten)]
            document: &'a Document,
        }
        serde_json::to_string_pretty(&Whole { command: self.command, machine: &self.machine, document: self })
    }

    /// Adds the rows of engines that were measured together, and their quotients by the bars among them.
    pub(crate) fn add_rows(&mut self, corpus: &str, same_filled: usize, timed: &[Timed<'_>]) -> Result<()> {
        let held = timed.iter().map(|timed| timed.held_bytes as f64).collect::<Vec<f64>>();
        for (i, engine) in timed.iter().enumerate() {
            let len_bytes = engine.pages * PAGE_SIZE;
            let (name, threads) = (engine.engine.name().to_owned(), engine.engine.threads());
            for bar in &self.bars {
                let Some(at) = timed.iter().position(|timed| timed.engine.name() == *bar) else { continue };
                self.quotients.push(Quotient {
                    corpus: corpus.to_owned(),
                    engine: name.clone(),
                    threads,
                    bar,
                    bar_threads: timed[at].engine.threads(),
                    ratio: held[at] / held[i],
                    compress: paired_quotient(&timed[at].compress_s, &engine.compress_s),
                    decompress: paired_quotient(&timed[at].decompress_s, &engine.decompress_s),
                });
            }
            self.rows.push(Row {
                corpus: corpus.to_owned(),
                engine: name,
                threads,
                pages: engine.verified_pages,
                same_filled,
                ratio: (engine.verified_pages * PAGE_SIZE) as f64 / held[i],
                compress_gbps: gbps(len_bytes, &engine.compress_s),
                decompress_gbps: gbps(len_bytes, &engine.decompress_s),
                note: engine.engine.note(),
            });
        }
        Ok(())
    }

    /// Ends the rows: drops the bars that did not run, and computes the means.
    pub(crate) fn finish_rows(&mut self) {
        self.bars.retain(|bar| self.rows.iter().any(|row| row.engine == **bar));
        self.means = means(&self.rows, &self.quotients, &self.bars);
    }

    /// The quotients of a row.
    pub(crate) fn quotient<'a>(&'a self, row: &Row, bar: &str) -> Option<&'a Quotient> {
        let same = |quotient: &&Quotient| {
            (&quotient.corpus, &quotient.engine, quotient.threads) == (&row.corpus, &row.engine, row.threads)
                && quotient.bar == bar
        };
        self.quotients.iter().find(same)
    }
}

impl Row {
    pub(crate) fn gbps(&self, direction: Direction) -> f64 {
        direction.pick(self.compress_gbps, self.decompress_gbps)
    }
}

impl Quotient {
    pub(crate) fn speed(&self, direction: Direction) -> f64 {
        direction.pick(self.compress, self.decompress)
    }
}

impl Mean {
    pub(crate) fn gbps(&self, direction: Direction) -> f64 {
        direction.pick(self.compress_gbps, self.decompress_gbps)
    }

    pub(crate) fn quotient(&self, bar: &str) -> Option<&Quotient> {
        self.quotients.iter().find(|quotient| quotient.bar == bar)
    }

    /// The mean as a row, to be printed like one.
    pub(crate) fn as_row(&self) -> Row {
        Row {
            corpus: String::new(),
            engine: self.engine.clone(),
            threads: self.threads,
            pages: 0,
            same_filled: 0,
            ratio: self.ratio,
            compress_gbps: self.compress_gbps,
            decompress_gbps: self.decompress_gbps,
            note: String::new(),
        }
    }
}

impl Point {
    pub(crate) fn of(timed: &Timed<'_>, along: Along) -> Self {
        let len_bytes = timed.pages * PAGE_SIZE;
        Self {
            along,
            engine: timed.engine.name().to_owned(),
            threads: timed.engine.threads(),
            pages: timed.pages,
            compress_gbps: gbps(len_bytes, &timed.compress_s),
            decompress_gbps: gbps(len_bytes, &timed.decompress_s),
        }
    }

    pub(crate) fn gbps(&self, direction: Direction) -> f64 {
        direction.pick(self.compress_gbps, self.decompress_gbps)
    }
}

/// Geometric means over the corpora, one for each engine and number of threads, in the order of the rows.
pub(crate) fn means(rows: &[Row], quotients: &[Quotient], bars: &[&'static str]) -> Vec<Mean> {
    let mut keys: Vec<(&str, usize)> = Vec::new();
    for row in rows {
        let key = (row.engine.as_str(), row.threads);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let mean = |(engine, threads): (&str, usize)| {
        let of_engine: Vec<&Row> =
            rows.iter().filter(|row| (row.engine.as_str(), row.threads) == (engine, threads)).collect();
        let mean_of = |value: fn(&Row) -> f64| geometric_mean(of_engine.iter().map(|row| value(row)));
        let against = |bar: &&'static str| {
            let against: Vec<&Quotient> = quotients
                .iter()
                .filter(|q| (q.engine.as_str(), q.threads) == (engine, threads) && q.bar == *bar)
                .collect();
            let mean_of = |value: fn(&Quotient) -> f64| geometric_mean(against.iter().map(|quotient| value(quotient)));
            let first = against.first()?;
            Some(Quotient {
                corpus: String::new(),
                ratio: mean_of(|quotient| quotient.ratio),
                compress: mean_of(|quotient| quotient.compress),
                decompress: mean_of(|quotient| quotient.decompress),
                ..(*first).clone()
            })
        };
        Mean {
            engine: engine.to_owned(),
            threads,
            corpora: of_engine.len(),
            ratio: mean_of(|row| row.ratio),
            compress_gbps: mean_of(|row| row.compress_gbps),
            decompress_gbps: mean_of(|row| row.decompress_gbps),
            quotients: bars.iter().filter_map(against).collect(),
        }
    };
    keys.into_iter().map(mean).collect()
}

/// The command as it was given.
fn command_line() -> String {
    let quoted = |arg: &str| match arg.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c)) {
        true if !arg.is_empty() => arg.to_owned(),
        _ => format!("'{}'", arg.replace('\'', r"'\''")),
    };
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    let program = std::path::Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let args = args.map(|arg| quoted(&arg.to_string_lossy()));
    std::iter::once(program).chain(args).collect::<Vec<_>>().join(" ")
}

/// The day of a time in seconds since 1970, in UTC.
fn date(unix_s: u64) -> String {
    // Days counted from 1 March of the year 0, so that the leap day is a year's last; eras are 400 years.
    let days = unix_s / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let day = 86_400;
        assert_eq!([0, day - 1, 59 * day].map(date), ["1970-01-01", "1970-01-01", "1970-03-01"]);
        assert_eq!([951_782_400, 951_868_800, 1_798_761_599].map(date), ["2000-02-29", "2000-03-01", "2026-12-31"]);
    }

    #[test]
    fn means_are_geometric_and_by_engine_and_threads() {
        let row = |corpus: &str, threads, ratio: f64| Row {
            corpus: corpus.into(),
            engine: "e".into(),
            threads,
            pages: 1,
            same_filled: 0,
            ratio,
            compress_gbps: 10.0 * ratio,
            decompress_gbps: 1.0,
            note: String::new(),
        };
        let quotient = |threads, compress| Quotient {
            corpus: "a".into(),
            engine: "e".into(),
            threads,
            bar: "b",
            bar_threads: 1,
            ratio: 1.0,
            compress,
            decompress: 3.0,
        };
        let rows = [row("a", 1, 2.0), row("a", 2, 5.0), row("b", 1, 8.0)];
        let found = means(&rows, &[quotient(1, 1.0), quotient(2, 7.0), quotient(1, 4.0)], &["b"]);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert_eq!(found.iter().map(|mean| (mean.threads, mean.corpora)).collect::<Vec<_>>(), [(1, 2), (2, 1)]);
        assert!(close(found[0].ratio, 4.0) && close(found[0].compress_gbps, 40.0));
        assert!(close(found[0].quotients[0].compress, 2.0) && close(found[1].quotients[0].compress, 7.0));
    }
}
