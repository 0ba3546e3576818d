//! The process state of a snapshot: registers and mapped files of a process that was stopped, for core files.
//!
//! ```
//! use trueno_zram_archive::process_state::{ProcessState, SECTION, ThreadState};
//! use trueno_zram_archive::{Archive, ArchiveWriter, WriteOptions};
//! let thread = ThreadState { number: 4711, registers: vec![0; 216] };
//! let state = ProcessState { machine: 62, threads: vec![thread], ..ProcessState::default() };
//! let mut writer = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
//! writer.add_section(SECTION, &state.to_bytes()?)?;
//! let archive = Archive::read_from(std::sync::Arc::new(writer.finish(None)?.0))?.expect("it has an index");
//! assert_eq!(ProcessState::read(&archive)?, Some(state));
//! # Ok::<(), trueno_zram_archive::Error>(())
//! ```
//!
//! It is a section of the archive's index ([`SECTION`]). Numbers are little-endian and have four bytes (u32) or eight (u64):
//!
//! ```text
//! version (u32, 1), machine of the ELF header (u32)
//! length (u32) and bytes of the auxiliary vector
//! number of threads (u32), and for each: number (u32), length (u32) and bytes of its general registers
//! number of mapped files (u32), and for each: start, end, offset in the file (u64), length (u32) and bytes of its name
//! ```

use crate::archive::Archive;
use crate::snapshot_section::{SectionCursor, SnapshotError, VERSION, check_len};

/// The section's name in the archive's index.
pub const SECTION: &str = "process-state";

/// The most bytes of a section. Larger ones are rejected before they are read. 50,000 threads fit.
pub const MAX_BYTES: u64 = 16 << 20;

/// The name of the section in errors.
const SECTION_WORDS: &str = "process state";

/// The registers and mapped files of a process.
///
/// ```
/// use trueno_zram_archive::process_state::{FileMapping, ProcessState, ThreadState};
/// let state = ProcessState {
///     machine: 62, // x86-64
///     threads: vec![ThreadState { number: 4711, registers: vec![0; 216] }],
///     ..ProcessState::default()
/// };
/// assert_eq!(ProcessState::from_bytes(&state.to_bytes()?)?, state);
/// # Ok::<(), trueno_zram_archive::SnapshotError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessState {
    /// `e_machine` of ELF files.
    pub machine: u16,
    /// `/proc/PID/auxv`.
    pub auxiliary_vector: Vec<u8>,
    /// Its threads. The one that has the number of the process comes first.
    pub threads: Vec<ThreadState>,
    /// The files that are mapped into its memory.
    pub files: Vec<FileMapping>,
}

/// The registers of a thread.
///
/// ```
/// use trueno_zram_archive::process_state::ThreadState;
/// let registers = vec![0; 27 * 8]; // NT_PRSTATUS of PTRACE_GETREGSET, on x86-64
/// assert_eq!(ThreadState { number: 4711, registers }.registers.len(), 216);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// The thread's number.
    pub number: u32,
    /// General registers, as the kernel and core files hold them.
    pub registers: Vec<u8>,
}

/// A file that is mapped into memory.
///
/// ```
/// use trueno_zram_archive::process_state::{FileMapping, ProcessState};
/// let file = FileMapping { start: 0x40_0000, end: 0x40_2000, offset: 0, name: "/usr/bin/server".into() };
/// let state = ProcessState { files: vec![file], ..ProcessState::default() };
/// assert!(state.to_bytes().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMapping {
    /// The first address.
    pub start: u64,
    /// The first address after it.
    pub end: u64,
    /// The offset of the mapping in the file, in bytes.
    pub offset: u64,
    /// Its path.
    pub name: String,
}

impl ProcessState {
    /// Reads the state that an archive has, or a delta in the archive of its stored pages; `None` if it has none.
    ///
    /// ```
    /// use trueno_zram_archive::process_state::{ProcessState, SECTION};
    /// use trueno_zram_archive::{Archive, ArchiveWriter, WriteOptions};
    /// let mut writer = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// writer.add_section(SECTION, &ProcessState::default().to_bytes()?)?;
    /// let archive = Archive::read_from(std::sync::Arc::new(writer.finish(None)?.0))?.expect("it has an index");
    /// assert_eq!(ProcessState::read(&archive)?, Some(ProcessState::default()));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Snapshot`](crate::Error::Snapshot); those of [`Archive::section`].
    pub fn read(archive: &Archive) -> crate::Result<Option<Self>> {
        let bytes = archive.section(SECTION, MAX_BYTES)?;
        Ok(bytes.map(|bytes| Self::from_bytes(&bytes)).transpose()?)
    }

    /// Encodes the state as the bytes of a section.
    ///
    /// ```
    /// use trueno_zram_archive::process_state::ProcessState;
    /// let bytes = ProcessState::default().to_bytes()?; // for `ArchiveWriter::add_section`
    /// assert_eq!(bytes.len(), 20);
    /// # Ok::<(), trueno_zram_archive::SnapshotError>(())
    /// ```
    ///
    /// # Errors
    /// [`SnapshotError::TooLarge`]; [`SnapshotError::File`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, SnapshotError> {
        let mut out = Vec::new();
        put(VERSION, &mut out);
        put(self.machine.into(), &mut out);
        put_sized(&self.auxiliary_vector, &mut out)?;
        put(count(self.threads.len())?, &mut out);
        for thread in &self.threads {
            put(thread.number, &mut out);
            put_sized(&thread.registers, &mut out)?;
        }
        put(count(self.files.len())?, &mut out);
        for file in &self.files {
            if !file.is_valid() {
                return Err(SnapshotError::File(file.clone()));
            }
            for value in [file.start, file.end, file.offset] {
                out.extend_from_slice(&value.to_le_bytes());
            }
            put_sized(file.name.as_bytes(), &mut out)?;
        }
        check_len(SECTION_WORDS, out.len(), MAX_BYTES)?;
        Ok(out)
    }

    /// Decodes the bytes of a section.
    ///
    /// ```
    /// use trueno_zram_archive::process_state::ProcessState;
    /// let bytes = ProcessState { machine: 62, ..ProcessState::default() }.to_bytes()?;
    /// assert_eq!(ProcessState::from_bytes(&bytes)?.machine, 62);
    /// assert!(ProcessState::from_bytes(&bytes[1..]).is_err());
    /// # Ok::<(), trueno_zram_archive::SnapshotError>(())
    /// ```
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let mut cursor = SectionCursor { section: SECTION_WORDS, bytes, at: 0 };
        let version = cursor.u32("version")?;
        cursor.check_version(version.into())?;
        let machine = cursor.u32("machine")?.try_into().map_err(|_| cursor.invalid("machine"))?;
        let auxiliary_vector = sized(&mut cursor, "auxiliary vector")?.to_vec();
        let (mut threads, mut files) = (Vec::new(), Vec::new());
        // Lists grow with what is read, not with what is claimed.
        for _ in 0..cursor.u32("number of threads")? {
            let number = cursor.u32("number of a thread")?;
            threads.push(ThreadState { number, registers: sized(&mut cursor, "registers")?.to_vec() });
        }
        for _ in 0..cursor.u32("number of files")? {
            let [start, end, offset] = [cursor.u64("file")?, cursor.u64("file")?, cursor.u64("file")?];
            let name_len = cursor.u32("name of a file")? as usize;
            let name = cursor.text(name_len, "name of a file")?.to_owned();
            let file = FileMapping { start, end, offset, name };
            if !file.is_valid() {
                return Err(cursor.invalid("file"));
            }
            files.push(file);
        }
        cursor.check_end()?;
        Ok(Self { machine, auxiliary_vector, threads, files })
    }
}

impl FileMapping {
    fn is_valid(&self) -> bool {
        self.start < self.end && !self.name.contains('\0')
    }
}

fn put(number: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Appends a length and the bytes.
fn put_sized(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), SnapshotError> {
    put(count(bytes.len())?, out);
    out.extend_from_slice(bytes);
    Ok(())
}

/// Returns the length of a list or text. Each element takes at least a byte.
fn count(len: usize) -> Result<u32, SnapshotError> {
    check_len(SECTION_WORDS, len, MAX_BYTES)?;
    Ok(u32::try_from(len).expect("at most `MAX_BYTES`"))
}

/// Reads bytes with their length before them.
fn sized<'a>(cursor: &mut SectionCursor<'a>, what: &'static str) -> Result<&'a [u8], SnapshotError> {
    let len = cursor.u32(what)? as usize;
    cursor.take(len, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ProcessState {
        let file = |start, name: &str| FileMapping { start, end: start + 0x2000, offset: 0x1000, name: name.into() };
        ProcessState {
            machine: 62,
            auxiliary_vector: vec![3; 32],
            threads: [7, 8].map(|number| ThreadState { number, registers: vec![0x11; 216] }).to_vec(),
            files: vec![file(0x40_0000, "/bin/program"), file(0x7f00_0000_0000, "/lib/libc.so.6")],
        }
    }

    #[test]
    fn a_state_comes_back_and_every_cut_of_it_is_refused() {
        let bytes = sample().to_bytes().unwrap();
        assert_eq!(ProcessState::from_bytes(&bytes), Ok(sample()));
        for len in 0..bytes.len() {
            assert!(ProcessState::from_bytes(&bytes[..len]).is_err(), "{len} bytes");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(matches!(ProcessState::from_bytes(&longer), Err(SnapshotError::Invalid { what: "end", .. })));
    }

    #[test]
    fn damaged_bytes_are_an_error_or_what_they_say() {
        let bytes = sample().to_bytes().unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] = 0xff;
            if let Ok(state) = ProcessState::from_bytes(&damaged) {
                assert_eq!(state.to_bytes().unwrap(), damaged, "byte {at}");
            }
        }
        assert_eq!(
            ProcessState::from_bytes(&[2, 0, 0, 0]),
            Err(SnapshotError::Version { section: SECTION_WORDS, version: 2 })
        );
    }

    #[test]
    fn states_that_no_reader_would_take_are_not_written() {
        let mut state = sample();
        state.auxiliary_vector = vec![0; usize::try_from(MAX_BYTES).unwrap()];
        assert!(matches!(state.to_bytes(), Err(SnapshotError::TooLarge { .. })));
        for (end, name) in [(0x1000, "/bin/a"), (0x2000, "/bin/a\0b")] {
            let file = FileMapping { start: 0x1000, end, offset: 0, name: name.into() };
            let state = ProcessState { files: vec![file.clone()], ..sample() };
            assert_eq!(state.to_bytes(), Err(SnapshotError::File(file)));
        }
    }
}
