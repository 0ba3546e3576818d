//! Checked global memory: named buffers, far apart in a 64-bit address space.
//!
//! Blocks run in parallel, so each buffer consists of atomic 64-bit words, with a mask of written bytes per word. A
//! load or store of 8 or 16 aligned bytes is one or two plain moves. A narrower store exchanges its word, so that bytes
//! that another block writes at the same time are kept. Loads acquire and stores release, which is more order than a
//! device gives, but hides no fault that the interpreter looks for.

use super::fault::Location;
use super::narrow::{low8, low32};
use crate::types::StateSpace;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Distance of buffers. An overrun of one by less than this hits no other.
const SPACING_LOG2: u32 = 40;

/// Bytes that an atomic accesses.
pub(super) const ATOMIC_BYTES: u32 = 4;

/// A buffer of a [`DeviceMemory`].
///
/// ```
/// use trueno_gpu::interp::DeviceMemory;
/// let mut memory = DeviceMemory::new();
/// let first = memory.add("first", &[0; 8]);
/// let second = memory.add("second", &[0; 8]);
/// assert_ne!(first, second);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BufferId(usize);

/// A requested buffer byte that was never written.
///
/// ```
/// use trueno_gpu::interp::DeviceMemory;
/// let mut memory = DeviceMemory::new();
/// let out = memory.add_uninit("out", 4);
/// assert_eq!(memory.bytes(out).unwrap_err().to_string(), "buffer `out`: byte 0 was never written");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("buffer `{buffer}`: byte {offset} was never written")]
pub struct UnwrittenByte {
    /// Name of the buffer.
    pub buffer: String,
    /// The first such byte.
    pub offset: usize,
}

/// The global memory of a launch.
///
/// ```
/// use trueno_gpu::interp::DeviceMemory;
/// let mut memory = DeviceMemory::new();
/// let input = memory.add("input", b"four");
/// let output = memory.add_uninit("output", 2);
/// assert_eq!(memory.bytes(input).unwrap(), b"four");
/// memory.write(output, 1, b"x");
/// assert_eq!(memory.initialised(output), [false, true]);
/// assert_eq!(memory.bytes_or(output, b'?'), b"?x");
/// ```
#[derive(Debug, Default)]
pub struct DeviceMemory {
    buffers: Vec<NamedBuffer>,
}

#[derive(Debug)]
struct NamedBuffer {
    name: String,
    len_bytes: usize,
    words: Vec<AtomicU64>,
    /// One bit per byte of the word.
    written: Vec<AtomicU8>,
}

/// The problem with an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessProblem {
    OutOfBounds,
    Misaligned,
    /// Address of the first byte that was never written.
    UnwrittenByte(u64),
}

impl DeviceMemory {
    /// Makes a memory without buffers.
    ///
    /// ```
    /// let memory = trueno_gpu::interp::DeviceMemory::new();
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a buffer with these bytes.
    ///
    /// ```
    /// let mut memory = trueno_gpu::interp::DeviceMemory::new();
    /// let page = memory.add("page", &[7; 4096]);
    /// assert_eq!(memory.bytes(page).unwrap(), [7; 4096]);
    /// ```
    pub fn add(&mut self, name: &str, bytes: &[u8]) -> BufferId {
        let id = self.add_uninit(name, bytes.len());
        self.write(id, 0, bytes);
        id
    }

    /// Adds a buffer with unwritten contents. Reading a byte before writing it is a fault.
    ///
    /// # Panics
    /// If the buffer is larger than 1 TiB, the space between two buffers.
    ///
    /// ```
    /// let mut memory = trueno_gpu::interp::DeviceMemory::new();
    /// let out = memory.add_uninit("out", 16);
    /// assert!(memory.bytes(out).is_err());
    /// ```
    pub fn add_uninit(&mut self, name: &str, len_bytes: usize) -> BufferId {
        assert!(len_bytes < 1 << SPACING_LOG2, "buffer `{name}` is too large");
        let words = len_bytes.div_ceil(8);
        self.buffers.push(NamedBuffer {
            name: name.to_owned(),
            len_bytes,
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            written: (0..words).map(|_| AtomicU8::new(0)).collect(),
        });
        BufferId(self.buffers.len() - 1)
    }

    /// Writes bytes from the host.
    ///
    /// # Panics
    /// If they do not fit the buffer, or the buffer belongs to another memory.
    ///
    /// ```
    /// let mut memory = trueno_gpu::interp::DeviceMemory::new();
    /// let counter = memory.add("counter", &[9; 4]);
    /// memory.write(counter, 0, &[0; 4]);
    /// assert_eq!(memory.bytes(counter).unwrap(), [0; 4]);
    /// ```
    pub fn write(&mut self, id: BufferId, offset: usize, bytes: &[u8]) {
        let buffer = &mut self.buffers[id.0];
        let end = offset.checked_add(bytes.len()).filter(|&end| end <= buffer.len_bytes);
        assert!(end.is_some(), "{} bytes at {offset} do not fit buffer `{}`", bytes.len(), buffer.name);
        // Whole words at once, and the bytes before and after them one by one.
        let (before, rest) = bytes.split_at(bytes.len().min(offset.next_multiple_of(8) - offset));
        let (words, after) = rest.as_chunks::<8>();
        let first_word = offset.div_ceil(8);
        for (at, word) in (first_word..).zip(words) {
            *buffer.words[at].get_mut() = u64::from_le_bytes(*word);
            *buffer.written[at].get_mut() = u8::MAX;
        }
        let before = (offset..).zip(before);
        for (at, &byte) in before.chain(((first_word + words.len()) * 8..).zip(after)) {
            let shift = at % 8 * 8;
            let word = buffer.words[at / 8].get_mut();
            *word = *word & !(0xff << shift) | u64::from(byte) << shift;
            *buffer.written[at / 8].get_mut() |= 1 << (at % 8);
        }
    }

    /// Returns the bytes of the buffer.
    ///
    /// # Errors
    /// [`UnwrittenByte`] if one of them was never written.
    ///
    /// # Panics
    /// If the buffer belongs to another memory.
    ///
    /// ```
    /// let mut memory = trueno_gpu::interp::DeviceMemory::new();
    /// let id = memory.add("id", &[1, 2, 3]);
    /// assert_eq!(memory.bytes(id)?, [1, 2, 3]);
    /// # Ok::<(), trueno_gpu::interp::UnwrittenByte>(())
    /// ```
    pub fn bytes(&self, id: BufferId) -> Result<Vec<u8>, UnwrittenByte> {
        match self.initialised(id).iter().position(|written| !written) {
            Some(offset) => Err(UnwrittenByte { buffer: self.buffers[id.0].name.clone(), offset }),
            None => Ok(self.bytes_or(id, 0)),
        }
    }

    /// Returns the bytes of the buffer, with `fill` for bytes that were never written.
    ///
    /// # Panics
    /// If the buffer belongs to another memory.
    ///
    /// ```
    /// let mut memory = trueno_gpu::interp::DeviceMemory::new();
    /// let out = memory.add_uninit("out", 2);
    /// assert_eq!(memory.bytes_or(out, 0xee), [0xee; 2]);
    /// ```
    #[must_use]
    pub fn bytes_or(&self, id: BufferId, fill: u8) -> Vec<u8> {
        let buffer = &self.buffers[id.0];
        let mut bytes = Vec::with_capacity(buffer.words.len() * 8);
        for (word, written) in buffer.words.iter().zip(&buffer.written) {
            let (mut word, written) = (word.load(Ordering::Acquire).to_le_bytes(), written.load(Ordering::Acquire));
            if written != u8::MAX {
                for bit in (0..8).filter(|bit| written >> bit & 1 == 0) {
                    word[bit] = fill;
                }
            }
            bytes.extend_from_slice(&word);
        }
        bytes.truncate(buffer.len_bytes);
        bytes
    }

    /// Returns, for each byte of the buffer, whether it was written.
    ///
    /// # Panics
    /// If the buffer belongs to another memory.
    ///
    /// ```
    /// let mut memory = trueno_gpu::interp::DeviceMemory::new();
    /// let out = memory.add_uninit("out", 2);
    /// memory.write(out, 0, &[1]);
    /// assert_eq!(memory.initialised(out), [true, false]);
    /// ```
    #[must_use]
    pub fn initialised(&self, id: BufferId) -> Vec<bool> {
        let buffer = &self.buffers[id.0];
        let mut written = Vec::with_capacity(buffer.written.len() * 8);
        for mask in &buffer.written {
            let mask = mask.load(Ordering::Acquire);
            written.extend_from_slice(&std::array::from_fn::<_, 8, _>(|bit| mask >> bit & 1 == 1));
        }
        written.truncate(buffer.len_bytes);
        written
    }

    /// Returns the start of a buffer; `None` if it belongs to another memory.
    pub(super) fn address(&self, id: BufferId) -> Option<u64> {
        let index = u64::try_from(id.0).ok()?;
        (id.0 < self.buffers.len()).then_some((index + 1) << SPACING_LOG2)
    }

    /// Returns the buffer whose space contains an address, and the offset.
    #[inline]
    fn find(&self, address: u64) -> Option<(&NamedBuffer, usize)> {
        let index = usize::try_from((address >> SPACING_LOG2).checked_sub(1)?).ok()?;
        let offset = usize::try_from(address & ((1 << SPACING_LOG2) - 1)).ok()?;
        Some((self.buffers.get(index)?, offset))
    }

    /// Returns the buffer and word of an access that lies inside and is aligned.
    #[inline]
    fn check(&self, address: u64, bytes: u32) -> Result<(&NamedBuffer, usize), AccessProblem> {
        let (buffer, offset) = self.find(address).ok_or(AccessProblem::OutOfBounds)?;
        if offset + bytes as usize > buffer.len_bytes {
            return Err(AccessProblem::OutOfBounds);
        }
        if address & u64::from(bytes - 1) != 0 {
            return Err(AccessProblem::Misaligned);
        }
        Ok((buffer, offset / 8))
    }

    /// Loads 1 to 16 bytes, zero-extended.
    #[inline]
    pub(super) fn load(&self, address: u64, bytes: u32) -> Result<[u64; 2], AccessProblem> {
        let (buffer, word) = self.check(address, bytes)?;
        let low = buffer.load_word(word, address, bytes.min(8))?;
        let high = if bytes == 16 { buffer.load_word(word + 1, address + 8, 8)? } else { 0 };
        Ok([low, high])
    }

    /// Stores 1 to 16 bytes.
    #[inline]
    pub(super) fn store(&self, address: u64, bytes: u32, value: [u64; 2]) -> Result<(), AccessProblem> {
        let (buffer, word) = self.check(address, bytes)?;
        buffer.store_word(word, address, bytes.min(8), value[0]);
        if bytes == 16 {
            buffer.store_word(word + 1, address + 8, 8, value[1]);
        }
        Ok(())
    }

    /// Replaces 4 bytes by a function of them, atomically. Returns the old value.
    pub(super) fn atomic(&self, address: u64, f: impl Fn(u32) -> u32) -> Result<u32, AccessProblem> {
        let (buffer, word) = self.check(address, ATOMIC_BYTES)?;
        buffer.load_word(word, address, ATOMIC_BYTES)?;
        Ok(low32(buffer.exchange_word(word, address, ATOMIC_BYTES, |old| u64::from(f(low32(old))))))
    }

    /// Returns an address as faults show it.
    pub(super) fn location(&self, address: u64) -> Location {
        let found = self.find(address);
        Location {
            space: StateSpace::Global,
            address,
            name: found.map(|(buffer, _)| buffer.name.clone()),
            offset: found.map_or(0, |(_, offset)| offset as u64),
        }
    }
}

/// Returns the bits of an access inside its word: the shift, and the mask before the shift.
#[inline]
fn field(address: u64, bytes: u32) -> (u32, u64) {
    let shift = low32(address & 7) * 8;
    (shift, if bytes == 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 })
}

/// Returns the mask of the bytes of an access inside its word.
#[inline]
fn byte_mask(address: u64, bytes: u32) -> u8 {
    low8(((1 << bytes) - 1) << low32(address & 7))
}

impl NamedBuffer {
    /// Reads up to 8 bytes of a word. The mask of written bytes is stored last and read first, so a set bit guarantees
    /// the data.
    #[inline]
    fn load_word(&self, word: usize, address: u64, bytes: u32) -> Result<u64, AccessProblem> {
        let missing = byte_mask(address, bytes) & !self.written[word].load(Ordering::Acquire);
        if missing != 0 {
            return Err(AccessProblem::UnwrittenByte((address & !7) + u64::from(missing.trailing_zeros())));
        }
        let (shift, mask) = field(address, bytes);
        Ok(self.words[word].load(Ordering::Acquire) >> shift & mask)
    }

    #[inline]
    fn store_word(&self, word: usize, address: u64, bytes: u32, value: u64) {
        if bytes == 8 {
            self.words[word].store(value, Ordering::Release);
        } else {
            self.exchange_word(word, address, bytes, |_| value);
        }
        let mask = byte_mask(address, bytes);
        if self.written[word].load(Ordering::Acquire) & mask != mask {
            self.written[word].fetch_or(mask, Ordering::AcqRel);
        }
    }

    #[inline]
    fn exchange_word(&self, word: usize, address: u64, bytes: u32, f: impl Fn(u64) -> u64) -> u64 {
        let (shift, mask) = field(address, bytes);
        let word = &self.words[word];
        let mut old = word.load(Ordering::Acquire);
        loop {
            let new = old & !(mask << shift) | (f(old >> shift & mask) & mask) << shift;
            match word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(old) => return old >> shift & mask,
                Err(now) => old = now,
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_checked() {
        let mut memory = DeviceMemory::new();
        let id = memory.add_uninit("b", 13);
        let base = memory.address(id).unwrap();
        assert_eq!(memory.store(base + 4, 4, [0xdead_beef, 0]), Ok(()));
        assert_eq!(memory.load(base + 6, 2), Ok([0xdead, 0]));
        assert_eq!(memory.load(base + 2, 2), Err(AccessProblem::UnwrittenByte(base + 2)));
        assert_eq!(memory.load(base, 8), Err(AccessProblem::UnwrittenByte(base)));
        assert_eq!(memory.load(base + 5, 2), Err(AccessProblem::Misaligned));
        assert_eq!(memory.store(base + 12, 2, [0; 2]), Err(AccessProblem::OutOfBounds));
        assert_eq!(memory.store(base + 12, 1, [0x101, 0]), Ok(()));
        assert_eq!(memory.load(base + 12, 1), Ok([1, 0]));
        assert_eq!(memory.load(base - 1, 1), Err(AccessProblem::OutOfBounds));
        assert_eq!(memory.load(0, 1), Err(AccessProblem::OutOfBounds));
        assert_eq!(memory.load(u64::MAX, 1), Err(AccessProblem::OutOfBounds));
        assert_eq!(memory.atomic(base + 4, |v| v + 1), Ok(0xdead_beef));
        assert_eq!(memory.load(base + 4, 4), Ok([0xdead_bef0, 0]));
        assert_eq!(memory.atomic(base, |v| v), Err(AccessProblem::UnwrittenByte(base)));
    }

    #[test]
    fn sixteen_bytes_are_two_words() {
        let mut memory = DeviceMemory::new();
        let id = memory.add_uninit("b", 32);
        let base = memory.address(id).unwrap();
        assert_eq!(memory.store(base + 16, 16, [1, 2]), Ok(()));
        assert_eq!(memory.load(base + 24, 8), Ok([2, 0]));
        assert_eq!(memory.load(base + 8, 16), Err(AccessProblem::Misaligned));
        assert_eq!(memory.load(base, 16), Err(AccessProblem::UnwrittenByte(base)));
        assert_eq!(memory.initialised(id), [[false; 16], [true; 16]].concat());
    }
}
