//! The same content, errors and verdicts by groups and as a stream; failures of the output.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use trueno_zram_archive::{
    ArchiveWriter, ContentBatch, ContentHash, Format, FrameReader, IndexVerdict, PageArchive, ReadSummary, WriteOptions,
};
use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE, Page};
use trueno_zram_io::{
    Decoders, Discard, Error, Gpu, Input, Observer, Output, OutputOptions, OutputTarget, Sink, Workers, restore,
    restore_pages, restore_ranges,
};

use crate::{FULL, Memory, failed_call, interpreter, pool};

/// The most units of `restore_ranges`.
const MAX_UNITS: usize = 16;

/// Three groups and a bit: pages of every form, a hole across groups, and a tail.
pub(crate) fn content() -> Vec<u8> {
    let page = |number: usize| -> Page {
        match number % 5 {
            0 => [0; PAGE_SIZE],
            1 => [u8::try_from(number % 251).unwrap(); PAGE_SIZE],
            2 => std::array::from_fn(|i| (i.wrapping_mul(0x9e37_79b9).wrapping_add(number) >> 7).to_le_bytes()[0]),
            _ => std::array::from_fn(|i| (i / 64 * number).to_le_bytes()[0]),
        }
    };
    let mut pages: Vec<Page> = (0..900).map(page).collect();
    pages.resize(2200, [0; PAGE_SIZE]);
    pages.extend((2200..3100).map(page));
    let mut bytes = pages.as_flattened().to_vec();
    bytes.extend(b"the last page is a short one");
    bytes
}

fn archive(bytes: &[u8], content_checksum: bool) -> Vec<u8> {
    archive_in(Format::Lz4, bytes, content_checksum)
}

pub(crate) fn archive_in(format: Format, bytes: &[u8], content_checksum: bool) -> Vec<u8> {
    let content_len = Some(bytes.len() as u64);
    let options = WriteOptions::default()
        .with_format(format)
        .with_content_checksum(content_checksum)
        .with_content_len(content_len);
    let mut archive = ArchiveWriter::new(Vec::new(), options).unwrap();
    let (pages, tail) = bytes.as_chunks();
    let algorithm = match format {
        Format::Lz4 => Algorithm::Lz4,
        Format::Zstd => Algorithm::Zstd { level: 1 },
    };
    archive.write_batch(&CpuBatchCompressor::new(algorithm).unwrap().compress(pages).unwrap()).unwrap();
    archive.write_tail(tail).unwrap();
    let mut hash = ContentHash::new();
    hash.update(bytes);
    archive.add_section("note", b"kept").unwrap();
    archive.finish(Some(hash)).unwrap().0
}

/// The verdict on an input, and the content taken.
type Outcome = (Result<ReadSummary, String>, Vec<u8>);

/// The verdict of a reader of streams, which knows nothing of groups and lanes.
fn by_stream(path: &Path) -> Outcome {
    let file = fs::File::open(path).unwrap();
    let (mut reader, mut batch, mut memory) = (FrameReader::new(&file), ContentBatch::new(), Memory::default());
    loop {
        match reader.read_batch(&mut batch) {
            Ok(true) => batch.spans().for_each(|span| memory.take(span).unwrap()),
            Ok(false) => return (Ok(reader.summary().clone()), memory.content),
            Err(error) => return (Err(Error::archive(path.display(), error).to_string()), memory.content),
        }
    }
}

fn by_groups(path: &Path, decoders: Decoders<'_>) -> Outcome {
    let mut memory = Memory::default();
    let input = Input::open(path).unwrap();
    let summary = restore(&input, &mut memory, decoders, Workers::new(&pool(3)));
    (summary.map_err(|error| error.to_string()), memory.content)
}

/// Restores to a new file: the outcome, with the file's content if all is well.
fn to_file(path: &Path, folder: &Path, sparse: bool, decoders: Decoders<'_>) -> Outcome {
    let place = folder.join("restored");
    let _ = fs::remove_file(&place);
    let options = OutputOptions::default().with_sparse(sparse);
    let mut output = Output::create(&OutputTarget::Path(place.clone()), None, options).unwrap();
    let summary = restore(&Input::open(path).unwrap(), &mut output, decoders, Workers::new(&pool(5)));
    match summary {
        Ok(summary) => {
            output.finish(None).unwrap();
            (Ok(summary), fs::read(&place).unwrap())
        }
        Err(error) => {
            drop(output);
            assert!(!place.exists(), "nothing is left");
            (Err(error.to_string()), Vec::new())
        }
    }
}

#[test]
fn every_way_restores_the_same_content() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive");
    let bytes = content();
    for content_checksum in [false, true] {
        fs::write(&path, archive(&bytes, content_checksum)).unwrap();
        let expected = by_stream(&path);
        assert!(expected.1 == bytes);
        assert_eq!(expected.0.as_ref().unwrap().index, IndexVerdict::Agrees);
        assert!(by_groups(&path, Decoders::Cpu) == expected);
        for sparse in [false, true] {
            assert!(to_file(&path, folder.path(), sparse, Decoders::Cpu) == expected, "sparse: {sparse}");
        }
        for cpu_helps in [false, true] {
            let mut gpu = interpreter(Algorithm::Lz4, 1024);
            let decoders = Decoders::Gpu { gpu: Gpu::Interpreter(&mut gpu), cpu_helps };
            assert!(by_groups(&path, decoders) == expected, "cpu_helps: {cpu_helps}");
            let decoders = Decoders::Gpu { gpu: Gpu::Interpreter(&mut gpu), cpu_helps };
            assert!(to_file(&path, folder.path(), true, decoders) == expected, "cpu_helps: {cpu_helps}");
        }
    }
}

/// Groups that lanes cannot restore go through the stream, which is right but slow.
#[test]
fn lanes_restore_all_of_an_intact_archive_of_either_format() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive");
    // Few pages that are not zero: the interpreter takes its time.
    let mut bytes = content();
    bytes.drain(30 * PAGE_SIZE..2100 * PAGE_SIZE);
    for (format, algorithm) in [(Format::Lz4, Algorithm::Lz4), (Format::Zstd, Algorithm::Zstd { level: 3 })] {
        fs::write(&path, archive_in(format, &bytes, false)).unwrap();
        let input = Input::open(&path).unwrap();
        let is_whole = |decoders: Decoders<'_>| {
            let mut memory = Memory::default();
            restore(&input, &mut memory, decoders, Workers::new(&pool(3))).unwrap();
            memory.content == bytes && memory.restarts == 0
        };
        assert!(is_whole(Decoders::Cpu), "{format:?}");
        assert!(restore(&input, &mut Discard, Decoders::Cpu, Workers::new(&pool(3))).is_ok(), "{format:?}");
        for cpu_helps in [false, true] {
            let mut gpu = interpreter(algorithm, 1024);
            let decoders = Decoders::Gpu { gpu: Gpu::Interpreter(&mut gpu), cpu_helps };
            assert!(is_whole(decoders), "{format:?}, cpu_helps: {cpu_helps}");
            assert!(cpu_helps || gpu.stats().pages_decompressed > 0, "{format:?}: the GPU does everything");
        }
    }
}

/// Collects what a pipeline reports.
#[derive(Default)]
struct Reports {
    totals: Mutex<Vec<Option<u64>>>,
    content_bytes: AtomicU64,
}

impl Observer for Reports {
    fn total(&self, content_bytes: Option<u64>) {
        self.totals.lock().unwrap().push(content_bytes);
    }

    fn progress(&self, content_bytes: u64, _archive_bytes: u64) {
        self.content_bytes.fetch_max(content_bytes, Ordering::Relaxed);
    }
}

#[test]
fn the_length_is_reported_once_and_progress_ends_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive");
    let content = content();
    // Fewer groups than two are restored as a stream.
    for bytes in [&content[..], &content[..500 * PAGE_SIZE]] {
        fs::write(&path, archive(bytes, false)).unwrap();
        let (reports, pool) = (Reports::default(), pool(2));
        let workers = Workers::new(&pool).with_observer(&reports);
        restore(&Input::open(&path).unwrap(), &mut Memory::default(), Decoders::Cpu, workers).unwrap();
        assert_eq!(reports.totals.into_inner().unwrap(), [Some(bytes.len() as u64)]);
        assert_eq!(reports.content_bytes.into_inner(), bytes.len() as u64);
    }
}

#[test]
fn damage_anywhere_is_reported_as_by_a_stream() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive");
    let bytes = content();
    for content_checksum in [false, true] {
        let whole = archive(&bytes, content_checksum);
        // Steps that hit headers, blocks of every form, the end mark, entries, table, sections and footer.
        let places = (0..whole.len()).step_by(whole.len() / 40).chain(whole.len() - 200..whole.len());
        for at in places.step_by(5) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x11;
            fs::write(&path, &damaged).unwrap();
            let expected = by_stream(&path);
            let by_groups = by_groups(&path, Decoders::Cpu);
            assert_eq!(by_groups.0, expected.0, "byte {at}");
            if expected.0.is_ok() {
                assert!(by_groups.1 == expected.1, "byte {at}");
                assert!(to_file(&path, folder.path(), true, Decoders::Cpu) == expected, "byte {at}");
            } else {
                assert!(bytes.starts_with(&by_groups.1), "byte {at}: what was taken is right");
                assert_eq!(to_file(&path, folder.path(), true, Decoders::Cpu).0, expected.0, "byte {at}");
            }
        }
    }
}

#[test]
fn an_archive_that_is_cut_short_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive");
    let whole = archive(&content(), false);
    for len in [whole.len() - 1, whole.len() / 2, 20] {
        fs::write(&path, &whole[..len]).unwrap();
        let (summary, _) = by_groups(&path, Decoders::Cpu);
        assert_eq!(summary, by_stream(&path).0, "{len} bytes");
        assert!(summary.is_err());
    }
}

/// If the first groups are intact, the sink has taken them before the damage is found.
#[test]
fn damage_behind_the_first_groups_falls_back_to_the_stream_with_the_same_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive");
    let bytes = content();
    let mut damaged = archive(&bytes, false);
    // In the blocks of the last group.
    let at = damaged.len() * 9 / 10 - 20_000;
    damaged[at] ^= 0x40;
    fs::write(&path, &damaged).unwrap();
    let expected = by_stream(&path).0.unwrap_err();
    for on_gpu in [false, true] {
        let (mut gpu, mut memory) = (interpreter(Algorithm::Lz4, 1024), Memory::default());
        let decoders =
            if on_gpu { Decoders::Gpu { gpu: Gpu::Interpreter(&mut gpu), cpu_helps: true } } else { Decoders::Cpu };
        let failed = restore(&Input::open(&path).unwrap(), &mut memory, decoders, Workers::new(&pool(1)));
        assert_eq!(failed.unwrap_err().to_string(), expected, "on a GPU: {on_gpu}");
        assert_eq!(memory.restarts, 1, "on a GPU: {on_gpu}");
        assert!(!memory.content.is_empty() && bytes.starts_with(&memory.content), "on a GPU: {on_gpu}");
    }
}

/// Fails at the second group, by an error or a panic.
fn failing(panics: bool) -> Memory {
    Memory { fails_at: Some(1), panics, ..Memory::default() }
}

#[test]
fn an_output_that_fails_stops_all_lanes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive");
    let bytes = content();
    for content_checksum in [false, true] {
        fs::write(&path, archive(&bytes, content_checksum)).unwrap();
        let input = Input::open(&path).unwrap();
        for on_gpu in [false, true] {
            let mut gpu = interpreter(Algorithm::Lz4, 1024);
            let decoders =
                if on_gpu { Decoders::Gpu { gpu: Gpu::Interpreter(&mut gpu), cpu_helps: true } } else { Decoders::Cpu };
            let failed = restore(&input, &mut failing(false), decoders, Workers::new(&pool(3)));
            assert_eq!(failed_call(&failed.unwrap_err()), ("memory", Some(FULL)), "on a GPU: {on_gpu}");
        }
        let archive = PageArchive::standard(Arc::new(fs::read(&path).unwrap())).unwrap().unwrap();
        let failed = restore_pages(&archive, "archive", &mut failing(false), Workers::new(&pool(3)));
        assert_eq!(failed_call(&failed.unwrap_err()), ("memory", Some(FULL)));
    }
}

#[test]
#[should_panic(expected = "this sink panics")]
fn a_lane_that_panics_does_not_hold_up_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive");
    fs::write(&path, archive(&content(), false)).unwrap();
    let _ = restore(&Input::open(&path).unwrap(), &mut failing(true), Decoders::Cpu, Workers::new(&pool(3)));
}

#[test]
#[should_panic(expected = "this sink panics")]
fn a_lane_before_a_gpu_that_panics_does_not_hold_up_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive");
    fs::write(&path, archive(&content(), false)).unwrap();
    let mut gpu = interpreter(Algorithm::Lz4, 1024);
    let decoders = Decoders::Gpu { gpu: Gpu::Interpreter(&mut gpu), cpu_helps: true };
    let _ = restore(&Input::open(&path).unwrap(), &mut failing(true), decoders, Workers::new(&pool(2)));
}

#[test]
#[should_panic(expected = "this sink panics")]
fn a_lane_of_ranges_that_panics_does_not_hold_up_the_others() {
    let archive = PageArchive::standard(Arc::new(archive(&content(), false))).unwrap().unwrap();
    let _ = restore_pages(&archive, "archive", &mut failing(true), Workers::new(&pool(3)));
}

/// A lane that waited for work of the pool would run another lane meanwhile, which waits for the first.
#[test]
fn more_lanes_than_units_never_wait_for_each_other() {
    let content = content();
    let bytes = Arc::new(archive(&content, false));
    let pool = pool(MAX_UNITS + 8);
    for round in 0..20 {
        let archive = PageArchive::standard(Arc::<Vec<u8>>::clone(&bytes)).unwrap().unwrap();
        // From the middle of a page, so that groups are read in parts, too.
        let ranges = [round * 1000..content.len() as u64, 5..900_000, 4000..5_000_000];
        let mut restored = Memory::default();
        restore_ranges(&archive, "archive", ranges.clone(), &mut restored, Workers::new(&pool)).unwrap();
        let expected = ranges
            .map(|range| &content[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()])
            .concat();
        assert!(restored.content == expected, "round {round}");
    }
}
