//! ELF core files: where the pages of a snapshot go, and the headers and notes before them.

use trueno_zram_archive::address_map::{MappedRun, PageState, StoredMap, StoredMapping};
use trueno_zram_archive::process_state::{ProcessState, ThreadState};
use trueno_zram_core::PAGE_SIZE;

use crate::process::state;

/// Untouched memory of at most this length becomes a hole in the file; more of it is left out, as programs reserve terabytes.
const MAX_HOLE_BYTES: u64 = 16 << 20;

/// More segments than any process has mappings. They are kept in memory.
const MAX_SEGMENTS: usize = 1 << 20;

const HEADER_LEN: u16 = 64;
const SEGMENT_LEN: u16 = 56;
const SECTION_LEN: u16 = 64;

// Numbers of <elf.h>.
const CORE: u16 = 4;
const X86_64: u16 = 62;
const AARCH64: u16 = 183;
const LOAD: u32 = 1;
const NOTE: u32 = 4;
/// The flag `PF_R` of a segment.
const READABLE: u32 = 4;
/// The number of segments is in the first section header.
const MANY_SEGMENTS: u16 = 0xffff;
const NT_PRSTATUS: u32 = 1;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;

/// A core file of a snapshot.
#[derive(Debug)]
pub(crate) struct CoreFile {
    machine: u16,
    notes: Vec<u8>,
    segments: Vec<Segment>,
    parts: Vec<CorePart>,
}

/// A range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    address: u64,
    memory_len: u64,
    /// 0 for memory that is not in the file.
    file_len: u64,
    flags: u32,
}

impl Segment {
    /// Appends its program header. It begins at `offset` in the file.
    fn put(self, out: &mut Vec<u8>, kind: u32, offset: u64, align: u64) {
        put32(out, kind);
        put32(out, self.flags);
        for value in [offset, self.address, 0, self.file_len, self.memory_len, align] {
            put64(out, value);
        }
    }
}

/// A part of the file after the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CorePart {
    /// Pages of the archive.
    Pages { first: u64, count: u64 },
    /// Zeros, in bytes.
    Zeros(u64),
}

/// A snapshot that cannot become a core file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CoreError {
    #[error("core files are written for x86-64 and 64-bit ARM, not for ELF machine {0}")]
    Machine(u16),
    #[error("its address map has more than {MAX_SEGMENTS} ranges")]
    Segments,
    #[error("the registers of thread {thread} have {len_bytes} bytes; its machine has {expected}")]
    Registers { thread: u32, len_bytes: usize, expected: usize },
}

impl CoreFile {
    /// Plans the core file of a snapshot. Without a state it has no registers.
    pub(crate) fn new(map: &StoredMap, state: Option<&ProcessState>) -> Result<Self, CoreError> {
        let machine = state.map_or_else(state::machine, |state| state.machine);
        let registers_len = registers_len(machine)?;
        let mut core =
            Self { machine, notes: notes(map, state, registers_len)?, segments: Vec::new(), parts: Vec::new() };
        for mapping in map.mappings() {
            core.add(mapping);
            if core.segments.len() > MAX_SEGMENTS || core.parts.len() > 8 * MAX_SEGMENTS {
                return Err(CoreError::Segments);
            }
        }
        Ok(core)
    }

    fn add(&mut self, mapping: StoredMapping<'_>) {
        let permissions = mapping.flags.permissions();
        let flags = ['r', 'w', 'x'].into_iter().zip([READABLE, 2, 1]);
        let flags = flags.map(|(letter, bit)| if permissions.contains(letter) { bit } else { 0 }).sum();
        let mut open: Option<Segment> = None;
        for run in mapping.runs() {
            let MappedRun { start, pages, state, first_page, .. } = run;
            let len = pages * PAGE_SIZE as u64;
            let part = match state {
                PageState::Stored => Some(CorePart::Pages { first: first_page, count: pages }),
                PageState::Untouched if mapping.flags.is_anonymous() && len <= MAX_HOLE_BYTES => {
                    Some(CorePart::Zeros(len))
                }
                // Pages of a file, or pages that are lost: a debugger looks for them elsewhere, or says so.
                PageState::Untouched | PageState::Unreadable => None,
            };
            let Some(part) = part else {
                self.segments.extend(open.take());
                self.segments.push(Segment { address: start, memory_len: len, file_len: 0, flags });
                continue;
            };
            self.parts.push(part);
            let segment = open.get_or_insert(Segment { address: start, memory_len: 0, file_len: 0, flags });
            segment.memory_len += len;
            segment.file_len += len;
        }
        self.segments.extend(open);
    }

    /// Returns what stands before the pages: headers and notes, up to a page boundary.
    pub(crate) fn head(&self) -> Vec<u8> {
        let count = self.segments.len() + 1;
        let many = count >= usize::from(MANY_SEGMENTS);
        let sections_len = if many { usize::from(SECTION_LEN) } else { 0 };
        let notes_at = sections_at(count) + sections_len;
        let pages_at = (notes_at + self.notes.len()).next_multiple_of(PAGE_SIZE);
        let mut out = self.header(count, many);
        let notes = Segment { address: 0, memory_len: 0, file_len: self.notes.len() as u64, flags: READABLE };
        notes.put(&mut out, NOTE, notes_at as u64, 4);
        let mut at = pages_at as u64;
        for segment in &self.segments {
            segment.put(&mut out, LOAD, at, PAGE_SIZE as u64);
            at += segment.file_len;
        }
        if many {
            // The section that has the number of segments in its field `sh_info`.
            let mut section = [0; SECTION_LEN as usize];
            section[44..48].copy_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
            out.extend_from_slice(&section);
        }
        out.extend_from_slice(&self.notes);
        out.resize(pages_at, 0);
        out
    }

    fn header(&self, count: usize, many: bool) -> Vec<u8> {
        let mut out = Vec::new();
        // 64 bits, little-endian, version 1.
        out.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        put16(&mut out, CORE);
        put16(&mut out, self.machine);
        put32(&mut out, 1);
        put64(&mut out, 0);
        put64(&mut out, HEADER_LEN.into());
        put64(&mut out, if many { sections_at(count) as u64 } else { 0 });
        put32(&mut out, 0);
        put16(&mut out, HEADER_LEN);
        put16(&mut out, SEGMENT_LEN);
        put16(&mut out, if many { MANY_SEGMENTS } else { u16::try_from(count).unwrap_or(MANY_SEGMENTS) });
        put16(&mut out, if many { SECTION_LEN } else { 0 });
        put16(&mut out, u16::from(many));
        put16(&mut out, 0);
        out
    }

    /// Returns what follows the head, in order.
    pub(crate) fn parts(&self) -> &[CorePart] {
        &self.parts
    }
}

/// Returns where the headers of segments end.
fn sections_at(count: usize) -> usize {
    usize::from(HEADER_LEN) + count * usize::from(SEGMENT_LEN)
}

/// Returns the notes, in the order of the kernel's core files: the first thread comes before the process.
fn notes(map: &StoredMap, state: Option<&ProcessState>, registers_len: usize) -> Result<Vec<u8>, CoreError> {
    let mut out = Vec::new();
    let threads = state.map_or(&[][..], |state| &state.threads);
    let (first, others) = threads.split_at(threads.len().min(1));
    for thread in first {
        put_note(&mut out, NT_PRSTATUS, &thread_status(thread, map.pid, registers_len)?);
    }
    put_note(&mut out, NT_PRPSINFO, &process_info(map));
    if let Some(state) = state {
        put_note(&mut out, NT_AUXV, &state.auxiliary_vector);
        put_note(&mut out, NT_FILE, &mapped_files(state));
    }
    for thread in others {
        put_note(&mut out, NT_PRSTATUS, &thread_status(thread, map.pid, registers_len)?);
    }
    Ok(out)
}

/// The length of a machine's general registers: `elf_gregset_t`.
fn registers_len(machine: u16) -> Result<usize, CoreError> {
    match machine {
        X86_64 => Ok(27 * 8),
        AARCH64 => Ok(34 * 8),
        machine => Err(CoreError::Machine(machine)),
    }
}

/// `struct elf_prstatus`: signals and times, which are not known, then the registers. A debugger knows the machine by the
/// header, and looks for each register at its place.
fn thread_status(thread: &ThreadState, pid: u32, expected: usize) -> Result<Vec<u8>, CoreError> {
    const REGISTERS_AT: usize = 112;
    let len_bytes = thread.registers.len();
    if len_bytes != expected {
        return Err(CoreError::Registers { thread: thread.number, len_bytes, expected });
    }
    let mut status = vec![0; REGISTERS_AT];
    status[32..36].copy_from_slice(&thread.number.to_le_bytes());
    status[40..44].copy_from_slice(&pid.to_le_bytes());
    status.extend_from_slice(&thread.registers);
    // Floating-point registers: none.
    status.extend_from_slice(&[0; 8]);
    Ok(status)
}

/// `struct elf_prpsinfo`: the number and the name of the process.
fn process_info(map: &StoredMap) -> Vec<u8> {
    let mut info = vec![0; 136];
    info[1] = b'T';
    info[24..28].copy_from_slice(&map.pid.to_le_bytes());
    for (at, room) in [(40, 16), (56, 80)] {
        let name = map.command.as_bytes();
        let len = name.len().min(room - 1);
        info[at..at + len].copy_from_slice(&name[..len]);
    }
    info
}

/// Mapped files: their number, the unit of offsets, their places, their names.
fn mapped_files(state: &ProcessState) -> Vec<u8> {
    let mut out = Vec::new();
    put64(&mut out, state.files.len() as u64);
    put64(&mut out, PAGE_SIZE as u64);
    for file in &state.files {
        [file.start, file.end, file.offset / PAGE_SIZE as u64].into_iter().for_each(|value| put64(&mut out, value));
    }
    for file in &state.files {
        out.extend_from_slice(file.name.as_bytes());
        out.push(0);
    }
    out
}

fn put_note(out: &mut Vec<u8>, kind: u32, bytes: &[u8]) {
    const NAME: &[u8; 5] = b"CORE\0";
    put32(out, 5);
    put32(out, u32::try_from(bytes.len()).expect("a section is small"));
    put32(out, kind);
    for part in [&NAME[..], bytes] {
        out.extend_from_slice(part);
        out.resize(out.len().next_multiple_of(4), 0);
    }
}

fn put16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use trueno_zram_archive::address_map::{AddressMap, Consistency, Flags, Mapping};
    use trueno_zram_archive::process_state::FileMapping;

    use super::*;

    /// Two mappings side by side, and one of a file with an unreadable page.
    fn map() -> StoredMap {
        use PageState::{Stored, Unreadable, Untouched};
        let mapping = |start, flags, name: &str, runs: &[(u64, PageState)]| {
            let mut mapping = Mapping::new(start, flags, name);
            runs.iter().for_each(|&(pages, state)| mapping.push(pages, state));
            mapping
        };
        let (heap, constants, file) = (Flags::anonymous("rw-"), Flags::anonymous("r--"), Flags::of_file("r-x"));
        let map = AddressMap {
            pid: 4711,
            command: "server".into(),
            taken_unix_s: 1_800_000_000,
            consistency: Consistency::Stopped,
            mappings: vec![
                mapping(0x10000, heap, "[heap]", &[(3, Stored), (2, Untouched), (1, Stored)]),
                mapping(0x16000, constants, "", &[(2, Stored)]),
                mapping(0x7000_0000, file, "/lib/x.so", &[(1, Stored), (1, Unreadable), (300, Untouched)]),
            ],
        };
        StoredMap::from_bytes(map.to_bytes().unwrap()).unwrap()
    }

    fn state() -> ProcessState {
        let file = |start, name: &str| FileMapping { start, end: start + 0x2000, offset: 0x1000, name: name.into() };
        ProcessState {
            machine: 62,
            auxiliary_vector: vec![3; 32],
            threads: [7, 8].map(|number| ThreadState { number, registers: vec![0x11; 216] }).to_vec(),
            files: vec![file(0x40_0000, "/bin/program"), file(0x7f00_0000_0000, "/lib/libc.so.6")],
        }
    }

    fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
        bytes[at..at + len].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    /// Segments as type, offset, address, length in the file, length in memory.
    fn segments(head: &[u8]) -> Vec<[u64; 5]> {
        let count = match number(head, 56, 2) {
            0xffff => number(head, usize::try_from(number(head, 40, 8)).unwrap() + 44, 4),
            count => count,
        };
        let field = |segment: u64, at, len| number(head, 64 + usize::try_from(segment).unwrap() * 56 + at, len);
        (0..count)
            .map(|s| [field(s, 0, 4), field(s, 8, 8), field(s, 16, 8), field(s, 32, 8), field(s, 40, 8)])
            .collect()
    }

    #[test]
    fn segments_follow_the_mappings_and_the_pages_their_order() {
        let map = map();
        let core = CoreFile::new(&map, Some(&state())).unwrap();
        let head = core.head();
        assert_eq!((&head[..4], number(&head, 16, 2), number(&head, 18, 2)), (&b"\x7fELF"[..], 4, 62));
        assert_eq!(head.len() % PAGE_SIZE, 0);
        let (page, at) = (PAGE_SIZE as u64, head.len() as u64);
        let found = segments(&head);
        assert_eq!(found[0], [4, 64 + 6 * 56, 0, core.notes.len() as u64, 0]);
        let loads = [
            [1, at, 0x10000, 6 * page, 6 * page],
            [1, at + 6 * page, 0x16000, 2 * page, 2 * page],
            [1, at + 8 * page, 0x7000_0000, page, page],
            // A page that could not be read, and pages of a file.
            [1, at + 9 * page, 0x7000_0000 + page, 0, page],
            [1, at + 9 * page, 0x7000_0000 + 2 * page, 0, 300 * page],
        ];
        assert_eq!(found[1..], loads);
        let parts = [
            CorePart::Pages { first: 0, count: 3 },
            CorePart::Zeros(2 * page),
            CorePart::Pages { first: 3, count: 1 },
            CorePart::Pages { first: 4, count: 2 },
            CorePart::Pages { first: 6, count: 1 },
        ];
        assert_eq!(core.parts(), parts);
    }

    #[test]
    fn registers_that_no_machine_has_and_other_machines_are_refused() {
        let map = map();
        let mut wrong = state();
        wrong.threads[1].registers.pop();
        let refused = CoreError::Registers { thread: 8, len_bytes: 215, expected: 216 };
        assert_eq!(CoreFile::new(&map, Some(&wrong)).unwrap_err(), refused);
        let other = ProcessState { machine: 3, ..state() };
        assert_eq!(CoreFile::new(&map, Some(&other)).unwrap_err(), CoreError::Machine(3));
        assert!(CoreFile::new(&map, None).is_ok() || state::machine() == 0);
    }

    #[test]
    fn registers_of_another_machine_are_refused() {
        let map = map();
        for (machine, len_bytes, other) in [(X86_64, 216, 272), (AARCH64, 272, 216)] {
            let with = |len: usize| {
                let mut state = ProcessState { machine, ..state() };
                state.threads.iter_mut().for_each(|thread| thread.registers = vec![0x11; len]);
                CoreFile::new(&map, Some(&state))
            };
            assert!(with(len_bytes).is_ok());
            let refused = CoreError::Registers { thread: 7, len_bytes: other, expected: len_bytes };
            assert_eq!(with(other).unwrap_err(), refused);
        }
    }
}
