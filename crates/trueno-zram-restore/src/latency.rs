//! Latencies of faults: histograms of constant size that threads share without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use trueno_zram_archive::{GROUP_PAGES, Pages};

use crate::unit_states::AtomicBitSet;

/// Buckets per power of two: a bound is at most a 16th above the latency.
const PER_POWER: usize = 1 << PER_POWER_BITS;
const PER_POWER_BITS: u32 = 4;
/// Latencies from 2^36 ns on, over a minute, share the last bucket.
const POWERS: usize = 36;
const BUCKETS: usize = PER_POWER * (POWERS - PER_POWER_BITS as usize + 1);

/// Returns the bucket of a latency. Below 16 ns each has its own; from there on, each power of two is divided into 16.
fn bucket_of(ns: u64) -> usize {
    let shift = ns.checked_ilog2().unwrap_or(0).saturating_sub(PER_POWER_BITS);
    let within = usize::try_from(ns >> shift).expect("less than 32");
    (shift as usize * PER_POWER + within).min(BUCKETS - 1)
}

/// Returns the highest latency of a bucket.
fn bound_of(bucket: usize) -> u64 {
    let shift = (bucket / PER_POWER).saturating_sub(1);
    let within = (bucket - shift * PER_POWER) as u64;
    ((within + 1) << shift) - 1
}

/// A histogram that many threads add to.
#[derive(Debug)]
struct AtomicHistogram([AtomicU64; BUCKETS]);

impl Default for AtomicHistogram {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl AtomicHistogram {
    fn record(&self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.0[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
    }

    fn snapshot(&self) -> LatencyHistogram {
        let faults: Vec<u64> = self.0.iter().map(|faults| faults.load(Ordering::Relaxed)).collect();
        let used = faults.iter().rposition(|faults| *faults > 0).map_or(0, |last| last + 1);
        LatencyHistogram { faults: faults[..used].to_vec() }
    }
}

/// The touch of a page, seen from its group of 1,024 pages of the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// The VM or the process has touched no other page of the group.
    First,
    Later,
}

/// The groups of which a VM or a process has touched a page.
#[derive(Debug)]
pub(crate) struct TouchedGroups(AtomicBitSet);

impl TouchedGroups {
    pub(crate) fn of(source: &dyn Pages) -> Self {
        let groups = source.page_count().div_ceil(GROUP_PAGES as u64);
        Self(AtomicBitSet::new(usize::try_from(groups).unwrap_or(usize::MAX)))
    }

    /// Records the touch of a page of the source.
    pub(crate) fn touch(&self, page: u64) -> Touch {
        let group = usize::try_from(page / GROUP_PAGES as u64).expect("a group of the source");
        if self.0.insert(group) { Touch::First } else { Touch::Later }
    }
}

/// Latencies that handlers add to.
#[derive(Debug, Default)]
pub(crate) struct LatencyRecorder {
    first: AtomicHistogram,
    later: AtomicHistogram,
}

impl LatencyRecorder {
    pub(crate) fn record(&self, touch: Touch, latency: Duration) {
        match touch {
            Touch::First => self.first.record(latency),
            Touch::Later => self.later.record(latency),
        }
    }

    pub(crate) fn snapshot(&self) -> FaultLatencies {
        FaultLatencies { first: self.first.snapshot(), later: self.later.snapshot() }
    }
}

/// The latencies of faults: from the moment that the handler reads a fault until its page is there.
///
/// The first touch of a group of 1,024 pages of an archive finds the group's index, later ones do not: they are shown apart.
///
/// ```
/// use trueno_zram_restore::{Image, LazyRestore, RestoreOptions};
/// let restore = LazyRestore::new(Image::new(vec![[7; 4096]; 32]), RestoreOptions::default());
/// let latencies = restore.latencies(); // no VM has connected yet
/// assert_eq!((latencies.first.faults(), latencies.later.percentile_ns(50)), (0, None));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultLatencies {
    /// Of a VM's or process's first fault in each group.
    pub first: LatencyHistogram,
    /// Of all other faults.
    pub later: LatencyHistogram,
}

/// A number of faults per latency: buckets of 1 ns up to 16 ns, then 16 buckets per power of two. [`FaultLatencies`] has an example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyHistogram {
    /// Faults per bucket, up to the last one that has any.
    faults: Vec<u64>,
}

impl LatencyHistogram {
    /// Returns the number of faults.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.faults.iter().sum()
    }

    /// Returns the buckets that have faults, in order: the highest latency of each in nanoseconds, and its faults.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + Clone {
        self.faults.iter().enumerate().filter(|(_, faults)| **faults > 0).map(|(at, faults)| (bound_of(at), *faults))
    }

    /// Returns the latency in nanoseconds that this percentage of the faults did not exceed, up to a 16th too high; `None` without
    /// faults. 100 is the highest one.
    #[must_use]
    pub fn percentile_ns(&self, percent: u64) -> Option<u64> {
        let wanted = (self.faults() * percent.min(100)).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.buckets().find(|(_, faults)| {
            seen += faults;
            seen >= wanted
        });
        found.map(|(bound, _)| bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_are_narrow() {
        let mut last = None;
        for ns in (0..70_000).chain((17..36).map(|power| 1 << power)) {
            let bucket = bucket_of(ns);
            let bound = bound_of(bucket);
            assert!(bound >= ns && bound - ns <= ns / 16, "{ns} ns in a bucket up to {bound}");
            assert_eq!(bucket_of(bound), bucket, "{ns}");
            assert!(bucket_of(bound + 1) == bucket + 1 || bucket == BUCKETS - 1, "{ns}");
            assert!(last.is_none_or(|last| last <= bucket), "{ns}");
            last = Some(bucket);
        }
        assert_eq!([bucket_of(1 << 36), bucket_of(u64::MAX)], [BUCKETS - 1; 2]);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_latencies() {
        let recorder = LatencyRecorder::default();
        for us in 1..=100 {
            recorder.record(Touch::Later, Duration::from_micros(us));
        }
        recorder.record(Touch::First, Duration::from_nanos(7));
        let FaultLatencies { first, later } = recorder.snapshot();
        assert_eq!((later.faults(), first.faults(), first.percentile_ns(1)), (100, 1, Some(7)));
        for percent in [1, 50, 90, 99, 100] {
            let (found, exact) = (later.percentile_ns(percent).unwrap(), percent * 1000);
            assert!((exact..=exact + exact / 16).contains(&found), "{percent}: {found}");
        }
        assert_eq!(later.percentile_ns(0), later.percentile_ns(1));
        assert_eq!(later.buckets().map(|(_, faults)| faults).sum::<u64>(), 100);
        assert_eq!(LatencyHistogram::default().percentile_ns(50), None);
    }

    #[test]
    fn threads_add_to_one_histogram() {
        let recorder = LatencyRecorder::default();
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| (0..1000).for_each(|ns| recorder.record(Touch::Later, Duration::from_nanos(ns))));
            }
        });
        assert_eq!(recorder.snapshot().later.faults(), 4000);
    }
}
