//! Medians, means and quotients of timings.

use std::time::Duration;

/// The median; of an even number of values, the upper of the middle two.
///
/// ```
/// assert_eq!(trueno_bench::timing::median(&[9.0, 1.0, 2.0]), 2.0);
/// ```
///
/// # Panics
/// If there are no values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The geometric mean; NaN for no values.
///
/// ```
/// assert!((trueno_bench::timing::geometric_mean([4.0, 9.0]) - 6.0).abs() < 1e-12);
/// ```
#[must_use]
pub fn geometric_mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0.0), |(sum, count), value| (sum + value.ln(), count + 1.0));
    (sum / count).exp()
}

/// Gigabytes (10^9 bytes) per second for `len_bytes`, by the median of the timings.
///
/// ```
/// assert_eq!(trueno_bench::timing::gbps(2_000_000_000, &[0.5, 1.0, 7.0]), 2.0);
/// ```
#[must_use]
pub fn gbps(len_bytes: usize, seconds: &[f64]) -> f64 {
    len_bytes as f64 / median(seconds) / 1e9
}

/// The speed relative to the bar: the median over the rounds. Both timings of a round are taken one after the other, so
/// the quotient holds on a machine whose speed changes.
///
/// ```
/// let (bar_s, engine_s) = ([1.0, 8.0, 2.0], [0.5, 4.0, 1.0]);
/// assert_eq!(trueno_bench::timing::paired_quotient(&bar_s, &engine_s), 2.0);
/// ```
#[must_use]
pub fn paired_quotient(bar_s: &[f64], engine_s: &[f64]) -> f64 {
    median(&bar_s.iter().zip(engine_s).map(|(bar, engine)| bar / engine).collect::<Vec<_>>())
}

/// Repeats work that times itself until it has taken `least` in all. Returns the seconds of one pass.
///
/// ```
/// use std::time::Duration;
/// let mut passes = 0;
/// let mut work = || { passes += 1; Ok::<_, String>(Duration::from_millis(4)) };
/// assert_eq!(trueno_bench::timing::repeat(Duration::from_millis(10), &mut work), Ok(0.004));
/// assert_eq!(passes, 3);
/// ```
///
/// # Errors
/// The first error that the work returns.
pub fn repeat<E>(least: Duration, mut work: impl FnMut() -> Result<Duration, E>) -> Result<f64, E> {
    let (mut taken, mut passes) = (Duration::ZERO, 0.0);
    // Work that takes no time at all on the clock must end too.
    while passes == 0.0 || (taken < least && passes < 1e6) {
        taken += work()?;
        passes += 1.0;
    }
    // A clock too coarse for the work must not make it infinitely fast.
    Ok(taken.max(Duration::from_nanos(1)).as_secs_f64() / passes)
}
