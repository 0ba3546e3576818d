//! Every page is restored exactly, and other LZ4 libraries can read every block.

use trueno_test_pages::oracle::{assert_decodes, foreign_blocks};
use trueno_test_pages::{corpus, edge_pages, generate::Generator};
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::{Algorithm, PAGE_SIZE, Page, PageCodec, PageKind, lz4, same_filled};

/// Returns the corpus, the edge pages and some generated ones, each with a name.
fn pages() -> Vec<(String, Page)> {
    let corpus = corpus::ALL.iter().flat_map(|corpus| {
        corpus.pages.iter().enumerate().map(|(i, page)| (format!("{} page {i}", corpus.name), *page))
    });
    let edges = edge_pages::all().into_iter().map(|edge| (edge.name, *edge.page));
    let mut generator = Generator::new(1);
    let generated = (0..500).map(|i| (format!("generated page {i}"), generator.page())).collect::<Vec<_>>();
    corpus.chain(edges).chain(generated).collect()
}

/// Returns one codec per instruction set, reused for all pages.
fn codecs() -> Vec<lz4::Codec> {
    InstructionSet::available().into_iter().map(|set| lz4::Codec::new(set).expect("available")).collect()
}

#[test]
fn every_instruction_set_gives_the_same_block_readable_by_other_libraries() {
    let mut codecs = codecs();
    for (name, page) in pages() {
        let blocks: Vec<_> = codecs.iter_mut().map(|codec| encode(codec, &page)).collect();
        for (codec, block) in codecs.iter().zip(&blocks) {
            assert!(
                *block == blocks[0],
                "{name}: {} differs from {}",
                codec.instruction_set(),
                codecs[0].instruction_set()
            );
        }
        if let Some(block) = &blocks[0] {
            assert!(block.len() < PAGE_SIZE, "{name}: a block is shorter than its page");
            assert_decodes(block, &page);
            assert_end_rules(&name, block);
            for codec in &mut codecs {
                let mut decoded = [0x5a; PAGE_SIZE];
                codec
                    .decode(block, &mut decoded)
                    .unwrap_or_else(|e| panic!("{name}: {}: {e}", codec.instruction_set()));
                assert!(decoded == page, "{name}: {}", codec.instruction_set());
            }
        }
    }
}

fn encode(codec: &mut lz4::Codec, page: &Page) -> Option<Vec<u8>> {
    let mut out = [0xcc; PAGE_SIZE];
    codec.encode(page, &mut out).map(|len_bytes| out[..len_bytes].to_vec())
}

/// Walks the sequences according to the format's specification: the last one has only literals, at least 5, and the
/// last match starts at least 12 bytes before the end.
fn assert_end_rules(name: &str, block: &[u8]) {
    let (mut at, mut produced, mut last_match_start) = (0, 0, None);
    loop {
        let token = block[at];
        at += 1;
        let length = |nibble: u8, at: &mut usize| {
            let mut length = usize::from(nibble);
            if nibble == 15 {
                loop {
                    let more = block[*at];
                    *at += 1;
                    length += usize::from(more);
                    if more != 255 {
                        break;
                    }
                }
            }
            length
        };
        let literals = length(token >> 4, &mut at);
        at += literals;
        produced += literals;
        if at == block.len() {
            assert!(last_match_start.is_none() || literals >= 5, "{name}: the block ends with {literals} literals");
            assert_eq!(produced, PAGE_SIZE, "{name}");
            assert!(last_match_start.is_none_or(|start| start + 12 <= PAGE_SIZE), "{name}: {last_match_start:?}");
            return;
        }
        at += 2;
        last_match_start = Some(produced);
        produced += length(token & 15, &mut at) + 4;
    }
}

#[test]
fn every_instruction_set_reads_blocks_of_other_libraries() {
    let mut codecs = codecs();
    for (name, page) in pages() {
        for (maker, block) in foreign_blocks(&page) {
            for codec in &mut codecs {
                let mut decoded = [0x5a; PAGE_SIZE];
                let done = codec.decode(&block, &mut decoded);
                assert_eq!(done, Ok(()), "{name} by {maker} on {}", codec.instruction_set());
                assert!(decoded == page, "{name} by {maker} on {}", codec.instruction_set());
            }
        }
    }
}

#[test]
fn every_algorithm_round_trips_and_never_expands() {
    for algorithm in [Algorithm::None, Algorithm::Lz4, Algorithm::Zstd { level: 1 }, Algorithm::Zstd { level: -5 }] {
        let mut codec = PageCodec::new(algorithm).expect("a valid level");
        let mut lz4_codec = lz4::Codec::new(InstructionSet::detect()).expect("a detected instruction set is available");
        for (name, page) in pages() {
            let (mut out, mut back) = ([0; PAGE_SIZE], [0x5a; PAGE_SIZE]);
            let data = codec.compress(&page, &mut out).expect("compression does not fail");
            assert!(data.bytes().len() <= PAGE_SIZE, "{name}");
            let expected_kinds: &[PageKind] = match (same_filled(&page), algorithm) {
                (Some(_), _) => &[PageKind::SameFilled],
                (None, Algorithm::None) => &[PageKind::Raw],
                (None, Algorithm::Lz4) if encode(&mut lz4_codec, &page).is_some() => &[PageKind::Lz4],
                (None, Algorithm::Lz4) => &[PageKind::Raw],
                (None, Algorithm::Zstd { .. }) => &[PageKind::Zstd, PageKind::Raw],
            };
            assert!(expected_kinds.contains(&data.kind()), "{name} by {algorithm}: {}", data.kind());
            codec.decompress(data, &mut back).unwrap_or_else(|e| panic!("{name} by {algorithm}: {e}"));
            assert!(back == page, "{name} by {algorithm}");
        }
    }
}

#[test]
fn round_trips_a_zero_page_with_one_byte_set_at_any_position() {
    let mut codec = PageCodec::default();
    for at in 0..PAGE_SIZE {
        let page = edge_pages::one_byte_different_at(at).page;
        let (mut out, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        let data = codec.compress(&page, &mut out).expect("LZ4 does not fail");
        assert!(data.kind() == PageKind::Lz4 && data.bytes().len() < 60, "{at}: {data:?}");
        assert_decodes(data.bytes(), &page);
        codec.decompress(data, &mut back).unwrap_or_else(|e| panic!("{at}: {e}"));
        assert!(back == *page, "{at}");
    }
}

/// Encodes with every instruction set and checks that the blocks are equal and decode to the page everywhere.
fn assert_round_trip(codecs: &mut [lz4::Codec], name: &str, page: &Page) {
    let blocks: Vec<_> = codecs.iter_mut().map(|codec| encode(codec, page)).collect();
    assert!(blocks.iter().all(|block| *block == blocks[0]), "{name}");
    if let Some(block) = &blocks[0] {
        assert_decodes(block, page);
        let mut decoded = [0; PAGE_SIZE];
        assert_eq!(codecs[0].decode(block, &mut decoded), Ok(()), "{name}");
        assert!(decoded == *page, "{name}");
    }
}

#[test]
fn round_trips_runs_of_every_length() {
    let (mut codecs, mut generator) = (codecs(), Generator::new(16));
    let noise: Page = std::array::from_fn(|_| generator.byte());
    for len in 1..=PAGE_SIZE {
        let mut page = noise;
        let start = generator.below(PAGE_SIZE - len + 1);
        page[start..start + len].fill(0xaa);
        assert_round_trip(&mut codecs, &format!("run of {len} at {start}"), &page);
    }
}

#[test]
fn round_trips_matches_at_every_distance() {
    let (mut codecs, mut generator) = (codecs(), Generator::new(17));
    let noise: Page = std::array::from_fn(|_| generator.byte());
    for distance in 1..PAGE_SIZE {
        let mut page = noise;
        let len = 1 + generator.below(PAGE_SIZE - distance);
        let start = distance + generator.below(PAGE_SIZE - distance - len + 1);
        for i in start..start + len {
            page[i] = page[i - distance];
        }
        assert_round_trip(&mut codecs, &format!("{len} bytes from {distance} before {start}"), &page);
    }
}

#[test]
fn random_pages_are_held_raw() {
    let mut generator = Generator::new(2);
    let page: Page = std::array::from_fn(|_| generator.byte());
    for algorithm in [Algorithm::Lz4, Algorithm::Zstd { level: 3 }] {
        let mut out = [0; PAGE_SIZE];
        let mut codec = PageCodec::new(algorithm).expect("a valid level");
        let data = codec.compress(&page, &mut out).expect("compression does not fail");
        assert_eq!((data.kind(), data.bytes()), (PageKind::Raw, &page[..]));
    }
}

#[test]
fn rejects_a_zstd_level_out_of_range() {
    let error = PageCodec::new(Algorithm::Zstd { level: 23 }).expect_err("the highest level is 22");
    assert!(matches!(error, trueno_zram_core::Error::ZstdLevel { level: 23, max: 22, .. }), "{error}");
}

#[test]
fn ratio_is_within_half_a_percent_of_c_lz4_on_every_corpus() {
    for corpus in corpus::ALL {
        let mut codec = lz4::Codec::new(InstructionSet::detect()).expect("a detected instruction set is available");
        let (mut ours, mut theirs) = (0, 0);
        for page in corpus.pages.iter().filter(|page| same_filled(page).is_none()) {
            ours += encode(&mut codec, page).map_or(PAGE_SIZE, |block| block.len());
            theirs += trueno_test_pages::oracle::c_lz4_compress(page).len().min(PAGE_SIZE);
        }
        assert!(ours * 995 <= theirs * 1000, "{}: {ours} bytes against {theirs}", corpus.name);
    }
}
