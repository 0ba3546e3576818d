//! The index that the kernels write and read: one 64-bit entry a page.

use trueno_zram_core::{PAGE_SIZE, PageKind};

/// Where a page lies in the packed bytes, and how it is held.
///
/// Bits 0 to 39: offset in bytes, a multiple of 16; 40 to 52: length in bytes; 53 and 54: kind; 62 and 63: 3 once the
/// entry is complete.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry(pub(crate) u64);

/// Packed pages start at multiples of this.
pub(crate) const ALIGN_BYTES: usize = 16;

const LEN_BIT: u32 = 40;
const KIND_BIT: u32 = 53;
const STATE_BIT: u32 = 62;
const DONE: u64 = 3;

impl Entry {
    pub(crate) fn new(offset: usize, len_bytes: usize, kind: PageKind) -> Self {
        Self(offset as u64 | (len_bytes as u64) << LEN_BIT | (kind as u64) << KIND_BIT | DONE << STATE_BIT)
    }

    pub(crate) fn offset(self) -> usize {
        usize::try_from(self.0 & ((1 << LEN_BIT) - 1)).expect("40 bits fit")
    }

    pub(crate) fn len_bytes(self) -> usize {
        usize::try_from(self.0 >> LEN_BIT & 0x1fff).expect("13 bits fit")
    }

    /// The kind, if the entry is complete and the kernels have such a kind.
    pub(crate) fn kind(self) -> Option<PageKind> {
        let kind = u8::try_from(self.0 >> KIND_BIT & 3).ok().and_then(|bits| PageKind::try_from(bits).ok())?;
        (self.0 >> STATE_BIT == DONE && kind != PageKind::Zstd).then_some(kind)
    }
}

/// Entries as they lie in memory.
pub(crate) fn from_bytes(bytes: &[u8]) -> Vec<Entry> {
    bytes.as_chunks().0.iter().map(|bytes| Entry(u64::from_le_bytes(*bytes))).collect()
}

/// Packs blocks one after the other, `count` in all, and indexes them.
pub(crate) fn pack(blocks: &[Vec<u8>], count: u32) -> (Vec<u8>, Vec<u8>) {
    let (mut packed, mut index) = (Vec::new(), Vec::new());
    for block in blocks.iter().cycle().take(count as usize) {
        let kind = if block.len() < PAGE_SIZE { PageKind::Lz4 } else { PageKind::Raw };
        index.extend(Entry::new(packed.len(), block.len(), kind).0.to_le_bytes());
        packed.extend_from_slice(block);
        packed.resize(packed.len().next_multiple_of(ALIGN_BYTES), 0);
    }
    (packed, index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_fields() {
        for kind in [PageKind::SameFilled, PageKind::Lz4, PageKind::Raw] {
            let entry = Entry::new((1 << 40) - 16, 4096, kind);
            assert_eq!((entry.offset(), entry.len_bytes(), entry.kind()), ((1 << 40) - 16, 4096, Some(kind)));
        }
        // What the copy kernel writes.
        assert_eq!(Entry::new(0, 4096, PageKind::Raw).0, 0xC070_0000_0000_0000);
        assert_eq!(Entry(0).kind(), None, "an entry that nothing wrote");
        assert_eq!(Entry::new(0, 8, PageKind::Zstd).kind(), None);
    }

    #[test]
    fn packing_aligns_and_repeats() {
        let (packed, index) = pack(&[vec![1; 5], vec![2; 4096]], 3);
        let entries = from_bytes(&index);
        assert_eq!(packed.len(), 16 + 4096 + 16);
        assert_eq!(
            entries.iter().map(|e| (e.offset(), e.len_bytes())).collect::<Vec<_>>(),
            [(0, 5), (16, 4096), (4112, 5)]
        );
        assert_eq!(entries[1].kind(), Some(PageKind::Raw));
    }
}
