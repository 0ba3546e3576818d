//! The same page gives the same block on every back end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::lz4::Codec;
use trueno_zram_fuzz::page_from;

fuzz_target!(|data: &[u8]| {
    let page = page_from(data);
    let block_on = |backend| {
        let mut out = [0; PAGE_SIZE];
        let len_bytes = Codec::new(backend).expect("available").encode(&page, &mut out);
        len_bytes.map(|len_bytes| out[..len_bytes].to_vec())
    };
    let expected = block_on(InstructionSet::Scalar);
    for backend in InstructionSet::available() {
        assert!(block_on(backend) == expected, "{backend}");
    }
});
