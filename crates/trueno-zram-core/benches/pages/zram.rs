//! The kernel's own page compressor: a zram device that is added for the measurement and removed after it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Instant;

use trueno_zram_core::{PAGE_SIZE, Page};

use crate::corpora::Corpus;
use crate::measure::gbps;
use crate::report::Row;

const CONTROL: &str = "/sys/class/zram-control";
const ALGORITHMS: [&str; 2] = ["lz4", "lzo-rle"];
const ROUNDS: usize = 7;

/// Pages in one request to the device.
const REQUEST_PAGES: usize = 256;

/// Pages where direct I/O wants them.
#[repr(C, align(4096))]
struct Request([Page; REQUEST_PAGES]);

/// A row for each algorithm that the kernel offers; none, with a line that says why, where zram cannot be used.
///
/// Pages go through the block layer, so the speeds are what a user of the device gets, not the bare codec's.
pub(crate) fn measure(corpus: &Corpus, bar: &Row) -> Vec<Row> {
    let mut rows = Vec::new();
    for algorithm in ALGORITHMS {
        match measure_one(corpus, algorithm, bar) {
            Ok(row) => rows.push(row),
            Err(e) => eprintln!("zram-{algorithm} is left out: {e}"),
        }
    }
    rows
}

fn measure_one(corpus: &Corpus, algorithm: &str, bar: &Row) -> io::Result<Row> {
    let device = Device::add(algorithm, corpus.len_bytes())?;
    let mut request = Box::new(Request([[0; PAGE_SIZE]; REQUEST_PAGES]));
    let (mut write_s, mut read_s) = (Vec::new(), Vec::new());
    let mut file = device.open()?;
    for _ in 0..ROUNDS {
        let mut seconds = 0.0;
        file.seek(SeekFrom::Start(0))?;
        for pages in corpus.pages.chunks(REQUEST_PAGES) {
            request.0[..pages.len()].copy_from_slice(pages);
            let start = Instant::now();
            file.write_all(request.0[..pages.len()].as_flattened())?;
            seconds += start.elapsed().as_secs_f64();
        }
        write_s.push(seconds);
        let mut seconds = 0.0;
        file.seek(SeekFrom::Start(0))?;
        for pages in corpus.pages.chunks(REQUEST_PAGES) {
            let start = Instant::now();
            file.read_exact(request.0[..pages.len()].as_flattened_mut())?;
            seconds += start.elapsed().as_secs_f64();
            if request.0[..pages.len()] != *pages {
                return Err(io::Error::other("the device does not restore its pages"));
            }
        }
        read_s.push(seconds);
    }
    let compress_gbps = gbps(corpus.len_bytes(), &write_s);
    let decompress_gbps = gbps(corpus.len_bytes(), &read_s);
    Ok(Row {
        corpus: corpus.name.clone(),
        engine: format!("zram-{algorithm}"),
        threads: 1,
        pages: corpus.pages.len(),
        same_filled: corpus.same_filled,
        ratio: corpus.len_bytes() as f64 / device.compressed_len_bytes()? as f64,
        compress_gbps,
        decompress_gbps,
        memcpy_gbps: None,
        compress_vs_c_lz4: compress_gbps / bar.compress_gbps,
        decompress_vs_c_lz4: decompress_gbps / bar.decompress_gbps,
        c_lz4_blocks_vs_c_lz4: None,
    })
}

/// A zram device of our own, gone again when dropped.
struct Device {
    number: u32,
}

impl Device {
    fn add(algorithm: &str, len_bytes: usize) -> io::Result<Self> {
        let number = fs::read_to_string(format!("{CONTROL}/hot_add"))?;
        let number = number.trim().parse().map_err(io::Error::other)?;
        // From here on, dropping the device removes it, also when a step below fails.
        let device = Self { number };
        fs::write(device.attribute("comp_algorithm"), algorithm)?;
        fs::write(device.attribute("disksize"), len_bytes.to_string())?;
        Ok(device)
    }

    fn attribute(&self, name: &str) -> String {
        format!("/sys/block/zram{}/{name}", self.number)
    }

    fn open(&self) -> io::Result<File> {
        let path = format!("/dev/zram{}", self.number);
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)
    }

    /// The second number of `mm_stat`: bytes after compression, without the allocator's waste.
    fn compressed_len_bytes(&self) -> io::Result<u64> {
        let stat = fs::read_to_string(self.attribute("mm_stat"))?;
        let second = stat.split_whitespace().nth(1).and_then(|number| number.parse().ok());
        second.ok_or_else(|| io::Error::other(format!("cannot read mm_stat: {stat}")))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let removed = fs::write(format!("{CONTROL}/hot_remove"), self.number.to_string());
        if let Err(e) = removed {
            eprintln!("zram{} could not be removed: {e}", self.number);
        }
    }
}
