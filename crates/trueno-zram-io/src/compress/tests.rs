//! Failures and panics of every part: all lanes stop, and the first error is the one that is returned.

use std::io::{self, Write};

use trueno_zram_archive::{ArchiveReader, ContentBatch, ContentSpan};
use trueno_zram_core::Algorithm;
use trueno_zram_core::gpu::{GpuBatchConfig, GpuOptions};

use super::*;
use crate::input::Input;

fn pool(threads: usize) -> ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

fn codecs(lanes: usize) -> Vec<PageCodec> {
    (0..lanes).map(|_| PageCodec::new(Algorithm::Lz4).unwrap()).collect()
}

/// An image with more pages than all parcels hold, so that lanes wait for those that a failure took.
fn image() -> (tempfile::TempDir, crate::source::FileSource) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let bytes: Vec<u8> = (0..4000 * 1024_u32).flat_map(|i| (i / 37).to_le_bytes()).collect();
    std::fs::write(&path, bytes).unwrap();
    let source = Input::open(&path).unwrap().into_pages();
    (folder, source)
}

fn interpreter(batch_size: usize) -> GpuBatchCompressor<Interpreter> {
    let config = GpuBatchConfig { batch_size, ring_buffer_slots: 2, ..GpuBatchConfig::default() };
    GpuBatchCompressor::interpreted(config, &GpuOptions::default()).unwrap()
}

/// Takes the frame's header, and fails or panics on the first block.
struct Breaks {
    writes: usize,
    by_panic: bool,
}

impl ArchiveOutput for Breaks {}

impl Write for Breaks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writes += 1;
        if self.writes == 1 {
            return Ok(bytes.len());
        }
        assert!(!self.by_panic, "this writer panics");
        Err(io::Error::from_raw_os_error(28))
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
    let _ = compress(source, (out, "out"), WriteOptions::default(), Compressors::Lanes(&mut codecs(3)), &pool(3), &());
}

#[test]
#[should_panic(expected = "this writer panics")]
fn a_lane_before_a_gpu_that_panics_does_not_hold_up_the_others() {
    let (_folder, source) = image();
    let out = Breaks { writes: 0, by_panic: true };
    let mut gpu = interpreter(16);
    let compressors = Compressors::Gpu { gpu: Gpu::Interpreter(&mut gpu), helpers: &mut [] };
    let _ = compress(source, (out, "out"), WriteOptions::default(), compressors, &pool(2), &());
}

#[test]
fn an_output_that_fails_is_named() {
    let (_folder, source) = image();
    let out = Breaks { writes: 0, by_panic: false };
    let failed =
        compress(source, (out, "out"), WriteOptions::default(), Compressors::Lanes(&mut codecs(2)), &pool(2), &());
    assert_eq!(failed.err().unwrap().to_string(), "out: No space left on device");
}

/// Pages of numbers; one claim fails.
struct Numbers {
    next: u8,
    fails_at: u8,
}

impl PageSource for Numbers {
    type Error = Error;

    fn len_bytes(&self) -> Option<u64> {
        None
    }

    fn claim(&mut self, room: &mut [Page]) -> Result<Claim, Error> {
        if self.next == self.fails_at {
            return Err(Error::io("numbers", Operation::Read, io::Error::from_raw_os_error(5)));
        }
        if self.next == 200 {
            return Ok(Claim::End);
        }
        room[0].fill(self.next);
        self.next += 1;
        Ok(Claim::Filled(PAGE_SIZE))
    }

    fn sections(&mut self) -> Result<Vec<(&'static str, Vec<u8>)>, Error> {
        Ok(vec![("note", b"two hundred pages".to_vec())])
    }
}

#[test]
fn a_source_that_fails_stops_all_lanes() {
    let (pool, mut codecs) = (pool(3), codecs(3));
    for fails_at in [0, 1, 17, 199] {
        let source = Numbers { next: 0, fails_at };
        let lanes = Compressors::Lanes(&mut codecs);
        let failed = compress(source, (Vec::new(), "out"), WriteOptions::default(), lanes, &pool, &());
        assert_eq!(failed.err().unwrap().to_string(), "numbers: Input/output error");
    }
}

/// The content of an archive in memory.
fn content(archive: Vec<u8>) -> Vec<u8> {
    let mut reader = ArchiveReader::open(io::Cursor::new(archive)).unwrap().unwrap();
    let (mut batch, mut content) = (ContentBatch::new(), Vec::new());
    let pages = reader.page_count();
    let mut pages = reader.read_pages(0..pages).unwrap();
    while pages.read_batch(&mut batch).unwrap() {
        for span in batch.spans() {
            match span {
                ContentSpan::Data(bytes) => content.extend_from_slice(bytes),
                ContentSpan::Zeros(len_bytes) => content.resize(content.len() + usize::try_from(len_bytes).unwrap(), 0),
            }
        }
    }
    content
}

/// 300 pages, a hole and a tail: more than the slots of the interpreter hold.
fn sparse_image() -> (tempfile::TempDir, std::path::PathBuf) {
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
            let (mut gpu, mut helpers) = (interpreter(8), codecs(helper_count));
            let options = WriteOptions { content_checksum, ..WriteOptions::default() };
            let compressors = Compressors::Gpu { gpu: Gpu::Interpreter(&mut gpu), helpers: &mut helpers };
            let source = Input::open(&path).unwrap().into_pages();
            let done = compress(source, (Vec::new(), "out"), options, compressors, &pool(3), &()).unwrap();
            assert_eq!(done.summary.content_len, image.len() as u64);
            assert!(content(done.out) == image, "checksum {content_checksum}, {helper_count} helpers");
        }
    }
}

#[test]
fn any_source_becomes_the_same_archive_on_any_number_of_lanes() {
    let archive = |lanes| {
        let source = Numbers { next: 0, fails_at: 255 };
        let mut codecs = codecs(lanes);
        let compressors = Compressors::Lanes(&mut codecs);
        compress(source, (Vec::new(), "out"), WriteOptions::default(), compressors, &pool(lanes), &()).unwrap().out
    };
    let one = archive(1);
    assert!(one == archive(2) && one == archive(5));
    let mut reader = ArchiveReader::open(io::Cursor::new(one)).unwrap().unwrap();
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
    for (len_bytes, words) in [(PAGE_SIZE as u64, "shorter"), (1 << 30, "went from")] {
        for helper_count in [0, 4] {
            let (folder, source) = image();
            let path = folder.path().join("image");
            let changes = Changes { path, len_bytes, is_done: std::sync::Once::new() };
            let (mut gpu, mut lanes) = (interpreter(64), codecs(4));
            let compressors = match helper_count {
                0 => Compressors::Lanes(&mut lanes),
                _ => Compressors::Gpu { gpu: Gpu::Interpreter(&mut gpu), helpers: &mut lanes },
            };
            let options = WriteOptions { content_checksum: false, ..WriteOptions::default() };
            let failed = compress(source, (Vec::new(), "out"), options, compressors, &pool(4), &changes);
            let error = failed.err().unwrap().to_string();
            // Lanes may have read everything before a file became shorter; the check at the end finds that.
            assert!(error.contains(words) || error.contains("went from"), "{error}");
        }
    }
}

#[test]
fn a_file_that_changes_its_length_while_many_lanes_read_is_an_error() {
    for len_bytes in [5_000_000, 50_000_000] {
        for on_gpu in [false, true] {
            let (folder, source) = image();
            let file = std::fs::File::options().write(true).open(folder.path().join("image")).unwrap();
            file.set_len(len_bytes).unwrap();
            let (mut codecs, mut gpu) = (codecs(4), interpreter(16));
            let compressors = if on_gpu {
                Compressors::Gpu { gpu: Gpu::Interpreter(&mut gpu), helpers: &mut codecs }
            } else {
                Compressors::Lanes(&mut codecs)
            };
            let out = (Vec::new(), "out");
            let failed = compress(source, out, WriteOptions::default(), compressors, &pool(4), &()).unwrap_err();
            let text = format!("{failed}: {:?}", std::error::Error::source(&failed).map(ToString::to_string));
            // Of a shorter file, the lane that reads behind its end and the one that claims the end may come first.
            let resized = format!("went from 16384000 to {len_bytes} bytes");
            let is_shorter = len_bytes == 5_000_000 && text.contains("ended at byte");
            assert!(is_shorter || text.contains(&resized), "{text}");
        }
    }
}
