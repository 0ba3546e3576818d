//! The kernel's own page compressor: a zram device that is added for the measurement and removed after it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use trueno_zram_core::{PAGE_SIZE, Page};

use crate::batch::BatchEngine;
use crate::error::{Error, Result};
use crate::pooled::Pool;

const CONTROL: &str = "/sys/class/zram-control";

/// Pages in one request to the device.
const REQUEST_PAGES: usize = 256;

/// Pages where direct I/O wants them.
#[derive(Clone)]
#[repr(C, align(4096))]
struct Request([Page; REQUEST_PAGES]);

/// The kernel's zram. Pages go through the block layer, so the speeds are what a user of the device gets, not the bare
/// codec's.
pub struct Zram {
    name: String,
    pool: Pool,
    // Closed before the device is removed.
    file: File,
    device: Device,
    input: Vec<Request>,
    output: Vec<Request>,
    pages: usize,
}

impl Zram {
    /// A device with room for `pages` pages, with one of the kernel's algorithms: `lz4`, `lzo-rle`.
    ///
    /// # Errors
    /// Where there is no zram, no right to use it, or no such algorithm.
    pub fn new(algorithm: &str, pages: usize, pool: &Pool) -> Result<Self> {
        let device = Device::add(algorithm, pages * PAGE_SIZE)?;
        let file = device.open()?;
        let name = format!("zram-{algorithm}");
        Ok(Self { name, pool: Pool::clone(pool), file, device, input: Vec::new(), output: Vec::new(), pages: 0 })
    }

    fn requests(pages: usize) -> Vec<Request> {
        vec![Request([[0; PAGE_SIZE]; REQUEST_PAGES]); pages.div_ceil(REQUEST_PAGES)]
    }

    fn failed(&self) -> impl FnOnce(io::Error) -> Error + use<> {
        Error::io(self.device.path())
    }
}

/// Where a request lies on the device, and how much of it is pages.
fn span(request: usize, pages: usize) -> (u64, usize) {
    let first = request * REQUEST_PAGES;
    ((first * PAGE_SIZE) as u64, REQUEST_PAGES.min(pages - first) * PAGE_SIZE)
}

impl BatchEngine for Zram {
    fn name(&self) -> &str {
        &self.name
    }

    fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
        if self.pages != pages.len() {
            (self.input, self.output) = (Self::requests(pages.len()), Self::requests(pages.len()));
            self.pages = pages.len();
        }
        for (request, pages) in self.input.iter_mut().zip(pages.chunks(REQUEST_PAGES)) {
            request.0[..pages.len()].copy_from_slice(pages);
        }
        let (file, input) = (&self.file, &self.input);
        let start = Instant::now();
        let written = self.pool.install(|| {
            input.par_iter().enumerate().try_for_each(|(i, request)| {
                let (at, len_bytes) = span(i, pages.len());
                file.write_all_at(&request.0.as_flattened()[..len_bytes], at)
            })
        });
        let taken = start.elapsed();
        written.map_err(self.failed())?;
        Ok(taken)
    }

    /// The second number of `mm_stat`: bytes after compression, without the allocator's waste.
    fn held_bytes(&self) -> Result<u64> {
        let stat = fs::read_to_string(self.device.attribute("mm_stat")).map_err(self.failed())?;
        let second = stat.split_whitespace().nth(1).and_then(|number| number.parse().ok());
        second.ok_or_else(|| self.failed()(io::Error::other(format!("cannot read mm_stat: {stat}"))))
    }

    fn decompress(&mut self, pages: &mut [Page]) -> Result<Duration> {
        let (file, output, count) = (&self.file, &mut self.output, pages.len());
        let start = Instant::now();
        let read = self.pool.install(|| {
            output.par_iter_mut().enumerate().try_for_each(|(i, request)| {
                let (at, len_bytes) = span(i, count);
                file.read_exact_at(&mut request.0.as_flattened_mut()[..len_bytes], at)
            })
        });
        let taken = start.elapsed();
        read.map_err(self.failed())?;
        for (request, pages) in self.output.iter().zip(pages.chunks_mut(REQUEST_PAGES)) {
            pages.copy_from_slice(&request.0[..pages.len()]);
        }
        Ok(taken)
    }
}

/// A zram device of our own, gone again when dropped.
struct Device {
    number: u32,
}

impl Device {
    fn add(algorithm: &str, len_bytes: usize) -> Result<Self> {
        let hot_add = format!("{CONTROL}/hot_add");
        let number = fs::read_to_string(&hot_add).and_then(|text| text.trim().parse().map_err(io::Error::other));
        // From here on, dropping the device removes it, also when a step below fails.
        let device = Self { number: number.map_err(Error::io(&hot_add))? };
        let set = |name: &str, value: String| {
            fs::write(device.attribute(name), value).map_err(Error::io(device.attribute(name)))
        };
        set("comp_algorithm", algorithm.to_owned())?;
        set("disksize", len_bytes.to_string())?;
        Ok(device)
    }

    fn attribute(&self, name: &str) -> String {
        format!("/sys/block/zram{}/{name}", self.number)
    }

    fn path(&self) -> String {
        format!("/dev/zram{}", self.number)
    }

    fn open(&self) -> Result<File> {
        let options = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(self.path());
        options.map_err(Error::io(self.path()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_cover_the_pages_and_no_more() {
        assert_eq!(span(0, 1000), (0, 256 * 4096));
        assert_eq!(span(3, 1000), (3 * 256 * 4096, 232 * 4096));
    }
}
