//! Every page comes back, from every algorithm.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trueno_zram_core::{Algorithm, PAGE_SIZE, PageCodec};
use trueno_zram_fuzz::page_from;

fuzz_target!(|data: &[u8]| {
    let page = page_from(data);
    for algorithm in [Algorithm::None, Algorithm::Lz4, Algorithm::Zstd { level: 1 }] {
        let mut codec = PageCodec::new(algorithm).expect("a valid level");
        let (mut out, mut back) = ([0; PAGE_SIZE], [0xa5; PAGE_SIZE]);
        let data = codec.compress(&page, &mut out).expect("compression does not fail");
        codec.decompress(data, &mut back).expect("what was compressed here decodes");
        assert!(back == page);
    }
});
