//! Files of other encoders.

use std::fs;

use trueno_test_pages::frames;

use crate::support::{folder, image, run, run_with};

#[test]
fn frames_of_c_lz4_in_every_shape_are_restored() {
    let folder = folder();
    let mut content = image(1200);
    content.truncate(content.len() - 1234);
    for shape in frames::all_settings() {
        let frame = frames::compress(&content, &shape);
        fs::write(folder.path().join("x.lz4"), &frame).unwrap();
        run(folder.path(), &["decompress", "-f", "x.lz4"]).ok();
        assert!(fs::read(folder.path().join("x")).unwrap() == content, "{shape:?}");
        run(folder.path(), &["test", "x.lz4"]).ok();
    }
}

#[test]
fn short_and_empty_frames_are_restored() {
    let folder = folder();
    let whole = image(1);
    for shape in frames::all_settings().iter().step_by(3) {
        for len in [0, 1, 12, 13, 64, 4095, 4096] {
            let frame = frames::compress(&whole[..len], shape);
            assert!(run_with(folder.path(), &["decompress"], &frame).ok().stdout == whole[..len], "{shape:?} {len}");
        }
    }
}

#[test]
fn the_old_format_is_restored() {
    let folder = folder();
    let content = image(300);
    // Blocks of up to 8 MiB, each after its length.
    let block = lz4_flex::block::compress(&content);
    let len = u32::try_from(block.len()).unwrap();
    let file = [&0x184c_2102_u32.to_le_bytes()[..], &len.to_le_bytes(), &block].concat();
    assert!(run_with(folder.path(), &["decompress"], &file).ok().stdout == content);
}

#[test]
fn skippable_and_concatenated_frames_are_read_as_one() {
    let folder = folder();
    let (first, second) = (image(20), image(30));
    let shapes = frames::all_settings();
    let skippable = [&0x184d_2a53_u32.to_le_bytes()[..], &5_u32.to_le_bytes(), b"notes"].concat();
    let ours = run_with(folder.path(), &["compress"], &second).ok().stdout;
    let input = [skippable.clone(), frames::compress(&first, &shapes[3]), skippable, ours].concat();
    let both = [first, second].concat();
    assert!(run_with(folder.path(), &["decompress"], &input).ok().stdout == both);
}

#[test]
fn files_of_other_kinds_are_refused_by_name() {
    let folder = folder();
    fs::write(folder.path().join("x.lz4"), b"\x1f\x8b\x08\0 gzip begins like that").unwrap();
    fs::write(folder.path().join("empty.lz4"), b"").unwrap();
    run(folder.path(), &["decompress", "x.lz4", "--json"]).fails_as("not_compressed", &["x.lz4"]);
    run(folder.path(), &["test", "x.lz4", "--json"]).fails_as("not_compressed", &["x.lz4"]);
    assert!(!folder.path().join("x").exists());
    run(folder.path(), &["test", "empty.lz4", "--json"]).fails_as("not_compressed", &["empty.lz4"]);
}
