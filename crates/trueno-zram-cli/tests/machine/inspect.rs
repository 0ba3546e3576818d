//! `inspect`.

use std::fs;
use std::path::Path;

use serde_json::Value;
use trueno_test_pages::PAGE_SIZE;
use trueno_test_pages::generate::Generator;

use crate::support::{Run, command, folder, image, run, run_with};

/// 5 zero pages, 2 same-filled, 3 random, 4 of a pattern of which 2 are copies, and a tail.
fn known_image() -> Vec<u8> {
    let mut random = Generator::new(1);
    let mut image = vec![0; 5 * PAGE_SIZE];
    image.extend([0x11; 2 * PAGE_SIZE]);
    image.extend((0..3 * PAGE_SIZE).map(|_| random.byte()));
    for divisor in [3, 5, 3, 3] {
        image.extend((0..PAGE_SIZE).map(|i| (i / divisor).to_le_bytes()[0]));
    }
    image.extend(b"the tail");
    image
}

fn json(run: &Run) -> Value {
    serde_json::from_slice(&run.stdout).unwrap()
}

fn check_known(report: &Value, name: &str) {
    let of = |field: &str| report[field].as_u64().unwrap();
    assert_eq!(of("bytes"), 14 * PAGE_SIZE as u64 + 8, "{name}");
    assert_eq!(of("pages"), 15, "{name}");
    assert_eq!((of("zero"), of("same_filled")), (5, 2), "{name}");
    assert_eq!(of("lz4") + of("raw"), 8, "{name}");
    let sizes: u64 =
        report["lz4_sizes"]["by_step"].as_array().unwrap().iter().map(|pages| pages.as_u64().unwrap()).sum();
    assert_eq!(sizes, of("lz4"), "{name}");
    let cells = report["overview"]["cells"].as_array().unwrap();
    assert_eq!(cells.iter().map(|cell| cell["pages"].as_u64().unwrap()).sum::<u64>(), 15, "{name}");
    assert!(cells[..5].iter().all(|cell| cell["zero_pages"] == 1), "{name}");
}

fn check_content(report: &Value, name: &str) {
    assert_eq!(report["copies"]["pages"], 2, "{name}");
    assert_eq!(report["copies"]["exact"], true, "{name}");
    assert_eq!(report["entropy"]["pages"], 9, "all whole pages but zero ones: {name}");
    let top = report["entropy"]["by_half_bit"][15].as_u64().unwrap();
    assert_eq!(top, 7, "random pages, and patterns with all bytes: {name}");
}

fn with_image() -> tempfile::TempDir {
    let folder = folder();
    fs::write(folder.path().join("image"), known_image()).unwrap();
    folder
}

#[test]
fn an_image_is_counted_from_a_file_and_from_a_pipe() {
    let folder = with_image();
    for (name, shown) in [
        ("file", run(folder.path(), &["inspect", "image", "--json"]).ok()),
        ("pipe", run_with(folder.path(), &["inspect", "-", "--json"], &known_image()).ok()),
    ] {
        let report = json(&shown);
        assert_eq!(report["format"], "image");
        check_known(&report, name);
        check_content(&report, name);
    }
}

#[test]
fn an_archive_tells_the_same_by_its_index_and_the_rest_when_decoded() {
    let folder = with_image();
    run(folder.path(), &["compress", "-q", "image", "-o", "image.lz4"]).ok();
    let image = json(&run(folder.path(), &["inspect", "image", "--json"]).ok());
    for decode in [false, true] {
        let args: &[&str] =
            if decode { &["inspect", "image.lz4", "--json", "--decode"] } else { &["inspect", "image.lz4", "--json"] };
        let report = json(&run(folder.path(), args).ok());
        assert_eq!(report["format"], "archive");
        check_known(&report, "archive");
        assert_eq!(report["file_bytes"], fs::metadata(folder.path().join("image.lz4")).unwrap().len());
        for field in ["lz4", "raw", "lz4_sizes", "held_bytes", "overview"] {
            assert_eq!(report[field], image[field], "{field}");
        }
        if decode {
            check_content(&report, "archive");
        } else {
            assert!(report["entropy"].is_null() && report["copies"].is_null());
        }
    }
}

#[test]
fn other_lz4_files_are_decoded() {
    let folder = with_image();
    let mut frame = foreign_frame(&known_image());
    fs::write(folder.path().join("other.lz4"), &frame).unwrap();
    for shown in [
        run(folder.path(), &["inspect", "other.lz4", "--json"]).ok(),
        run_with(folder.path(), &["inspect", "-", "--json"], &frame).ok(),
    ] {
        let report = json(&shown);
        assert_eq!(report["format"], "lz4-frame");
        assert_eq!(report["file_bytes"], frame.len());
        check_known(&report, "frame");
        check_content(&report, "frame");
    }
    frame.truncate(frame.len() - 5);
    fs::write(folder.path().join("short.lz4"), &frame).unwrap();
    run(folder.path(), &["inspect", "short.lz4", "--json"]).fails_as("damaged", &["short.lz4"]);
}

/// A frame by C lz4, of 64 KiB blocks.
fn foreign_frame(content: &[u8]) -> Vec<u8> {
    let shape = trueno_test_pages::frames::all_settings()[0];
    trueno_test_pages::frames::compress(content, &shape)
}

#[test]
fn a_damaged_index_is_noted_and_the_content_inspected() {
    let folder = with_image();
    run(folder.path(), &["compress", "-q", "image", "-o", "image.lz4"]).ok();
    let path = folder.path().join("image.lz4");
    let mut archive = fs::read(&path).unwrap();
    // In the index, well before the footer.
    let at = archive.len() - 60;
    archive[at] ^= 0xff;
    fs::write(&path, archive).unwrap();
    let shown = run(folder.path(), &["inspect", "image.lz4", "--json"]);
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    let report = json(&shown);
    assert_eq!(report["format"], "lz4-frame");
    assert!(report["note"].is_string());
    check_known(&report, "without its index");
}

fn drawn(folder: &Path, args: &[&str], columns: &str) -> String {
    let child = command(folder, args).env("COLUMNS", columns).env("LC_ALL", "C.UTF-8").spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn pictures_keep_to_the_width_and_to_ascii_where_there_is_no_terminal() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(500)).unwrap();
    for columns in ["60", "80", "132"] {
        let ascii = drawn(folder.path(), &["inspect", "image"], columns);
        assert!(ascii.is_ascii() && ascii.contains('#'), "{ascii}");
        let width = columns.parse().unwrap();
        for line in ascii.lines().filter(|line| line.contains(['|', '#'])) {
            assert!(line.chars().count() <= width, "{} columns: {line}", line.chars().count());
        }
    }
}

/// Two histograms side by side begin at 100 columns.
#[test]
fn no_line_is_wider_than_the_terminal() {
    let folder = folder();
    fs::write(folder.path().join("image"), image(100)).unwrap();
    for columns in ["80", "99", "100", "104", "110", "113", "132", "160"] {
        let width: usize = columns.parse().unwrap();
        for line in drawn(folder.path(), &["inspect", "image"], columns).lines() {
            assert!(line.chars().count() <= width, "{} of {columns} columns: {line}", line.chars().count());
        }
    }
}

#[test]
fn empty_images_are_fine_and_what_is_no_file_is_named() {
    let folder = folder();
    fs::write(folder.path().join("empty"), "").unwrap();
    let report = json(&run(folder.path(), &["inspect", "empty", "--json"]).ok());
    assert_eq!((&report["pages"], &report["held_ratio"]), (&0.into(), &1.0.into()));
    run(folder.path(), &["inspect", "empty"]).ok();
    run(folder.path(), &["inspect", "missing", "--json"]).fails_as("not_found", &["missing"]);
    run(folder.path(), &["inspect", ".", "--json"]).fails_as("refused", &[]);
    run(folder.path(), &["inspect"]).refuses(&["FILE"]);
}

#[test]
fn a_sparse_image_goes_at_the_speed_of_its_data() {
    let folder = folder();
    let path = folder.path().join("sparse");
    let data = image(16);
    fs::write(&path, &data).unwrap();
    let data_pages = data.chunks(PAGE_SIZE).filter(|page| page.iter().any(|byte| *byte != 0)).count() as u64;
    // Read through, these would take minutes and count the same.
    let len_bytes = 200u64 << 30;
    fs::File::options().write(true).open(&path).unwrap().set_len(len_bytes).unwrap();
    let report = json(&run(folder.path(), &["inspect", "sparse", "--json"]).ok());
    assert_eq!(report["bytes"], len_bytes);
    assert_eq!(report["zero"], len_bytes / PAGE_SIZE as u64 - data_pages);
}

#[test]
fn an_archive_from_a_pipe_is_known_as_one() {
    let folder = with_image();
    run(folder.path(), &["compress", "-q", "image", "-o", "image.lz4"]).ok();
    let mut archive = fs::read(folder.path().join("image.lz4")).unwrap();
    let shown = run_with(folder.path(), &["inspect", "-", "--json"], &archive).ok();
    let report = json(&shown);
    assert_eq!((&report["format"], &report["file_bytes"]), (&"archive".into(), &archive.len().into()));
    check_known(&report, "archive from a pipe");
    check_content(&report, "archive from a pipe");
    assert!(report["note"].is_string(), "{report}");
    run_with(folder.path(), &["inspect", "-"], &archive).ok();

    let at = archive.len() - 60;
    archive[at] ^= 0xff;
    let shown = run_with(folder.path(), &["inspect", "-", "--json"], &archive);
    let report = json(&shown);
    assert_eq!((shown.code, &report["format"]), (Some(0), &"lz4-frame".into()));
    assert!(report["note"].is_string(), "{report}");
}

#[test]
fn images_in_a_container_come_with_a_note() {
    let folder = folder();
    for (name, head, known) in [
        ("disk.qcow2", &b"QFI\xfb\0\0\0\x03"[..], Some("qcow2")),
        ("memory.gz", b"\x1f\x8b\x08\0", Some("gzip")),
        ("memory.raw", b"QFI memory", None),
    ] {
        let mut file = head.to_vec();
        file.resize(3 * PAGE_SIZE, 1);
        fs::write(folder.path().join(name), &file).unwrap();
        for (args, input) in [(["inspect", name, "--json"], &[][..]), (["inspect", "-", "--json"], &file)] {
            let shown = run_with(folder.path(), &args, input).ok();
            let report = json(&shown);
            assert_eq!((&report["format"], &report["pages"]), (&"image".into(), &3.into()));
            match known {
                Some(known) => {
                    let note = report["note"].as_str().unwrap();
                    assert!(note.contains(known) && shown.stderr.contains(note), "{report}");
                }
                None => assert!(shown.stderr.is_empty() && report["note"].is_null(), "{}", shown.stderr),
            }
        }
    }
}

#[test]
fn several_files_are_inspected_and_one_that_fails_does_not_stop_the_others() {
    let folder = with_image();
    fs::write(folder.path().join("other"), image(20)).unwrap();
    let text = String::from_utf8(run(folder.path(), &["inspect", "image", "other"]).ok().stdout).unwrap();
    assert!(text.starts_with("image: ") && text.contains("\n\nother: "), "{text}");

    let shown = run(folder.path(), &["inspect", "image", "missing", "other", "--json"]).fails(&["missing"]);
    let reports = shown.json();
    let of = |key: &str| reports.iter().map(|report| report[key].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(of("file"), ["image", "missing", "other"]);
    assert_eq!(of("status"), ["ok", "failed", "ok"]);
    assert_eq!(of("command"), ["inspect"; 3]);
    assert!(reports.iter().all(|report| report["schema"] == 1));
    assert_eq!(reports[1]["error_kind"], "not_found");
}

#[test]
fn a_delta_is_decoded_and_is_never_taken_for_an_image() {
    let folder = with_image();
    let folder = folder.path();
    run(folder, &["compress", "-q", "image", "-o", "base.lz4"]).ok();
    run(folder, &["compress", "-q", "--base", "base.lz4", "image", "-o", "delta.tzd"]).ok();
    let report = json(&run(folder, &["inspect", "--decode", "--json", "delta.tzd"]).ok());
    assert_eq!(report["format"], "delta");
    check_content(&report, "delta");
    let report = json(&run(folder, &["inspect", "--json", "delta.tzd"]).ok());
    assert!(report["entropy"].is_null() && report["copies"].is_null());
    run(folder, &["inspect", "--decode", "delta.tzd"]).ok();

    let delta = fs::read(folder.join("delta.tzd")).unwrap();
    run_with(folder, &["inspect", "-", "--json"], &delta).fails_as("not_compressed", &["standard input"]);
    for args in
        [&["inspect", "-"][..], &["inspect", "--decode", "/dev/stdin"], &["test"], &["extract", "-", "--pages=0"]]
    {
        let mut command = command(folder, args);
        let ran = command.stdin(fs::File::open(folder.join("delta.tzd")).unwrap()).output().unwrap();
        let stderr = String::from_utf8(ran.stderr).unwrap();
        assert_eq!((ran.status.code(), ran.stdout.len()), (Some(1), 0), "{args:?}: {stderr}");
        assert!(stderr.starts_with("trueno-zram: standard input: "), "{args:?}: {stderr}");
    }

    // A damaged page of the base, which the index does not show.
    let mut base = fs::read(folder.join("base.lz4")).unwrap();
    base[2 * PAGE_SIZE] ^= 1;
    fs::write(folder.join("base.lz4"), base).unwrap();
    run(folder, &["inspect", "delta.tzd"]).ok();
    run(folder, &["inspect", "--decode", "delta.tzd", "--json"]).fails_as("base", &["delta.tzd: ", "base.lz4: "]);
}

#[test]
fn a_named_pipe_is_opened_once() {
    let folder = with_image();
    let folder = folder.path();
    run(folder, &["compress", "-q", "image"]).ok();
    rustix::fs::mknodat(rustix::fs::CWD, folder.join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for (content, format) in [("image", "image"), ("image.lz4", "archive")] {
        let child = command(folder, &["inspect", "--json", "fifo"]).spawn().unwrap();
        // The writer writes once. A second reader would wait for ever, or get the rest.
        let written = fs::write(folder.join("fifo"), fs::read(folder.join(content)).unwrap());
        let ran = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&ran.stderr);
        written.unwrap();
        assert!(ran.status.success(), "{stderr}");
        let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!(report["format"], format);
        check_known(&report, format);
        check_content(&report, format);
    }
}
