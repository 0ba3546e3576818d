//! An archive whose pages are read by number, by many threads at once.

mod codec_pages;
mod consecutive_pages;
mod ends;
pub(crate) mod group;
mod group_proofs;
mod groups;
mod in_flight;
mod proof;
mod single_page;

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

use trueno_zram_core::{Page, PageStats};

use crate::archive::group::GroupBuffer;
use crate::delta::ArchiveIdentity;
use crate::error::{Error, Result};
use crate::format::{Format, Layout};
use crate::index::blocks::{BlockPlace, Blocks, GroupIndex};
use crate::index::layout::{GROUP_PAGES, IndexFooter, pages_of};
use crate::index::resident::ResidentGroup;
use crate::index::sections::{Section, Sections};
use crate::index::table::GroupTable;
use crate::pages::{Pages, Visit};
use crate::read_at::{ReadAt, file_len};
use crate::stream::decoder::CpuPages;

pub use codec_pages::CodecPages;
pub(crate) use ends::{ArchiveEnd, read_footer};
use group_proofs::GroupProofs;
pub use groups::GroupTotals;
use in_flight::InFlight;
pub use proof::Verify;
use proof::WALK_LIMIT;

/// A standard .lz4 or .zst file with an index, read by page number from any thread.
///
/// Opening reads the first header, the footer and the table of groups: 6 KiB for 2 GiB of pages. The first read in a group of
/// 1,024 pages reads the whole group and compares it with the index. From then on the group's index stays in memory, 2 bytes
/// per page and 150 per group, and a page takes one read of its block, which is checked and decoded. Zero pages take no read.
///
/// An archive starts no threads. To restore all of it, threads of the caller [read groups](Self::read_group) side by side.
///
/// # What is guaranteed
///
/// The index says where to look, and is never believed on its own. Before a page is returned, all blocks of its group are read
/// and compared with the index: their positions, lengths and forms, and the number of pages in each. The same is done for all
/// groups before it, up to the [walk limit](Self::with_walk_limit): by default, 16 MiB of the file. Within the limit, a page is
/// exactly what a [`FrameReader`](crate::FrameReader) returns at that position, or an error, whatever the file contains.
///
/// Beyond the limit, the position of the page's group is taken from the index. No reader that leaves parts of a file unread
/// can prove it: the unread part may hold more or fewer pages than the index says. What holds at any distance is this: if a
/// `FrameReader` accepts the file and finds that [the index agrees](crate::IndexVerdict::Agrees), every page by the index is
/// the same page. [`Verify`] says how much is proven before a page is returned.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_archive::{Archive, WriteOptions, compress};
///
/// let content: Vec<u8> = (0..1000 * 4096u32).map(|at| (at / 64 * (at >> 12)) as u8).collect();
/// let mut bytes = Vec::new(); // or a file
/// compress(&content[..], &mut bytes, &WriteOptions::default())?;
///
/// let archive = Archive::read_from(Arc::new(bytes))?.expect("it has an index");
/// std::thread::scope(|threads| {
///     for thread in 0..4 {
///         let (archive, content) = (&archive, &content);
///         threads.spawn(move || {
///             for number in (thread..1000).step_by(4) {
///                 let page = archive.read_page(number as u64).expect("intact");
///                 assert_eq!(page[..], content[number * 4096..][..4096]);
///             }
///         });
///     }
/// });
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
pub struct Archive {
    pub(crate) file: Arc<dyn ReadAt>,
    file_len: u64,
    pub(crate) footer: IndexFooter,
    pub(crate) layout: Layout,
    /// Length of the seek table after the index; 0 if there is none.
    pub(crate) seek_table_len: u64,
    table: GroupTable,
    /// The groups whose places are known: those that were compared with the index, or their entries alone.
    groups: Vec<OnceLock<Box<ResidentGroup>>>,
    verify: Verify,
    walk_limit: u64,
    /// Groups from the start whose blocks were compared with the index; `u64::MAX` if a stream ends in one of them.
    proven_groups: AtomicU64,
    proofs: GroupProofs,
    in_flight: InFlight,
    /// Buffers that no thread uses now.
    idle: Mutex<Vec<GroupBuffer>>,
    decoder: CpuPages,
}

/// Properties of an archive, as its index states them.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_archive::{Archive, Format, WriteOptions, compress};
/// let mut bytes = Vec::new();
/// compress(&[0; 3 * 4096 + 5][..], &mut bytes, &WriteOptions::default())?;
/// let info = Archive::read_from(Arc::new(bytes))?.expect("it has an index").info();
/// assert_eq!((info.content_len, info.page_count, info.group_count), (3 * 4096 + 5, 4, 1));
/// assert_eq!((info.format, info.pages.zero, info.pages.raw), (Format::Lz4, 3, 1));
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchiveInfo {
    /// The format of its pages.
    pub format: Format,
    /// Length of the content in bytes.
    pub content_len: u64,
    /// Number of pages, a shorter last one included.
    pub page_count: u64,
    /// Number of groups of 1,024 pages.
    pub group_count: u64,
    /// Length of the file in bytes.
    pub archive_len: u64,
    /// Length of the index in bytes, with its sections and the seek table after it.
    pub index_len: u64,
    /// Pages of each kind. `bytes_out` is the length of their blocks, with size words and checksums.
    pub pages: PageStats,
    /// Blocks have checksums.
    pub block_checksums: bool,
    /// The content has a checksum, which only reading all of it can check.
    pub content_checksum: bool,
}

impl Archive {
    /// Opens an archive by its path.
    ///
    /// `ArchiveOpener` of the crate `trueno-zram-io` opens deltas as well, and notices if the file is changed in place.
    ///
    /// ```
    /// use trueno_zram_archive::{Archive, WriteOptions, compress};
    /// # let folder = tempfile::tempdir().map_err(trueno_zram_archive::Error::Write)?;
    /// # let path = folder.path().join("memory.lz4");
    /// # let file = std::fs::File::create(&path).map_err(trueno_zram_archive::Error::Write)?;
    /// compress(&[7; 100_000][..], file, &WriteOptions::default())?;
    /// assert_eq!(Archive::open(&path)?.read_page(24)?[..1696], [7; 1696]);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Read`] if it cannot be opened; [`Error::NoIndex`]; those of [`read_from`](Self::read_from).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let file = File::open(path).map_err(|source| Error::Read { at: 0, source })?;
        Self::read_from(Arc::new(file))?.ok_or(Error::NoIndex)
    }

    /// Opens an archive of either format; returns `None` if the file has no index at its end.
    ///
    /// ```
    /// let other = std::sync::Arc::new(b"some other file".to_vec());
    /// assert!(trueno_zram_archive::Archive::read_from(other)?.is_none());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Index`] if the index is damaged, of an unknown version, or does not describe the whole file;
    /// [`Error::Read`]. The file may still be readable as a stream.
    pub fn read_from(file: Arc<dyn ReadAt>) -> Result<Option<Self>> {
        let Some(end) = read_footer(&*file)? else { return Ok(None) };
        let (layout, start) = end.layout(&*file)?;
        Self::with_layout(file, end, layout, start).map(Some)
    }

    /// Opens an archive with this layout, whose first block is at `start`.
    pub(crate) fn with_layout(file: Arc<dyn ReadAt>, end: ArchiveEnd, layout: Layout, start: u64) -> Result<Self> {
        let ArchiveEnd { footer, seek_table_len } = end;
        if layout.content_size().is_some_and(|size| size != footer.content_len) {
            return Err(Error::index("its content does not have the length that the frame's header announces"));
        }
        let file_len = file_len(&*file)?;
        let table = GroupTable::read(&*file, &footer, &layout, start)?;
        let groups = (0..footer.groups()).map(|_| OnceLock::new()).collect();
        Ok(Self {
            file,
            file_len,
            footer,
            layout,
            seek_table_len,
            table,
            groups,
            verify: Verify::Group,
            walk_limit: WALK_LIMIT,
            proven_groups: AtomicU64::new(0),
            proofs: GroupProofs::new(footer.groups()),
            in_flight: InFlight::default(),
            idle: Mutex::default(),
            decoder: CpuPages::new(),
        })
    }

    /// Returns its properties, as the index states them.
    #[must_use]
    pub fn info(&self) -> ArchiveInfo {
        let Self { footer, layout, seek_table_len, .. } = self;
        let index_len = footer.index_len() + seek_table_len;
        let header_len = self.table.get(0).map_or(footer.frame_len, |first| first.offset);
        let bytes_out = footer.frame_len.saturating_sub(header_len + layout.end_len());
        ArchiveInfo {
            format: footer.format,
            content_len: footer.content_len,
            page_count: pages_of(footer.content_len),
            group_count: footer.groups(),
            archive_len: footer.frame_len + index_len,
            index_len,
            pages: PageStats { bytes_out, ..footer.pages },
            block_checksums: layout.block_checksums(),
            content_checksum: layout.content_checksum(),
        }
    }

    /// Returns its identity, by which deltas name their base.
    ///
    /// ```
    /// # use trueno_zram_archive::{Archive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 40 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index"); // of 40 pages
    /// let opened_before = archive.identity();
    /// assert_eq!(archive.identity(), opened_before); // it is still the same archive
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn identity(&self) -> ArchiveIdentity {
        ArchiveIdentity::of_archive(self.file_len, &self.footer)
    }

    /// Returns the memory that the index takes now, in bytes.
    ///
    /// ```
    /// # use trueno_zram_archive::{Archive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 40 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index"); // of 40 pages
    /// let before = archive.index_memory_bytes();
    /// archive.read_page(7)?;
    /// assert!(archive.index_memory_bytes() > before); // the index of a group stays in memory
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn index_memory_bytes(&self) -> usize {
        let touched: usize = self.groups.iter().filter_map(OnceLock::get).map(|group| group.memory_bytes()).sum();
        self.table.memory_bytes() + size_of_val(&self.groups[..]) + self.proofs.memory_bytes() + touched
    }

    /// Returns the blocks that hold the pages of a range, in order: from the block of its first page to that of its
    /// last. This is what the index says; the blocks themselves are not read.
    ///
    /// Entries are read group by group, so memory does not grow with the range.
    ///
    /// ```
    /// # use trueno_zram_archive::{Archive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # let options = WriteOptions::default().with_content_checksum(true);
    /// # compress(&[0; 40 * 4096][..], &mut bytes, &options)?;
    /// let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index"); // of 40 zero pages
    /// let blocks: Vec<_> = archive.blocks(20..40)?.collect::<Result<_, _>>()?;
    /// assert_eq!((blocks[0].first_page, blocks[0].pages), (16, 16)); // zeros, in blocks of 16 pages
    /// assert_eq!((blocks[1].first_page, blocks[1].pages), (32, 8));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageRange`]. The iterator returns [`Error::Index`] for damaged entries, and [`Error::Read`].
    pub fn blocks(&self, pages: Range<u64>) -> Result<Blocks<'_>> {
        self.check_range(&pages)?;
        Ok(Blocks::new(self.index(), pages))
    }

    /// Returns the sections of the index, in order, after checking their checksum.
    ///
    /// ```
    /// use trueno_zram_archive::{Archive, ArchiveWriter, WriteOptions};
    /// let mut writer = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// writer.add_section("note", b"kept with the pages")?;
    /// let archive = Archive::read_from(std::sync::Arc::new(writer.finish(None)?.0))?.expect("it has an index");
    /// for section in archive.sections()? {
    ///     assert_eq!(section?.name, "note");
    /// }
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Index`] if they are damaged, [`Error::Read`].
    pub fn sections(&self) -> Result<Sections<'_>> {
        let (start, end) = (self.footer.sections_at(), self.footer.table_at());
        Sections::verified(&*self.file, start, end, self.footer.sections_checksum)
    }

    /// Reads a section by its name, if it has at most `max_bytes`. Its length is checked before memory is allocated.
    ///
    /// ```
    /// use trueno_zram_archive::{Archive, ArchiveWriter, WriteOptions};
    /// let mut writer = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// writer.add_section("note", b"kept with the pages")?;
    /// let archive = Archive::read_from(std::sync::Arc::new(writer.finish(None)?.0))?.expect("it has an index");
    /// assert_eq!(archive.section("note", 1 << 20)?.as_deref(), Some(&b"kept with the pages"[..]));
    /// assert_eq!(archive.section("other", 1 << 20)?, None);
    /// assert!(archive.section("note", 10).is_err());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SectionTooLarge`], [`Error::Index`] if the sections are damaged, [`Error::Read`].
    pub fn section(&self, name: &str, max_bytes: u64) -> Result<Option<Vec<u8>>> {
        let mut sections = self.sections()?;
        while let Some(section) = sections.next() {
            let section = section?;
            if section.name != name {
                continue;
            }
            if section.len_bytes > max_bytes {
                let Section { name, len_bytes, .. } = section;
                return Err(Error::SectionTooLarge { name, len_bytes, max_bytes });
            }
            return sections.read(&section).map(Some);
        }
        Ok(None)
    }

    pub(crate) fn index(&self) -> GroupIndex<'_> {
        GroupIndex { file: &*self.file, footer: &self.footer, layout: &self.layout, table: &self.table }
    }

    /// Returns `true` if the table says that all pages of a group are zero.
    pub(crate) fn is_zero_group(&self, number: u64) -> bool {
        self.table.get(number).is_some_and(|group| group.all_zeros)
    }

    fn check_range(&self, pages: &Range<u64>) -> Result<()> {
        if pages.start <= pages.end && pages.end <= self.page_count() {
            return Ok(());
        }
        Err(Error::PageRange { start: pages.start, end: pages.end, pages: self.page_count() })
    }

    /// Returns the number of the group that holds a page.
    fn group_with(&self, page: u64) -> Result<u64> {
        self.check_range(&(page..page.saturating_add(1)))?;
        Ok(group_of(page))
    }

    /// Returns the position of a group's first block.
    pub(crate) fn offset_of(&self, number: u64) -> Result<u64> {
        self.table.get(number).map(|group| group.offset).ok_or_else(|| Error::index("it has no such group"))
    }

    fn resident(&self, places: &[BlockPlace]) -> Box<ResidentGroup> {
        Box::new(ResidentGroup::new(places, &self.layout, self.footer.content_len))
    }

    fn slot(&self, number: u64) -> Option<&OnceLock<Box<ResidentGroup>>> {
        self.groups.get(usize::try_from(number).ok()?)
    }

    // Nobody waits for the buffers: a thread of low priority may hold their lock for long.
    fn take_buffer(&self) -> GroupBuffer {
        self.idle.try_lock().ok().and_then(|mut idle| idle.pop()).unwrap_or_default()
    }

    fn return_buffer(&self, buffer: GroupBuffer) {
        if let Ok(mut idle) = self.idle.try_lock() {
            idle.push(buffer);
        }
    }
}

impl Pages for Archive {
    fn len_bytes(&self) -> u64 {
        self.footer.content_len
    }

    fn read(&self, first: u64, out: &mut [Page]) -> Result<()> {
        match out {
            [page] => self.read_one(first, page),
            pages => self.read_pages(first, pages),
        }
    }

    fn visit(&self, pages: Range<u64>, buffer: &mut [Page], visit: &mut Visit<'_>) {
        self.visit_groups(pages, buffer, visit);
    }

    fn is_zero(&self, page: u64) -> Result<bool> {
        let number = self.group_with(page)?;
        match self.locate(number)? {
            Some(group) => Ok(group.locate(page, &self.layout).is_none()),
            None => {
                self.with_group(number, |group| Ok(group.blocks_of(&(page..page + 1))?.all(|(place, _)| place.zero)))
            }
        }
    }

    fn is_located(&self, page: u64) -> bool {
        let number = group_of(page);
        page < self.page_count() && (self.trusts_index(number) || self.known(number).is_some())
    }

    fn is_proof_due(&self) -> bool {
        self.has_unproven()
    }

    fn prove_next(&self) -> Result<bool> {
        self.prove_one()
    }

    fn disproven(&self) -> Vec<Range<u64>> {
        self.disproven_ranges()
    }
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Archive({} pages in {} bytes)", self.page_count(), self.file_len)
    }
}

/// Returns the number of the group that holds a page.
fn group_of(page: u64) -> u64 {
    page / GROUP_PAGES as u64
}
