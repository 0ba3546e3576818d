//! Latencies of faults: as JSON, and as lines for people.

use std::fmt;

use serde::Serialize;
use trueno_zram_restore::{FaultLatencies, LatencyHistogram};

use crate::print::quantity;

/// The latencies of some faults, for scripts.
#[derive(Debug, Serialize)]
pub(crate) struct LatencyObject {
    faults: u64,
    p50_ns: Option<u64>,
    p90_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: Option<u64>,
    buckets: Vec<LatencyBucket>,
}

/// Faults that took up to a latency, and longer than those of the bucket before.
#[derive(Debug, Serialize)]
struct LatencyBucket {
    up_to_ns: u64,
    faults: u64,
}

impl From<&LatencyHistogram> for LatencyObject {
    fn from(histogram: &LatencyHistogram) -> Self {
        let [p50_ns, p90_ns, p99_ns, max_ns] = [50, 90, 99, 100].map(|percent| histogram.percentile_ns(percent));
        let buckets = histogram.buckets().map(|(up_to_ns, faults)| LatencyBucket { up_to_ns, faults }).collect();
        Self { faults: histogram.faults(), p50_ns, p90_ns, p99_ns, max_ns, buckets }
    }
}

/// Lines that show latencies for people to read.
pub(crate) struct LatencyLines<'a> {
    pub(crate) name: &'a str,
    pub(crate) latencies: &'a FaultLatencies,
}

impl fmt::Display for LatencyLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, latencies } = self;
        for (what, histogram) in [("first touches of a group", &latencies.first), ("later touches", &latencies.later)] {
            let faults = quantity::count(histogram.faults());
            write!(f, "{name}: {what}: {faults} faults")?;
            for (percent, label) in [(50, "p50"), (90, "p90"), (99, "p99"), (100, "longest")] {
                if let Some(ns) = histogram.percentile_ns(percent) {
                    write!(f, ", {label} {:.1} us", ns as f64 / 1e3)?;
                }
            }
            writeln!(f)?;
            for (up_to_ns, faults) in histogram.buckets() {
                let share = quantity::share(faults, histogram.faults());
                writeln!(f, "  up to {:>10.1} us {:>10} {share:>8}", up_to_ns as f64 / 1e3, quantity::count(faults))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_shown_of_no_faults() {
        let latencies = FaultLatencies::default();
        let lines = LatencyLines { name: "a.lz4", latencies: &latencies }.to_string();
        assert_eq!(lines, "a.lz4: first touches of a group: 0 faults\na.lz4: later touches: 0 faults\n");
        let object = serde_json::to_value(LatencyObject::from(&latencies.later)).unwrap();
        assert_eq!((&object["faults"], &object["p99_ns"]), (&0.into(), &serde_json::Value::Null));
    }
}
