//! Puts two pictures side by side.

/// Joins lines in pairs. The right ones start in the same column.
pub(crate) fn beside(left: &[String], right: &[String], left_width: usize) -> Vec<String> {
    let lines = left.len().max(right.len());
    let at = |lines: &[String], line: usize| lines.get(line).cloned().unwrap_or_default();
    (0..lines)
        .map(|line| {
            let (left, right) = (at(left, line), at(right, line));
            let pad = " ".repeat(left_width.saturating_sub(super::columns(&left)));
            format!("{left}{pad}{right}").trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::beside;

    #[test]
    fn the_right_lines_begin_in_one_column() {
        let lines = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(beside(&lines(&["a", "█b"]), &lines(&["1", "2", "3"]), 4), ["a   1", "█b  2", "    3"]);
        assert_eq!(beside(&lines(&["a"]), &[], 4), ["a"]);
    }
}
