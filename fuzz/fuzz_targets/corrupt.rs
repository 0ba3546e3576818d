//! Arbitrary bytes as a block: the fast decoders and the slow twin say the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_core::cpu::Backend;
use trueno_zram_core::lz4::{Codec, decode_simple};

fuzz_target!(|block: &[u8]| {
    let mut expected = [0; PAGE_SIZE];
    let verdict = decode_simple(block, &mut expected);
    for backend in Backend::available() {
        let mut page = [0; PAGE_SIZE];
        assert_eq!(Codec::new(backend).expect("available").decode(block, &mut page), verdict);
        assert!(verdict.is_err() || page == expected);
    }
});
