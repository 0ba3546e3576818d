//! Archives as we write them: read back as a stream, by page, and by C lz4's frame library.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use proptest::prelude::*;
use std::io::Read;
use std::sync::Arc;
use support::{
    FORMATS, archive_of, mixed_content, opened, plain_archive_in, plain_archive_of, read_by_c_library, read_good,
    read_pages, read_stream, with_checksums,
};
use trueno_test_pages::{corpus, edge_pages, oracle};
use trueno_zram_archive::address_map::{self, AddressMap, Consistency, Flags, Mapping, PageState, StoredMap};
use trueno_zram_archive::process_state::{self, ProcessState};
use trueno_zram_archive::{
    Archive, ArchiveWriter, ContentBatch, ContentHash, ContentSpan, Error, Format, FrameReader, HashCheck,
    IndexVerdict, PageArchive, PageBlocks, PageHash, PageHashes, Pages, SnapshotError, WriteOptions, compress,
};
use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
use trueno_zram_core::{Algorithm, CompressedBatch, CpuBatchCompressor, IndexEntry, PAGE_SIZE, PageKind};

fn assert_reads_everywhere(content: &[u8], options: WriteOptions, batch_pages: usize) {
    let (archive, summary) = archive_of(content, options, batch_pages);
    assert_eq!(summary.archive_len, archive.len() as u64);
    assert_eq!(summary.content_len, content.len() as u64);
    let (read, read_summary) = read_good(&archive);
    assert!(read == content, "as a stream");
    assert_eq!(read_summary.index, IndexVerdict::Agrees);
    assert_eq!(read_summary.pages, summary.pages);
    assert_eq!(read_summary.input_len, archive.len() as u64);
    let pages = content.len().div_ceil(PAGE_SIZE) as u64;
    assert_eq!(summary.pages.pages(), pages);
    let info = opened(&archive).unwrap().unwrap().info();
    assert_eq!((info.format, info.pages, info.page_count), (options.format, summary.pages, pages));
    assert_eq!((info.content_len, info.archive_len), (summary.content_len, summary.archive_len));
    assert_eq!((info.index_len, info.group_count), (summary.index_len, pages.div_ceil(1024)));
    assert_eq!(info.block_checksums, options.block_checksums || (options.format == Format::Zstd && pages == 0));
    assert_eq!(info.content_checksum, options.content_checksum && options.format == Format::Lz4);
    assert!(read_pages(&archive, 0..pages).unwrap().as_deref() == Some(content), "by the index");
    let foreign = read_by_c_library(options.format, &archive);
    assert!(foreign.as_deref() == Some(content), "by the C library");
}

#[test]
fn every_length_around_page_boundaries() {
    let content = mixed_content(1, 40 * PAGE_SIZE);
    let around = |pages: usize| (pages * PAGE_SIZE).saturating_sub(20)..=pages * PAGE_SIZE + 20;
    for len in [0, 1, 2, 3, 16, 17, 32].into_iter().flat_map(around) {
        for format in FORMATS {
            let content_len = (len % 2 == 0).then_some(len as u64);
            let options = with_checksums().with_format(format).with_content_len(content_len);
            assert_reads_everywhere(&content[..len], options, 7);
        }
    }
}

#[test]
fn all_options_and_batch_sizes() {
    let content = mixed_content(2, 3_000_000);
    for bits in 0..16 {
        let options = WriteOptions::default()
            .with_format(FORMATS[bits >> 3])
            .with_content_len((bits & 1 != 0).then_some(content.len() as u64))
            .with_block_checksums(bits & 2 != 0)
            .with_content_checksum(bits & 4 != 0);
        for batch_pages in [1, 5, 16, 100, 100_000] {
            assert_reads_everywhere(&content, options, batch_pages);
        }
    }
}

#[test]
fn real_and_edge_pages() {
    let mut content: Vec<u8> = corpus::all_pages().flatten().copied().collect();
    edge_pages::all().iter().for_each(|edge| content.extend_from_slice(&edge.page[..]));
    for format in FORMATS {
        assert_reads_everywhere(&content, with_checksums().with_format(format), 1024);
    }
}

#[test]
fn holes_take_little_and_the_index_knows_them() {
    let (before, hole, after) = (5u64, 300_000u64, 3u64);
    let noise = mixed_content(3, 5 * PAGE_SIZE);
    let (pages, _) = noise.as_chunks();
    let mut compressor = CpuBatchCompressor::default();
    let mut archive = ArchiveWriter::new(Vec::new(), with_checksums()).unwrap();
    let mut hash = ContentHash::new();
    hash.update(&noise);
    archive.write_batch(&compressor.compress(pages).unwrap()).unwrap();
    hash.update_zeros(hole * PAGE_SIZE as u64);
    archive.write_zero_pages(hole).unwrap();
    hash.update(pages[..3].as_flattened());
    archive.write_batch(&compressor.compress(&pages[..3]).unwrap()).unwrap();
    let (bytes, summary) = archive.finish(Some(hash)).unwrap();
    assert!(summary.pages.zero >= hole);
    assert!(summary.archive_len < 6_000_000, "{} bytes for 1.2 GB of zeros", summary.archive_len);
    assert!(summary.index_len < 12_000, "{} bytes of index", summary.index_len);

    let reader = opened(&bytes).unwrap().unwrap();
    assert_eq!(reader.page_count(), before + hole + after);
    let places: Vec<_> = reader.blocks(100_000..100_001).unwrap().map(Result::unwrap).collect();
    assert_eq!((places.len(), places[0].zero, places[0].pages), (1, true, 16));
    let last = reader.page_count() - 1;
    assert_eq!(read_pages(&bytes, last..last + 1).unwrap().unwrap(), pages[2]);
    assert_eq!(read_pages(&bytes, 150_000..150_003).unwrap().unwrap(), vec![0; 3 * PAGE_SIZE]);

    let mut stream = FrameReader::new(&bytes[..]);
    let (mut batch, mut zeros) = (ContentBatch::new(), 0);
    while stream.read_batch(&mut batch).unwrap() {
        for span in batch.spans() {
            if let ContentSpan::Zeros(len) = span {
                zeros += len;
            }
        }
    }
    assert!(zeros >= hole * PAGE_SIZE as u64, "the hole is reported as one span");
    assert_eq!(stream.summary().index, IndexVerdict::Agrees);
}

#[test]
fn places_are_where_the_blocks_are() {
    let content = mixed_content(4, 5000 * PAGE_SIZE + 100);
    let archive = plain_archive_of(&content);
    let reader = opened(&archive).unwrap().unwrap();
    let pages = reader.page_count();
    let places: Vec<_> = reader.blocks(0..pages).unwrap().map(Result::unwrap).collect();
    let mut page = 0;
    for (place, next) in places.iter().zip(places[1..].iter().map(Some).chain([None])) {
        assert_eq!(place.first_page, page);
        page += place.pages;
        let at = usize::try_from(place.offset).unwrap();
        let size = u32::from_le_bytes(archive[at..at + 4].try_into().unwrap());
        let raw = if place.kind == PageKind::Raw { 1 << 31 } else { 0 };
        assert_eq!(size, place.len_bytes | raw);
        assert!(next.is_none_or(|next| next.offset == place.offset + 8 + u64::from(place.len_bytes)));
    }
    assert_eq!(page, reader.page_count());
    for (start, end) in [(0, 1), (1023, 1025), (17, 17), (4999, 5001), (2000, 3500)] {
        let bytes = &content[start * PAGE_SIZE..(end * PAGE_SIZE).min(content.len())];
        assert!(read_pages(&archive, start as u64..end as u64).unwrap().unwrap() == bytes, "{start}..{end}");
    }
    assert!(matches!(read_pages(&archive, 5000..5002), Err(Error::PageRange { pages: 5001, .. })));
    #[expect(clippy::reversed_empty_ranges, reason = "what a caller may pass")]
    let reversed = read_pages(&archive, 7..3);
    assert!(matches!(reversed, Err(Error::PageRange { .. })));
}

#[test]
fn sections_come_back() {
    let mut archive = ArchiveWriter::new(Vec::new(), with_checksums()).unwrap();
    let map: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    archive.add_section("map", &map).unwrap();
    archive.add_section("empty", b"").unwrap();
    let (bytes, _) = archive.finish(Some(ContentHash::new())).unwrap();
    let reader = opened(&bytes).unwrap().unwrap();
    let names: Vec<_> = reader.sections().unwrap().map(|section| section.unwrap().name).collect();
    assert_eq!(names, ["map", "empty"]);
    assert_eq!(reader.section("map", 1 << 20).unwrap().unwrap(), map);
    assert_eq!(reader.section("other", 1 << 20).unwrap(), None);
    let refused = reader.section("map", 399_999);
    assert!(matches!(refused, Err(Error::SectionTooLarge { len_bytes: 400_000, max_bytes: 399_999, .. })));
    assert_eq!(read_good(&bytes).1.index, IndexVerdict::Agrees);
}

#[test]
fn two_archives_in_one_file_are_read_in_turn_and_not_by_the_last_index() {
    let (first, second) = (mixed_content(5, 100_000), mixed_content(6, 70_000));
    let both = [plain_archive_of(&first), plain_archive_of(&second)].concat();
    let (content, summary) = read_good(&both);
    assert!(content == [first, second].concat());
    assert_eq!((summary.frames, summary.skippable_frames, summary.index), (2, 2, IndexVerdict::Agrees));
    assert!(matches!(opened(&both), Err(Error::Index(_))));
}

#[test]
fn an_index_of_another_frame_is_noticed() {
    let (first, second) = (mixed_content(7, 100_000), mixed_content(8, 100_000));
    let (first_archive, second_archive) = (plain_archive_of(&first), plain_archive_of(&second));
    let index_of = |archive: &[u8]| {
        let reader = opened(archive).unwrap().unwrap();
        archive.len() - usize::try_from(reader.info().index_len).unwrap()
    };
    let (at, other_at) = (index_of(&first_archive), index_of(&second_archive));
    let mixed = [&first_archive[..at], &second_archive[other_at..]].concat();
    let (content, summary) = read_good(&mixed);
    assert!(content == first, "the content stands");
    assert!(matches!(summary.index, IndexVerdict::Disagrees(_)));
    // By the index: an error, or if by chance a block fits, the right page.
    for page in 0..24u64 {
        let start = usize::try_from(page).unwrap() * PAGE_SIZE;
        if let Ok(Some(bytes)) = read_pages(&mixed, page..page + 1) {
            assert!(bytes == first[start..start + PAGE_SIZE]);
        }
    }
    // Without any index the frame is whole.
    let (content, summary) = read_good(&first_archive[..at]);
    assert!(content == first && summary.index == IndexVerdict::Absent);
    assert!(opened(&first_archive[..at]).unwrap().is_none());
}

/// The GPU's kernels in the interpreter, as a codec that counts its pages.
#[test]
fn pages_go_to_the_codec_that_is_given() {
    let content = mixed_content(10, 300_000);
    let (archive, summary) = archive_of(&content, with_checksums(), 500);
    let config = GpuBatchConfig { batch_size: 16, ..GpuBatchConfig::default() };
    let mut codec = GpuBatchCompressor::interpreted(config, &GpuOptions::new()).unwrap();
    let archived = opened(&archive).unwrap().unwrap();
    let mut pages = vec![[0xff; PAGE_SIZE]; usize::try_from(archived.page_count()).unwrap()];
    let decoded_by_codec = archived.with_codec(&mut codec);
    assert_eq!(decoded_by_codec.max_readers(), 1, "the codec works for one thread at a time");
    decoded_by_codec.read(0, &mut pages).unwrap();
    let (whole, behind) = pages.as_flattened().split_at(content.len());
    assert!(whole == content && behind.iter().all(|byte| *byte == 0));
    let decoded = summary.pages.pages() - summary.pages.zero - 1;
    assert_eq!(codec.stats().pages_decompressed, decoded, "all but zeros and the tail");

    let mut reader = FrameReader::with_codec(&archive[..], &mut codec);
    let (mut read, mut batch) = (Vec::new(), ContentBatch::new());
    while reader.read_batch(&mut batch).unwrap() {
        support::append(&mut read, &batch);
    }
    assert!(read == content);
    assert!(codec.stats().pages_decompressed >= 2 * decoded);
    assert_eq!(codec.stats().fallback.batches, 0);
}

/// C lz4 codes a zero page and a page of one word as this crate does: they are the same pages to every reader.
#[test]
fn constant_pages_as_lz4_blocks_of_another_encoder() {
    let pages: [[u8; PAGE_SIZE]; 3] = [[0; PAGE_SIZE], *b"01234567".repeat(512).first_chunk().unwrap(), [7; PAGE_SIZE]];
    let mut content = Vec::new();
    let (mut arena, mut index) = (Vec::new(), Vec::new());
    for number in [0, 0, 1, 2, 0, 1, 0, 0, 0] {
        let block = oracle::c_lz4_compress(&pages[number]);
        let len_bytes = u16::try_from(block.len()).unwrap();
        index.push(IndexEntry { offset: arena.len() as u64, len_bytes, kind: PageKind::Lz4 });
        arena.extend(block);
        content.extend_from_slice(&pages[number]);
    }
    let mut archive = ArchiveWriter::new(Vec::new(), with_checksums()).unwrap();
    archive.write_batch(&CompressedBatch::from_parts(arena, index).unwrap()).unwrap();
    let mut hash = ContentHash::new();
    hash.update(&content);
    let (bytes, summary) = archive.finish(Some(hash)).unwrap();
    assert_eq!(summary.pages.zero, 6, "the blocks are those of this crate");
    let (read, read_summary) = read_good(&bytes);
    assert!(read == content);
    assert_eq!((read_summary.index, read_summary.pages), (IndexVerdict::Agrees, summary.pages));
    assert!(read_pages(&bytes, 0..9).unwrap().unwrap() == content);
}

#[test]
fn misuse_is_refused() {
    let zstd = CpuBatchCompressor::new(Algorithm::Zstd { level: 1 }).unwrap();
    let page: [u8; PAGE_SIZE] = std::array::from_fn(|i| u8::try_from(i / 64).unwrap());
    let batch = { zstd }.compress(&[page]).unwrap();
    let new = |options| ArchiveWriter::new(Vec::new(), options).unwrap();
    assert!(matches!(new(with_checksums()).write_batch(&batch), Err(Error::Misuse(_))));
    let announced = with_checksums().with_content_len(10);
    assert!(matches!(new(announced).write_zero_pages(1), Err(Error::Misuse(_))));
    assert!(matches!(new(announced).write_zero_pages(u64::MAX), Err(Error::Misuse(_))));
    assert!(matches!(new(announced).finish(Some(ContentHash::new())), Err(Error::Misuse(_))));
    assert!(matches!(new(with_checksums()).finish(None), Err(Error::Misuse(_))));
    assert!(matches!(new(with_checksums()).write_tail(&[0; PAGE_SIZE]), Err(Error::Misuse(_))));
    let mut tailed = new(with_checksums());
    tailed.write_tail(b"tail").unwrap();
    assert!(matches!(tailed.write_zero_pages(1), Err(Error::Misuse(_))));
}

/// The defaults ask for nothing that a caller may not have.
#[test]
fn blocks_of_another_page_are_refused() {
    let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    let mut blocks = PageBlocks::new();
    blocks.start(5, archive.block_shape());
    blocks.push_zeros(1).unwrap();
    blocks.finish();
    assert!(matches!(archive.write_blocks(&blocks), Err(Error::Misuse(_))));
}

#[test]
fn compress_says_where_its_input_fails() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::ConnectionReset.into())
        }
    }
    let input = std::io::repeat(7).take(16 << 20).chain(Failing);
    let failed = compress(input, std::io::sink(), &WriteOptions::default());
    assert!(matches!(failed, Err(Error::Read { at: 0x100_0000, .. })));
}

/// Zero pages need no hash. One that is stated must be true.
#[test]
fn a_false_hash_of_a_zero_page_is_found() {
    for (byte, is_true) in [(0, true), (1, false)] {
        let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default()).unwrap();
        archive.write_zero_pages(1).unwrap();
        let hash = PageHash::of(&[byte; PAGE_SIZE]);
        archive.add_section("page-hashes", &[&[1, 1], &hash.as_bytes()[..]].concat()).unwrap();
        let archive = PageArchive::standard(Arc::new(archive.finish(None).unwrap().0)).unwrap().unwrap();
        let hashes = PageHashes::stored(&archive).unwrap().unwrap();
        assert_eq!(hashes.check(&archive, HashCheck::All).is_ok(), is_true);
        assert_eq!(hashes.check(&archive, HashCheck::Sampled).is_ok(), is_true);
    }
}

#[test]
fn archives_are_opened_by_path() {
    let folder = tempfile::tempdir().unwrap();
    let (archive, other) = (folder.path().join("memory.lz4"), folder.path().join("memory.img"));
    let content = mixed_content(31, 50 * PAGE_SIZE + 5);
    std::fs::write(&archive, plain_archive_of(&content)).unwrap();
    std::fs::write(&other, &content).unwrap();
    let opened = Archive::open(&archive).unwrap();
    assert_eq!(opened.info().content_len, content.len() as u64);
    assert!(opened.read_page(49).unwrap() == content[49 * PAGE_SIZE..50 * PAGE_SIZE]);
    assert!(matches!(Archive::open(&other), Err(Error::NoIndex)));
    assert!(matches!(Archive::open(folder.path().join("missing")), Err(Error::Read { at: 0, .. })));
}

#[test]
fn snapshots_are_known_by_their_sections() {
    let mut heap = Mapping::new(0x10000, Flags::anonymous("rw-"), "[heap]");
    heap.push(2, PageState::Stored);
    let consistency = Consistency::Live;
    let map = AddressMap { pid: 4711, command: "server".into(), taken_unix_s: 7, consistency, mappings: vec![heap] };
    let state = ProcessState { machine: 62, auxiliary_vector: vec![1, 2], ..ProcessState::default() };
    let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    archive.write_zero_pages(2).unwrap();
    archive.add_section(address_map::SECTION, &map.to_bytes().unwrap()).unwrap();
    archive.add_section(process_state::SECTION, &state.to_bytes().unwrap()).unwrap();
    let snapshot = opened(&archive.finish(None).unwrap().0).unwrap().unwrap();
    let stored = StoredMap::read(&snapshot).unwrap().unwrap();
    assert_eq!((stored.pid, stored.consistency, stored.pages.stored), (4711, consistency, 2));
    assert_eq!(stored.into_bytes(), map.to_bytes().unwrap());
    assert_eq!(ProcessState::read(&snapshot).unwrap(), Some(state));

    let other = opened(&plain_archive_of(&[7; 5000])).unwrap().unwrap();
    assert!(StoredMap::read(&other).unwrap().is_none() && ProcessState::read(&other).unwrap().is_none());
    let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    archive.add_section(address_map::SECTION, &[2]).unwrap();
    archive.add_section(process_state::SECTION, &[1, 0]).unwrap();
    let damaged = opened(&archive.finish(None).unwrap().0).unwrap().unwrap();
    assert!(matches!(StoredMap::read(&damaged), Err(Error::Snapshot(SnapshotError::Version { version: 2, .. }))));
    assert!(matches!(ProcessState::read(&damaged), Err(Error::Snapshot(SnapshotError::Truncated { at: 2, .. }))));
}

#[test]
fn an_archive_of_default_options_needs_no_hash() {
    let mut writer = ArchiveWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    writer.write_tail(b"tail").unwrap();
    let (bytes, summary) = writer.finish(None).unwrap();
    assert_eq!((summary.content_len, read_good(&bytes).0), (4, b"tail".to_vec()));
}

/// In one call, from a reader that returns a few bytes at a time, what a stream and the index give back.
#[test]
fn compress_takes_any_reader_and_any_options() {
    struct Trickle<'a>(&'a [u8]);
    impl Read for Trickle<'_> {
        fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
            let len = bytes.len().min(self.0.len()).min(70_001);
            let (now, after) = self.0.split_at(len);
            bytes[..len].copy_from_slice(now);
            self.0 = after;
            Ok(len)
        }
    }
    for (len, format) in
        [0, 1, PAGE_SIZE, 16 << 20, (16 << 20) + 5].into_iter().flat_map(|len| FORMATS.map(|f| (len, f)))
    {
        let content = mixed_content(len as u64, len);
        for content_checksum in [false, true] {
            let options = WriteOptions::default()
                .with_format(format)
                .with_content_checksum(content_checksum)
                .with_page_hashes(true);
            let mut archive = Vec::new();
            let summary = compress(Trickle(&content), &mut archive, &options).unwrap();
            assert_eq!((summary.content_len, summary.archive_len), (len as u64, archive.len() as u64));
            let (read, found) = read_good(&archive);
            assert!(read == content && found.index == IndexVerdict::Agrees, "{format:?}, {len} bytes");
            let pages = summary.pages.pages();
            assert!(read_pages(&archive, 0..pages).unwrap().unwrap() == content, "{format:?}, {len} bytes");
        }
    }
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
    }
    assert!(matches!(compress(Broken, Vec::new(), &WriteOptions::default()), Err(Error::Read { at: 0, .. })));
    let announced = WriteOptions::default().with_content_len(10);
    assert!(matches!(compress(&b"four"[..], Vec::new(), &announced), Err(Error::Misuse(_))));
}

#[test]
fn a_full_disk_is_an_error() {
    struct Full(usize);
    impl std::io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let len = bytes.len().min(self.0);
            self.0 -= len;
            if len == 0 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(len) }
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut archive = ArchiveWriter::new(Full(100), with_checksums()).unwrap();
    let error = archive.write_zero_pages(1000).unwrap_err();
    assert!(matches!(error, Error::Write(source) if source.kind() == std::io::ErrorKind::StorageFull));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_content_in_any_batches(seed: u64, len in 0usize..600_000, batch_pages in 1usize..200, bits in 0u8..16) {
        let content = mixed_content(seed, len);
        let options = WriteOptions::default()
            .with_format(FORMATS[usize::from(bits >> 3)])
            .with_content_len((bits & 1 != 0).then_some(len as u64))
            .with_block_checksums(bits & 2 != 0)
            .with_content_checksum(bits & 4 != 0);
        assert_reads_everywhere(&content, options, batch_pages);
    }

    #[test]
    fn any_page_range(seed: u64, a in 0u64..3000, b in 0u64..3000) {
        let content = mixed_content(seed % 4, 3000 * PAGE_SIZE - 77);
        let archive = plain_archive_in(FORMATS[usize::from(seed % 8 > 3)], &content);
        let (start, end) = (a.min(b), a.max(b));
        let bytes = |page: u64| (usize::try_from(page).unwrap() * PAGE_SIZE).min(content.len());
        let read = read_pages(&archive, start..end).unwrap().unwrap();
        prop_assert!(read == content[bytes(start)..bytes(end)]);
    }

    #[test]
    fn any_batch_size_of_the_reader(batch_bytes in 1usize..400_000) {
        let content = mixed_content(9, 1_000_000);
        let archive = plain_archive_in(FORMATS[batch_bytes % 2], &content);
        let (read, summary) = read_stream(&archive, batch_bytes);
        prop_assert!(read == content);
        prop_assert_eq!(summary.unwrap().index, IndexVerdict::Agrees);
    }
}
