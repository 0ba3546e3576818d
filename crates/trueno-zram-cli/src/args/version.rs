//! `--version --verbose`: the version, and what the binary was built from.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::print::stdout;

/// Returns `true` if the arguments, the program's name first, ask for the long version and nothing else.
pub(crate) fn is_asked_for(args: &[OsString]) -> bool {
    let Some(args) = args.get(1..) else { return false };
    let is = |arg: &OsString, any: &[&str]| any.iter().any(|one| arg == one);
    let (version, verbose, both) = (["--version", "-V"], ["--verbose", "-v"], ["-vV", "-Vv"]);
    let all_known = args.iter().all(|arg| is(arg, &version) || is(arg, &verbose) || is(arg, &both));
    let has = |any: &[&str]| args.iter().any(|arg| is(arg, any) || is(arg, &both));
    all_known && has(&version) && has(&verbose)
}

/// Prints the long version.
pub(crate) fn print() -> ExitCode {
    let written = stdout::print(|out| out.write_all(verbose().as_bytes()));
    written.map_or_else(|failure| failure.report(), |()| ExitCode::SUCCESS)
}

/// The text: the line of `--version`, then one line per fact.
fn verbose() -> String {
    let facts = [
        ("commit", env!("TRUENO_ZRAM_BUILD_COMMIT")),
        ("target", env!("TRUENO_ZRAM_BUILD_TARGET")),
        ("linking", env!("TRUENO_ZRAM_BUILD_LINKING")),
        ("profile", env!("TRUENO_ZRAM_BUILD_PROFILE")),
    ];
    let mut text = format!("trueno-zram {}\n", env!("CARGO_PKG_VERSION"));
    for (name, value) in facts {
        text.push_str(&format!("{name}: {value}\n"));
    }
    text.push_str(&format!("features: {}\n", features()));
    text
}

/// The optional features of the tool and of the library in it.
fn features() -> String {
    let of_tool = env!("TRUENO_ZRAM_BUILD_FEATURES").split_whitespace();
    let mut all: Vec<_> = of_tool.chain(trueno_zram_core::FEATURES.iter().copied()).collect();
    all.sort_unstable();
    all.dedup();
    if all.is_empty() { "none".to_owned() } else { all.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_both_flags_together_ask_for_it() {
        let asked = |line: &str| is_asked_for(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in ["tz --version -v", "tz -v --version", "tz -vV", "tz -V --verbose"] {
            assert!(asked(line), "{line}");
        }
        for line in ["tz", "tz --version", "tz -v", "tz --version -v file", "tz compress --version -v"] {
            assert!(!asked(line), "{line}");
        }
        assert!(!is_asked_for(&[]));
    }

    #[test]
    fn every_fact_has_a_value() {
        let text = verbose();
        let lines: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[4].starts_with("features: gpu"), "the library's features are the tool's: {text}");
        assert!(lines.iter().all(|line| line.split_once(": ").is_some_and(|(_, value)| !value.is_empty())), "{text}");
    }
}
