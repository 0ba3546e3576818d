//! Failures and panics of every part: all lanes stop, and the first error is the one that is returned.

use std::io::{self, Write};
use std::sync::Arc;

use tempfile::TempDir;
use trueno_zram_archive::{Archive, Pages, WriteOptions};
use trueno_zram_core::{Algorithm, PAGE_SIZE};
use trueno_zram_io::{
    ArchiveOutput, Compressors, FileSource, Gpu, Input, LengthChanged, Observer, Output, OutputOptions, OutputTarget,
    Workers, compress,
};

use crate::{BROKEN, FULL, Numbers, codecs, failed_call, file, interpreter, length_change, pool};

/// An image with more pages than all units hold, so that lanes wait for those that a failure took.
fn image() -> (TempDir, FileSource) {
    let bytes: Vec<u8> = (0..4000 * 1024_u32).flat_map(|i| (i / 37).to_le_bytes()).collect();
    let (folder, path) = file(&bytes);
    let source = Input::open(&path).unwrap().into_pages();
    (folder, source)
}

/// Takes the frame's header, and fails or panics on the first block.
struct Breaks {
    writes: usize,
    by_panic: bool,
}

impl ArchiveOutput for Breaks {
    fn name(&self) -> &str {
        "out"
    }
}

impl Write for Breaks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writes += 1;
        if self.writes == 1 {
            return Ok(bytes.len());
        }
        assert!(!self.by_panic, "this writer panics");
        Err(io::Error::from_raw_os_error(FULL))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
#[should_panic(expected = "this writer panics")]
fn a_lane_that_panics_does_not_hold_up_the_others() {
    let (_folder, source) = image();
    let out = Breaks { writes: 0, by_panic: true };
    let _ = compress(source, out, WriteOptions::default(), Compressors::Cpu(&mut codecs(3)), Workers::new(&pool(3)));
}

#[test]
#[should_panic(expected = "this writer panics")]
fn a_lane_before_a_gpu_that_panics_does_not_hold_up_the_others() {
    let (_folder, source) = image();
    let out = Breaks { writes: 0, by_panic: true };
    let mut gpu = interpreter(Algorithm::Lz4, 16);
    let compressors = Compressors::Gpu { gpu: Gpu::Interpreter(&mut gpu), helpers: &mut [] };
    let _ = compress(source, out, WriteOptions::default(), compressors, Workers::new(&pool(2)));
}

#[test]
fn an_output_that_fails_is_named() {
    let (_folder, source) = image();
    let out = Breaks { writes: 0, by_panic: false };
    let failed =
        compress(source, out, WriteOptions::default(), Compressors::Cpu(&mut codecs(2)), Workers::new(&pool(2)));
    assert_eq!(failed_call(&failed.err().unwrap()), ("out", Some(FULL)));
}

#[test]
fn a_source_that_fails_stops_all_lanes() {
    let (pool, mut codecs) = (pool(3), codecs(3));
    for fails_at in [0, 1, 17, 199] {
        let source = Numbers { next: 0, fails_at };
        let lanes = Compressors::Cpu(&mut codecs);
        let failed = compress(source, Vec::new(), WriteOptions::default(), lanes, Workers::new(&pool));
        assert_eq!(failed_call(&failed.err().unwrap()), ("numbers", Some(BROKEN)));
        let mut gpu = interpreter(Algorithm::Lz4, 4);
        let compressors = Compressors::Gpu { gpu: Gpu::Interpreter(&mut gpu), helpers: &mut [] };
        let source = Numbers { next: 0, fails_at };
        let failed = compress(source, Vec::new(), WriteOptions::default(), compressors, Workers::new(&pool));
        assert_eq!(failed_call(&failed.err().unwrap()), ("numbers", Some(BROKEN)));
    }
}

/// The content of an archive in memory.
fn content(archive: Vec<u8>) -> Vec<u8> {
    let archive = Archive::read_from(Arc::new(archive)).unwrap().unwrap();
    let mut content = vec![1; usize::try_from(archive.len_bytes()).unwrap()];
    assert_eq!(archive.read_at(0, &mut content).unwrap(), content.len());
    content
}

/// 300 pages, a hole and a tail: more than the slots of the interpreter hold.
fn sparse_image() -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let file = std::fs::File::create(&path).unwrap();
    let bytes: Vec<u8> = (0..150 * 1024_u32).flat_map(|i| (i / 37).to_le_bytes()).collect();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 5 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"a tail", (5 << 20) + bytes.len() as u64).unwrap();
    (folder, path)
}

#[test]
fn a_gpu_with_and_without_helpers_makes_an_archive_of_the_same_content() {
    let (_folder, path) = sparse_image();
    let image = std::fs::read(&path).unwrap();
    for content_checksum in [false, true] {
        for helper_count in [0, 3] {
            let (mut gpu, mut helpers) = (interpreter(Algorithm::Lz4, 8), codecs(helper_count));
            let options = WriteOptions::default().with_content_checksum(content_checksum);
            let compressors = Compressors::Gpu { gpu: Gpu::Interpreter(&mut gpu), helpers: &mut helpers };
            let source = Input::open(&path).unwrap().into_pages();
            let done = compress(source, Vec::new(), options, compressors, Workers::new(&pool(3))).unwrap();
            assert_eq!(done.summary.content_len, image.len() as u64);
            assert!(content(done.out) == image, "checksum {content_checksum}, {helper_count} helpers");
        }
    }
}

/// The archive crate's own function is the slow twin.
#[test]
fn lanes_make_the_archive_that_one_thread_makes() {
    let bytes = crate::restore::content();
    let (folder, path) = file(&bytes);
    for content_checksum in [false, true] {
        let options =
            WriteOptions::default().with_content_checksum(content_checksum).with_content_len(Some(bytes.len() as u64));
        let mut expected = Vec::new();
        trueno_zram_archive::compress(&bytes[..], &mut expected, &options).unwrap();
        for lanes in [1, 3] {
            let (pool, mut codecs) = (pool(lanes), codecs(lanes));
            let source = || Input::open(&path).unwrap().into_pages();
            let in_order = compress(source(), Vec::new(), options, Compressors::Cpu(&mut codecs), Workers::new(&pool));
            assert!(in_order.unwrap().out == expected, "{lanes} lanes");
            let target = OutputTarget::Path(folder.path().join("archive"));
            let output = Output::create(&target, None, OutputOptions::default().with_force(true)).unwrap();
            let at_offsets = compress(source(), output, options, Compressors::Cpu(&mut codecs), Workers::new(&pool));
            at_offsets.unwrap().out.finish(None).unwrap();
            assert!(std::fs::read(folder.path().join("archive")).unwrap() == expected, "{lanes} lanes");
        }
    }
}

#[test]
fn any_source_becomes_the_same_archive_on_any_number_of_lanes() {
    let archive = |lanes| {
        let source = Numbers { next: 0, fails_at: 255 };
        let mut codecs = codecs(lanes);
        let compressors = Compressors::Cpu(&mut codecs);
        compress(source, Vec::new(), WriteOptions::default(), compressors, Workers::new(&pool(lanes))).unwrap().out
    };
    let one = archive(1);
    assert!(one == archive(2) && one == archive(5));
    let reader = Archive::read_from(Arc::new(one)).unwrap().unwrap();
    assert_eq!(reader.page_count(), 200);
    assert_eq!(reader.section("note", 1000).unwrap().as_deref(), Some(&b"two hundred pages"[..]));
}

/// Changes a file once some of it is done.
struct Changes {
    path: std::path::PathBuf,
    len_bytes: u64,
    is_done: std::sync::Once,
}

impl Observer for Changes {
    fn progress(&self, _content_bytes: u64, _archive_bytes: u64) {
        self.is_done.call_once(|| {
            let file = std::fs::File::options().write(true).open(&self.path).unwrap();
            file.set_len(self.len_bytes).unwrap();
        });
    }
}

#[test]
fn a_file_that_changes_while_many_lanes_read_it_is_an_error() {
    for len_bytes in [PAGE_SIZE as u64, 1 << 30] {
        for helper_count in [0, 4] {
            let (folder, source) = image();
            let path = folder.path().join("image");
            let changes = Changes { path, len_bytes, is_done: std::sync::Once::new() };
            let (mut gpu, mut lanes) = (interpreter(Algorithm::Lz4, 64), codecs(4));
            let compressors = match helper_count {
                0 => Compressors::Cpu(&mut lanes),
                _ => Compressors::Gpu { gpu: Gpu::Interpreter(&mut gpu), helpers: &mut lanes },
            };
            let options = WriteOptions::default();
            let failed =
                compress(source, Vec::new(), options, compressors, Workers::new(&pool(4)).with_observer(&changes));
            // Lanes may have read everything before a file became shorter; the check at the end finds that.
            match length_change(&failed.err().unwrap()) {
                LengthChanged::Shorter { .. } => assert_eq!(len_bytes, PAGE_SIZE as u64),
                LengthChanged::Resized { to, .. } => assert_eq!(to, len_bytes),
            }
        }
    }
}
