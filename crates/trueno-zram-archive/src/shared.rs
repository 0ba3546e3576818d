//! Pages by number from many threads, located without I/O.

mod in_work;
mod run;
mod unproven;
mod windows;

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use trueno_zram_core::{PAGE_SIZE, Page, PageKind, PageStats};

use crate::block::Block;
use crate::blocks::{BlockPlace, GroupIndex};
use crate::decoder::CpuPages;
use crate::delta::ArchiveIdentity;
use crate::entry::PageEntry;
use crate::error::{Error, Result};
use crate::format::{Format, Layout};
use crate::group::{GroupBlocks, StreamReach};
use crate::header::RAW_BLOCK;
use crate::index::{Footer, GROUP_PAGES, pages_of};
use crate::read_at::{Positioned, ReadAt, position};
use crate::resident::{Located, ResidentGroup};
use crate::seek::{ArchiveReader, WALK_LIMIT};
use crate::table::Table;
use crate::zstd::group::check_frame;
use in_work::InWork;
use windows::Windows;

/// The longest block in a file: a raw page with the headers and the checksum of either format.
const MAX_STORED_LEN: usize = PAGE_SIZE + 16;

/// Room for a block, from the start of a cache line: the kernel copies to it faster.
#[repr(align(64))]
struct StoredBlock([u8; MAX_STORED_LEN]);

/// An archive whose pages are read by number, by many threads at once.
///
/// Pages are found by an index in memory. Opening reads only the table of groups. The first read in a group of 1,024 pages
/// reads the whole group and compares it with the index, as [`ArchiveReader`] does, with the same
/// [guarantees](ArchiveReader#what-is-guaranteed). From then on the group's index stays in memory, 2 bytes per page
/// and 150 per group, and a page takes one read of its block, which is checked and decoded. Zero pages take no read.
///
/// ```
/// use trueno_zram_archive::{ArchiveWriter, SharedReader, WriteOptions};
/// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
///
/// let pages: Vec<[u8; PAGE_SIZE]> = (0..1000).map(|n| std::array::from_fn(|i| (i / 64 * n) as u8)).collect();
/// let options = WriteOptions { content_checksum: false, ..WriteOptions::default() };
/// let mut archive = ArchiveWriter::new(Vec::new(), options)?;
/// archive.write_batch(&CpuBatchCompressor::default().compress(&pages)?)?;
/// let (bytes, _) = archive.finish(None)?; // or a file
///
/// let archive = SharedReader::open(bytes)?.expect("it has an index");
/// std::thread::scope(|threads| {
///     for thread in 0..4 {
///         let (archive, pages) = (&archive, &pages);
///         threads.spawn(move || {
///             let mut page = [0; PAGE_SIZE];
///             for number in (thread..1000).step_by(4) {
///                 archive.read_page_at(number as u64, &mut page).expect("intact");
///                 assert_eq!(page, pages[number]);
///             }
///         });
///     }
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedReader<F: ReadAt> {
    file: F,
    file_len: u64,
    footer: Footer,
    layout: Layout,
    table: Table,
    /// The groups that were compared with the index and are what it says.
    groups: Vec<OnceLock<Box<ResidentGroup>>>,
    /// Groups from the start whose blocks were compared with the index; `u64::MAX` if a stream ends in one of them.
    proven_groups: AtomicU64,
    walk_limit: u64,
    /// Groups that threads restore whole or prove now.
    in_work: InWork,
    /// Buffers of whole groups that no thread uses.
    idle: Mutex<Vec<GroupBlocks>>,
    windows: Windows,
    decoder: CpuPages,
}

impl<F: ReadAt> SharedReader<F> {
    /// Opens an archive of either format; returns `None` if the file has no index at its end.
    ///
    /// ```
    /// assert!(trueno_zram_archive::SharedReader::open(b"some other file".to_vec())?.is_none());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`ArchiveReader::open`].
    pub fn open(file: F) -> Result<Option<Self>> {
        let file_len = file.len_bytes().map_err(|source| Error::Read { at: 0, source })?;
        let Some(archive) = ArchiveReader::open(Positioned::new(&file, file_len))? else { return Ok(None) };
        let ArchiveReader { footer, layout, table, .. } = archive;
        let groups = (0..footer.groups()).map(|_| OnceLock::new()).collect();
        Ok(Some(Self {
            file,
            file_len,
            footer,
            layout,
            table,
            groups,
            proven_groups: AtomicU64::new(0),
            walk_limit: WALK_LIMIT,
            in_work: InWork::default(),
            idle: Mutex::default(),
            windows: Windows::default(),
            decoder: CpuPages::new(),
        }))
    }

    /// Sets how many bytes may be read before a group to prove its position, like [`ArchiveReader::walk_limit`].
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_shared_archive(4096);
    /// let archive = archive.walk_limit(0); // a file that was verified as a whole
    /// # drop(archive);
    /// ```
    #[must_use]
    pub fn walk_limit(mut self, bytes: u64) -> Self {
        self.walk_limit = bytes;
        self
    }

    /// Returns the format of the archive.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_shared_archive(4096);
    /// assert_eq!(archive.format(), trueno_zram_archive::Format::Lz4);
    /// ```
    #[must_use]
    pub fn format(&self) -> Format {
        self.footer.format
    }

    /// Returns the length of the content in bytes.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_shared_archive(3 * 4096 + 5);
    /// assert_eq!(archive.content_len(), 3 * 4096 + 5);
    /// ```
    #[must_use]
    pub fn content_len(&self) -> u64 {
        self.footer.content_len
    }

    /// Returns the number of pages, a shorter last one included.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_shared_archive(3 * 4096 + 5);
    /// assert_eq!(archive.page_count(), 4);
    /// ```
    #[must_use]
    pub fn page_count(&self) -> u64 {
        pages_of(self.footer.content_len)
    }

    /// Returns the number of pages of each form, as the index states it. `bytes_out` is the length of the data.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_shared_archive(3 * 4096 + 5);
    /// assert_eq!(archive.pages().zero, 3);
    /// ```
    #[must_use]
    pub fn pages(&self) -> PageStats {
        PageStats { bytes_out: self.footer.frame_len, ..self.footer.pages }
    }

    /// Returns the memory that the index takes now, in bytes.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_shared_archive(4096);
    /// assert!(archive.index_memory_bytes() < 1000);
    /// ```
    #[must_use]
    pub fn index_memory_bytes(&self) -> usize {
        let touched: usize = self.groups.iter().filter_map(OnceLock::get).map(|group| group.memory_bytes()).sum();
        self.table.memory_bytes() + size_of_val(&self.groups[..]) + touched
    }

    /// Returns whether every block has a checksum. Without, damage may go unnoticed.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_shared_archive(4096);
    /// assert!(archive.has_block_checksums());
    /// ```
    #[must_use]
    pub fn has_block_checksums(&self) -> bool {
        self.layout.block_checksums()
    }

    /// Returns what tells it from other archives.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_shared_archive(4096);
    /// assert_eq!(archive.identity(), trueno_zram_archive::doc_shared_archive(4096).identity());
    /// ```
    #[must_use]
    pub fn identity(&self) -> ArchiveIdentity {
        ArchiveIdentity::of_archive(self.file_len, &self.footer)
    }

    /// Reads a named section, such as an address map; `None` if there is none.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_shared_archive(4096);
    /// assert_eq!(archive.section("address-map", 1 << 20)?, None);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ArchiveReader::section`].
    pub fn section(&self, name: &str, max_bytes: u64) -> Result<Option<Vec<u8>>> {
        let archive = ArchiveReader::open(Positioned::new(&self.file, self.file_len))?;
        archive.map_or(Ok(None), |mut archive| archive.section(name, max_bytes))
    }

    /// Returns the underlying file.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_shared_archive(4096);
    /// assert!(!archive.file().is_empty());
    /// ```
    #[must_use]
    pub fn file(&self) -> &F {
        &self.file
    }

    /// Returns whether the index of a page's group is in memory. If it is not, reading the page takes about as long as
    /// restoring its whole group.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_shared_archive(3 * 4096 + 5);
    /// assert!(!archive.is_located(2));
    /// archive.read_page_at(0, &mut [0; 4096])?;
    /// assert!(archive.is_located(2) && !archive.is_located(4));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn is_located(&self, page: u64) -> bool {
        page < self.page_count() && self.slot(number_of(page)).is_some_and(|slot| slot.get().is_some())
    }

    /// Returns whether a group has only zero pages, by the table of groups. The group itself may still be damaged.
    pub(crate) fn is_zero_group(&self, number: u64) -> bool {
        self.table.get(number).is_some_and(|group| group.all_zeros)
    }

    /// Returns whether a page is zero, without reading it.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_shared_archive(3 * 4096 + 5);
    /// assert!(archive.is_zero_page(2)?);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`read_page_at`](Self::read_page_at).
    pub fn is_zero_page(&self, page: u64) -> Result<bool> {
        let (number, within) = self.place_of(page)?;
        match self.group(number)? {
            Some(group) => Ok(group.locate(within, &self.layout) == Located::Zero),
            None => self.read_from_damaged(page, &mut [0; PAGE_SIZE]).map(|(_, zero)| zero),
        }
    }

    /// Reads a page. Returns the length of its content: 4096, or less for the last page, of which the rest is zero.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_shared_archive(3 * 4096 + 5);
    /// let mut page = [0xff; 4096];
    /// assert_eq!(archive.read_page_at(0, &mut page)?, 4096);
    /// assert_eq!(archive.read_page_at(3, &mut page)?, 5);
    /// assert!(archive.read_page_at(4, &mut page).is_err());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageRange`]; [`Error::Index`] if a block of the group is not what the index says; [`Error::Block`] or
    /// [`Error::BlockChecksum`] if the page is corrupt; [`Error::Read`]. The contents of `out` are then unspecified.
    pub fn read_page_at(&self, page: u64, out: &mut Page) -> Result<usize> {
        let (number, within) = self.place_of(page)?;
        let Some(group) = self.group(number)? else { return self.read_from_damaged(page, out).map(|(len, _)| len) };
        self.read_located(page, group.locate(within, &self.layout), out)
    }

    /// Reads content from the position `offset`. Returns how many bytes were read: fewer than asked for only at the end.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_shared_archive(3 * 4096 + 5);
    /// assert_eq!(archive.read_at(4000, &mut [0; 200])?, 200);
    /// assert_eq!(archive.read_at(3 * 4096, &mut [0; 200])?, 5);
    /// assert_eq!(archive.read_at(u64::MAX, &mut [0; 200])?, 0);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`read_page_at`](Self::read_page_at).
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        read_content_at(self.content_len(), offset, out, |page, out| self.read_page_at(page, out).map(|_| ()))
    }

    /// Returns a reader of the content with a position of its own. Several can be used at the same time.
    ///
    /// ```
    /// use std::io::{Read, Seek, SeekFrom};
    /// # let archive = trueno_zram_archive::doc_shared_archive(3 * 4096 + 5);
    /// let (mut content, mut end) = (archive.cursor(), Vec::new());
    /// content.seek(SeekFrom::End(-5))?;
    /// content.read_to_end(&mut end)?;
    /// assert_eq!(end.len(), 5);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn cursor(&self) -> ContentCursor<'_, F> {
        ContentCursor { archive: self, at: 0 }
    }

    /// Returns the group of a page and the page's number in it.
    fn place_of(&self, page: u64) -> Result<(u64, usize)> {
        let pages = self.page_count();
        if page >= pages {
            return Err(Error::PageRange { start: page, end: page.saturating_add(1), pages });
        }
        let group_pages = GROUP_PAGES as u64;
        Ok((page / group_pages, usize::try_from(page % group_pages).expect("a group is small")))
    }

    /// Returns the index of a group, after comparing its blocks with it for the first time. `None` if blocks are damaged.
    fn group(&self, number: u64) -> Result<Option<&ResidentGroup>> {
        let slot = self.slot(number).ok_or_else(|| Error::index("it has no such group"))?;
        if let Some(group) = slot.get() {
            return Ok(Some(group));
        }
        self.with_group(number, |blocks| {
            let Some(places) = blocks.intact_places() else { return Ok(None) };
            if let Some(group) = self.table.get(number) {
                self.file.expect_reads(group.offset, blocks.window().len());
            }
            Ok(Some(&**slot.get_or_init(|| self.resident(places))))
        })
    }

    /// Returns the place for the index of a group.
    fn slot(&self, number: u64) -> Option<&OnceLock<Box<ResidentGroup>>> {
        self.groups.get(usize::try_from(number).ok()?)
    }

    fn index(&self) -> GroupIndex<'_> {
        GroupIndex { footer: &self.footer, layout: &self.layout, table: &self.table }
    }

    fn resident(&self, places: &[BlockPlace]) -> Box<ResidentGroup> {
        Box::new(ResidentGroup::new(places, &self.layout, self.content_len()))
    }

    /// Reads a group and compares it with the index, after the groups before it as far as the limit allows.
    fn with_group<T>(&self, number: u64, work: impl FnOnce(&GroupBlocks) -> Result<T>) -> Result<T> {
        let mut blocks = self.take_idle();
        let target = self.table.get(number).ok_or_else(|| Error::index("it has no such group"))?.offset;
        let mut file = Positioned::new(&self.file, self.file_len);
        let mut read = |blocks: &mut GroupBlocks, number, stream| blocks.read(&mut file, number, self.index(), stream);
        let done = loop {
            let proven = self.proven_groups.load(Ordering::Acquire);
            let next = self.table.get(proven).map_or(0, |group| group.offset);
            if proven >= number || target.saturating_sub(next) > self.walk_limit {
                let stream = if proven == u64::MAX { StreamReach::EndsBefore } else { StreamReach::Reaches };
                let done = read(&mut blocks, number, stream);
                if done.is_ok() && proven == number {
                    self.note_proven(number, &blocks);
                }
                break done;
            }
            if let Err(error) = read(&mut blocks, proven, StreamReach::Reaches) {
                break Err(error);
            }
            self.note_proven(proven, &blocks);
        };
        let done = done.and_then(|()| work(&blocks));
        self.give_idle(blocks);
        done
    }

    fn take_idle(&self) -> GroupBlocks {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn give_idle(&self, blocks: GroupBlocks) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(blocks);
    }

    /// Notes that a group was compared with the index, and all before it.
    fn note_proven(&self, number: u64, blocks: &GroupBlocks) {
        // A stream ends with an error at a block that it refuses: nothing after it can contradict the stream.
        self.advance_proven(number, if blocks.is_refused() { u64::MAX } else { number + 1 });
    }

    /// Another thread may have come first; the count never goes back.
    fn advance_proven(&self, from: u64, to: u64) {
        let _ = self.proven_groups.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Reads a page of a group that has damaged blocks. Returns the length of its content, and whether it is zero.
    fn read_from_damaged(&self, page: u64, out: &mut Page) -> Result<(usize, bool)> {
        self.with_group(number_of(page), |group| {
            let (places, blocks) = group.blocks_of(&(page..page + 1))?;
            let (Some(place), Some(block)) = (places.first(), blocks.first()) else {
                return Err(Error::index(format!("it has no block for page {page}")));
            };
            let len = self.page_len(page);
            if place.zero {
                out.fill(0);
            } else {
                self.decode(block, group.window(), len, out)?;
            }
            Ok((len, place.zero))
        })
    }

    /// Reads a page at its place. Returns the length of its content.
    fn read_located(&self, page: u64, located: Located, out: &mut Page) -> Result<usize> {
        match located {
            Located::Zero => out.fill(0),
            Located::Block { offset, entry } => {
                let first = self.table.get(number_of(page)).map_or(0, |group| group.offset);
                self.read_block(page, first + offset, entry, out)?;
            }
        }
        Ok(self.page_len(page))
    }

    /// Reads and decodes the block of a page.
    fn read_block(&self, page: u64, at: u64, entry: PageEntry, out: &mut Page) -> Result<()> {
        let len = self.layout.stored_len(entry);
        if let Some(bytes) = self.file.bytes_at(at, len) {
            fetch_lines(bytes);
            return self.restore_block(page, at, entry, bytes, out);
        }
        let mut bytes = StoredBlock([0; MAX_STORED_LEN]);
        self.read_bytes(page, at, &mut bytes.0[..len])?;
        self.restore_block(page, at, entry, &bytes.0[..len], out)
    }

    /// Reads a part of the file that starts with the block of a page.
    fn read_bytes(&self, page: u64, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(bytes, at).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => Error::Truncated { at, page: Some(page), within: "a block" },
            _ => Error::Read { at, source },
        })
    }

    /// Checks and decodes the block of a page that was read.
    fn restore_block(&self, page: u64, at: u64, entry: PageEntry, bytes: &[u8], out: &mut Page) -> Result<()> {
        // The group was compared with the index, but the file may have changed since.
        let block = self.block_of(page, at, entry, bytes);
        let changed =
            || Error::index(format!("page {page} (byte {at}): the block there is not the one that it describes"));
        let block = block.ok_or_else(changed)?;
        if self.layout.block_checksums() {
            block.verify(bytes)?;
        }
        self.decode(&block, bytes, self.page_len(page), out)
    }

    /// Returns the block in `bytes` if its header is the one that the entry implies.
    fn block_of(&self, page: u64, at: u64, entry: PageEntry, bytes: &[u8]) -> Option<Block> {
        let len_bytes = u32::try_from(self.layout.block_len(entry)?).ok()?;
        let kind = match entry {
            PageEntry::Word => PageKind::SameFilled,
            PageEntry::Raw(_) => PageKind::Raw,
            _ => self.format().packed_kind(),
        };
        let place = BlockPlace { first_page: page, pages: 1, kind, zero: false, offset: at, len_bytes };
        match self.layout {
            Layout::Lz4(_) => {
                let raw = kind == PageKind::Raw;
                let block = Block { page: Some(page), ..Block::lz4(at, 4, len_bytes as usize, raw) };
                let size = len_bytes | if raw { RAW_BLOCK } else { 0 };
                bytes.starts_with(&size.to_le_bytes()).then_some(block)
            }
            Layout::Zstd { checksums } => {
                let (block, fits) = check_frame(&place, at, bytes, self.content_len(), checksums);
                fits.then_some(block)
            }
        }
    }

    /// Decodes a block that holds `len` bytes: a page, or the last and shorter one.
    fn decode(&self, block: &Block, window: &[u8], len: usize, out: &mut Page) -> Result<()> {
        if len == PAGE_SIZE {
            let data = block.as_page(window).ok_or_else(|| block.corrupt("it is not a page"))?;
            return self.decoder.decode_one(data, out, &mut None).map_err(|error| block.corrupt(error));
        }
        let found = block.decode(window, &[], out)?;
        if found != len {
            return Err(block.corrupt(format!("it holds {found} bytes; the last page has {len}")));
        }
        out[len..].fill(0);
        Ok(())
    }
}

/// Brings bytes that are probably not in the cache there all at once: the checksum, which reads them in order, would wait
/// for several lines one after the other.
fn fetch_lines(bytes: &[u8]) {
    std::hint::black_box(bytes.iter().step_by(64).fold(0, |all, byte| all ^ byte));
}

/// Reads content of `content_len` bytes from the position `offset`, page by page. Returns how many bytes were read.
pub(crate) fn read_content_at(
    content_len: u64,
    offset: u64,
    out: &mut [u8],
    read_page: impl Fn(u64, &mut Page) -> Result<()>,
) -> Result<usize> {
    let left = usize::try_from(content_len.saturating_sub(offset)).unwrap_or(usize::MAX);
    let wanted = out.len().min(left);
    let (mut at, mut rest) = (offset, &mut out[..wanted]);
    let mut page = [0; PAGE_SIZE];
    while !rest.is_empty() {
        let number = at / PAGE_SIZE as u64;
        let skipped = usize::try_from(at % PAGE_SIZE as u64).expect("less than a page");
        let step = rest.len().min(PAGE_SIZE - skipped);
        match rest.first_chunk_mut::<PAGE_SIZE>() {
            Some(whole) if skipped == 0 => read_page(number, whole)?,
            _ => {
                read_page(number, &mut page)?;
                rest[..step].copy_from_slice(&page[skipped..skipped + step]);
            }
        }
        at += step as u64;
        rest = &mut rest[step..];
    }
    Ok(wanted)
}

fn number_of(page: u64) -> u64 {
    page / GROUP_PAGES as u64
}

impl<F: ReadAt> std::fmt::Debug for SharedReader<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedReader({} pages in {} bytes)", self.page_count(), self.file_len)
    }
}

/// Reads the content of an archive from a position of its own. See [`SharedReader::cursor`].
///
/// ```
/// use std::io::Read;
/// # let archive = trueno_zram_archive::doc_shared_archive(5);
/// let mut content = Vec::new();
/// assert_eq!(archive.cursor().read_to_end(&mut content)?, 5);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ContentCursor<'a, F: ReadAt> {
    archive: &'a SharedReader<F>,
    at: u64,
}

impl<F: ReadAt> Read for ContentCursor<'_, F> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.archive.read_at(self.at, out).map_err(|error| match error {
            Error::Read { source, .. } => source,
            other => io::Error::new(io::ErrorKind::InvalidData, other),
        })?;
        self.at += count as u64;
        Ok(count)
    }
}

impl<F: ReadAt> Seek for ContentCursor<'_, F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = position(to, self.at, self.archive.content_len())?;
        Ok(self.at)
    }
}
