//! Compares what the interpreter counts with the committed figures.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Asserts that nothing costs more than `limit` allows, given the committed figure. The file `tests/FILE` has a line
/// per name: warp instructions and shared-memory wavefronts per page. `UPDATE_COSTS=1` writes it anew.
pub(crate) fn assert_no_rise(file: &str, title: &str, costs: &BTreeMap<String, [f64; 2]>, limit: impl Fn(f64) -> f64) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    if std::env::var_os("UPDATE_COSTS").is_some() {
        let mut text =
            format!("# {title}: warp instructions and shared-memory wavefronts per page, by the interpreter\n");
        for (name, [instructions, wavefronts]) in costs {
            writeln!(text, "{name}: {instructions:.0} {wavefronts:.0}").expect("writing to a string cannot fail");
        }
        std::fs::write(&path, text).expect("the file can be written");
    }
    let committed = std::fs::read_to_string(&path).expect("the committed figures exist; UPDATE_COSTS=1 makes them");
    let committed: BTreeMap<&str, Vec<f64>> = committed
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(": "))
        .map(|(name, figures)| (name, figures.split(' ').map(|figure| figure.parse().expect("a number")).collect()))
        .collect();
    for (name, now) in costs {
        let then = committed.get(name.as_str()).unwrap_or_else(|| panic!("{name} has no committed figures"));
        for ((now, then), what) in now.iter().zip(then).zip(["instructions", "wavefronts"]) {
            assert!(*now <= limit(*then), "{name}: {now:.0} {what} per page, {then} committed");
        }
    }
}
