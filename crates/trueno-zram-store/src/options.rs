//! The options of a new store, and the sizes of its table and slabs that follow from them.

use trueno_zram_core::{Algorithm, PAGE_SIZE};

use crate::error::{Error, Result};
use crate::mapping::WORD_BYTES;
use crate::slots::allocator::{MAX_PAGES, Residency};
use crate::slots::geometry::{CLASS_COUNT, SLAB_BYTES, UNIT_BYTES};
use crate::slots::slab::BITMAP_WORDS;
use crate::slots::spare_slots::CELLS_BYTES;
use crate::table::entry::MAX_UNITS;
use crate::table::{TableHeader, table_bytes};

/// A limit that no store reaches.
pub(crate) const NO_LIMIT: u64 = u64::MAX;

/// The options of a new store.
///
/// ```
/// use trueno_zram_store::{Store, StoreOptions};
/// let store = Store::create(&StoreOptions::new(1 << 30).with_limit_bytes(64 << 20))?;
/// assert_eq!(store.stats().mm.mem_limit, 64 << 20);
/// # Ok::<(), trueno_zram_store::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreOptions {
    /// Length of the store in bytes: a multiple of 4096, at most 16 TiB.
    pub size_bytes: u64,
    /// The length up to which the store can [grow](crate::Store::resize); `None` for its length. Room for growth takes addresses, and no
    /// memory until it is used.
    pub max_size_bytes: Option<u64>,
    /// The most memory that compressed pages may take. Without a limit there is room for pages that do not shrink.
    pub limit_bytes: Option<u64>,
    /// The algorithm that compresses pages when they are written.
    pub algorithm: Algorithm,
    /// Takes all memory up to the limit at once and locks it, so that no request ever waits for memory.
    pub locked: bool,
}

impl StoreOptions {
    /// Options of an LZ4 store of this length, without a limit.
    ///
    /// ```
    /// use trueno_zram_store::StoreOptions;
    /// assert_eq!(StoreOptions::new(4096).limit_bytes, None);
    /// ```
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        Self { size_bytes, max_size_bytes: None, limit_bytes: None, algorithm: Algorithm::Lz4, locked: false }
    }

    /// Sets the length up to which the store can grow. One that is less than the length counts as the length.
    #[must_use]
    pub fn with_max_size_bytes(self, max_size_bytes: impl Into<Option<u64>>) -> Self {
        Self { max_size_bytes: max_size_bytes.into(), ..self }
    }

    /// Sets the most memory that compressed pages may take, or removes the limit with `None`.
    #[must_use]
    pub fn with_limit_bytes(self, limit_bytes: impl Into<Option<u64>>) -> Self {
        Self { limit_bytes: limit_bytes.into(), ..self }
    }

    /// Sets the algorithm that compresses pages when they are written.
    #[must_use]
    pub fn with_algorithm(self, algorithm: Algorithm) -> Self {
        Self { algorithm, ..self }
    }

    /// Sets whether all memory up to the limit is taken at once and locked.
    #[must_use]
    pub fn with_locked(self, locked: bool) -> Self {
        Self { locked, ..self }
    }

    /// Returns the memory that the store takes if no page shrinks, or at its limit, in bytes. It is an estimate for a store
    /// that is not locked: slabs that are not full take more until they are compacted.
    ///
    /// ```
    /// use trueno_zram_store::StoreOptions;
    /// let options = StoreOptions::new(1 << 30).with_limit_bytes(64 << 20);
    /// assert!((64 << 20..70 << 20).contains(&options.max_memory_bytes()?));
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Options`] for impossible options.
    pub fn max_memory_bytes(&self) -> Result<u64> {
        let TableHeader { pages, slabs, limit_bytes, .. } = self.header()?;
        let table = table_bytes(pages).ok_or_else(|| Error::Options("the store is too large".to_owned()))?;
        let of_slabs = limit_bytes.min(slabs * SLAB_BYTES as u64).min(raw_slab_bytes(pages) + PARTIAL_SLABS_BYTES);
        let bitmaps = slabs * (BITMAP_WORDS * WORD_BYTES) as u64;
        Ok(table as u64 + of_slabs + bitmaps + CELLS_BYTES as u64)
    }

    /// Checks the options and chooses the number of slabs.
    pub(crate) fn header(&self) -> Result<TableHeader> {
        let (pages, page_size) = (self.size_bytes / PAGE_SIZE as u64, PAGE_SIZE as u64);
        if pages == 0 || !self.size_bytes.is_multiple_of(page_size) || pages > MAX_PAGES {
            let size = self.size_bytes;
            let message = format!("the size must be a multiple of {page_size} from {page_size} to 16 TiB, not {size}");
            return Err(Error::Options(message));
        }
        let slab = SLAB_BYTES as u64;
        let limit_bytes = self.limit_bytes.unwrap_or(NO_LIMIT);
        let residency = if self.locked { Residency::Locked } else { Residency::OnDemand };
        let slabs = slab_count(pages, limit_bytes, residency);
        if slabs == 0 {
            return Err(Error::Options(format!("a limit of {limit_bytes} bytes is less than one slab of {slab}")));
        }
        let most = MAX_SLABS * slab;
        if slabs > MAX_SLABS {
            let needed = slabs.saturating_mul(slab);
            return Err(Error::Options(format!(
                "the store needs {needed} bytes of slots, more than the {most} that it can address; give a lower limit or size"
            )));
        }
        Ok(TableHeader { pages, slabs, limit_bytes, algorithm: self.algorithm, residency })
    }
}

/// The pages and slabs that there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) pages: u64,
    pub(crate) slabs: u64,
}

impl StoreOptions {
    /// Returns the room for growth, at least that of `header`. The options are those of `header`.
    pub(crate) fn room(&self, header: &TableHeader) -> Result<Room> {
        let max_size_bytes = self.max_size_bytes.unwrap_or(0).max(self.size_bytes);
        if !max_size_bytes.is_multiple_of(PAGE_SIZE as u64) || max_size_bytes / PAGE_SIZE as u64 > MAX_PAGES {
            let message = format!("the size to grow to must be a multiple of 4096 up to 16 TiB, not {max_size_bytes}");
            return Err(Error::Options(message));
        }
        let pages = max_size_bytes / PAGE_SIZE as u64;
        let slabs = slab_count(pages, header.limit_bytes, header.residency).clamp(header.slabs, MAX_SLABS);
        Ok(Room { pages, slabs })
    }
}

/// Returns the number of slabs of a store of this length.
pub(crate) fn slab_count(pages: u64, limit_bytes: u64, residency: Residency) -> u64 {
    let (classes, raw_slab_bytes) = (PARTIAL_SLABS_BYTES, raw_slab_bytes(pages));
    let bytes = match residency {
        Residency::Locked => limit_bytes.min(raw_slab_bytes + classes),
        // Twice the need, since slabs are not full before compaction. Unused slabs take no memory.
        Residency::OnDemand => limit_bytes.min(2 * raw_slab_bytes) + classes,
    };
    bytes / SLAB_BYTES as u64
}

/// The most slabs: entries of the table can address no more.
const MAX_SLABS: u64 = MAX_UNITS * UNIT_BYTES as u64 / SLAB_BYTES as u64;

/// One slab per class, which may be nearly empty.
const PARTIAL_SLABS_BYTES: u64 = (CLASS_COUNT * SLAB_BYTES) as u64;

/// Bytes of slabs for pages that do not shrink. A slab loses one of its 64 pages to the page numbers of its slots.
fn raw_slab_bytes(pages: u64) -> u64 {
    let slab = SLAB_BYTES as u64;
    pages.div_ceil(slab / PAGE_SIZE as u64 - 1) * slab
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_one_to_two_to_the_32_whole_pages() {
        let max_size = MAX_PAGES * PAGE_SIZE as u64;
        let is_possible = |size| StoreOptions::new(size).with_limit_bytes(1 << 30).header().is_ok();
        assert!([4096, 8192, max_size].into_iter().all(is_possible));
        for size in [0, 1, 4095, 4097, max_size - 1, max_size + 4096] {
            let impossible = StoreOptions::new(size).with_limit_bytes(1 << 30);
            assert!(matches!(impossible.header(), Err(Error::Options(_))), "{size}");
            assert!(matches!(impossible.max_memory_bytes(), Err(Error::Options(_))), "{size}");
        }
    }

    #[test]
    fn slabs_hold_all_pages_uncompressed_or_the_limit() {
        let slabs = |options: StoreOptions| options.header().unwrap().slabs;
        let whole = StoreOptions::new(1 << 30);
        // 63 pages per slab, and a slab per class.
        assert_eq!(slabs(whole), 2 * 4162 + 64);
        assert_eq!(slabs(whole.with_locked(true)), 4162 + 64);
        assert_eq!(slabs(whole.with_limit_bytes(4 << 20)), 16 + 64);
        assert_eq!(slabs(whole.with_limit_bytes(4 << 20).with_locked(true)), 16);
        let too_little = whole.with_limit_bytes(SLAB_BYTES as u64 - 1).with_locked(true);
        assert!(matches!(too_little.header(), Err(Error::Options(_))));
        let too_many = StoreOptions::new(MAX_PAGES * PAGE_SIZE as u64);
        assert!(matches!(too_many.header(), Err(Error::Options(_))), "an entry cannot address so many slots");
    }

    #[test]
    fn the_memory_is_that_of_table_slabs_bitmaps_and_spare_slots() {
        let options = StoreOptions::new(32 << 20).with_limit_bytes(4 << 20).with_locked(true);
        let (table, slabs, bitmaps, spare_slots) = ((8192 + 512) * 8, 4 << 20, 16 * 61 * 8, 64 * 64 * 64);
        assert_eq!(options.max_memory_bytes().unwrap(), table + slabs + bitmaps + spare_slots);
        // Without a limit, pages that do not shrink decide.
        let (table, slabs) = ((1 + 512) * 8, (1 + 64) * SLAB_BYTES as u64);
        let bitmaps = (2 + 64) * 61 * 8;
        assert_eq!(StoreOptions::new(4096).max_memory_bytes().unwrap(), table + slabs + bitmaps + spare_slots);
    }
}
