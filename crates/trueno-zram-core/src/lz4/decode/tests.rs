//! Decoder tests that need no other codec and so run under Miri.

use super::{DecodeError, FAST_INPUT, decode_page, decode_simple};
use crate::cpu::InstructionSet;
use crate::page::{PAGE_SIZE, Page};

/// Appends a sequence of `literals` literals and a match with the given offset and length.
fn push(block: &mut Vec<u8>, literals: usize, matched: Option<(u16, usize)>) {
    let coded = matched.map_or(0, |(_, length)| length - 4);
    let nibble = |length: usize| u8::try_from(length.min(15)).expect("small");
    let extend = |block: &mut Vec<u8>, length: usize| {
        if let Some(more) = length.checked_sub(15) {
            block.extend(vec![255; more / 255]);
            block.push(u8::try_from(more % 255).expect("small"));
        }
    };
    block.push(nibble(literals) << 4 | nibble(coded));
    extend(block, literals);
    block.extend((0..literals).map(|index| u8::try_from(index * 29 % 253).expect("small")));
    if let Some((offset, _)) = matched {
        block.extend(offset.to_le_bytes());
        extend(block, coded);
    }
}

/// Returns a block of many short sequences with every small offset, and a few long ones.
fn mixed_block(seed: usize) -> Vec<u8> {
    let mut block = Vec::new();
    let mut made = 0;
    for index in seed.. {
        let (literals, length) = match index % 7 {
            3 => (index % 60, 4 + index % 300),
            _ => (index % 15, 4 + index % 15),
        };
        let literals = literals.max(usize::from(made == 0));
        if made + literals + length > PAGE_SIZE - 12 {
            break;
        }
        let offset = 1 + index * 5 % 37 % (made + literals);
        push(&mut block, literals, Some((u16::try_from(offset).expect("small"), length)));
        made += literals + length;
    }
    push(&mut block, PAGE_SIZE - made, None);
    block
}

/// Decodes with every decoder, checks that they agree, and returns the result.
fn decode(block: &[u8]) -> Result<Page, DecodeError> {
    let mut page = [0xa5; PAGE_SIZE];
    let expected = decode_simple(block, &mut page).map(|()| page);
    for set in InstructionSet::available() {
        let mut page = [0x5a; PAGE_SIZE];
        let decoded = decode_page(set.token().expect("available"), block, &mut page).map(|()| page);
        assert_eq!(decoded, expected, "{set}, block {block:02x?}");
    }
    expected
}

/// Returns the number of cases to run. Miri is about a thousand times slower, so it runs a few of each.
fn every(count: usize) -> usize {
    if cfg!(miri) { count * 700 } else { count }
}

#[test]
fn decodes_mixed_blocks() {
    for seed in (0..500).step_by(every(1)) {
        assert!(decode(&mixed_block(seed)).is_ok(), "seed {seed}");
    }
}

#[test]
fn rejects_truncated_blocks() {
    let block = mixed_block(1);
    for length in (0..block.len()).step_by(every(1)) {
        assert!(decode(&block[..length]).is_err());
    }
}

#[test]
fn agrees_with_the_reference_on_corrupted_blocks() {
    let block = mixed_block(2);
    for at in (0..block.len()).step_by(every(1)) {
        for value in [0, 1, 0x0f, 0xf0, 0xff, block[at] ^ 0x10] {
            let mut corrupted = block.clone();
            corrupted[at] = value;
            let _ = decode(&corrupted);
        }
    }
}

#[test]
fn decodes_the_shortest_block() {
    let mut block = Vec::new();
    push(&mut block, 1, Some((1, PAGE_SIZE - 1 - 5)));
    push(&mut block, 5, None);
    // `decode_with` rejects blocks shorter than `FAST_INPUT` without reading them.
    assert!(block.len() > FAST_INPUT);
    assert!(decode(&block).is_ok());
}

#[test]
fn decodes_a_page_of_literals() {
    let mut block = Vec::new();
    push(&mut block, PAGE_SIZE, None);
    assert!(decode(&block).is_ok());
}

/// Provokes each error with the smallest possible block.
#[test]
fn reports_every_error_with_its_position() {
    let start = |literals: usize, offset: u16, length: usize| {
        let mut block = Vec::new();
        push(&mut block, literals, Some((offset, length)));
        block
    };
    let with_end = |mut block: Vec<u8>, literals: usize| {
        push(&mut block, literals, None);
        block
    };
    let cases: Vec<(Vec<u8>, DecodeError)> = vec![
        (vec![], DecodeError::TokenMissing { at: 0, produced: 0 }),
        (start(1, 1, 4), DecodeError::TokenMissing { at: 4, produced: 5 }),
        (vec![0xf0, 255], DecodeError::LengthTruncated { at: 2 }),
        (vec![0x1f, 7, 1, 0, 255], DecodeError::LengthTruncated { at: 5 }),
        (vec![0x30, 1, 2], DecodeError::LiteralsPastInput { at: 1, needed: 3, left: 2 }),
        (with_end(start(1, 1, 4090), 6), DecodeError::LiteralsPastPage { at: 21, needed: 6, room: 5 }),
        (vec![0x10, 1, 2], DecodeError::OffsetTruncated { at: 2 }),
        (vec![0x10, 1, 0, 0], DecodeError::OffsetZero { at: 2 }),
        (vec![0x10, 1, 2, 0, 0], DecodeError::OffsetBeforePage { at: 2, offset: 2, produced: 1 }),
        (with_end(start(1, 1, 4096), 5), DecodeError::MatchPastPage { at: 2, needed: 4096, room: 4095 }),
        (with_end(start(4085, 1, 4), 7), DecodeError::MatchStartsLate { at: 4102, start: 4085 }),
        (with_end(start(1, 1, 4091), 4), DecodeError::MatchEndsLate { at: 2, end: 4092 }),
        (with_end(start(1, 1, 100), 5), DecodeError::PageIncomplete { produced: 106 }),
    ];
    for (block, error) in cases {
        assert_eq!(decode(&block), Err(error));
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn rejects_an_endless_length_in_bounded_time() {
    let mut block = vec![0xf0];
    let len = if cfg!(miri) { 1 << 13 } else { 1 << 20 };
    block.resize(len, 255);
    assert_eq!(decode(&block), Err(DecodeError::LengthTruncated { at: len }));
    block.push(0);
    assert!(matches!(decode(&block), Err(DecodeError::LiteralsPastInput { .. })));
}
