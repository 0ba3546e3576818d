//! Bytes shared by many compressed pages: on the heap, or in huge pages if there are enough of them.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::MmapMut;

#[cfg(feature = "gpu")]
use crate::parallel_copy::{parallel_copy, parallel_copy_in};

/// Size of a huge page on common systems. With another size only the speed-up is lost.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A fixed number of bytes.
///
/// The system supplies fresh memory one page at a time, on first touch. On a virtual machine with 16 cores,
/// this takes 2.5 times as long as filling the memory with 4 KiB pages, and half as long with huge pages.
pub(crate) enum Storage {
    Heap(Vec<u8>),
    Mapped(HugePages),
}

/// Memory in huge pages, where the system has them. Only huge pages that would be full are requested.
pub(crate) struct HugePages(MmapMut);

/// Mappings in use. The system limits the mappings of a process, usually to 65,530. Each `HugePages` takes two, and the
/// rest of the process needs some too.
static MAPPINGS: MappingBudget = MappingBudget { taken: AtomicUsize::new(0), max: 8192 };

/// A counter with an upper limit.
struct MappingBudget {
    taken: AtomicUsize,
    max: usize,
}

impl MappingBudget {
    /// Takes one unit. Returns `false` if none is left.
    fn take(&self) -> bool {
        let more = |taken: usize| (taken < self.max).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give_back(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HugePages {
    /// Returns `None` if `len_bytes` is less than a huge page, or if too many mappings are in use.
    fn new(len_bytes: usize) -> Option<Self> {
        let full = len_bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if full == 0 || !MAPPINGS.take() {
            return None;
        }
        // Since 6.7, Linux aligns mappings to huge pages if their length is a multiple of the huge page size.
        let rounded = len_bytes.checked_next_multiple_of(HUGE_PAGE_BYTES);
        let Some(map) = rounded.and_then(|len_bytes| MmapMut::map_anon(len_bytes).ok()) else {
            MAPPINGS.give_back();
            return None;
        };
        #[cfg(target_os = "linux")]
        {
            // The last huge page would not be full, so it stays in small pages. Without huge pages the mapping still
            // works.
            let _ = map.advise_range(memmap2::Advice::HugePage, 0, full);
        }
        Some(Self(map))
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        MAPPINGS.give_back();
    }
}

impl Storage {
    /// Creates zeroed storage. Most of it is first touched when it is used.
    pub(crate) fn zeroed(len_bytes: usize) -> Self {
        match HugePages::new(len_bytes) {
            Some(pages) => Self::Mapped(pages),
            None => Self::Heap(vec![0; len_bytes]),
        }
    }

    /// Keeps only the first `len_bytes`. `touched_bytes` is how many bytes were ever used: untouched mapped memory
    /// takes no space.
    pub(crate) fn cut_to(self, len_bytes: usize, touched_bytes: usize) -> Self {
        match self {
            Self::Heap(mut bytes) => {
                bytes.truncate(len_bytes);
                bytes.shrink_to_fit();
                Self::Heap(bytes)
            }
            Self::Mapped(pages) if touched_bytes > len_bytes + len_bytes / 8 => {
                Self::Heap(pages.0[..len_bytes].to_vec())
            }
            Self::Mapped(pages) => Self::Mapped(pages),
        }
    }

    /// Copies `bytes` to the start, on all threads.
    #[cfg(feature = "gpu")]
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        parallel_copy(&mut self[..bytes.len()], bytes);
    }

    /// Like `put`, for untouched storage. If several threads touch a huge page first at the same time, the system
    /// zeroes one for each of them, so a single thread fills each huge page.
    #[cfg(feature = "gpu")]
    pub(crate) fn put_fresh(&mut self, bytes: &[u8]) {
        if matches!(self, Self::Heap(_)) {
            return self.put(bytes);
        }
        let to_boundary = self.as_ptr().align_offset(HUGE_PAGE_BYTES).min(bytes.len());
        let (head, tail) = bytes.split_at(to_boundary);
        let (head_places, tail_places) = self[..bytes.len()].split_at_mut(to_boundary);
        rayon::join(|| head_places.copy_from_slice(head), || parallel_copy_in(HUGE_PAGE_BYTES, tail_places, tail));
    }
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
            Self::Mapped(pages) => &pages.0,
        }
    }
}

impl DerefMut for Storage {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(pages) => &mut pages.0,
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
    fn storage_is_zeroed_and_writable() {
        for len_bytes in [0, 1, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, 2 * HUGE_PAGE_BYTES + 5000] {
            let mut storage = Storage::zeroed(len_bytes);
            assert!(storage.len() >= len_bytes && storage.iter().all(|byte| *byte == 0));
            storage.fill(7);
            assert!(storage[..len_bytes].iter().all(|byte| *byte == 7));
            assert_eq!(matches!(storage, Storage::Mapped(_)), len_bytes >= HUGE_PAGE_BYTES);
        }
    }

    #[test]
    fn cut_to_releases_the_rest() {
        const LEN: usize = 3 << 20;
        // Touched memory is returned; untouched memory takes no space.
        for (len_bytes, cut, touched, left) in [
            (5000, 100, 100, 100),
            (LEN, 100, 200, 100),
            (LEN, 1 << 20, LEN, 1 << 20),
            (LEN, 1 << 20, 1 << 20, 4 << 20),
        ] {
            let mut storage = Storage::zeroed(len_bytes);
            storage[..cut].fill(9);
            let cut_off = storage.cut_to(cut, touched);
            assert!(cut_off[..cut].iter().all(|byte| *byte == 9));
            assert_eq!(cut_off.len(), left, "{cut} of {len_bytes}, {touched} touched");
        }
    }

    #[cfg(feature = "gpu")]
    #[test]
    fn put_fresh_fills_storage_at_any_huge_page_alignment() {
        let bytes: Vec<u8> = (0..5 << 20).map(|i: usize| i.to_le_bytes()[0] ^ i.to_le_bytes()[2]).collect();
        for len_bytes in [0, 1, 4096, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1, bytes.len()] {
            let mut storage = Storage::zeroed(len_bytes + 7);
            storage.put_fresh(&bytes[..len_bytes]);
            assert!(
                storage[..len_bytes] == bytes[..len_bytes] && storage[len_bytes..].iter().all(|byte| *byte == 0),
                "{len_bytes} bytes"
            );
        }
    }

    #[test]
    fn budget_limits_the_units_taken() {
        let budget = MappingBudget { taken: AtomicUsize::new(0), max: 2 };
        assert_eq!([budget.take(), budget.take(), budget.take()], [true, true, false]);
        budget.give_back();
        assert_eq!([budget.take(), budget.take()], [true, false]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn storage_takes_at_most_two_mappings() {
        let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let before = mappings();
        let kept: Vec<Storage> = (0..500).map(|i| Storage::zeroed(HUGE_PAGE_BYTES + 4096 * i)).collect();
        // Other tests map memory too.
        assert!(mappings() <= before + 2 * kept.len() + 100, "{} mappings, {before} before", mappings());
    }
}
