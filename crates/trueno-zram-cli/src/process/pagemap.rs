//! Entries of `/proc/PID/pagemap`: which pages of a range are worth reading.

/// Bits of an entry, by the kernel's `Documentation/admin-guide/mm/pagemap.rst`.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE_OR_SHARED: u64 = 1 << 61;

/// A selection of a range's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All that the process touched.
    Touched,
    /// Those that are its own: of a private mapping of a file, the pages that it wrote to.
    Own,
}

impl Wanted {
    /// Returns `true` if the page with this entry is selected.
    pub(super) fn takes(self, entry: u64) -> bool {
        let touched = entry & (PRESENT | SWAPPED) != 0;
        match self {
            Self::Touched => touched,
            Self::Own => touched && entry & FILE_OR_SHARED == 0,
        }
    }
}

/// Returns `true` if the page with this entry is in swap.
pub(super) fn is_swapped(entry: u64) -> bool {
    entry & SWAPPED != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_pages_are_present_or_swapped_and_own_ones_no_files() {
        for (entry, touched, own) in [
            (0, false, false),
            (1 << 55, false, false),
            (PRESENT | 0x1234, true, true),
            (SWAPPED, true, true),
            (PRESENT | FILE_OR_SHARED, true, false),
        ] {
            assert_eq!((Wanted::Touched.takes(entry), Wanted::Own.takes(entry)), (touched, own), "{entry:#x}");
        }
    }
}
