//! The NBD server, through a client of its own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod client;
mod hostile;

use std::sync::Arc;

use client::{BLOCK_STATUS, Client, DISCONNECT, FLUSH, READ, Style, TRIM, WRITE, WRITE_ZEROES};
use tempfile::TempDir;
use trueno_test_pages::generate::Generator;
use trueno_zram_core::CpuBatchCompressor;
use trueno_zram_serve::nbd::{Exports, NbdLimits, NbdServer};
use trueno_zram_serve::{ArchiveExport, Endpoint, StoreExport};
use trueno_zram_store::{MAX_UNDIVIDED_WRITE_BYTES, Store, StoreHandle, StoreOptions};

const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const SIZE: u64 = 8 << 20;

/// A server of two stores, in a folder of its own.
pub(crate) struct Served {
    folder: TempDir,
    pub(crate) server: NbdServer,
    pub(crate) store: Arc<Store>,
}

impl Served {
    pub(crate) fn start(options: &StoreOptions, limits: NbdLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::create(options).unwrap());
        let other = Arc::new(Store::create(&StoreOptions::new(1 << 20)).unwrap());
        let exports = Exports::new()
            .with("ram", Arc::new(StoreExport::new(Arc::clone(&store))))
            .with("other", Arc::new(StoreExport::new(other)));
        let endpoint = Endpoint::Unix(folder.path().join("socket"));
        let server = NbdServer::start(&endpoint, exports, limits).unwrap();
        Self { folder, server, store }
    }

    pub(crate) fn new() -> Self {
        Self::start(&StoreOptions::new(SIZE), NbdLimits::default())
    }

    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("socket")
    }

    pub(crate) fn client(&self, style: Style) -> Client {
        Client::connect(&self.path(), "ram", style)
    }
}

#[test]
fn bytes_come_back_in_every_style_of_negotiation() {
    let served = Served::new();
    let mut random = Generator::new(1);
    for style in [Style::Old, Style::Simple, Style::Structured] {
        let mut client = served.client(style);
        assert_eq!(client.size, SIZE);
        // Everything but READ_ONLY, ROTATIONAL, RESIZE and CACHE.
        assert_eq!(client.flags, 0b1001_1110_1101);
        let mut expected = vec![0; usize::try_from(SIZE).unwrap()];
        client.call(0, TRIM, 0, u32::try_from(SIZE).unwrap(), b"").unwrap();
        for _ in 0..200 {
            let at = random.below(expected.len());
            let len = random.below(70_000).min(expected.len() - at).max(1);
            let fill = random.page();
            let data: Vec<u8> = fill.iter().copied().cycle().take(len).collect();
            client.write(at as u64, &data).unwrap();
            expected[at..at + len].copy_from_slice(&data);
        }
        assert!(client.read(0, u32::try_from(SIZE).unwrap()).unwrap() == expected);
        client.call(0, FLUSH, 0, 0, b"").unwrap();
        client.send(0, DISCONNECT, 0, 0, b"");
    }
}

#[test]
fn the_default_export_is_the_first_and_names_choose_others() {
    let served = Served::new();
    assert_eq!(Client::connect(&served.path(), "", Style::Simple).size, SIZE);
    assert_eq!(Client::connect(&served.path(), "other", Style::Structured).size, 1 << 20);
    let mut stream = std::os::unix::net::UnixStream::connect(served.path()).unwrap();
    client::greet(&mut stream);
    client::send_option(&mut stream, 3, b"");
    assert_eq!(client::option_reply(&mut stream, 3), (2, b"\0\0\0\x03ram".to_vec()));
    assert_eq!(client::option_reply(&mut stream, 3), (2, b"\0\0\0\x05other".to_vec()));
    assert_eq!(client::option_reply(&mut stream, 3), (1, vec![]));
    // Unknown exports, TLS and a context before structured replies are refused, and the client can go on.
    client::send_option(&mut stream, 7, &[client::counted(b"none"), vec![0, 0]].concat());
    assert_eq!(client::option_reply(&mut stream, 7).0, 0x8000_0006);
    client::send_option(&mut stream, 5, b"");
    assert_eq!(client::option_reply(&mut stream, 5).0, 0x8000_0001);
    client::send_option(&mut stream, 10, &[client::counted(b"ram"), vec![0; 4]].concat());
    assert_eq!(client::option_reply(&mut stream, 10).0, 0x8000_0003);
    client::send_option(&mut stream, 2, b"");
    assert_eq!(client::option_reply(&mut stream, 2).0, 1);
}

#[test]
fn many_requests_may_be_on_their_way() {
    let served = Served::new();
    for style in [Style::Simple, Style::Structured] {
        let mut client = served.client(style);
        let mut random = Generator::new(3);
        let pages: Vec<_> = (0..64).map(|_| random.page()).collect();
        let sent: Vec<_> = (0..).zip(&pages).map(|(at, page)| client.send(1, WRITE, at * 4096, 4096, page)).collect();
        for cookie in sent {
            assert_eq!(client.receive(0), client::Reply { cookie, result: Ok(vec![]) });
        }
        let sent: Vec<_> = (0..64).map(|at| client.send(0, READ, at * 4096, 4096, b"")).collect();
        for (cookie, page) in sent.into_iter().zip(&pages) {
            assert_eq!(client.receive(4096), client::Reply { cookie, result: Ok(page.to_vec()) });
        }
    }
}

#[test]
fn block_status_tells_holes_zeros_and_data() {
    let served = Served::new();
    let mut client = served.client(Style::Structured);
    client.write(4096, &[0; 4096]).unwrap();
    client.write(8192, &[7; 8192]).unwrap();
    client.call(2, WRITE_ZEROES, 16384, 4096, b"").unwrap();
    let extents = |bytes: Vec<u8>| -> Vec<(u32, u32)> {
        let field = |at: &[u8]| u32::from_be_bytes(at.try_into().unwrap());
        bytes.chunks(8).map(|extent| (field(&extent[..4]), field(&extent[4..]))).collect()
    };
    let all = extents(client.call(0, BLOCK_STATUS, 0, 65536, b"").unwrap());
    assert_eq!(all, [(4096, 3), (4096, 2), (8192, 0), (4096, 2), (45056, 3)]);
    assert_eq!(extents(client.call(8, BLOCK_STATUS, 100, 65536, b"").unwrap()), [(3996, 3)]);
    assert_eq!(extents(client.call(0, BLOCK_STATUS, 8193, 10, b"").unwrap()), [(10, 0)]);
    client.call(0, WRITE_ZEROES, 4096, 12288, b"").unwrap();
    assert_eq!(extents(client.call(0, BLOCK_STATUS, 0, 16384, b"").unwrap()), [(16384, 3)]);
    assert_eq!(client.call(0, BLOCK_STATUS, 0, 0, b""), Err(EINVAL));
    assert_eq!(client.call(0, BLOCK_STATUS, SIZE - 1, 2, b""), Err(EINVAL));
    assert_eq!(served.client(Style::Simple).call(0, BLOCK_STATUS, 0, 4096, b""), Err(EINVAL));
}

#[test]
fn zeroes_with_every_flag_read_as_zeros() {
    let served = Served::new();
    let mut client = served.client(Style::Structured);
    for flags in [0, 1, 2, 16, 2 | 16 | 1] {
        client.write(0, &[9; 16384]).unwrap();
        client.call(flags, WRITE_ZEROES, 1000, 10_000, b"").unwrap();
        let back = client.read(0, 16384).unwrap();
        assert!(back[..1000].iter().chain(&back[11_000..]).all(|byte| *byte == 9));
        assert!(back[1000..11_000].iter().all(|byte| *byte == 0));
    }
    // TRIM leaves parts of pages alone.
    client.write(0, &[9; 16384]).unwrap();
    client.call(1, TRIM, 1, 16383, b"").unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [9; 4096]);
    assert_eq!(client.read(4096, 12288).unwrap(), [0; 12288]);
}

#[test]
fn wrong_requests_get_errors_and_the_connection_lives() {
    let served = Served::new();
    for style in [Style::Simple, Style::Structured] {
        let mut client = served.client(style);
        assert_eq!(client.read(SIZE - 10, 11), Err(EINVAL));
        assert_eq!(client.read(u64::MAX, 11), Err(EINVAL));
        assert_eq!(client.read(0, 33 << 20), Err(EINVAL));
        assert_eq!(client.write(SIZE - 10, &[1; 11]), Err(ENOSPC));
        assert_eq!(client.write(u64::MAX - 5, &[1; 10_000]), Err(ENOSPC));
        assert_eq!(client.call(1 << 9, WRITE, 0, 5, b"bytes"), Err(EINVAL));
        assert_eq!(client.call(0, TRIM, SIZE, 1, b""), Err(ENOSPC));
        assert_eq!(client.call(0, 99, 0, 0, b""), Err(EINVAL));
        assert_eq!(client.read(0, 4), Ok(vec![0; 4]));
    }
    assert_eq!(served.store.stats().io.invalid_io, 0, "the transport refuses them first");
}

#[test]
fn a_full_store_says_so_and_keeps_what_it_has() {
    let options = StoreOptions::new(SIZE).with_limit_bytes(1 << 20);
    let served = Served::start(&options, NbdLimits::default());
    let mut client = served.client(Style::Structured);
    let mut random = Generator::new(5);
    let noise: Vec<u8> = (0..4096).map(|_| random.byte()).collect();
    let fitted = (0..SIZE / 4096).take_while(|page| client.write(page * 4096, &noise).is_ok()).count();
    assert!((200..256).contains(&fitted), "{fitted}");
    assert_eq!(client.write(SIZE - 4096, &noise), Err(ENOSPC));
    for page in 0..fitted as u64 {
        assert_eq!(client.read(page * 4096, 4096).unwrap(), noise);
    }
    assert_eq!(client.read(SIZE - 4096, 4096).unwrap(), [0; 4096]);
    client.call(0, TRIM, 0, u32::try_from(SIZE).unwrap(), b"").unwrap();
    client.write(SIZE - 4096, &noise).unwrap();
}

#[test]
fn connections_see_each_others_writes() {
    let served = Served::new();
    let mut clients: Vec<_> = (0..4).map(|_| served.client(Style::Structured)).collect();
    for round in 0..200u64 {
        let (writer, reader) = ((round % 4) as usize, ((round + 1) % 4) as usize);
        clients[writer].write(round * 100, &round.to_le_bytes()).unwrap();
        assert_eq!(clients[reader].read(round * 100, 8).unwrap(), round.to_le_bytes());
    }
}

#[test]
fn tcp_is_served_too_and_the_socket_goes_with_the_server() {
    let store = Arc::new(Store::create(&StoreOptions::new(SIZE)).unwrap());
    let exports = Exports::new().with("", Arc::new(StoreExport::new(store)));
    let endpoint = "tcp:127.0.0.1:0".parse().unwrap();
    let server = NbdServer::start(&endpoint, exports, NbdLimits::default()).unwrap();
    let Endpoint::Tcp(address) = server.endpoint().unwrap() else { panic!("not TCP") };
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    assert_eq!(&client::bytes(&mut stream, 16), b"NBDMAGICIHAVEOPT");
    drop(server);
    assert!(std::net::TcpStream::connect(address).is_err());

    let served = Served::new();
    let path = served.path();
    let again = NbdServer::start(&Endpoint::Unix(path.clone()), Exports::new(), NbdLimits::default());
    assert!(again.is_err(), "the socket is in use");
    drop(served.server);
    assert!(!path.exists());
}

#[test]
fn an_archive_is_a_device_that_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let (path, socket) = (folder.path().join("archive.lz4"), folder.path().join("socket"));
    let store = Arc::new(Store::create(&StoreOptions::new(1 << 20)).unwrap());
    let mut handle = StoreHandle::new(&store).unwrap();
    for (page, content) in (16..200).zip(trueno_test_pages::corpus::all_pages()) {
        handle.write_page(page, content).unwrap();
    }
    let mut expected = vec![0; 1 << 20];
    handle.read_at(0, &mut expected).unwrap();
    let file = std::fs::File::create(&path).unwrap();
    store.save(file, &mut CpuBatchCompressor::default()).unwrap();

    let exports = Exports::new().with("old", Arc::new(ArchiveExport::from_file(&path).unwrap()));
    let _server = NbdServer::start(&Endpoint::Unix(socket.clone()), exports, NbdLimits::default()).unwrap();
    let mut client = Client::connect(&socket, "old", Style::Structured);
    // HAS_FLAGS, READ_ONLY, SEND_FLUSH, SEND_DF, CAN_MULTI_CONN.
    assert_eq!((client.size, client.flags), (1 << 20, 0b1_1000_0111));
    assert!(client.read(0, 1 << 20).unwrap() == expected);
    assert_eq!(client.read(70_000, 333).unwrap(), expected[70_000..70_333]);
    let status = client.call(8, BLOCK_STATUS, 0, 1 << 20, b"").unwrap();
    assert_eq!(status, [65536u32.to_be_bytes(), 3u32.to_be_bytes()].concat(), "the first 16 pages are a hole");
    for command in [WRITE, TRIM, WRITE_ZEROES] {
        let data: &[u8] = if command == WRITE { b"data" } else { b"" };
        assert_eq!(client.call(0, command, 0, 4, data), Err(1), "EPERM");
    }
    std::fs::write(&path, b"not an archive any more").unwrap();
    assert!(ArchiveExport::from_file(&path).is_err());
}

#[test]
fn a_long_write_that_does_not_fit_changes_nothing() {
    let options = StoreOptions::new(SIZE).with_limit_bytes(1 << 20);
    let served = Served::start(&options, NbdLimits::default());
    let (mut model, mut random) = (vec![0; usize::try_from(SIZE).unwrap()], Generator::new(9));
    let mut refused = 0;
    for style in [Style::Simple, Style::Structured] {
        let mut client = served.client(style);
        for _ in 0..60 {
            let at = random.below(model.len() - 1);
            let len = (1 + random.below(MAX_UNDIVIDED_WRITE_BYTES)).min(model.len() - at);
            let data: Vec<u8> = (0..len).map(|_| random.byte()).collect();
            match client.write(at as u64, &data) {
                Ok(()) => model[at..at + len].copy_from_slice(&data),
                Err(error) => {
                    assert_eq!(error, ENOSPC);
                    refused += 1;
                }
            }
            assert!(client.read(0, u32::try_from(SIZE).unwrap()).unwrap() == model);
            if random.below(8) == 0 {
                client.call(0, TRIM, 0, u32::try_from(SIZE).unwrap(), b"").unwrap();
                model.fill(0);
            }
        }
    }
    assert!(refused > 20, "{refused}");
}
