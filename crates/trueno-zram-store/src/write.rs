//! Writing: all pages of a write get their slots first, and are published when every one has its own.

use trueno_zram_core::{PAGE_SIZE, Page, PageData, PageKind, fill_page};

use crate::error::{Error, Result};
use crate::handle::{StoreHandle, ZeroPages, decode, split_offset};
use crate::mapping::copy_in;
use crate::slots::geometry::SizeClass;
use crate::slots::spare_slots::Stripe;
use crate::store::{Store, ThreadContext};
use crate::table::entry::{PageForm, StoredPage, TableEntry, fill_word};
use crate::table::lock::EntryGuard;

/// The longest write that either fits as a whole or changes nothing, in bytes. Longer ones are divided. Readers may still see
/// some of its pages new and some old.
///
/// Until it is done, the new versions of its pages take memory beside the old ones.
pub const MAX_UNDIVIDED_WRITE_BYTES: usize = 256 << 10;

/// The most pages of such a write: one more than whole ones if it starts within a page.
pub(crate) const MAX_STAGED_PAGES: usize = MAX_UNDIVIDED_WRITE_BYTES / PAGE_SIZE + 1;

/// A new version of a page. No entry names its slot yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagedPage {
    number: u64,
    entry: TableEntry,
}

/// Bytes that replace a part of a page.
struct Patch<'a> {
    number: u64,
    /// The first byte of the page that is replaced.
    start: usize,
    bytes: &'a [u8],
}

/// The pages of a byte range: a partial page, whole pages, and another partial page. Each part may be empty.
struct PageRange {
    /// The page that the range starts in.
    first: u64,
    /// The first byte of the range within that page.
    start: usize,
    head_bytes: usize,
    whole: std::ops::Range<u64>,
    tail_bytes: usize,
}

impl PageRange {
    fn new(offset: u64, len_bytes: u64) -> Self {
        let (first, start) = split_offset(offset);
        let to_boundary = (PAGE_SIZE - start) % PAGE_SIZE;
        let head_bytes = usize::try_from(len_bytes).map_or(to_boundary, |len| len.min(to_boundary));
        let (whole_pages, tail_bytes) = split_offset(len_bytes - head_bytes as u64);
        let first_whole = first + u64::from(start > 0);
        Self { first, start, head_bytes, whole: first_whole..first_whole + whole_pages, tail_bytes }
    }

    /// Returns the patches of the partial pages at both ends, if there are any.
    fn patches<'a>(&self, head: &'a [u8], tail: &'a [u8]) -> [Option<Patch<'a>>; 2] {
        [(self.first, self.start, head), (self.whole.end, 0, tail)]
            .map(|(number, start, bytes)| (!bytes.is_empty()).then_some(Patch { number, start, bytes }))
    }
}

impl StoreHandle {
    /// Writes bytes from `offset` on. Others may see some of its pages changed and some not, but each page as a whole.
    ///
    /// If there is no room, nothing is changed. A write of more than [`MAX_UNDIVIDED_WRITE_BYTES`] is divided into parts of
    /// that length, which end at page boundaries: then the parts before the one that did not fit are written.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_store::{Store, StoreHandle, StoreOptions};
    /// # let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
    /// let mut handle = StoreHandle::new(&store)?;
    /// handle.write_at(4000, b"across two pages".repeat(10).as_slice())?;
    /// assert!(handle.write_at(1 << 20, b"beyond the end").is_err());
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`], with nothing written; [`Error::NoSpace`]; [`Error::Compress`]; [`Error::CorruptPage`],
    /// [`Error::CorruptEntry`] or [`Error::Base`] as for reading. A corrupt entry can be found after other pages were
    /// written.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let _request = self.enter_request();
        self.check_range(offset, bytes.len() as u64)?;
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let is_short = rest.len() <= MAX_UNDIVIDED_WRITE_BYTES;
            let len = if is_short { rest.len() } else { MAX_UNDIVIDED_WRITE_BYTES - split_offset(at).1 };
            let (part, after) = rest.split_at(len);
            let range = PageRange::new(at, len as u64);
            let (head, middle) = part.split_at(range.head_bytes);
            let (pages, tail) = middle.as_chunks();
            let written = self.write_pages(range.whole.clone().zip(pages), range.patches(head, tail));
            written.inspect_err(|_| self.context.counters.failed_writes.add(1))?;
            at += len as u64;
            rest = after;
        }
        Ok(())
    }

    /// Sets bytes to zero. If there is no room, nothing is changed, for any length: only parts of pages, at the ends of
    /// the range, need any.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_store::{PageState, Store, StoreHandle, StoreOptions, ZeroPages};
    /// # let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
    /// let mut handle = StoreHandle::new(&store)?;
    /// handle.write_zeroes(0, 4096, ZeroPages::Discard)?;
    /// handle.write_zeroes(4096, 4096, ZeroPages::Keep)?;
    /// assert_eq!(store.page_state(0), Some(PageState::Hole));
    /// assert_eq!(store.page_state(1), Some(PageState::Zero));
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at).
    pub fn write_zeroes(&mut self, offset: u64, len_bytes: u64, pages: ZeroPages) -> Result<()> {
        const ZEROS: Page = [0; PAGE_SIZE];
        let _request = self.enter_request();
        self.check_range(offset, len_bytes)?;
        let range = PageRange::new(offset, len_bytes);
        let patches = range.patches(&ZEROS[..range.head_bytes], &ZEROS[..range.tail_bytes]);
        let ends_written = self.write_pages(std::iter::empty(), patches);
        let written = ends_written.and_then(|()| {
            range.whole.clone().try_for_each(|page| match pages {
                ZeroPages::Discard => self.set_form(page, self.store.discarded(page)),
                ZeroPages::Keep => self.set_form(page, PageForm::Fill([0; 4])),
            })
        });
        written.inspect_err(|_| self.context.counters.failed_writes.add(1))
    }

    /// Writes a page.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_store::{Store, StoreHandle, StoreOptions};
    /// # let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
    /// let mut handle = StoreHandle::new(&store)?;
    /// handle.write_page(3, &[7; 4096])?;
    /// assert_eq!(store.stats().mm.same_pages, 1);
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at).
    pub fn write_page(&mut self, number: u64, page: &Page) -> Result<()> {
        let _request = self.enter_request();
        self.check_page(number)?;
        self.write_pages(std::iter::once((number, page)), [None, None])
    }

    /// Writes all of these pages, or none if there is no room. The first patch is for a page before all others, the second
    /// one for a page after them.
    fn write_pages<'a>(
        &mut self,
        pages: impl Iterator<Item = (u64, &'a Page)>,
        patches: [Option<Patch<'_>>; 2],
    ) -> Result<()> {
        let written = self.stage_pages(pages).and_then(|()| self.patch_and_publish(patches));
        for StagedPage { entry, .. } in self.staged.drain(..) {
            // The write failed, and these pages were not published.
            if let Some(stored) = entry.form().ok().and_then(PageForm::stored) {
                self.store.slots.free(self.context.stripe, stored);
            }
        }
        written
    }

    fn stage_pages<'a>(&mut self, mut pages: impl Iterator<Item = (u64, &'a Page)>) -> Result<()> {
        pages.try_for_each(|(number, page)| {
            let data = self.codec.compress(page, &mut self.out);
            let data = data.map_err(|source| Error::Compress { page: number, source })?;
            let entry = self.store.stage(self.context.stripe, number, data)?;
            self.staged.push(StagedPage { number, entry });
            Ok(())
        })
    }

    /// Changes parts of up to two pages, and publishes them and all staged pages.
    ///
    /// A page of which a part changes is locked from its reading to its publishing, so no other change is lost. Two such
    /// locks are taken in the order of the pages, and both are released before another one is waited for. So writers never
    /// wait for each other in a circle.
    fn patch_and_publish(&mut self, patches: [Option<Patch<'_>>; 2]) -> Result<()> {
        let Self { store, context, codec, out, stored_bytes, page, staged } = self;
        let mut guards = [None, None];
        for (guard, patch) in guards.iter_mut().zip(patches) {
            let Some(Patch { number, start, bytes }) = patch else { continue };
            let form = guard.insert(store.table.lock(number)).entry().form();
            match form.map_err(|defect| Error::CorruptEntry { page: number, defect })? {
                PageForm::Empty => store.read_hole(number, page)?,
                PageForm::Fill(fill) => fill_page(page, fill_word(fill)),
                PageForm::Stored(stored) => {
                    decode(codec, stored, store.copy_stored(stored, stored_bytes), number, page)?;
                }
            }
            page[start..start + bytes.len()].copy_from_slice(bytes);
            let data = codec.compress(page, out).map_err(|source| Error::Compress { page: number, source })?;
            staged.push(StagedPage { number, entry: store.stage(context.stripe, number, data)? });
        }
        // From here on, no page lacks room. The pages that are locked were staged last.
        for guard in guards.into_iter().flatten().rev() {
            publish_last(store, guard, staged, context)?;
        }
        while let Some(StagedPage { number, .. }) = staged.last() {
            publish_last(store, store.table.lock(*number), staged, context)?;
        }
        Ok(())
    }
}

/// Publishes the page that was staged last. The guard is that page's.
fn publish_last(
    store: &Store,
    guard: EntryGuard<'_>,
    staged: &mut Vec<StagedPage>,
    context: &ThreadContext,
) -> Result<()> {
    let Some(StagedPage { number, entry }) = staged.last().copied() else { return Ok(()) };
    store.replace(number, guard, entry, context)?;
    staged.pop();
    context.counters.pages_written.add(1);
    let stored = entry.form().ok().and_then(PageForm::stored);
    context.counters.huge_pages_since.add(stored.is_some_and(|stored| stored.kind == PageKind::Raw).into());
    Ok(())
}

impl Store {
    /// Writes a compressed page to a new slot, or into the entry itself. Returns the entry, which the caller publishes.
    pub(crate) fn stage(&self, stripe: Stripe, page: u64, data: PageData<'_>) -> Result<TableEntry> {
        if data.kind() == PageKind::SameFilled
            && let Some(inline) = data.bytes().try_into().ok().and_then(PageForm::inline)
        {
            return Ok(TableEntry::new(inline));
        }
        let len_bytes = u16::try_from(data.bytes().len()).expect("PageData holds at most 4096 bytes");
        let class = SizeClass::of_len(data.bytes().len());
        let place = self.slots.allocate(stripe, class, page).ok_or_else(|| self.no_space(page))?;
        copy_in(data.bytes(), self.slots.slot_words(place, data.bytes().len()));
        Ok(TableEntry::new(PageForm::Stored(StoredPage { kind: data.kind(), len_bytes, place })))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::options::StoreOptions;
    use crate::store::PageState;

    /// A writer that held the lock of a part's page while it waits for another one could wait for a writer that does the
    /// same the other way round.
    #[test]
    fn parts_of_pages_are_unlocked_before_whole_pages_are_waited_for() {
        let store = Arc::new(Store::create(&StoreOptions::new(3 * PAGE_SIZE as u64)).unwrap());
        let middle = store.table.lock(1);
        std::thread::scope(|scope| {
            let mut handle = StoreHandle::new(&store).unwrap();
            let written = scope.spawn(move || handle.write_at(1, &[7; 3 * PAGE_SIZE - 2]));
            let are_written =
                |pages: [u64; 2]| pages.iter().all(|page| store.page_state(*page) == Some(PageState::Data));
            let are_unlocked = (0..6000).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                are_written([0, 2])
            });
            let waits = !are_written([1, 1]) && !written.is_finished();
            drop(middle);
            assert!(are_unlocked && waits);
            written.join().unwrap().unwrap();
        });
        assert_eq!(store.page_state(1), Some(PageState::Data));
    }
}
