//! `selftest`.

use serde_json::Value;

use crate::support::{folder, run};

#[test]
fn all_checks_pass_here() {
    let shown = run(folder().path(), &["selftest", "--json"]).ok();
    let report: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(report["passed"], true, "{report:#}");
    let names: Vec<_> =
        report["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    for part in ["cpu scalar: round trip", "archive: round trip", "interpreter: damage"] {
        assert!(names.contains(&part), "{part} is among {names:?}");
    }
    assert_eq!(report["gpu_left_out"].is_null(), names.iter().any(|name| name.starts_with("gpu ")));
}

#[test]
fn its_lines_fit_a_terminal_of_80_columns() {
    let shown = run(folder().path(), &["selftest", "--only", "cpu scalar"]).ok();
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn it_ends_with_its_verdict() {
    let shown = run(folder().path(), &["selftest", "--only", "cpu scalar"]).ok();
    let text = String::from_utf8(shown.stdout).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), 3, "{text}");
    assert!(text.lines().last().unwrap().starts_with("PASS"), "{text}");
    let silent = run(folder().path(), &["selftest", "--only", "cpu scalar", "--quiet"]).ok();
    assert!(silent.stdout.is_empty() && silent.stderr.is_empty());
    run(folder().path(), &["selftest", "--only", "no such check"]).refuses(&["no such check"]);
}
