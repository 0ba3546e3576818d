//! Listings of the public interface, one per library, in `docs/api`: a change of an interface is a change of a file.
//!
//! They are made from rustdoc's JSON, which only one version of Rust writes in the form that `xtask/public-api` reads.

use std::fs;
use std::path::PathBuf;

use crate::ci::Outcome;
use crate::command::{command, output, output_of, root, run_prepared};

/// The version of Rust whose JSON is read. Others are skipped.
const RUST_VERSION: &str = "1.95.0";

/// A library with the features that its users may turn on.
struct Library {
    package: &'static str,
    file: &'static str,
    features: &'static str,
}

const fn library(package: &'static str, file: &'static str, features: &'static str) -> Library {
    Library { package, file, features }
}

const LIBRARIES: [Library; 10] = [
    library("trueno-page", "trueno_page", ""),
    library("trueno-zram-kernels", "trueno_gpu", ""),
    library("trueno-zram-codec", "trueno_zram_core", "gpu,zstd"),
    library("trueno-zram-archive", "trueno_zram_archive", "gpu,zstd"),
    library("trueno-zram-connections", "trueno_zram_connections", ""),
    library("trueno-zram-store", "trueno_zram_store", "gpu,zstd"),
    library("trueno-zram-io", "trueno_zram_io", "gpu,zstd"),
    library("trueno-zram-restore", "trueno_zram_restore", "gpu,zstd"),
    library("trueno-zram-criu", "trueno_zram_criu", "gpu,zstd"),
    library("trueno-zram-serve", "trueno_zram_serve", "ublk,vhost-user,zstd"),
];

/// Compares the interfaces with their listings.
pub(crate) fn compare() -> Result<Outcome, String> {
    if let Some(other) = other_version()? {
        return Ok(Outcome::Skipped(vec![other]));
    }
    let mut changed = Vec::new();
    for library in &LIBRARIES {
        let (listing, path) = (list(library)?, listing_path(library));
        let recorded = fs::read_to_string(&path).unwrap_or_default();
        if recorded != listing {
            print_changes(&recorded, &listing);
            changed.push(library.package);
        }
    }
    if changed.is_empty() {
        return Ok(Outcome::Passed);
    }
    Err(format!("the public interface of {} changed: `cargo xtask public-api --write` records it", changed.join(", ")))
}

/// Runs `xtask public-api [--write]`.
pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    match options {
        [] => match compare()? {
            Outcome::Skipped(why) => println!("skipped: {}", why.join("; ")),
            Outcome::Passed => println!("the public interfaces are those of docs/api"),
        },
        ["--write"] => {
            if let Some(other) = other_version()? {
                return Err(other);
            }
            for library in &LIBRARIES {
                let (listing, path) = (list(library)?, listing_path(library));
                fs::write(&path, listing).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        _ => return Err("usage: cargo xtask public-api [--write]".to_owned()),
    }
    Ok(())
}

/// Returns a sentence if another version of Rust is running.
fn other_version() -> Result<Option<String>, String> {
    let version = output("rustc", &["--version"])?;
    let is_other = version.split(' ').nth(1) != Some(RUST_VERSION);
    Ok(is_other.then(|| format!("public interfaces are listed with Rust {RUST_VERSION}, this is {}", version.trim())))
}

fn listing_path(library: &Library) -> PathBuf {
    root().join("docs/api").join(format!("{}.txt", library.package))
}

/// Lists the public interface of a library, an item per line.
fn list(library: &Library) -> Result<String, String> {
    let target = root().join("target/public-api");
    let mut rustdoc = command("cargo", &["rustdoc", "--quiet", "--locked", "--lib", "-p", library.package]);
    rustdoc.args(["--no-default-features", "--features", library.features, "--target-dir"]).arg(&target);
    rustdoc.args(["--", "-Zunstable-options", "--output-format", "json", "--cap-lints", "allow"]);
    run_prepared(rustdoc.env("RUSTC_BOOTSTRAP", "1"))?;
    let mut lister =
        command("cargo", &["run", "--quiet", "--locked", "--manifest-path", "xtask/public-api/Cargo.toml"]);
    lister.arg("--target-dir").arg(target.join("tool")).arg("--");
    let listing = output_of(lister.arg(target.join("doc").join(format!("{}.json", library.file))))?;
    String::from_utf8(listing).map_err(|_| format!("{}: the listing is not UTF-8", library.package))
}

fn print_changes(recorded: &str, listing: &str) {
    let has = |text: &str, line: &str| text.lines().any(|other| other == line);
    recorded.lines().filter(|line| !has(listing, line)).for_each(|line| println!("- {line}"));
    listing.lines().filter(|line| !has(recorded, line)).for_each(|line| println!("+ {line}"));
}
