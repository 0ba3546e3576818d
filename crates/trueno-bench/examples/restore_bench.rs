//! Measures faults and the background fill of a VM in a second process: from an archive, and from an image in memory.
//!
//! `cargo run --release -p trueno-bench --example restore_bench -- [PAGES] [ROUNDS] [FILE]`
//!
//! Takes the pages of FILE, or of the corpus, repeated until there are PAGES. "Plain" is the same handler with an uncompressed
//! image. An archive in a file is read through a mapping, as by the tool, and for comparison with `pread`. All are measured
//! alternately, and the medians of all rounds are printed. Awake: a thread of the lowest priority spins on every core, and the
//! handler and the VM have a core each, since a fault takes half as long if they happen to share one. Idle: no thread spins, and
//! the cores sleep between faults, unless others keep them busy. "Later": plain, with a delay for each page.

#[cfg(target_os = "linux")]
#[path = "support/cores.rs"]
mod cores;

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
    use std::fs;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::thread::{sched_getaffinity, sched_setaffinity};
    use trueno_test_restore::stand_in::StandIn;
    use trueno_test_restore::vmm::{self, GuestPages};
    use trueno_zram_archive::{Archive, ArchiveWriter, Format, WriteOptions};
    use trueno_zram_core::{AlignedPages, CpuBatchCompressor, PAGE_SIZE, Page};
    use trueno_zram_io::MappedFile;
    use trueno_zram_restore::{Image, LazyRestore, Notice, Pages, RestoreOptions};

    use crate::cores::{Awake, Cores, stay_on};

    const FAULTS: usize = 20_000;
    const SOURCES: usize = 4;

    /// Nanoseconds of a fault: 50th, 90th and 99th of 100.
    type Percentiles = [u64; 3];
    type Source = Arc<dyn Pages>;

    /// A source that takes longer: shows how the time of a fault depends on that of its page.
    struct Later {
        source: Source,
        delay: Duration,
    }

    impl Pages for Later {
        fn len_bytes(&self) -> u64 {
            self.source.len_bytes()
        }

        fn read(&self, first: u64, out: &mut [Page]) -> Result<(), trueno_zram_archive::Error> {
            let start = Instant::now();
            while start.elapsed() < self.delay {
                std::hint::spin_loop();
            }
            self.source.read(first, out)
        }

        fn is_zero(&self, page: u64) -> Result<bool, trueno_zram_archive::Error> {
            self.source.is_zero(page)
        }
    }

    pub(crate) fn run() -> Result<(), Box<dyn Error>> {
        let mut args = std::env::args().skip(1);
        let count = args.next().map_or(Ok(65_536), |count| count.parse())?;
        let rounds: usize = args.next().map_or(Ok(5), |rounds| rounds.parse())?;
        let pages = pages(count, args.next().as_deref())?;
        let dir = tempfile::tempdir()?;
        let image = dir.path().join("image");
        fs::write(&image, pages.as_flattened())?;
        let path = dir.path().join("image.lz4");
        let options = WriteOptions::default();
        let mut archive = ArchiveWriter::new(fs::File::create(&path)?, options)?;
        archive.write_batch(&CpuBatchCompressor::default().compress(&pages)?)?;
        archive.finish(None)?;
        let len = fs::metadata(&path)?.len();
        println!("{count} pages, ratio {:.2}, {rounds} rounds", (count * PAGE_SIZE) as f64 / len as f64);
        let in_file = Archive::read_from(Arc::new(MappedFile::new(fs::File::open(&path)?)))?.ok_or("no index")?;
        let by_calls = Archive::open(&path)?;
        let in_memory = Archive::read_from(Arc::new(fs::read(&path)?))?.ok_or("no index")?;
        open_large()?;
        let [mapped, called, copied] = [alone(&in_file), alone(&by_calls), alone(&in_memory)];
        println!("page, alone: archive in a file {mapped:.2} us (pread {called:.2} us), in memory {copied:.2} us");
        let plain: Source = Arc::new(Image::new(pages));
        let sources: [(&str, Source); SOURCES] = [
            ("plain", Arc::clone(&plain)),
            ("archive in memory", Arc::new(in_memory)),
            ("archive in a file", Arc::new(in_file)),
            ("archive in a file, pread", Arc::new(by_calls)),
        ];
        let on_demand = RestoreOptions::default().with_background_fill(false).with_around_bytes(0);
        let blocking = on_demand.with_spin(Duration::ZERO);
        for (name, options, cores) in [
            ("cores awake", on_demand, Cores::Apart),
            ("cores idle", on_demand, Cores::Any),
            ("cores idle, blocking handler", blocking, Cores::Any),
        ] {
            let awake = (cores == Cores::Apart).then(Awake::start);
            let mut of_source: [Vec<Percentiles>; SOURCES] = Default::default();
            for seed in 0..rounds {
                for ((_, source), all) in sources.iter().zip(&mut of_source) {
                    all.push(faults(source, options, &image, seed, cores)?);
                }
            }
            drop(awake);
            let plain = medians(&of_source[0])[0] as f64;
            for ((source, _), all) in sources.iter().zip(&of_source) {
                let [p50, p90, p99] = medians(all).map(|ns| ns as f64);
                let (us50, us90, us99) = (p50 / 1e3, p90 / 1e3, p99 / 1e3);
                println!(
                    "fault, {name}, {source}: p50 {us50:.1} p90 {us90:.1} p99 {us99:.1} us; {:.2} x plain",
                    p50 / plain
                );
            }
        }
        for delay_us in [0.6, 1.2, 1.8, 2.4] {
            let later: Source =
                Arc::new(Later { source: Arc::clone(&plain), delay: Duration::from_secs_f64(delay_us / 1e6) });
            let measure = |seed| faults(&later, on_demand, &image, seed, Cores::Any);
            let all = (0..rounds).map(measure).collect::<Result<Vec<_>, _>>()?;
            let [p50, p90, p99] = medians(&all).map(|ns| ns as f64 / 1e3);
            println!("fault, cores idle, plain {delay_us} us later: p50 {p50:.1} p90 {p90:.1} p99 {p99:.1} us");
        }
        let cores = thread::available_parallelism()?.get();
        for workers in [1, cores.max(2)] {
            let options = RestoreOptions::default().with_workers(workers.try_into()?);
            let mut of_source: [(Vec<Duration>, f64); SOURCES] = Default::default();
            for _ in 0..rounds {
                for ((_, source), (all, cpu_seconds)) in sources.iter().zip(&mut of_source) {
                    let before = cpu_time()?;
                    all.push(fill(source, options, &image)?);
                    *cpu_seconds += cpu_time()? - before;
                }
            }
            for ((source, _), (all, cpu_seconds)) in sources.iter().zip(&mut of_source) {
                all.sort_unstable();
                let per_cpu = (count * PAGE_SIZE * rounds) as f64 / *cpu_seconds;
                let rate = (count * PAGE_SIZE) as f64 / all[all.len() / 2].as_secs_f64() / 1e9;
                println!(
                    "fill, {workers} threads, {source}: {rate:.2} GB/s, {:.2} GB per second of processor time",
                    per_cpu / 1e9
                );
            }
        }
        Ok(())
    }

    /// Measures opening an archive of 100 GB: zeros, but its table of groups is as long as any other.
    fn open_large() -> Result<(), Box<dyn Error>> {
        let pages = (100 << 30) / PAGE_SIZE as u64;
        let options = WriteOptions::default().with_format(Format::Zstd);
        let mut archive = ArchiveWriter::new(Vec::new(), options)?;
        archive.write_zero_pages(pages)?;
        let (bytes, _) = archive.finish(None)?;
        let start = Instant::now();
        let archive = Archive::read_from(Arc::new(bytes))?.ok_or("no index")?;
        let (ms, memory) = (start.elapsed().as_secs_f64() * 1e3, archive.index_memory_bytes());
        println!("100 GB: opened in {ms:.1} ms, {:.3} bytes of index per page", memory as f64 / pages as f64);
        Ok(())
    }

    /// Measures reading a page, without any VM: microseconds, in random order.
    fn alone(source: &impl Pages) -> f64 {
        let pages = source.len_bytes() / PAGE_SIZE as u64;
        let mut page = AlignedPages::new(1);
        let mut read_all = || {
            let start = Instant::now();
            for number in 0..pages {
                source.read(number * 40_503 % pages, &mut page).expect("intact");
            }
            start.elapsed().as_secs_f64() * 1e6 / pages as f64
        };
        // The first pass compares the groups with the index.
        (0..4).map(|_| read_all()).fold(f64::INFINITY, f64::min)
    }

    /// Returns the processor time of all threads so far, in seconds: what remains meaningful on a machine that others use.
    fn cpu_time() -> Result<f64, Box<dyn Error>> {
        let stat = fs::read_to_string("/proc/self/stat")?;
        let (_, fields) = stat.rsplit_once(") ").ok_or("a line of /proc/self/stat")?;
        let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        Ok(ticks as f64 / 100.0)
    }

    fn medians(rounds: &[Percentiles]) -> Percentiles {
        std::array::from_fn(|which| {
            let mut values: Vec<u64> = rounds.iter().map(|round| round[which]).collect();
            values.sort_unstable();
            values[values.len() / 2]
        })
    }

    fn pages(count: usize, file: Option<&str>) -> Result<Vec<Page>, Box<dyn Error>> {
        let given = file.map(fs::read).transpose()?;
        let pages: Vec<Page> = match &given {
            Some(bytes) => bytes.as_chunks().0.to_vec(),
            None => trueno_test_pages::corpus::all_pages().copied().collect(),
        };
        Ok(pages.into_iter().cycle().take(count).collect())
    }

    /// Measures first touches of random pages.
    fn faults(
        source: &Source,
        options: RestoreOptions,
        image: &Path,
        seed: usize,
        cores: Cores,
    ) -> Result<Percentiles, Box<dyn Error>> {
        let restore = LazyRestore::new(Arc::clone(source), options);
        serve(&restore, image, cores, |vmm| {
            let answer = vmm.ask(&format!("latencies {FAULTS} {seed}")).ok_or("the VMM has ended")?;
            let numbers = answer.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
            Ok(numbers.try_into().map_err(|_| "three numbers")?)
        })
    }

    /// Measures the time from the connection until all memory is restored.
    fn fill(source: &Source, options: RestoreOptions, image: &Path) -> Result<Duration, Box<dyn Error>> {
        let (sender, notices) = channel();
        let restore = LazyRestore::new(Arc::clone(source), options).on_notice(move |notice| {
            if matches!(notice, Notice::Connected { .. } | Notice::Complete) {
                let _ = sender.send(Instant::now());
            }
        });
        serve(&restore, image, Cores::Any, |_| {
            let (start, end) = (notices.recv()?, notices.recv()?);
            Ok(end - start)
        })
    }

    fn serve<T>(
        restore: &LazyRestore,
        image: &Path,
        cores: Cores,
        measure: impl FnOnce(&mut StandIn) -> Result<T, Box<dyn Error>>,
    ) -> Result<T, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket)?;
        thread::scope(|threads| {
            threads.spawn(|| {
                stay_on(0, cores);
                restore.serve_all(&listener, Some(1), |ended| {
                    ended.expect("a VM that ends by itself");
                })
            });
            let before = sched_getaffinity(None)?;
            stay_on(1, cores);
            let mut vmm = vmm::start(&socket, image, GuestPages::Small, &[]);
            sched_setaffinity(None, &before)?;
            let measured = measure(&mut vmm);
            vmm.end();
            measured
        })
    }
}
