//! Bytes that many compressed pages share: on the heap, or, where there are enough of them, in huge pages.

use std::fmt;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// What a huge page has on the systems that matter. Elsewhere nothing but the gain is lost.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A fixed number of bytes.
///
/// Fresh memory comes from the system a page at a time, when it is first touched. With 4 KiB pages that takes longer than to
/// fill it: by two and a half times on a virtual machine of 16 cores, in huge pages by half.
pub(crate) enum Storage {
    Heap(Vec<u8>),
    Mapped(MmapMut),
}

impl Storage {
    /// So many zero bytes, most of which are touched when they are first used.
    pub(crate) fn zeroed(len_bytes: usize) -> Self {
        match huge(len_bytes) {
            Some(map) => Self::Mapped(map),
            None => Self::Heap(vec![0; len_bytes]),
        }
    }

    /// The first bytes alone, without much memory for more.
    pub(crate) fn cut_to(self, len_bytes: usize) -> Self {
        match self {
            Self::Heap(mut bytes) => {
                bytes.truncate(len_bytes);
                bytes.shrink_to_fit();
                Self::Heap(bytes)
            }
            // Up to half as much again is reserved for more, and mostly was never touched.
            Self::Mapped(map) if len_bytes < map.len() / 2 => Self::Heap(map[..len_bytes].to_vec()),
            Self::Mapped(map) => Self::Mapped(map),
        }
    }
}

/// Memory that is mapped in huge pages as far as they would be full, if the system will.
fn huge(len_bytes: usize) -> Option<MmapMut> {
    let full = len_bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if full == 0 {
        return None;
    }
    // Linux puts what has a multiple of their length where huge pages can be; the rest of the last one is never touched.
    let map = MmapMut::map_anon(len_bytes.checked_next_multiple_of(HUGE_PAGE_BYTES)?).ok()?;
    #[cfg(target_os = "linux")]
    {
        // Where there are none, it is memory all the same.
        let _ = map.advise_range(memmap2::Advice::HugePage, 0, full);
    }
    Some(map)
}

impl Default for Storage {
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl From<Vec<u8>> for Storage {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Heap(bytes)
    }
}

impl Deref for Storage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(map) => map,
        }
    }
}

impl DerefMut for Storage {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(map) => map,
        }
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Storage({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_there_zero_and_can_be_changed() {
        for len_bytes in [0, 1, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, 2 * HUGE_PAGE_BYTES + 5000] {
            let mut storage = Storage::zeroed(len_bytes);
            assert!(storage.len() >= len_bytes && storage.iter().all(|byte| *byte == 0));
            storage.fill(7);
            assert!(storage[..len_bytes].iter().all(|byte| *byte == 7));
            assert_eq!(matches!(storage, Storage::Mapped(_)), len_bytes >= HUGE_PAGE_BYTES);
        }
    }

    #[test]
    fn what_is_cut_off_is_not_kept() {
        for (len_bytes, cut, most) in [(5000, 100, 100), (3 << 20, 100, 100), (3 << 20, 3_000_000, 4 << 20)] {
            let mut storage = Storage::zeroed(len_bytes);
            storage[..cut].fill(9);
            let cut_off = storage.cut_to(cut);
            assert!(cut_off[..cut].iter().all(|byte| *byte == 9) && cut_off.len() <= most, "{cut} of {len_bytes}");
        }
    }
}
