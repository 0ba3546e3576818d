//! `auto` beside drivers that hang or fail: it works as if there were no GPU.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::thread;

use trueno_test_pages::corpus;

use crate::support::{Run, command, folder, image, run};

/// Failures of a driver: see `libcuda.c`.
const FAILURES: [&str; 6] = ["hang-init", "hang-context", "no-init", "no-device", "no-memory", "no-launch"];

/// The folder of the driver, built once per test run by the C compiler.
fn driver() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("driver-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/files/libcuda.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(folder.join("libcuda.so")).arg(source);
        assert!(compiler.status().expect("a C compiler is installed").success());
        fs::copy(folder.join("libcuda.so"), folder.join("libcuda.so.1")).unwrap();
        folder
    })
}

/// Runs with a driver, which logs its failure to `driver.log`.
fn with_driver<'a>(command: &'a mut Command, failure: &str, folder: &Path) -> &'a mut Command {
    command
        .env("LD_LIBRARY_PATH", driver())
        .env("TRUENO_DRIVER", failure)
        .env("TRUENO_DRIVER_LOG", folder.join("driver.log"))
}

/// Feeds a command until the driver has failed, and returns all that it was given.
fn feed_until_failure(child: &mut Child, log: &Path) -> Vec<u8> {
    let pages = corpus::ALL.iter().flat_map(|corpus| corpus.pages.as_flattened());
    let (part, mut fed): (Vec<u8>, _) = (pages.copied().collect(), Vec::new());
    let mut stdin = child.stdin.take().unwrap();
    let mut after = 0;
    // A few more parts: the lanes go on.
    while after < 3 {
        stdin.write_all(&part).expect("the command reads all of its input");
        fed.extend_from_slice(&part);
        after += usize::from(log.exists());
        assert!(fed.len() < 1 << 30, "the driver is asked after 300 ms of work");
    }
    fed
}

#[test]
fn pipes_are_compressed_while_the_driver_hangs_or_fails() {
    for failure in FAILURES {
        let folder = folder();
        // Slow enough for the codec to be the limit on any machine.
        let args = ["compress", "--algorithm", "zstd", "--level", "9", "-T", "2", "-v", "-", "-o", "out.zst"];
        let mut command = command(folder.path(), &args);
        let mut child = with_driver(&mut command, failure, folder.path()).spawn().unwrap();
        let log = folder.path().join("driver.log");
        let fed = feed_until_failure(&mut child, &log);
        let output = thread::scope(|scope| scope.spawn(|| child.wait_with_output().unwrap()).join().unwrap());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{failure}: {text}");
        let restored = run(folder.path(), &["decompress", "--backend", "cpu", "-c", "out.zst"]).ok();
        assert!(restored.stdout == fed, "{failure}");
    }
}

#[test]
fn the_driver_is_not_touched_for_little_work() {
    // Fewer pages than a GPU is ever opened for, however slow the machine is.
    let (folder, image) = (folder(), image(900));
    fs::write(folder.path().join("image"), &image).unwrap();
    let run = |args: &[&str]| {
        let mut command = command(folder.path(), args);
        let output = with_driver(&mut command, "hang-init", folder.path()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        Run { code: output.status.code(), stdout: output.stdout, stderr }.ok()
    };
    run(&["compress", "image"]);
    run(&["test", "image.lz4"]);
    assert!(run(&["decompress", "-c", "image.lz4"]).stdout == image);
    run(&["extract", "image.lz4", "--pages", "7..899", "-o", "pages"]);
    assert!(!folder.path().join("driver.log").exists(), "nobody has asked the driver");
}

#[test]
fn a_gpu_that_is_asked_for_and_fails_is_an_error() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(100)).unwrap();
    for failure in ["no-init", "no-device", "no-memory"] {
        let mut command = command(folder.path(), &["compress", "--backend", "gpu", "image"]);
        let output = with_driver(&mut command, failure, folder.path()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        Run { code: output.status.code(), stdout: output.stdout, stderr }.fails(&["--backend gpu"]);
        assert!(!folder.path().join("image.lz4").exists());
    }
}
