//! Everything that must hold before a change lands, in tiers that can be run alone: `cargo xtask ci [TIER…]`.
//!
//! A tier whose tools cannot be installed on this machine says so and is skipped. The list of skipped ones is printed last.

use std::path::PathBuf;
use std::time::Instant;

use crate::command::{cargo, command, output, root, run, run_prepared, succeeds};
use crate::{crates, ptxas_gate, public_api, tree};

/// Python packages and their programs.
const TOOLS: &str = "target/ci-tools";

/// The result of a tier that did not fail.
pub(crate) enum Outcome {
    Passed,
    /// Parts that were left out, with the reason.
    Skipped(Vec<String>),
}

struct Tier {
    name: &'static str,
    about: &'static str,
    run: fn() -> Result<Outcome, String>,
}

/// All tiers, in the order in which they run: the quickest to fail first.
const TIERS: [Tier; 15] = [
    Tier { name: "tools", about: "installs what the other tiers need", run: tools },
    Tier { name: "format", about: "rustfmt and spelling", run: format },
    Tier {
        name: "tree",
        about: "sizes of files, folders and documents; how comments begin",
        run: || passed(tree::check()),
    },
    Tier { name: "lints", about: "clippy over the workspace and the fuzz targets", run: || passed(lints()) },
    Tier {
        name: "crates",
        about: "each crate alone, with and without its features",
        run: || passed(crates::check_alone()),
    },
    Tier { name: "tests", about: "the README's test command, and what it leaves out", run: || passed(tests()) },
    Tier {
        name: "release-tests",
        about: "the codec as it ships, without debug assertions",
        run: || passed(release_tests()),
    },
    Tier { name: "docs", about: "documentation without warnings", run: || passed(docs()) },
    Tier { name: "api", about: "the public interface against its listing", run: api },
    Tier {
        name: "package",
        about: "what would be published, built from the packages",
        run: || passed(crates::package()),
    },
    Tier { name: "lowest", about: "the lowest Rust version", run: lowest_version },
    Tier { name: "report", about: "the report of `bench`, in a browser", run: report },
    Tier { name: "fuzz", about: "each fuzz target for a few seconds", run: || passed(run("fuzz/smoke", &["10"])) },
    Tier { name: "miri", about: "the scalar codec under Miri", run: miri },
    Tier { name: "dist", about: "licences, ptxas over all kernels, the Debian package, the static binary", run: dist },
];

/// Runs the tiers of these names, or all, and prints their times.
pub(crate) fn run_tiers(names: &[&str]) -> Result<(), String> {
    if let Some(unknown) = names.iter().find(|name| TIERS.iter().all(|tier| tier.name != **name)) {
        let known: Vec<_> = TIERS.iter().map(|tier| format!("  {:<14} {}", tier.name, tier.about)).collect();
        return Err(format!("no tier is called {unknown}; there are\n{}", known.join("\n")));
    }
    let begun = Instant::now();
    let (mut times, mut skipped) = (Vec::new(), Vec::new());
    for tier in TIERS.iter().filter(|tier| names.is_empty() || names.contains(&tier.name)) {
        println!("\n== {}: {}", tier.name, tier.about);
        let begun = Instant::now();
        let outcome = (tier.run)();
        times.push((tier.name, begun.elapsed()));
        match outcome {
            Ok(Outcome::Passed) => {}
            Ok(Outcome::Skipped(parts)) => skipped.extend(parts.into_iter().map(|part| (tier.name, part))),
            Err(message) => return Err(format!("tier {}: {message}", tier.name)),
        }
    }
    println!("\n== times");
    for (name, time) in times {
        println!("{name:<14} {:>6.0} s", time.as_secs_f64());
    }
    println!("{:<14} {:>6.0} s", "all", begun.elapsed().as_secs_f64());
    for (name, part) in skipped {
        println!("skipped in {name}: {part}");
    }
    println!("all checks passed");
    Ok(())
}

/// Runs what to run before each commit: formatting, lints and the fast tests.
pub(crate) fn check() -> Result<(), String> {
    let begun = Instant::now();
    format()?;
    tree::check()?;
    lints_of_workspace()?;
    cargo("test --workspace --locked --lib --bins")?;
    println!("checked in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

fn passed(result: Result<(), String>) -> Result<Outcome, String> {
    result.map(|()| Outcome::Passed)
}

fn skipped(parts: Vec<String>) -> Outcome {
    if parts.is_empty() { Outcome::Passed } else { Outcome::Skipped(parts) }
}

fn tools() -> Result<Outcome, String> {
    if !tool("pip").exists() {
        run("python3", &["-m", "venv", TOOLS])?;
    }
    let pip = format!("{TOOLS}/bin/pip");
    run(&pip, &["install", "--quiet", "--disable-pip-version-check", "-r", ".ci/requirements.txt"])?;
    // Does nothing if that version is installed. Unoptimised: it builds in two minutes and runs in one second.
    cargo("install --quiet --debug --locked cargo-deny@0.20.2")?;
    Ok(Outcome::Passed)
}

/// A program that the tier `tools` has installed.
fn tool(name: &str) -> PathBuf {
    root().join(TOOLS).join("bin").join(name)
}

fn format() -> Result<Outcome, String> {
    cargo("fmt --all --check")?;
    cargo("fmt --manifest-path fuzz/Cargo.toml --check")?;
    let installed = tool("typos");
    let typos = if installed.exists() { installed.to_string_lossy().into_owned() } else { "typos".to_owned() };
    if !succeeds(&typos, &["--version"]) {
        return Ok(Outcome::Skipped(vec!["spelling: `cargo xtask ci tools` installs typos".to_owned()]));
    }
    passed(run(&typos, &[]))
}

fn lints() -> Result<(), String> {
    lints_of_workspace()?;
    cargo("clippy --manifest-path fuzz/Cargo.toml --locked -- -D warnings")
}

fn lints_of_workspace() -> Result<(), String> {
    cargo("clippy --workspace --all-targets --locked -- -D warnings")
}

fn tests() -> Result<(), String> {
    cargo("test --workspace --locked")?;
    // It says so and passes if the kernel refuses userfaultfd.
    cargo("test --locked -p trueno-zram-restore --test restore -- --ignored two_hundred_thousand")
}

fn release_tests() -> Result<(), String> {
    cargo("test --release --locked -p trueno-zram-codec --lib --tests")
}

fn docs() -> Result<(), String> {
    let mut docs = command("cargo", &["doc", "--workspace", "--no-deps", "--locked"]);
    docs.env("RUSTDOCFLAGS", "-D warnings");
    run_prepared(&mut docs)
}

fn api() -> Result<Outcome, String> {
    public_api::compare()
}

/// Checks the workspace with the Rust version that Cargo.toml states.
fn lowest_version() -> Result<Outcome, String> {
    let manifest =
        std::fs::read_to_string(root().join("Cargo.toml")).map_err(|error| format!("Cargo.toml: {error}"))?;
    let stated = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let version = format!("{}.0", stated.ok_or("Cargo.toml states no rust-version")?);
    succeeds("rustup", &["toolchain", "install", &version, "--profile", "minimal"]);
    let toolchain = format!("+{version}");
    if !succeeds("cargo", &[&toolchain, "--version"]) {
        return Ok(Outcome::Skipped(vec![format!("Rust {version} cannot be installed here")]));
    }
    let mut check = command("cargo", &[&toolchain, "check", "--workspace", "--locked"]);
    check.env("CARGO_TARGET_DIR", "target/lowest");
    passed(run_prepared(&mut check))
}

fn report() -> Result<Outcome, String> {
    if !succeeds("chromium", &["--version"]) && succeeds("apt-get", &["update"]) {
        succeeds("apt-get", &["install", "-y", "--no-install-recommends", "chromium"]);
    }
    if !succeeds("chromium", &["--version"]) {
        return Ok(Outcome::Skipped(vec!["no chromium here".to_owned()]));
    }
    passed(run(".ci/check-report", &[]))
}

fn miri() -> Result<Outcome, String> {
    succeeds("rustup", &["+nightly", "component", "add", "miri", "rust-src"]);
    if !succeeds("cargo", &["+nightly", "miri", "--version"]) {
        return Ok(Outcome::Skipped(vec!["no Miri in the installed toolchains".to_owned()]));
    }
    cargo("+nightly miri test --quiet -p trueno-zram-codec --lib -- lz4:: algorithm::")?;
    passed(cargo("+nightly miri test --quiet -p trueno-page"))
}

fn dist() -> Result<Outcome, String> {
    // Without advisories: their database is not a package, and not every machine reaches it. The hosted workflow checks them.
    cargo("deny --log-level warn check bans licenses sources")?;
    ptxas()?;
    let mut missing = Vec::new();
    if succeeds("cargo", &["deb", "--version"]) && succeeds("lintian", &["--version"]) {
        super::dist::run(None)?;
        cargo("deb --quiet --locked -p trueno-zram --profile dist --no-build")?;
        run("sh", &["-c", "lintian --fail-on error target/debian/trueno-zram_*.deb"])?;
    } else {
        missing.push("the Debian package: no cargo-deb or no lintian".to_owned());
    }
    let musl = "x86_64-unknown-linux-musl";
    let targets = output("rustup", &["target", "list", "--installed"]).unwrap_or_default();
    if targets.lines().any(|target| target == musl) && succeeds("musl-gcc", &["--version"]) {
        super::dist::run(Some(musl))?;
    } else {
        missing.push(format!("the static binary: no target {musl} or no musl-gcc"));
    }
    Ok(skipped(missing))
}

/// Assembles every kernel, with the ptxas of the tier `tools`.
fn ptxas() -> Result<(), String> {
    let found = output("find", &[TOOLS, "-path", "*cuda_nvcc/bin/ptxas", "-print", "-quit"])?;
    if found.trim().is_empty() {
        return Err("no ptxas: run `cargo xtask ci tools` first".to_owned());
    }
    ptxas_gate::run(&root().join(found.trim()))
}
