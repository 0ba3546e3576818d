//! A mapped file beside the file itself, its slow twin, while the file is cut, grown, replaced and read by threads.

use std::env;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{MemfdFlags, memfd_create};
use trueno_test_pages::generate::Generator;

use super::*;

/// Bytes of which none is zero, and which differ from page to page.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at / 4096 * 31 + at) % 255 + 1).expect("at most 255")).collect()
}

fn file_of(content: &[u8]) -> File {
    let file = tempfile::tempfile().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, content, 0).unwrap();
    file
}

fn mapped(file: &File) -> MappedFile {
    MappedFile::new(file.try_clone().unwrap())
}

/// Reads from a file; the kind of the error, if there is one.
fn read(file: &impl ReadAt, at: u64, len: usize) -> Result<Vec<u8>, io::ErrorKind> {
    let mut bytes = vec![0xee; len];
    file.read_exact_at(&mut bytes, at).map(|()| bytes).map_err(|error| error.kind())
}

const EOF: Result<Vec<u8>, io::ErrorKind> = Err(io::ErrorKind::UnexpectedEof);

#[test]
fn a_mapped_file_reads_like_the_file() {
    let mut content = bytes(300_001);
    // Reads that end with zeros, as those of a file that was cut do.
    content[70_000..75_000].fill(0);
    let file = file_of(&content);
    let mapped = mapped(&file);
    let len = content.len() as u64;
    let mut random = Generator::new(1);
    let lens = [0, 1, 7, 8, 9, 63, 64, 65, 1500, 4095, 4096, 4097, 65_535, 65_536, 65_537, 200_000];
    let edges = [0, 1, 4095, 4096, 69_999, 74_999, 75_000, len - 1, len, len + 1, 1 << 40, u64::MAX];
    for len_bytes in lens {
        let ends = [len - len_bytes as u64, len - len_bytes as u64 + 1];
        let anywhere: Vec<u64> = (0..50).map(|_| random.below(content.len() + 5000) as u64).collect();
        for at in edges.into_iter().chain(ends).chain(anywhere) {
            let (read, expected) = (read(&mapped, at, len_bytes), read(&file, at, len_bytes));
            assert!(read == expected, "{len_bytes} bytes at {at}");
        }
    }
    assert!(mapped.is_mapped());
    assert_eq!(mapped.len_bytes().unwrap(), len);
}

#[test]
fn a_file_that_is_cut_ends_there_and_is_read_before() {
    let page = rustix::param::page_size();
    let content = bytes(40 * page);
    let file = file_of(&content);
    let mapped = mapped(&file);
    let read_page = |number: usize, from: usize, len: usize| read(&mapped, (number * page + from) as u64, len);
    mapped.expect_reads(0, 40 * page);
    assert_eq!(read_page(20, 0, 100).unwrap(), content[20 * page..20 * page + 100]);

    file.set_len((10 * page + 50) as u64).unwrap();
    // The rest of its last page is zeros in the mapping.
    assert_eq!(read_page(10, 100, 100), EOF);
    assert_eq!(read_page(10, 20, 100), EOF);
    assert_eq!(read_page(10, 0, 50).unwrap(), content[10 * page..10 * page + 50]);
    assert!(mapped.is_mapped());

    // Pages behind that raise SIGBUS, also where the read begins before.
    mapped.expect_reads(0, 40 * page);
    assert!(mapped.is_mapped(), "what cannot be prepared is no failure");
    assert_eq!(read_page(10, 0, page + 100), EOF);
    assert!(!mapped.is_mapped());
    for number in [11, 20, 20, 39] {
        assert_eq!(read_page(number, 0, 100), EOF, "page {number}");
    }
    for len in [1, 100, 2 * page, 10 * page + 50] {
        assert_eq!(read_page(0, 0, len).unwrap(), content[..len]);
    }

    // The present content of the file, and not the empty page.
    file.set_len(content.len() as u64).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &content[11 * page..], (11 * page) as u64).unwrap();
    assert_eq!(read_page(11, 0, page).unwrap(), content[11 * page..12 * page]);
}

#[test]
fn the_first_read_of_bytes_is_a_system_call() {
    let page = rustix::param::page_size();
    let content = bytes(200 * page);
    let file = file_of(&content);
    let mapped = mapped(&file);
    let is_seen = |at: usize, len: usize| mapped.seen.has_all(at as u64, len);
    assert!(!is_seen(0, 1) && is_seen(content.len() + page * 64, 100), "what lies past the end is never copied");
    // Two pages, and those beside them.
    assert_eq!(read(&mapped, 101 * page as u64 - 10, 20).unwrap(), content[101 * page - 10..101 * page + 10]);
    assert!(is_seen(100 * page, 2 * page) && !is_seen(100 * page - 1, 2) && !is_seen(102 * page - 1, 2));
    mapped.expect_reads(page as u64, 3 * page);
    assert!(is_seen(page, 3 * page) && !is_seen(0, 2 * page) && !is_seen(page, 4 * page));
    // A read that fails has seen nothing.
    file.set_len(0).unwrap();
    assert_eq!(read(&mapped, 150 * page as u64, 5), EOF);
    assert!(!is_seen(150 * page, 5));
}

/// A page of the mapping that is not in memory would be a major fault of this thread.
#[test]
fn bytes_that_are_not_in_memory_are_read_without_page_faults() {
    let page = rustix::param::page_size();
    let content = bytes(4000 * page);
    let file = file_of(&content);
    file.sync_all().unwrap();
    let mapped = mapped(&file);
    // On a file system that cannot forget its pages, there are no such faults either.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    let faults = || {
        let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').nth(9).unwrap().parse::<u64>().unwrap()
    };
    let before = faults();
    for at in (0..3990).step_by(37).map(|number| (number + 1) * page - 100) {
        assert_eq!(read(&mapped, at as u64, 4000).unwrap(), content[at..at + 4000]);
    }
    assert_eq!(faults(), before);
}

#[test]
fn a_page_that_cannot_be_read_is_not_taken_for_zeros() {
    let page = rustix::param::page_size();
    let content = bytes(3 * page);
    let file = file_of(&content);
    let mapped = mapped(&file);
    assert_eq!(read(&mapped, 0, 3 * page).unwrap(), content);
    // SIGBUS in the middle of a read whose end is there.
    mapped.mapping.as_ref().unwrap().break_page(page);
    for len in [2 * page, page, 100] {
        assert_eq!(read(&mapped, page as u64, len).unwrap(), content[page..page + len]);
        assert!(!mapped.is_mapped());
    }
}

#[test]
fn a_failure_in_one_file_leaves_others_mapped() {
    let content = bytes(4 * 4096);
    let [cut, whole] = [file_of(&content), file_of(&content)];
    let [cut_mapped, whole_mapped] = [&cut, &whole].map(mapped);
    cut_mapped.expect_reads(0, content.len());
    cut.set_len(0).unwrap();
    assert_eq!(read(&cut_mapped, 4096, 5), EOF);
    assert!(!cut_mapped.is_mapped() && whole_mapped.is_mapped());
    assert_eq!(read(&whole_mapped, 4096, 5).unwrap(), content[4096..4101]);
    // The range of a file that is gone guards another one.
    drop(cut_mapped);
    let again = mapped(&whole);
    again.expect_reads(0, content.len());
    assert!(again.is_mapped());
    assert_eq!(read(&again, 4096, 5).unwrap(), content[4096..4101]);
}

#[test]
fn threads_that_read_while_a_file_is_cut_see_content_or_its_end() {
    const PAGES: usize = 256;
    let content = bytes(PAGES * 4096);
    for round in 0..40 {
        let file = file_of(&content);
        let (mapped, done) = (mapped(&file), AtomicBool::new(false));
        mapped.expect_reads(0, content.len());
        // In odd rounds, it is cut within a page.
        let kept = content.len() / 2 + if round % 2 == 0 { 0 } else { 1234 };
        // A read that is under way may find zeros where the kernel has cleared the rest of the last page.
        let cleared = kept..kept.next_multiple_of(rustix::param::page_size());
        let is_right = |at: usize, read: &[u8]| {
            let mut pairs = (at..).zip(read.iter().zip(&content[at..]));
            pairs.all(|(at, (read, byte))| read == byte || (*read == 0 && cleared.contains(&at)))
        };
        // All threads read the same places, so that one reads a page that another one has replaced.
        let read_all = || {
            let (mut random, mut ends) = (Generator::new(round), 0);
            while !done.load(Ordering::Acquire) || ends == 0 {
                let (at, len) = (random.below(content.len() - 5000), 1 + random.below(5000));
                match read(&mapped, at as u64, len) {
                    Ok(read) => assert!(is_right(at, &read), "{len} bytes at {at}"),
                    Err(io::ErrorKind::UnexpectedEof) => {
                        assert!(at + len > kept, "{len} bytes at {at}");
                        ends += 1;
                    }
                    Err(kind) => panic!("{kind}"),
                }
            }
            ends
        };
        let ends: usize = thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(read_all));
            file.set_len(kept as u64).unwrap();
            done.store(true, Ordering::Release);
            threads.map(|thread| thread.join().unwrap()).iter().sum()
        });
        // A read that ends in the last page raises no SIGBUS.
        assert!(ends >= 3 && (round % 2 == 1 || !mapped.is_mapped()));
        assert_eq!(read(&mapped, content.len() as u64 - 100, 100), EOF);
        assert!(!mapped.is_mapped());
        for (at, len) in [(kept - 100, 101), (kept, 1), (kept + 1, 100)] {
            assert_eq!(read(&mapped, at as u64, len), EOF);
        }
        assert_eq!(read(&mapped, kept as u64 - 2000, 2000).unwrap(), content[kept - 2000..kept]);
    }
}

#[test]
fn a_file_that_has_grown_or_was_replaced_is_read_like_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, content) = (folder.path().join("file"), bytes(30_000));
    fs::write(&path, &content[..10_000]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mapped = mapped(&file);
    std::os::unix::fs::FileExt::write_all_at(&file, &content, 0).unwrap();
    for at in [9_000, 9_999, 10_000, 12_288, 29_000] {
        assert_eq!(read(&mapped, at, 1000), read(&file, at, 1000), "at {at}");
    }
    assert_eq!(mapped.len_bytes().unwrap(), 30_000);
    // Another file of the same name is another file.
    fs::write(folder.path().join("other"), b"short").unwrap();
    fs::rename(folder.path().join("other"), &path).unwrap();
    assert_eq!(read(&mapped, 9_000, 1000).unwrap(), content[9_000..10_000]);
    // Written in place, it has the new bytes.
    std::os::unix::fs::FileExt::write_all_at(&file, b"new", 4095).unwrap();
    assert_eq!(read(&mapped, 4095, 3).unwrap(), b"new");
    assert!(mapped.is_mapped());
}

#[test]
fn what_cannot_be_mapped_is_read_by_system_calls() {
    let empty = file_of(b"");
    let empty_mapped = mapped(&empty);
    assert!(!empty_mapped.is_mapped());
    assert_eq!((read(&empty_mapped, 0, 0), read(&empty_mapped, 0, 1)), (Ok(Vec::new()), EOF));
    std::os::unix::fs::FileExt::write_all_at(&empty, b"bytes", 0).unwrap();
    assert_eq!(read(&empty_mapped, 1, 3).unwrap(), b"yte");

    let device = MappedFile::new(File::open("/dev/zero").unwrap());
    assert!(!device.is_mapped());
    assert_eq!(read(&device, 1 << 40, 3).unwrap(), [0; 3]);

    // Files of huge pages, where the kernel has them.
    assert!(!has_huge_pages(&empty));
    if let Ok(huge) = memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB) {
        let huge = File::from(huge);
        assert!(has_huge_pages(&huge) && !mapped(&huge).is_mapped());
    }

    // More than there are addresses.
    let long = File::from(memfd_create("long", MemfdFlags::CLOEXEC).unwrap());
    long.set_len(1 << 60).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&long, b"far away", 1 << 59).unwrap();
    let long = mapped(&long);
    assert!(!long.is_mapped());
    assert_eq!(read(&long, 1 << 59, 8).unwrap(), b"far away");
    long.expect_reads(1 << 59, 8);
}

/// Runs itself in a process that may have few addresses.
#[test]
fn a_process_without_addresses_reads_by_system_calls() {
    const VARIABLE: &str = "TRUENO_TEST_ADDRESSES";
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 40).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"far away", 1 << 39).unwrap();
    let mapped = mapped(&file);
    assert_eq!(read(&mapped, 1 << 39, 8).unwrap(), b"far away");
    if env::var_os(VARIABLE).is_some() {
        assert!(!mapped.is_mapped());
        return;
    }
    assert!(mapped.is_mapped());
    let name = "archives::mapped_file::tests::a_process_without_addresses_reads_by_system_calls";
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -v 16000000 && exec \"$0\" --exact \"$1\""]);
    let ended = limited.arg(env::current_exe().unwrap()).arg(name).env(VARIABLE, "1").output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "{ended:?}");
}
