//! The index of packed pages, as it lies in memory.

use trueno_gpu::kernels::packed::{PACK_ALIGN_BYTES, PackedEntry, PageKind};
use trueno_zram_core::PAGE_SIZE;

/// Entries as they lie in memory.
pub(crate) fn from_bytes(bytes: &[u8]) -> Vec<PackedEntry> {
    bytes.as_chunks().0.iter().map(|bytes| PackedEntry::from_bits(u64::from_le_bytes(*bytes))).collect()
}

/// Where an entry's page ends, with the bytes that align the next one.
pub(crate) fn end_bytes(entry: PackedEntry) -> u64 {
    entry.offset_bytes() + u64::from(entry.len_bytes()).next_multiple_of(PACK_ALIGN_BYTES.into())
}

/// Packs blocks one after the other, `count` in all, and indexes them.
pub(crate) fn pack(blocks: &[Vec<u8>], count: u32) -> (Vec<u8>, Vec<u8>) {
    let (mut packed, mut index) = (Vec::new(), Vec::new());
    for block in blocks.iter().cycle().take(count as usize) {
        let kind = if block.len() < PAGE_SIZE { PageKind::Lz4 } else { PageKind::Raw };
        let len_bytes = u16::try_from(block.len()).expect("no block is longer than a page");
        index.extend(PackedEntry::new(packed.len() as u64, len_bytes, kind).bits().to_le_bytes());
        packed.extend_from_slice(block);
        packed.resize(packed.len().next_multiple_of(PACK_ALIGN_BYTES as usize), 0);
    }
    (packed, index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_kernel_writes_the_entry_of_a_raw_page() {
        assert_eq!(PackedEntry::new(0, 4096, PageKind::Raw).bits(), 0xC000_7000_0000_0000);
        assert!(include_str!("copy.ptx").contains("0xC000700000000000"));
        assert_eq!(PackedEntry::new(3 * 4096, 4096, PageKind::Raw).bits() & 0xffff_ffff, 3 * 256);
    }

    #[test]
    fn packing_aligns_and_repeats() {
        let (packed, index) = pack(&[vec![1; 5], vec![2; 4096]], 3);
        let entries = from_bytes(&index);
        assert_eq!(packed.len(), 16 + 4096 + 16);
        assert_eq!(
            entries.iter().map(|e| (e.offset_bytes(), e.len_bytes())).collect::<Vec<_>>(),
            [(0, 5), (16, 4096), (4112, 5)]
        );
        assert_eq!(entries[1].kind(), PageKind::Raw);
        assert_eq!(end_bytes(entries[2]), packed.len() as u64);
    }
}
