//! Numbers as people read them.

/// `1,234,567`.
pub(crate) fn count(count: usize) -> String {
    let digits = count.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// `1 round`, `2,000 pages`.
pub(crate) fn counted(number: usize, one: &str, more: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { more })
}

pub(crate) fn pages(pages: usize) -> String {
    counted(pages, "page", "pages")
}

pub(crate) fn threads(threads: usize) -> String {
    counted(threads, "thread", "threads")
}

/// Three significant digits.
pub(crate) fn figure(value: f64) -> String {
    let decimals = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped_by_three() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1, 1000].map(pages), ["0 pages", "1 page", "1,000 pages"]);
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!([0.876, 5.0, 12.34, 347.8].map(figure), ["0.88", "5.00", "12.3", "348"]);
    }
}
