//! `criu compress`, `criu decompress` and `criu lazy-pages`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{command, folder, image, names, run};

const PAGES: u32 = 3000;
const ADDRESS: u64 = 0x7f12_3456_7000;

/// An image directory with two processes, as `criu dump` writes it.
fn write_images(dir: &Path) -> Vec<u8> {
    fs::create_dir(dir).unwrap();
    for (pid, pages_id) in [(7, 1), (8, 2)] {
        fs::write(dir.join(format!("pagemap-{pid}.img")), pagemap(pages_id, PAGES)).unwrap();
        fs::write(dir.join(format!("pages-{pages_id}.img")), image(PAGES as usize)).unwrap();
    }
    fs::write(dir.join("inventory.img"), b"inventory").unwrap();
    // No pagemap describes it.
    fs::write(dir.join("pages-9.img"), image(5)).unwrap();
    image(PAGES as usize)
}

/// A pagemap of one entry of pages that can wait: the magic numbers, and two messages with their lengths.
fn pagemap(pages_id: u8, pages: u32) -> Vec<u8> {
    fn number(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 128 {
            bytes.push(value.to_le_bytes()[0] | 128);
            value >>= 7;
        }
        bytes.push(value.to_le_bytes()[0]);
        bytes
    }
    let entry = [&[8][..], &number(ADDRESS), &[16, 0, 32, 6, 40], &number(pages.into())].concat();
    let mut bytes = vec![0x19, 0x43, 0x56, 0x54, 0x25, 0x40, 0x08, 0x56];
    for message in [&[8, pages_id][..], &entry] {
        bytes.extend_from_slice(&u32::try_from(message.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(message);
    }
    bytes
}

#[test]
fn a_signal_at_any_moment_leaves_no_lazy_directory() {
    let folder = folder();
    write_images(&folder.path().join("images"));
    let lazy = folder.path().join("lazy");
    for _ in 0..8 {
        let args = ["-q", "criu", "lazy-pages", "images", "--lazy-dir", "lazy"];
        let mut child = command(folder.path(), &args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // As soon as it is there, it has files to come.
        while fs::symlink_metadata(&lazy).is_err() {
            assert!(child.try_wait().unwrap().is_none());
        }
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(15));
        assert!(!lazy.exists());
    }
}

#[test]
fn pages_become_archives_and_come_back() {
    let folder = folder();
    let dir = folder.path().join("images");
    let content = write_images(&dir);
    let before = names(&dir);
    run(folder.path(), &["criu", "compress", "-q", "images"]).ok();
    let packed =
        ["inventory.img", "pagemap-7.img", "pagemap-8.img", "pages-1.img.lz4", "pages-2.img.lz4", "pages-9.img"];
    assert_eq!(names(&dir), packed);
    run(folder.path(), &["criu", "compress", "images", "--json"]).fails_as("other", &["images: "]);
    run(folder.path(), &["criu", "decompress", "-q", "images"]).ok();
    assert_eq!(names(&dir), before);
    assert!(fs::read(dir.join("pages-2.img")).unwrap() == content);
    run(folder.path(), &["criu", "compress", "-q", "--keep", "--algorithm", "zstd", "images"]).ok();
    assert!(dir.join("pages-1.img").exists() && dir.join("pages-1.img.zst").exists());
    run(folder.path(), &["criu", "decompress", ".", "--json"]).fails_as("other", &[]);
    // Pages that CRIU has compressed itself have flags and fields that are not known.
    let mut foreign = pagemap(1, 1);
    let flags = foreign.iter().rposition(|byte| *byte == 6).unwrap();
    foreign[flags] = 12;
    fs::write(dir.join("pagemap-7.img"), foreign).unwrap();
    run(folder.path(), &["criu", "compress", "images", "--json"]).fails_as("other", &["pagemap-7.img: ", "0xc"]);
}

#[test]
fn deltas_of_an_earlier_dump_become_pages_again() {
    let folder = folder();
    let (before, dir) = (folder.path().join("before"), folder.path().join("images"));
    write_images(&before);
    let mut content = write_images(&dir);
    content[5 * 4096 + 7] ^= 1;
    fs::write(dir.join("pages-1.img"), &content).unwrap();
    run(folder.path(), &["criu", "compress", "-q", "before"]).ok();
    let base = ["--base", "before/pages-1.img.lz4"];
    run(folder.path(), &[&["compress", "-q", "--rm", "images/pages-1.img"][..], &base].concat()).ok();
    assert!(dir.join("pages-1.img.tzd").exists() && !dir.join("pages-1.img").exists());
    fs::rename(&before, folder.path().join("moved")).unwrap();
    for args in [&["criu", "decompress", "images"][..], &["criu", "lazy-pages", "images", "--lazy-dir", "lazy"]] {
        let refused = run(folder.path(), &[args, &["--json"]].concat());
        refused.fails_as("base", &["pages-1.img.tzd", "before/pages-1.img.lz4"]);
    }
    run(folder.path(), &["criu", "decompress", "-q", "images", "--base", "moved/pages-1.img.lz4"]).ok();
    assert!(fs::read(dir.join("pages-1.img")).unwrap() == content);
}

#[test]
fn files_with_equal_pages_stored_once_become_pages_again() {
    let folder = folder();
    let dir = folder.path().join("images");
    let content = write_images(&dir);
    run(folder.path(), &["compress", "-q", "--dedup", "--rm", "images/pages-1.img"]).ok();
    assert!(dir.join("pages-1.img.tzd").exists() && !dir.join("pages-1.img").exists());
    run(folder.path(), &["criu", "decompress", "-q", "images"]).ok();
    assert!(fs::read(dir.join("pages-1.img")).unwrap() == content);
}

#[test]
fn one_archive_or_delta_is_restored_alone() {
    let folder = folder();
    write_images(&folder.path().join("images"));
    run(folder.path(), &["criu", "compress", "-q", "images"]).ok();
    fs::write(folder.path().join("base"), image(100)).unwrap();
    run(folder.path(), &["compress", "-q", "base"]).ok();
    let tzd = "images/pages-2.img.tzd";
    for (images, made) in
        [("images/pages-2.img.lz4", None), (tzd, Some(&["--base", "base.lz4"][..])), (tzd, Some(&["--dedup"]))]
    {
        if let Some(made) = made {
            let before = if folder.path().join(tzd).exists() { tzd } else { "images/pages-2.img.lz4" };
            run(folder.path(), &["decompress", "-q", "--rm", before]).ok();
            run(folder.path(), &[&["compress", "-q", "--rm", "images/pages-2.img"], made].concat()).ok();
        }
        let mut child = command(folder.path(), &["criu", "lazy-pages", images, "--lazy-dir", "lazy"]).spawn().unwrap();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
        let lazy = folder.path().join("lazy");
        assert!(lazy.join("inventory.img").exists() && lazy.join("pagemap-8.img").exists());
        assert!(!lazy.join("pagemap-7.img").exists(), "the other process");
        assert_eq!(fs::metadata(lazy.join("pages-2.img")).unwrap().len(), 0, "all pages can wait");
        let mut restore = UnixStream::connect(folder.path().join("lazy-pages.socket")).unwrap();
        restore.write_all(&0x5253_5446u32.to_ne_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(!lazy.exists(), "it is removed at the end");
    }
    let other = ["criu", "lazy-pages", "images/inventory.img", "--lazy-dir", "lazy", "--json"];
    run(folder.path(), &other).fails_as("other", &["inventory.img: "]);
}

#[test]
fn lazy_pages_makes_its_directory_and_socket_and_removes_both() {
    let folder = folder();
    write_images(&folder.path().join("images"));
    run(folder.path(), &["criu", "compress", "-q", "images"]).ok();
    let args = ["criu", "lazy-pages", "images", "--lazy-dir", "lazy", "--json"];
    let socket = folder.path().join("lazy-pages.socket");
    let start = || {
        let mut child = command(folder.path(), &args).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        assert!(socket.exists(), "{line}");
        assert!(folder.path().join("lazy/pagemap-7.img").exists());
        (child, stderr)
    };
    // A restore of no processes, as the word "RSTF" says.
    let (mut child, _stderr) = start();
    // It serves one connection. Another server that wants its place must not take it.
    let other = ["criu", "lazy-pages", "images", "--lazy-dir", "other", "--json"];
    run(folder.path(), &other).fails_as("in_use", &["lazy-pages.socket: "]);
    assert!(!folder.path().join("other").exists());
    UnixStream::connect(&socket).unwrap().write_all(&0x5253_5446u32.to_ne_bytes()).unwrap();
    let mut json = String::new();
    child.stdout.take().unwrap().read_to_string(&mut json).unwrap();
    assert!(child.wait().unwrap().success());
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((report["memory_bytes"].as_u64(), &report["complete"]), (Some(0), &true.into()));
    assert!(!socket.exists() && !folder.path().join("lazy").exists());
    // A restore that fails, and a signal.
    let (mut child, mut stderr) = start();
    drop(UnixStream::connect(&socket).unwrap());
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{text}");
    let (mut child, _stderr) = start();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    assert!(!socket.exists() && !folder.path().join("lazy").exists());
    run(folder.path(), &["criu", "lazy-pages", "images", "--lazy-dir", "images", "--json"])
        .fails_as("io", &["images: "]);
    fs::write(&socket, b"content").unwrap();
    run(folder.path(), &other).fails_as("in_use", &["lazy-pages.socket: "]);
    assert_eq!(fs::read(&socket).unwrap(), b"content");
}

#[test]
fn pipes_among_the_images_are_refused_instead_of_waited_for() {
    let folder = folder();
    let dir = folder.path().join("images");
    write_images(&dir);
    let make_pipe = |name: &str| {
        fs::remove_file(dir.join(name)).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, dir.join(name), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    };
    make_pipe("pages-1.img");
    let lazy_pages = ["criu", "lazy-pages", "images", "--lazy-dir", "lazy", "--json"];
    for args in [&["criu", "compress", "images", "--json"][..], &lazy_pages] {
        run(folder.path(), args).fails_as("refused", &["pages-1.img: "]);
    }
    make_pipe("pagemap-7.img");
    run(folder.path(), &lazy_pages).fails_as("refused", &["pagemap-7.img: "]);
}

#[test]
fn messages_name_only_options_that_there_are() {
    let folder = folder();
    let dir = folder.path().join("images");
    write_images(&dir);
    fs::rename(dir.join("pages-2.img"), dir.join("other")).unwrap();
    std::os::unix::fs::symlink("other", dir.join("pages-2.img")).unwrap();
    fs::write(dir.join("pages-1.img.lz4"), b"old").unwrap();
    let refused = run(folder.path(), &["criu", "compress", "-q", "images", "--json"]);
    assert_eq!(refused.code, Some(1));
    let kinds: Vec<_> = refused.json().iter().map(|object| object["error_kind"].clone()).collect();
    assert_eq!(kinds, ["exists", "refused"]);
    let lines: Vec<&str> = refused.stderr.lines().collect();
    assert!(lines[0].contains("pages-1.img.lz4: ") && lines[1].contains("pages-2.img: "), "{lines:?}");
    assert!(lines[1].contains("--keep"), "{lines:?}");
    assert!(!refused.stderr.contains("-f ") && !refused.stderr.contains("--rm"), "{lines:?}");
}
