//! Bytes that many compressed pages share: on the heap, or, where there are enough of them, in huge pages.

use std::fmt;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;
use rayon::prelude::*;

/// What a huge page has on the systems that matter. Elsewhere nothing but the gain is lost.
const HUGE_PAGE_BYTES: usize = 2 << 20;

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

    /// The first bytes alone. `touched_bytes` is how many were ever used: mapped memory that was not takes no room.
    pub(crate) fn cut_to(self, len_bytes: usize, touched_bytes: usize) -> Self {
        match self {
            Self::Heap(mut bytes) => {
                bytes.truncate(len_bytes);
                bytes.shrink_to_fit();
                Self::Heap(bytes)
            }
            Self::Mapped(map) if touched_bytes > len_bytes + len_bytes / 8 => Self::Heap(map[..len_bytes].to_vec()),
            Self::Mapped(map) => Self::Mapped(map),
        }
    }

    /// Copies bytes to the start of fresh storage, on all threads. A huge page comes zeroed to each thread that is among the first
    /// to touch it: one alone is to be the first.
    pub(crate) fn fill_fresh(&mut self, bytes: &[u8]) {
        let to_boundary = self.as_ptr().align_offset(HUGE_PAGE_BYTES);
        let (head, tail) = bytes.split_at(to_boundary.min(bytes.len()));
        let (head_places, tail_places) = self[..bytes.len()].split_at_mut(head.len());
        rayon::join(
            || head_places.copy_from_slice(head),
            || {
                let cuts = tail_places.par_chunks_mut(HUGE_PAGE_BYTES).zip(tail.par_chunks(HUGE_PAGE_BYTES));
                cuts.for_each(|(places, bytes)| places.copy_from_slice(bytes));
            },
        );
    }
}

/// Memory that is mapped in huge pages as far as they would be full, if the system will.
fn huge(len_bytes: usize) -> Option<MmapMut> {
    if len_bytes < HUGE_PAGE_BYTES {
        return None;
    }
    let map = MmapMut::map_anon(len_bytes).ok()?;
    #[cfg(target_os = "linux")]
    {
        // For all of it, so that neighbours become one mapping: their number is limited. Huge pages at the ends may then be
        // shared. Where there are none, it is memory all the same.
        let _ = map.advise(memmap2::Advice::HugePage);
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
#[allow(clippy::unwrap_used)]
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
        const LEN: usize = 3 << 20;
        // What was touched is given back; what was not takes no room.
        for (len_bytes, cut, touched, left) in
            [(5000, 100, 100, 100), (LEN, 100, 200, 100), (LEN, 1 << 20, LEN, 1 << 20), (LEN, 1 << 20, 1 << 20, LEN)]
        {
            let mut storage = Storage::zeroed(len_bytes);
            storage[..cut].fill(9);
            let cut_off = storage.cut_to(cut, touched);
            assert!(cut_off[..cut].iter().all(|byte| *byte == 9));
            assert_eq!(cut_off.len(), left, "{cut} of {len_bytes}, {touched} touched");
        }
    }

    #[test]
    fn fresh_storage_is_filled_wherever_huge_pages_start() {
        let bytes: Vec<u8> = (0..5 << 20).map(|i: usize| i.to_le_bytes()[0] ^ i.to_le_bytes()[2]).collect();
        for len_bytes in [0, 1, 4096, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1, bytes.len()] {
            let mut storage = Storage::zeroed(len_bytes + 7);
            storage.fill_fresh(&bytes[..len_bytes]);
            assert!(storage[..len_bytes] == bytes[..len_bytes] && storage[len_bytes..] == [0; 7], "{len_bytes} bytes");
        }
    }

    /// The number of mappings is limited: 65,530 by default. How many become one depends on the system.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_storage_is_one_mapping_at_most() {
        let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let before = mappings();
        let kept: Vec<Storage> = (0..500).map(|i| Storage::zeroed(HUGE_PAGE_BYTES + 4096 * i)).collect();
        // Other tests map memory, too.
        assert!(mappings() <= before + kept.len() + 100, "{} mappings, {before} before", mappings());
    }
}
