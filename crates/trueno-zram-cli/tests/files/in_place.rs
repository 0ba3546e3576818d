//! `decompress --in-place`: files that exist already and are filled.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::process::{Pid, Signal, kill_process};

use crate::shim::run_refusing;
use crate::support::{command, folder, image, run};

/// More than a group, so that it is filled by many threads.
const PAGES: usize = 5000;

#[test]
fn an_existing_file_is_filled_and_not_replaced() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let image = image(PAGES);
    fs::write(path("image"), &image).unwrap();
    fs::write(path("old"), vec![0xee; (PAGES + 10) * 4096]).unwrap();
    let open = File::open(path("old")).unwrap();
    for (algorithm, archive) in [("lz4", "image.lz4"), ("zstd", "image.zst")] {
        run(folder.path(), &["compress", "-q", "--algorithm", algorithm, "image", "-o", archive]).ok();
        let args = ["decompress", "--in-place", archive, "-o", "old", "--json"];
        let report = &run(folder.path(), &args).ok().json()[0];
        assert_eq!((&report["output"], report["bytes_out"].as_u64()), (&"old".into(), Some(image.len() as u64)));
        assert_eq!(fs::metadata(path("old")).unwrap().ino(), open.metadata().unwrap().ino());
        let content = fs::read(path("old")).unwrap();
        assert!(content[..image.len()] == image && content[image.len()..].iter().all(|byte| *byte == 0));
        assert_eq!(content.len(), (PAGES + 10) * 4096, "it keeps its length");
        assert!(open.metadata().unwrap().blocks() * 512 < image.len() as u64 * 9 / 10, "zeros are holes");
        open.read_exact_at(&mut [0], 0).unwrap();
    }
    std::os::unix::fs::symlink("image.lz4", path("link")).unwrap();
    fs::hard_link(path("image.lz4"), path("twin")).unwrap();
    let archive = fs::read(path("image.lz4")).unwrap();
    for itself in ["image.lz4", "link", "twin"] {
        let args = ["decompress", "--in-place", "image.lz4", "-o", itself, "--json"];
        run(folder.path(), &args).fails_as("refused", &[itself]);
        assert!(fs::read(path("image.lz4")).unwrap() == archive, "{itself}");
    }
    let swapped = ["decompress", "--in-place", "image", "-o", "image.lz4", "--json"];
    run(folder.path(), &swapped).fails_as("not_compressed", &["image: "]);
    assert!(fs::read(path("image.lz4")).unwrap() == archive, "arguments in the wrong order change nothing");
    let missing = ["decompress", "--in-place", "image.lz4", "-o", "missing", "--json"];
    run(folder.path(), &missing).fails_as("not_found", &["missing: "]);
    run(folder.path(), &["decompress", "--in-place", "image.lz4"]).refuses(&["--output"]);
    run(folder.path(), &["decompress", "--in-place", "image.lz4", "--output-dir", "."]).refuses(&["--output-dir"]);
}

#[test]
fn a_delta_fills_a_file() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let (old, mut new) = (image(PAGES), image(PAGES));
    for page in (0..PAGES).step_by(30) {
        new[page * 4096 + 5] ^= 0x77;
    }
    new.extend(b"a shorter last page");
    fs::write(path("old"), old).unwrap();
    fs::write(path("new"), &new).unwrap();
    run(folder.path(), &["compress", "-q", "old"]).ok();
    run(folder.path(), &["compress", "-q", "--base", "old.lz4", "new"]).ok();
    fs::write(path("file"), vec![0xee; (PAGES + 10) * 4096]).unwrap();
    let report = &run(folder.path(), &["decompress", "--in-place", "new.tzd", "-o", "file", "--json"]).ok().json()[0];
    assert_eq!(report["bytes_out"].as_u64(), Some(new.len() as u64));
    let content = fs::read(path("file")).unwrap();
    assert!(content[..new.len()] == new && content[new.len()..].iter().all(|byte| *byte == 0));
    assert_eq!(content.len(), (PAGES + 10) * 4096);
    fs::create_dir(path("elsewhere")).unwrap();
    fs::rename(path("old.lz4"), path("elsewhere/old.lz4")).unwrap();
    fs::write(path("file"), b"old").unwrap();
    let args = ["decompress", "-q", "--in-place", "new.tzd", "--base", "elsewhere/old.lz4", "-o", "file"];
    run(folder.path(), &args).ok();
    assert!(fs::read(path("file")).unwrap() == new);
}

#[test]
fn a_signal_leaves_a_part_of_the_content_and_says_so() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let mut pages = PAGES;
    // A run that is complete before the signal comes is repeated with more pages.
    for _ in 0..8 {
        fs::write(path("image"), image(pages)).unwrap();
        run(folder.path(), &["compress", "-q", "-f", "image"]).ok();
        fs::write(path("old"), b"old").unwrap();
        let args = ["decompress", "-q", "-T1", "--in-place", "image.lz4", "-o", "old"];
        let mut child = command(folder.path(), &args).spawn().unwrap();
        while fs::metadata(path("old")).unwrap().blocks() < 16 && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let output = child.wait_with_output().unwrap();
        if !output.status.success() {
            assert_eq!(output.status.signal(), Some(Signal::TERM.as_raw()));
            let message = String::from_utf8(output.stderr).unwrap();
            assert_eq!(message, "trueno-zram: old: ended by a signal; the file is partly filled\n");
            return;
        }
        pages *= 2;
    }
    panic!("no run lasted until the signal came");
}

#[test]
fn a_damaged_archive_leaves_nothing_in_the_file() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("image"), image(PAGES)).unwrap();
    run(folder.path(), &["compress", "-q", "image"]).ok();
    let mut archive = fs::read(path("image.lz4")).unwrap();
    let middle = archive.len() / 2;
    archive[middle] ^= 1;
    fs::write(path("image.lz4"), archive).unwrap();
    fs::write(path("old"), vec![0xee; 100_000]).unwrap();
    run(folder.path(), &["decompress", "--in-place", "image.lz4", "-o", "old", "--json"])
        .fails_as("damaged", &["image.lz4: "]);
    assert!(fs::read(path("old")).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn a_memfd_of_another_process_is_filled_and_its_seals_are_respected() {
    let folder = folder();
    let image = image(PAGES);
    fs::write(folder.path().join("image"), &image).unwrap();
    run(folder.path(), &["compress", "-q", "image"]).ok();
    let fill = |file: &File| {
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        run(folder.path(), &["decompress", "-q", "--in-place", "image.lz4", "-o", &path])
    };
    // As a VMM has it: of the right length, and sealed.
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memfd = File::from(memfd_create("memory", flags).unwrap());
    memfd.set_len(image.len() as u64).unwrap();
    memfd.write_all_at(&[0xee; 8192], image.len() as u64 / 2).unwrap();
    fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    fill(&memfd).ok();
    let mut content = vec![0; image.len()];
    memfd.read_exact_at(&mut content, 0).unwrap();
    assert!(content == image);
    let short = File::from(memfd_create("short", flags).unwrap());
    fcntl_add_seals(&short, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    assert_eq!(fill(&short).code, Some(1));
}

#[test]
fn where_holes_cannot_be_punched_the_file_never_becomes_shorter() {
    let folder = folder();
    let folder = folder.path();
    let content = image(100);
    fs::write(folder.join("image"), &content).unwrap();
    run(folder, &["compress", "-q", "image"]).ok();
    fs::write(folder.join("memory"), vec![0xee; 150 * 4096]).unwrap();
    let args = ["decompress", "-q", "--in-place", "image.lz4", "-o", "memory", "--json"];
    // Somebody may have mapped the file, and would get SIGBUS: there is no call to make it shorter.
    run_refusing(folder, &args, "fallocate,ftruncate:EOPNOTSUPP").ok();
    let filled = fs::read(folder.join("memory")).unwrap();
    assert!(filled[..content.len()] == content && filled.len() == 150 * 4096);
    assert!(filled[content.len()..].iter().all(|byte| *byte == 0));

    // After a failure as well.
    let mut archive = fs::read(folder.join("image.lz4")).unwrap();
    let middle = archive.len() / 2;
    archive[middle] ^= 1;
    fs::write(folder.join("image.lz4"), archive).unwrap();
    run_refusing(folder, &args, "fallocate,ftruncate:EOPNOTSUPP").fails_as("damaged", &["image.lz4: "]);
    assert!(fs::read(folder.join("memory")).unwrap() == vec![0; 150 * 4096]);
}
