//! Passes the commit, the target and the features of a build on to `--version --verbose`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Overrides the commit, for builds from a source archive.
const COMMIT_VARIABLE: &str = "TRUENO_ZRAM_COMMIT";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={COMMIT_VARIABLE}");
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let given = env::var(COMMIT_VARIABLE).ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| commit_of_repository(&package)).or_else(|| commit_of_package(&package));
    set("COMMIT", &commit.unwrap_or_else(|| "unknown".to_owned()));
    set("TARGET", &env::var("TARGET").unwrap_or_default());
    set("PROFILE", &profile().unwrap_or_else(|| env::var("PROFILE").unwrap_or_default()));
    set("FEATURES", &features());
    let is_static = env::var("CARGO_CFG_TARGET_FEATURE").is_ok_and(|all| all.split(',').any(|one| one == "crt-static"));
    set("LINKING", if is_static { "static" } else { "dynamic" });
}

fn set(name: &str, value: &str) {
    println!("cargo::rustc-env=TRUENO_ZRAM_BUILD_{name}={value}");
}

/// The commit that is checked out, if the package is in its repository and not in an unrelated one.
fn commit_of_repository(package: &Path) -> Option<String> {
    let root = package.ancestors().nth(2)?;
    let top_level = PathBuf::from(git(package, &["rev-parse", "--show-toplevel"])?);
    if fs::canonicalize(top_level).ok()? != fs::canonicalize(root).ok()? {
        return None;
    }
    // Both change with every commit and checkout. In a worktree they are not below the package's own `.git`.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(package, &["rev-parse", "--git-path", name]).map(|path| package.join(path));
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(package, &["rev-parse", "--short=12", "HEAD"])
}

fn git(folder: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(folder).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// The commit that `cargo package` notes in its archives.
fn commit_of_package(package: &Path) -> Option<String> {
    let info = fs::read_to_string(package.join(".cargo_vcs_info.json")).ok()?;
    let (_, rest) = info.split_once("\"sha1\"")?;
    let commit = rest.split('"').nth(1)?;
    commit.get(..12).map(str::to_owned)
}

/// The name of the profile. `PROFILE` is `release` for all that inherit from it; the output folder has the name.
fn profile() -> Option<String> {
    let out = PathBuf::from(env::var_os("OUT_DIR")?);
    // target/[TRIPLE/]PROFILE/build/PACKAGE/out
    let name = out.ancestors().nth(3)?.file_name()?.to_str()?;
    Some(name.to_owned())
}

fn features() -> String {
    let mut features: Vec<String> = env::vars()
        .filter_map(|(name, _)| name.strip_prefix("CARGO_FEATURE_").map(|name| name.to_lowercase().replace('_', "-")))
        .filter(|name| name != "default")
        .collect();
    features.sort();
    features.join(" ")
}
