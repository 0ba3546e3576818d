//! Errors of image directories, pagemaps and messages.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use trueno_zram_io::open_regular_file;

/// An error of an image directory, or of a lazy restore.
///
/// ```
/// use trueno_zram_criu::{Error, ImageDir};
/// let empty = tempfile::tempdir()?;
/// assert!(matches!(ImageDir::open(empty.path()), Err(Error::NoPagemaps { .. })));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A pagemap is malformed.
    #[error("{}: {problem}", path.display())]
    Pagemap {
        /// The file.
        path: PathBuf,
        /// The reason.
        problem: PagemapProblem,
    },
    /// An archive of pages cannot be opened.
    #[error("{}: {source}", path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: trueno_zram_archive::Error,
    },
    /// A compressed file of pages has no index, so that single pages cannot be found.
    #[error("{}: it has no index; `trueno-zram criu compress` makes archives that have one", path.display())]
    NoIndex {
        /// The file.
        path: PathBuf,
    },
    /// An archive has no block checksums.
    #[error("{}: it has no block checksums: damage would not be noticed", path.display())]
    NoChecksums {
        /// The file.
        path: PathBuf,
    },
    /// The directory has no pagemap of a process.
    #[error("{}: it has no pagemap-PID.img: not an image directory of CRIU", path.display())]
    NoPagemaps {
        /// The directory.
        path: PathBuf,
    },
    /// A pagemap's file of pages is missing.
    #[error("{}: its pages are missing: there is no pages-{pages_id}.img, .img.lz4, .img.zst or .img.tzd", path.display())]
    NoPages {
        /// The pagemap.
        path: PathBuf,
        /// The number of the pages file.
        pages_id: u32,
    },
    /// Two pagemaps name the same file of pages.
    #[error("{}: its pages are in pages-{pages_id}.img, as those of another pagemap", path.display())]
    SharedPages {
        /// The second pagemap.
        path: PathBuf,
        /// The number of the pages file.
        pages_id: u32,
    },
    /// A file of pages has fewer pages than its pagemap says.
    #[error("{}: the pagemap has {pages} pages, but the pages file has {len_bytes} bytes", path.display())]
    PagesShort {
        /// The pagemap.
        path: PathBuf,
        /// Pages in the pagemap.
        pages: u64,
        /// Length of the pages file's content.
        len_bytes: u64,
    },
    /// The directory depends on a parent whose pages are compressed.
    #[error(
        "{}: its pages are compressed, and CRIU reads those of parents itself; decompress them first", path.display()
    )]
    CompressedParent {
        /// The parent directory.
        path: PathBuf,
    },
    /// A page that a process needs before it runs cannot be restored.
    #[error("process {pid}, address {address:#x}: page {page} of its pages file cannot be restored: {source}")]
    Damaged {
        /// The process.
        pid: u64,
        /// The address.
        address: u64,
        /// The page's number in the pages file.
        page: u64,
        /// The reason.
        source: trueno_zram_archive::Error,
    },
    /// Pages that can wait are not in the images: they were left with the process that was dumped.
    #[error("process {pid}: the page at {address:#x} is not in the images; restore from a dump without --lazy-pages")]
    Absent {
        /// The process.
        pid: u64,
        /// The address.
        address: u64,
    },
    /// `criu restore` has restored a process that the images do not have.
    #[error("`criu restore` sent process {pid}, which is not in the images")]
    UnknownProcess {
        /// The process.
        pid: i32,
    },
    /// A process was sent without exactly one file descriptor.
    #[error("`criu restore` sent process {pid} without one file descriptor")]
    NotOneFd {
        /// The process.
        pid: i32,
    },
    /// A process was sent by one that the kernel does not show, such as one in another PID namespace.
    #[error("`criu restore` sent process {pid} without its sender")]
    NoSender {
        /// The process.
        pid: i32,
    },
    /// `criu restore` ended before it had restored everything.
    #[error("`criu restore` ended before all processes were restored: its log says why")]
    RestoreEnded,
    /// Memory cannot be restored.
    #[error(transparent)]
    Restore(#[from] trueno_zram_restore::Error),
    /// The connection failed.
    #[error("the connection: {0}")]
    Connection(#[source] io::Error),
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Self::Io { path, source }
    }

    /// Opens a regular file: a pipe would wait for its other end.
    pub(crate) fn open(path: &Path) -> Result<File, Self> {
        open_regular_file(path).map_err(Self::archive(path))
    }

    /// The error for a file that cannot be opened as an archive, or not at all.
    pub(crate) fn archive(path: impl Into<PathBuf>) -> impl FnOnce(trueno_zram_archive::Error) -> Self {
        let path = path.into();
        |error| match error {
            trueno_zram_archive::Error::Read { source, .. } => Self::Io { path, source },
            source => Self::Archive { path, source },
        }
    }
}

/// The reason why a pagemap is refused.
///
/// ```
/// use trueno_zram_criu::{Pagemap, PagemapProblem};
/// assert_eq!(Pagemap::parse(&[0; 8]), Err(PagemapProblem::Magic { found: [0, 0] }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PagemapProblem {
    /// The file does not start like a pagemap.
    #[error("it starts with {:#010x} {:#010x}, not with the magic numbers of a pagemap", found[0], found[1])]
    Magic {
        /// The first two words.
        found: [u32; 2],
    },
    /// The file ends within a message.
    #[error("it ends early: a message continues behind byte {at}")]
    Truncated {
        /// The position where more was expected.
        at: u64,
    },
    /// A message claims a length that no message of a pagemap has.
    #[error("byte {at}: a message of {len_bytes} bytes is too long for a pagemap")]
    MessageLen {
        /// Position of the message.
        at: u64,
        /// Its length.
        len_bytes: u32,
    },
    /// An integer has more than 64 bits.
    #[error("byte {at}: an integer has more than 64 bits")]
    Varint {
        /// Position of the integer.
        at: u64,
    },
    /// A field has a type that does not exist.
    #[error("byte {at}: unknown wire type {wire_type}")]
    WireType {
        /// Position of the field.
        at: u64,
        /// Its type.
        wire_type: u64,
    },
    /// A message has a field that is not known, so that its pages may be held in another way.
    #[error("byte {at}: unknown field {field}: pages that CRIU compressed itself, or an image of a later version")]
    Field {
        /// Position of the message.
        at: u64,
        /// The field's number.
        field: u64,
    },
    /// A message lacks a field.
    #[error("byte {at}: the message has no field {field}")]
    Missing {
        /// Position of the message.
        at: u64,
        /// The field's number.
        field: u64,
    },
    /// A field's value is too large for its type.
    #[error("byte {at}: the value {value} of field {field} is too large")]
    Value {
        /// Position of the message.
        at: u64,
        /// The field's number.
        field: u64,
        /// Its value.
        value: u64,
    },
    /// An entry has flags that are not known.
    #[error("byte {at}: unknown flags {flags:#x}: pages that CRIU compressed itself, or an image of a later version")]
    Flags {
        /// Position of the entry.
        at: u64,
        /// All its flags.
        flags: u32,
    },
    /// An entry is not a range of pages.
    #[error("byte {at}: {pages} pages at {address:#x} are not a range of pages")]
    Range {
        /// Position of the entry.
        at: u64,
        /// Its address.
        address: u64,
        /// Its pages.
        pages: u64,
    },
    /// An entry starts before the one before it ends.
    #[error("byte {at}: the entry at {address:#x} starts before the one before it ends")]
    Order {
        /// Position of the entry.
        at: u64,
        /// Its address.
        address: u64,
    },
}
