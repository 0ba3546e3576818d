//! Arbitrary bytes, and damaged blocks, as blocks: the fast decoders and the slow twin say the same. Zstandard frames and
//! raw pages likewise give a page or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::lz4::{Codec, decode_simple};
use trueno_zram_core::{PAGE_SIZE, PageCodec, PageData, PageKind};
use trueno_zram_fuzz::{damage, page_from};

fuzz_target!(|data: &[u8]| {
    judge(data);
    let (first, second) = data.split_at(data.len() / 2);
    let mut out = [0; PAGE_SIZE];
    let mut encoder = Codec::new(InstructionSet::detect()).expect("detected");
    if let Some(len_bytes) = encoder.encode(&page_from(first), &mut out) {
        judge(&damage(&out[..len_bytes], second));
    }
    if let Ok(frame) = PageData::new(PageKind::Zstd, data) {
        let _ = PageCodec::default().decompress(frame, &mut out);
    }
});

fn judge(block: &[u8]) {
    let mut expected = [0; PAGE_SIZE];
    let verdict = decode_simple(block, &mut expected);
    for backend in InstructionSet::available() {
        let mut page = [0; PAGE_SIZE];
        assert_eq!(Codec::new(backend).expect("available").decode(block, &mut page), verdict);
        assert!(verdict.is_err() || page == expected);
    }
}
