//! Errors of lazy restores.

use std::io;

use rustix::io::Errno;

/// The reason why a VM or a process could not be restored, or not completely.
///
/// ```
/// use std::io::Write;
/// use std::os::unix::net::UnixStream;
/// use trueno_zram_restore::{Error, Image, LazyRestore, RestoreOptions};
/// let restore = LazyRestore::new(Image::new(vec![[7; 4096]; 32]), RestoreOptions::default());
/// let (mut vmm, ours) = UnixStream::pair()?;
/// vmm.write_all(b"[]")?;
/// assert!(matches!(restore.serve(&ours), Err(Error::NoRegions)));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The VMM connected and sent no complete message in time.
    #[error("the VMM sent no message within {seconds} s")]
    HandshakeTimeout {
        /// The time it had.
        seconds: u64,
    },
    /// The connection ended before the message did.
    #[error("the connection ended after {received} bytes of the message")]
    HandshakeEnded {
        /// Bytes that arrived.
        received: usize,
    },
    /// The connection was closed to make room for another one, or because no more VMs are served.
    #[error("the VMM sent its message too late: its connection was needed for another one, or no more VMs are served")]
    Displaced,
    /// The message is longer than any list of regions.
    #[error("the message has more than {limit} bytes")]
    MessageTooLong {
        /// The longest message that is read.
        limit: usize,
    },
    /// The message is not a JSON array of regions.
    #[error("the message is not a list of memory regions: {0}")]
    Message(#[source] serde_json::Error),
    /// The message came without a file descriptor.
    #[error("the message came without a userfaultfd")]
    NoFd,
    /// The message came with several file descriptors.
    #[error("the message came with more than one file descriptor")]
    ExtraFds,
    /// The file descriptor is something else.
    #[error("the file descriptor is not a userfaultfd but {what}")]
    NotUserfaultfd {
        /// Its name in `/proc`.
        what: String,
    },
    /// The userfaultfd was created with a feature that moves memory out of the regions or hides faults.
    #[error("the userfaultfd has the feature {name}, which is not supported")]
    Feature {
        /// Its name without `UFFD_FEATURE_`.
        name: &'static str,
    },
    /// The userfaultfd would not report all changes of memory: for a VM, those by a balloon.
    #[error("the userfaultfd lacks the feature {name}: pages could receive stale data")]
    NoEvents {
        /// Its name without `UFFD_FEATURE_`.
        name: &'static str,
    },
    /// A region cannot be served.
    #[error("region {index}: {problem}")]
    Region {
        /// Its position in the message, from 0.
        index: usize,
        /// The reason.
        problem: RegionProblem,
    },
    /// The message lists no region.
    #[error("the message lists no memory region")]
    NoRegions,
    /// The VMM's process cannot be found, so it could not be ended after a failure.
    #[error("the process at the other end cannot be found: {0}")]
    Process(#[source] io::Error),
    /// A page that the VMM touched cannot be restored; it was ended.
    #[error("page {page} cannot be restored: {source}")]
    Damaged {
        /// The page in the archive.
        page: u64,
        /// The reason.
        source: trueno_zram_archive::Error,
    },
    /// The proof of pages has failed after some of them were restored.
    #[error("{restored} pages were restored before it was known that they may be other ones: {source}")]
    Disproven {
        /// The number of pages that were restored.
        restored: u64,
        /// The reason.
        source: trueno_zram_archive::Error,
    },
    /// The proof of pages that were restored cannot be read.
    #[error("pages that were restored cannot be proven: {source}")]
    Unproven {
        /// The reason.
        source: trueno_zram_archive::Error,
    },
    /// A page is no longer restored, because restoring another one has failed.
    #[error("page {page} is not restored after an earlier failure")]
    Lost {
        /// The page in the source.
        page: u64,
    },
    /// A fault at an address outside all regions, or of a kind that was not asked for.
    #[error("unexpected event {event:#x} of the userfaultfd, address {address:#x}")]
    Event {
        /// The event's number in `<linux/userfaultfd.h>`.
        event: u8,
        /// The address it is about.
        address: u64,
    },
    /// The file of touches to prefetch is malformed.
    #[error("line {line}: {problem}")]
    Touches {
        /// The line, from 1.
        line: usize,
        /// The reason.
        problem: &'static str,
    },
    /// A thread of the background fill panicked.
    #[error("a thread of the background fill failed")]
    FillPanicked,
    /// A fork of the process raced with `mremap` onto addresses in use. The content of these addresses in the child is unknown.
    #[error("the fork raced with mremap; addresses of the child are ambiguous")]
    ForkRace,
    /// A process ended while one of its threads may have been moving memory during a fork. The layout of the child is unknown.
    #[error("the process that it was forked from ended before all changes of its memory were reported")]
    ParentEnded,
    /// The process is about to end and takes no further VMs.
    #[error("the handler is shutting down")]
    ShuttingDown,
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// The reason why a memory region is refused.
///
/// ```
/// use std::io::Write;
/// use std::os::unix::net::UnixStream;
/// use trueno_zram_restore::{Error, Image, LazyRestore, RegionProblem, RestoreOptions};
/// let restore = LazyRestore::new(Image::new(vec![[7; 4096]; 32]), RestoreOptions::default());
/// let (mut vmm, ours) = UnixStream::pair()?;
/// vmm.write_all(br#"[{"base_host_virt_addr": 4096, "size": 0, "offset": 0}]"#)?;
/// let refused = restore.serve(&ours);
/// assert!(matches!(refused, Err(Error::Region { index: 0, problem: RegionProblem::Empty })));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionProblem {
    /// The page size is not one that memory can have.
    #[error("the page size {0} is not a power of two from 4 KiB to 2 MiB")]
    PageSize(u64),
    /// `page_size` and `page_size_kib` contradict each other.
    #[error("page_size is {page_size}, but page_size_kib is {page_size_kib}")]
    PageSizes {
        /// `page_size`.
        page_size: u64,
        /// `page_size_kib`.
        page_size_kib: u64,
    },
    /// An address, a size or an offset is not a multiple of the page size.
    #[error("{what} {value:#x} is not a multiple of {of} bytes")]
    Alignment {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The required alignment.
        of: u64,
    },
    /// The region has no pages.
    #[error("it is empty")]
    Empty,
    /// The region reaches beyond the address space.
    #[error("it ends beyond the address space")]
    AddressRange,
    /// The region's content is not in the archive.
    #[error("its content ends at {end}, but the archive has {content_len} bytes")]
    BeyondArchive {
        /// End of the content.
        end: u64,
        /// Length of the archive's content.
        content_len: u64,
    },
    /// Two regions share addresses or content.
    #[error("its {what} overlap those of region {other}")]
    Overlap {
        /// `addresses` or `contents`.
        what: &'static str,
        /// The other region's position in the message.
        other: usize,
    },
}

impl Error {
    pub(crate) fn system(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |error| Self::System { call, source: error.into() }
    }

    pub(crate) fn proc(source: io::Error) -> Self {
        Self::System { call: "reading /proc/self", source }
    }
}
