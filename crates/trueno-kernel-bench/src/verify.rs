//! Checks what the kernels made, on the CPU, with C lz4.

use rayon::prelude::*;
use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
use trueno_test_pages::oracle;
use trueno_zram_core::{PAGE_SIZE, Page, fill_page};

/// What packed pages came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) held_bytes: u64,
    pub(crate) raw: u64,
    pub(crate) same_filled: u64,
}

/// Checks every entry, and decodes the first `decode` pages.
pub(crate) fn packed(entries: &[PackedEntry], bytes: &[u8], input: &[u8], decode: usize) -> Result<Packed, String> {
    let pages = input.as_chunks::<PAGE_SIZE>().0;
    let check = |(i, (entry, page)): (usize, (&PackedEntry, &Page))| {
        let (kind, block) = find(*entry, bytes).map_err(|e| format!("page {i}: {e}"))?;
        if i < decode && !decodes(kind, block, page) {
            return Err(format!("page {i}: the {kind:?} block of {} bytes is another page", block.len()));
        }
        Ok(Packed {
            held_bytes: block.len() as u64,
            raw: (kind == PageKind::Raw).into(),
            same_filled: (kind == PageKind::SameFilled).into(),
        })
    };
    no_overlap(entries)?;
    entries.par_iter().zip(pages).enumerate().map(check).try_reduce(Packed::default, |a, b| {
        Ok(Packed {
            held_bytes: a.held_bytes + b.held_bytes,
            raw: a.raw + b.raw,
            same_filled: a.same_filled + b.same_filled,
        })
    })
}

fn find(entry: PackedEntry, bytes: &[u8]) -> Result<(PageKind, &[u8]), String> {
    if !entry.is_placed() {
        return Err(format!("its entry {:#018x} is not complete", entry.bits()));
    }
    let (kind, len_bytes) = (entry.kind(), usize::from(entry.len_bytes()));
    if kind == PageKind::Zstd || !kind.held_len_bytes().contains(&len_bytes) {
        return Err(format!("a {kind:?} page of {len_bytes} bytes"));
    }
    let start = usize::try_from(entry.offset_bytes()).map_err(|e| e.to_string())?;
    let block = bytes.get(start..start + len_bytes).ok_or("it lies outside the output")?;
    Ok((kind, block))
}

fn decodes(kind: PageKind, block: &[u8], page: &Page) -> bool {
    let mut decoded = [0xa5; PAGE_SIZE];
    match kind {
        PageKind::Raw => block == page,
        PageKind::SameFilled => {
            let Ok(word) = block.try_into() else { return false };
            fill_page(&mut decoded, word);
            decoded == *page
        }
        PageKind::Lz4 => oracle::c_lz4_decompress(block, &mut decoded) == Some(PAGE_SIZE) && decoded == *page,
        PageKind::Zstd => false,
    }
}

fn no_overlap(entries: &[PackedEntry]) -> Result<(), String> {
    let place = |entry: &PackedEntry| (entry.offset_bytes(), entry.offset_bytes() + u64::from(entry.len_bytes()));
    let mut places: Vec<(u64, u64)> = entries.iter().map(place).collect();
    places.par_sort_unstable();
    match places.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        Some(pair) => Err(format!("two pages share the bytes at {}", pair[1].0)),
        None => Ok(()),
    }
}

/// Checks that every page was accepted, and that the first `compare` of them are right.
pub(crate) fn decoded(decoded: &[u8], status: &[u32], input: &[u8], compare: usize) -> Result<(), String> {
    if let Some(i) = status.iter().position(|status| *status != 0) {
        return Err(format!("page {i} was refused with status {}", status[i]));
    }
    let pages = decoded.as_chunks::<PAGE_SIZE>().0.par_iter().zip(input.as_chunks::<PAGE_SIZE>().0).take(compare);
    match pages.position_first(|(decoded, page)| decoded != page) {
        Some(i) => Err(format!("page {i} came out wrong")),
        None => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::index;

    fn sample() -> (Vec<PackedEntry>, Vec<u8>, Vec<u8>) {
        let page: Page = std::array::from_fn(|i| (i / 100).to_le_bytes()[0]);
        let noise: Page = std::array::from_fn(|i| (i * i * 7 + i / 3).to_le_bytes()[0] ^ (i >> 3).to_le_bytes()[0]);
        let (bytes, index) = index::pack(&[oracle::c_lz4_compress(&page), noise.to_vec()], 4);
        (index::from_bytes(&index), bytes, [page, noise, page, noise].concat())
    }

    #[test]
    fn right_pages_pass_and_are_counted() {
        let (entries, bytes, input) = sample();
        let found = packed(&entries, &bytes, &input, 4).unwrap();
        assert_eq!((found.raw, found.same_filled), (2, 0));
        assert!(found.held_bytes > 2 * 4096 && found.held_bytes < 2 * 4096 + 2000);
    }

    #[test]
    fn every_fault_is_found() {
        let (entries, bytes, input) = sample();
        let with = |i: usize, entry: PackedEntry| {
            let mut entries = entries.clone();
            entries[i] = entry;
            packed(&entries, &bytes, &input, 4).unwrap_err()
        };
        assert!(
            with(2, PackedEntry::from_bits(0)).contains("not complete")
                || with(2, PackedEntry::from_bits(0)).contains("share")
        );
        assert!(with(3, PackedEntry::new(bytes.len() as u64 + 16, 4096, PageKind::Raw)).contains("outside"));
        assert!(with(0, PackedEntry::new(0, 9, PageKind::SameFilled)).contains("SameFilled page of 9"));
        assert!(with(2, PackedEntry::new(0, entries[0].len_bytes(), PageKind::Lz4)).contains("share"));
        let mut spoilt = bytes.clone();
        spoilt[3] ^= 1;
        assert!(packed(&entries, &spoilt, &input, 4).unwrap_err().contains("page 0"));
        assert!(packed(&entries, &spoilt, &input, 0).is_ok(), "not decoded");
    }

    #[test]
    fn decoded_pages_are_compared() {
        let (_, _, input) = sample();
        assert_eq!(decoded(&input, &[0; 4], &input, 4), Ok(()));
        assert!(decoded(&input, &[0, 0, 3, 0], &input, 4).unwrap_err().contains("page 2 was refused with status 3"));
        let mut wrong = input.clone();
        wrong[4096] ^= 1;
        assert!(decoded(&wrong, &[0; 4], &input, 4).unwrap_err().contains("page 1"));
        assert_eq!(decoded(&wrong, &[0; 4], &input, 1), Ok(()));
    }
}
