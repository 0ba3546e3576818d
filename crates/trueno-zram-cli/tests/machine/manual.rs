//! `completions` and `man`.

use std::fs;

use crate::support::{folder, names, run};

#[test]
fn every_shell_has_its_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(folder().path(), &["completions", shell]).ok();
        let script = String::from_utf8(script.stdout).unwrap();
        assert!(script.contains("snapshot") && script.contains("all-private"), "{shell}");
    }
    run(folder().path(), &["completions", "csh"]).refuses(&["csh"]);
}

#[test]
fn there_is_a_page_for_the_tool_and_one_for_each_command() {
    let folder = folder();
    run(folder.path(), &["man", "--dir", "pages"]).ok();
    let pages = folder.path().join("pages");
    let names = names(&pages);
    assert!(names.contains(&"trueno-zram.1".into()) && names.contains(&"trueno-zram-snapshot.1".into()), "{names:?}");
    assert!(names.contains(&"trueno-zram-man.1".into()), "man is a command like others");
    let whole = fs::read_to_string(pages.join("trueno-zram.1")).unwrap();
    for name in names.iter().filter(|name| *name != "trueno-zram.1") {
        let listed = name.trim_end_matches(".1").replace('-', "\\-");
        assert!(whole.contains(&listed), "{listed} is named in the page of the tool");
    }
    assert!(whole.contains("EXIT STATUS"));
    let printed = run(folder.path(), &["man"]).ok();
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), whole);
}

#[test]
fn documents_are_not_json() {
    for args in [&["man", "--json"][..], &["completions", "bash", "--json"]] {
        let refused = run(folder().path(), args);
        assert!(refused.stdout.is_empty());
        refused.refuses(&[args[0], "--json"]);
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = folder();
    fs::write(folder.path().join("file"), "").unwrap();
    run(folder.path(), &["man", "--dir", "file/pages"]).fails(&["file/pages"]);
}

#[test]
fn the_help_lists_every_command() {
    let help = String::from_utf8(run(folder().path(), &["--help"]).ok().stdout).unwrap();
    for command in [
        "compress",
        "decompress",
        "test",
        "extract",
        "inspect",
        "info",
        "bench",
        "selftest",
        "snapshot",
        "completions",
        "man",
    ] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(&format!("{command} "))), "{command} in {help}");
    }
}
