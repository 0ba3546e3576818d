//! Measures a whole resume: from the start of a handler until a stand-in VMM has touched all that a guest touched.
//!
//! `cargo run --release -p trueno-bench --example resume_bench -- IMAGE ARCHIVE TOUCHES [OPTIONS]`
//!
//! IMAGE is the memory of a guest, ARCHIVE the same memory compressed, and TOUCHES the list of pages that the guest touched when it
//! went on, with the time between touches (`trueno_test_restore::replay` has the format). `.ci/restore resume` makes all three.
//! The VMM repeats the touches, in order: in memory that a handler restores from the archive, and in a private mapping of the
//! image. They take turns, and medians are printed. A time starts with opening the file; the VMM's process runs by then. After each
//! replay, all bytes of the memory are compared with the image, which does not count.
//!
//! - `--pauses removed|kept|both`: without the time between touches, or with it. The VMM then computes for as long as the guest ran;
//! - `--cold`: the files are dropped from the page cache before each replay. Other data of the image are read just before, so that a
//!   limit of the disk's speed is in force;
//! - `--verify group|all|touched`: what is proven before a page is returned;
//! - `--workers N`: threads of the background fill, one per core by default;
//! - `--rounds N`: 5 by default.

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    if trueno_test_restore::replay::obey() || !trueno_test_restore::vmm::is_allowed() {
        return Ok(());
    }
    bench::run()
}

#[cfg(target_os = "linux")]
mod bench {
    use std::collections::HashSet;
    use std::error::Error;
    use std::fmt::Write as _;
    use std::fs::{self, File};
    use std::num::NonZeroUsize;
    use std::os::unix::fs::FileExt;
    use std::os::unix::net::UnixListener;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::thread;
    use std::time::{Duration, Instant};

    use clap::{Parser, ValueEnum};
    use rustix::fs::{SeekFrom, seek};
    use trueno_test_restore::replay::{Access, Pauses, Replay, ReplayTimes, TimedTouch, parse_touches};
    use trueno_test_restore::{stand_in, system};
    use trueno_zram_archive::{Archive, Verify};
    use trueno_zram_core::PAGE_SIZE;
    use trueno_zram_io::MappedFile;
    use trueno_zram_restore::{LazyRestore, RestoreOptions, Touches};

    /// Pages of a window of recorded touches.
    const WINDOW_PAGES: usize = 16;
    /// Bytes that are read from a cold disk before each replay.
    const LIMITER_BYTES: u64 = 150_000_000;

    #[derive(Parser)]
    struct Args {
        image: PathBuf,
        archive: PathBuf,
        touches: PathBuf,
        #[arg(long, value_enum, default_value = "both")]
        pauses: PausesArg,
        #[arg(long)]
        cold: bool,
        #[arg(long, value_enum, default_value = "group")]
        verify: VerifyArg,
        #[arg(long)]
        workers: Option<NonZeroUsize>,
        #[arg(long, default_value = "5")]
        rounds: NonZeroUsize,
    }

    #[derive(Clone, Copy, ValueEnum)]
    enum PausesArg {
        Removed,
        Kept,
        Both,
    }

    #[derive(Clone, Copy, Debug, ValueEnum)]
    enum VerifyArg {
        Group,
        All,
        Touched,
    }

    /// The memory that the VMM touches.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Memory {
        Mapping,
        Archive,
        /// From the archive, with the list of touches as recorded by `--record`.
        Prefetched,
    }

    impl Memory {
        const ALL: [Self; 3] = [Self::Mapping, Self::Archive, Self::Prefetched];

        fn name(self) -> &'static str {
            match self {
                Self::Mapping => "image, MAP_PRIVATE",
                Self::Archive => "archive",
                Self::Prefetched => "archive, --prefetch",
            }
        }
    }

    /// A replay, seen from outside.
    struct Resume {
        total: Duration,
        times: ReplayTimes,
    }

    struct Bench<'a> {
        args: &'a Args,
        /// The windows of the touches, in the format of `--prefetch`.
        windows: String,
        socket: PathBuf,
    }

    pub(crate) fn run() -> Result<(), Box<dyn Error>> {
        let args = Args::parse();
        let pages = usize::try_from(fs::metadata(&args.image)?.len())? / PAGE_SIZE;
        let touches = parse_touches(&fs::read_to_string(&args.touches)?, pages)?;
        let dir = tempfile::tempdir()?;
        let bench = Bench { args: &args, windows: windows_of(&touches)?, socket: dir.path().join("socket") };
        bench.describe(&touches)?;
        let both = [Pauses::Removed, Pauses::Kept];
        let wanted = match args.pauses {
            PausesArg::Removed => &both[..1],
            PausesArg::Kept => &both[1..],
            PausesArg::Both => &both[..],
        };
        for pauses in wanted {
            bench.compare(*pauses)?;
        }
        Ok(())
    }

    /// Returns the windows of touches in the order in which `--record` writes them.
    fn windows_of(touches: &[TimedTouch]) -> Result<String, Box<dyn Error>> {
        let mut text = String::from("trueno-zram touches 1\n");
        let mut seen = HashSet::new();
        for window in touches.iter().map(|touch| touch.page / WINDOW_PAGES) {
            if seen.insert(window) {
                writeln!(text, "{}", window * WINDOW_PAGES)?;
            }
        }
        Ok(text)
    }

    /// Reads the parts of a file that are not holes, up to a number of bytes. Returns how many were read.
    fn read_data(path: &Path, most_bytes: u64) -> Result<u64, Box<dyn Error>> {
        let (file, mut buffer) = (File::open(path)?, vec![0; 1 << 20]);
        let (mut at, mut read_bytes) = (0, 0);
        while read_bytes < most_bytes {
            // There is no more data after the last hole.
            let Ok(start) = seek(&file, SeekFrom::Data(at)) else { break };
            let end = seek(&file, SeekFrom::Hole(start))?;
            at = start;
            while at < end && read_bytes < most_bytes {
                let part = usize::try_from(end - at)?.min(buffer.len());
                file.read_exact_at(&mut buffer[..part], at)?;
                (at, read_bytes) = (at + part as u64, read_bytes + part as u64);
            }
        }
        Ok(read_bytes)
    }

    impl Bench<'_> {
        fn describe(&self, touches: &[TimedTouch]) -> Result<(), Box<dyn Error>> {
            let (image_len, len) = (fs::metadata(&self.args.image)?.len(), fs::metadata(&self.args.archive)?.len());
            let written = touches.iter().filter(|touch| touch.access == Access::Write).count();
            let running: Duration = touches.iter().map(|touch| touch.pause).sum();
            println!(
                "image {:.0} MB, archive {:.0} MB; {} pages touched, {written} of them written, in {} blocks of 64 KiB; \
                 the guest ran for {:.2} s in between",
                image_len as f64 / 1e6,
                len as f64 / 1e6,
                touches.len(),
                self.windows.lines().count() - 1,
                running.as_secs_f64()
            );
            println!("verify {:?}, {} rounds", self.args.verify, self.args.rounds);
            if self.args.cold {
                self.drop_files()?;
                let start = Instant::now();
                let bytes = read_data(&self.args.image, u64::MAX)?;
                println!("cold: the disk reads {:.0} MB/s", bytes as f64 / start.elapsed().as_secs_f64() / 1e6);
            }
            Ok(())
        }

        /// Measures all kinds of memory in turn, and prints their medians.
        fn compare(&self, pauses: Pauses) -> Result<(), Box<dyn Error>> {
            let mut all: [Vec<Resume>; 3] = Default::default();
            for _ in 0..self.args.rounds.get() {
                for (memory, resumes) in Memory::ALL.iter().zip(&mut all) {
                    resumes.push(self.resume(*memory, pauses)?);
                }
            }
            println!("\ntime between touches {}", if pauses == Pauses::Kept { "kept" } else { "removed" });
            let mut mapping = f64::NAN;
            for (memory, resumes) in Memory::ALL.iter().zip(&mut all) {
                resumes.sort_by_key(|resume| resume.total);
                let [fastest, median, slowest] = [0, resumes.len() / 2, resumes.len() - 1].map(|at| &resumes[at]);
                let ms = |time: Duration| time.as_secs_f64() * 1e3;
                if *memory == Memory::Mapping {
                    mapping = ms(median.total);
                }
                print!(
                    "{:<20} {:9.1} ms ({:.1} to {:.1}), {:6.2} x",
                    memory.name(),
                    ms(median.total),
                    ms(fastest.total),
                    ms(slowest.total),
                    ms(median.total) / mapping
                );
                if pauses == Pauses::Kept {
                    let us = |time: Duration| time.as_secs_f64() * 1e6;
                    let ReplayTimes { median, p99, longest, .. } = median.times;
                    print!("; touches: p50 {:.1} us, p99 {:.0} us, longest {:.0} us", us(median), us(p99), us(longest));
                }
                println!();
            }
            Ok(())
        }

        fn resume(&self, memory: Memory, pauses: Pauses) -> Result<Resume, Box<dyn Error>> {
            let Args { image, touches, .. } = self.args;
            let mut vmm = Replay::start(stand_in::command("resume"), image, touches, &self.socket);
            if self.args.cold {
                // A limit of the disk's speed holds on average: nothing may be left over from the time before.
                self.drop_files()?;
                read_data(&self.args.image, LIMITER_BYTES)?;
                self.drop_files()?;
            }
            let start = Instant::now();
            if memory == Memory::Mapping {
                let times = vmm.from_mapping(pauses).ok_or("the VMM has ended")?;
                let total = start.elapsed();
                vmm.compare_and_end();
                return Ok(Resume { total, times });
            }
            let restore = self.restore(memory)?;
            let _ = fs::remove_file(&self.socket);
            let listener = UnixListener::bind(&self.socket)?;
            thread::scope(|threads| {
                threads.spawn(|| {
                    restore.serve_all(&listener, Some(1), |ended| {
                        ended.expect("a VM that ends by itself");
                    })
                });
                let times = vmm.from_handler(pauses).ok_or("the VMM has ended")?;
                let total = start.elapsed();
                vmm.compare_and_end();
                Ok(Resume { total, times })
            })
        }

        /// Opens the archive as the tool does.
        fn restore(&self, memory: Memory) -> Result<LazyRestore, Box<dyn Error>> {
            let file = Arc::new(MappedFile::new(File::open(&self.args.archive)?));
            let verify = match self.args.verify {
                VerifyArg::Group => Verify::Group,
                VerifyArg::All => Verify::All,
                VerifyArg::Touched => Verify::Touched,
            };
            let archive = Archive::read_from(file)?.ok_or("no index")?.with_verify(verify);
            let mut options = RestoreOptions::default();
            if let Some(workers) = self.args.workers {
                options = options.with_workers(workers);
            }
            let restore = LazyRestore::new(archive, options);
            Ok(match memory {
                Memory::Prefetched => restore.prefetch(Touches::read(self.windows.as_bytes())?),
                Memory::Mapping | Memory::Archive => restore,
            })
        }

        fn drop_files(&self) -> Result<(), Box<dyn Error>> {
            for path in [&self.args.image, &self.args.archive] {
                self.drop_file(path)?;
            }
            Ok(())
        }

        fn drop_file(&self, path: &Path) -> Result<(), Box<dyn Error>> {
            let file = File::open(path)?;
            let mut left = 0;
            for _ in 0..100 {
                left = system::drop_from_cache(&file)?;
                if left == 0 {
                    return Ok(());
                }
                // Pages that are being read ahead cannot be dropped yet.
                thread::sleep(Duration::from_millis(10));
            }
            Err(format!("{}: {left} pages stay in the page cache", path.display()).into())
        }
    }
}
