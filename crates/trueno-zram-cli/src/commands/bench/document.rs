//! Everything that a run found, as it is written to JSON and drawn in the report.

use std::num::NonZeroUsize;

use serde::Serialize;
use trueno_bench_engines::Corpus;
use trueno_bench_engines::timing::geometric_mean;

use crate::machine::Machine;

/// The engine that all others are measured against.
pub(crate) const BAR: &str = "c-lz4";

/// A run's findings.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    pub(crate) machine: Machine,
    pub(crate) command: String,
    /// The day, in UTC: `2026-01-31`.
    pub(crate) date: String,
    pub(crate) run: Run,
    pub(crate) corpora: Vec<CorpusFacts>,
    pub(crate) rows: Vec<Row>,
    pub(crate) quotients: Vec<Quotient>,
    /// Geometric means over the corpora.
    pub(crate) means: Vec<Mean>,
    pub(crate) scaling: Vec<Point>,
    pub(crate) stages: Vec<Stage>,
    /// From how many pages on the GPU is faster than the CPU; none where there is no GPU.
    pub(crate) crossing: Option<Crossing>,
    pub(crate) left_out: Vec<LeftOut>,
}

/// How it was measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) rounds: usize,
    /// Pages in a batch, at most.
    pub(crate) pages: usize,
    /// Threads of the rows that use all.
    pub(crate) threads: NonZeroUsize,
}

/// What a corpus is.
#[derive(Debug, Serialize)]
pub(crate) struct CorpusFacts {
    pub(crate) name: String,
    /// Whole pages of the file.
    pub(crate) pages_in_all: usize,
    pub(crate) same_filled: usize,
    /// Different pages that are measured: those that are not same-filled, or a sample of them.
    pub(crate) distinct_pages: usize,
    /// How often they are repeated in a batch.
    pub(crate) copies: usize,
}

impl CorpusFacts {
    pub(crate) fn of(corpus: &Corpus, at_most: usize) -> Self {
        Self {
            name: corpus.name.clone(),
            pages_in_all: corpus.pages_in_all,
            same_filled: corpus.same_filled,
            distinct_pages: corpus.pages.len(),
            copies: corpus.copies(at_most).len() / corpus.pages.len(),
        }
    }
}

/// What one engine did on one corpus. Speeds count uncompressed bytes, in 10^9 a second; same-filled pages are left out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) corpus: String,
    pub(crate) engine: String,
    pub(crate) threads: usize,
    /// Pages in the timed batch.
    pub(crate) pages: usize,
    /// Same-filled pages of the corpus, which were left out.
    pub(crate) same_filled: usize,
    pub(crate) ratio: f64,
    pub(crate) compress_gbps: f64,
    pub(crate) decompress_gbps: f64,
}

/// A row against C lz4's of the same rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Quotient {
    pub(crate) corpus: String,
    pub(crate) engine: String,
    pub(crate) threads: usize,
    /// Threads of C lz4.
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
    pub(crate) ratio_vs_c_lz4: f64,
    pub(crate) compress_vs_c_lz4: f64,
    pub(crate) decompress_vs_c_lz4: f64,
}

/// What grows along a series.
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

/// Which way pages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    Compress,
    Decompress,
}

impl Direction {
    pub(crate) const BOTH: [Self; 2] = [Self::Compress, Self::Decompress];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Compress => "compress",
            Self::Decompress => "decompress",
        }
    }
}

/// Where the time of a page goes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stage {
    pub(crate) engine: String,
    pub(crate) direction: Direction,
    pub(crate) threads: usize,
    pub(crate) pages: usize,
    pub(crate) stage: &'static str,
    pub(crate) ns_per_page: f64,
}

/// The smallest batch measured from which on the GPU was faster than the CPU with all threads; none if it never was.
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

impl Row {
    pub(crate) fn gbps(&self, direction: Direction) -> f64 {
        match direction {
            Direction::Compress => self.compress_gbps,
            Direction::Decompress => self.decompress_gbps,
        }
    }
}

impl Mean {
    pub(crate) fn gbps(&self, direction: Direction) -> f64 {
        match direction {
            Direction::Compress => self.compress_gbps,
            Direction::Decompress => self.decompress_gbps,
        }
    }

    pub(crate) fn vs_c_lz4(&self, direction: Direction) -> f64 {
        match direction {
            Direction::Compress => self.compress_vs_c_lz4,
            Direction::Decompress => self.decompress_vs_c_lz4,
        }
    }
}

impl Point {
    pub(crate) fn gbps(&self, direction: Direction) -> f64 {
        match direction {
            Direction::Compress => self.compress_gbps,
            Direction::Decompress => self.decompress_gbps,
        }
    }
}

/// The day of a time in seconds since 1970, in UTC.
pub(crate) fn date(unix_s: u64) -> String {
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

/// Geometric means over the corpora, an entry for each engine and number of threads, in the order of their rows.
pub(crate) fn means(rows: &[Row], quotients: &[Quotient]) -> Vec<Mean> {
    let mut keys: Vec<(&str, usize)> = Vec::new();
    for row in rows {
        let key = (row.engine.as_str(), row.threads);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let mean = |(engine, threads): (&str, usize)| {
        let of_rows = |value: fn(&Row) -> f64| {
            geometric_mean(rows.iter().filter(|row| row.engine == engine && row.threads == threads).map(value))
        };
        let of_quotients = |value: fn(&Quotient) -> f64| {
            let quotients = quotients.iter().filter(|row| row.engine == engine && row.threads == threads);
            geometric_mean(quotients.map(value))
        };
        Mean {
            engine: engine.to_owned(),
            threads,
            corpora: rows.iter().filter(|row| row.engine == engine && row.threads == threads).count(),
            ratio: of_rows(|row| row.ratio),
            compress_gbps: of_rows(|row| row.compress_gbps),
            decompress_gbps: of_rows(|row| row.decompress_gbps),
            ratio_vs_c_lz4: of_quotients(|quotient| quotient.ratio),
            compress_vs_c_lz4: of_quotients(|quotient| quotient.compress),
            decompress_vs_c_lz4: of_quotients(|quotient| quotient.decompress),
        }
    };
    keys.into_iter().map(mean).collect()
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
        };
        let quotient = |threads, compress| Quotient {
            corpus: "a".into(),
            engine: "e".into(),
            threads,
            bar_threads: 1,
            ratio: 1.0,
            compress,
            decompress: 3.0,
        };
        let rows = [row("a", 1, 2.0), row("a", 2, 5.0), row("b", 1, 8.0)];
        let found = means(&rows, &[quotient(1, 1.0), quotient(2, 7.0), quotient(1, 4.0)]);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert_eq!(found.iter().map(|mean| (mean.threads, mean.corpora)).collect::<Vec<_>>(), [(1, 2), (2, 1)]);
        assert!(close(found[0].ratio, 4.0) && close(found[0].compress_gbps, 40.0));
        assert!(close(found[0].compress_vs_c_lz4, 2.0) && close(found[1].compress_vs_c_lz4, 7.0));
    }
}
