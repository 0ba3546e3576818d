//! Encoder tests that need no other codec and so run under Miri.

use trueno_test_pages::generate::Generator;
use trueno_test_pages::{corpus, edge_pages};

use super::compare::{BLOCK, Compare};
use super::strategy::{Chosen, choose};
use super::{Scratch, encode_page, reference};
use crate::cpu::{InstructionSet, Scalar, Token};
use crate::lz4::decode_simple;
use crate::page::{PAGE_SIZE, Page};

/// Returns the number of cases to run. Under Miri a page takes seconds, so it runs a few of each.
fn cases(count: usize) -> usize {
    if cfg!(miri) { count.div_ceil(10_000) } else { count }
}

fn tokens() -> Vec<Token> {
    InstructionSet::available().into_iter().map(|set| set.token().expect("available")).collect()
}

/// Encodes the page with every instruction set, from fresh and from used working memory, and checks that they agree with the
/// slow twin.
fn encode(used: &mut Scratch, page: &Page) -> Option<Vec<u8>> {
    let expected = reference::encode(page);
    let mut out = [page[98]; PAGE_SIZE];
    for token in tokens() {
        let len_bytes = encode_page(token, &mut Scratch::boxed(), page, &mut out);
        assert!(len_bytes.map(|len_bytes| &out[..len_bytes]) == expected.as_deref(), "{token:?}");
        used.table.fill(u16::from_le_bytes([page[17], page[4001] % 15]));
        out.fill(page[99]);
        for state in ["filled", "used"] {
            let len_bytes = encode_page(token, used, page, &mut out);
            let block = len_bytes.map(|len_bytes| &out[..len_bytes]);
            assert!(block == expected.as_deref(), "{token:?} with {state} working memory");
        }
    }
    expected
}

fn assert_round_trip(used: &mut Scratch, page: &Page) -> Option<usize> {
    let block = encode(used, page)?;
    let mut decoded = [0; PAGE_SIZE];
    assert_eq!(decode_simple(&block, &mut decoded), Ok(()));
    assert!(decoded == *page);
    Some(block.len())
}

#[test]
fn round_trips_generated_pages_with_any_working_memory() {
    let (mut generator, mut used) = (Generator::new(8), Scratch::boxed());
    for _ in 0..cases(10_000) {
        assert_round_trip(&mut used, &generator.page());
    }
}

#[test]
fn equals_its_slow_twin_on_corpus_pages() {
    let mut used = Scratch::boxed();
    for page in corpus::all_pages().step_by(if cfg!(miri) { 2500 } else { 1 }) {
        assert_round_trip(&mut used, page);
    }
}

#[test]
fn equals_its_slow_twin_on_edge_pages() {
    let mut used = Scratch::boxed();
    // Under Miri it takes minutes to make all of them.
    let pages = if cfg!(miri) { [0, 4095].map(edge_pages::one_byte_different_at).into() } else { edge_pages::all() };
    for edge in pages {
        assert_round_trip(&mut used, &edge.page);
    }
}

#[test]
fn round_trips_pages_that_end_inside_a_match() {
    let (mut generator, mut used) = (Generator::new(9), Scratch::boxed());
    for run in (0..80).step_by(if cfg!(miri) { 79 } else { 1 }) {
        let offsets = [1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 500];
        for offset in offsets.into_iter().step_by(if cfg!(miri) { 13 } else { 1 }) {
            let mut page: Page = std::array::from_fn(|_| generator.byte());
            for i in PAGE_SIZE - run..PAGE_SIZE {
                page[i] = page[i - offset];
            }
            // Make the block shrink, so that the end is actually encoded.
            page.copy_within(..1500, 1500);
            assert!(assert_round_trip(&mut used, &page).is_some());
        }
    }
}

/// Repeats of the previous offset, of all lengths around the limits of the paths, after one to three literals, in pages of
/// each strategy.
#[test]
fn equals_its_slow_twin_on_repeats() {
    let (mut generator, mut used) = (Generator::new(12), Scratch::boxed());
    for length in (5..150).step_by(if cfg!(miri) { 145 } else { 1 }) {
        let kinds = [0, 1, 2].into_iter().flat_map(|kind| [1, 2, 3].map(|literals| (kind, literals)));
        for (kind, literals) in kinds.step_by(if cfg!(miri) { 4 } else { 1 }) {
            let mut page = page_of(kind, &mut generator);
            let mut at = 2048;
            while at + 12 + literals + length < PAGE_SIZE {
                // A match at a new offset, literals, and what follows that match's source.
                let offset = 16 + generator.below(1500);
                page.copy_within(at - offset..at - offset + 12 + literals + length, at);
                for literal in &mut page[at + 12..at + 12 + literals] {
                    *literal ^= 1 + generator.byte() % 255;
                }
                at += 12 + literals + length;
            }
            assert_round_trip(&mut used, &page);
        }
    }
}

#[test]
fn rejects_blocks_that_do_not_shrink() {
    let (mut generator, mut used) = (Generator::new(10), Scratch::boxed());
    let noise: Page = std::array::from_fn(|_| generator.byte());
    assert_eq!(assert_round_trip(&mut used, &noise), None);
    // A short copy does not pay for the literals' length bytes, a long one does. In between either may happen.
    let with_copy = |copied: usize| {
        let mut page = noise;
        page.copy_within(10..10 + copied, 60);
        page
    };
    assert_eq!(assert_round_trip(&mut used, &with_copy(4)), None);
    assert!(assert_round_trip(&mut used, &with_copy(40)).is_some());
    for copied in (5..40).step_by(if cfg!(miri) { 35 } else { 1 }) {
        assert_round_trip(&mut used, &with_copy(copied));
    }
}

#[test]
fn equal_mask_matches_its_definition() {
    fn check(compare: impl Compare, a: &[u8; BLOCK], b: &[u8; BLOCK]) {
        let expected = (0..BLOCK).map(|i| u32::from(a[i] == b[i]) << i).sum::<u32>();
        assert_eq!(compare.equal_mask(a, b), expected);
    }
    let mut generator = Generator::new(11);
    for _ in 0..cases(100_000) {
        let a: [u8; BLOCK] = std::array::from_fn(|_| generator.byte());
        let flips = [1, 0x80, 0xff, generator.byte()];
        let keep = generator.next_u64();
        let b = std::array::from_fn(|i| if keep >> i & 1 == 0 { a[i] ^ flips[i % 4] } else { a[i] });
        check(Scalar, &a, &b);
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = crate::cpu::Avx2::detect() {
            check(avx2, &a, &b);
        }
    }
}

/// Returns noise (0), an array of pointers (1), or an array of index entries: a row's place, flags, and a key (2).
fn page_of(kind: usize, generator: &mut Generator) -> Page {
    let mut page: Page = std::array::from_fn(|_| generator.byte());
    for (entry, n) in page.as_chunks_mut::<16>().0.iter_mut().zip(1u16..) {
        let [low, high] = n.to_le_bytes();
        match kind {
            0 => {}
            1 => *entry = [low & 0xf0, high, entry[2], 7, 8, 9, 0, 0, low, entry[9], 3, 4, 5, 6, 0, 0],
            _ => *entry = [0, 0, 9, 1, low % 100 + 1, 0, 16, 0, low, high + 1, 0, 0, 0, 0, 0, 0],
        }
    }
    page
}

#[test]
fn distinguishes_words_records_and_text() {
    let mut words = [0; PAGE_SIZE];
    for (word, n) in words.as_chunks_mut::<8>().0.iter_mut().zip(0u64..) {
        *word = (0x5500_0000_1000 + 48 * n).to_le_bytes();
    }
    let mut generator = Generator::new(13);
    let pages = [
        (words, Chosen::Heap),
        (page_of(1, &mut generator), Chosen::Heap),
        (page_of(2, &mut generator), Chosen::Records),
        (page_of(0, &mut generator), Chosen::Text),
        ([b'x'; PAGE_SIZE], Chosen::Text),
    ];
    for (page, expected) in pages {
        assert_eq!(reference::choose(&page), expected);
        assert_eq!(choose(Scratch::boxed().page.load(Scalar, &page)), expected);
    }
}

#[test]
fn chooses_like_its_slow_twin() {
    let (mut generator, mut used, mut chosen) = (Generator::new(14), Scratch::boxed(), Vec::new());
    for _ in 0..cases(20_000) {
        // Around the thresholds: some entries of each kind.
        let mut page = page_of(1 + generator.below(2), &mut generator);
        let noise = page_of(0, &mut generator);
        for (entry, noise) in page.as_chunks_mut::<64>().0.iter_mut().zip(noise.as_chunks::<64>().0) {
            if generator.below(10) < 4 {
                *entry = *noise;
            }
        }
        let choice = choose(used.page.load(Scalar, &page));
        assert_eq!(choice, reference::choose(&page));
        chosen.push(choice);
    }
    let kinds = [Chosen::Heap, Chosen::Records, Chosen::Text];
    assert!(cfg!(miri) || kinds.iter().all(|kind| chosen.contains(kind)), "the test pages are of every kind");
}
