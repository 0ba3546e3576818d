//! Statistics as OpenMetrics text, for Prometheus and others.

mod http;

use std::fmt::Write as _;

use crate::control::ExportStat;

pub use http::{MetricsLimits, MetricsServer};

/// The media type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetricKind {
    /// A value that rises and falls.
    Gauge,
    /// A count since the start, with the suffix `_total` in samples.
    Counter,
}

/// A metric: its name, its unit if the name ends in one, its description, and its value for an export.
struct Metric {
    name: &'static str,
    unit: &'static str,
    kind: MetricKind,
    help: &'static str,
    value: fn(&ExportStat) -> u64,
}

const fn metric(
    name: &'static str,
    unit: &'static str,
    kind: MetricKind,
    help: &'static str,
    value: fn(&ExportStat) -> u64,
) -> Metric {
    Metric { name, unit, kind, help, value }
}

/// All metrics. Their names are part of the interface: dashboards and alerts have them.
const METRICS: [Metric; 22] = {
    use MetricKind::{Counter, Gauge};
    [
        metric("trueno_zram_size_bytes", "bytes", Gauge, "Length of the device", |x| x.stats.size_bytes),
        metric("trueno_zram_max_size_bytes", "bytes", Gauge, "Length to which it can grow", |x| x.stats.max_size_bytes),
        metric("trueno_zram_table_bytes", "bytes", Gauge, "The table of pages", |x| x.stats.table_bytes),
        metric("trueno_zram_data_bytes", "bytes", Gauge, "Uncompressed length of the pages that are held", |x| {
            x.stats.mm.orig_data_size
        }),
        metric("trueno_zram_compressed_bytes", "bytes", Gauge, "Compressed length of the pages that are held", |x| {
            x.stats.mm.compr_data_size
        }),
        metric("trueno_zram_memory_bytes", "bytes", Gauge, "Memory taken for compressed pages", |x| {
            x.stats.mm.mem_used_total
        }),
        metric("trueno_zram_memory_peak_bytes", "bytes", Gauge, "The most memory taken so far", |x| {
            x.stats.mm.mem_used_max
        }),
        metric("trueno_zram_memory_limit_bytes", "bytes", Gauge, "The limit of that memory, 0 if there is none", |x| {
            x.stats.mm.mem_limit
        }),
        metric("trueno_zram_same_filled_pages", "pages", Gauge, "Pages that repeat one word", |x| {
            x.stats.mm.same_pages
        }),
        metric("trueno_zram_huge_pages", "pages", Gauge, "Pages that did not shrink", |x| x.stats.mm.huge_pages),
        metric("trueno_zram_compacted_pages", "pages", Counter, "Pages that compaction has moved", |x| {
            x.stats.mm.pages_compacted
        }),
        metric("trueno_zram_read_pages", "pages", Counter, "Pages read", |x| x.stats.pages_read),
        metric("trueno_zram_written_pages", "pages", Counter, "Pages written", |x| x.stats.pages_written),
        metric("trueno_zram_discarded_pages", "pages", Counter, "Pages discarded", |x| x.stats.io.notify_free),
        metric("trueno_zram_failed_reads", "", Counter, "Reads that failed", |x| x.stats.io.failed_reads),
        metric("trueno_zram_failed_writes", "", Counter, "Writes that failed", |x| x.stats.io.failed_writes),
        metric("trueno_zram_invalid_requests", "", Counter, "Requests beyond the end", |x| x.stats.io.invalid_io),
        metric("trueno_zram_recompressed_pages", "pages", Counter, "Idle pages that became shorter", |x| {
            x.stats.pages_recompressed
        }),
        metric("trueno_zram_recompress_saved_bytes", "bytes", Counter, "Compressed bytes saved thereby", |x| {
            x.stats.recompressed_bytes_saved
        }),
        metric("trueno_zram_recompress_tried_pages", "pages", Counter, "Idle pages compressed again", |x| {
            x.stats.recompress.pages_tried
        }),
        metric("trueno_zram_recompress_passes", "", Counter, "Passes of recompression that have ended", |x| {
            x.stats.recompress.passes
        }),
        metric(
            "trueno_zram_recompress_position_pages",
            "pages",
            Gauge,
            "Pages that the present pass has passed",
            |x| {
                if x.stats.recompress.running { x.stats.recompress.pages_passed } else { 0 }
            },
        ),
    ]
};

/// Returns the statistics of exports as OpenMetrics text. Each sample has the label `export`.
///
/// ```
/// let text = trueno_zram_serve::metrics::text(&[]);
/// assert!(text.contains("# TYPE trueno_zram_data_bytes gauge") && text.ends_with("# EOF\n"));
/// ```
#[must_use]
pub fn text(exports: &[ExportStat]) -> String {
    let mut text = String::new();
    for Metric { name, unit, kind, help, value } in &METRICS {
        let (kind, suffix) = match kind {
            MetricKind::Gauge => ("gauge", ""),
            MetricKind::Counter => ("counter", "_total"),
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "# TYPE {name} {kind}");
        if !unit.is_empty() {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(text, "# HELP {name} {help}.");
        for export in exports {
            let _ = writeln!(text, "{name}{suffix}{{export=\"{}\"}} {}", escaped(&export.name), value(export));
        }
    }
    text.push_str("# EOF\n");
    text
}

/// Returns a label's value as it is written between quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use trueno_zram_store::{Store, StoreHandle, StoreOptions};

    use super::*;

    fn stat(name: &str) -> ExportStat {
        let store = Arc::new(Store::create(&StoreOptions::new(1 << 20)).unwrap());
        StoreHandle::new(&store).unwrap().write_at(0, b"a page").unwrap();
        ExportStat { name: name.to_owned(), algorithm: "lz4".to_owned(), files: Vec::new(), stats: store.stats() }
    }

    #[test]
    fn the_text_keeps_to_the_rules_of_the_format() {
        let text = text(&[stat("ram"), stat("a\"b\\c\nd")]);
        assert!(text.ends_with("\n# EOF\n") && !text.contains("\n\n"));
        for Metric { name, unit, kind, .. } in &METRICS {
            assert!(unit.is_empty() || name.ends_with(&format!("_{unit}")), "{name}");
            assert!(!name.ends_with("_total"), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            let suffix = if *kind == MetricKind::Counter { "_total" } else { "" };
            let samples: Vec<_> = text.lines().filter(|line| line.starts_with(&format!("{name}{suffix}{{"))).collect();
            assert_eq!(samples.len(), 2, "{name}");
            assert!(samples[1].starts_with(&format!(r#"{name}{suffix}{{export="a\"b\\c\nd"}} "#)), "{}", samples[1]);
            assert!(samples.iter().all(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().is_ok()));
        }
        assert!(text.contains("trueno_zram_written_pages_total{export=\"ram\"} 1\n"));
        assert!(text.contains("trueno_zram_size_bytes{export=\"ram\"} 1048576\n"));
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
    }
}
