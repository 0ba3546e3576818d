//! Random access to the pages of an archive by its index.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use crate::decoder::PageDecoder;
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::hash::xxh32;
use crate::header::{ARCHIVE_MAX_BLOCK, FRAME_MAGIC, Header};
use crate::index::{
    ENTRY_LEN, FOOTER_LEN, Footer, GROUP_PAGES, GROUP_RECORD_LEN, Group, HEAD_LEN, INDEX_FRAME_MAGIC, INDEX_MAGIC,
    pages_of, zero_entries,
};
use crate::range::PageRangeReader;
use crate::sections;
use crate::summary::PageCounts;

/// A frame has at least so many bytes for each group before the last: 64 runs of 16 pages of zeros.
const MIN_GROUP_LEN: u64 = 64 * 270;

/// What a block holds.
///
/// ```
/// use trueno_zram_archive::BlockKind;
/// assert_ne!(BlockKind::Zeros, BlockKind::SameFilled);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// Up to 16 pages of zeros.
    Zeros,
    /// A page of one repeated 8-byte word that is not zero.
    SameFilled,
    /// A page as an LZ4 block.
    Lz4,
    /// A page as it is.
    Raw,
}

/// Where a block lies, by the index.
///
/// ```
/// use trueno_zram_archive::{BlockKind, BlockPlace};
/// let place = BlockPlace { first_page: 32, pages: 16, kind: BlockKind::Zeros, offset: 15, len_bytes: 266 };
/// assert_eq!(place.first_page + place.pages, 48);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// The number of its first page.
    pub first_page: u64,
    /// Pages in it: 1, or up to 16 pages of zeros.
    pub pages: u64,
    /// What it holds.
    pub kind: BlockKind,
    /// Where its size word stands in the file.
    pub offset: u64,
    /// Bytes of the block itself, without size word and checksum.
    pub len_bytes: u32,
}

/// An archive opened by its index.
///
/// The index only says where to look: every block that is read is held to its size, its checksum and its length, so that
/// an index that is wrong gives an error, not another page.
///
/// ```
/// use std::io::Cursor;
/// use trueno_zram_archive::{ArchiveReader, ArchiveWriter, ContentBatch, CpuPageDecoder, Piece, WriteOptions};
/// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
///
/// let pages: Vec<[u8; PAGE_SIZE]> = (0..1000).map(|n| std::array::from_fn(|i| (i / 64 * n) as u8)).collect();
/// let options = WriteOptions { content_checksum: false, ..WriteOptions::default() };
/// let mut archive = ArchiveWriter::new(Vec::new(), options)?;
/// archive.write_batch(&CpuBatchCompressor::default().compress(&pages)?)?;
/// let (bytes, _) = archive.finish(None)?;
///
/// let mut archive = ArchiveReader::open(Cursor::new(bytes))?.expect("it has an index");
/// let (mut decoder, mut batch) = (CpuPageDecoder::new(), ContentBatch::new());
/// archive.read_pages(777..778, &mut decoder)?.read_batch(&mut batch)?;
/// assert_eq!(batch.pieces().next(), Some(Piece::Data(&pages[777])));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ArchiveReader<F: Read + Seek> {
    pub(crate) file: F,
    footer: Footer,
    pub(crate) header: Header,
    groups: Vec<TableGroup>,
}

/// A group, and how many before it have entries.
struct TableGroup {
    group: Group,
    stored_before: u64,
}

impl<F: Read + Seek> ArchiveReader<F> {
    /// Opens an archive; `None` if the file has no index at its end. Reads the frame's header, the footer and the table
    /// of groups: 6 KiB for 2 GiB of pages.
    ///
    /// ```
    /// let other = std::io::Cursor::new(b"some other file");
    /// assert!(trueno_zram_archive::ArchiveReader::open(other)?.is_none());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Index`] for one that is damaged, newer, or not of the whole file; [`Error::Read`]. Either way the file may
    /// be readable as a stream.
    pub fn open(mut file: F) -> Result<Option<Self>> {
        let len = file.seek(SeekFrom::End(0)).map_err(|source| Error::Read { at: 0, source })?;
        let Some(footer_at) = len.checked_sub(FOOTER_LEN as u64) else { return Ok(None) };
        let mut footer = [0; FOOTER_LEN];
        read_at(&mut file, footer_at, &mut footer)?;
        let Some(footer) = Footer::decode(&footer)? else { return Ok(None) };

        let index_len = footer.groups().checked_mul(GROUP_RECORD_LEN as u64).map(|_| footer.index_len());
        let frame_len = index_len.and_then(|index_len| len.checked_sub(index_len));
        if frame_len != Some(footer.frame_len) {
            return Err(Error::index("it does not tell of the whole file"));
        }
        // Before memory is set aside for the table: the frame must be large enough for so many groups.
        let whole_groups = footer.groups().saturating_sub(1);
        if whole_groups.checked_mul(MIN_GROUP_LEN).is_none_or(|least| least > footer.frame_len) {
            return Err(Error::index("its frame is too short for so many pages"));
        }
        let mut head = [0; HEAD_LEN];
        read_at(&mut file, footer.frame_len, &mut head)?;
        let mut expected = INDEX_FRAME_MAGIC.to_le_bytes().to_vec();
        let payload_len = u32::try_from(footer.index_len() - 8).map_err(|_| Error::index("it is too long"))?;
        expected.extend(payload_len.to_le_bytes());
        expected.extend(INDEX_MAGIC);
        if head[..] != expected[..] {
            return Err(Error::index("it does not start where its footer says"));
        }
        let (header, header_len) = read_header(&mut file)?;
        if header.content_size.is_some_and(|size| size != footer.content_len) {
            return Err(Error::index("its content is not as long as the frame's header says"));
        }
        let groups = read_table(&mut file, &footer, &header, header_len)?;
        Ok(Some(Self { file, footer, header, groups }))
    }

    /// Bytes of content.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(3 * 4096 + 5);
    /// assert_eq!(archive.content_len(), 3 * 4096 + 5);
    /// ```
    #[must_use]
    pub fn content_len(&self) -> u64 {
        self.footer.content_len
    }

    /// Pages, a shorter last one included.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(3 * 4096 + 5);
    /// assert_eq!(archive.page_count(), 4);
    /// ```
    #[must_use]
    pub fn page_count(&self) -> u64 {
        pages_of(self.footer.content_len)
    }

    /// Pages by how they are held.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(3 * 4096 + 5);
    /// assert_eq!((archive.pages().zero, archive.pages().raw), (3, 1));
    /// ```
    #[must_use]
    pub fn pages(&self) -> PageCounts {
        self.footer.pages
    }

    /// Bytes of the file.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(4096);
    /// assert!(archive.archive_len() < 200);
    /// ```
    #[must_use]
    pub fn archive_len(&self) -> u64 {
        self.footer.frame_len + self.footer.index_len()
    }

    /// Bytes of the index, sections included.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(4096);
    /// assert!(archive.index_len() < archive.archive_len());
    /// ```
    #[must_use]
    pub fn index_len(&self) -> u64 {
        self.footer.index_len()
    }

    /// Whether blocks have checksums.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(4096);
    /// assert!(archive.has_block_checksums());
    /// ```
    #[must_use]
    pub fn has_block_checksums(&self) -> bool {
        self.header.block_checksums
    }

    /// Whether the content has a checksum, which only reading all of it can check.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(4096);
    /// assert!(!archive.has_content_checksum());
    /// ```
    #[must_use]
    pub fn has_content_checksum(&self) -> bool {
        self.header.content_checksum
    }

    /// The blocks that hold the pages of a range, in order: from the block of its first page to that of its last. Reads
    /// the entries of the groups concerned only. It takes 32 bytes of memory a block: go through large archives in parts.
    ///
    /// ```
    /// # let mut archive = trueno_zram_archive::doc_archive(40 * 4096);
    /// let places = archive.locate(20..40)?;
    /// assert_eq!((places[0].first_page, places[0].pages), (16, 16)); // zeros, in blocks of 16 pages
    /// assert_eq!((places[1].first_page, places[1].pages), (32, 8));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageRange`], [`Error::Index`] if it is damaged, [`Error::Read`].
    pub fn locate(&mut self, pages: Range<u64>) -> Result<Vec<BlockPlace>> {
        self.check_range(&pages)?;
        let mut places = Vec::new();
        let mut page = pages.start;
        while page < pages.end {
            let group = page / GROUP_PAGES as u64;
            let wanted =
                |place: &BlockPlace| place.first_page + place.pages > pages.start && place.first_page < pages.end;
            places.extend(self.group_places(group)?.into_iter().filter(wanted));
            page = (group + 1) * GROUP_PAGES as u64;
        }
        Ok(places)
    }

    /// Reads and decodes the pages of a range, batch by batch; nothing but those pages' blocks is read.
    ///
    /// ```
    /// use trueno_zram_archive::{ContentBatch, CpuPageDecoder, Piece};
    /// # let mut archive = trueno_zram_archive::doc_archive(40 * 4096);
    /// let (mut decoder, mut batch) = (CpuPageDecoder::new(), ContentBatch::new());
    /// let mut pages = archive.read_pages(20..30, &mut decoder)?;
    /// while pages.read_batch(&mut batch)? {
    ///     assert_eq!(batch.pieces().collect::<Vec<_>>(), [Piece::Zeros(10 * 4096)]);
    /// }
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageRange`].
    pub fn read_pages<'a, D: PageDecoder>(
        &'a mut self,
        pages: Range<u64>,
        decoder: &'a mut D,
    ) -> Result<PageRangeReader<'a, F, D>> {
        self.check_range(&pages)?;
        Ok(PageRangeReader::new(self, decoder, pages))
    }

    /// The names of the sections, in order.
    ///
    /// ```
    /// # let mut archive = trueno_zram_archive::doc_archive(4096);
    /// assert_eq!(archive.section_names()?, ["note"]);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Index`] if they are damaged, [`Error::Read`].
    pub fn section_names(&mut self) -> Result<Vec<String>> {
        let bytes = self.sections()?;
        sections::iter(&bytes).map(|section| section.map(|(name, _)| name.to_owned())).collect()
    }

    /// A section by its name.
    ///
    /// ```
    /// # let mut archive = trueno_zram_archive::doc_archive(4096);
    /// assert_eq!(archive.section("note")?.as_deref(), Some(&b"made for the documentation"[..]));
    /// assert_eq!(archive.section("other")?, None);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Index`] if the sections are damaged, [`Error::Read`].
    pub fn section(&mut self, name: &str) -> Result<Option<Vec<u8>>> {
        let bytes = self.sections()?;
        for section in sections::iter(&bytes) {
            let (found, body) = section?;
            if found == name {
                return Ok(Some(body.to_vec()));
            }
        }
        Ok(None)
    }

    fn sections(&mut self) -> Result<Vec<u8>> {
        let at = self.footer.frame_len + HEAD_LEN as u64 + u64::from(self.footer.entries_len);
        let len = usize::try_from(self.footer.sections_len).ok().filter(|len| *len <= sections::MAX_LEN);
        let len = len.ok_or_else(|| Error::index("its sections are too long"))?;
        let mut bytes = vec![0; len];
        read_at(&mut self.file, at, &mut bytes)?;
        if xxh32(&bytes) != self.footer.sections_checksum {
            return Err(Error::index("the checksum of its sections is wrong"));
        }
        Ok(bytes)
    }

    fn check_range(&self, pages: &Range<u64>) -> Result<()> {
        if pages.start <= pages.end && pages.end <= self.page_count() {
            return Ok(());
        }
        Err(Error::PageRange { start: pages.start, end: pages.end, pages: self.page_count() })
    }

    /// The blocks of a group, checked against where the next one starts.
    fn group_places(&mut self, number: u64) -> Result<Vec<BlockPlace>> {
        let bad = |what: &str| Error::index(format!("the entries of group {number} are {what}"));
        let first_page = number * GROUP_PAGES as u64;
        let pages = (self.page_count() - first_page).min(GROUP_PAGES as u64);
        let position = usize::try_from(number).map_err(|_| bad("not there"))?;
        let TableGroup { group, stored_before } = self.groups.get(position).ok_or_else(|| bad("not there"))?;
        let entries: Vec<Entry> = if group.all_zeros {
            zero_entries(pages).collect()
        } else {
            let mut bytes = [0; GROUP_PAGES * ENTRY_LEN];
            let bytes = &mut bytes[..usize::try_from(pages).expect("a group is small") * ENTRY_LEN];
            let skipped = HEAD_LEN as u64 + stored_before * (GROUP_PAGES * ENTRY_LEN) as u64;
            read_at(&mut self.file, self.footer.frame_len + skipped, bytes)?;
            if xxh32(bytes) != group.checksum {
                return Err(bad("damaged"));
            }
            let (entries, _) = bytes.as_chunks();
            entries.iter().map(|entry| Entry::decode(*entry)).collect::<Option<_>>().ok_or_else(|| bad("unknown"))?
        };
        let end = self
            .groups
            .get(position + 1)
            .map_or(self.footer.frame_len - self.header.end_len(), |next| next.group.offset);
        places(&entries, first_page, group.offset, 4 + self.header.block_checksum_len() as u64)
            .filter(|(_, after)| *after == end)
            .map(|(places, _)| places)
            .ok_or_else(|| bad("not those of its blocks"))
    }
}

impl<F: Read + Seek> std::fmt::Debug for ArchiveReader<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ArchiveReader({} pages in {} bytes)", self.page_count(), self.archive_len())
    }
}

/// The blocks that entries tell of, and where the last one ends. `None` if the entries contradict each other.
fn places(entries: &[Entry], first_page: u64, at: u64, overhead: u64) -> Option<(Vec<BlockPlace>, u64)> {
    let mut places = Vec::with_capacity(entries.len());
    let (mut at, mut run) = (at, 0);
    for (page, entry) in (first_page..).zip(entries) {
        // A run of zeros goes on exactly as long as it says.
        if (run > 0) != (*entry == Entry::Continues) {
            return None;
        }
        run = if run > 0 { run - 1 } else { entry.pages() - 1 };
        let Some(len) = entry.block_len() else { continue };
        let kind = match entry {
            Entry::Zeros(_) | Entry::Continues => BlockKind::Zeros,
            Entry::Word => BlockKind::SameFilled,
            Entry::Lz4(_) => BlockKind::Lz4,
            Entry::Raw(_) => BlockKind::Raw,
        };
        let len_bytes = u32::try_from(len).ok()?;
        places.push(BlockPlace { first_page: page, pages: entry.pages(), kind, offset: at, len_bytes });
        at = at.checked_add(overhead + u64::from(len_bytes))?;
    }
    (run == 0).then_some((places, at))
}

pub(crate) fn read_at<F: Read + Seek>(file: &mut F, at: u64, bytes: &mut [u8]) -> Result<()> {
    let read = file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(bytes));
    read.map_err(|source| match source.kind() {
        io::ErrorKind::UnexpectedEof => Error::Truncated { at, within: "what the index tells of" },
        _ => Error::Read { at, source },
    })
}

/// The header of the frame that the file starts with, and its length.
fn read_header<F: Read + Seek>(file: &mut F) -> Result<(Header, u64)> {
    let mut start = [0; 5];
    read_at(file, 0, &mut start)?;
    let mut rest = vec![0; Header::len_after(start[4])];
    read_at(file, 5, &mut rest)?;
    rest.insert(0, start[4]);
    if start[..4] != FRAME_MAGIC.to_le_bytes() {
        return Err(Error::index("no frame stands at the file's start"));
    }
    let header = Header::parse(&rest, 0)?;
    if !header.independent || header.max_block != ARCHIVE_MAX_BLOCK {
        return Err(Error::index("the frame is not one of a page archive"));
    }
    Ok((header, 4 + rest.len() as u64))
}

/// The table of groups, checked as far as it can be without the groups' entries.
fn read_table<F: Read + Seek>(
    file: &mut F,
    footer: &Footer,
    header: &Header,
    header_len: u64,
) -> Result<Vec<TableGroup>> {
    let len = usize::try_from(footer.table_len()).map_err(|_| Error::index("its table is too long"))?;
    let mut bytes = vec![0; len];
    read_at(file, footer.frame_len + footer.index_len() - (FOOTER_LEN + len) as u64, &mut bytes)?;
    if xxh32(&bytes) != footer.table_checksum {
        return Err(Error::index("the checksum of its table is wrong"));
    }
    let disorder = || Error::index("its table is not in order");
    let frame_end = footer.frame_len.checked_sub(header.end_len()).ok_or_else(disorder)?;
    let (mut groups, mut stored, mut before) = (Vec::with_capacity(bytes.len() / GROUP_RECORD_LEN), 0, None);
    for record in bytes.as_chunks().0 {
        let group = Group::decode(*record);
        let in_order = before.map_or(group.offset == header_len, |before| group.offset > before);
        if !in_order || group.offset >= frame_end {
            return Err(disorder());
        }
        before = Some(group.offset);
        groups.push(TableGroup { group, stored_before: stored });
        stored += u64::from(!group.all_zeros);
    }
    if groups.is_empty() && frame_end != header_len {
        return Err(disorder());
    }
    let missing = match groups.last() {
        Some(last) if !last.group.all_zeros => footer.groups() * GROUP_PAGES as u64 - pages_of(footer.content_len),
        _ => 0,
    };
    if u64::from(footer.entries_len) != (stored * GROUP_PAGES as u64 - missing) * ENTRY_LEN as u64 {
        return Err(Error::index("it does not have as many entries as its table says"));
    }
    Ok(groups)
}
