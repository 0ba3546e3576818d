//! Checks that apply to any codec. The plain decoder and lz4_flex are the references.

use trueno_zram_core::gpu::FallbackStats;
use trueno_zram_core::lz4::decode_simple;
use trueno_zram_core::{BatchCodec, CompressedBatch, FILL_WORD_BYTES, PAGE_SIZE, Page, PageData, PageKind, fill_page};

use super::Proof;
use super::samples::{SampleSet, batch_of};
use crate::print::quantity;

/// The plain decoder, lz4_flex and the codec itself restore what the codec makes of the pages.
pub(super) fn round_trip(codec: &mut dyn BatchCodec, pages: &[Page]) -> Proof {
    let batch = compress(codec, pages)?;
    check_compressed(&batch, pages)?;
    check_restored(&decompress(codec, &batch)?, pages)?;
    Ok(format!(
        "{}, ratio {:.3}, read by the plain decoder and lz4_flex",
        quantity::pages(pages.len() as u64),
        batch.stats().ratio()
    ))
}

/// The codec restores what lz4_flex compressed.
pub(super) fn reads_foreign(codec: &mut dyn BatchCodec, set: &SampleSet) -> Proof {
    let (blocks, pages) = set.foreign_blocks();
    check_restored(&decompress(codec, &batch_of(&blocks))?, &pages)?;
    Ok(format!("{} of lz4_flex's blocks", quantity::count(pages.len() as u64)))
}

/// The codec refuses the damaged blocks that the plain decoder refuses, and restores the others to the same pages.
pub(super) fn judges_damage(codec: &mut dyn BatchCodec, set: &SampleSet) -> Proof {
    let (good, bad, pages) = sort_damaged(set.damaged());
    check_restored(&decompress(codec, &batch_of(&good))?, &pages)?;
    for block in &bad {
        check_refused(block, decompress(codec, &batch_of(std::slice::from_ref(block))))?;
    }
    let total = quantity::count((good.len() + bad.len()) as u64);
    Ok(format!("{total} blocks, {} refused", quantity::count(bad.len() as u64)))
}

/// Two codecs make the same bytes.
pub(super) fn same_bytes(one: &mut dyn BatchCodec, other: &mut dyn BatchCodec, pages: &[Page]) -> Proof {
    let (one, other) = (compress(one, pages)?, compress(other, pages)?);
    check_same(&one, &other)?;
    let held_bytes = quantity::count(one.stats().bytes_out);
    Ok(format!("{}, {held_bytes} bytes", quantity::pages(pages.len() as u64)))
}

fn compress(codec: &mut dyn BatchCodec, pages: &[Page]) -> Result<CompressedBatch, String> {
    let mut batch = CompressedBatch::new();
    codec.compress_into(pages, &mut batch, &()).map_err(|e| e.to_string())?;
    check_fallback(codec.fallback())?;
    Ok(batch)
}

fn decompress(codec: &mut dyn BatchCodec, batch: &CompressedBatch) -> Result<Vec<Page>, String> {
    let mut pages = vec![[0xee; PAGE_SIZE]; batch.len()];
    codec.decompress_into(batch, &mut pages, &()).map_err(|e| e.to_string())?;
    check_fallback(codec.fallback())?;
    Ok(pages)
}

/// Work that the CPU did instead of the device is a failure here.
fn check_fallback(fallback: Option<&FallbackStats>) -> Result<(), String> {
    let Some(fallback) = fallback.filter(|fallback| fallback.pages > 0 || fallback.last_reason.is_some()) else {
        return Ok(());
    };
    let reason = fallback.last_reason.as_deref().unwrap_or("no reason given");
    Err(format!("the CPU did {} pages: {reason}", fallback.pages))
}

/// Damaged blocks that the plain decoder takes and those that it refuses, and the pages of the first.
fn sort_damaged(damaged: Vec<Vec<u8>>) -> (Vec<Vec<u8>>, Vec<Vec<u8>>, Vec<Page>) {
    let mut pages = Vec::new();
    let (good, bad) = damaged.into_iter().partition(|block| {
        let mut page = [0; PAGE_SIZE];
        let taken = decode_simple(block, &mut page).is_ok();
        pages.extend(taken.then_some(page));
        taken
    });
    (good, bad, pages)
}

fn check_refused(block: &[u8], restored: Result<Vec<Page>, String>) -> Result<(), String> {
    match (restored, decode_simple(block, &mut [0; PAGE_SIZE])) {
        (Ok(_), Err(why)) => Err(format!("a damaged block of {} bytes is accepted, though {why}", block.len())),
        _ => Ok(()),
    }
}

fn check_same(one: &CompressedBatch, other: &CompressedBatch) -> Result<(), String> {
    check_count(one.len(), other.len())?;
    match one.iter().zip(other.iter()).position(|(one, other)| one != other) {
        Some(page) => Err(format!("page {page} differs")),
        None => Ok(()),
    }
}

/// Decoders other than the codec's own restore every page.
fn check_compressed(batch: &CompressedBatch, pages: &[Page]) -> Result<(), String> {
    check_count(batch.len(), pages.len())?;
    let mut pairs = batch.iter().zip(pages).enumerate();
    pairs.try_for_each(|(i, (data, page))| check_by_others(data, page).map_err(|wrong| format!("page {i}: {wrong}")))
}

fn check_by_others(data: PageData<'_>, page: &Page) -> Result<(), String> {
    let bytes = data.bytes();
    let mut decoded = [0xa5; PAGE_SIZE];
    match data.kind() {
        PageKind::Raw => decoded.copy_from_slice(bytes),
        PageKind::SameFilled => {
            let word: [u8; FILL_WORD_BYTES] = bytes.try_into().map_err(|_| "its word has another length")?;
            fill_page(&mut decoded, word);
        }
        PageKind::Lz4 => {
            decode_simple(bytes, &mut decoded).map_err(|e| format!("the plain decoder refuses its block: {e}"))?;
            let mut foreign = [0x5a; PAGE_SIZE];
            let len_bytes = lz4_flex::block::decompress_into(bytes, &mut foreign);
            if len_bytes.map_err(|e| format!("lz4_flex refuses its block: {e}"))? != PAGE_SIZE || foreign != *page {
                return Err("lz4_flex restores another page from its block".into());
            }
        }
        PageKind::Zstd => return Err("it became a Zstandard frame".into()),
    }
    if decoded == *page { Ok(()) } else { Err("the plain decoder restores another page from its block".into()) }
}

fn check_restored(restored: &[Page], pages: &[Page]) -> Result<(), String> {
    check_count(restored.len(), pages.len())?;
    match restored.iter().zip(pages).position(|(restored, page)| restored != page) {
        Some(i) => {
            let at = restored[i].iter().zip(&pages[i]).position(|(restored, byte)| restored != byte).unwrap_or(0);
            Err(format!("page {i} is restored with another byte {at}"))
        }
        None => Ok(()),
    }
}

fn check_count(given: usize, expected: usize) -> Result<(), String> {
    if given == expected { Ok(()) } else { Err(format!("{given} pages instead of {expected}")) }
}

#[cfg(test)]
mod tests {
    use trueno_zram_core::{CpuBatchCompressor, IndexEntry};

    use super::*;

    fn sample() -> (SampleSet, CompressedBatch) {
        let set = SampleSet::small();
        let batch = CpuBatchCompressor::default().compress(&set.pages).unwrap();
        (set, batch)
    }

    fn changed(batch: &CompressedBatch, change: impl FnOnce(&mut Vec<u8>, &mut Vec<IndexEntry>)) -> CompressedBatch {
        let (mut arena, mut index) = (batch.arena().to_vec(), batch.index().to_vec());
        change(&mut arena, &mut index);
        CompressedBatch::from_parts(arena, index).unwrap()
    }

    #[test]
    fn a_sound_codec_passes() {
        let (set, _) = sample();
        let (mut codec, mut other) = (CpuBatchCompressor::default(), CpuBatchCompressor::default());
        round_trip(&mut codec, &set.pages).unwrap();
        reads_foreign(&mut codec, &set).unwrap();
        judges_damage(&mut codec, &set).unwrap();
        same_bytes(&mut codec, &mut other, &set.pages).unwrap();
    }

    #[test]
    fn faults_of_a_compressor_are_seen() {
        let (set, batch) = sample();
        check_compressed(&batch, &set.pages).unwrap();
        let changes_a_block = changed(&batch, |arena, index| {
            let last = index.iter().rfind(|entry| entry.kind == PageKind::Lz4).unwrap();
            // The last byte of a block is a literal: the block is valid, but another page's.
            arena[usize::try_from(last.offset).unwrap() + usize::from(last.len_bytes) - 1] ^= 1;
        });
        let loses_a_page = changed(&batch, |_, index| index.truncate(index.len() - 1));
        for faulty in [changes_a_block, loses_a_page] {
            assert!(check_compressed(&faulty, &set.pages).is_err());
            assert!(check_same(&faulty, &batch).is_err());
        }
    }

    #[test]
    fn faults_of_a_decompressor_are_seen() {
        let (set, _) = sample();
        let mut restored = set.pages.clone();
        check_restored(&restored, &set.pages).unwrap();
        restored.last_mut().unwrap()[4095] ^= 1;
        assert!(check_restored(&restored, &set.pages).unwrap_err().contains("byte 4095"));
        restored.pop();
        assert!(check_restored(&restored, &set.pages).is_err());
        let (_, bad, _) = sort_damaged(set.damaged());
        assert!(check_refused(&bad[0], Ok(vec![[0; PAGE_SIZE]])).unwrap_err().contains("is accepted"));
        check_refused(&bad[0], Err("refused".into())).unwrap();
    }

    #[test]
    fn work_of_the_cpu_instead_of_the_device_is_a_failure() {
        assert_eq!(check_fallback(None), Ok(()));
        assert_eq!(check_fallback(Some(&FallbackStats::default())), Ok(()));
        let stood_in = FallbackStats { pages: 7, last_reason: Some("cuX".into()), ..FallbackStats::default() };
        assert_eq!(check_fallback(Some(&stood_in)), Err("the CPU did 7 pages: cuX".into()));
    }
}
