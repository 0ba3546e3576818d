//! The hashes of consecutive pages, without those of zero pages, and the section of an archive that holds them.

use crate::error::{Error, Result};
use crate::hashes::page_hash::{PAGE_HASH_LEN, PageHash};
use crate::varint;

use trueno_zram_core::{Page, is_zero};

/// The name of the section.
pub(crate) const SECTION: &str = "page-hashes";
/// The most bytes of the section: all sections together have no more.
pub(crate) const MAX_SECTION_LEN: u64 = 1 << 30;
const VERSION: u8 = 1;

/// Consecutive pages that are not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HashRun {
    first_page: u64,
    /// The index of its first hash in the list.
    first_hash: usize,
}

/// The hashes of consecutive pages. Zero pages have none, and long runs of them take no memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct HashList {
    runs: Vec<HashRun>,
    /// The section that they were decoded from, with the hashes from `start` on. Copying them, 8 MB for 2 GiB of pages, would
    /// take as long as hashing 10 MB.
    bytes: Vec<u8>,
    start: usize,
    page_count: u64,
}

impl PartialEq for HashList {
    fn eq(&self, other: &Self) -> bool {
        (&self.runs, self.hashes(), self.page_count) == (&other.runs, other.hashes(), other.page_count)
    }
}

impl HashList {
    pub(crate) fn page_count(&self) -> u64 {
        self.page_count
    }

    pub(crate) fn hashes(&self) -> &[[u8; PAGE_HASH_LEN]] {
        self.bytes[self.start..].as_chunks().0
    }

    /// Returns `true` if the section can still hold them all. Zero pages have no hashes, so the number of pages does not
    /// decide it.
    pub(crate) fn fits_section(&self) -> bool {
        min_section_len(self.hashes().len(), self.runs.len()) <= MAX_SECTION_LEN
    }

    pub(crate) fn push(&mut self, hash: PageHash) {
        let first_hash = self.hashes().len();
        let follows = |run: &HashRun| run.first_page + (first_hash - run.first_hash) as u64 == self.page_count;
        if !self.runs.last().is_some_and(follows) {
            self.runs.push(HashRun { first_page: self.page_count, first_hash });
        }
        self.bytes.extend_from_slice(hash.as_bytes());
        self.page_count += 1;
    }

    pub(crate) fn push_zeros(&mut self, pages: u64) {
        self.page_count += pages;
    }

    /// Adds the hash of every page that is not zero.
    pub(crate) fn push_pages(&mut self, pages: &[Page]) {
        let mut hashes = Vec::with_capacity(pages.len());
        PageHash::of_pages(pages.iter().filter(|page| !is_zero(*page)), &mut hashes);
        let mut hashes = hashes.into_iter();
        for page in pages {
            if is_zero(page) {
                self.push_zeros(1);
            } else {
                self.push(hashes.next().expect("every page that is not zero was hashed"));
            }
        }
    }

    /// Adds the pages of another list.
    pub(crate) fn append(&mut self, other: &Self) {
        let start = self.page_count;
        for (page, hash) in other.pages() {
            self.page_count = start + page;
            self.push(hash);
        }
        self.page_count = start + other.page_count;
    }

    /// Returns the pages that are not zero, with their hashes.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u64, PageHash)> {
        let pages = self.runs().flat_map(|(first_page, hashes)| (first_page..).zip(hashes));
        pages.map(|(page, hash)| (page, PageHash::from_bytes(*hash)))
    }

    /// Returns the runs of pages that are not zero: the first page of each, and the hashes of its pages.
    fn runs(&self) -> impl Iterator<Item = (u64, &[[u8; PAGE_HASH_LEN]])> {
        let hashes = self.hashes();
        let ends = self.runs.iter().skip(1).map(|run| run.first_hash).chain([hashes.len()]);
        self.runs.iter().zip(ends).map(|(run, end)| (run.first_page, &hashes[run.first_hash..end]))
    }

    /// Returns the hash of a page; `None` for zero pages and pages that do not exist.
    ///
    /// `near` is the run of the page before, or any number. Pages that are asked for in order are found without a search.
    pub(crate) fn get(&self, page: u64, near: &mut usize) -> Option<PageHash> {
        let starts_before = |run: usize| self.runs.get(run).is_some_and(|run| run.first_page <= page);
        let holds = |run: usize| starts_before(run) && !starts_before(run.saturating_add(1));
        if !holds(*near) {
            let next = near.saturating_add(1);
            let search = || self.runs.partition_point(|run| run.first_page <= page).checked_sub(1);
            *near = if holds(next) { next } else { search()? };
        }
        let (hashes, run) = (self.hashes(), self.runs.get(*near)?);
        let end = self.runs.get(*near + 1).map_or(hashes.len(), |next| next.first_hash);
        let index = run.first_hash.checked_add(usize::try_from(page - run.first_page).ok()?)?;
        (index < end).then(|| PageHash::from_bytes(hashes[index]))
    }

    /// Returns the page whose hash has this index in the list.
    pub(crate) fn page_of(&self, index: usize) -> Option<u64> {
        let after = self.runs.partition_point(|run| run.first_hash <= index);
        let run = self.runs.get(after.checked_sub(1)?)?;
        Some(run.first_page + (index - run.first_hash) as u64)
    }

    /// Encodes the section of page hashes: the lengths of runs of pages that are hashed and of zero pages by turns, then the hashes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (mut bytes, mut at) = (vec![VERSION], 0);
        for (first_page, hashes) in self.runs().chain([(self.page_count, &[][..])]) {
            if first_page > at {
                // Before zero pages at the start, a run of no hashed pages.
                bytes.extend((at == 0).then_some(0));
                varint::put(first_page - at, &mut bytes);
            }
            if !hashes.is_empty() {
                varint::put(hashes.len() as u64, &mut bytes);
            }
            at = first_page + hashes.len() as u64;
        }
        bytes.extend_from_slice(self.hashes().as_flattened());
        bytes
    }

    /// Decodes the section of page hashes of an archive of this many pages.
    pub(crate) fn decode_section(bytes: Vec<u8>, page_count: u64) -> Result<Self> {
        Self::decode(bytes, page_count).ok_or_else(|| Error::index("its section of page hashes is damaged"))
    }

    fn decode(bytes: Vec<u8>, page_count: u64) -> Option<Self> {
        let (&VERSION, mut rest) = bytes.split_first()? else { return None };
        let (mut list, mut hashed, mut zeros) = (Self::default(), 0usize, false);
        while list.page_count < page_count {
            let run = varint::take(&mut rest).ok()?;
            // Only the first run may be empty: others would make the section longer without an end.
            if run > page_count - list.page_count || (run == 0 && (zeros || list.page_count > 0)) {
                return None;
            }
            if !zeros && run > 0 {
                list.runs.push(HashRun { first_page: list.page_count, first_hash: hashed });
                hashed = hashed.checked_add(usize::try_from(run).ok()?)?;
                // Every run has hashes, so there are no more runs than hashes in the section.
                if hashed.checked_mul(PAGE_HASH_LEN)? > rest.len() {
                    return None;
                }
            }
            list.page_count += run;
            zeros = !zeros;
        }
        let (hashes, []) = rest.as_chunks::<PAGE_HASH_LEN>() else { return None };
        if hashes.len() != hashed {
            return None;
        }
        list.start = bytes.len() - rest.len();
        list.bytes = bytes;
        Some(list)
    }
}

/// The least length of a section: the hashes, and a byte for each run and for the zero pages between two.
fn min_section_len(hashes: usize, runs: usize) -> u64 {
    let hashes = (hashes as u64).saturating_mul(PAGE_HASH_LEN as u64);
    hashes.saturating_add((2 * runs as u64).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u64) -> PageHash {
        let mut page = [0; 4096];
        page[..8].copy_from_slice(&number.to_le_bytes());
        PageHash::of(&page)
    }

    /// A list with zero pages where the numbers are 0, beside the same as plain options.
    fn list(numbers: &[u64]) -> (HashList, Vec<Option<PageHash>>) {
        let mut list = HashList::default();
        for number in numbers {
            if *number == 0 { list.push_zeros(1) } else { list.push(hash(*number)) }
        }
        (list, numbers.iter().map(|number| (*number > 0).then(|| hash(*number))).collect())
    }

    fn lists() -> Vec<Vec<u64>> {
        let mixed = (0..300).map(|n| if n % 7 == 0 || n % 5 == 0 { 0 } else { n }).collect();
        vec![vec![], vec![1], vec![0], vec![0, 1, 2, 0, 0, 3], vec![1, 0, 0], vec![0; 5000], mixed]
    }

    fn decode(bytes: &[u8], page_count: u64) -> Option<HashList> {
        HashList::decode(bytes.to_vec(), page_count)
    }

    #[test]
    fn a_list_is_too_long_as_soon_as_its_section_would_be() {
        let max_hashes = usize::try_from(MAX_SECTION_LEN).unwrap() / PAGE_HASH_LEN;
        assert!(min_section_len(max_hashes - 1, 1) <= MAX_SECTION_LEN);
        assert!(min_section_len(max_hashes, 1) > MAX_SECTION_LEN);
        for numbers in lists() {
            let (list, _) = list(&numbers);
            assert!(list.fits_section());
            assert!(min_section_len(list.hashes().len(), list.runs.len()) <= list.encode().len() as u64 + 1);
        }
    }

    #[test]
    fn sections_read_back_and_every_cut_is_an_error() {
        for numbers in lists() {
            let (list, _) = list(&numbers);
            let bytes = list.encode();
            assert_eq!(decode(&bytes, numbers.len() as u64).as_ref(), Some(&list));
            assert_eq!(decode(&bytes, numbers.len() as u64 + 1), None);
            for len in 0..bytes.len() {
                assert_eq!(decode(&bytes[..len], numbers.len() as u64), None, "{len} bytes");
            }
        }
        assert_eq!(decode(&[VERSION, 0, 0, 0, 0], 1), None, "runs without pages");
        assert_eq!(decode(&[VERSION + 1, 1], 0), None);
        assert_eq!(decode(&[VERSION, 0xff, 0xff, 0xff, 0xff, 0x7f], 1 << 40), None, "hashes that are not there");
    }

    #[test]
    fn pages_are_found_by_number_and_by_place() {
        for numbers in lists() {
            let (list, plain) = list(&numbers);
            assert_eq!(list.page_count(), plain.len() as u64);
            // In order, backwards, in steps that skip runs, and from places that do not exist.
            let pages = || 0..plain.len();
            let orders: [Vec<usize>; 3] = [pages().collect(), pages().rev().collect(), pages().step_by(13).collect()];
            for (order, mut near) in orders.into_iter().zip([0, 7, usize::MAX]) {
                for page in order {
                    assert_eq!(list.get(page as u64, &mut near), plain[page]);
                }
                assert_eq!(list.get(plain.len() as u64, &mut near), None);
            }
            for (index, (page, hash)) in list.pages().enumerate() {
                assert_eq!(list.page_of(index), Some(page));
                assert_eq!(*hash.as_bytes(), list.hashes()[index]);
                assert_eq!(plain[usize::try_from(page).unwrap()], Some(hash));
            }
            assert_eq!(list.pages().count(), list.hashes().len());
        }
    }

    #[test]
    fn lists_are_joined() {
        for first in lists() {
            for second in lists() {
                let (mut joined, _) = list(&first);
                joined.append(&list(&second).0);
                assert_eq!(joined, list(&[&first[..], &second].concat()).0);
            }
        }
    }
}
