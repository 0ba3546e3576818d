//! The crates on their own: each built alone with and without its features, and packaged as it would be published.

use crate::command::{cargo, output};

/// Libraries whose default build has neither CUDA bindings nor kernels.
const WITHOUT_GPU: [&str; 6] = [
    "trueno-zram-archive",
    "trueno-zram-io",
    "trueno-zram-store",
    "trueno-zram-restore",
    "trueno-zram-criu",
    "trueno-zram-serve",
];
/// Packages that only a build with `gpu` may have.
const OF_GPU: [&str; 2] = ["cudarc", "trueno-zram-kernels"];

/// Members of the workspace that are not published.
const UNPUBLISHED: [&str; 4] = ["trueno-test-kernels", "trueno-test-pages", "trueno-test-restore", "xtask"];

/// Builds each library alone, without features, with the default ones, and with all; and the tool as it is released and with all.
pub(crate) fn check_alone() -> Result<(), String> {
    for package in WITHOUT_GPU {
        let tree = output("cargo", &["tree", "--locked", "--edges", "normal", "--prefix", "none", "-p", package])?;
        if let Some(found) = OF_GPU.iter().find(|name| tree.lines().any(|line| line.split(' ').next() == Some(name))) {
            return Err(format!("the default build of {package} has {found}"));
        }
    }
    for package in WITHOUT_GPU.into_iter().chain(["trueno-zram-codec"]) {
        for features in ["--no-default-features", "", "--all-features"] {
            cargo(&format!("clippy --locked -p {package} --lib {features} -- -D warnings"))?;
        }
    }
    for features in ["", "--features ublk,rivals"] {
        cargo(&format!("clippy --locked -p trueno-zram --bins {features} -- -D warnings"))?;
    }
    // Without libzstd: its files are refused with an error that names the feature.
    cargo("test --quiet --locked -p trueno-zram-archive --no-default-features --lib --test without_zstd")?;
    for feature in ["gpu", "zstd", "internals"] {
        cargo(&format!(
            "clippy --locked -p trueno-zram-codec --lib --no-default-features --features {feature} -- -D warnings"
        ))?;
    }
    Ok(())
}

/// Packages everything that is published, and builds it from the packages.
pub(crate) fn package() -> Result<(), String> {
    let unpublished = UNPUBLISHED.map(|name| format!("--exclude {name}")).join(" ");
    cargo(&format!("package --workspace {unpublished} --locked --quiet"))
}
