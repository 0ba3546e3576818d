//! Small files that expand to much, or claim to: `decompress`, `test` and `extract` take memory in proportion to the file. Large
//! files that are not what their name says are refused by their first bytes.

use std::fs;
use std::os::unix::fs::FileExt;

use trueno_test_pages::PAGE_SIZE;
use trueno_test_pages::frames::{self, FrameSettings};
use trueno_test_pages::generate::Generator;

use crate::hostile::{archive, run_limited};
use crate::support::{folder, run, run_with};

/// Runs all commands that decode on `bytes`. They work if the file has content of a known length, and fail otherwise.
#[track_caller]
fn decode(bytes: &[u8], content_len: Option<u64>) {
    let folder = folder();
    fs::write(folder.path().join("bomb.lz4"), bytes).unwrap();
    for args in [
        &["test", "bomb.lz4"][..],
        &["decompress", "-f", "-o", "out", "bomb.lz4"],
        &["decompress", "-f", "-o", "out", "--salvage", "bomb.lz4"],
        &["extract", "-f", "-o", "out", "--bytes", "0..100", "bomb.lz4"],
    ] {
        let (ran, _) = run_limited(folder.path(), args, bytes.len() as u64);
        let expected = if content_len.is_some() { 0 } else { 1 };
        assert_eq!(ran.code, Some(expected), "{args:?}: {}", ran.stderr);
        if let Some(content_len) = content_len.filter(|_| args[0] == "decompress") {
            assert_eq!(fs::metadata(folder.path().join("out")).unwrap().len(), content_len, "{args:?}");
        }
    }
}

/// A frame's header with a content size, and nothing after it.
fn header_claiming(content_size: u64, block_size_id: u8) -> Vec<u8> {
    let mut descriptor = vec![0b0110_1000, block_size_id << 4];
    descriptor.extend(content_size.to_le_bytes());
    let mut hash = trueno_zram_archive::ContentHash::new();
    hash.update(&descriptor);
    let mut frame = 0x184d_2204_u32.to_le_bytes().to_vec();
    frame.extend(&descriptor);
    frame.push(hash.digest().to_le_bytes()[1]);
    frame
}

#[test]
fn large_blocks_that_expand_255_times() {
    let content = vec![0x5a; 48 << 20];
    for linked in [false, true] {
        let shape = FrameSettings {
            block_size_id: 7,
            linked,
            block_checksums: false,
            content_checksum: false,
            content_size: false,
            level: 0,
        };
        let frame = frames::compress(&content, &shape);
        assert!(frame.len() < content.len() / 200);
        decode(&frame.repeat(3), Some(3 * content.len() as u64));
    }
}

#[test]
fn zero_pages_without_end() {
    let pages = 1 << 18;
    decode(&archive(pages, &[], &[]), Some(pages * PAGE_SIZE as u64));
}

#[test]
fn skippable_frames_without_end() {
    let mut bytes = [0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0].repeat(500_000);
    bytes.extend(b"\x04\x22\x4d\x18\x60\x40\x82");
    bytes.extend((0x8000_0000_u32 | 200).to_le_bytes());
    bytes.extend([7; 200]);
    bytes.extend([0; 4]);
    decode(&bytes, Some(200));
}

#[test]
fn lengths_that_are_only_claimed() {
    // Of the content, with a block that is cut short.
    for (content_size, block_size_id) in [(u64::MAX, 4), (1 << 62, 7), (1 << 40, 7)] {
        let mut bytes = header_claiming(content_size, block_size_id);
        bytes.extend((0x8000_0000_u32 | 60_000).to_le_bytes());
        bytes.extend([1; 1000]);
        decode(&bytes, None);
    }
    // Of a block, and of a skippable frame.
    let mut bytes = header_claiming(1 << 40, 7);
    bytes.extend((4_u32 << 20).to_le_bytes());
    decode(&bytes, None);
    decode(&[0x50, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0xff, 1, 2, 3], None);
}

/// Frames of one small block each, all of which may hold 4 MiB.
#[test]
fn small_blocks_that_may_be_large() {
    let mut random = Generator::new(7);
    let shape = FrameSettings {
        block_size_id: 7,
        linked: false,
        block_checksums: true,
        content_checksum: true,
        content_size: true,
        level: 0,
    };
    let content: Vec<u8> = (0..100).map(|_| u8::try_from(random.below(256)).unwrap()).collect();
    decode(&frames::compress(&content, &shape).repeat(20_000), Some(2_000_000));
}

/// A pagemap of 1 GiB that is a hole but for its first bytes is refused in 64 MiB of memory.
#[test]
fn pagemaps_that_are_holes() {
    let head = b"\x19\x43\x56\x54\x25\x40\x08\x56\x02\0\0\0\x08\x01";
    for (start, place) in [(&b""[..], "0x00000000"), (&head[..8], "byte 12"), (head, "byte 18")] {
        let folder = folder();
        fs::create_dir(folder.path().join("images")).unwrap();
        let file = fs::File::create(folder.path().join("images/pagemap-7.img")).unwrap();
        file.write_all_at(start, 0).unwrap();
        file.set_len(1 << 30).unwrap();
        for command in [&["criu", "compress", "images"][..], &["criu", "lazy-pages", "images", "--lazy-dir", "lazy"]] {
            let (ran, _) = run_limited(folder.path(), command, 0);
            ran.fails(&["images/pagemap-7.img: ", place]);
        }
    }
}

/// Zeros by the TiB are passed over by number, in memory and time for the file. Page by page, each would take longer than the
/// limit on CPU time.
#[test]
fn zeros_are_passed_over_by_number() {
    let folder = folder();
    let folder = folder.path();
    fs::write(folder.join("base"), [7; PAGE_SIZE]).unwrap();
    run(folder, &["compress", "-q", "base"]).ok();
    for (name, options, tebibytes, factors) in [
        ("zeros.zst", ["--algorithm", "zstd"], 1_u64, 25_000..32_768),
        ("zeros.tzd", ["--base", "base.lz4"], 2, 500_000..524_288),
    ] {
        let len_bytes = tebibytes << 40;
        fs::File::create(folder.join("zeros")).unwrap().set_len(len_bytes).unwrap();
        run(folder, &[&["compress", "-q", "zeros"][..], &options].concat()).ok();
        let file_len = fs::metadata(folder.join(name)).unwrap().len();
        assert!(factors.contains(&(len_bytes / file_len)), "{name}: {file_len} bytes");
        for args in [&["inspect", "--json", "--decode", name][..], &["test", "--json", name]] {
            let (ran, _) = run_limited(folder, args, file_len);
            assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
            let object = &ran.json()[0];
            let found = object.get("bytes").or(object.get("bytes_out")).unwrap();
            assert_eq!((found, &object["zero"]), (&len_bytes.into(), &(len_bytes / 4096).into()), "{args:?}");
        }
    }
}

/// A Zstandard frame in which every block of 4 bytes stands for 128 KiB, the most that the format allows.
fn densest_frame(blocks: usize) -> Vec<u8> {
    // No checksum, no content size, a window of 128 KiB.
    let mut frame = b"\x28\xb5\x2f\xfd\x00\x38".to_vec();
    for left in (0..blocks).rev() {
        let header = (128_u32 << 10) << 3 | 1 << 1 | u32::from(left == 0);
        frame.extend(&header.to_le_bytes()[..3]);
        frame.push(b'x');
    }
    frame
}

#[test]
fn inspect_looks_at_content_in_proportion_to_the_file() {
    let folder = folder();
    let frame = densest_frame(12_000);
    let content_len = 12_000_u64 << 17;
    let bound = 32_768 * frame.len() as u64;
    assert!(content_len < bound && content_len > bound / 100 * 99);
    fs::write(folder.path().join("dense.zst"), &frame).unwrap();
    let limit = (1 << 30) + 255 * frame.len() as u64;
    for ran in [
        run(folder.path(), &["inspect", "--json", "dense.zst"]),
        run_with(folder.path(), &["inspect", "--json", "-"], &frame),
    ] {
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let object = &ran.json()[0];
        assert_eq!(object["cut_off"], true);
        let bytes = object["bytes"].as_u64().unwrap();
        assert!((limit - (16 << 20)..limit + (256 << 20)).contains(&bytes), "{bytes} of {limit}");
    }
    let tested = run(folder.path(), &["test", "--json", "dense.zst"]).ok();
    assert_eq!(tested.json()[0]["bytes_out"], content_len);
    fs::write(folder.path().join("small.zst"), densest_frame(100)).unwrap();
    let small = run(folder.path(), &["inspect", "--json", "small.zst"]).ok();
    assert_eq!((&small.json()[0]["cut_off"], &small.json()[0]["bytes"]), (&false.into(), &(100_u64 << 17).into()));
}
