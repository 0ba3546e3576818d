//! The kernel's zram: a device that is added for the measurement and removed after it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use trueno_zram_core::{PAGE_SIZE, Page};

use super::cpu::Pool;
use crate::engine::Engine;
use crate::error::{Error, Result};

const CONTROL: &str = "/sys/class/zram-control";

/// Pages in one request to the device.
const REQUEST_PAGES: usize = 256;

/// Written to the last page of a device, so that a later run can tell that a device which nobody uses is one of ours.
const MARKER: &[u8] = b"trueno-zram bench: temporary device, safe to remove";

/// Pages aligned for direct I/O.
#[derive(Clone)]
#[repr(C, align(4096))]
struct Request([Page; REQUEST_PAGES]);

/// The kernel's zram. Pages go through the block layer, so the speeds are those of a user of the device, not those of the
/// codec alone.
pub(crate) struct Zram {
    pool: Pool,
    // Closed before the device is removed.
    file: File,
    device: ZramDevice,
    input: Vec<Request>,
    output: Vec<Request>,
    pages: usize,
    /// The memory of the device before any page was written.
    empty_bytes: u64,
}

impl Zram {
    pub(crate) const NAME: &str = "zram-lz4";

    /// Adds a device with room for `pages` pages.
    pub(crate) fn new(pages: usize, pool: &Pool) -> Result<Self> {
        // The last page is for the marker.
        let device = ZramDevice::add((pages + 1) * PAGE_SIZE)?;
        let file = device.open()?;
        let mut marker = Self::requests(1);
        marker[0].0[0][..MARKER.len()].copy_from_slice(MARKER);
        file.write_all_at(&marker[0].0[0], (pages * PAGE_SIZE) as u64).map_err(Error::io(device.path()))?;
        let pool = Pool::clone(pool);
        let mut zram = Self { pool, file, device, input: Vec::new(), output: Vec::new(), pages: 0, empty_bytes: 0 };
        zram.empty_bytes = zram.stored_bytes()?;
        Ok(zram)
    }

    /// The second number of `mm_stat`: bytes after compression, without the allocator's waste.
    fn stored_bytes(&self) -> Result<u64> {
        let stat = fs::read_to_string(self.device.attribute("mm_stat")).map_err(self.failed())?;
        let second = stat.split_whitespace().nth(1).and_then(|number| number.parse().ok());
        second.ok_or_else(|| self.failed()(io::Error::other(format!("cannot read mm_stat: {stat}"))))
    }

    fn requests(pages: usize) -> Vec<Request> {
        vec![Request([[0; PAGE_SIZE]; REQUEST_PAGES]); pages.div_ceil(REQUEST_PAGES)]
    }

    fn failed(&self) -> impl FnOnce(io::Error) -> Error + use<> {
        Error::io(self.device.path())
    }
}

/// The position of a request on the device, and the part of it that is pages.
fn span(request: usize, pages: usize) -> (u64, usize) {
    let first = request * REQUEST_PAGES;
    ((first * PAGE_SIZE) as u64, REQUEST_PAGES.min(pages - first) * PAGE_SIZE)
}

impl Engine for Zram {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    fn load(&mut self, pages: &[Page]) -> Result<()> {
        (self.input, self.output) = (Self::requests(pages.len()), Self::requests(pages.len()));
        self.pages = pages.len();
        for (request, pages) in self.input.iter_mut().zip(pages.chunks(REQUEST_PAGES)) {
            request.0[..pages.len()].copy_from_slice(pages);
        }
        Ok(())
    }

    fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
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

    fn held_bytes(&self) -> Result<u64> {
        Ok(self.stored_bytes()?.saturating_sub(self.empty_bytes))
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
        Ok(taken)
    }

    fn fetch(&mut self, pages: &mut [Page]) -> Result<()> {
        for (request, pages) in self.output.iter().zip(pages.chunks_mut(REQUEST_PAGES)) {
            pages.copy_from_slice(&request.0[..pages.len()]);
        }
        Ok(())
    }
}

/// A zram device of our own, removed when dropped.
struct ZramDevice {
    number: u32,
}

impl ZramDevice {
    fn add(len_bytes: usize) -> Result<Self> {
        let hot_add = format!("{CONTROL}/hot_add");
        let number = fs::read_to_string(&hot_add).and_then(|text| text.trim().parse().map_err(io::Error::other));
        // From here on, dropping the device removes it, also when a step below fails.
        let device = Self { number: number.map_err(Error::io(&hot_add))? };
        let set = |name: &str, value: String| {
            fs::write(device.attribute(name), value).map_err(Error::io(device.attribute(name)))
        };
        set("comp_algorithm", "lz4".to_owned())?;
        set("disksize", len_bytes.to_string())?;
        Ok(device)
    }

    /// All zram devices of this machine.
    fn numbers() -> Vec<u32> {
        let names = fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter_map(|name| name.to_str()?.strip_prefix("zram")?.parse().ok()).collect()
    }

    /// Returns whether this is a device of an earlier run: set up, and with our marker on its last page.
    fn is_ours(&self) -> bool {
        let number = |name: &str| fs::read_to_string(self.attribute(name)).ok()?.trim().parse::<u64>().ok();
        let Some(len_bytes) = number("disksize").filter(|len_bytes| *len_bytes >= PAGE_SIZE as u64) else {
            return false;
        };
        if number("initstate") != Some(1) {
            return false;
        }
        let mut last = Zram::requests(1);
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(self.path());
        let read = file.and_then(|file| file.read_exact_at(&mut last[0].0[0], len_bytes - PAGE_SIZE as u64));
        read.is_ok() && last[0].0[0].starts_with(MARKER)
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

impl Drop for ZramDevice {
    fn drop(&mut self) {
        // A device that stays is found by its marker in the next run.
        let _ = fs::write(format!("{CONTROL}/hot_remove"), self.number.to_string());
    }
}

/// Removes zram devices that an earlier run left because it was killed. Returns their paths.
///
/// A device is removed only if its last page has this program's marker. The kernel refuses to remove a device that is open,
/// so one that another run is using stays.
#[must_use]
pub fn remove_leftovers() -> Vec<String> {
    let mut removed = Vec::new();
    for number in ZramDevice::numbers() {
        // The destructor must not run for a device that may be someone else's.
        let device = std::mem::ManuallyDrop::new(ZramDevice { number });
        if device.is_ours() && fs::write(format!("{CONTROL}/hot_remove"), number.to_string()).is_ok() {
            removed.push(device.path());
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::engine::verify;
    use crate::engines::cpu::pool;

    #[test]
    fn requests_cover_the_pages_and_no_more() {
        assert_eq!(span(0, 1000), (0, 256 * 4096));
        assert_eq!(span(3, 1000), (3 * 256 * 4096, 232 * 4096));
    }

    /// Needs root and a kernel with zram: `cargo test -p trueno-bench -- --ignored zram`.
    #[test]
    #[ignore = "adds zram devices to the kernel"]
    fn a_device_is_measured_and_a_leftover_removed() {
        let pages: Vec<Page> = (0..300).map(|n| std::array::from_fn(|i| (i / 50 * n).to_le_bytes()[0])).collect();
        let pool = pool(NonZeroUsize::MIN).unwrap();
        let mut zram = Zram::new(pages.len(), &pool).unwrap();
        verify(&mut zram, &pages).unwrap();
        assert!((1..300 * 4096).contains(&zram.held_bytes().unwrap()));
        let path = zram.device.path();
        assert!(!remove_leftovers().contains(&path), "a device in use stays");
        // As if the process were killed: the file is closed, the device stays.
        let Zram { file, device, .. } = zram;
        drop(file);
        std::mem::forget(device);
        assert!(remove_leftovers().contains(&path));
        assert!(!std::path::Path::new(&path).exists());
    }
}
