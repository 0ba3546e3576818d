//! Sources of pages: memory content that many threads read by page number.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::{ControlFlow, Deref, Range};
use std::sync::Arc;

use trueno_zram_core::{PAGE_SIZE, Page, is_zero};

use crate::delta::PageArchive;
use crate::error::{Error, Result};
use crate::index::layout::{page_len, pages_of};
use crate::read_at::{ReadAt, file_len};

/// Memory content that is read page by page, by many threads.
///
/// An [`Archive`](crate::Archive), a [`Delta`](crate::Delta), a file of [`PlainPages`] and an [`Image`] in memory are read
/// through it alike. A source that is not made by this crate reports its own errors as [`Error::Source`].
///
/// ```
/// use trueno_zram_archive::{Image, Pages};
/// let image = Image::new(vec![[7; 4096]; 3]);
/// let mut pages = [[0; 4096]; 2];
/// image.read(1, &mut pages)?;
/// assert_eq!((image.len_bytes(), pages), (3 * 4096, [[7; 4096]; 2]));
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
pub trait Pages: Send + Sync {
    /// Returns the length of the content in bytes.
    fn len_bytes(&self) -> u64;

    /// Reads consecutive pages, from `first` on. A shorter last page is filled up with zeros.
    ///
    /// ```
    /// use trueno_zram_archive::{Image, Pages};
    /// let (image, mut pages) = (Image::new(vec![[7; 4096]; 3]), [[0; 4096]; 2]);
    /// image.read(1, &mut pages)?;
    /// assert_eq!(pages, [[7; 4096]; 2]);
    /// assert!(image.read(2, &mut pages).is_err());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageRange`] for pages past the end; others if a page is damaged or cannot be read. A source must never
    /// return other bytes than those that were saved.
    fn read(&self, first: u64, out: &mut [Page]) -> Result<()>;

    /// Reads consecutive pages in portions of up to the length of `buffer`, and calls `visit` with each portion and the number of
    /// its first page, until that breaks. An error stands for a whole portion, or for the rest of a group.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use trueno_zram_archive::{Image, Pages};
    /// let (image, mut buffer, mut firsts) = (Image::new(vec![[7; 4096]; 10]), [[0; 4096]; 4], Vec::new());
    /// image.visit(1..10, &mut buffer, &mut |first, pages| {
    ///     firsts.push((first, pages.map_or(0, <[_]>::len)));
    ///     ControlFlow::Continue(())
    /// });
    /// assert_eq!(firsts, [(1, 4), (5, 4), (9, 1)]);
    /// ```
    fn visit(&self, pages: Range<u64>, buffer: &mut [Page], visit: &mut Visit<'_>) {
        let _ = visit_portions(pages, buffer, visit, |first, out| self.read(first, out));
    }

    /// Returns `true` if a page is known to be zero. Sources that would have to read it may return `false`.
    ///
    /// ```
    /// use trueno_zram_archive::{Image, Pages};
    /// let image = Image::new(vec![[0; 4096], [7; 4096]]);
    /// assert!(image.is_zero(0)? && !image.is_zero(1)?);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`read`](Self::read).
    fn is_zero(&self, page: u64) -> Result<bool>;

    /// Returns `true` if a page can be read without reading others. If not, it takes about as long as reading all pages near it.
    ///
    /// ```
    /// # use trueno_zram_archive::{Archive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 40 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index"); // of 40 pages
    /// use trueno_zram_archive::Pages;
    /// assert!(!archive.is_located(7)); // the first read reads a group of 1,024 pages
    /// archive.read_page(8)?;
    /// assert!(archive.is_located(7));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    fn is_located(&self, page: u64) -> bool {
        let _ = page;
        true
    }

    /// Returns `true` if pages were returned whose proof is still due. It takes no lock, so that a thread that has read pages can ask.
    ///
    /// ```
    /// # use trueno_zram_archive::{Archive, Verify, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 40 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// use trueno_zram_archive::Pages;
    /// let archive = archive.with_verify(Verify::Touched);
    /// assert!(!archive.is_proof_due());
    /// archive.read_page(8)?;
    /// assert!(archive.is_proof_due());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    fn is_proof_due(&self) -> bool {
        false
    }

    /// Proves a part of what is still [due](Self::is_proof_due), about 4 MiB of content: in a thread of low priority, or several. An
    /// [`Archive`](crate::Archive) that proves [all](crate::Verify::All) its groups goes on with the next of them.
    /// Returns `false` once nothing is left; more is due when more is read.
    ///
    /// Each group that was read is compared with its index, then what lies before it as far as that is asked for. If a proof
    /// fails, all reads of that group fail from then on; those that began before may still return. The proof goes on with the
    /// next call. [`disproven`](Self::disproven) lists what has failed.
    ///
    /// ```
    /// # use trueno_zram_archive::{Archive, Verify, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 40 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// use trueno_zram_archive::Pages;
    /// let archive = archive.with_verify(Verify::Touched);
    /// archive.read_page(8)?;
    /// while archive.prove_next()? {}
    /// assert!(!archive.is_proof_due() && archive.disproven().is_empty());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Disproven`] once per group whose proof fails; [`Error::Read`] and others if the file cannot be read: then the
    /// proof is still due.
    fn prove_next(&self) -> Result<bool> {
        Ok(false)
    }

    /// Returns the pages whose proof has failed, in order. All reads of them fail.
    ///
    /// ```
    /// use trueno_zram_archive::{Image, Pages};
    /// assert!(Image::new(vec![[7; 4096]; 3]).disproven().is_empty());
    /// ```
    fn disproven(&self) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// Returns the number of zero pages from `page` on, as far as that is known without reading anything near them.
    ///
    /// ```
    /// use trueno_zram_archive::{Image, Pages};
    /// let (image, mut page, mut read) = (Image::new(vec![[0; 4096]; 3]), 0, 0);
    /// while page < image.page_count() {
    ///     match image.zero_run(page)? {
    ///         0 => (page, read) = (page + 1, read + 1), // it may still be zero
    ///         zeros => page += zeros,
    ///     }
    /// }
    /// assert_eq!(read, 3);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`read`](Self::read).
    fn zero_run(&self, page: u64) -> Result<u64> {
        let _ = page;
        Ok(0)
    }

    /// Returns the most threads that can usefully read in parallel.
    ///
    /// ```
    /// use trueno_zram_archive::{Image, Pages};
    /// let image = Image::new(vec![[7; 4096]; 3]);
    /// let threads = image.max_readers().min(4);
    /// assert_eq!(threads, 4);
    /// ```
    fn max_readers(&self) -> usize {
        usize::MAX
    }

    /// Reads content from the position `offset`. Returns how many bytes were read: fewer than asked for only at the end.
    ///
    /// ```
    /// use trueno_zram_archive::{Image, Pages};
    /// let (image, mut bytes) = (Image::new(vec![[7; 4096], [8; 4096]]), [0; 100]);
    /// assert_eq!(image.read_at(4094, &mut bytes[..4])?, 4);
    /// assert_eq!(bytes[..4], [7, 7, 8, 8]);
    /// assert_eq!(image.read_at(8190, &mut bytes)?, 2);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`read`](Self::read).
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let left = usize::try_from(self.len_bytes().saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = out.len().min(left);
        let (mut at, mut rest) = (offset, &mut out[..wanted]);
        let mut page = [[0; PAGE_SIZE]];
        while !rest.is_empty() {
            let number = at / PAGE_SIZE as u64;
            let skipped = usize::try_from(at % PAGE_SIZE as u64).expect("less than a page");
            let step = if skipped == 0 && rest.len() >= PAGE_SIZE {
                let (whole, _) = rest.as_chunks_mut();
                self.read(number, whole)?;
                whole.len() * PAGE_SIZE
            } else {
                let step = rest.len().min(PAGE_SIZE - skipped);
                self.read(number, &mut page)?;
                rest[..step].copy_from_slice(&page[0][skipped..skipped + step]);
                step
            };
            at += step as u64;
            rest = &mut rest[step..];
        }
        Ok(wanted)
    }

    /// Returns the number of pages, a shorter last one included.
    fn page_count(&self) -> u64 {
        pages_of(self.len_bytes())
    }

    /// Returns the length of a page's content: 4096, or less for the last one.
    ///
    /// ```
    /// use trueno_zram_archive::{Pages, PlainPages};
    /// let pages = PlainPages::new(std::sync::Arc::new(vec![7; 5000]))?;
    /// assert_eq!((pages.page_len(0), pages.page_len(1), pages.page_len(2)), (4096, 904, 0));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    fn page_len(&self, page: u64) -> usize {
        page_len(self.len_bytes(), page)
    }
}

/// Receives portions of pages. See [`Pages::visit`].
///
/// ```
/// use std::ops::ControlFlow;
/// use trueno_zram_archive::{Image, Pages, Visit};
/// fn read_all(pages: &dyn Pages, visit: &mut Visit<'_>) {
///     pages.visit(0..pages.page_count(), &mut [[0; 4096]; 16], visit);
/// }
/// read_all(&Image::new(vec![[7; 4096]; 3]), &mut |_, pages| {
///     assert_eq!(pages.expect("intact").len(), 3);
///     ControlFlow::Continue(())
/// });
/// ```
pub type Visit<'a> = dyn FnMut(u64, Result<&[Page]>) -> ControlFlow<()> + 'a;

/// Reads pages portion by portion.
pub(crate) fn visit_portions(
    pages: Range<u64>,
    buffer: &mut [Page],
    visit: &mut Visit<'_>,
    read: impl Fn(u64, &mut [Page]) -> Result<()>,
) -> ControlFlow<()> {
    let mut next = pages.start;
    while next < pages.end && !buffer.is_empty() {
        let count = buffer.len().min(usize::try_from(pages.end - next).unwrap_or(usize::MAX));
        let out = &mut buffer[..count];
        let portion = read(next, out).map(|()| &*out);
        visit(next, portion)?;
        next += count as u64;
    }
    ControlFlow::Continue(())
}

/// Refuses pages that a source does not have.
pub(crate) fn check_pages(source: &(impl Pages + ?Sized), first: u64, count: usize) -> Result<()> {
    let (end, pages) = (first.saturating_add(count as u64), source.page_count());
    if end <= pages { Ok(()) } else { Err(Error::PageRange { start: first, end, pages }) }
}

/// Implements [`Pages`] for a type that holds another source, which a function returns.
macro_rules! forward_pages {
    ($source:ty => $inner:expr $(, for $held:ident)?) => {
        impl$(<$held: Pages + ?Sized>)? Pages for $source {
            fn len_bytes(&self) -> u64 {
                $inner(self).len_bytes()
            }

            fn read(&self, first: u64, out: &mut [Page]) -> Result<()> {
                $inner(self).read(first, out)
            }

            fn visit(&self, pages: Range<u64>, buffer: &mut [Page], visit: &mut Visit<'_>) {
                $inner(self).visit(pages, buffer, visit);
            }

            fn is_zero(&self, page: u64) -> Result<bool> {
                $inner(self).is_zero(page)
            }

            fn is_located(&self, page: u64) -> bool {
                $inner(self).is_located(page)
            }

            fn is_proof_due(&self) -> bool {
                $inner(self).is_proof_due()
            }

            fn prove_next(&self) -> Result<bool> {
                $inner(self).prove_next()
            }

            fn disproven(&self) -> Vec<Range<u64>> {
                $inner(self).disproven()
            }

            fn zero_run(&self, page: u64) -> Result<u64> {
                $inner(self).zero_run(page)
            }

            fn max_readers(&self) -> usize {
                $inner(self).max_readers()
            }
        }
    };
}

forward_pages!(&P => Deref::deref, for P);
forward_pages!(Arc<P> => Deref::deref, for P);
forward_pages!(PageArchive => PageArchive::pages);

/// Pages that are not compressed, in a file.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_archive::{Pages, PlainPages};
/// let pages = PlainPages::new(Arc::new(vec![7; 5000]))?;
/// let mut page = [[0; 4096]];
/// pages.read(1, &mut page)?;
/// assert_eq!((page[0][903], page[0][904], pages.page_count()), (7, 0, 2));
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Clone)]
pub struct PlainPages {
    file: Arc<dyn ReadAt>,
    len_bytes: u64,
}

impl PlainPages {
    /// Takes a file, which keeps its length.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use trueno_zram_archive::{Pages, PlainPages};
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(3 * 4096)?;
    /// let pages = PlainPages::new(Arc::new(file))?; // such as a memory dump that is not compressed
    /// assert_eq!(pages.page_count(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Read`] if the length cannot be found out.
    pub fn new(file: Arc<dyn ReadAt>) -> Result<Self> {
        let len_bytes = file_len(&*file)?;
        Ok(Self { file, len_bytes })
    }
}

impl Pages for PlainPages {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read(&self, first: u64, out: &mut [Page]) -> Result<()> {
        check_pages(self, first, out.len())?;
        let (at, bytes) = (first * PAGE_SIZE as u64, out.as_flattened_mut());
        let len = usize::try_from(self.len_bytes.saturating_sub(at)).unwrap_or(usize::MAX).min(bytes.len());
        let (content, rest) = bytes.split_at_mut(len);
        rest.fill(0);
        self.file.read_exact_at(content, at).map_err(|source| Error::Read { at, source })
    }

    fn is_zero(&self, _page: u64) -> Result<bool> {
        Ok(false)
    }
}

impl std::fmt::Debug for PlainPages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PlainPages({} bytes)", self.len_bytes)
    }
}

/// An uncompressed image in memory.
///
/// ```
/// use trueno_zram_archive::{Image, Pages};
/// assert!(Image::new(vec![[0; 4096]]).is_zero(0)?);
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Image {
    pages: Vec<Page>,
}

impl Image {
    /// Takes the pages.
    #[must_use]
    pub fn new(pages: Vec<Page>) -> Self {
        Self { pages }
    }

    fn pages_from(&self, first: u64, count: usize) -> Result<&[Page]> {
        check_pages(self, first, count)?;
        let first = usize::try_from(first).expect("less than the number of pages in memory");
        Ok(&self.pages[first..first + count])
    }
}

impl Pages for Image {
    fn len_bytes(&self) -> u64 {
        (self.pages.len() * PAGE_SIZE) as u64
    }

    fn read(&self, first: u64, out: &mut [Page]) -> Result<()> {
        out.copy_from_slice(self.pages_from(first, out.len())?);
        Ok(())
    }

    fn is_zero(&self, page: u64) -> Result<bool> {
        Ok(is_zero(self.pages_from(page, 1)?.as_flattened()))
    }
}

/// Content of any [`Pages`] with a position, for code that reads and seeks.
///
/// ```
/// use std::io::{Read, Seek, SeekFrom};
/// use trueno_zram_archive::{Image, PagesCursor};
/// let mut cursor = PagesCursor::new(Image::new(vec![[7; 4096], [8; 4096]]));
/// let mut bytes = [0; 4];
/// cursor.seek(SeekFrom::Start(4094))?;
/// cursor.read_exact(&mut bytes)?;
/// assert_eq!(bytes, [7, 7, 8, 8]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PagesCursor<P> {
    pages: P,
    at: u64,
}

impl<P: Pages> PagesCursor<P> {
    /// Starts at the first byte.
    #[must_use]
    pub fn new(pages: P) -> Self {
        Self { pages, at: 0 }
    }
}

impl<P: Pages> Read for PagesCursor<P> {
    /// Errors of the source that are not those of the operating system have the kind [`io::ErrorKind::InvalidData`].
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.pages.read_at(self.at, out).map_err(|error| match error {
            Error::Read { source, .. } => source,
            other => io::Error::new(io::ErrorKind::InvalidData, other),
        })?;
        self.at += count as u64;
        Ok(count)
    }
}

impl<P: Pages> Seek for PagesCursor<P> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(target) => Some(target),
            SeekFrom::End(by) => self.pages.len_bytes().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = target.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that differ from page to page and within each.
    fn content(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at / 7 + at / PAGE_SIZE).to_le_bytes()[0]).collect()
    }

    fn assert_reads(source: &dyn Pages, content: &[u8]) {
        assert_eq!(source.len_bytes(), content.len() as u64);
        assert_eq!(source.page_count(), content.len().div_ceil(PAGE_SIZE) as u64);
        let mut padded = content.to_vec();
        padded.resize(content.len().next_multiple_of(PAGE_SIZE), 0);
        let (expected, _) = padded.as_chunks::<PAGE_SIZE>();
        let pages = expected.len();
        for first in 0..=pages {
            for count in 0..=pages - first {
                let mut out = vec![[0xff; PAGE_SIZE]; count];
                source.read(first as u64, &mut out).unwrap();
                assert_eq!(out, expected[first..first + count]);
            }
            let past = source.read(first as u64, &mut vec![[0; PAGE_SIZE]; pages - first + 1]);
            assert!(matches!(past, Err(Error::PageRange { end, .. }) if end == pages as u64 + 1));
        }
    }

    #[test]
    fn plain_files_and_images_are_read_by_page() {
        let content = content(3 * PAGE_SIZE + 77);
        for len in [0, 1, PAGE_SIZE, 3 * PAGE_SIZE, content.len()] {
            let plain = PlainPages::new(Arc::new(content[..len].to_vec())).unwrap();
            assert_reads(&plain, &content[..len]);
        }
        let pages = content.as_chunks::<PAGE_SIZE>().0.to_vec();
        assert_reads(&Image::new(pages.clone()), pages.as_flattened());
        let image = Image::new(vec![[0; PAGE_SIZE], pages[1]]);
        assert!(image.is_zero(0).unwrap() && !image.is_zero(1).unwrap() && image.is_zero(2).is_err());
    }

    #[test]
    fn bytes_are_read_from_any_position_to_any_other() {
        let content = content(3 * PAGE_SIZE + 77);
        let plain = PlainPages::new(Arc::new(content.clone())).unwrap();
        let positions = [0, 1, 4095, 4096, 4097, 8192, 12_287, 12_288, 12_364, 12_365, 20_000];
        for start in positions {
            for end in positions.into_iter().filter(|end| *end >= start) {
                let mut out = vec![0xff; end - start];
                let count = plain.read_at(start as u64, &mut out).unwrap();
                assert_eq!(out[..count], content[start.min(content.len())..end.min(content.len())]);
            }
        }
    }

    #[test]
    fn a_cursor_seeks_from_either_end_and_from_its_position() {
        let content = content(2 * PAGE_SIZE);
        let mut cursor = PagesCursor::new(PlainPages::new(Arc::new(content.clone())).unwrap());
        let mut bytes = [0; 4];
        for (to, at) in [
            (SeekFrom::Start(4094), 4094),
            (SeekFrom::Current(100), 4198),
            (SeekFrom::Current(-202), 4000),
            (SeekFrom::End(-4), 8188),
        ] {
            assert_eq!(cursor.seek(to).unwrap(), at as u64);
            cursor.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, content[at..at + 4]);
        }
        assert_eq!(cursor.read(&mut bytes).unwrap(), 0);
        assert_eq!(cursor.seek(SeekFrom::Current(-8193)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(cursor.stream_position().unwrap(), 8192, "where it was");
    }

    /// A source whose answers differ from all defaults.
    struct Unusual;

    impl Pages for Unusual {
        fn len_bytes(&self) -> u64 {
            10 * PAGE_SIZE as u64
        }

        fn read(&self, first: u64, _: &mut [Page]) -> Result<()> {
            Err(Error::StatedHash { page: first })
        }

        fn visit(&self, pages: Range<u64>, _: &mut [Page], visit: &mut Visit<'_>) {
            let _ = visit(pages.end, Ok(&[]));
        }

        fn is_zero(&self, page: u64) -> Result<bool> {
            Ok(page == 3)
        }

        fn is_located(&self, page: u64) -> bool {
            page == 4
        }

        fn zero_run(&self, page: u64) -> Result<u64> {
            Ok(page + 1)
        }

        fn max_readers(&self) -> usize {
            7
        }
    }

    fn assert_unusual(source: impl Pages) {
        assert_eq!((source.page_count(), source.max_readers()), (10, 7));
        assert!(matches!(source.read(5, &mut []), Err(Error::StatedHash { page: 5 })));
        let mut visited = Vec::new();
        source.visit(2..6, &mut [], &mut |first, pages| {
            visited.push((first, pages.unwrap().len()));
            ControlFlow::Break(())
        });
        assert_eq!(visited, [(6, 0)]);
        assert!(source.is_zero(3).unwrap() && !source.is_zero(4).unwrap());
        assert!(!source.is_located(3) && source.is_located(4));
        assert_eq!(source.zero_run(8).unwrap(), 9);
    }

    #[test]
    fn a_reference_answers_like_its_source() {
        assert_unusual(Unusual);
        assert_unusual(&Unusual);
        assert_unusual(Arc::new(Unusual));
        assert_unusual(Arc::new(Unusual) as Arc<dyn Pages>);
    }

    #[test]
    fn defaults_promise_nothing() {
        let image = Image::new(vec![[0; PAGE_SIZE]; 3]);
        assert!(image.is_located(0) && image.is_located(2));
        assert_eq!((image.zero_run(0).unwrap(), image.max_readers()), (0, usize::MAX));
    }
}
