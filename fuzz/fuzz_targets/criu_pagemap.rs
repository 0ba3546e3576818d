//! Any bytes as a pagemap of CRIU: an error, or a list of ranges that reads back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trueno_zram_criu::Pagemap;

/// The magic numbers and a head, so that the rest of the input is entries.
const START: &[u8] = b"\x19\x43\x56\x54\x25\x40\x08\x56\x02\0\0\0\x08\x01";

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    let bytes = if first % 2 == 0 { rest.to_vec() } else { [START, rest].concat() };
    let Ok(pagemap) = Pagemap::parse(&bytes) else { return };
    // An entry takes at least four bytes for its length.
    assert!(pagemap.entries.len() <= bytes.len() / 4);
    let mut end = 0;
    for entry in &pagemap.entries {
        assert!(entry.pages > 0 && entry.address % 4096 == 0 && entry.address >= end);
        end = entry.address.checked_add(entry.pages.checked_mul(4096).expect("no overflow")).expect("no overflow");
    }
    assert_eq!(Pagemap::parse(&pagemap.encode()), Ok(pagemap));
});
