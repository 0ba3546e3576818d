//! Builds what is shipped: the stripped tool, its manual pages and completions, and an archive of all of it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{output_of, root, run_prepared};

/// The folder of everything that is made here. The Debian package takes its files from it.
const DIST: &str = "target/shipped";
const SHELLS: [(&str, &str); 3] = [("bash", "trueno-zram.bash"), ("zsh", "_trueno-zram"), ("fish", "trueno-zram.fish")];
/// Files of the repository that go into the archive.
const FILES: [&str; 5] = ["README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE-APACHE", "LICENSE-MIT"];
/// Files for those who run servers: units for systemd, and a dashboard for Grafana.
const DEPLOY: &str = "crates/trueno-zram-cli/deploy";
const MAINTAINER: &str = "The trueno-zram authors <maintainers@trueno-zram.invalid>";

/// Runs `xtask dist [TARGET]`, from anywhere in the repository.
pub(crate) fn run(target: Option<&str>) -> Result<(), String> {
    let root = &root();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    // Block devices of the machine are made of crates alone, and need the kernel's driver only where they are used.
    build.args(["build", "--locked", "--profile", "dist", "-p", "trueno-zram", "--features", "ublk"]).current_dir(root);
    let mut binary = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |built| root.join(built));
    if let Some(target) = target {
        build.args(["--target", target]);
        binary.push(target);
    }
    binary.push("dist/trueno-zram");
    run_prepared(&mut build)?;
    let dist = root.join(DIST);
    let man = empty_folder(dist.join("man"))?;
    run_prepared(Command::new(&binary).args(["man", "--dir"]).arg(&man))?;
    let completions = empty_folder(dist.join("completions"))?;
    for (shell, name) in SHELLS {
        write(&completions.join(name), &output_of(Command::new(&binary).args(["completions", shell]))?)?;
    }
    let changelog = read(&root.join("CHANGELOG.md"))?;
    let (version, date) = latest_release(&changelog).ok_or("CHANGELOG.md has no dated release")?;
    write(&dist.join("changelog.Debian"), debian_changelog(version, date)?.as_bytes())?;
    let packed = output_of(Command::new("gzip").args(["-9", "-n", "-c", "CHANGELOG.md"]).current_dir(root))?;
    write(&dist.join("changelog.gz"), &packed)?;
    let about = output_of(Command::new(&binary).args(["--version", "--verbose"]))?;
    let about = String::from_utf8(about).map_err(|error| error.to_string())?;
    let archive = archive(root, &dist, &binary, &about)?;
    println!("{about}{}\n{}", binary.display(), archive.display());
    Ok(())
}

/// Packs the tool and its files into `trueno-zram-VERSION-TARGET.tar.gz`.
fn archive(root: &Path, dist: &Path, binary: &Path, about: &str) -> Result<PathBuf, String> {
    let version = about.lines().next().and_then(|line| line.split(' ').nth(1)).ok_or("no version")?;
    let target = about.lines().find_map(|line| line.strip_prefix("target: ")).ok_or("no target")?;
    let name = format!("trueno-zram-{version}-{target}");
    let folder = empty_folder(dist.join(&name))?;
    copy(binary, &folder.join("trueno-zram"))?;
    for file in FILES {
        copy(&root.join(file), &folder.join(file))?;
    }
    for part in ["man", "completions"] {
        copy_all(&dist.join(part), &empty_folder(folder.join(part))?)?;
    }
    let units = empty_folder(folder.join("deploy/systemd"))?;
    copy_all(&root.join(DEPLOY).join("systemd"), &units)?;
    copy(&root.join(DEPLOY).join("grafana-dashboard.json"), &folder.join("deploy/grafana-dashboard.json"))?;
    let packed = dist.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-czf"]).arg(&packed);
    run_prepared(tar.arg("-C").arg(dist).arg(&name))?;
    Ok(packed)
}

/// The version and the date of the latest release: the first heading such as `## [0.1.0] - 2026-01-31`.
fn latest_release(changelog: &str) -> Option<(&str, &str)> {
    changelog.lines().find_map(|line| {
        let (version, date) = line.strip_prefix("## [")?.split_once("] - ")?;
        Some((version, date.trim()))
    })
}

/// The changelog of the Debian package. That of the project is shipped with it.
fn debian_changelog(version: &str, date: &str) -> Result<String, String> {
    let date = output_of(Command::new("date").args(["-u", "-R", "-d", date]))?;
    let date = String::from_utf8(date).map_err(|error| error.to_string())?;
    let date = date.trim();
    Ok(format!(
        "trueno-zram ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- {MAINTAINER}  {date}\n"
    ))
}

fn empty_folder(path: PathBuf) -> Result<PathBuf, String> {
    if path.exists() {
        fs::remove_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
}

/// Copies the files of a folder.
fn copy_all(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", from.display());
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_release_is_the_first_with_a_date() {
        let changelog = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n## [0.1.0] - 2026-11-15\n";
        assert_eq!(latest_release(changelog), Some(("0.2.0", "2026-12-01")));
        assert_eq!(latest_release("## [Unreleased]\n"), None);
    }

    #[test]
    fn the_changelog_has_a_release_of_this_version() {
        let changelog = include_str!("../../CHANGELOG.md");
        let manifest = include_str!("../../Cargo.toml");
        let (version, _) = latest_release(changelog).expect("a dated release");
        assert!(manifest.contains(&format!("\nversion = \"{version}\"\n")), "{version} is the workspace's version");
    }
}
