//! Any bytes from a client: the server answers or ends the connection, and the store stays whole.
#![no_main]

use std::io::{self, Read, Write};
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use trueno_zram_serve::StoreExport;
use trueno_zram_serve::nbd::{Exports, serve_connection};
use trueno_zram_store::{Store, StoreHandle, StoreOptions};

const SIZE: u64 = 64 << 10;

/// A client that has said everything already, and reads every reply.
struct Client<'a> {
    sent: &'a [u8],
    /// Bytes that arrive at a time.
    step: usize,
    received: usize,
}

impl Read for Client<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let len = self.step.min(bytes.len());
        (&mut self.sent).take(len as u64).read(bytes)
    }
}

impl Write for Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.received += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A negotiation that succeeds, so that the rest of the input is requests.
const GREETING: &[u8] = b"\0\0\0\x03\
    IHAVEOPT\0\0\0\x08\0\0\0\0\
    IHAVEOPT\0\0\0\x0a\0\0\0\x1b\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation\
    IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    let store = Arc::new(Store::create(&StoreOptions::new(SIZE)).expect("a small store"));
    let exports = Exports::new().with("", Arc::new(StoreExport::new(Arc::clone(&store))));
    let sent = if first % 2 == 0 { rest.to_vec() } else { [GREETING, rest].concat() };
    let mut client = Client { sent: &sent, step: 1 + usize::from(first / 2) * 32, received: 0 };
    serve_connection(&mut client, &exports).expect("the client does not fail");
    // The greeting, and for each request of 28 bytes or more at most the whole store.
    assert!(client.received <= 1000 + (sent.len() / 16 + 1) * (SIZE as usize + 1000));

    let mut content = vec![0; SIZE as usize];
    StoreHandle::new(&store).expect("LZ4 needs nothing").read_at(0, &mut content).expect("all pages are whole");
    let mm = store.stats().mm;
    assert!(mm.orig_data_size <= SIZE);
});
