//! A client that speaks the protocol of `criu lazy-pages`, against image directories with plain and compressed pages.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use trueno_test_restore::archive_of;
use trueno_zram_archive::{Archive, ArchiveWriter, Format, Pages, PlainPages, WriteOptions};
use trueno_zram_connections::{MAX_CONNECTIONS, serve_each};
use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE, Page};
use trueno_zram_criu::{Error, ImageDir, Memory, PageServer, Pagemap, PagemapEntry, Served, write_lazy_dir};
use trueno_zram_io::ArchiveOpener;

const PID: u64 = 4711;
const BASE: u64 = 0x7f00_0000_0000;

fn pages(count: usize) -> Vec<Page> {
    let corpus = trueno_test_pages::corpus::all_pages().copied();
    let zeros = [[0; PAGE_SIZE]; 3];
    corpus.chain(zeros).cycle().take(count).collect()
}

fn entry(address: u64, pages: u64, lazy: bool) -> PagemapEntry {
    PagemapEntry { address, pages, parent: false, lazy, present: true }
}

/// A process with pages that can wait, between others that it needs at once.
fn pagemap() -> Pagemap {
    let entries = vec![
        entry(0x40_0000, 5, false),
        entry(BASE, 1500, true),
        entry(BASE + (1500 << 12), 2, false),
        entry(BASE + (2000 << 12), 700, true),
    ];
    Pagemap { pages_id: 9, entries }
}

fn write_images(dir: &Path, pages: &[Page]) {
    fs::write(dir.join(format!("pagemap-{PID}.img")), pagemap().encode()).unwrap();
    fs::write(dir.join("pages-9.img.lz4"), archive_of(pages)).unwrap();
    fs::write(dir.join("core-4711.img"), b"registers").unwrap();
    fs::write(dir.join("stats-dump"), b"of another run").unwrap();
}

/// The client's side of a connection.
struct Client(TcpStream);

impl Client {
    fn request(&mut self, command: u32, pages: u64, address: u64) {
        let mut record = Vec::new();
        record.extend_from_slice(&command.to_le_bytes());
        record.extend_from_slice(&[0; 4]);
        for number in [pages, address, PID] {
            record.extend_from_slice(&number.to_le_bytes());
        }
        self.0.write_all(&record).unwrap();
    }

    /// Asks for pages, and returns those that come.
    fn get(&mut self, address: u64, pages: u64) -> io::Result<Vec<u8>> {
        self.request(7, pages, address);
        let mut record = [0; 32];
        self.0.read_exact(&mut record)?;
        let number = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().unwrap());
        assert_eq!(record[..4], [6, 0, 4, 0], "pages that are present");
        assert_eq!((number(16), number(24)), (address, PID));
        assert!((1..=pages).contains(&number(8)), "{} of {pages} pages", number(8));
        let mut bytes = vec![0; usize::try_from(number(8)).unwrap() * PAGE_SIZE];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Asks until all pages of a range have come, as CRIU does.
    fn get_all(&mut self, address: u64, pages: u64, at_once: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() as u64 / 4096 < pages {
            let done = bytes.len() as u64 / 4096;
            bytes.extend(self.get(address + done * 4096, at_once.min(pages - done)).unwrap());
        }
        bytes
    }

    fn close(&mut self) {
        self.request(0x1023, 0, 0);
        let mut status = [1; 4];
        self.0.read_exact(&mut status).unwrap();
        assert_eq!(status, [0; 4]);
    }
}

/// Serves one client.
fn serve(memory: Memory, workers: usize, client: impl FnOnce(Client)) -> Result<Served, Error> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let server = PageServer::new(memory, workers);
    thread::scope(|threads| {
        let served = threads.spawn(|| server.serve(listener.accept().unwrap().0));
        client(Client(TcpStream::connect(listener.local_addr().unwrap()).unwrap()));
        served.join().unwrap()
    })
}

#[test]
fn all_memory_comes_in_any_order_and_any_portion() {
    let pages = pages(5 + 1500 + 2 + 700);
    let dir = tempfile::tempdir().unwrap();
    write_images(dir.path(), &pages);
    let content = |first: usize, count: usize| pages[first..first + count].as_flattened();
    for (workers, at_once) in [(0, 1024), (2, 1024), (2, 16), (1, u64::MAX)] {
        let memory = Memory::open(&ImageDir::open(dir.path()).unwrap(), &ArchiveOpener::new()).unwrap();
        let served = serve(memory, workers, |mut client| {
            // Faults first, also between transfers.
            for page in [1499, 0, 700] {
                assert!(client.get(BASE + ((page as u64) << 12), 1).unwrap() == content(5 + page, 1));
            }
            assert!(client.get_all(BASE, 1500, at_once) == content(5, 1500));
            assert!(client.get(BASE + (1500 << 12), 1).unwrap() == content(1505, 1));
            assert!(client.get_all(BASE + (2000 << 12), 700, at_once) == content(1507, 700));
            assert!(client.get_all(0x40_0000, 5, at_once) == content(0, 5));
            client.close();
        });
        let served = served.unwrap();
        assert_eq!((served.pages, served.closed), (3 + 1500 + 1 + 700 + 5, true));
    }
}

#[test]
fn both_formats_and_plain_pages_give_the_same_memory() {
    let pages = pages(2207);
    let options = WriteOptions::default().with_format(Format::Zstd);
    let mut zst = ArchiveWriter::new(Vec::new(), options).unwrap();
    let algorithm = trueno_zram_core::Algorithm::Zstd { level: 1 };
    let codec = CpuBatchCompressor::new(algorithm);
    zst.write_batch(&codec.unwrap().compress(&pages).unwrap()).unwrap();
    let zst = Archive::read_from(Arc::new(zst.finish(None).unwrap().0)).unwrap().unwrap();
    let lz4 = Archive::read_from(Arc::new(archive_of(&pages))).unwrap().unwrap();
    let plain = PlainPages::new(Arc::new(pages.as_flattened().to_vec())).unwrap();
    let files: [Arc<dyn Pages>; 3] = [Arc::new(zst), Arc::new(lz4), Arc::new(plain)];
    for file in files {
        let mut memory = Memory::default();
        memory.add(PID, &pagemap(), file, Path::new("pagemap")).unwrap();
        let served = serve(memory, 1, |mut client| {
            assert!(client.get_all(BASE, 1500, 1024) == pages[5..1505].as_flattened());
        });
        assert!(!served.unwrap().closed, "the client has just gone");
    }
}

#[test]
fn a_damaged_page_ends_the_connection_and_pages_before_it_still_come() {
    let pages = pages(2207);
    let mut bytes = archive_of(&pages);
    // Within the blocks, far from the index.
    let at = bytes.len() / 4;
    bytes[at] ^= 0x40;
    let file = Archive::read_from(Arc::new(bytes)).map(Option::unwrap).map(Arc::new).unwrap();
    let mut page = [[0; PAGE_SIZE]];
    let damaged = (0..2207).find(|number| file.read(*number, &mut page).is_err()).expect("damage is found");
    assert!((5..1505).contains(&damaged), "page {damaged} is one of the first range");
    let mut memory = Memory::default();
    memory.add(PID, &pagemap(), file, Path::new("pagemap")).unwrap();
    let ended = serve(memory, 2, |mut client| {
        let mut received = Vec::new();
        while let Ok(more) = client.get(BASE + received.len() as u64, 1024) {
            received.extend(more);
        }
        let before = usize::try_from(damaged).unwrap();
        assert!(received == pages[5..before].as_flattened(), "all pages before, and nothing else");
    });
    let address = BASE + ((damaged - 5) << 12);
    assert!(
        matches!(ended, Err(Error::Damaged { pid: PID, page, address: at, .. }) if (page, at) == (damaged, address)),
        "{ended:?}"
    );
}

#[test]
fn wrong_requests_are_refused_by_name() {
    let refused = |command: u32, count: u64, address: u64| {
        let mut memory = Memory::default();
        let file = Arc::new(PlainPages::new(Arc::new(pages(2207).as_flattened().to_vec())).unwrap());
        memory.add(PID, &pagemap(), file, Path::new("pagemap")).unwrap();
        serve(memory, 0, |mut client| {
            client.request(command, count, address);
            assert_eq!(client.0.read(&mut [0; 1]).unwrap_or(0), 0, "nothing is sent");
        })
        .unwrap_err()
    };
    assert!(matches!(refused(7, 0, BASE), Error::Range { request: 0, pages: 0, .. }));
    assert!(matches!(refused(7, 1, BASE + 1), Error::Range { .. }));
    assert!(matches!(refused(7, 1, BASE - 4096), Error::NoPage { pid: PID, .. }));
    // Opening an image, adding pages: for the receiver of a dump.
    for command in [1, 2, 3, 4, 5, 6, 0x7777] {
        assert!(matches!(refused(command, 1, BASE), Error::Command { command: c, .. } if c == command));
    }
    let cut = serve(Memory::default(), 0, |mut client| client.0.write_all(&[7; 31]).unwrap());
    assert!(matches!(cut, Err(Error::Ended { request: 0, received: 31 })), "{cut:?}");
}

/// Serves clients until `limit` of them were established, while `connect` runs. Returns what they ended with.
fn serve_all(
    limit: usize,
    request_timeout: Duration,
    connect: impl FnOnce(&dyn Fn() -> Client),
) -> Vec<Result<Option<Served>, Error>> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let mut memory = Memory::default();
    let file = Arc::new(PlainPages::new(Arc::new(pages(2207).as_flattened().to_vec())).unwrap());
    memory.add(PID, &pagemap(), file, Path::new("pagemap")).unwrap();
    let server = PageServer::new(memory, 2).request_timeout(request_timeout);
    let (sender, ended) = channel();
    thread::scope(|threads| {
        threads.spawn(|| {
            let sender = sender;
            serve_each(&listener, Some(limit), |client| {
                sender.send(server.serve_client(client.connection(), || client.establish())).unwrap();
            })
        });
        connect(&|| Client(TcpStream::connect(address).unwrap()));
    });
    ended.iter().collect()
}

#[test]
fn silent_clients_neither_lock_others_out_nor_count() {
    let ended = serve_all(2, Duration::MAX, |connect| {
        let silent: Vec<Client> = (0..MAX_CONNECTIONS).map(|_| connect()).collect();
        // Half a request is no better.
        let half: Vec<Client> = (0..MAX_CONNECTIONS).map(|_| connect()).collect();
        half.iter().for_each(|client| (&client.0).write_all(&[7; 31]).unwrap_or(()));
        let mut first = connect();
        assert_eq!(first.get(BASE, 1).unwrap(), pages(6)[5]);
        let _more: Vec<Client> = (0..MAX_CONNECTIONS).map(|_| connect()).collect();
        let mut second = connect();
        assert_eq!(second.get(BASE, 1).unwrap(), pages(6)[5]);
        assert_eq!(first.get(BASE, 1).unwrap(), pages(6)[5], "a client that has spoken stays");
        first.close();
        second.close();
        drop((silent, half));
    });
    let closed = ended.iter().filter(|end| matches!(end, Ok(Some(Served { closed: true, .. })))).count();
    assert_eq!(closed, 2);
    assert!(ended.iter().any(|end| matches!(end, Ok(None))), "a connection without a request");
}

#[test]
fn a_client_that_stops_within_a_request_is_disconnected_and_idle_ones_stay() {
    let ended = serve_all(2, Duration::from_millis(50), |connect| {
        let mut idle = connect();
        assert_eq!(idle.get(BASE, 1).unwrap(), pages(6)[5]);
        let (mut unused, mut half) = (connect(), connect());
        half.0.write_all(&[7; 31]).unwrap();
        assert_eq!(half.0.read(&mut [0]).unwrap_or(0), 0);
        // These were silent for longer than the time limit.
        assert_eq!(idle.get(BASE, 1).unwrap(), pages(6)[5]);
        assert_eq!(unused.get(BASE, 1).unwrap(), pages(6)[5]);
        idle.close();
        unused.close();
    });
    assert!(ended.iter().any(|end| matches!(end, Err(Error::Stalled { request: 0, received: 31 }))), "{ended:?}");
    assert_eq!(ended.len(), 3);
}

#[test]
fn a_lazy_directory_has_what_is_needed_at_once_and_nothing_else() {
    let pages = pages(2207);
    let (dir, parent) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_images(dir.path(), &pages);
    let shared = Pagemap { pages_id: 3, entries: vec![entry(0, 2, false)] };
    fs::write(dir.path().join("pagemap-shmem-12.img"), shared.encode()).unwrap();
    fs::write(dir.path().join("pages-3.img"), pages[..2].as_flattened()).unwrap();
    let images = ImageDir::open(dir.path()).unwrap();
    let path = parent.path().join("lazy");
    let lazy = write_lazy_dir(&images, &ArchiveOpener::new(), &path).unwrap();
    let read = |name: &str| fs::read(path.join(name)).unwrap();
    let map = Pagemap::parse(&read("pagemap-4711.img")).unwrap();
    let flags: Vec<_> = map.entries.iter().map(|entry| (entry.lazy, entry.present)).collect();
    assert_eq!(flags, [(false, true), (true, false), (false, true), (true, false)]);
    let eager = [&pages[..5], &pages[1505..1507]].concat();
    assert!(read("pages-9.img") == eager.as_flattened());
    assert!(read("pages-3.img") == pages[..2].as_flattened(), "shared memory is not lazy");
    assert_eq!(read("core-4711.img"), b"registers");
    assert!(!path.join("stats-dump").exists() && !path.join("pages-9.img.lz4").exists());
    assert!(write_lazy_dir(&images, &ArchiveOpener::new(), &path).is_err(), "it exists");
    drop(lazy);
    assert!(!path.exists());
    assert!(dir.path().join("core-4711.img").exists());
}

#[test]
fn directories_that_are_not_whole_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = || ImageDir::open(dir.path()).and_then(|images| Memory::open(&images, &ArchiveOpener::new()));
    assert!(matches!(open(), Err(Error::NoPagemaps { .. })));
    fs::write(dir.path().join("pagemap-4711.img"), pagemap().encode()).unwrap();
    assert!(matches!(open(), Err(Error::NoPages { pages_id: 9, .. })));
    fs::write(dir.path().join("pages-9.img"), vec![0; 2206 * PAGE_SIZE]).unwrap();
    assert!(matches!(open(), Err(Error::PagesShort { pages: 2207, .. })));
    fs::write(dir.path().join("pages-9.img"), vec![0; 2207 * PAGE_SIZE]).unwrap();
    assert!(open().is_ok());
    fs::write(dir.path().join("pagemap-4712.img"), pagemap().encode()).unwrap();
    assert!(matches!(open(), Err(Error::SharedPages { pages_id: 9, .. })));
    fs::write(dir.path().join("pagemap-4712.img"), b"something else").unwrap();
    assert!(matches!(open(), Err(Error::Pagemap { .. })));
    // A zombie has an empty one.
    fs::write(dir.path().join("pagemap-4712.img"), b"").unwrap();
    assert!(open().is_ok());
    fs::rename(dir.path().join("pages-9.img"), dir.path().join("pages-9.img.lz4")).unwrap();
    assert!(matches!(open(), Err(Error::NoIndex { .. } | Error::Archive { .. })));
}
