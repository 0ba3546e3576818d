//! What the buffers and the codec held before never shows in what comes out.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trueno_zram_core::PAGE_SIZE;
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::lz4::Codec;
use trueno_zram_fuzz::page_from;

fuzz_target!(|data: &[u8]| {
    let (first, second) = data.split_at(data.len() / 2);
    let page = page_from(second);
    for backend in InstructionSet::available() {
        let mut fresh = Codec::new(backend).expect("available");
        let mut used = Codec::new(backend).expect("available");
        let mut scratch = [0; PAGE_SIZE];
        let _ = used.encode(&page_from(first), &mut scratch);
        let _ = used.decode(first, &mut scratch);

        let (mut out_a, mut out_b) = ([0x00; PAGE_SIZE], [0xff; PAGE_SIZE]);
        let (len_a, len_b) = (fresh.encode(&page, &mut out_a), used.encode(&page, &mut out_b));
        assert_eq!(len_a, len_b);
        if let Some(len) = len_a {
            assert!(out_a[..len] == out_b[..len]);
            let (mut page_a, mut page_b) = ([0x00; PAGE_SIZE], [0xff; PAGE_SIZE]);
            assert_eq!(fresh.decode(&out_a[..len], &mut page_a), Ok(()));
            assert_eq!(used.decode(&out_a[..len], &mut page_b), Ok(()));
            assert!(page_a == page && page_b == page);
        }

        let (mut page_a, mut page_b) = ([0x00; PAGE_SIZE], [0xff; PAGE_SIZE]);
        let (a, b) = (fresh.decode(second, &mut page_a), used.decode(second, &mut page_b));
        assert_eq!(a, b);
        assert!(a.is_err() || page_a == page_b);
    }
});
