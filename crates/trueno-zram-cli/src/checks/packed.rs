//! Between batches and the packed form that the kernels read and write.

use trueno_gpu::kernels::packed::{PACK_ALIGN_BYTES, PackedEntry, PageStatus};
use trueno_zram_core::{CompressedBatch, IndexEntry, Page, PageKind};

/// The batch that a compression kernel left, if its index is whole and the pages lie in order, without gaps.
pub(super) fn unpack(index: &[u8], bytes: &[u8]) -> Result<CompressedBatch, String> {
    let mut entries = Vec::new();
    let mut end = 0u64;
    for (page, word) in index.as_chunks().0.iter().enumerate() {
        let entry = PackedEntry::from_bits(u64::from_le_bytes(*word));
        let kind = entry.kind();
        if kind == PageKind::Zstd {
            return Err(format!("page {page}: an LZ4 kernel wrote a Zstandard page"));
        }
        if !entry.is_placed() || entry.offset_bytes() != end {
            return Err(format!("page {page} is not at its place in the packed batch"));
        }
        entries.push(IndexEntry { offset: entry.offset_bytes(), len_bytes: entry.len_bytes(), kind });
        end += u64::from(entry.len_bytes()).next_multiple_of(PACK_ALIGN_BYTES.into());
    }
    let end = usize::try_from(end).map_err(|e| e.to_string())?;
    let bytes = bytes.get(..end).ok_or("the packed batch is longer than its buffer")?;
    CompressedBatch::from_parts(bytes.to_vec(), entries).map_err(|e| e.to_string())
}

/// The index and the bytes that a decompression kernel reads.
pub(super) fn pack(batch: &CompressedBatch) -> Result<(Vec<u8>, Vec<u8>), String> {
    let (mut index, mut bytes) = (Vec::new(), Vec::new());
    for (entry, data) in batch.index().iter().zip(batch.iter()) {
        if entry.kind == PageKind::Zstd {
            return Err("the LZ4 kernels do not read Zstandard frames".into());
        }
        let entry = PackedEntry::new(bytes.len() as u64, entry.len_bytes, entry.kind);
        index.extend(entry.bits().to_le_bytes());
        bytes.extend_from_slice(data.bytes());
        let aligned = bytes.len().next_multiple_of(PACK_ALIGN_BYTES as usize);
        bytes.resize(aligned, 0xdb);
    }
    Ok((index, bytes))
}

/// The pages that a decompression kernel restored.
pub(super) fn restored(status: &[u8], pages: &[u8]) -> Result<Vec<Option<Page>>, String> {
    let page_of = |(i, (code, page)): (usize, (&[u8; 4], &Page))| match PageStatus::from_code(u32::from_le_bytes(*code))
    {
        Some(PageStatus::Restored) => Ok(Some(*page)),
        Some(PageStatus::BadBlock) => Ok(None),
        Some(PageStatus::BadEntry) => Err(format!("page {i}: its index entry is refused")),
        None => Err(format!("page {i} has no status")),
    };
    status.as_chunks().0.iter().zip(pages.as_chunks().0).enumerate().map(page_of).collect()
}

#[cfg(test)]
mod tests {
    use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};

    use super::*;

    #[test]
    fn a_batch_comes_through_the_packed_form() {
        let pages: Vec<Page> = (0..9).map(|n| std::array::from_fn(|i| (i / 50 * n).to_le_bytes()[0])).collect();
        let batch = CpuBatchCompressor::default().compress(&pages).unwrap();
        let (index, bytes) = pack(&batch).unwrap();
        let back = unpack(&index, &bytes).unwrap();
        assert!(back.iter().eq(batch.iter()));
        // A gap, and an entry that no kernel finished.
        let mut gap = index.clone();
        gap[8] += 1;
        assert!(unpack(&gap, &bytes).unwrap_err().contains("page 1"));
        assert!(unpack(&[0; 8], &bytes).unwrap_err().contains("page 0"));
    }

    #[test]
    fn the_kernels_word_is_taken_for_each_page() {
        let pages = [7u8; 3 * PAGE_SIZE];
        let status = [0u32, 2, 0].map(u32::to_le_bytes);
        let restored_pages = restored(status.as_flattened(), &pages).unwrap();
        assert_eq!(restored_pages, [Some([7; PAGE_SIZE]), None, Some([7; PAGE_SIZE])]);
        assert!(restored(&[1, 0, 0, 0], &pages).is_err() && restored(&[9, 0, 0, 0], &pages).is_err());
    }
}
