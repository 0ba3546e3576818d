//! Deltas: made with `--base`, read by every command, refused with a wrong or missing base, and flattened.

mod dedup;

use std::fs;
use std::path::Path;
use std::process::Command;

use trueno_test_pages::PAGE_SIZE;
use trueno_zram_archive::{ArchiveWriter, WriteOptions};
use trueno_zram_core::CpuBatchCompressor;

use crate::support::{folder, image, names, run, run_with};

/// An image that differs from `image(pages)` in a twentieth of its pages, and in its length.
fn changed_image(pages: usize) -> Vec<u8> {
    let mut changed = image(pages);
    for page in (0..pages).step_by(20) {
        changed[page * PAGE_SIZE + 77] ^= 0x5a;
    }
    changed.extend(b"a shorter last page");
    changed
}

/// A base of this format in `folder`, with the image `old`, and the changed image `new`.
fn prepare(folder: &Path, base_args: &[&str], base: &str) -> Vec<u8> {
    let changed = changed_image(1500);
    fs::write(folder.join("old"), image(1500)).unwrap();
    fs::write(folder.join("new"), &changed).unwrap();
    run(folder, &[&["compress", "old", "-o", base], base_args].concat()).ok();
    changed
}

#[test]
fn every_command_reads_a_delta_of_either_format_on_either_format() {
    for (base_args, delta_args) in [
        (&["--page-hashes"][..], &[][..]),
        (&[], &["--algorithm", "zstd"]),
        (&["--algorithm", "zstd", "--page-hashes"], &[]),
        (&["--algorithm", "zstd", "-T1"], &["--algorithm", "zstd", "-T1"]),
    ] {
        let folder = folder();
        let folder = folder.path();
        let content = prepare(folder, base_args, "base");
        run(folder, &[&["compress", "--base", "base", "new"], delta_args].concat()).ok();
        let (delta, full) = (fs::metadata(folder.join("new.tzd")).unwrap(), fs::metadata(folder.join("base")).unwrap());
        assert!(delta.len() < full.len() / 5, "{} and {}", delta.len(), full.len());

        run(folder, &["test", "new.tzd"]).ok();
        run(folder, &["decompress", "new.tzd", "-o", "back"]).ok();
        assert!(fs::read(folder.join("back")).unwrap() == content);
        assert!(run(folder, &["decompress", "-c", "new.tzd"]).ok().stdout == content, "in order, to a pipe");
        run(folder, &["decompress", "--no-sparse", "-T1", "-f", "new.tzd", "-o", "back"]).ok();
        assert!(fs::read(folder.join("back")).unwrap() == content);
        let pages = run(folder, &["extract", "new.tzd", "--pages", "1190..1300,20"]).ok().stdout;
        let page = |number: usize| &content[number * PAGE_SIZE..][..PAGE_SIZE];
        assert!(pages == [&content[1190 * PAGE_SIZE..1300 * PAGE_SIZE], page(20)].concat());
        let bytes = run(folder, &["extract", "new.tzd", "--bytes", "5000..700000"]).ok().stdout;
        assert!(bytes == content[5000..700_000]);
        run(folder, &["extract", "new.tzd", "--pages", "1501"]).fails(&["new.tzd", "1501"]);

        run(folder, &[&["flatten", "new.tzd", "-o", "flat"], delta_args].concat()).ok();
        fs::rename(folder.join("base"), folder.join("gone")).unwrap();
        run(folder, &["decompress", "-f", "flat", "-o", "back"]).ok();
        assert!(fs::read(folder.join("back")).unwrap() == content, "a flat archive needs no base");
    }
}

#[test]
fn reports_count_pages_by_where_they_come_from() {
    let folder = folder();
    let folder = folder.path();
    prepare(folder, &["--page-hashes"], "old.lz4");
    let made = run(folder, &["compress", "--base", "old.lz4", "new", "--json"]).ok().json().remove(0);
    let number = |key: &str| made[key].as_u64().unwrap();
    assert_eq!(made["base"], "old.lz4");
    assert_eq!(number("pages"), 1501);
    assert!((70..=76).contains(&(number("stored_pages") + number("duplicate_pages"))), "{made}");
    assert_eq!(number("zero") + number("base_pages") + number("stored_pages") + number("duplicate_pages"), 1501);
    assert_eq!(number("same_filled") + number("lz4") + number("raw"), number("stored_pages"));
    let shown = run(folder, &["inspect", "new.tzd", "--json"]).ok().json().remove(0);
    for key in ["pages", "zero", "base_pages", "stored_pages", "duplicate_pages", "lz4", "raw", "base"] {
        assert_eq!(shown[key], made[key], "{key}");
    }
    assert_eq!((&shown["format"], &shown["depth"]), (&"delta".into(), &1.into()));
    run(folder, &["inspect", "new.tzd"]).ok();
}

#[test]
fn chains_are_followed_wherever_their_files_are_named() {
    let folder = folder();
    let folder = folder.path();
    prepare(folder, &[], "old.lz4");
    fs::create_dir(folder.join("deltas")).unwrap();
    run(folder, &["compress", "--base", "old.lz4", "new", "-o", "deltas/1.tzd"]).ok();
    let mut last = fs::read(folder.join("new")).unwrap();
    last[700 * PAGE_SIZE..][..PAGE_SIZE].fill(0x11);
    last.truncate(1200 * PAGE_SIZE + 1);
    let second = ["compress", "--base", "deltas/1.tzd", "-o", "deltas/2.tzd"];
    run_with(folder, &second, &last).ok();
    assert!(run(folder, &["decompress", "-c", "deltas/2.tzd"]).ok().stdout == last);
    // Both deltas move; the base of the first was named from the root.
    fs::rename(folder.join("deltas"), folder.join("moved")).unwrap();
    assert!(run(folder, &["decompress", "-c", "moved/2.tzd"]).ok().stdout == last);
    // The base moves, too.
    fs::rename(folder.join("old.lz4"), folder.join("elsewhere.lz4")).unwrap();
    run(folder, &["test", "moved/2.tzd", "--json"]).fails_as("base", &["moved/2.tzd: ", "old.lz4: "]);
    run(folder, &["test", "moved/2.tzd", "--base", "elsewhere.lz4"]).ok();
    // A base beside the delta is found by its name.
    fs::rename(folder.join("elsewhere.lz4"), folder.join("moved/old.lz4")).unwrap();
    run(folder, &["test", "moved/2.tzd"]).ok();
}

#[test]
fn the_longest_chain_is_read_by_every_command_and_does_not_become_longer() {
    let folder = folder();
    let folder = folder.path();
    let mut content = image(1100);
    fs::write(folder.join("image"), &content).unwrap();
    run(folder, &["compress", "-q", "--page-hashes", "image", "-o", "0"]).ok();
    for number in 1..=32 {
        content[number * 20 * PAGE_SIZE + 5] ^= 0x5a;
        fs::write(folder.join("image"), &content).unwrap();
        let (base, delta) = ((number - 1).to_string(), number.to_string());
        run(folder, &["compress", "-q", "--base", &base, "image", "-o", &delta]).ok();
    }
    run(folder, &["test", "-q", "32"]).ok();
    assert!(run(folder, &["decompress", "-q", "-c", "32"]).ok().stdout == content);
    run(folder, &["decompress", "-q", "32", "-o", "back"]).ok();
    assert!(fs::read(folder.join("back")).unwrap() == content);
    let pages = run(folder, &["extract", "-q", "32", "--pages", "0..3,639..1100"]).ok().stdout;
    assert!(pages == [&content[..3 * PAGE_SIZE], &content[639 * PAGE_SIZE..]].concat());
    assert!(run(folder, &["extract", "-q", "32", "--bytes", "5000..70000"]).ok().stdout == content[5000..70_000]);
    assert_eq!(run(folder, &["inspect", "32", "--json"]).ok().json()[0]["depth"], 32);
    run(folder, &["flatten", "-q", "32", "-o", "flat"]).ok();
    assert!(run(folder, &["decompress", "-q", "-c", "flat"]).ok().stdout == content);

    let before = names(folder);
    run(folder, &["compress", "-q", "--rm", "--base", "32", "image", "-o", "33", "--json"]).fails_as("base", &["32: "]);
    let pid = std::process::id().to_string();
    run(folder, &["snapshot", "-q", "--base", "32", &pid, "-o", "33", "--json"]).fails_as("base", &["32: "]);
    run(folder, &["compress", "-q", "--rm", "--base", "0", "0", "-o", "x", "--json"]).fails_as("refused", &["0: "]);
    assert_eq!(names(folder), before);
}

/// Writes an archive that states the hashes of other pages than it has. All its checksums are right.
fn write_lying_base(path: &Path, content: &[u8], stated: &[u8]) {
    let options = WriteOptions::default().with_page_hashes(true);
    let mut archive = ArchiveWriter::new(Vec::new(), options).unwrap();
    let batch = CpuBatchCompressor::default().compress(content.as_chunks().0).unwrap();
    archive.write_batch_of(&batch, stated.as_chunks().0).unwrap();
    fs::write(path, archive.finish(None).unwrap().0).unwrap();
}

/// Pages that are all different, none of them zero.
fn distinct_pages(count: u32) -> Vec<u8> {
    let page = |number: u32| [&[number.to_le_bytes()[0]; PAGE_SIZE - 4][..], &(number + 1).to_le_bytes()].concat();
    (0..count).flat_map(page).collect()
}

#[test]
fn a_base_that_states_false_hashes_is_refused_by_its_page() {
    let folder = folder();
    let folder = folder.path();
    let image = distinct_pages(5000);
    fs::write(folder.join("image"), &image).unwrap();
    let mut content = image.clone();
    content[1234 * PAGE_SIZE] ^= 1;
    write_lying_base(&folder.join("one.lz4"), &content, &image);
    (0..50).for_each(|number| content[(number * 100 + 7) * PAGE_SIZE] ^= 1);
    write_lying_base(&folder.join("many.lz4"), &content, &image);
    write_lying_base(&folder.join("none.lz4"), &image, &image);

    let compress = |base: &str, more: &[&str]| {
        run(folder, &[&["compress", "-q", "--json", "image", "-o", "image.tzd", "--base", base], more].concat())
    };
    let before = names(folder);
    compress("many.lz4", &[]).fails_as("damaged", &["many.lz4: "]);
    compress("many.lz4", &["--check-base", "sampled"]).fails_as("damaged", &["many.lz4: "]);
    compress("many.lz4", &["--check-base", "all"]).fails_as("damaged", &["many.lz4: "]);
    compress("one.lz4", &["--check-base", "all"]).fails_as("damaged", &["one.lz4: ", "1234"]);
    let pid = std::process::id().to_string();
    run(folder, &["snapshot", "-q", &pid, "-o", "x", "--base", "many.lz4", "--json"])
        .fails_as("damaged", &["many.lz4: "]);
    compress("many.lz4", &["--check-base", "some"]).refuses(&["--check-base"]);
    run(folder, &["compress", "image", "-o", "x", "--check-base", "all"]).refuses(&["--base"]);
    assert_eq!(names(folder), before, "nothing is left");
    compress("none.lz4", &["--check-base", "all"]).ok();
    compress("none.lz4", &["--check-base", "sampled", "-f"]).ok();
    assert!(run(folder, &["decompress", "-q", "-c", "image.tzd"]).ok().stdout == image);
}

#[test]
fn wrong_and_missing_bases_are_refused_by_name() {
    let folder = folder();
    let folder = folder.path();
    prepare(folder, &[], "old.lz4");
    run(folder, &["compress", "--base", "old.lz4", "new"]).ok();
    let commands: [&[&str]; 5] = [
        &["test", "new.tzd"],
        &["decompress", "new.tzd", "-o", "back"],
        &["extract", "new.tzd", "--pages", "0", "-o", "back"],
        &["inspect", "new.tzd"],
        &["flatten", "new.tzd", "-o", "back"],
    ];
    // Another archive has its name.
    run(folder, &["compress", "-f", "new", "-o", "old.lz4"]).ok();
    for args in commands {
        run(folder, &[args, &["--json"]].concat()).fails_as("base", &["new.tzd: ", "old.lz4: "]);
    }
    fs::remove_file(folder.join("old.lz4")).unwrap();
    for args in commands {
        run(folder, &[args, &["--json"]].concat()).fails_as("base", &["new.tzd: ", "old.lz4: "]);
    }
    assert!(!folder.join("back").exists());
    // A pipe would block.
    rustix::fs::mknodat(rustix::fs::CWD, folder.join("old.lz4"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for args in commands {
        run(folder, &[args, &["--json"]].concat()).fails_as("base", &["new.tzd: ", "old.lz4: "]);
    }
}

#[test]
fn a_base_that_changed_its_pages_is_an_error_and_leaves_no_output() {
    let folder = folder();
    let folder = folder.path();
    // Pages that do not shrink, without checksums: their bytes lie in the file as they are.
    let noise: Vec<u8> =
        (0..100 * PAGE_SIZE as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    fs::write(folder.join("old"), &noise).unwrap();
    run(folder, &["compress", "--no-block-checksums", "old"]).ok();
    run(folder, &["compress", "--base", "old.lz4", "old", "-o", "new.tzd"]).ok();
    let mut base = fs::read(folder.join("old.lz4")).unwrap();
    let at = base.len() / 2;
    base[at] ^= 1;
    fs::write(folder.join("old.lz4"), base).unwrap();
    run(folder, &["test", "new.tzd", "--json"]).fails_as("damaged", &["new.tzd: ", "old.lz4"]);
    run(folder, &["decompress", "new.tzd", "--json"]).fails_as("damaged", &["new.tzd: "]);
    assert!(!folder.join("new").exists());
}

#[test]
fn lz4_and_zstd_refuse_a_delta() {
    let folder = folder();
    let folder = folder.path();
    prepare(folder, &[], "old.lz4");
    run(folder, &["compress", "--base", "old.lz4", "new"]).ok();
    for tool in ["lz4", "zstd"] {
        let Ok(output) = Command::new(tool).args(["-dc", "new.tzd"]).current_dir(folder).output() else { continue };
        assert!(!output.status.success(), "{tool}");
        assert!(output.stdout.is_empty(), "{tool} restores nothing of it");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = folder();
    let folder = folder.path();
    prepare(folder, &[], "old.lz4");
    run(folder, &["compress", "--base", "old.lz4", "new"]).ok();
    run(folder, &["compress", "--base", "old", "new", "-o", "x"]).fails(&["old: "]);
    run(folder, &["compress", "--base", "missing", "new", "-o", "x", "--json"]).fails_as("not_found", &["missing: "]);
    run(folder, &["compress", "-q", "--base", "old.lz4", "new", "-f", "-o", "old.lz4", "--json"])
        .fails_as("refused", &["old.lz4: "]);
    run(folder, &["compress", "--base", "old.lz4", "--backend", "interpreter", "new", "-o", "x"]).refuses(&["--base"]);
    run(folder, &["compress", "--base", "old.lz4", "--page-hashes", "new", "-o", "x"]).refuses(&["--page-hashes"]);
    fs::copy(folder.join("new.tzd"), folder.join("nameless")).unwrap();
    run(folder, &["decompress", "nameless"]).fails(&["nameless: "]);
    run(folder, &["flatten", "old.lz4", "-o", "x"]).fails(&["old.lz4: "]);
    run(folder, &["decompress", "--salvage", "new.tzd", "-o", "x"]).fails(&["new.tzd: ", "--salvage"]);
    let delta = fs::read(folder.join("new.tzd")).unwrap();
    run_with(folder, &["decompress", "-o", "x", "--json"], &delta).fails_as("not_compressed", &["standard input"]);
    assert!(!folder.join("x").exists());
}

/// A chain of an archive and two deltas, `0.lz4`, `1.tzd` and `2.tzd`, and the content of the last one.
fn prepare_chain(folder: &Path) -> Vec<u8> {
    let content = prepare(folder, &[], "0.lz4");
    run(folder, &["compress", "--base", "0.lz4", "new", "-o", "1.tzd"]).ok();
    let mut last = content;
    last[700 * PAGE_SIZE..][..PAGE_SIZE].fill(0x11);
    fs::write(folder.join("last"), &last).unwrap();
    run(folder, &["compress", "--base", "1.tzd", "last", "-o", "2.tzd"]).ok();
    last
}

#[test]
fn no_output_and_no_removal_hits_a_file_of_the_chain() {
    let folder = folder();
    let folder = folder.path();
    let last = prepare_chain(folder);
    std::os::unix::fs::symlink("0.lz4", folder.join("link")).unwrap();
    fs::hard_link(folder.join("0.lz4"), folder.join("twin")).unwrap();
    fs::create_dir(folder.join("below")).unwrap();
    fs::write(folder.join("below/0.lz4"), image(3)).unwrap();
    fs::copy(folder.join("2.tzd"), folder.join("below/0.lz4.tzd")).unwrap();
    let pid = std::process::id().to_string();
    for base in ["0.lz4", "link", "twin"] {
        for args in [
            &["compress", "-f", "--base", "2.tzd", "new", "-o", base][..],
            &["compress", "--rm", "--base", "2.tzd", base, "-o", "x"],
            &["snapshot", "-f", "--base", "2.tzd", &pid, "-o", base],
            &["flatten", "-f", "2.tzd", "-o", base],
            &["decompress", "-f", "2.tzd", "-o", base],
            &["decompress", "--in-place", "2.tzd", "-o", base],
            &["extract", "-f", "2.tzd", "--pages", "0", "-o", base],
        ] {
            run(folder, &[args, &["--json"]].concat()).fails_as("refused", &[&format!("{base}: ")]);
        }
    }
    for args in [
        &["flatten", "-f", "2.tzd", "-o", "1.tzd"][..],
        &["decompress", "-f", "2.tzd", "-o", "1.tzd"],
        &["decompress", "--in-place", "2.tzd", "-o", "1.tzd"],
    ] {
        run(folder, &[args, &["--json"]].concat()).fails_as("refused", &["1.tzd: "]);
    }
    let into_folder =
        ["decompress", "-f", "--base", "0.lz4", "--base", "1.tzd", "--output-dir", ".", "below/0.lz4.tzd"];
    run(folder, &[&into_folder[..], &["--json"]].concat()).fails_as("refused", &["0.lz4: "]);
    assert!(run(folder, &["decompress", "-c", "2.tzd"]).ok().stdout == last);
}

#[test]
fn an_input_that_another_input_needs_is_not_removed_before_it() {
    let folder = folder();
    let folder = folder.path();
    let last = prepare_chain(folder);
    let refused = run(folder, &["decompress", "-q", "--rm", "1.tzd", "2.tzd", "--output-dir", ".", "--json"]);
    refused.fails_as("refused", &["1.tzd: ", "2.tzd"]);
    assert!(folder.join("1.tzd").exists() && !folder.join("2.tzd").exists());
    assert!(fs::read(folder.join("2")).unwrap() == last);
    run(folder, &["compress", "-q", "--base", "1.tzd", "last", "-o", "2.tzd"]).ok();
    run(folder, &["decompress", "-q", "-f", "--rm", "2.tzd", "1.tzd"]).ok();
    assert!(!folder.join("1.tzd").exists() && fs::read(folder.join("2")).unwrap() == last);
}

#[test]
fn a_source_is_kept_if_its_delta_relies_on_pages_that_cannot_be_read() {
    let folder = folder();
    let folder = folder.path();
    let content = prepare(folder, &["--page-hashes"], "old.lz4");
    let mut base = fs::read(folder.join("old.lz4")).unwrap();
    // A block near the middle. The hashes are at the end, and are right.
    let at = base.len() / 3;
    base[at] ^= 1;
    fs::write(folder.join("old.lz4"), base).unwrap();
    // The page is among those that are compared with their hashes first, or it is missed when the delta is read back.
    run(folder, &["compress", "-q", "--rm", "--base", "old.lz4", "new"]).fails(&["old.lz4: "]);
    assert!(fs::read(folder.join("new")).unwrap() == content);
    prepare(folder, &["-f", "--page-hashes"], "old.lz4");
    run(folder, &["compress", "-q", "-f", "--rm", "--base", "old.lz4", "new"]).ok();
    assert!(!folder.join("new").exists());
    assert!(run(folder, &["decompress", "-c", "new.tzd"]).ok().stdout == content);
}

#[test]
fn a_link_to_a_delta_leads_to_the_bases_beside_it() {
    let folder = folder();
    let folder = folder.path();
    for name in ["store", "links"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    let content = prepare(folder, &[], "store/old.lz4");
    run(folder, &["compress", "--base", "store/old.lz4", "new", "-o", "store/new.tzd"]).ok();
    std::os::unix::fs::symlink("../store/new.tzd", folder.join("links/new.tzd")).unwrap();
    let decompress = ["decompress", "-c", "links/new.tzd"];
    assert!(run(folder, &decompress).ok().stdout == content);
    // A base beside the link is found as well.
    fs::rename(folder.join("store/old.lz4"), folder.join("links/old.lz4")).unwrap();
    assert!(run(folder, &decompress).ok().stdout == content);
    fs::remove_file(folder.join("links/old.lz4")).unwrap();
    run(folder, &decompress).fails(&["store/old.lz4: ", "links/old.lz4: "]);
    // A delta that replaces what a link leads to lies there.
    run(folder, &["compress", "-f", "old", "-o", "store/old.lz4"]).ok();
    run(folder, &["compress", "-f", "--base", "store/old.lz4", "new", "-o", "links/new.tzd"]).ok();
    fs::rename(folder.join("store"), folder.join("moved")).unwrap();
    run(folder, &["test", "moved/new.tzd"]).ok();
}

#[test]
fn named_pipes_are_refused_instead_of_waited_for() {
    let folder = folder();
    let folder = folder.path();
    prepare(folder, &[], "old.lz4");
    run(folder, &["compress", "--base", "old.lz4", "new"]).ok();
    rustix::fs::mknodat(rustix::fs::CWD, folder.join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for args in [
        &["compress", "--base", "fifo", "new", "-o", "x"][..],
        &["extract", "fifo", "--pages", "0"],
        &["flatten", "fifo", "-o", "x"],
        &["restore", "--uffd", "socket", "fifo"],
        &["restore", "--elf-core", "fifo", "-o", "x"],
        &["serve", "fifo", "--nbd", "unix:nbd"],
        &["serve", "fifo", "--overlay", "--nbd", "unix:nbd"],
        &["serve", "--size", "1M", "--load", "fifo", "--nbd", "unix:nbd"],
    ] {
        let refused = run(folder, args);
        refused.fails(&["fifo: "]);
    }
    let shell = "\"$0\" extract <(cat old.lz4) --pages 0";
    let mut inherited = Command::new("bash");
    let extracted = inherited.args(["-c", shell, crate::support::BINARY]).current_dir(folder).output().unwrap();
    assert!(extracted.stdout == image(1), "{}", String::from_utf8_lossy(&extracted.stderr));
}
