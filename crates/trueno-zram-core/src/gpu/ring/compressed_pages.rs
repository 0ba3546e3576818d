//! Compressed pages that a batch restores, wherever they lie, and those that a device leaves to the CPU.

use trueno_gpu::kernels::packed::PageStatus;

use crate::arena::{CompressedBatch, IndexEntry};
use crate::gpu::codec::{PageFormat, STATUS_BYTES};
use crate::page::{CompressedPage, PageData, PageKind};

/// Compressed pages, found by their number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CompressedPages<'a> {
    Values(&'a [CompressedPage]),
    /// Anywhere in memory.
    Borrowed(&'a [PageData<'a>]),
    /// Bytes with an index into them.
    Parts {
        arena: &'a [u8],
        index: &'a [IndexEntry],
    },
}

impl<'a> CompressedPages<'a> {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Values(pages) => pages.len(),
            Self::Borrowed(pages) => pages.len(),
            Self::Parts { index, .. } => index.len(),
        }
    }

    pub(crate) fn get(self, page: usize) -> PageData<'a> {
        match self {
            Self::Values(pages) => pages[page].data(),
            Self::Borrowed(pages) => pages[page],
            Self::Parts { arena, index } => index[page].find(arena).expect("the index fits the bytes"),
        }
    }
}

impl<'a> From<&'a CompressedBatch> for CompressedPages<'a> {
    fn from(batch: &'a CompressedBatch) -> Self {
        Self::Parts { arena: batch.arena(), index: batch.index() }
    }
}

/// A page that the device did not restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnrestoredPage {
    pub(crate) page: usize,
    pub(crate) reason: UnrestoredReason,
}

/// The reason why the device did not restore a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UnrestoredReason {
    /// The kernel does not decode its kind, or the form of its frame. The CPU may.
    Unsupported,
    /// The kernel reports that the page is corrupt, or its status is not a known one.
    Corrupt,
}

impl UnrestoredReason {
    /// Returns the reason that a kernel's status stands for, or `None` if the page was restored.
    pub(crate) fn of_status(code: [u8; STATUS_BYTES]) -> Option<Self> {
        match PageStatus::from_code(u32::from_le_bytes(code)) {
            Some(PageStatus::Restored) => None,
            Some(PageStatus::Unsupported) => Some(Self::Unsupported),
            Some(PageStatus::BadEntry | PageStatus::BadBlock) | None => Some(Self::Corrupt),
        }
    }

    /// Returns the reason for a page of a known kind. In place of one that it does not read, the kernel got a same-filled page.
    pub(crate) fn of(kind: PageKind, format: PageFormat, code: [u8; STATUS_BYTES]) -> Option<Self> {
        if format.reads(kind) { Self::of_status(code) } else { Some(Self::Unsupported) }
    }
}
