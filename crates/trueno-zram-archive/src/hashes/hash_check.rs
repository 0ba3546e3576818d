//! Compares the hashes that an archive states with its pages, before a delta relies on them.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use rayon::prelude::*;
use trueno_zram_core::{AlignedPages, PAGE_SIZE, Page};

use crate::delta::PageArchive;
use crate::error::{Error, Result};
use crate::hashes::page_finder::{PageHashes, hash_group};
use crate::hashes::page_hash::PageHash;
use crate::index::layout::GROUP_PAGES;
use crate::pages::Pages;

/// The pages of an archive that [`PageHashes::check`] compares with their hashes.
///
/// ```
/// use trueno_zram_archive::HashCheck;
/// assert_eq!(HashCheck::SAMPLED_PAGES, 1400);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashCheck {
    /// Some pages, chosen at random.
    Sampled,
    /// All pages.
    All,
}

impl HashCheck {
    /// The number of pages that [`HashCheck::Sampled`] compares. Since 0.99^1400 is 7.7 * 10^-7, false hashes of 1 % of the pages
    /// are found with a probability of 1 - 10^-6, whatever their number.
    pub const SAMPLED_PAGES: usize = 1400;
}

impl PageHashes {
    /// Compares the hashes with pages of the archive that they were read from, on the rayon pool that it is called in. A delta
    /// that relies on a false hash cannot be restored.
    ///
    /// A sample is taken from the pages that have a hash, all of which may be chosen; zero pages have none, and no delta
    /// refers to them. Returns the number of pages that were compared.
    ///
    /// ```
    /// use trueno_zram_archive::{HashCheck, PageHashes};
    /// # use trueno_zram_archive::{PageArchive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 100 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// let hashes = PageHashes::compute(&archive)?;
    /// assert_eq!(hashes.check(&archive, HashCheck::All)?, 100);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StatedHash`] for a page with another hash; those of [`Pages::read`].
    pub fn check(&self, archive: &PageArchive, check: HashCheck) -> Result<u64> {
        match check {
            HashCheck::Sampled => {
                let indexes = sample(self.list.hashes().len(), HashCheck::SAMPLED_PAGES);
                indexes.par_iter().try_for_each(|index| self.check_index(archive, *index))?;
                Ok(indexes.len() as u64)
            }
            HashCheck::All => {
                let groups = archive.page_count().div_ceil(GROUP_PAGES as u64);
                let check = |buffer: &mut AlignedPages, group| self.check_group(archive, group, buffer);
                (0..groups)
                    .into_par_iter()
                    .map_init(|| AlignedPages::new(GROUP_PAGES), check)
                    .collect::<Result<()>>()?;
                Ok(archive.page_count())
            }
        }
    }

    /// Compares the hash at this index of the list with its page.
    fn check_index(&self, archive: &PageArchive, index: usize) -> Result<()> {
        let page = self.list.page_of(index).ok_or_else(|| Error::index("its list of page hashes has a gap"))?;
        let mut found = [0; PAGE_SIZE];
        archive.read_unproven(page, &mut found)?;
        match PageHash::of(&found).as_bytes() == &self.list.hashes()[index] {
            true => Ok(()),
            false => Err(Error::StatedHash { page }),
        }
    }

    /// Compares the hashes of a group with its pages.
    fn check_group(&self, archive: &PageArchive, group: u64, buffer: &mut [Page]) -> Result<()> {
        let computed = hash_group(archive, group, buffer)?;
        let (first, mut near, mut near_computed) = (group * GROUP_PAGES as u64, 0, 0);
        for within in 0..computed.page_count() {
            let page = first + within;
            let (stated, found) = (self.list.get(page, &mut near), computed.get(within, &mut near_computed));
            // Zero pages need not have a hash.
            let is_true = stated == found || found.is_none() && stated == Some(PageHash::of(&[0; PAGE_SIZE]));
            if !is_true {
                return Err(Error::StatedHash { page });
            }
        }
        Ok(())
    }
}

/// Chooses up to `count` different numbers below `len`, each with the same probability, by Floyd's algorithm. Nobody can
/// know beforehand which.
fn sample(len: usize, count: usize) -> Vec<usize> {
    let (random, mut chosen) = (RandomState::new(), BTreeSet::new());
    for last in len.saturating_sub(count)..len {
        let below = (u128::from(random.hash_one(last)) * (last as u128 + 1)) >> u64::BITS;
        let number = usize::try_from(below).expect("at most `last`");
        if !chosen.insert(number) {
            chosen.insert(last);
        }
    }
    chosen.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_different_numbers_and_all_of_them_if_there_are_few() {
        for (len, count) in [(0, 5), (4, 5), (5, 5), (6, 5), (100, 7), (1 << 40, 1400)] {
            let sample = sample(len, count);
            assert_eq!(sample.len(), len.min(count));
            assert!(sample.is_sorted_by(|one, next| one < next) && sample.iter().all(|number| *number < len));
        }
    }

    #[test]
    fn samples_differ_and_reach_all_numbers() {
        let samples: Vec<Vec<usize>> = (0..200).map(|_| sample(50, 10)).collect();
        assert!(samples.iter().any(|other| *other != samples[0]));
        // A number is left out by one sample with a probability of 0.8, and by all with 4 * 10^-20.
        assert!((0..50).all(|number| samples.iter().any(|sample| sample.contains(&number))));
    }
}
