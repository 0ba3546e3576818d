//! C lz4 and lz4_flex read our blocks, we read theirs, and we judge arbitrary bytes as C lz4 does.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trueno_test_pages::oracle::{assert_decodes, c_lz4_decompress, foreign_blocks};
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::lz4::{Codec, DecodeError};
use trueno_zram_fuzz::{damage, page_from};

fuzz_target!(|data: &[u8]| {
    let mut codec = Codec::new(InstructionSet::detect()).expect("detected");
    let page = page_from(data);
    let mut out = [0; PAGE_SIZE];
    if let Some(len_bytes) = codec.encode(&page, &mut out) {
        assert_decodes(&out[..len_bytes], &page);
    }
    for (maker, block) in foreign_blocks(&page) {
        let mut back = [0; PAGE_SIZE];
        assert_eq!(codec.decode(&block, &mut back), Ok(()), "{maker}");
        assert!(back == page, "{maker}");
    }
    judge(&codec, data);
    let (first, second) = data.split_at(data.len() / 2);
    for (_, block) in foreign_blocks(&page_from(first)) {
        judge(&codec, &damage(&block, second));
    }
});

/// The verdict on arbitrary bytes is C lz4's, but for two things that the format forbids: it takes an offset of 0, and at
/// times a match that ends too late.
fn judge(codec: &Codec, block: &[u8]) {
    let (mut ours, mut theirs) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    let taken_by_c = c_lz4_decompress(block, &mut theirs) == Some(PAGE_SIZE);
    match codec.decode(block, &mut ours) {
        Ok(()) => assert!(taken_by_c && ours == theirs),
        Err(DecodeError::OffsetZero { .. } | DecodeError::MatchEndsLate { .. }) => {}
        Err(e) => assert!(!taken_by_c, "{e}"),
    }
}
