//! Failures and panics of every part: all lanes stop, and the first error is the one that is returned.

use std::io;

use trueno_zram_core::{Algorithm, CpuBatchCompressor};

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

/// Takes the frame's header, and fails or panics on the first block.
struct Breaks {
    writes: usize,
    by_panic: bool,
}

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
fn a_lane_before_a_shared_codec_that_panics_does_not_hold_up_the_others() {
    let (_folder, source) = image();
    let out = Breaks { writes: 0, by_panic: true };
    let mut codec = CpuBatchCompressor::new(Algorithm::Lz4).unwrap();
    let compressors = Compressors::Shared { codec: &mut codec, batch_pages: 16 };
    let _ = compress(source, (out, "out"), WriteOptions::default(), compressors, &pool(1), &());
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
            return Err(Error::io("numbers", crate::Operation::Read, io::Error::from_raw_os_error(5)));
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

#[test]
fn a_shared_codec_makes_the_same_archive() {
    let (pool, mut codecs) = (pool(2), codecs(2));
    let (_folder, first) = image();
    let (_other, second) = image();
    let options = WriteOptions::default();
    let lanes = compress(first, (Vec::new(), "out"), options, Compressors::Lanes(&mut codecs), &pool, &()).unwrap();
    let mut codec = CpuBatchCompressor::new(Algorithm::Lz4).unwrap();
    let shared = Compressors::Shared { codec: &mut codec, batch_pages: 100 };
    assert!(compress(second, (Vec::new(), "out"), options, shared, &pool, &()).unwrap().out == lanes.out);
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
    let mut reader = trueno_zram_archive::ArchiveReader::open(io::Cursor::new(one)).unwrap().unwrap();
    assert_eq!(reader.page_count(), 200);
    assert_eq!(reader.section("note", 1000).unwrap().as_deref(), Some(&b"two hundred pages"[..]));
}
