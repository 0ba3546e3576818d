//! Outputs: their places, and those that are refused.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use rustix::process::Signal;
use trueno_test_pages::frames;

use crate::support::{BINARY, command, folder, image, names, run, run_with};

#[test]
fn what_is_there_is_kept_unless_forced() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(3)).unwrap();
    fs::write(folder.path().join("image.lz4"), b"precious").unwrap();
    run(folder.path(), &["compress", "image", "--json"]).fails_as("exists", &["image.lz4", "-f"]);
    assert_eq!(fs::read(folder.path().join("image.lz4")).unwrap(), b"precious");
    run(folder.path(), &["compress", "-f", "image"]).ok();
    run(folder.path(), &["decompress", "image.lz4", "--json"]).fails_as("exists", &["image: "]);
    run(folder.path(), &["decompress", "-f", "image.lz4"]).ok();
    assert_eq!(names(folder.path()), ["image", "image.lz4"], "nothing is left beside");
}

#[test]
fn a_link_stays_and_what_it_points_to_is_replaced() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(3)).unwrap();
    fs::create_dir(folder.path().join("elsewhere")).unwrap();
    fs::write(folder.path().join("elsewhere/old"), b"old").unwrap();
    symlink("elsewhere/old", folder.path().join("link")).unwrap();
    run(folder.path(), &["compress", "image", "-f", "-o", "link"]).ok();
    assert!(fs::symlink_metadata(folder.path().join("link")).unwrap().is_symlink());
    assert_eq!(fs::read(folder.path().join("elsewhere/old")).unwrap()[..4], 0x184d_2204_u32.to_le_bytes());
    assert_eq!(names(&folder.path().join("elsewhere")), ["old"]);
}

#[test]
fn devices_and_pipes_are_written_in_place() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(3)).unwrap();
    run(folder.path(), &["compress", "image", "-o", "/dev/null"]).ok();
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());

    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::read(fifo).unwrap()
    });
    run(folder.path(), &["compress", "image", "-o", "fifo"]).ok();
    let archive = reader.join().unwrap();
    assert!(run_with(folder.path(), &["decompress"], &archive).ok().stdout == image(3));
    assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo(), "it was not renamed over");
}

#[test]
fn a_full_disk_is_an_error_that_names_the_output() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(3000)).unwrap();
    run(folder.path(), &["compress", "image", "-o", "/dev/full", "--json"]).fails_as("no_space", &["/dev/full: "]);
    run(folder.path(), &["compress", "-q", "image"]).ok();
    run(folder.path(), &["decompress", "image.lz4", "-o", "/dev/full", "--json"])
        .fails_as("no_space", &["/dev/full: "]);
    run(folder.path(), &["extract", "image.lz4", "--pages", "0..9", "-o", "/dev/full", "--json"])
        .fails_as("no_space", &["/dev/full: "]);
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let output = command(folder.path(), &["compress", "-c", "image"]).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("standard output: "));
}

#[test]
fn a_reader_that_goes_away_ends_the_process_by_sigpipe() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(5000)).unwrap();
    run(folder.path(), &["compress", "-q", "image"]).ok();
    for args in [
        &["compress", "-c", "image"][..],
        &["decompress", "-c", "image.lz4"],
        &["extract", "image.lz4", "--pages", ".."],
    ] {
        let mut child = command(folder.path(), args).spawn().unwrap();
        let mut first = [0; 4];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(Signal::PIPE.as_raw()), "{args:?}: {:?}", output.status);
        assert!(output.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn inputs_that_cannot_be_read_are_named() {
    let folder = folder();
    fs::create_dir(folder.path().join("folder")).unwrap();
    for command in ["compress", "decompress", "test"] {
        run(folder.path(), &[command, "none.lz4", "--json"]).fails_as("not_found", &["none.lz4: "]);
    }
    run(folder.path(), &["extract", "--pages", "1", "none.lz4", "-o", "x", "--json"])
        .fails_as("not_found", &["none.lz4: "]);
    run(folder.path(), &["compress", "folder", "--json"]).fails_as("refused", &["folder: "]);
    run(folder.path(), &["compress", "/proc/self/mem", "-o", "out", "--json"]).fails_as("io", &["/proc/self/mem"]);
    fs::write(folder.path().join("image"), image(3)).unwrap();
    run(folder.path(), &["compress", "image", "-o", "folder", "--json"]).fails_as("refused", &["folder: "]);
    run(folder.path(), &["compress", "image", "-o", "none/out", "--json"]).fails_as("not_found", &["none/out: "]);
    run(folder.path(), &["compress", "image", "-f", "-o", "image", "--json"]).fails_as("refused", &["image: "]);
    assert_eq!(names(folder.path()), ["folder", "image"], "no part of an output is left");
}

#[test]
fn names_without_the_ending_need_an_output() {
    let folder = folder();
    let archive = run_with(folder.path(), &["compress"], &image(3)).ok().stdout;
    fs::write(folder.path().join("archive"), &archive).unwrap();
    fs::write(folder.path().join(".lz4"), &archive).unwrap();
    run(folder.path(), &["decompress", "archive"]).fails(&["archive: ", "-o"]);
    run(folder.path(), &["decompress", ".lz4"]).fails(&["-o"]);
    run(folder.path(), &["decompress", "archive", "-o", "image"]).ok();
    assert!(fs::read(folder.path().join("image")).unwrap() == image(3));
}

#[test]
fn arguments_that_make_no_sense_together_are_refused() {
    let folder = folder();
    fs::write(folder.path().join("a"), image(1)).unwrap();
    fs::write(folder.path().join("b"), image(1)).unwrap();
    let refused = |args: &[&str], words: &[&str]| run(folder.path(), args).refuses(words);
    refused(&["compress", "a", "b", "-o", "c"], &["-o"]);
    refused(&["compress", "-c", "-o", "c", "a"], &["--output", "--stdout"]);
    refused(&["compress", "--rm", "-c", "a"], &["--rm"]);
    refused(&["compress", "--rm"], &["--rm"]);
    refused(&["compress", "--json", "-c", "a"], &["--json", "-o"]);
    refused(&["compress", "-q", "-v", "a"], &["--quiet", "--verbose"]);
    refused(&["compress", "-T", "257", "a"], &["--threads", "257"]);
    refused(&["compress", "--backend", "abacus", "a"], &["abacus", "cpu"]);
    refused(&["extract", "a"], &["--pages", "--bytes"]);
    refused(&["extract", "a", "--pages", "1", "--bytes", "1"], &["--pages", "--bytes"]);
    refused(&["extract", "a", "--pages", "9..3"], &["--pages"]);
    refused(&["frobnicate"], &["frobnicate"]);
    assert_eq!(names(folder.path()), ["a", "b"]);
}

#[test]
fn a_device_is_not_removed() {
    let folder = folder();
    run(folder.path(), &["compress", "--rm", "/dev/null", "-o", "out"]).fails(&["/dev/null", "--rm"]);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn an_input_is_not_removed_for_an_output_that_keeps_nothing() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(3)).unwrap();
    symlink("image", folder.path().join("link")).unwrap();
    run(folder.path(), &["compress", "--rm", "image", "-o", "/dev/null", "--json"])
        .fails_as("refused", &["/dev/null: ", "--rm"]);
    run(folder.path(), &["compress", "--rm", "link", "-o", "out", "--json"]).fails_as("refused", &["link: ", "--rm"]);
    assert_eq!(names(folder.path()), ["image", "link"]);
}

#[test]
fn closed_standard_streams_are_errors() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(3)).unwrap();
    let shell = |script: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.current_dir(folder.path()).args(["-c", script, BINARY]).output().unwrap()
    };
    for (script, stream) in
        [("\"$0\" compress image -c >&-", "standard output"), ("\"$0\" compress -o out <&-", "standard input")]
    {
        let output = shell(script);
        assert_eq!(output.status.code(), Some(1), "{script}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(stream) && stderr.lines().count() == 1, "{script}: {stderr}");
    }
    for script in ["\"$0\" compress image -c >/dev/null", "\"$0\" compress -q -o out </dev/null"] {
        assert!(shell(script).status.success(), "{script}");
    }
    assert_eq!(names(folder.path()), ["image", "out"]);
}

/// As Python's `subprocess.DEVNULL` and daemons open it. Only a stream that was closed is an error.
#[test]
fn null_that_is_open_for_reading_and_writing_is_a_choice() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(3)).unwrap();
    let null = || File::options().read(true).write(true).open("/dev/null").unwrap();
    for args in [&["compress", "-c", "image"][..], &["compress", "-q", "-o", "out"], &["inspect", "--json", "image"]] {
        let mut command = command(folder.path(), args);
        let output = command.stdin(null()).stdout(null()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(names(folder.path()), ["image", "out"]);
}

/// Every command that prints something, and the arguments that make it do so.
const PRINTING: [&[&str]; 14] = [
    &["--help"],
    &["--version"],
    &["--version", "-v"],
    &["help", "compress"],
    &["compress", "--help"],
    &["inspect", "image"],
    &["inspect", "--json", "image"],
    &["test", "--json", "image.lz4"],
    &["info"],
    &["info", "--json"],
    &["selftest", "--only", "cpu scalar: reads"],
    &["completions", "bash"],
    &["man"],
    &["compress", "-f", "--json", "image"],
];

#[test]
fn text_that_cannot_be_written_is_an_error() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(3)).unwrap();
    run(folder.path(), &["compress", "image"]).ok();
    for args in PRINTING {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = command(folder.path(), args).stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.contains("trueno-zram: standard output: "), "{args:?}: {stderr}");
        let mut shell = std::process::Command::new("sh");
        shell.current_dir(folder.path()).args(["-c", "exec \"$0\" \"$@\" >&-", BINARY]).args(args);
        let output = shell.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.contains("trueno-zram: standard output "), "{args:?}: {stderr}");
    }
}

/// A name that the system has for standard output means standard output: a file behind it is written, not replaced.
#[test]
fn names_of_the_standard_streams_mean_the_streams() {
    use std::io::{Seek, SeekFrom, Write};
    let folder = folder();
    let content = image(3);
    fs::write(folder.path().join("image"), &content).unwrap();
    let expected = run(folder.path(), &["compress", "-c", "image"]).ok().stdout;
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "-"] {
        fs::write(folder.path().join("out"), b"").unwrap();
        let mut file = File::options().read(true).write(true).open(folder.path().join("out")).unwrap();
        file.write_all(b"before").unwrap();
        let stdout = file.try_clone().unwrap();
        let output = command(folder.path(), &["compress", "-f", "image", "-o", name]).stdout(stdout).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let mut written = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut written).unwrap();
        assert!(written.strip_prefix(b"before") == Some(&expected[..]), "{name}");
        run(folder.path(), &["compress", "--json", "image", "-o", name]).refuses(&["--json"]);
    }
    for name in ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0", "-"] {
        let mut file = File::open(folder.path().join("image")).unwrap();
        file.seek(SeekFrom::Start(4096)).unwrap();
        let output = command(folder.path(), &["compress", name]).stdin(file).output().unwrap();
        assert!(frames::decompress(&output.stdout).as_deref() == Some(&content[4096..]), "{name}");
    }
}

#[test]
fn what_comes_from_a_pipe_has_the_rights_of_what_it_replaces() {
    let folder = folder();
    let out = folder.path().join("out");
    fs::write(&out, b"secret").unwrap();
    fs::set_permissions(&out, fs::Permissions::from_mode(0o600)).unwrap();
    run_with(folder.path(), &["compress", "-f", "-o", "out"], &image(3)).ok();
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(fs::metadata(&out).unwrap().len() > 6);
}

#[test]
fn a_dangling_symlink_is_refused() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(3)).unwrap();
    symlink("nothing", folder.path().join("link")).unwrap();
    for force in ["-q", "-f"] {
        run(folder.path(), &["compress", force, "image", "-o", "link", "--json"]).fails_as("refused", &["link: "]);
    }
    assert_eq!(names(folder.path()), ["image", "link"]);
}

#[test]
fn a_reader_that_goes_away_hides_no_failure() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(5000)).unwrap();
    let mut child = command(folder.path(), &["compress", "-c", "none", "image"]).spawn().unwrap();
    let mut first = [0; 4];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("trueno-zram: none: "));
}

#[test]
fn a_limit_of_file_sizes_is_an_error_that_names_the_output() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(3000)).unwrap();
    let mut shell = std::process::Command::new("sh");
    let script = "ulimit -f 8; exec \"$0\" compress image";
    let output = shell.current_dir(folder.path()).args(["-c", script, BINARY]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{:?}", output.status);
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("trueno-zram: image.lz4: "));
    assert_eq!(names(folder.path()), ["image"]);
}

#[test]
fn a_file_that_is_open_for_writing_is_not_removed() {
    // Leases are known to work there.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = folder.path();
    let content = image(50);
    fs::write(folder.join("image"), &content).unwrap();
    run(folder, &["compress", "-q", "image", "-o", "there.lz4"]).ok();
    for (file, args) in [
        ("image", &["compress", "--rm", "image"][..]),
        ("image", &["compress", "--rm", "--base", "there.lz4", "image"]),
        ("there.lz4", &["decompress", "--rm", "there.lz4"]),
        ("there.lz4", &["decompress", "--rm", "--in-place", "there.lz4", "-o", "image"]),
    ] {
        let writer = File::options().append(true).open(folder.join(file)).unwrap();
        let refused = run(folder, &[args, &["--json"]].concat());
        assert_eq!(refused.code, Some(1), "{args:?}: {}", refused.stderr);
        assert_eq!(refused.json()[0]["error_kind"], "refused", "{args:?}: {}", refused.stderr);
        assert_eq!(names(folder), ["image", "there.lz4"], "{args:?}");
        drop(writer);
        assert!(fs::read(folder.join("image")).unwrap() == content);
    }
    run(folder, &["compress", "-q", "--rm", "image"]).ok();
    assert_eq!(names(folder), ["image.lz4", "there.lz4"]);
}
