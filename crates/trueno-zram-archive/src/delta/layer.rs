//! One delta of a chain, without its base: where each page comes from, and the pages that are stored.

use std::sync::{Arc, OnceLock};

use trueno_zram_core::PAGE_SIZE;

use crate::error::{Error, Result};
use crate::hash::xxh32;
use crate::hash_list::HashList;
use crate::index::{GROUP_PAGES, pages_of};
use crate::page_hash::PageHash;
use crate::read_at::{ReadAt, Span};
use crate::shared::SharedReader;

use super::layout::{BaseRecord, Footer, GroupRecord, HEAD_LEN};
use super::map::{Bounds, MapGroup, PageOrigin};
use super::open::{read, read_base, read_footer, read_records};

/// A delta whose base is not known yet, or lies beneath it in a chain.
pub(crate) struct DeltaLayer {
    file: Arc<dyn ReadAt>,
    pub(super) footer: Footer,
    /// The record of its base.
    pub(super) base: BaseRecord,
    /// The position and the record of each group's map.
    records: Vec<(u64, GroupRecord)>,
    groups: Vec<OnceLock<Box<MapGroup>>>,
    /// The archive of the pages that the delta stores.
    pub(super) stored: SharedReader<Span>,
}

impl DeltaLayer {
    /// Opens a delta; returns `None` if the file is not one.
    pub(super) fn open(file: Arc<dyn ReadAt>) -> Result<Option<Self>> {
        let Some(footer) = read_footer(&*file)? else { return Ok(None) };
        let records = read_records(&*file, &footer)?;
        let base = read_base(&*file, &footer, &records)?;
        let span = Span::new(Arc::clone(&file), HEAD_LEN as u64, footer.stored_len);
        let stored = SharedReader::open(span).map_err(|error| Error::delta(format!("its stored pages: {error}")))?;
        let stored = stored.ok_or_else(|| Error::delta("its stored pages have no index"))?;
        if !stored.content_len().is_multiple_of(PAGE_SIZE as u64) {
            return Err(Error::delta("its stored pages are not whole pages"));
        }
        let groups = records.iter().map(|_| OnceLock::new()).collect();
        Ok(Some(Self { file, footer, base, records, groups, stored }))
    }

    pub(super) fn page_count(&self) -> u64 {
        pages_of(self.footer.content_len)
    }

    /// Returns where a page comes from, and its hash unless it is zero.
    pub(super) fn origin(&self, page: u64) -> Result<(PageOrigin, Option<PageHash>)> {
        let (group, within) = self.group_of(page)?;
        Ok(group.find(within))
    }

    /// Returns the group of a page, and the number of the page in it.
    fn group_of(&self, page: u64) -> Result<(&MapGroup, u16)> {
        let pages = self.page_count();
        if page >= pages {
            return Err(Error::PageRange { start: page, end: page.saturating_add(1), pages });
        }
        let within = u16::try_from(page % GROUP_PAGES as u64).expect("less than a group");
        Ok((self.group(page / GROUP_PAGES as u64)?, within))
    }

    /// Returns the number of zero pages from a page on, up to the end of its group.
    pub(super) fn zero_run(&self, page: u64) -> Result<u64> {
        let (group, within) = self.group_of(page)?;
        Ok(group.zero_run(within).into())
    }

    /// Returns the memory that the map takes now, in bytes.
    pub(super) fn map_memory_bytes(&self) -> usize {
        let touched: usize = self.groups.iter().filter_map(OnceLock::get).map(|group| group.memory_bytes()).sum();
        size_of_val(&self.records[..]) + size_of_val(&self.groups[..]) + touched
    }

    /// Returns the hashes of all pages. Maps are not kept in memory.
    pub(super) fn hashes(&self) -> Result<HashList> {
        let mut list = HashList::default();
        for number in 0..self.footer.groups() {
            self.read_group(number)?.pages().for_each(|(_, hash)| match hash {
                Some(hash) => list.push(hash),
                None => list.push_zeros(1),
            });
        }
        Ok(list)
    }

    fn group(&self, number: u64) -> Result<&MapGroup> {
        let slot = usize::try_from(number).ok().and_then(|number| self.groups.get(number));
        let slot = slot.ok_or_else(|| Error::delta("it has no such group"))?;
        if let Some(group) = slot.get() {
            return Ok(group);
        }
        let group = self.read_group(number)?;
        Ok(slot.get_or_init(|| Box::new(group)))
    }

    fn read_group(&self, number: u64) -> Result<MapGroup> {
        let record = usize::try_from(number).ok().and_then(|number| self.records.get(number));
        let (at, record) = record.ok_or_else(|| Error::delta("it has no such group"))?;
        let first_page = number * GROUP_PAGES as u64;
        let pages = (self.page_count() - first_page).min(GROUP_PAGES as u64);
        let pages = u16::try_from(pages).expect("at most a group");
        let mut bytes = vec![0; record.len_bytes as usize];
        read(&*self.file, &mut bytes, *at, "the map of its pages")?;
        if xxh32(&bytes) != record.checksum {
            return Err(Error::delta(format!("the checksum of the map of pages {first_page} and on is wrong")));
        }
        let bounds = Bounds { base_pages: self.base.page_count, stored_pages: self.stored.page_count() };
        MapGroup::decode(&bytes, first_page, pages, bounds)
    }
}
