//! Holes stay holes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use trueno_test_pages::frames;

use crate::support::{folder, image, run, run_with};

const MIB: u64 = 1 << 20;

/// Bytes that a file takes on the disk.
fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// A file with data at some places and holes between and around them, of a length that is not a multiple of the page size.
fn sparse_file(path: &Path) {
    let file = File::create(path).unwrap();
    let data = image(16);
    file.write_all_at(&data, 3 * MIB + 4096).unwrap();
    file.write_all_at(&data[..10], 8 * MIB - 5).unwrap();
    file.write_all_at(&data, 8 * MIB + 40_960).unwrap();
    file.write_all_at(&data[..1], 20 * MIB + 1).unwrap();
    file.set_len(31 * MIB + 123).unwrap();
}

#[test]
fn sparse_files_come_back_sparse() {
    let folder = folder();
    let (sparse, restored) = (folder.path().join("sparse"), folder.path().join("restored"));
    sparse_file(&sparse);
    let content = fs::read(&sparse).unwrap();
    assert!(allocated(&sparse) < MIB, "the file system has holes");

    run(folder.path(), &["compress", "sparse"]).ok();
    let archive = fs::read(folder.path().join("sparse.lz4")).unwrap();
    assert!(frames::decompress(&archive).as_ref() == Some(&content), "C lz4 reads it");
    let piped = run_with(folder.path(), &["compress"], &content).ok().stdout;
    assert!(frames::decompress(&piped).as_ref() == Some(&content), "without holes to find, the zeros are found");
    assert!(piped.len() < 200_000 && archive.len() < 200_000, "{} and {}", piped.len(), archive.len());

    run(folder.path(), &["decompress", "sparse.lz4", "-o", "restored"]).ok();
    assert!(fs::read(&restored).unwrap() == content);
    assert!(allocated(&restored) <= allocated(&sparse) + 65_536, "{} bytes", allocated(&restored));

    run(folder.path(), &["decompress", "--no-sparse", "-f", "sparse.lz4", "-o", "restored"]).ok();
    assert!(fs::read(&restored).unwrap() == content);
    assert!(allocated(&restored) >= content.len() as u64, "{} bytes", allocated(&restored));

    assert!(run(folder.path(), &["decompress", "-c", "sparse.lz4"]).ok().stdout == content);
}

#[test]
fn zeros_of_other_makers_become_holes_too() {
    let folder = folder();
    let mut content = vec![0; 3 << 20];
    content[1_000_000] = 1;
    fs::write(folder.path().join("x.lz4"), frames::compress(&content, &frames::all_settings()[0])).unwrap();
    run(folder.path(), &["decompress", "x.lz4"]).ok();
    assert!(fs::read(folder.path().join("x")).unwrap() == content);
    assert!(allocated(&folder.path().join("x")) <= 65_536);
}

#[test]
fn a_file_that_is_all_hole_comes_back() {
    let folder = folder();
    for len in [1, 4096, 5 * MIB, 5 * MIB + 1] {
        File::create(folder.path().join("hole")).unwrap().set_len(len).unwrap();
        run(folder.path(), &["compress", "-f", "hole"]).ok();
        run(folder.path(), &["decompress", "-f", "hole.lz4"]).ok();
        let back = fs::read(folder.path().join("hole")).unwrap();
        assert!(back.len() as u64 == len && back.iter().all(|byte| *byte == 0), "{len}");
        assert!(allocated(&folder.path().join("hole")) <= 4096);
    }
}

#[test]
fn a_large_sparse_image_takes_the_time_and_the_room_of_its_data() {
    let folder = folder();
    let path = folder.path().join("large");
    let file = File::create(&path).unwrap();
    file.write_all_at(&image(32), 11 << 30).unwrap();
    file.set_len(20 << 30).unwrap();
    run(folder.path(), &["compress", "--no-content-checksum", "large"]).ok();
    run(folder.path(), &["decompress", "large.lz4", "-o", "back"]).ok();
    let back = File::open(folder.path().join("back")).unwrap();
    assert_eq!(back.metadata().unwrap().len(), 20 << 30);
    assert!(allocated(&folder.path().join("back")) < MIB);
    let mut data = vec![0; 32 * 4096];
    back.read_exact_at(&mut data, 11 << 30).unwrap();
    assert!(data == image(32));
}
