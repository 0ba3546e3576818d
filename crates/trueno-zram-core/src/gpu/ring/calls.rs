//! The calls of a ring: batches from and to ordinary or page-locked memory.

use rayon::ThreadPool;

use super::active_call::RingCall;
use super::compressed_pages::CompressedPages;
use super::deliver::{Deliver, InPlace, into_index, to_pages};
use super::device::RingDevice;
use super::stage::{Stage, UploadFilter, pack, stage_pages};
use super::transfer::{Direction, SlotTransfer, TransferSource};
use super::{CallOutcome, Ring};
use crate::error::Result;
use crate::gpu::{PinnedBatch, PinnedPages};
use crate::page::Page;
use crate::progress::Progress;

/// Pages to compress.
pub(crate) enum PagesFrom<'a, D: RingDevice> {
    /// In any memory: workers copy them to page-locked memory first.
    Memory(&'a [Page]),
    /// In page-locked memory: the device reads them directly.
    Pinned(&'a mut PinnedPages<D::Pinned>),
}

impl<D: RingDevice> PagesFrom<'_, D> {
    pub(crate) fn pages(&self) -> Result<&[Page]> {
        match self {
            Self::Memory(pages) => Ok(pages),
            Self::Pinned(pages) => pages.pages(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Memory(pages) => pages.len(),
            Self::Pinned(pages) => pages.len(),
        }
    }
}

/// Compressed pages to restore.
pub(crate) enum PackedFrom<'a, D: RingDevice> {
    /// In any memory: workers copy them to page-locked memory first.
    Memory(CompressedPages<'a>),
    /// In page-locked memory: the device reads them directly.
    Pinned(&'a mut PinnedBatch<D::Pinned>),
}

impl<D: RingDevice> PackedFrom<'_, D> {
    pub(crate) fn pages(&self) -> Result<CompressedPages<'_>> {
        match self {
            Self::Memory(pages) => Ok(*pages),
            Self::Pinned(batch) => batch.compressed_pages(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Memory(pages) => pages.len(),
            Self::Pinned(batch) => batch.len(),
        }
    }
}

impl<D: RingDevice> Ring<D> {
    /// Compresses pages.
    pub(crate) fn compress(
        &mut self,
        pool: &ThreadPool,
        from: &mut PagesFrom<'_, D>,
        sink: &mut impl Deliver<D>,
        progress: &dyn Progress,
    ) -> CallOutcome {
        let pages = from.len();
        match from {
            PagesFrom::Memory(from) => {
                let transfer = SlotTransfer::new(Direction::Compress, TransferSource::Pieces, None);
                let stage: &Stage<'_, D> = &|piece| stage_pages(from, piece);
                self.drive(pool, RingCall { pages, stage: Some(stage), transfer, sink, progress })
            }
            PagesFrom::Pinned(from) => {
                let source = TransferSource::Pinned(from.memory_mut(), &[]);
                let transfer = SlotTransfer::new(Direction::Compress, source, None);
                self.drive(pool, RingCall { pages, stage: None, transfer, sink, progress })
            }
        }
    }

    /// Compresses pages in page-locked memory to page-locked memory with room for as many: the device reads and writes both
    /// directly.
    pub(crate) fn compress_all_pinned(
        &mut self,
        pool: &ThreadPool,
        from: &mut PinnedPages<D::Pinned>,
        to: &mut PinnedBatch<D::Pinned>,
        progress: &dyn Progress,
    ) -> CallOutcome {
        let pages = from.len();
        to.clear();
        let (memory, index) = to.parts_mut();
        let source = TransferSource::Pinned(from.memory_mut(), &[]);
        let transfer = SlotTransfer::new(Direction::Compress, source, Some(memory));
        self.drive(pool, RingCall { pages, stage: None, transfer, sink: &mut into_index(index), progress })
    }

    /// Restores pages to any memory: workers copy them out of page-locked memory.
    pub(crate) fn decompress(
        &mut self,
        pool: &ThreadPool,
        from: CompressedPages<'_>,
        to: &mut [Page],
        progress: &dyn Progress,
    ) -> CallOutcome {
        debug_assert_eq!(from.len(), to.len(), "checked by the callers");
        let (pages, format) = (from.len(), self.device.format());
        let stage: &Stage<'_, D> = &|piece| pack(from, format, UploadFilter::Blocks, piece);
        let transfer = SlotTransfer::new(Direction::Decompress, TransferSource::Pieces, None);
        self.drive(pool, RingCall { pages, stage: Some(stage), transfer, sink: &mut to_pages(from, to), progress })
    }

    /// Restores pages to page-locked memory, straight from the device.
    pub(crate) fn decompress_pinned(
        &mut self,
        pool: &ThreadPool,
        from: &mut PackedFrom<'_, D>,
        to: &mut PinnedPages<D::Pinned>,
        progress: &dyn Progress,
    ) -> CallOutcome {
        let (format, pages, to) = (self.device.format(), from.len(), Some(to.memory_mut()));
        match from {
            PackedFrom::Memory(from) => {
                let stage: &Stage<'_, D> = &|piece| pack(*from, format, UploadFilter::All, piece);
                let sink = &mut InPlace(|page| from.get(page).kind());
                let transfer = SlotTransfer::new(Direction::Decompress, TransferSource::Pieces, to);
                self.drive(pool, RingCall { pages, stage: Some(stage), transfer, sink, progress })
            }
            PackedFrom::Pinned(from) => {
                let (memory, index) = from.parts_mut();
                let index = &*index;
                let sink = &mut InPlace(|page: usize| index[page].kind);
                let transfer = SlotTransfer::new(Direction::Decompress, TransferSource::Pinned(memory, index), to);
                self.drive(pool, RingCall { pages, stage: None, transfer, sink, progress })
            }
        }
    }
}
