//! What a snapshot keeps of a stopped process beside its memory: for core files.
//!
//! It is a section of the archive's index ([`SECTION`]). Numbers are little-endian and have four bytes (u32) or eight (u64):
//!
//! ```text
//! version (u32, 1), machine of the ELF header (u32)
//! length (u32) and bytes of the auxiliary vector
//! number of threads (u32), and for each: number (u32), length (u32) and bytes of its general registers
//! number of mapped files (u32), and for each: start, end, offset in the file (u64), length (u32) and bytes of its name
//! ```

use crate::process::{MapsLine, Process, registers_of};

/// The section's name in the archive's index.
pub(crate) const SECTION: &str = "process-state";

/// Larger sections are rejected before they are read. 50,000 threads fit.
pub(crate) const MAX_BYTES: u64 = 16 << 20;

const VERSION: u32 = 1;

/// The registers and mapped files of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessState {
    /// `e_machine` of ELF files.
    pub(crate) machine: u16,
    /// `/proc/PID/auxv`.
    pub(crate) auxiliary_vector: Vec<u8>,
    pub(crate) threads: Vec<ThreadState>,
    pub(crate) files: Vec<MappedFile>,
}

/// The registers of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThreadState {
    pub(crate) number: u32,
    /// General registers, as the kernel and core files hold them.
    pub(crate) registers: Vec<u8>,
}

/// A file that is mapped into memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedFile {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Where the mapping starts in the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) name: String,
}

/// Why a section cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProcessStateError {
    #[error("unsupported process state version {0}; only version {VERSION} is supported")]
    Version(u32),
    #[error("the process state is truncated at byte {at}, in the {what}")]
    Truncated { at: usize, what: &'static str },
    #[error("the process state has an invalid {what} before byte {at}")]
    Invalid { at: usize, what: &'static str },
}

/// Returns `e_machine` of the programs of this machine; 0 for one that core files are not written for.
pub(crate) fn machine() -> u16 {
    match std::env::consts::ARCH {
        "x86_64" => 62,
        "aarch64" => 183,
        _ => 0,
    }
}

impl ProcessState {
    /// Reads the state of a process that is stopped. Threads whose registers cannot be read are left out.
    pub(crate) fn read(process: &Process, maps: &[MapsLine]) -> Self {
        let threads = process.threads().unwrap_or_default().into_iter();
        let threads = threads.filter_map(|number| Some(ThreadState { number, registers: registers_of(number).ok()? }));
        let files = maps.iter().filter(|line| line.name.starts_with('/')).map(|line| MappedFile {
            start: line.start,
            end: line.end,
            offset: line.offset,
            name: line.name.clone(),
        });
        Self {
            machine: machine(),
            auxiliary_vector: process.auxiliary_vector().unwrap_or_default(),
            threads: threads.collect(),
            files: files.collect(),
        }
    }

    /// Encodes the bytes of the section; `None` if there are too many.
    pub(crate) fn to_bytes(&self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let number = |out: &mut Vec<u8>, value: usize| {
            out.extend_from_slice(&u32::try_from(value).ok()?.to_le_bytes());
            Some(())
        };
        let text = |out: &mut Vec<u8>, bytes: &[u8]| {
            number(out, bytes.len())?;
            out.extend_from_slice(bytes);
            Some(())
        };
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&u32::from(self.machine).to_le_bytes());
        text(&mut out, &self.auxiliary_vector)?;
        number(&mut out, self.threads.len())?;
        for thread in &self.threads {
            out.extend_from_slice(&thread.number.to_le_bytes());
            text(&mut out, &thread.registers)?;
        }
        number(&mut out, self.files.len())?;
        for file in &self.files {
            for value in [file.start, file.end, file.offset] {
                out.extend_from_slice(&value.to_le_bytes());
            }
            text(&mut out, file.name.as_bytes())?;
        }
        (out.len() as u64 <= MAX_BYTES).then_some(out)
    }

    /// Reads the bytes of the section.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, ProcessStateError> {
        let mut cursor = Cursor { bytes, at: 0 };
        let version = cursor.word("version")?;
        if version != VERSION {
            return Err(ProcessStateError::Version(version));
        }
        let machine = cursor.word("machine")?.try_into().map_err(|_| cursor.invalid("machine"))?;
        let auxiliary_vector = cursor.text("auxiliary vector")?.to_vec();
        let (mut threads, mut files) = (Vec::new(), Vec::new());
        // Lists grow with what is read, not with what is claimed.
        for _ in 0..cursor.word("number of threads")? {
            let number = cursor.word("number of a thread")?;
            threads.push(ThreadState { number, registers: cursor.text("registers")?.to_vec() });
        }
        for _ in 0..cursor.word("number of files")? {
            let [start, end, offset] = [cursor.long("file")?, cursor.long("file")?, cursor.long("file")?];
            let name = std::str::from_utf8(cursor.text("name of a file")?);
            let name = name.map_err(|_| cursor.invalid("name of a file"))?.to_owned();
            if start >= end || name.contains('\0') {
                return Err(cursor.invalid("file"));
            }
            files.push(MappedFile { start, end, offset, name });
        }
        if cursor.at < bytes.len() {
            return Err(cursor.invalid("end"));
        }
        Ok(Self { machine, auxiliary_vector, threads, files })
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], ProcessStateError> {
        let bytes = self.bytes[self.at..].get(..len).ok_or(ProcessStateError::Truncated { at: self.at, what })?;
        self.at += len;
        Ok(bytes)
    }

    fn word(&mut self, what: &'static str) -> Result<u32, ProcessStateError> {
        Ok(u32::from_le_bytes(self.take(4, what)?.try_into().expect("four bytes")))
    }

    fn long(&mut self, what: &'static str) -> Result<u64, ProcessStateError> {
        Ok(u64::from_le_bytes(self.take(8, what)?.try_into().expect("eight bytes")))
    }

    fn text(&mut self, what: &'static str) -> Result<&'a [u8], ProcessStateError> {
        let len = self.word(what)? as usize;
        self.take(len, what)
    }

    fn invalid(&self, what: &'static str) -> ProcessStateError {
        ProcessStateError::Invalid { at: self.at, what }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> ProcessState {
        let file = |start, name: &str| MappedFile { start, end: start + 0x2000, offset: 0x1000, name: name.into() };
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
        assert!(matches!(ProcessState::from_bytes(&longer), Err(ProcessStateError::Invalid { what: "end", .. })));
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
        assert_eq!(ProcessState::from_bytes(&[2, 0, 0, 0]), Err(ProcessStateError::Version(2)));
    }
}
