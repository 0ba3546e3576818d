//! Any bytes from a client of the page server: it is sent pages of the process or nothing.
#![no_main]

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use trueno_zram_archive::PlainPages;
use trueno_zram_criu::{Memory, PageServer, Pagemap, PagemapEntry};

const PAGES: u64 = 40;

/// A client that has said everything already, and checks what it gets.
struct Client<'a> {
    sent: &'a [u8],
    received: Vec<u8>,
}

impl Read for Client<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.sent.read(bytes)
    }
}

impl Write for Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.received.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn content(page: u64) -> Vec<u8> {
    vec![u8::try_from(page + 1).expect("few pages"); 4096]
}

/// Two ranges with a gap, at page numbers of one byte, so that requests hit them.
fn server() -> &'static PageServer {
    static SERVER: OnceLock<PageServer> = OnceLock::new();
    SERVER.get_or_init(|| {
        let entry = |address, pages| PagemapEntry { address, pages, parent: false, lazy: true, present: true };
        let pagemap = Pagemap { pages_id: 1, entries: vec![entry(0x1_0000, 30), entry(0x8_0000, 10)] };
        let pages = PlainPages::new(Arc::new((0..PAGES).flat_map(content).collect::<Vec<u8>>()));
        let mut memory = Memory::default();
        memory.add(1, &pagemap, Arc::new(pages.expect("in memory")), Path::new("pagemap")).expect("as many pages");
        PageServer::new(memory, 0)
    })
}

fuzz_target!(|data: &[u8]| {
    // Each 4 bytes of input become a request, so that most are understood.
    let requests = data.chunks(4).flat_map(|bytes| {
        let byte = |at: usize| u64::from(bytes.get(at).copied().unwrap_or(0));
        let command = if byte(0) % 8 == 7 { byte(0) << 3 | byte(1) } else { 7 };
        [command, byte(1), byte(2) << 12 | byte(3) >> 7, 1].map(u64::to_le_bytes).concat()
    });
    let sent: Vec<u8> = if data.first().is_some_and(|byte| *byte == 0xff) { data.to_vec() } else { requests.collect() };
    let mut client = Client { sent: &sent, received: Vec::new() };
    let _ = server().serve(&mut client);
    let mut rest = &client.received[..];
    while rest.len() > 4 {
        let number = |at: usize| u64::from_le_bytes(rest[at..at + 8].try_into().expect("a record"));
        let (pages, address) = (number(8), number(16));
        let first = if address < 0x8_0000 { (address - 0x1_0000) >> 12 } else { 30 + ((address - 0x8_0000) >> 12) };
        let len = usize::try_from(pages).expect("few pages") * 4096;
        let expected: Vec<u8> = (first..first + pages).flat_map(content).collect();
        assert!(rest[32..32 + len] == expected);
        rest = &rest[32 + len..];
    }
});
