//! A running process, by the files of `/proc/PID`.

pub(crate) mod elf_core;
mod error;
mod maps;
mod pagemap;
mod reader;
mod registers;
pub(crate) mod state;
mod stop;
mod windows;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{CWD, Dir, Mode, OFlags, openat};
use rustix::io::Errno;
use trueno_zram_io::read_process_memory;

pub(crate) use error::ProcessError;
pub(crate) use maps::MapsLine;
pub(crate) use pagemap::Wanted;
pub(crate) use reader::{MemoryReader, Selection};
pub(crate) use registers::registers_of;
pub(crate) use stop::Stopped;
pub(crate) use windows::{ReadProcess, Windows};

/// A process whose memory can be read. The files are opened together, so all are of one process even if its number goes
/// to another.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Its command name.
    pub(crate) command: String,
    dir: OwnedFd,
    maps: File,
    pagemap: File,
    memory: File,
}

/// A source of a process's pages: `/proc`, or a test. Several threads read from it.
pub(crate) trait MemorySource: Sync {
    /// Fills in entries of the pagemap, from the page at `address` on. Returns their number.
    fn page_entries(&self, address: u64, entries: &mut [u64]) -> io::Result<usize>;
    /// Reads memory. Returns the number of bytes; 0 if the process is no more.
    fn memory(&self, address: u64, bytes: &mut [u8]) -> io::Result<usize>;
}

impl Process {
    /// Finds a process and opens its memory.
    pub(crate) fn open(pid: u32) -> Result<Self, ProcessError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty()).map_err(|error| match error {
            Errno::NOENT | Errno::SRCH => ProcessError::NotThere { pid },
            error => ProcessError::io(pid, "", error.into()),
        })?;
        let status = read_text(&dir, "status").map_err(|e| ProcessError::io(pid, "status", e))?;
        let field = |name| status.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()));
        if field("State").is_some_and(|state| state.starts_with(['Z', 'X'])) {
            return Err(ProcessError::Ended { pid });
        }
        if field("VmSize").is_none() {
            return Err(ProcessError::NoMemory { pid });
        }
        let command = field("Name").unwrap_or_default().to_owned();
        let open = |name| open_in(&dir, name).map_err(|e| ProcessError::io(pid, name, e));
        // Open the most restricted file first; its error is the most useful.
        let (memory, maps, pagemap) = (open("mem")?, open("smaps")?, open("pagemap")?);
        Ok(Self { pid, command, dir, maps, pagemap, memory })
    }

    /// Returns its threads, by number.
    pub(crate) fn threads(&self) -> Result<Vec<u32>, ProcessError> {
        let failed = |error: Errno| ProcessError::io(self.pid, "task", error.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let tasks = openat(&self.dir, "task", flags, Mode::empty()).map_err(failed)?;
        let mut threads = Vec::new();
        for entry in Dir::read_from(&tasks).map_err(failed)? {
            threads.extend(entry.map_err(failed)?.file_name().to_str().ok().and_then(|name| name.parse::<u32>().ok()));
        }
        // The first is the one that debuggers show.
        threads.sort_unstable_by_key(|thread| (*thread != self.pid, *thread));
        Ok(threads)
    }

    /// The values that the kernel gave the program at its start.
    pub(crate) fn auxiliary_vector(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        open_in(&self.dir, "auxv")?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The ranges of its memory, as they are now.
    pub(crate) fn maps(&self) -> Result<Vec<MapsLine>, ProcessError> {
        let mut text = Vec::new();
        (&self.maps).read_to_end(&mut text).map_err(|e| ProcessError::io(self.pid, "smaps", e))?;
        let lines = MapsLine::parse_all(&String::from_utf8_lossy(&text)).ok_or_else(|| {
            let error = io::Error::new(io::ErrorKind::InvalidData, "a line is not of the form it should have");
            ProcessError::io(self.pid, "smaps", error)
        })?;
        if lines.is_empty() { Err(ProcessError::Gone { pid: self.pid }) } else { Ok(lines) }
    }
}

impl MemorySource for Process {
    fn page_entries(&self, address: u64, entries: &mut [u64]) -> io::Result<usize> {
        let mut bytes = vec![0; size_of_val(entries)];
        let offset = address / trueno_zram_core::PAGE_SIZE as u64 * size_of::<u64>() as u64;
        let read = self.pagemap.read_at(&mut bytes, offset)?;
        let words = bytes[..read].as_chunks().0;
        for (entry, word) in entries.iter_mut().zip(words) {
            *entry = u64::from_ne_bytes(*word);
        }
        Ok(words.len())
    }

    fn memory(&self, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
        match read_process_memory(self.pid, address, bytes) {
            // The number may have gone to another process, or this one may run another program: then its memory is no more.
            Ok(read) if read > 0 => Ok(if self.memory.read_at(&mut [0], address)? > 0 { read } else { 0 }),
            // A page that cannot be read, or a kernel without the call.
            _ => self.memory.read_at(bytes, address),
        }
    }
}

fn open_in(dir: &OwnedFd, name: &str) -> io::Result<File> {
    Ok(openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}

fn read_text(dir: &OwnedFd, name: &str) -> io::Result<String> {
    let mut bytes = Vec::new();
    open_in(dir, name)?.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
