//! Finds the pages of an archive by their hashes.

use rayon::prelude::*;
use trueno_zram_core::{AlignedPages, Page};

use crate::delta::PageArchive;
use crate::error::{Error, Result};
use crate::hashes::hash_list::{HashList, MAX_SECTION_LEN, SECTION};
use crate::hashes::page_hash::PageHash;
use crate::hashes::slot_hasher::SlotHasher;
use crate::index::layout::GROUP_PAGES;
use crate::pages::Pages;

/// A slot of the table that holds no page.
const EMPTY: u32 = u32::MAX;

/// The hashes of an archive's pages, by which its pages are found.
///
/// It takes 16 bytes per page that is not zero, and 8 to 16 more to find pages that have moved.
///
/// ```
/// use trueno_zram_archive::{PageHash, PageHashes};
/// # use trueno_zram_archive::{PageArchive, WriteOptions, compress};
/// # let mut bytes = Vec::new();
/// # compress(&[7; 100 * 4096][..], &mut bytes, &WriteOptions::default())?;
/// # let archive = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
/// let hashes = PageHashes::compute(&archive)?; // of 100 equal pages
/// assert_eq!(hashes.find(3, &PageHash::of(&[7; 4096])), Some(3));
/// assert_eq!(hashes.find(3, &PageHash::of(&[1; 4096])), None);
/// let mut finder = hashes.finder(); // faster for many pages that follow each other
/// assert!((0..100).all(|page| finder.find(page, &PageHash::of(&[7; 4096])) == Some(page)));
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
pub struct PageHashes {
    pub(crate) list: HashList,
    /// An open-addressing table of positions in the list.
    table: Vec<u32>,
    slots: SlotHasher,
}

impl PageHashes {
    /// Reads the hashes that a delta has, and an archive that was [written with them](crate::WriteOptions::page_hashes);
    /// `None` if it has none. They may be false: [`check`](Self::check) compares them with the pages.
    ///
    /// ```
    /// use trueno_zram_archive::{PageArchive, PageHashes, WriteOptions, compress};
    /// let mut bytes = Vec::new();
    /// compress(&[7; 4096][..], &mut bytes, &WriteOptions::default().with_page_hashes(true))?;
    /// let archive = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// assert_eq!(PageHashes::stored(&archive)?.map(|hashes| hashes.page_count()), Some(1));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Index`] and [`Error::Delta`] if they are damaged; [`Error::Read`].
    pub fn stored(archive: &PageArchive) -> Result<Option<Self>> {
        let list = match archive {
            PageArchive::Delta(delta) => Some(delta.hashes()?),
            PageArchive::Standard(reader) => {
                let section = reader.section(SECTION, MAX_SECTION_LEN)?;
                section.map(|bytes| HashList::decode_section(bytes, reader.page_count())).transpose()?
            }
        };
        Ok(list.map(Self::new))
    }

    /// Reads all pages and hashes them, on the rayon pool that it is called in.
    ///
    /// ```
    /// # use trueno_zram_archive::{PageArchive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 100 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// use trueno_zram_archive::{PageHash, PageHashes};
    /// let hashes = PageHashes::compute(&archive)?; // of 100 equal pages
    /// assert_eq!(hashes.find(5000, &PageHash::of(&[7; 4096])), Some(0));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Pages::read`].
    pub fn compute(archive: &PageArchive) -> Result<Self> {
        let groups = archive.page_count().div_ceil(GROUP_PAGES as u64);
        let hash = |buffer: &mut AlignedPages, group| hash_group(archive, group, buffer);
        let groups: Result<Vec<HashList>> =
            (0..groups).into_par_iter().map_init(|| AlignedPages::new(GROUP_PAGES), hash).collect();
        let mut list = HashList::default();
        groups?.iter().for_each(|group| list.append(group));
        Ok(Self::new(list))
    }

    fn new(list: HashList) -> Self {
        let hashes = list.hashes();
        // Half of the slots stay empty, so that looking for a page that is not there ends soon.
        let mut table = vec![EMPTY; (hashes.len() * 2).next_power_of_two()];
        let slots = SlotHasher::new(table.len());
        for (number, hash) in (0..EMPTY).zip(hashes) {
            let mut slot = slots.of(hash);
            // Of equal pages the first one is found.
            while table[slot] != EMPTY && hashes[table[slot] as usize] != *hash {
                slot = (slot + 1) % table.len();
            }
            if table[slot] == EMPTY {
                table[slot] = number;
            }
        }
        Self { list, table, slots }
    }

    /// Returns the number of a page with this hash: `page` itself if it has it, else the first one.
    ///
    /// ```
    /// # use trueno_zram_archive::{PageArchive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 100 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// use trueno_zram_archive::{PageHash, PageHashes};
    /// let hashes = PageHashes::compute(&archive)?; // of 100 equal pages
    /// assert_eq!(hashes.find(3, &PageHash::of(&[7; 4096])), Some(3));
    /// assert_eq!(hashes.find(3, &PageHash::of(&[1; 4096])), None);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn find(&self, page: u64, hash: &PageHash) -> Option<u64> {
        self.finder().find(page, hash)
    }

    /// Returns a finder for many pages: faster than [`find`](Self::find) if they follow each other.
    ///
    /// ```
    /// # use trueno_zram_archive::{PageArchive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 100 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// use trueno_zram_archive::{PageHash, PageHashes};
    /// let hashes = PageHashes::compute(&archive)?; // of 100 equal pages
    /// let mut finder = hashes.finder();
    /// assert!((0..100).all(|page| finder.find(page, &PageHash::of(&[7; 4096])) == Some(page)));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn finder(&self) -> PageFinder<'_> {
        PageFinder { hashes: self, near: 0 }
    }

    /// Returns the number of the first page with this hash.
    fn find_first(&self, hash: &PageHash) -> Option<u64> {
        let (hash, hashes) = (hash.as_bytes(), self.list.hashes());
        let mut slot = self.slots.of(hash);
        loop {
            match self.table[slot] {
                EMPTY => return None,
                number if hashes[number as usize] == *hash => return self.list.page_of(number as usize),
                _ => slot = (slot + 1) % self.table.len(),
            }
        }
    }

    /// Returns the number of pages.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        self.list.page_count()
    }
}

impl std::fmt::Debug for PageHashes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageHashes({} pages)", self.page_count())
    }
}

/// Finds pages by their hashes, and remembers where the last one was. [`PageHashes`] has an example.
#[derive(Clone, Debug)]
pub struct PageFinder<'a> {
    hashes: &'a PageHashes,
    near: usize,
}

impl PageFinder<'_> {
    /// Finds a page like [`PageHashes::find`].
    pub fn find(&mut self, page: u64, hash: &PageHash) -> Option<u64> {
        match self.hashes.list.get(page, &mut self.near) {
            Some(own) if own == *hash => Some(page),
            _ => self.hashes.find_first(hash),
        }
    }
}

/// Hashes the pages of a group, which are read and checked together.
pub(crate) fn hash_group(archive: &PageArchive, group: u64, buffer: &mut [Page]) -> Result<HashList> {
    let first = group * GROUP_PAGES as u64;
    let end = archive.page_count().min(first + GROUP_PAGES as u64);
    let mut list = HashList::default();
    if let PageArchive::Standard(archive) = archive
        && archive.is_zero_group(group)
    {
        // Every page is asked for: one of them may be damaged.
        for page in first..end {
            if !archive.is_zero(page)? {
                let reason = format!("page {page} is not zero, although the table says that its group is");
                return Err(Error::index(reason));
            }
        }
        list.push_zeros(end - first);
        return Ok(list);
    }
    let pages = &mut buffer[..usize::try_from(end - first).expect("at most a group")];
    archive.read(first, pages)?;
    list.push_pages(pages);
    Ok(list)
}

#[cfg(test)]
mod tests {
    use trueno_zram_core::PAGE_SIZE;

    use super::*;

    fn hash(number: u32) -> PageHash {
        let mut page = [0; PAGE_SIZE];
        page[..4].copy_from_slice(&number.to_le_bytes());
        PageHash::of(&page)
    }

    #[test]
    fn pages_are_found_where_they_are_and_where_they_were() {
        let plain: Vec<Option<PageHash>> = (0..1000).map(|n| (n % 10 != 0).then(|| hash(n / 2))).collect();
        let mut list = HashList::default();
        plain.iter().for_each(|hash| match hash {
            Some(hash) => list.push(*hash),
            None => list.push_zeros(1),
        });
        let hashes = PageHashes::new(list);
        let mut finder = hashes.finder();
        for (page, hash) in plain.iter().enumerate().filter_map(|(page, hash)| Some(page).zip(*hash)) {
            assert_eq!(hashes.find(page as u64, &hash), Some(page as u64), "the same page first");
            assert_eq!(finder.find(page as u64, &hash), Some(page as u64), "in order");
            let first = plain.iter().position(|other| *other == Some(hash)).unwrap() as u64;
            assert_eq!(hashes.find(5000, &hash), Some(first));
        }
        assert_eq!(hashes.find(3, &hash(999_999)), None);
        assert_eq!(PageHashes::new(HashList::default()).find(0, &hash(1)), None);
    }
}
