//! Where pages come from: an archive, or an image in memory.

use std::ops::{ControlFlow, Range};

use trueno_zram_archive::{Error, PageArchive, ReadAt, SharedReader};
use trueno_zram_core::{PAGE_SIZE, Page};

/// Memory content that is read page by page, by many threads.
///
/// ```
/// use trueno_zram_restore::{Image, PagesByNumber};
/// let image = Image::new(vec![[7; 4096]; 3]);
/// assert_eq!(image.len_bytes(), 3 * 4096);
/// assert_eq!(image.page(2, &mut [0; 4096])?, Some(&[7; 4096]));
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
pub trait PagesByNumber: Send + Sync {
    /// Returns the length of the content in bytes.
    fn len_bytes(&self) -> u64;

    /// Returns where the source keeps a page, or `None` after writing it to `buffer`.
    ///
    /// # Errors
    /// If the page is damaged or cannot be read. A source must never return other bytes than those that were saved.
    fn page(&self, number: u64, buffer: &mut Page) -> Result<Option<&Page>, Error>;

    /// Returns whether a page can be read at once. If not, reading it takes about as long as reading all pages near it.
    fn is_located(&self, _number: u64) -> bool {
        true
    }

    /// Reads pages that follow each other into `buffer`, as many as it holds, and calls `visit` with the number of the first
    /// of them, again and again, until it breaks. An error is about the pages from this number on that the buffer has room
    /// for, or about all that are left of a group.
    fn visit(&self, pages: Range<u64>, buffer: &mut [Page], visit: &mut Visit<'_>) {
        in_portions(pages, buffer, visit, |first, out| {
            out.iter_mut().zip(first..).try_for_each(|(out, number)| {
                if let Some(page) = self.page(number, out)? {
                    *out = *page;
                }
                Ok(())
            })
        });
    }
}

/// Reads pages portion by portion.
fn in_portions(
    pages: Range<u64>,
    buffer: &mut [Page],
    visit: &mut Visit<'_>,
    read: impl Fn(u64, &mut [Page]) -> Result<(), Error>,
) {
    let mut next = pages.start;
    while next < pages.end && !buffer.is_empty() {
        let count = buffer.len().min(usize::try_from(pages.end - next).unwrap_or(usize::MAX));
        let out = &mut buffer[..count];
        let portion = read(next, out).map(|()| &*out);
        if visit(next, portion).is_break() {
            return;
        }
        next += count as u64;
    }
}

/// What is called with portions of pages. See [`PagesByNumber::visit`].
pub type Visit<'a> = dyn FnMut(u64, Result<&[Page], Error>) -> ControlFlow<()> + 'a;

impl<F: ReadAt> PagesByNumber for SharedReader<F> {
    fn len_bytes(&self) -> u64 {
        self.content_len()
    }

    fn page(&self, number: u64, buffer: &mut Page) -> Result<Option<&Page>, Error> {
        self.read_page_at(number, buffer)?;
        Ok(None)
    }

    fn visit(&self, pages: Range<u64>, buffer: &mut [Page], visit: &mut Visit<'_>) {
        let start = pages.start;
        if let Err(error) = self.visit_pages(pages, buffer, &mut *visit) {
            let _ = visit(start, Err(error));
        }
    }
}

impl PagesByNumber for PageArchive {
    fn len_bytes(&self) -> u64 {
        self.content_len()
    }

    fn is_located(&self, number: u64) -> bool {
        Self::is_located(self, number)
    }

    fn page(&self, number: u64, buffer: &mut Page) -> Result<Option<&Page>, Error> {
        self.read_page_at(number, buffer)?;
        Ok(None)
    }

    fn visit(&self, pages: Range<u64>, buffer: &mut [Page], visit: &mut Visit<'_>) {
        match self {
            Self::Standard(archive) => archive.visit(pages, buffer, visit),
            Self::Delta(delta) => in_portions(pages, buffer, visit, |first, out| delta.read_pages(first, out)),
        }
    }
}

impl<S: PagesByNumber + ?Sized> PagesByNumber for &S {
    fn len_bytes(&self) -> u64 {
        (**self).len_bytes()
    }

    fn page(&self, number: u64, buffer: &mut Page) -> Result<Option<&Page>, Error> {
        (**self).page(number, buffer)
    }

    fn is_located(&self, number: u64) -> bool {
        (**self).is_located(number)
    }

    fn visit(&self, pages: Range<u64>, buffer: &mut [Page], visit: &mut Visit<'_>) {
        (**self).visit(pages, buffer, visit);
    }
}

impl<S: PagesByNumber + ?Sized> PagesByNumber for std::sync::Arc<S> {
    fn len_bytes(&self) -> u64 {
        (**self).len_bytes()
    }

    fn page(&self, number: u64, buffer: &mut Page) -> Result<Option<&Page>, Error> {
        (**self).page(number, buffer)
    }

    fn is_located(&self, number: u64) -> bool {
        (**self).is_located(number)
    }

    fn visit(&self, pages: Range<u64>, buffer: &mut [Page], visit: &mut Visit<'_>) {
        (**self).visit(pages, buffer, visit);
    }
}

/// An uncompressed image in memory: what restoring from an archive is measured against.
#[derive(Clone, Debug)]
pub struct Image {
    pages: Vec<Page>,
}

impl Image {
    /// Takes the pages.
    ///
    /// ```
    /// let image = trueno_zram_restore::Image::new(vec![[0; 4096]]);
    /// # drop(image);
    /// ```
    #[must_use]
    pub fn new(pages: Vec<Page>) -> Self {
        Self { pages }
    }
}

impl PagesByNumber for Image {
    fn len_bytes(&self) -> u64 {
        (self.pages.len() * PAGE_SIZE) as u64
    }

    fn page(&self, number: u64, _: &mut Page) -> Result<Option<&Page>, Error> {
        let pages = self.pages.len() as u64;
        let page = usize::try_from(number).ok().and_then(|number| self.pages.get(number));
        page.map(Some).ok_or(Error::PageRange { start: number, end: number.saturating_add(1), pages })
    }
}
