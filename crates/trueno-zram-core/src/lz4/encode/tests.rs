//! Encoder tests that need no other codec and so run under Miri.

use trueno_test_pages::generate::Generator;

use super::compare::{BLOCK, Compare};
use super::{Scratch, encode_page, is_mostly_words};
use crate::cpu::{InstructionSet, Scalar, Token};
use crate::lz4::decode_simple;
use crate::page::{PAGE_SIZE, Page};

/// Returns the number of cases to run. Miri is about a thousand times slower, so it runs a few of each.
fn cases(count: usize) -> usize {
    if cfg!(miri) { count.div_ceil(2000) } else { count }
}

fn tokens() -> Vec<Token> {
    InstructionSet::available().into_iter().map(|set| set.token().expect("available")).collect()
}

/// Encodes the page with every instruction set, from fresh and from used working memory, and checks that they agree.
fn encode(used: &mut Scratch, page: &Page) -> Option<Vec<u8>> {
    let block = encode_page(Token::Scalar(Scalar), &mut Scratch::boxed(), page).map(<[u8]>::to_vec);
    for token in tokens() {
        used.table.fill(u16::from_le_bytes([page[17], page[4001] % 15]));
        used.output.fill(page[99]);
        for state in ["filled", "used"] {
            let again = encode_page(token, used, page).map(<[u8]>::to_vec);
            assert_eq!(again, block, "{token:?} with {state} working memory");
        }
    }
    block
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
fn round_trips_pages_that_end_inside_a_match() {
    let (mut generator, mut used) = (Generator::new(9), Scratch::boxed());
    for run in (0..80).step_by(if cfg!(miri) { 37 } else { 1 }) {
        for offset in [1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 500] {
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
    for copied in (5..40).step_by(if cfg!(miri) { 17 } else { 1 }) {
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

#[test]
fn distinguishes_word_pages_from_text() {
    let mut words = [0; PAGE_SIZE];
    for (word, n) in words.as_chunks_mut::<8>().0.iter_mut().zip(0u64..) {
        *word = (0x5500_0000_1000 + 48 * n).to_le_bytes();
    }
    assert!(is_mostly_words(&words));
    assert!(!is_mostly_words(&[b'x'; PAGE_SIZE]));
}
