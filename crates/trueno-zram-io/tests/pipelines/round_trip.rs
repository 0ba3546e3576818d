//! Files into archives and deltas of both formats, and back.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use trueno_zram_archive::{Delta, Format, PageArchive, PageHashes, WriteOptions};
use trueno_zram_core::{Algorithm, PAGE_SIZE};
use trueno_zram_io::{
    Compressors, Decoders, DeltaBase, DeltaOptions, Gpu, Input, Output, OutputOptions, OutputTarget, PageSource,
    Workers, compress, compress_delta, restore, restore_pages, restore_ranges,
};

use crate::restore::content;
use crate::{Memory, codecs, codecs_of, file, interpreter, pool};

const FORMATS: [(Format, Algorithm); 2] = [(Format::Lz4, Algorithm::Lz4), (Format::Zstd, Algorithm::Zstd { level: 3 })];

/// The codec of a compressor: a GPU's or the CPU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    Cpu,
    Gpu,
    /// A GPU, with lanes that help it.
    Both,
}

/// Compresses a file into another one.
fn compress_file(from: &Path, to: &Path, (format, algorithm): (Format, Algorithm), on: On) {
    let source = Input::open(from).unwrap().into_pages();
    let content_checksum = format == Format::Lz4 && on != On::Gpu;
    let options = WriteOptions::default()
        .with_format(format)
        .with_content_checksum(content_checksum)
        .with_content_len(source.len_bytes());
    let output = Output::create(&OutputTarget::Path(to.to_owned()), None, OutputOptions::default()).unwrap();
    let (mut gpu, mut codecs) = (interpreter(algorithm, 64), codecs_of(algorithm, 3));
    let compressors = match on {
        On::Cpu => Compressors::Cpu(&mut codecs),
        On::Gpu => Compressors::Gpu { gpu: Gpu::Interpreter(&mut gpu), helpers: &mut [] },
        On::Both => Compressors::Gpu { gpu: Gpu::Interpreter(&mut gpu), helpers: &mut codecs },
    };
    let done = compress(source, output, options, compressors, Workers::new(&pool(3))).unwrap();
    done.out.finish(None).unwrap();
}

#[test]
fn files_come_back_from_archives_of_both_formats_on_every_device() {
    // Few pages that are not zero: the interpreter takes its time.
    let mut bytes = content();
    bytes.drain(150 * PAGE_SIZE..2150 * PAGE_SIZE);
    let (folder, image) = file(&bytes);
    for format in FORMATS {
        for on in [On::Cpu, On::Gpu, On::Both] {
            let (archive, restored) = (folder.path().join("archive"), folder.path().join("restored"));
            compress_file(&image, &archive, format, on);
            let mut gpu = interpreter(format.1, 1024);
            let decoders = match on {
                On::Cpu => Decoders::Cpu,
                On::Gpu | On::Both => Decoders::Gpu { gpu: Gpu::Interpreter(&mut gpu), cpu_helps: on == On::Both },
            };
            let mut output =
                Output::create(&OutputTarget::Path(restored.clone()), None, OutputOptions::default()).unwrap();
            restore(&Input::open(&archive).unwrap(), &mut output, decoders, Workers::new(&pool(3))).unwrap();
            output.finish(None).unwrap();
            assert!(fs::read(&restored).unwrap() == bytes, "{format:?} {on:?}");
            fs::remove_file(archive).unwrap();
            fs::remove_file(restored).unwrap();
        }
    }
}

#[test]
fn a_standard_archive_and_a_delta_take_the_same_way_to_the_same_output() {
    let mut bytes = content();
    let (folder, image) = file(&bytes);
    for (format, algorithm) in FORMATS {
        let archive = folder.path().join("archive");
        compress_file(&image, &archive, (format, algorithm), On::Cpu);
        let base = || PageArchive::standard(Arc::new(fs::read(&archive).unwrap())).unwrap().unwrap();
        let hashes = PageHashes::compute(&base()).unwrap();
        bytes[700 * PAGE_SIZE..][..50].fill(9);
        fs::write(&image, &bytes).unwrap();
        let base_of_delta = DeltaBase { record: base().record(b"archive").unwrap(), hashes: &hashes };
        let (source, options) =
            (Input::open(&image).unwrap().into_pages(), WriteOptions::default().with_format(format));
        let mut codecs = codecs_of(algorithm, 2);
        let done = compress_delta(
            source,
            Vec::new(),
            DeltaOptions { write: options, ..DeltaOptions::of_base(base_of_delta) },
            &mut codecs,
            Workers::new(&pool(2)),
        );
        let delta = Delta::open(Arc::new(done.unwrap().out), |_| Ok(base())).unwrap().unwrap();
        let (whole, restored) = (folder.path().join("whole"), folder.path().join("restored"));
        compress_file(&image, &whole, (format, algorithm), On::Cpu);
        let whole_archive = PageArchive::standard(Arc::new(fs::read(&whole).unwrap())).unwrap().unwrap();
        for pages in [whole_archive, PageArchive::Delta(Box::new(delta))] {
            let (mut all, mut parts) = (Memory::default(), Memory::default());
            assert_eq!(restore_pages(&pages, "pages", &mut all, Workers::new(&pool(3))).unwrap(), bytes.len() as u64);
            assert!(all.content == bytes, "{format:?}");
            for sparse in [false, true] {
                let options = OutputOptions::default().with_force(true).with_sparse(sparse);
                let mut output = Output::create(&OutputTarget::Path(restored.clone()), None, options).unwrap();
                restore_pages(&pages, "pages", &mut output, Workers::new(&pool(3))).unwrap();
                output.finish(None).unwrap();
                assert!(fs::read(&restored).unwrap() == bytes, "{format:?}, sparse: {sparse}");
            }
            let ranges = [5..20_000, 4_000_000..4_300_000, 0..1];
            let positions = ranges.clone().map(|range| range.start as u64..range.end as u64);
            restore_ranges(&pages, "pages", positions, &mut parts, Workers::new(&pool(3))).unwrap();
            assert!(parts.content == ranges.map(|range| &bytes[range]).concat());
        }
        fs::remove_file(archive).unwrap();
        fs::remove_file(whole).unwrap();
    }
}

#[test]
fn an_empty_file_is_an_archive_too() {
    let (folder, image) = file(b"");
    let archive = folder.path().join("archive");
    let (output, mut codecs) =
        (Output::create(&OutputTarget::Path(archive.clone()), None, OutputOptions::default()).unwrap(), codecs(2));
    let source = Input::open(&image).unwrap().into_pages();
    let done = compress(source, output, WriteOptions::default(), Compressors::Cpu(&mut codecs), Workers::new(&pool(2)));
    done.unwrap().out.finish(None).unwrap();
    let mut memory = Memory::default();
    restore(&Input::open(&archive).unwrap(), &mut memory, Decoders::Cpu, Workers::new(&pool(2))).unwrap();
    assert!(memory.content.is_empty());
}
