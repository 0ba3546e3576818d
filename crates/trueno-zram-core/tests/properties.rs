//! Properties of every page and every block, on pages that proptest generates and shrinks.

use proptest::collection::vec;
use proptest::prelude::*;
use trueno_test_pages::oracle::{assert_decodes, c_lz4_compress};
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::lz4::{Codec, decode_simple};
use trueno_zram_core::{Algorithm, CompressedBatch, CpuBatchCompressor, PAGE_SIZE, Page, PageCodec, same_filled};

/// A part of a page: new bytes, a run, or a copy of earlier bytes.
#[derive(Clone, Debug)]
enum Piece {
    Bytes(Vec<u8>),
    Run(u8, usize),
    Copy { distance: usize, len: usize },
}

fn piece() -> impl Strategy<Value = Piece> {
    prop_oneof![
        vec(any::<u8>(), 1..40).prop_map(Piece::Bytes),
        (any::<u8>(), 1..600usize).prop_map(|(byte, len)| Piece::Run(byte, len)),
        (prop_oneof![1..64usize, 1..PAGE_SIZE], prop_oneof![1..24usize, 1..700usize])
            .prop_map(|(distance, len)| Piece::Copy { distance, len }),
    ]
}

fn page() -> impl Strategy<Value = Box<Page>> {
    vec(piece(), 0..400).prop_map(|pieces| {
        let mut bytes = Vec::with_capacity(2 * PAGE_SIZE);
        for piece in pieces {
            match piece {
                Piece::Bytes(fresh) => bytes.extend(fresh),
                Piece::Run(byte, len) => bytes.extend(std::iter::repeat_n(byte, len)),
                Piece::Copy { distance, len } => {
                    for _ in 0..len {
                        let source = bytes.len().checked_sub(distance);
                        bytes.push(source.map_or(0, |source| bytes[source]));
                    }
                }
            }
        }
        bytes.resize(PAGE_SIZE.max(bytes.len()), 0);
        Box::new(*bytes.first_chunk().expect("filled up to a page"))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_instruction_set_gives_the_same_block_and_decodes_it(page in page()) {
        let mut blocks = Vec::new();
        for backend in InstructionSet::available() {
            let mut codec = Codec::new(backend).expect("available");
            let mut out = [0; PAGE_SIZE];
            let block = codec.encode(&page, &mut out).map(|len_bytes| out[..len_bytes].to_vec());
            if let Some(block) = &block {
                let mut back = [0; PAGE_SIZE];
                prop_assert_eq!(codec.decode(block, &mut back), Ok(()));
                prop_assert!(back == *page);
            }
            blocks.push(block);
        }
        prop_assert!(blocks.iter().all(|block| *block == blocks[0]));
        if let Some(block) = &blocks[0] {
            assert_decodes(block, &page);
        }
    }

    #[test]
    fn damaged_blocks_give_the_same_result(page in page(), at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let mut block = c_lz4_compress(&page);
        let at = at.index(block.len());
        block[at] = value;
        let mut expected = [0; PAGE_SIZE];
        let verdict = decode_simple(&block, &mut expected);
        for backend in InstructionSet::available() {
            let mut back = [0; PAGE_SIZE];
            prop_assert_eq!(Codec::new(backend).expect("available").decode(&block, &mut back), verdict);
            prop_assert!(verdict.is_err() || back == expected);
        }
    }

    #[test]
    fn only_same_filled_pages_are_held_as_a_word(word in any::<[u8; 8]>(), page in page()) {
        let filled = std::array::from_fn(|i| word[i % 8]);
        prop_assert_eq!(same_filled(&filled), Some(word));
        let by_hand = page.chunks(8).all(|chunk| *chunk == page[..8]);
        prop_assert_eq!(same_filled(&page).is_some(), by_hand);
    }

    #[test]
    fn every_algorithm_restores_the_page(page in page(), level in -7..4) {
        for algorithm in [Algorithm::None, Algorithm::Lz4, Algorithm::Zstd { level }] {
            let mut codec = PageCodec::new(algorithm).expect("a valid level");
            let (mut out, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
            let data = codec.compress(&page, &mut out).expect("compression does not fail");
            codec.decompress(data, &mut back).expect("the page is intact");
            prop_assert!(back == *page);
        }
    }

    #[test]
    fn a_batch_equals_its_pages_compressed_one_by_one(pages in vec(page(), 0..40)) {
        let pages: Vec<Page> = pages.into_iter().map(|page| *page).collect();
        let mut compressor = CpuBatchCompressor::default();
        let batch = compressor.compress(&pages).expect("LZ4 does not fail");
        let mut end = 0;
        for entry in batch.index() {
            prop_assert_eq!(entry.offset, end);
            end += u64::from(entry.len_bytes);
        }
        prop_assert_eq!(end, batch.arena().len() as u64);
        let again = CompressedBatch::from_parts(batch.arena().to_vec(), batch.index().to_vec());
        prop_assert_eq!(again.as_ref(), Ok(&batch));
        prop_assert!(compressor.decompress(&batch) == Ok(pages));
    }
}
