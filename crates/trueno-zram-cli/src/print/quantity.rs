//! Formats numbers for people: bytes, counts, shares, times.

use std::time::Duration;

/// Formats bytes: `1.5 GiB`; below 1 KiB, `512 B`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let (mut value, mut unit) = (count as f64 / 1024.0, 0);
    // 1024.0 would be 1.0 of the next unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats a count: `1,234,567`.
pub(crate) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of pages: `1 page`, `2,000 pages`.
pub(crate) fn pages(pages: u64) -> String {
    if pages == 1 { "1 page".into() } else { format!("{} pages", count(pages)) }
}

/// Formats a number of passes: `1 pass`, `2,000 passes`.
pub(crate) fn passes(passes: u64) -> String {
    if passes == 1 { "1 pass".into() } else { format!("{} passes", count(passes)) }
}

/// Formats a part of a whole: `12.3 %`. A part above 0 is never shown as `0.0 %`.
pub(crate) fn share(part: u64, whole: u64) -> String {
    let percent = if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 };
    if part > 0 && percent < 0.05 { "<0.1 %".into() } else { format!("{percent:.1} %") }
}

/// Formats a duration: `1.23 s`, `4.5 ms`.
pub(crate) fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds >= 1.0 { format!("{seconds:.2} s") } else { format!("{:.1} ms", seconds * 1e3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_change_their_unit_where_they_would_show_1024() {
        let shown = [0, 1023, 1024, 1536, 1_048_524, 1_048_525, 1 << 40, u64::MAX].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1023.9 KiB", "1.0 MiB", "1.0 TiB", "16.0 EiB"]);
    }

    #[test]
    fn counts_are_grouped_by_three() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1, 1000].map(pages), ["0 pages", "1 page", "1,000 pages"]);
    }

    #[test]
    fn a_share_that_is_there_is_never_zero() {
        assert_eq!(
            [(0, 0), (0, 9), (1, 10_000), (1, 8), (8, 8)].map(|(part, whole)| share(part, whole)),
            ["0.0 %", "0.0 %", "<0.1 %", "12.5 %", "100.0 %"]
        );
    }
}
