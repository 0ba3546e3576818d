//! Measures the first touch of each group of an archive beside later touches, by a VM and through NBD.
//!
//! `cargo run --release -p trueno-bench --example first_touch -- [PAGES] [ROUNDS] [FILE]`
//!
//! Takes the pages of FILE, or of the corpus, repeated until there are PAGES. The archive is in the page cache. Each round opens it
//! anew and touches one page in each group of 1,024 pages (a VM: but the first), in random order, then other pages. All bytes are compared, and a round
//! counts once all proofs are made. Proofs are pending meanwhile, as in use; with `group` there are none. Awake: a thread of the
//! lowest priority spins on every core, and the handler and the VM have a core each. Idle: no thread spins.

#[cfg(target_os = "linux")]
#[path = "support/cores.rs"]
mod cores;
#[cfg(target_os = "linux")]
#[allow(clippy::unwrap_used, dead_code, reason = "the tests of the server use more of it")]
#[path = "../../trueno-zram-serve/tests/nbd/client.rs"]
mod nbd_client;

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use trueno_test_restore::vmm;
    if vmm::obey() || !vmm::is_allowed() {
        return Ok(());
    }
    bench::run()
}

#[cfg(target_os = "linux")]
mod bench {
    use std::error::Error;
    use std::fs::{self, File};
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::sync::Arc;
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::thread::{sched_getaffinity, sched_setaffinity};
    use trueno_test_pages::generate::Generator;
    use trueno_test_restore::vmm::{self, GuestPages};
    use trueno_zram_archive::{Archive, ArchiveWriter, Format, GROUP_PAGES, Pages, Verify, WriteOptions};
    use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE, Page};
    use trueno_zram_io::MappedFile;
    use trueno_zram_restore::{LazyRestore, RestoreOptions};
    use trueno_zram_serve::nbd::{Exports, NbdLimits, NbdServer};
    use trueno_zram_serve::{ArchiveExport, ProvenPages};

    use crate::cores::{Awake, Cores, stay_on};
    use crate::nbd_client::{Client, Style};

    const PAGE_LEN: u32 = 4096;
    /// Later touches per round.
    const LATER: usize = 5000;

    /// Nanoseconds of touches, of all rounds.
    #[derive(Default)]
    struct TouchTimes {
        first: Vec<u64>,
        later: Vec<u64>,
    }

    pub(crate) fn run() -> Result<(), Box<dyn Error>> {
        let mut args = std::env::args().skip(1);
        let count = args.next().map_or(Ok(131_072), |count| count.parse())?;
        let rounds: usize = args.next().map_or(Ok(5), |rounds| rounds.parse())?;
        let pages = pages(count, args.next().as_deref())?;
        let dir = tempfile::tempdir()?;
        let image = dir.path().join("image");
        fs::write(&image, pages.as_flattened())?;
        println!("{count} pages, {} groups, {rounds} rounds", count.div_ceil(GROUP_PAGES));
        for (format, algorithm) in [(Format::Lz4, Algorithm::Lz4), (Format::Zstd, Algorithm::Zstd { level: 3 })] {
            let path = dir.path().join("archive");
            write_archive(&path, &pages, format, algorithm)?;
            println!("{format:?}: ratio {:.2}", (count * PAGE_SIZE) as f64 / fs::metadata(&path)?.len() as f64);
            for (name, cores) in [("cores awake", Cores::Apart), ("cores idle", Cores::Any)] {
                let awake = (cores == Cores::Apart).then(Awake::start);
                let mut of_policy: [TouchTimes; 2] = Default::default();
                let mut through_nbd: [TouchTimes; 2] = Default::default();
                for seed in 0..rounds {
                    for (at, verify) in [Verify::Touched, Verify::Group].into_iter().enumerate() {
                        by_vm(open(&path, verify)?, &image, seed, cores, &mut of_policy[at])?;
                        by_nbd(open(&path, verify)?, &pages, seed, &mut through_nbd[at])?;
                    }
                }
                drop(awake);
                for (at, policy) in ["touched", "group"].into_iter().enumerate() {
                    report(&format!("{format:?}, VM, {name}, {policy}"), &mut of_policy[at]);
                    report(&format!("{format:?}, NBD, {name}, {policy}"), &mut through_nbd[at]);
                }
            }
        }
        Ok(())
    }

    fn open(path: &Path, verify: Verify) -> Result<Archive, Box<dyn Error>> {
        let archive = Archive::read_from(Arc::new(MappedFile::new(File::open(path)?)))?.ok_or("no index")?;
        Ok(archive.with_verify(verify))
    }

    fn report(name: &str, touches: &mut TouchTimes) {
        let mut line = format!("{name}:");
        for (what, all) in [("first", &mut touches.first), ("later", &mut touches.later)] {
            all.sort_unstable();
            let at = |share: usize| all[(all.len() - 1) * share / 100] as f64 / 1e3;
            line += &format!("  {what} p50 {:.1} p90 {:.1} p99 {:.1} us ({})", at(50), at(90), at(99), all.len());
        }
        println!("{line}");
    }

    /// Touches pages in a VM of its own.
    fn by_vm(
        archive: Archive,
        image: &Path,
        seed: usize,
        cores: Cores,
        touches: &mut TouchTimes,
    ) -> Result<(), Box<dyn Error>> {
        let archive = Arc::new(archive);
        let options = RestoreOptions::default().with_background_fill(false).with_around_bytes(0);
        let restore = LazyRestore::new(Arc::clone(&archive), options);
        let dir = tempfile::tempdir()?;
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket)?;
        thread::scope(|threads| {
            threads.spawn(|| {
                stay_on(0, cores);
                restore.serve_all(&listener, Some(1), |ended| {
                    let report = ended.expect("a VM that ends by itself");
                    assert!(report.disproven_pages == 0 && !report.unproven);
                })
            });
            let before = sched_getaffinity(None)?;
            stay_on(1, cores);
            let mut vmm = vmm::start(&socket, image, GuestPages::Small, &[]);
            sched_setaffinity(None, &before)?;
            // The VM may run before the handler knows of it.
            vmm.must("touch 0");
            for (command, all) in [
                (format!("spread {GROUP_PAGES} {seed}"), &mut touches.first),
                (format!("times {LATER} {}", seed + 1000), &mut touches.later),
            ] {
                let answer = vmm.ask(&command).ok_or("the VMM has ended")?;
                for number in answer.split(' ') {
                    all.push(number.parse().map_err(|_| answer.clone())?);
                }
            }
            wait_for_proofs(&*archive);
            vmm.end();
            Ok(())
        })
    }

    /// Touches pages through a server of its own.
    fn by_nbd(archive: Archive, pages: &[Page], seed: usize, touches: &mut TouchTimes) -> Result<(), Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let socket = dir.path().join("nbd");
        let proven = Arc::new(ProvenPages::start(archive, |error| panic!("{error}"))?);
        let exports = Exports::new().with("archive", Arc::new(ArchiveExport::new(Arc::clone(&proven))));
        let endpoint = format!("unix:{}", socket.display()).parse()?;
        let _server = NbdServer::start(&endpoint, exports, NbdLimits::default())?;
        let mut client = Client::connect(&socket, "archive", Style::Structured);
        let mut read = |page: usize| {
            let start = Instant::now();
            let bytes = client.read((page * PAGE_SIZE) as u64, PAGE_LEN);
            let time = start.elapsed();
            assert!(bytes.expect("intact") == pages[page], "page {page}");
            u64::try_from(time.as_nanos()).expect("a short time")
        };
        let groups = pages.len().div_ceil(GROUP_PAGES);
        let order: Vec<usize> = shuffled(groups, seed);
        for group in order {
            let within = pages.len().min((group + 1) * GROUP_PAGES) - group * GROUP_PAGES;
            touches.first.push(read(group * GROUP_PAGES + (group * 37 + seed) % within));
        }
        for page in Generator::new(seed as u64 + 1000).numbers_below(pages.len()).take(LATER) {
            touches.later.push(read(page));
        }
        wait_for_proofs(&*proven);
        Ok(())
    }

    /// Waits until all that was touched is proven.
    fn wait_for_proofs(pages: &dyn Pages) {
        while pages.is_proof_due() {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(pages.disproven().is_empty());
    }

    /// Returns the numbers below `count` in random order.
    fn shuffled(count: usize, seed: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        let mut random = Generator::new(seed as u64);
        for at in (1..count).rev() {
            order.swap(at, random.below(at + 1));
        }
        order
    }

    fn write_archive(path: &Path, pages: &[Page], format: Format, algorithm: Algorithm) -> Result<(), Box<dyn Error>> {
        let mut archive = ArchiveWriter::new(File::create(path)?, WriteOptions::default().with_format(format))?;
        archive.write_batch(&CpuBatchCompressor::new(algorithm)?.compress(pages)?)?;
        archive.finish(None)?;
        Ok(())
    }

    fn pages(count: usize, file: Option<&str>) -> Result<Vec<Page>, Box<dyn Error>> {
        let given = file.map(fs::read).transpose()?;
        let pages: Vec<Page> = match &given {
            Some(bytes) => bytes.as_chunks().0.to_vec(),
            None => trueno_test_pages::corpus::all_pages().copied().collect(),
        };
        Ok(pages.into_iter().cycle().take(count).collect())
    }
}
