//! Archives whose proof fails, or takes its time.
//!
//! An index that lies: a page that is in order by itself, and is not the page that a stream has there.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use trueno_zram_archive::{ContentHash, ReadAt};
use trueno_zram_core::{PAGE_SIZE, Page};

use crate::archive_of;

#[allow(dead_code, reason = "the tests of the format use more of it")]
#[path = "../../trueno-zram-archive/tests/support/forge.rs"]
mod forge;

use forge::Forged;

/// The place of the hidden block in its page.
const HIDDEN_AT: usize = 1000;
/// Bytes of a block beside its data: the size word before it, and the checksum after it.
const OVERHEAD: usize = 8;
const SIZE_WORD: usize = 4;
/// An index entry of an LZ4 block, without its length.
const LZ4: u16 = 3 << 13;

/// Returns bytes without any repetition.
fn random_page(seed: u64) -> Page {
    let mut word = seed;
    std::array::from_fn(|_| {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.to_be_bytes()[0]
    })
}

/// Returns an archive whose index says that page `at + 1` is another one, and that page: a block of it lies hidden inside of the raw
/// page `at`. The entries of pages `at` to `at + 2` are forged, and all others in order. Changes these pages to fit: a stream has
/// what `pages` is then.
///
/// # Panics
/// If the pages are not in one group.
#[must_use]
pub fn lying_archive(pages: &mut [Page], at: usize) -> (Vec<u8>, Page) {
    assert_eq!(at / 1024, (at + 2) / 1024, "pages of one group");
    let mut lie = random_page(2);
    lie[2000..].fill(0);
    let hidden = Forged::parse(&archive_of(&[lie])).blocks.remove(0).1;
    let mut hash = ContentHash::new();
    hash.update(&hidden);
    let size_word = u32::try_from(hidden.len()).expect("less than a page").to_le_bytes();
    let stored = [&size_word[..], &hidden, &hash.digest().to_le_bytes()].concat();
    pages[at] = random_page(1);
    pages[at][HIDDEN_AT..][..stored.len()].copy_from_slice(&stored);
    // Pages of a few bytes each.
    pages[at + 1] = std::array::from_fn(|byte| u8::from(byte % 16 == 3));
    pages[at + 2] = std::array::from_fn(|byte| u8::from(byte % 16 == 5));
    let mut forged = Forged::parse(&archive_of(pages));
    let len_of = |entry: u16| usize::from(entry & 0x1fff);
    let group = at / 1024;
    let entries_before = forged.groups[..group].iter().filter(|group| **group >> 63 == 0).count() * 1024;
    let entries = &mut forged.entries[entries_before + at % 1024..][..3];
    assert_eq!(entries[0] >> 13, 4, "the first one is raw");
    let total = PAGE_SIZE + len_of(entries[1]) + len_of(entries[2]);
    let before = HIDDEN_AT + SIZE_WORD - OVERHEAD;
    let lens = [before, hidden.len(), total - before - hidden.len()];
    for (entry, len) in entries.iter_mut().zip(lens) {
        assert!(len < PAGE_SIZE);
        *entry = LZ4 | u16::try_from(len).expect("less than a page");
    }
    (forged.build(), lie)
}

/// The reads that proofs take: longer ones than those of pages and entries.
const LONG_READ: usize = 2 * PAGE_SIZE;

/// An archive whose proofs, and other long reads, wait until they are released, or fail.
#[derive(Debug)]
pub struct HeldProofs {
    archive: Vec<u8>,
    /// `None` if they fail.
    is_released: Option<Mutex<bool>>,
    changed: Condvar,
}

impl HeldProofs {
    /// Holds proofs until [`release`](Self::release).
    #[must_use]
    pub fn new(archive: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { archive, is_released: Some(Mutex::new(false)), changed: Condvar::new() })
    }

    /// Lets proofs fail.
    #[must_use]
    pub fn failing(archive: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { archive, is_released: None, changed: Condvar::new() })
    }

    /// Lets all proofs go on.
    pub fn release(&self) {
        if let Some(is_released) = &self.is_released {
            *is_released.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.changed.notify_all();
        }
    }
}

impl ReadAt for HeldProofs {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        if bytes.len() > LONG_READ {
            let Some(is_released) = &self.is_released else { return Err(io::Error::other("of the test")) };
            let is_released = is_released.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.changed.wait_while(is_released, |is_released| !*is_released));
        }
        self.archive.read_exact_at(bytes, at)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.archive.len_bytes()
    }
}
