//! Damaged files: what is intact comes back at its place, what is not becomes zeros and is listed.
#![cfg(feature = "zstd")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::sync::Arc;

use support::forge::Forged;
use support::{FORMATS, append, archive_of, mixed_content, opened, read_stream, with_checksums};
use trueno_test_pages::frames::{self, FrameSettings};
use trueno_test_pages::generate::Generator;
use trueno_zram_archive::{
    BlockPlace, ContentBatch, ContentHash, Damage, DamageKind, Format, FrameReader, IndexVerdict, Pages, SalvageReader,
    WriteOptions,
};
use trueno_zram_core::{PAGE_SIZE, PageKind};

fn salvage(bytes: &[u8]) -> (Vec<u8>, Vec<Damage>, bool) {
    let mut reader = SalvageReader::open(Arc::new(bytes.to_vec())).unwrap();
    let (mut content, mut batch) = (Vec::new(), ContentBatch::new());
    while reader.read_batch(&mut batch).unwrap() {
        append(&mut content, &batch);
    }
    (content, reader.damage().to_vec(), reader.uses_index())
}

fn salvage_stream(bytes: &[u8]) -> (Vec<u8>, Vec<Damage>) {
    let mut reader = FrameReader::new(bytes).salvaging();
    let (mut content, mut batch) = (Vec::new(), ContentBatch::new());
    while reader.read_batch(&mut batch).unwrap() {
        append(&mut content, &batch);
    }
    (content, reader.damage().to_vec())
}

/// Everything outside the damage is as it was, everything within is zero.
fn assert_as_listed(restored: &[u8], content: &[u8], damage: &[Damage], what: &str) {
    assert_eq!(restored.len(), content.len(), "{what}");
    let mut expected = content.to_vec();
    for damage in damage {
        let range = usize::try_from(damage.content.start).unwrap()..usize::try_from(damage.content.end).unwrap();
        expected[range].fill(0);
    }
    assert!(restored == expected, "{what}: {damage:?}");
}

fn blocks(archive: &[u8]) -> Vec<BlockPlace> {
    let reader = opened(archive).unwrap().unwrap();
    let pages = reader.page_count();
    reader.blocks(0..pages).unwrap().map(Result::unwrap).collect()
}

#[test]
fn nothing_is_lost_of_a_whole_file() {
    let content = mixed_content(1, 3000 * PAGE_SIZE + 77);
    for format in FORMATS {
        let (archive, summary) = archive_of(&content, with_checksums().with_format(format), 500);
        assert_eq!(salvage(&archive), (content.clone(), Vec::new(), true));
        let frame_len = archive.len() - usize::try_from(summary.index_len).unwrap();
        assert_eq!(salvage(&archive[..frame_len]), (content.clone(), Vec::new(), false));
    }
    for shape in frames::all_settings().into_iter().step_by(7) {
        assert_eq!(salvage(&frames::compress(&content, &shape)), (content.clone(), Vec::new(), false), "{shape:?}");
    }
}

/// Damage to any part of a block, its header included, loses that block's pages and no others.
#[test]
fn a_damaged_block_loses_its_own_pages() {
    for format in FORMATS {
        assert_own_pages_lost(format);
    }
}

fn assert_own_pages_lost(format: Format) {
    let content = mixed_content(2, 2500 * PAGE_SIZE + 77);
    let (archive, _) = archive_of(&content, with_checksums().with_format(format), 500);
    let blocks = blocks(&archive);
    let mut random = Generator::new(3);
    for round in 0..150 {
        let block = blocks[random.below(blocks.len())];
        let part = random.below(if format == Format::Lz4 { 8 } else { 0 } + block.len_bytes as usize);
        let mut damaged = archive.clone();
        damaged[usize::try_from(block.offset).unwrap() + part] ^= 1 << random.below(8);
        let (restored, damage, indexed) = salvage(&damaged);
        assert!(indexed);
        assert_as_listed(&restored, &content, &damage, &format!("round {round}"));
        let [damage] = &damage[..] else { panic!("round {round}: {damage:?}") };
        assert_eq!(damage.pages(), block.first_page..block.first_page + block.pages, "round {round}, byte {part}");
        assert_eq!(damage.at, block.offset);
        assert!(format == Format::Zstd || (damage.kind == DamageKind::Header) == (part < 4));
    }
}

#[test]
fn a_hole_in_the_file_loses_the_blocks_in_it() {
    let content = mixed_content(4, 5000 * PAGE_SIZE);
    let (archive, _) = archive_of(&content, with_checksums(), 500);
    let mut damaged = archive.clone();
    damaged[1_000_000..1_100_000].fill(0);
    let (restored, damage, _) = salvage(&damaged);
    assert_as_listed(&restored, &content, &damage, "a hole");
    let lost: u64 = damage.iter().map(|damage| damage.content.end - damage.content.start).sum();
    let inside: u64 = blocks(&archive)
        .iter()
        .filter(|block| block.offset + 8 + u64::from(block.len_bytes) > 1_000_000 && block.offset < 1_100_000)
        .map(|block| block.pages * PAGE_SIZE as u64)
        .sum();
    assert_eq!(lost, inside);
}

/// If a group's entries are lost, its blocks are found by their size words. The damage is listed.
#[test]
fn damaged_entries_lose_nothing() {
    for format in FORMATS {
        assert_found_without_entries(format);
    }
}

fn assert_found_without_entries(format: Format) {
    let content = mixed_content(5, 2500 * PAGE_SIZE + 77);
    let (archive, summary) = archive_of(&content, with_checksums().with_format(format), 500);
    let entries_at = archive.len() - usize::try_from(summary.index_len).unwrap() + 16;
    let mut damaged = archive.clone();
    damaged[entries_at + 100] ^= 1;
    damaged[entries_at + 2048 + 100] ^= 1;
    let frame_len = archive.len() as u64 - summary.index_len;
    let end = content.len() as u64;
    let index_damage = Damage { at: frame_len, content: end..end, kind: DamageKind::Index };
    assert!(index_damage.pages().is_empty(), "although the content ends within a page");
    assert_eq!(salvage(&damaged), (content.clone(), vec![index_damage], true));
    // With damaged blocks besides.
    let block = blocks(&archive)[300];
    damaged[usize::try_from(block.offset).unwrap() + if format == Format::Lz4 { 5 } else { 11 }] ^= 1;
    let (restored, damage, _) = salvage(&damaged);
    assert_as_listed(&restored, &content, &damage, "entries and a block");
    assert_eq!(damage.len(), 1);
}

/// The positions of pages that are stored as they are.
fn raw_pages(archive: &[u8]) -> Vec<usize> {
    let whole = |block: &BlockPlace| block.kind == PageKind::Raw && block.len_bytes as usize == PAGE_SIZE;
    blocks(archive).iter().filter(|block| whole(block)).map(|block| usize::try_from(block.offset).unwrap()).collect()
}

/// Asserts that the content is restored in full length, is wrong, and is listed as a whole.
fn assert_content_listed(damaged: &[u8], content: &[u8]) {
    let (restored, damage, indexed) = salvage(damaged);
    assert!(indexed && restored.len() == content.len() && restored != content);
    assert_eq!(damage, [Damage { at: 0, content: 0..content.len() as u64, kind: DamageKind::Content }]);
}

/// Every block is in order, but two are not in their places.
#[test]
fn salvage_reports_swapped_blocks() {
    let content = mixed_content(12, 2500 * PAGE_SIZE + 77);
    let (archive, _) = archive_of(&content, with_checksums(), 500);
    let raw = raw_pages(&archive);
    let len = PAGE_SIZE + 8;
    for (a, b) in [(raw[0], raw[1]), (raw[0], raw[raw.len() - 1])] {
        let mut damaged = archive.clone();
        damaged[a..a + len].copy_from_slice(&archive[b..b + len]);
        damaged[b..b + len].copy_from_slice(&archive[a..a + len]);
        assert_content_listed(&damaged, &content);
    }
}

#[test]
fn salvage_reports_a_flipped_byte_without_block_checksums() {
    let content = mixed_content(13, 2500 * PAGE_SIZE + 77);
    let (archive, _) = archive_of(&content, with_checksums().with_block_checksums(false), 500);
    assert_eq!(salvage(&archive), (content.clone(), Vec::new(), true));
    let raw = raw_pages(&archive);
    for at in [raw[0], raw[raw.len() / 2], raw[raw.len() - 1]] {
        let mut damaged = archive.clone();
        damaged[at + 1000] ^= 0xff;
        assert_content_listed(&damaged, &content);
        // With a page that is lost besides, that page is listed and the checksum says nothing.
        let lost = if at == raw[0] { raw[1] } else { raw[0] };
        damaged[lost + 1] ^= 1;
        let (_, damage, _) = salvage(&damaged);
        assert_eq!((damage.len(), damage[0].kind, damage[0].at), (1, DamageKind::Header, lost as u64));
    }
}

/// A frame of one-byte blocks that all have a wrong checksum. The list does not grow with their number, be they within
/// the announced length or after it.
#[test]
fn adjacent_bad_blocks_are_one_entry() {
    for announced in [0u64, 5, 20_000] {
        let mut descriptor = vec![0x78, 0x40];
        descriptor.extend(announced.to_le_bytes());
        let mut hash = ContentHash::new();
        hash.update(&descriptor);
        let mut frame = 0x184d_2204_u32.to_le_bytes().to_vec();
        frame.extend(&descriptor);
        frame.push(hash.digest().to_le_bytes()[1]);
        for _ in 0..20_000 {
            frame.extend(0x8000_0001_u32.to_le_bytes());
            frame.extend([b'x', 1, 2, 3, 4]);
        }
        frame.extend([0; 4]);
        let (restored, damage) = salvage_stream(&frame);
        assert_eq!(restored.len() as u64, announced);
        assert_eq!(damage, [Damage { at: 15, content: 0..announced, kind: DamageKind::Checksum }]);
    }
}

/// Without an index, damaged blocks are passed over as long as their headers are right.
#[test]
fn streams_go_on_after_damaged_blocks() {
    let content = mixed_content(6, 600 * PAGE_SIZE + 77);
    let options = with_checksums().with_content_len(content.len() as u64);
    let (archive, _) = archive_of(&content, options, 500);
    let blocks = blocks(&archive);
    let mut random = Generator::new(7);
    for round in 0..100 {
        let block = blocks[random.below(blocks.len())];
        let at = usize::try_from(block.offset).unwrap() + 4 + random.below(4 + block.len_bytes as usize);
        let mut damaged = archive.clone();
        damaged[at] ^= 1 << random.below(8);
        let (restored, damage) = salvage_stream(&damaged);
        assert_as_listed(&restored, &content, &damage, &format!("round {round}"));
        assert_eq!(damage.len(), 1, "round {round}: {damage:?}");
        assert_eq!(damage[0].pages(), block.first_page..block.first_page + block.pages);
    }
    let mut damaged = archive.clone();
    damaged[usize::try_from(blocks[100].offset).unwrap() + 2] ^= 0x70;
    let (restored, damage) = salvage_stream(&damaged);
    assert_as_listed(&restored, &content, &damage, "a header");
    assert_eq!((damage.len(), damage[0].kind), (1, DamageKind::Header));
    let start = blocks[100].first_page * PAGE_SIZE as u64;
    assert_eq!(damage[0].content, start..content.len() as u64, "the rest is lost, and its length is known");
}

#[test]
fn truncated_files_give_what_they_have() {
    let content = mixed_content(8, 300 * PAGE_SIZE);
    let options = with_checksums().with_content_len(content.len() as u64);
    let (archive, _) = archive_of(&content, options, 500);
    for len in (100..archive.len()).step_by(3001) {
        let (restored, damage, indexed) = salvage(&archive[..len]);
        assert!(!indexed && damage.len() <= 1);
        let intact = damage.first().map_or(content.len(), |damage| usize::try_from(damage.content.start).unwrap());
        assert!(restored[..intact] == content[..intact] && restored.len() <= content.len(), "{len} bytes");
        assert!(intact > 0 || len < 5000, "{len} bytes");
    }
}

#[test]
fn foreign_frames() {
    let content = mixed_content(9, 1_000_000);
    for (linked, level) in [(false, 0), (true, 0), (true, 9)] {
        let shape = FrameSettings {
            block_size_id: 4,
            linked,
            block_checksums: true,
            content_checksum: true,
            content_size: true,
            level,
        };
        let frame = frames::compress(&content, &shape);
        let mut damaged = frame.clone();
        damaged[frame.len() / 2] ^= 1;
        let (restored, damage, _) = salvage(&damaged);
        assert_as_listed(&restored, &content, &damage, &format!("{shape:?}"));
        let lost: u64 = damage.iter().map(|damage| damage.content.end - damage.content.start).sum();
        assert!(if linked { lost > 100_000 } else { lost == 65_536 }, "{lost} bytes lost: {damage:?}");
    }
}

fn all_options(content: &[u8]) -> impl Iterator<Item = WriteOptions> {
    let len_bytes = content.len() as u64;
    (0..8).map(move |bits| {
        WriteOptions::default()
            .with_format(Format::Lz4)
            .with_content_len((bits & 4 != 0).then_some(len_bytes))
            .with_block_checksums(bits & 1 != 0)
            .with_content_checksum(bits & 2 != 0)
    })
}

fn header_damage() -> Damage {
    Damage { at: 0, content: 0..0, kind: DamageKind::Header }
}

/// With an index, a header that is lost altogether costs nothing, whatever it said.
#[test]
fn a_damaged_frame_header_loses_nothing_with_an_index() {
    for len_bytes in [0, 77, 2500 * PAGE_SIZE + 77] {
        let content = mixed_content(14, len_bytes);
        for options in all_options(&content) {
            let (archive, summary) = archive_of(&content, options, 500);
            let header_len = if options.content_len.is_some() { 15 } else { 7 };
            for damaged_bytes in [0..1, 4..5, 5..6, header_len - 1..header_len, 0..header_len] {
                let mut damaged = archive.clone();
                damaged[damaged_bytes.clone()].iter_mut().for_each(|byte| *byte ^= 0x5a);
                let (restored, damage, indexed) = salvage(&damaged);
                assert!(restored == content && indexed, "{options:?}, bytes {damaged_bytes:?}");
                assert_eq!(damage, [header_damage()], "{options:?}, bytes {damaged_bytes:?}");
            }
            // The entries of the last group are lost besides: other groups tell what the header said.
            if len_bytes > 4096 {
                let mut damaged = archive.clone();
                damaged[..header_len].fill(0xff);
                let entries_at = archive.len() - usize::try_from(summary.index_len).unwrap() + 16;
                damaged[entries_at + 2 * 2048 + 100] ^= 1;
                let (restored, damage, _) = salvage(&damaged);
                assert_as_listed(&restored, &content, &damage, &format!("{options:?}"));
                assert_eq!(damage[0], header_damage());
            }
        }
    }
}

/// The content checksum is still compared.
#[test]
fn a_damaged_frame_header_hides_no_wrong_content() {
    let content = mixed_content(15, 500 * PAGE_SIZE);
    let (archive, _) = archive_of(&content, with_checksums().with_block_checksums(false), 500);
    let mut damaged = archive.clone();
    damaged[4] ^= 0xff;
    damaged[raw_pages(&archive)[0] + 1000] ^= 0xff;
    let (restored, damage, _) = salvage(&damaged);
    assert!(restored.len() == content.len() && restored != content);
    let whole = Damage { at: 0, content: 0..content.len() as u64, kind: DamageKind::Content };
    assert_eq!(damage, [header_damage(), whole]);
}

/// Without an index, the first block shows what the header said.
#[test]
fn a_damaged_frame_header_loses_nothing_without_an_index() {
    let content = mixed_content(16, 300 * PAGE_SIZE + 77);
    for options in all_options(&content) {
        let (archive, summary) = archive_of(&content, options, 500);
        let frame_len = archive.len() - usize::try_from(summary.index_len).unwrap();
        let last = if options.content_len.is_some() { 14 } else { 6 };
        for at in [5, last] {
            let mut damaged = archive[..frame_len].to_vec();
            damaged[at] ^= 0xff;
            assert_eq!(salvage(&damaged), (content.clone(), vec![header_damage()], false), "{options:?}, byte {at}");
        }
    }
    for shape in frames::all_settings() {
        let mut damaged = frames::compress(&content, &shape);
        damaged[if shape.content_size { 14 } else { 6 }] ^= 1;
        let (restored, damage, _) = salvage(&damaged);
        assert!(restored == content, "{shape:?}");
        assert_eq!(damage, [header_damage()], "{shape:?}");
        // With block checksums, nothing of the header is needed.
        damaged[..6].fill(0);
        let found = shape.block_checksums.then_some(content.len());
        let mut reader = SalvageReader::open(Arc::new(damaged.to_vec())).unwrap();
        let (mut restored, mut batch) = (Vec::new(), ContentBatch::new());
        while reader.read_batch(&mut batch).unwrap_or(false) {
            append(&mut restored, &batch);
        }
        assert_eq!((!restored.is_empty()).then_some(restored.len()), found, "{shape:?}");
        assert!(restored.is_empty() || restored == content, "{shape:?}");
    }
}

/// Any bytes: no panic, and no more output than LZ4 can hold.
#[test]
fn arbitrary_damage() {
    let content = mixed_content(10, 200 * PAGE_SIZE);
    let (archive, _) = archive_of(&content, with_checksums(), 500);
    let mut random = Generator::new(11);
    for _ in 0..300 {
        let mut damaged = archive.clone();
        for _ in 0..=random.below(5) {
            random.corrupt(&mut damaged);
        }
        let Ok(mut reader) = SalvageReader::open(Arc::new(damaged.to_vec())) else { continue };
        let (mut batch, mut len_bytes) = (ContentBatch::new(), 0);
        while reader.read_batch(&mut batch).unwrap_or(false) {
            len_bytes += batch.len_bytes();
        }
        assert!(len_bytes <= 255 * damaged.len() as u64 + (1 << 20));
        assert!(reader.damage().iter().all(|damage| damage.content.end <= len_bytes), "{:?}", reader.damage());
    }
}

/// Pages of noise and of text, without zeros: every page has an entry of its own.
fn solid_content(pages: usize) -> Vec<u8> {
    let mut random = Generator::new(20);
    let mut content = Vec::with_capacity(pages * PAGE_SIZE);
    for page in 0..pages {
        match page % 8 {
            0 => content.extend((0..PAGE_SIZE).map(|_| random.byte())),
            1 => content.extend([page.to_le_bytes(); PAGE_SIZE / 8].as_flattened()),
            _ => content.extend((0..PAGE_SIZE).map(|at| (at / 40 * page + at % 40 + 1).to_le_bytes()[0])),
        }
    }
    content
}

/// Archives in both formats, with checksums of blocks and without, none of the content: nothing but the blocks tells of a lie.
fn solid_archives(pages: usize) -> (Vec<u8>, Vec<Vec<u8>>) {
    let content = solid_content(pages);
    let archives = (0..4).map(|bits| {
        let options = WriteOptions::default().with_format(FORMATS[bits >> 1]).with_block_checksums(bits & 1 != 0);
        archive_of(&content, options, 500).0
    });
    let archives = archives.collect();
    (content, archives)
}

/// Pages that the index leaves out, be they a few or whole groups, are restored, and the index is listed as damaged.
#[test]
fn an_index_that_is_too_short_loses_nothing() {
    let (content, archives) = solid_archives(3000);
    for (archive, pages) in archives.iter().flat_map(|archive| [1, 7, 951, 952, 953, 1976, 2500].map(|n| (archive, n)))
    {
        let mut forged = Forged::parse(archive);
        forged.forget_pages(pages);
        let (restored, damage, indexed) = salvage(&forged.build());
        assert!(indexed && restored == content, "{pages} pages are left out: {damage:?}");
        let known = ((3000 - pages) * PAGE_SIZE) as u64;
        let [Damage { content, kind: DamageKind::Index, .. }] = &damage[..] else { panic!("{damage:?}") };
        assert_eq!(*content, known..known);
    }
    // A damaged block among them loses its own page.
    let mut forged = Forged::parse(&archives[1]);
    forged.forget_pages(1500);
    let mut damaged = forged.build();
    let place = blocks(&archives[1])[2500];
    damaged[usize::try_from(place.offset).unwrap() + 4] ^= 1;
    let (restored, damage, _) = salvage(&damaged);
    assert_as_listed(&restored, &content, &damage, "a block that the index leaves out");
    assert_eq!((damage.len(), damage[1].pages(), damage[1].at), (2, 2500..2501, place.offset));
}

#[test]
fn an_index_that_is_too_long_is_damage() {
    let (content, archives) = solid_archives(1500);
    for (archive, pages) in archives.iter().flat_map(|archive| [1, 7, 548, 549, 600].map(|pages| (archive, pages))) {
        let mut forged = Forged::parse(archive);
        forged.invent_pages(pages);
        let (restored, damage, _) = salvage(&forged.build());
        let [first, ..] = &damage[..] else { panic!("{pages} pages too many, and no damage") };
        let certain = usize::try_from(first.content.start).unwrap();
        // A group that does not exist cuts the last one off; without one, nothing is lost.
        assert!(pages > 548 || certain >= content.len(), "{pages} pages too many: {damage:?}");
        assert!(
            restored.len() >= content.len() && restored[..certain].starts_with(&content[..certain.min(content.len())])
        );
        assert!(restored[certain..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn wrong_counts_are_damage() {
    let (content, archives) = solid_archives(300);
    for archive in archives {
        for (from, to) in [(3, 2), (2, 0), (2, 3), (1, 0)] {
            let mut forged = Forged::parse(&archive);
            forged.miscount(from, to);
            let (restored, damage, _) = salvage(&forged.build());
            assert!(restored == content);
            assert!(matches!(&damage[..], [Damage { kind: DamageKind::Index, .. }]), "{damage:?}");
        }
    }
}

/// An index that cannot be used at all leads to a stream. That is damage, too, from a file and from a pipe.
#[test]
fn an_index_that_is_not_used_is_damage() {
    let (content, archives) = solid_archives(300);
    for archive in archives {
        let mut forged = Forged::parse(&archive);
        forged.groups[0] += 1;
        let forged = forged.build();
        let (restored, damage, indexed) = salvage(&forged);
        assert!(restored == content && !indexed);
        assert!(matches!(&damage[..], [Damage { kind: DamageKind::Index, .. }]), "{damage:?}");
        assert_eq!(salvage_stream(&forged), (restored, damage));
    }
}

/// Without damage, the content is that of a stream, and the index agrees with it.
#[test]
fn no_forged_archive_is_undamaged_and_incomplete() {
    let mut random = Generator::new(21);
    let (mut whole, mut damaged) = (0, 0);
    for (seed, pages) in [(1, 40), (2, 300), (3, 1500)] {
        for bits in 0..8 {
            let options = WriteOptions::default()
                .with_format(FORMATS[bits >> 2])
                .with_content_len((bits & 1 != 0).then_some((pages * PAGE_SIZE + 100) as u64))
                .with_block_checksums(bits & 2 != 0);
            let archive = archive_of(&mixed_content(seed, pages * PAGE_SIZE + 100), options, 500).0;
            let parsed = Forged::parse(&archive);
            for round in 0..if pages > 1000 { 12 } else { 60 } {
                let mut forged = parsed.clone();
                for _ in 0..random.below(3) {
                    forged.edit(&mut |n| random.below(n));
                }
                let forged = forged.build();
                let (restored, damage, _) = salvage(&forged);
                if !damage.is_empty() {
                    damaged += 1;
                    continue;
                }
                whole += 1;
                let (content, summary) = read_stream(&forged, 1 << 20);
                assert!(restored == content, "seed {seed}, options {bits}, round {round}");
                assert_eq!(summary.unwrap().index, IndexVerdict::Agrees, "seed {seed}, options {bits}, round {round}");
            }
        }
    }
    assert!(whole > 100 && damaged > 300, "{whole} whole and {damaged} damaged: the edits are too mild or too wild");
}
