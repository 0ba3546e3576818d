//! Names from files, folders and arguments that would steer a terminal: they are shown with escapes, and JSON has them as
//! they are.

use std::fs;
use std::path::Path;

use crate::hostile::{archive, map_of};
use crate::support::{Run, folder, image, run};

/// CSI as one byte, a right-to-left override, an isolate, marks of direction, separators of lines, DEL, ESC, a line break.
const NAME: &str = "a\u{9b}31m\u{202e}gpj\u{2066}\u{200f}\u{61c}\u{2028}\u{7f}\u{1b}[2J\n#b";

/// Asserts that nothing in the output would steer a terminal, but the breaks between its lines.
#[track_caller]
fn shown(ran: Run) -> Run {
    let stdout = std::str::from_utf8(&ran.stdout).unwrap();
    for text in [stdout, &ran.stderr] {
        let bad = |c: &char| match c {
            '\n' => false,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
            c => c.is_control(),
        };
        assert_eq!(text.chars().find(bad), None, "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with('#')), "the line break of the name is escaped: {text:?}");
    }
    ran
}

fn show(folder: &Path, args: &[&str]) -> Run {
    shown(run(folder, args))
}

#[test]
fn names_of_files_do_not_steer_the_terminal() {
    let folder = folder();
    let folder = folder.path();
    fs::write(folder.join(NAME), image(40)).unwrap();
    fs::write(folder.join("other"), image(41)).unwrap();
    let archive = format!("{NAME}.lz4");
    let delta = format!("{NAME}.tzd");
    let text = show(folder, &["compress", "-v", NAME]).ok();
    assert!(text.stderr.contains("a\\u{9b}31m\\u{202e}gpj"), "{}", text.stderr);
    show(folder, &["compress", NAME]).fails(&["\\n#b.lz4"]);
    show(folder, &["compress", "-v", "--base", &archive, NAME]).ok();
    for file in [NAME, &archive, &delta] {
        let text = show(folder, &["inspect", file]).ok();
        assert!(String::from_utf8(text.stdout).unwrap().contains("\\u{202e}gpj"), "{file:?}");
        let object = &show(folder, &["inspect", "--json", file]).ok().json()[0];
        assert_eq!(object["file"], file);
    }
    let object = &show(folder, &["inspect", "--json", &delta]).ok().json()[0];
    assert_eq!(object["base"], archive, "the base as the delta records it");
    for command in ["test", "decompress", "extract", "inspect"] {
        let name = format!("missing{NAME}");
        let pages: &[&str] = if command == "extract" { &["--pages", "0", "-o", "out"] } else { &[] };
        let ran = show(folder, &[&[command, "--json", &name], pages].concat());
        assert_eq!((ran.code, &ran.json()[0]["file"]), (Some(1), &name.as_str().into()), "{command}");
    }
    fs::remove_file(folder.join(&archive)).unwrap();
    show(folder, &["test", &delta]).fails(&["\\u{202e}gpj"]);
}

#[test]
fn arguments_do_not_steer_the_terminal() {
    let folder = folder();
    show(folder.path(), &["inspect", &format!("--unknown{}", NAME.replace('\n', ""))]).refuses(&["\\u{9b}31m"]);
    show(folder.path(), &["extract", "x", "--pages", &NAME.replace('\n', "")]).refuses(&["\\u{202e}"]);
}

#[test]
fn names_in_sections_do_not_steer_the_terminal() {
    let folder = folder();
    fs::write(folder.path().join("snapshot.lz4"), archive(1, &[], &map_of(NAME, NAME))).unwrap();
    let text = show(folder.path(), &["inspect", "snapshot.lz4"]).ok();
    assert_eq!(String::from_utf8(text.stdout).unwrap().matches("\\u{202e}gpj").count(), 2);
    let object = &show(folder.path(), &["inspect", "--json", "snapshot.lz4"]).ok().json()[0];
    let named = object.to_string();
    assert_eq!(named.matches(&serde_json::to_string(NAME).unwrap()).count(), 2, "{named}");
}
