//! Sources of pages. A pipeline claims ranges of them in order, and many threads read these.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;
use trueno_zram_archive::{ContentSpan, PageArchive, Pages};
use trueno_zram_core::{PAGE_SIZE, Page};

use crate::error::Error;
use crate::input::Input;

/// Holes shorter than this are read like data: that costs less than an incomplete batch.
const MIN_HOLE_BYTES: u64 = 1 << 20;

/// Bytes that a thread reads at a time if several read one range.
const READ_BYTES: usize = 256 * PAGE_SIZE;

/// A source of pages that a pipeline compresses.
///
/// ```
/// use trueno_zram_archive::WriteOptions;
/// use trueno_zram_core::{PAGE_SIZE, Page, PageCodec};
/// use trueno_zram_io::{Claim, Compressors, Error, PageSource, Workers, compress};
///
/// /// Pages that are filled with their number.
/// struct Numbers(u8);
///
/// impl PageSource for Numbers {
///     type Error = Error;
///
///     fn len_bytes(&self) -> Option<u64> {
///         None
///     }
///
///     fn claim(&mut self, buffer: &mut [Page]) -> Result<Claim, Error> {
///         if self.0 == 100 {
///             return Ok(Claim::End);
///         }
///         buffer[0].fill(self.0);
///         self.0 += 1;
///         Ok(Claim::Filled(PAGE_SIZE))
///     }
/// }
///
/// let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
/// let mut codecs = [PageCodec::default()];
/// let compressors = Compressors::Cpu(&mut codecs);
/// let done = compress(Numbers(0), Vec::new(), WriteOptions::default(), compressors, Workers::new(&pool))?;
/// assert_eq!(done.summary.content_len, 100 * PAGE_SIZE as u64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait PageSource: Send {
    /// Errors of the source and of the pipeline.
    type Error: From<Error> + Send;

    /// Returns the bytes of content, if that is known.
    fn len_bytes(&self) -> Option<u64>;

    /// Returns the bytes of content that are not in holes, or an estimate, if that is known.
    fn data_bytes(&self) -> Option<u64> {
        self.len_bytes()
    }

    /// Claims the next part of the content: zeros, or at most as much as `buffer` holds. All but the last part are whole pages.
    /// Called by one thread at a time; a source that can be read at any position leaves the reading to
    /// [`ClaimedRange::read`], which runs outside the pipeline's lock.
    ///
    /// # Errors
    /// Any that ends the pipeline. The source is not asked again.
    fn claim(&mut self, buffer: &mut [Page]) -> Result<Claim, Self::Error>;

    /// Returns sections to keep in the archive's index, by name. Called once, after the end.
    ///
    /// # Errors
    /// Any that ends the pipeline.
    fn sections(&mut self) -> Result<Vec<(&'static str, Vec<u8>)>, Self::Error> {
        Ok(Vec::new())
    }
}

/// The next part of a source. [`PageSource`] has an example.
#[derive(Debug)]
pub enum Claim {
    /// A part of a file, of memory or of an archive, to be read outside the lock.
    Range(ClaimedRange),
    /// This many bytes, which the source has copied to the start of the buffer.
    Filled(usize),
    /// This many zero bytes: whole pages.
    Zeros(u64),
    /// The end.
    End,
}

/// A part of a source that was claimed.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_io::ClaimedRange;
/// let range = ClaimedRange::in_memory(&Arc::new(vec![[7; 4096]; 10]), 3..5);
/// let mut buffer = [[0; 4096]; 4];
/// assert_eq!(range.read(&mut buffer)?, 2 * 4096);
/// assert_eq!(buffer, [[7; 4096], [7; 4096], [0; 4096], [0; 4096]]);
/// # Ok::<(), trueno_zram_io::Error>(())
/// ```
#[derive(Debug)]
pub struct ClaimedRange {
    from: Backing,
    /// The offset of its first byte in the input, memory or archive.
    start: u64,
    len_bytes: usize,
}

/// The input, memory or archive that a claimed range is a part of.
#[derive(Debug)]
enum Backing {
    Input(Arc<Input>),
    Memory(Arc<Vec<Page>>),
    Archive(Arc<NamedArchive>),
}

/// An archive or a delta, with the name that messages use.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_archive::{PageArchive, WriteOptions, compress};
/// use trueno_zram_io::{ClaimedRange, NamedArchive};
/// let mut bytes = Vec::new();
/// compress(&[7; 10_000][..], &mut bytes, &WriteOptions::default())?;
/// let archive = PageArchive::standard(Arc::new(bytes))?.expect("it has an index");
/// let named = Arc::new(NamedArchive { archive, name: "image.lz4".into() });
/// assert_eq!(ClaimedRange::in_archive(&named, 1, 10).len_bytes(), 10_000 - 4096);
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Debug)]
pub struct NamedArchive {
    /// The archive.
    pub archive: PageArchive,
    /// Its name.
    pub name: String,
}

impl ClaimedRange {
    /// Claims whole pages that are in memory already. They are copied outside the pipeline's lock.
    ///
    /// # Panics
    /// If there are fewer pages.
    #[must_use]
    pub fn in_memory(pages: &Arc<Vec<Page>>, range: Range<usize>) -> Self {
        let len_bytes = pages[range.clone()].as_flattened().len();
        let start = (range.start * PAGE_SIZE) as u64;
        Self { from: Backing::Memory(Arc::clone(pages)), start, len_bytes }
    }

    /// Claims pages of an archive, from `first` on. They are restored outside the pipeline's lock. The last one may be shorter.
    /// [`NamedArchive`] has an example.
    #[must_use]
    pub fn in_archive(from: &Arc<NamedArchive>, first: u64, pages: usize) -> Self {
        let start = first.saturating_mul(PAGE_SIZE as u64);
        let left = from.archive.len_bytes().saturating_sub(start);
        let len_bytes = usize::try_from(left).unwrap_or(usize::MAX).min(pages * PAGE_SIZE);
        Self { from: Backing::Archive(Arc::clone(from)), start, len_bytes }
    }

    /// Returns its length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Reads the range into the start of `buffer`. Returns the bytes read.
    ///
    /// # Errors
    /// [`Error::Io`], also for a file that ends before the range does; [`Error::Archive`] for a damaged archive.
    ///
    /// # Panics
    /// If `buffer` is shorter than the range.
    pub fn read(&self, buffer: &mut [Page]) -> Result<usize, Error> {
        self.read_part(0, &mut buffer.as_flattened_mut()[..self.len_bytes])?;
        Ok(self.len_bytes)
    }

    /// Calls `work` with the pages of the range without a copy of them, if they are whole, in memory and cannot change
    /// meanwhile; `None` if the range has to be read. Discard the result of `work` then.
    pub(crate) fn borrow<R>(&self, work: impl FnOnce(&[Page]) -> R) -> Option<R> {
        let Backing::Input(input) = &self.from else { return None };
        let (page_bytes, len_bytes) = (PAGE_SIZE as u64, self.len_bytes as u64);
        if !self.start.is_multiple_of(page_bytes) || !len_bytes.is_multiple_of(page_bytes) {
            return None;
        }
        let first = self.start / page_bytes;
        input.mapped()?.borrow(first..first + len_bytes / page_bytes, work)
    }

    /// Like [`read`](Self::read), by the threads of the pool that it is called in.
    fn read_in_parallel(&self, buffer: &mut [Page]) -> Result<usize, Error> {
        let parts = buffer.as_flattened_mut()[..self.len_bytes].par_chunks_mut(READ_BYTES).enumerate();
        parts.try_for_each(|(number, part)| self.read_part(number * READ_BYTES, part))?;
        Ok(self.len_bytes)
    }

    /// Fills `buffer` with the bytes of the range after the first `skipped`, which are whole pages.
    pub(crate) fn read_part(&self, skipped: usize, buffer: &mut [u8]) -> Result<(), Error> {
        let start = self.start + skipped as u64;
        match &self.from {
            Backing::Input(input) => input.read_exact_at(start, buffer),
            Backing::Memory(pages) => {
                let start = usize::try_from(start).expect("the range is in memory");
                buffer.copy_from_slice(&pages.as_flattened()[start..][..buffer.len()]);
                Ok(())
            }
            Backing::Archive(from) => {
                let read = from.archive.read_at(start, buffer);
                read.map(drop).map_err(|error| Error::archive(&from.name, error))
            }
        }
    }
}

/// A file, a device or a pipe as a source of pages: [`Input::into_pages`] makes it. Holes of files are found, and not read.
///
/// ```
/// use trueno_zram_archive::ContentSpan;
/// use trueno_zram_io::Input;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("image");
/// std::fs::write(&path, [7; 10_000])?;
/// let mut source = Input::open(&path)?.into_pages();
/// let mut pages = vec![[0; 4096]; 2];
/// assert_eq!(source.next_span(&mut pages)?, Some(ContentSpan::Data(&[7; 2 * 4096])));
/// assert_eq!(source.next_span(&mut pages)?, Some(ContentSpan::Data(&[7; 10_000 - 2 * 4096])));
/// assert_eq!(source.next_span(&mut pages)?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileSource {
    input: Arc<Input>,
    /// Bytes claimed so far.
    at: u64,
    /// The run of data that was found last, if the input can be read at any position.
    data: Range<u64>,
    /// A read found the end of a stream: a terminal that is asked again would wait for more.
    has_ended: bool,
}

impl FileSource {
    pub(crate) fn new(input: Input) -> Self {
        let data = if input.may_have_holes() { 0..0 } else { 0..u64::MAX };
        Self { input: Arc::new(input), at: 0, data, has_ended: false }
    }

    /// Reads the next part, into `pages` if it is data, by the threads of the pool that it is called in. All but the last span are
    /// whole pages; one that is shorter than `pages` need not be the last. None at the end.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn next_span<'a>(&mut self, pages: &'a mut [Page]) -> Result<Option<ContentSpan<'a>>, Error> {
        let len_bytes = match self.claim(pages)? {
            Claim::Range(range) => range.read_in_parallel(pages)?,
            Claim::Filled(len_bytes) => len_bytes,
            Claim::Zeros(len_bytes) => return Ok(Some(ContentSpan::Zeros(len_bytes))),
            Claim::End => return Ok(None),
        };
        Ok(Some(ContentSpan::Data(&pages.as_flattened()[..len_bytes])))
    }

    fn claim_from_stream(&mut self, buffer: &mut [u8]) -> Result<Claim, Error> {
        let filled = if self.has_ended { 0 } else { self.input.read(buffer)? };
        self.has_ended = filled < buffer.len();
        Ok(if filled == 0 { Claim::End } else { Claim::Filled(filled) })
    }
}

impl PageSource for FileSource {
    type Error = Error;

    fn len_bytes(&self) -> Option<u64> {
        self.input.len_bytes
    }

    fn data_bytes(&self) -> Option<u64> {
        self.input.data_bytes()
    }

    fn claim(&mut self, buffer: &mut [Page]) -> Result<Claim, Error> {
        let buffer = buffer.as_flattened_mut();
        let Some(end) = self.input.len_bytes else { return self.claim_from_stream(buffer) };
        if self.at >= end {
            self.input.check_length()?;
            return Ok(Claim::End);
        }
        if self.at >= self.data.end {
            self.data = self.input.find_data(self.at, end, MIN_HOLE_BYTES);
            let hole_bytes = self.data.start - self.at;
            if hole_bytes >= MIN_HOLE_BYTES {
                self.at += hole_bytes;
                return Ok(Claim::Zeros(hole_bytes));
            }
        }
        let wanted = self.data.end.min(end) - self.at;
        let len_bytes = usize::try_from(wanted).map_or(buffer.len(), |wanted| wanted.min(buffer.len()));
        let range = ClaimedRange { from: Backing::Input(Arc::clone(&self.input)), start: self.at, len_bytes };
        self.at += len_bytes as u64;
        Ok(Claim::Range(range))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;
    use crate::input::LengthChanged;

    #[test]
    fn a_stream_that_ended_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let writer = std::thread::spawn({
            let fifo = fifo.clone();
            move || fs::write(fifo, b"some").unwrap()
        });
        let mut reader = Input::open(&fifo).unwrap().into_pages();
        let mut pages = [[0; PAGE_SIZE]; 2];
        assert_eq!(reader.next_span(&mut pages).unwrap(), Some(ContentSpan::Data(b"some")));
        writer.join().unwrap();
        fs::write(&fifo, b"more").unwrap();
        assert_eq!(reader.next_span(&mut pages).unwrap(), None);
    }

    #[test]
    fn a_file_that_changes_its_length_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let mut pages = [[0; PAGE_SIZE]; 2];
        let shorter = LengthChanged::Shorter { at: 100, len_bytes: 8192 };
        for (len, change) in [(100, shorter), (9000, LengthChanged::Resized { from: 8192, to: 9000 })] {
            fs::write(&path, [1; 2 * PAGE_SIZE]).unwrap();
            let mut reader = Input::open(&path).unwrap().into_pages();
            File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
            let first = reader.next_span(&mut pages).map(|_| ());
            let error = first.and_then(|()| reader.next_span(&mut pages).map(|_| ())).unwrap_err();
            let Error::Io { source, .. } = &error else { panic!("{error}") };
            assert_eq!(source.get_ref().and_then(|inner| inner.downcast_ref()), Some(&change));
        }
    }

    #[test]
    fn a_file_with_room_reserved_behind_its_end_is_read_right() {
        use std::os::unix::fs::FileExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let (file, len, data_at) = (File::create(&path).unwrap(), 4 << 20, 3 << 20);
        file.set_len(len).unwrap();
        file.write_all_at(&[1; PAGE_SIZE], data_at).unwrap();
        // More blocks than the file is long, none of them in its hole.
        let reserved = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, len, 8 << 20);
        if reserved.is_err() {
            println!("skipped: no room can be reserved in {}", folder.path().display());
            return;
        }
        let mut reader = Input::open(&path).unwrap().into_pages();
        let (mut pages, mut content) = (vec![[9; PAGE_SIZE]; 64], Vec::new());
        while let Some(span) = reader.next_span(&mut pages).unwrap() {
            match span {
                ContentSpan::Data(bytes) => content.extend(bytes),
                ContentSpan::Zeros(len_bytes) => content.resize(content.len() + usize::try_from(len_bytes).unwrap(), 0),
            }
        }
        assert!(content == fs::read(&path).unwrap());
    }

    #[test]
    fn long_holes_are_skipped_and_short_ones_are_read() {
        use std::os::unix::fs::FileExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let file = File::create(&path).unwrap();
        // Data, a short hole, data, a hole of exactly the limit, data, and a hole to the end.
        let (data_at, len) = ([0, 512 << 10, (512 << 10) + PAGE_SIZE as u64 + MIN_HOLE_BYTES], 4 << 20);
        file.set_len(len).unwrap();
        data_at.iter().for_each(|at| file.write_all_at(&[1; PAGE_SIZE], *at).unwrap());
        if rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)) != Ok(PAGE_SIZE as u64) {
            println!("skipped: no holes of single pages in {}", folder.path().display());
            return;
        }
        let mut reader = Input::open(&path).unwrap().into_pages();
        let (mut pages, mut spans) = (vec![[9; PAGE_SIZE]; 1024], Vec::new());
        while let Some(span) = reader.next_span(&mut pages).unwrap() {
            spans.push((matches!(span, ContentSpan::Zeros(_)), span.len_bytes()));
        }
        let (page, end) = (PAGE_SIZE as u64, data_at[2] + PAGE_SIZE as u64);
        let expected = [(false, data_at[1] + page), (true, MIN_HOLE_BYTES), (false, page), (true, len - end)];
        assert_eq!(spans, expected);
    }

    #[test]
    fn an_input_is_read_again_from_where_it_was_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        fs::write(&path, b"content").unwrap();
        let input = Input::open(&path).unwrap();
        for _ in 0..2 {
            let mut bytes = [0; 10];
            assert_eq!(input.read(&mut bytes).unwrap(), 7);
            assert_eq!(&bytes[..7], b"content");
            input.rewind().unwrap();
        }
    }

    #[test]
    fn files_of_sys_are_read_to_their_end() {
        // Claims 4096 bytes, and gives a few.
        let path = std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
        let Ok(content) = fs::read(path) else { return };
        let input = Input::open(path).unwrap();
        assert_eq!(input.len_bytes, None);
        let mut pages = [[0; PAGE_SIZE]; 2];
        assert_eq!(input.into_pages().next_span(&mut pages).unwrap(), Some(ContentSpan::Data(&content)));
    }
}
