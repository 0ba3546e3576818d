//! Reference speeds of files: plain writers of a new file, and the library's batches, to compare the tool with.
#![allow(unsafe_code, reason = "one of the writers maps its file")]

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rayon::ThreadPool;
use trueno_zram_core::{PAGE_SIZE, Page};

use crate::engine::Engine;
use crate::engines::cpu::Trueno;
use crate::error::{Error, Result};

/// Bytes that a thread writes at a time.
const PIECE_BYTES: usize = 4 << 20;

/// Threads that write, besides one and all: the kernel's locks make some fewer than all the fastest.
const SOME_THREADS: [usize; 3] = [4, 6, 8];

/// A figure in GB/s, and what it is of.
pub type Figure = (String, f64);

/// Writes a new file of this many bytes.
type Writer = fn(&File, usize, &ThreadPool) -> io::Result<()>;

/// Measures writers of a new file of `len_bytes` in `folder`, on up to `threads` threads: the best of `rounds` each.
///
/// ```
/// use std::num::NonZeroUsize;
///
/// let figures = trueno_bench::files::writers(&std::env::temp_dir(), 1 << 20, NonZeroUsize::MIN, 1)?;
/// assert!(figures.iter().all(|(_, gbps)| *gbps > 0.0));
/// # Ok::<(), trueno_bench::Error>(())
/// ```
///
/// # Errors
/// [`Error::Io`] if the file cannot be made or written; [`Error::Engine`] if threads cannot be made.
pub fn writers(folder: &Path, len_bytes: usize, threads: NonZeroUsize, rounds: usize) -> Result<Vec<Figure>> {
    let some = SOME_THREADS.into_iter().filter(|some| *some < threads.get());
    let mut ways = vec![("pwrite", write_pieces as Writer, 1), ("pwrite", write_pieces, threads.get())];
    ways.extend(some.chain([threads.get()]).map(|threads| ("mapped", write_mapped as Writer, threads)));
    let mut figures = Vec::new();
    for (name, way, threads) in ways {
        let pool = trueno_zram_core::build_pool(NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN));
        let pool = pool.map_err(Error::engine(name))?;
        let mut best = f64::INFINITY;
        for _ in 0..rounds {
            let failed = |source| Error::Io { place: folder.display().to_string(), source };
            let file =
                File::options().read(true).write(true).custom_flags(libc::O_TMPFILE).open(folder).map_err(failed)?;
            let start = Instant::now();
            way(&file, len_bytes, &pool).map_err(failed)?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        figures.push((format!("{name}, {}", crate::quantity::threads(threads)), len_bytes as f64 / best / 1e9));
    }
    Ok(figures)
}

/// Measures the library's batches of these pages on the CPU: the best of `rounds` each.
///
/// # Errors
/// [`Error::Engine`] if the compressor fails.
pub fn batches(pages: &[Page], pool: &Arc<ThreadPool>, rounds: usize) -> Result<Vec<Figure>> {
    let mut engine = Trueno::cpu(pool)?;
    let mut restored = vec![[0; PAGE_SIZE]; pages.len()];
    let (mut compress_s, mut decompress_s) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..rounds {
        compress_s = compress_s.min(engine.compress(pages)?.as_secs_f64());
        decompress_s = decompress_s.min(engine.decompress(&mut restored)?.as_secs_f64());
    }
    let bytes = (pages.len() * PAGE_SIZE) as f64;
    let figure = |name: &str, seconds: f64| (name.to_owned(), bytes / seconds / 1e9);
    Ok(vec![figure("batches, compress", compress_s), figure("batches, decompress", decompress_s)])
}

/// Writes the file in pieces, each by the next thread that is free.
fn write_pieces(file: &File, len_bytes: usize, pool: &ThreadPool) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let write = || {
        let piece = vec![7; PIECE_BYTES];
        while let Some((at, len)) = take_piece(&next, len_bytes) {
            file.write_all_at(&piece[..len], at as u64)?;
        }
        Ok(())
    };
    pool.broadcast(|_| write()).into_iter().collect()
}

fn take_piece(next: &AtomicUsize, len_bytes: usize) -> Option<(usize, usize)> {
    let at = next.fetch_add(PIECE_BYTES, Ordering::Relaxed);
    (at < len_bytes).then(|| (at, PIECE_BYTES.min(len_bytes - at)))
}

/// Maps the whole file and copies into it on all threads. A file system that is full would end the process.
fn write_mapped(file: &File, len_bytes: usize, pool: &ThreadPool) -> io::Result<()> {
    file.set_len(len_bytes as u64)?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at a place that the system chooses touches no memory in use.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), len_bytes, protection, flags, file.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let (start, next) = (mapped as usize, AtomicUsize::new(0));
    pool.broadcast(|_| {
        let piece = vec![7; PIECE_BYTES];
        while let Some((at, len)) = take_piece(&next, len_bytes) {
            let place = (start + at) as *mut u8;
            // SAFETY: the piece is within the mapping, and no other thread takes it.
            unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), place, len) };
        }
    });
    // SAFETY: the mapping was made with this length, and no thread uses it any more.
    let unmapped = unsafe { libc::munmap(mapped, len_bytes) };
    if unmapped == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_writer_and_both_directions_have_a_figure() {
        let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap());
        let threads = NonZeroUsize::new(5).unwrap();
        let figures = writers(&std::env::temp_dir(), (9 << 20) + 5, threads, 1).unwrap();
        let names: Vec<&str> = figures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["pwrite, 1 thread", "pwrite, 5 threads", "mapped, 4 threads", "mapped, 5 threads"]);
        let all = figures.into_iter().chain(batches(&[[7; PAGE_SIZE]; 100], &pool, 1).unwrap());
        assert!(all.into_iter().all(|(_, gbps)| gbps > 0.0));
    }
}
