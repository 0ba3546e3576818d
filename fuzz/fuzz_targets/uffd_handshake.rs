//! Any bytes as a VMM's first message: it is refused, or its regions are sound. No userfaultfd comes with it, so nothing is served.
#![no_main]

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use trueno_zram_restore::{Error, Image, LazyRestore, RestoreOptions};

const CONTENT_BYTES: u64 = 64 << 12;

fn restore() -> &'static LazyRestore {
    static RESTORE: OnceLock<LazyRestore> = OnceLock::new();
    RESTORE.get_or_init(|| {
        let image = Image::new(vec![[7; 4096]; (CONTENT_BYTES >> 12) as usize]);
        LazyRestore::new(image, RestoreOptions::default())
    })
}

/// Checks a message that was accepted, by the rules of docs/RESTORE.md.
fn check(message: &[u8]) {
    let value: serde_json::Value = serde_json::from_slice(message).expect("JSON");
    let regions = value.as_array().expect("a list");
    assert!(!regions.is_empty());
    let (mut addresses, mut contents) = (Vec::new(), Vec::new());
    for region in regions {
        let number = |key: &str| region[key].as_u64().expect("a number");
        let (start, len, offset) = (number("base_host_virt_addr"), number("size"), number("offset"));
        assert!(len > 0 && [start, len, offset].iter().all(|number| number % 4096 == 0));
        addresses.push((start, start.checked_add(len).expect("within 64 bits")));
        contents.push((offset, offset + len));
        assert!(offset + len <= CONTENT_BYTES);
    }
    for ranges in [&mut addresses, &mut contents] {
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
    }
}

// The first byte says where the message is cut into two pieces.
fuzz_target!(|input: &[u8]| {
    let Some((cut, message)) = input.split_first() else { return };
    let (mut vmm, ours) = UnixStream::pair().expect("sockets");
    let (first, second) = message.split_at(usize::from(*cut).min(message.len()));
    vmm.write_all(first).expect("room");
    vmm.write_all(second).expect("room");
    vmm.shutdown(Shutdown::Write).expect("a connected socket");
    match restore().serve(&ours) {
        // All that is missing is the userfaultfd.
        Err(Error::NoFd) => check(message),
        Err(
            Error::Message(_)
            | Error::NoRegions
            | Error::Region { .. }
            | Error::HandshakeEnded { .. }
            | Error::MessageTooLong { .. },
        ) => {}
        other => panic!("{other:?}"),
    }
});
