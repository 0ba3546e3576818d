//! The systemd units: their options are those of the tool, and systemd takes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{BINARY, folder, run};

/// The units of the package.
fn units() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/systemd");
    let mut units: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    units.sort();
    units
}

#[test]
fn the_commands_of_the_units_are_understood() {
    let folder = folder();
    let units = units();
    assert_eq!(units.len(), 3);
    for unit in units {
        let text = fs::read_to_string(&unit).unwrap();
        let command = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/trueno-zram ")).unwrap();
        let mut words: Vec<&str> = command.split(' ').filter(|word| !word.starts_with('$')).collect();
        // An option that is not known is found before the help is printed.
        words.push("--help");
        let help = run(folder.path(), &words).ok();
        assert!(!help.stdout.is_empty(), "{}", unit.display());
    }
    run(folder.path(), &["serve", "--unknown", "--help"]).refuses(&["--unknown"]);
}

/// systemd reads the units, where it is installed: with the program that was built in place of the installed one.
#[test]
fn systemd_takes_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        println!("there is no systemd-analyze: the units were not verified");
        return;
    }
    let folder = folder();
    let mut names = Vec::new();
    for unit in units() {
        let name = unit.file_name().unwrap().to_str().unwrap().replace("@.", "@ram.");
        let text = fs::read_to_string(&unit).unwrap().replace("/usr/bin/trueno-zram", BINARY);
        let without_manual = text.lines().filter(|line| !line.starts_with("Documentation=")).collect::<Vec<_>>();
        fs::write(folder.path().join(&name), without_manual.join("\n")).unwrap();
        names.push(folder.path().join(name));
    }
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&names).output().unwrap();
    let stderr = String::from_utf8(verified.stderr).unwrap();
    let about_units: Vec<_> = stderr.lines().filter(|line| line.contains("trueno-zram")).collect();
    assert!(verified.status.success() && about_units.is_empty(), "{stderr}");
}
