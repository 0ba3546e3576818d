//! What is proved of any codec. The plain decoder and C lz4 have the last word.

use trueno_test_pages::oracle;
use trueno_zram_core::lz4::decode_simple;
use trueno_zram_core::{CompressedBatch, FILL_WORD_BYTES, PAGE_SIZE, Page, PageData, PageKind, fill_page};

use super::samples::Set;
use super::{Codec, Proof};
use crate::quantity;

/// What the codec makes of pages, the plain decoder, C lz4 and the codec itself turn back into these pages.
pub(super) fn round_trip(codec: &mut impl Codec, pages: &[Page]) -> Proof {
    let batch = codec.compress(pages)?;
    if batch.len() != pages.len() {
        return Err(format!("{} pages became {}", pages.len(), batch.len()));
    }
    for (i, (data, page)) in batch.iter().zip(pages).enumerate() {
        check_by_others(data, page).map_err(|wrong| format!("page {i}: {wrong}"))?;
    }
    let restored = codec.decompress(&batch)?;
    check_restored(&restored, pages)?;
    Ok(format!(
        "{}, ratio {:.3}, read by the plain decoder and C lz4",
        quantity::pages(pages.len() as u64),
        batch.stats().ratio()
    ))
}

/// The codec restores what C lz4 compressed.
pub(super) fn reads_foreign(codec: &mut impl Codec, set: &Set) -> Proof {
    let (batch, pages) = set.foreign_blocks();
    check_restored(&codec.decompress(&batch)?, &pages)?;
    Ok(format!("{} of C lz4's blocks", quantity::count(pages.len() as u64)))
}

/// Of damaged blocks, the codec refuses those that the plain decoder refuses, and of the rest makes the same pages.
pub(super) fn judges_damage(codec: &mut impl Codec, set: &Set) -> Proof {
    let batch = set.damaged();
    let verdicts = codec.decompress(&batch)?;
    check_count(verdicts.len(), batch.len())?;
    let mut refused = 0u64;
    for (i, (data, verdict)) in batch.iter().zip(&verdicts).enumerate() {
        let mut page = [0; PAGE_SIZE];
        let expected = decode_simple(data.bytes(), &mut page);
        match (expected, verdict) {
            (Ok(()), Some(restored)) if *restored == page => {}
            (Ok(()), Some(_)) => return Err(format!("damaged block {i} becomes another page")),
            (Ok(()), None) => return Err(format!("damaged block {i} is refused, and is a page's")),
            (Err(_), None) => refused += 1,
            (Err(why), Some(_)) => return Err(format!("damaged block {i} is taken, though {why}")),
        }
    }
    Ok(format!("{} blocks, {} refused", quantity::count(batch.len() as u64), quantity::count(refused)))
}

/// Two codecs make the same bytes.
pub(super) fn same_bytes(one: &mut impl Codec, other: &mut impl Codec, pages: &[Page]) -> Proof {
    let (one, other) = (one.compress(pages)?, other.compress(pages)?);
    check_count(one.len(), other.len())?;
    match one.iter().zip(other.iter()).position(|(one, other)| one != other) {
        Some(page) => Err(format!("page {page} differs")),
        None => Ok(format!("{}, {} bytes", quantity::pages(pages.len() as u64), quantity::count(held_bytes(&one)))),
    }
}

fn held_bytes(batch: &CompressedBatch) -> u64 {
    batch.stats().bytes_out
}

/// That decoders which are not the codec's own make the page of what the codec made of it.
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
            if oracle::c_lz4_decompress(bytes, &mut foreign) != Some(PAGE_SIZE) {
                return Err("C lz4 refuses its block".into());
            }
            if foreign != *page {
                return Err("C lz4 makes another page of its block".into());
            }
        }
        PageKind::Zstd => return Err("it became a Zstandard frame".into()),
    }
    if decoded == *page { Ok(()) } else { Err("the plain decoder makes another page of its block".into()) }
}

fn check_restored(restored: &[Option<Page>], pages: &[Page]) -> Result<(), String> {
    check_count(restored.len(), pages.len())?;
    for (i, (restored, page)) in restored.iter().zip(pages).enumerate() {
        match restored {
            Some(restored) if restored == page => {}
            Some(restored) => {
                let at = restored.iter().zip(page).position(|(restored, byte)| restored != byte).unwrap_or(0);
                return Err(format!("page {i} comes back with another byte {at}"));
            }
            None => return Err(format!("page {i}: its block is refused")),
        }
    }
    Ok(())
}

fn check_count(given: usize, expected: usize) -> Result<(), String> {
    if given == expected { Ok(()) } else { Err(format!("{given} pages came back of {expected}")) }
}

#[cfg(test)]
mod tests {
    use trueno_zram_core::cpu::InstructionSet;
    use trueno_zram_core::{CompressedBatch, IndexEntry};

    use super::super::cpu::CpuCodec;
    use super::*;

    /// A sound codec with one fault.
    struct Broken {
        sound: CpuCodec,
        fault: Fault,
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Fault {
        None,
        ChangesABlock,
        ChangesAPage,
        LosesAPage,
        RefusesAPage,
        TakesAnything,
    }

    impl Codec for Broken {
        fn compress(&mut self, pages: &[Page]) -> Result<CompressedBatch, String> {
            let batch = self.sound.compress(pages)?;
            let (mut arena, mut index) = (batch.arena().to_vec(), batch.index().to_vec());
            if self.fault == Fault::ChangesABlock {
                let last: IndexEntry = *index.iter().rfind(|entry| entry.kind == PageKind::Lz4).ok_or("no block")?;
                // The last byte of a block is a literal: the block still is a page's, but another's.
                let at = usize::try_from(last.offset).unwrap() + usize::from(last.len_bytes) - 1;
                arena[at] ^= 1;
            }
            if self.fault == Fault::LosesAPage {
                index.pop();
            }
            CompressedBatch::from_parts(arena, index).map_err(|e| e.to_string())
        }

        fn decompress(&mut self, batch: &CompressedBatch) -> Result<Vec<Option<Page>>, String> {
            let mut pages = self.sound.decompress(batch)?;
            match self.fault {
                Fault::ChangesAPage => pages.last_mut().unwrap().as_mut().unwrap()[4095] ^= 1,
                Fault::RefusesAPage => *pages.last_mut().unwrap() = None,
                Fault::TakesAnything => pages.iter_mut().for_each(|page| *page = page.or(Some([0; PAGE_SIZE]))),
                _ => {}
            }
            Ok(pages)
        }
    }

    fn broken(fault: Fault) -> Broken {
        Broken { sound: CpuCodec::new(InstructionSet::detect()).unwrap(), fault }
    }

    #[test]
    fn a_sound_codec_passes() {
        let set = Set::small();
        round_trip(&mut broken(Fault::None), &set.pages).unwrap();
        reads_foreign(&mut broken(Fault::None), &set).unwrap();
        judges_damage(&mut broken(Fault::None), &set).unwrap();
        same_bytes(&mut broken(Fault::None), &mut broken(Fault::None), &set.pages).unwrap();
    }

    #[test]
    fn every_fault_is_seen() {
        let set = Set::small();
        for fault in [Fault::ChangesABlock, Fault::ChangesAPage, Fault::LosesAPage, Fault::RefusesAPage] {
            assert!(round_trip(&mut broken(fault), &set.pages).is_err(), "{fault:?}");
        }
        for fault in [Fault::ChangesAPage, Fault::RefusesAPage] {
            assert!(reads_foreign(&mut broken(fault), &set).is_err(), "{fault:?}");
        }
        assert!(judges_damage(&mut broken(Fault::TakesAnything), &set).unwrap_err().contains("is taken"));
        for fault in [Fault::ChangesABlock, Fault::LosesAPage] {
            assert!(same_bytes(&mut broken(fault), &mut broken(Fault::None), &set.pages).is_err(), "{fault:?}");
        }
    }
}
