//! The index of a slot's compressed pages: the kernel's entries, checked, and pages that never went to the device.

use trueno_gpu::kernels::packed::{PACK_ALIGN_BYTES, PackedEntry};

use super::device::{PinnedMemory, RingDevice};
use super::slot::RingSlot;
use crate::arena::IndexEntry;
use crate::gpu::codec::PageFormat;
use crate::gpu::error::{GpuError, GpuResult};
use crate::page::{FILL_WORD_BYTES, PAGE_SIZE, PageData, PageKind};

/// The length of a fill word, as an index has it.
const FILL_LEN_BYTES: u16 = 8;
const _: () = assert!(FILL_LEN_BYTES as usize == FILL_WORD_BYTES);

/// Returns the bytes that hold a slot's pages, in its own memory, and where each page lies in them.
pub(super) fn indexed_pages<D: RingDevice>(slot: &mut RingSlot<D>) -> GpuResult<(&[u8], &[IndexEntry])> {
    let used = build_index(slot)?;
    let output = slot.output.as_ref().expect("a call ensures what it uses");
    Ok((&output.bytes()?[..used], &slot.entries))
}

/// Makes a slot's index entries, relative to the start of its packed pages. Fill words go behind these: each same-filled page
/// left 4096 bytes of room. Returns the number of bytes used.
pub(super) fn build_index<D: RingDevice>(slot: &mut RingSlot<D>) -> GpuResult<usize> {
    let RingSlot { format, entries, index, pieces, output, .. } = slot;
    let pieces = &pieces[..slot.pieces_used];
    // If nothing was staged, all pages are on the device.
    let words = match output {
        Some(memory) if !pieces.is_empty() => &mut memory.bytes_mut()?[slot.packed_bytes..],
        _ => &mut [],
    };
    let mut words = words.as_chunks_mut::<FILL_WORD_BYTES>().0.iter_mut();
    let mut placed = index.bytes()?.as_chunks().0.iter().map(|bits| PackedEntry::from_bits(u64::from_le_bytes(*bits)));
    let fills = pieces.iter().flat_map(|piece| &piece.fills).chain(std::iter::repeat(&None));
    let (mut end, mut used) = (0, slot.packed_bytes);
    entries.clear();
    for (page, fill) in slot.range.clone().zip(fills) {
        if let Some(word) = fill {
            *words.next().expect("a page that is not packed left room for a word") = *word;
            entries.push(IndexEntry { offset: used as u64, len_bytes: FILL_LEN_BYTES, kind: PageKind::SameFilled });
            used += FILL_WORD_BYTES;
        } else {
            let entry = placed.next().expect("the index has an entry for each page on the device");
            let checked = checked_entry(entry, end, slot.packed_bytes).filter(|checked| format.reads(checked.kind));
            let checked = checked.ok_or(GpuError::WrongIndex { page, bits: entry.bits() })?;
            end = next_place(checked);
            entries.push(checked);
        }
    }
    Ok(used)
}

/// Appends a page to packed pages in `memory`, which has room for one that does not shrink.
pub(crate) fn push_packed(memory: &mut [u8], index: &mut Vec<IndexEntry>, page: PageData<'_>) {
    let start = index.last().map_or(0, |last| next_place(*last));
    let place = usize::try_from(start).expect("packed pages lie in memory");
    let len_bytes = page.bytes().len();
    let place = &mut memory[place..][..len_bytes.next_multiple_of(PACK_ALIGN_BYTES as usize)];
    let (held, between) = place.split_at_mut(len_bytes);
    held.copy_from_slice(page.bytes());
    // Bytes of earlier pages are not exposed.
    between.fill(0);
    index.push(IndexEntry::new(start, page));
}

/// Returns the bytes that `pages` packed pages take, from the entry of the last one. The device is not trusted.
pub(crate) fn packed_bytes(last: PackedEntry, pages: usize) -> Option<usize> {
    let end = aligned(last.offset_bytes() + u64::from(last.len_bytes()));
    usize::try_from(end).ok().filter(|bytes| last.is_placed() && *bytes <= pages * PAGE_SIZE)
}

/// Returns where the next page starts.
pub(crate) fn next_place(entry: IndexEntry) -> u64 {
    aligned(entry.offset + u64::from(entry.len_bytes))
}

fn aligned(end: u64) -> u64 {
    end.next_multiple_of(PACK_ALIGN_BYTES.into())
}

/// Returns an entry as the kernel reads it, counted from `base`. A page of a kind that the kernel does not read becomes a
/// same-filled one of its first word, and the CPU restores it later.
pub(super) fn for_kernel(entry: IndexEntry, base: u64, format: PageFormat) -> [u8; PackedEntry::BYTES] {
    let (len_bytes, kind) =
        if format.reads(entry.kind) { (entry.len_bytes, entry.kind) } else { (FILL_LEN_BYTES, PageKind::SameFilled) };
    PackedEntry::new(entry.offset - base, len_bytes, kind).bits().to_le_bytes()
}

/// Checks an entry in the memory of a device. It must start where the one before ended: the device is not trusted.
pub(crate) fn checked_entry(entry: PackedEntry, expected_offset: u64, packed_bytes: usize) -> Option<IndexEntry> {
    let (offset, len_bytes) = (entry.offset_bytes(), entry.len_bytes());
    let kind = entry.kind();
    let fits = entry.is_placed()
        && offset == expected_offset
        && kind.held_len_bytes().contains(&usize::from(len_bytes))
        && offset + u64::from(len_bytes) <= packed_bytes as u64;
    fits.then_some(IndexEntry { offset, len_bytes, kind })
}
