//! Staging of compressed pages, in the form that the kernel reads.

use trueno_gpu::kernels::packed::{PACK_ALIGN_BYTES, PackedEntry};

use super::decompress::CompressedPages;
use super::device::{PinnedMemory, RingDevice};
use super::piece::{PIECE_PAGES, Piece};
use super::stages::Stage;
use crate::gpu::codec::PageFormat;
use crate::gpu::error::GpuResult;
use crate::page::{PAGE_SIZE, PageData, PageKind};

/// Which pages go over the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crossing {
    /// Pages in the kernel's format only: for the CPU, copying or filling a page is less work than fetching it.
    Blocks,
    /// All pages, since the device puts them in their final places. Zeros are sent in place of a page of a kind that the kernel
    /// does not read.
    All,
}

/// Returns a page as the kernel reads it, if it goes to the device.
fn as_packed(data: PageData<'_>, format: PageFormat, which: Crossing) -> Option<(PageKind, &[u8])> {
    match which {
        Crossing::Blocks => (data.kind() == format.kind()).then_some((data.kind(), data.bytes())),
        Crossing::All if format.reads(data.kind()) => Some((data.kind(), data.bytes())),
        Crossing::All => Some((PageKind::SameFilled, &[0; 8])),
    }
}

/// Packs compressed pages into page-locked memory and writes their index.
pub(super) struct Pack<'a> {
    pub(super) from: CompressedPages<'a>,
    /// What the kernel reads.
    pub(super) format: PageFormat,
    pub(super) which: Crossing,
}

impl<D: RingDevice> Stage<D> for Pack<'_> {
    fn stage(&self, piece: &mut Piece<D>) -> GpuResult<()> {
        let Piece { range, places, index, .. } = piece;
        // Each piece has a fixed place on the device, however little of it is used.
        let first_offset = (piece.number * PIECE_PAGES * PAGE_SIZE) as u64;
        let mut end = 0;
        for page in range.clone() {
            let data = self.from.get(page);
            let place = as_packed(data, self.format, self.which).map(|(kind, bytes)| {
                let len_bytes = u16::try_from(bytes.len()).expect("PageData holds at most 4096 bytes");
                index.push(PackedEntry::new(first_offset + end as u64, len_bytes, kind).bits().to_le_bytes());
                end += bytes.len().next_multiple_of(PACK_ALIGN_BYTES as usize);
                u32::try_from(index.len() - 1).expect("a piece has few pages")
            });
            places.push(place.filter(|_| self.format.reads(data.kind())));
        }
        (piece.crossing, piece.bytes_in) = (index.len(), end);
        let range = piece.range.clone();
        let mut rest = &mut piece.memory_in().bytes_mut()?[..end];
        for (_, bytes) in range.filter_map(|page| as_packed(self.from.get(page), self.format, self.which)) {
            let aligned = bytes.len().next_multiple_of(PACK_ALIGN_BYTES as usize);
            let (to, after) = std::mem::take(&mut rest).split_at_mut(aligned);
            to[..bytes.len()].copy_from_slice(bytes);
            rest = after;
        }
        Ok(())
    }
}
