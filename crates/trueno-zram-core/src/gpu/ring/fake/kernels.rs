//! Device memory of a slot, and kernels that work on it: the formats of the real ones, by the CPU's codec and slow twins.

use std::ops::Range;

use trueno_gpu::kernels::packed::{PACK_ALIGN_BYTES, PackedEntry, PageKind, PageStatus};
use trueno_test_kernels::zstd_restore;

use super::faults::IndexDamage;
use crate::algorithm::Algorithm;
use crate::cpu::PageCodec;
use crate::fill_page;
use crate::gpu::codec::{PageFormat, STATUS_BYTES};
use crate::gpu::ring::device::{Mark, SlotBuffer};
use crate::lz4::decode_simple;
use crate::page::{PAGE_SIZE, Page};

/// The content of device memory that was never written.
const NEVER_WRITTEN: u8 = 0xd5;

/// A slot's device memory, and how far its marks are.
#[derive(Debug)]
pub(super) struct DeviceSlot {
    /// The format that the kernels read and write.
    format: PageFormat,
    buffers: [Vec<u8>; 4],
    pub(super) marks: [MarkState; Mark::COUNT],
    /// The bytes that were uploaded since the last kernel.
    pub(super) fresh: Vec<(SlotBuffer, Range<usize>)>,
    /// The part of each buffer that the last kernel wrote.
    made: [Reach; 4],
}

/// The end of the meaningful bytes of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Known(usize),
    /// The kernel's index is wrong: readers of it may copy any bytes.
    Anything,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MarkState {
    /// The tick at which it was last queued.
    pub(super) queued: u64,
    /// The tick at which the newest one that ran was queued.
    pub(super) reached_tick: u64,
    /// The tick at which that one ran.
    pub(super) reached: u64,
}

impl MarkState {
    pub(super) fn is_reached(self) -> bool {
        self.reached_tick == self.queued
    }

    /// Returns `true` if the mark was queued and reached.
    pub(super) fn is_set(self) -> bool {
        self.queued > 0 && self.is_reached()
    }
}

impl DeviceSlot {
    pub(super) fn new(pages: usize, format: PageFormat) -> Self {
        Self {
            format,
            buffers: SlotBuffer::ALL.map(|buffer| vec![NEVER_WRITTEN; pages * buffer.bytes_per_page()]),
            marks: [MarkState::default(); Mark::COUNT],
            fresh: Vec::new(),
            made: [Reach::Known(0); 4],
        }
    }

    pub(super) fn buffer(&self, buffer: SlotBuffer) -> &[u8] {
        &self.buffers[buffer as usize]
    }

    pub(super) fn buffer_mut(&mut self, buffer: SlotBuffer) -> &mut [u8] {
        &mut self.buffers[buffer as usize]
    }

    pub(super) fn made(&self, buffer: SlotBuffer) -> Reach {
        self.made[buffer as usize]
    }

    /// Returns `true` if all of those bytes were uploaded since the last kernel.
    fn is_fresh(&self, buffer: SlotBuffer, bytes: Range<usize>) -> bool {
        let mut parts: Vec<_> = self.fresh.iter().filter(|(to, _)| *to == buffer).map(|(_, part)| part).collect();
        parts.sort_unstable_by_key(|part| part.start);
        let reach = |end: usize, part: &&Range<usize>| if part.start <= end { end.max(part.end) } else { end };
        parts.iter().fold(bytes.start, reach) >= bytes.end
    }

    fn page(&self, number: usize) -> &Page {
        &self.buffer(SlotBuffer::Pages).as_chunks().0[number]
    }

    fn entry(&mut self, number: usize) -> &mut [u8; PackedEntry::BYTES] {
        &mut self.buffer_mut(SlotBuffer::Index).as_chunks_mut().0[number]
    }

    fn change_entry(&mut self, number: usize, change: impl FnOnce(u64) -> u64) {
        let entry = self.entry(number);
        *entry = change(u64::from_le_bytes(*entry)).to_le_bytes();
    }
}

fn aligned(len_bytes: usize) -> usize {
    len_bytes.next_multiple_of(PACK_ALIGN_BYTES as usize)
}

/// Packs the pages of a slot. Returns a description of the misuse, if any.
pub(super) fn compress(slot: &mut DeviceSlot, pages: usize, damage: Option<IndexDamage>) -> Option<String> {
    let is_fresh = slot.is_fresh(SlotBuffer::Pages, 0..pages * PAGE_SIZE);
    slot.fresh.clear();
    let algorithm = match slot.format {
        PageFormat::Lz4 => Algorithm::Lz4,
        PageFormat::Zstd => Algorithm::Zstd { level: 1 },
    };
    let mut codec = PageCodec::new(algorithm).expect("the detected back end runs");
    let (mut end, mut block) = (0, [0; PAGE_SIZE]);
    for number in 0..pages {
        let page = *slot.page(number);
        let data = codec.compress(&page, &mut block).expect("there is memory");
        let (kind, bytes) = (data.kind(), data.bytes());
        slot.buffer_mut(SlotBuffer::Packed)[end..end + bytes.len()].copy_from_slice(bytes);
        let len = u16::try_from(bytes.len()).expect("no longer than a page");
        *slot.entry(number) = PackedEntry::new(end as u64, len, kind).bits().to_le_bytes();
        end += aligned(bytes.len());
    }
    slot.made = [Reach::Known(0), Reach::Known(end), Reach::Known(pages * PackedEntry::BYTES), Reach::Known(0)];
    if let Some(damage) = damage {
        slot.made[SlotBuffer::Packed as usize] = Reach::Anything;
        damage_index(slot, pages, damage);
    }
    (!is_fresh || pages == 0).then(|| format!("{pages} pages are compressed that were not uploaded"))
}

fn damage_index(slot: &mut DeviceSlot, pages: usize, damage: IndexDamage) {
    let (first, last) = (0, pages - 1);
    match damage {
        IndexDamage::EndsOutside => slot.change_entry(last, |bits| bits | 0xffff_ffff),
        IndexDamage::NotPlaced => slot.change_entry(last, |bits| bits & !(1 << 63)),
        IndexDamage::StartsLate => slot.change_entry(first, |bits| bits + 1),
        IndexDamage::NoSuchKind => {
            let foreign = if slot.format == PageFormat::Lz4 { PageKind::Zstd } else { PageKind::Lz4 };
            slot.change_entry(first, |bits| bits & !(3 << 45) | (foreign as u64) << 45);
        }
        // A block of 0 bytes, a word of 0, a page of 0.
        IndexDamage::NoSuchLength => slot.change_entry(first, |bits| bits & !(0x1fff << 32)),
    }
}

/// Restores the pages of a slot. Returns a description of the misuse, if any. The places of refused pages are not written.
pub(super) fn decompress(
    slot: &mut DeviceSlot,
    packed_bytes: usize,
    pages: usize,
    wrong_status: bool,
) -> Option<String> {
    let mut is_fresh = slot.is_fresh(SlotBuffer::Index, 0..pages * PackedEntry::BYTES);
    for number in 0..pages {
        let entry = PackedEntry::from_bits(u64::from_le_bytes(*slot.entry(number)));
        let start = usize::try_from(entry.offset_bytes()).expect("36 bits fit");
        let end = start + usize::from(entry.len_bytes());
        let bytes = Some(start..end).filter(|_| end <= packed_bytes && entry.is_placed());
        // Pages may lie far apart; no one needs what is between them.
        is_fresh &= bytes.as_ref().is_none_or(|place| slot.is_fresh(SlotBuffer::Packed, place.clone()));
        let bytes = bytes.map(|place| slot.buffer(SlotBuffer::Packed)[place].to_vec());
        let mut page = *slot.page(number);
        let status = restore(slot.format, entry.kind(), bytes, &mut page);
        if status == PageStatus::Restored {
            slot.buffer_mut(SlotBuffer::Pages).as_chunks_mut().0[number] = page;
        }
        slot.buffer_mut(SlotBuffer::Status).as_chunks_mut().0[number] = (status as u32).to_le_bytes();
    }
    slot.fresh.clear();
    if wrong_status {
        slot.buffer_mut(SlotBuffer::Status).as_chunks_mut().0[pages - 1] = 77_u32.to_le_bytes();
    }
    let (pages_end, status_end) = (pages * PAGE_SIZE, pages * STATUS_BYTES);
    slot.made = [Reach::Known(pages_end), Reach::Known(0), Reach::Known(0), Reach::Known(status_end)];
    (!is_fresh || pages == 0).then(|| format!("{pages} pages are restored from what was not uploaded"))
}

fn restore(format: PageFormat, kind: PageKind, bytes: Option<Vec<u8>>, page: &mut Page) -> PageStatus {
    let Some(bytes) = bytes.filter(|_| format.reads(kind)) else { return PageStatus::BadEntry };
    match kind {
        PageKind::SameFilled => {
            let Ok(word) = bytes.try_into() else { return PageStatus::BadEntry };
            fill_page(page, word);
        }
        PageKind::Raw => {
            let Ok(whole) = bytes.try_into() else { return PageStatus::BadEntry };
            *page = whole;
        }
        PageKind::Lz4 if decode_simple(&bytes, page).is_err() => return PageStatus::BadBlock,
        PageKind::Lz4 => {}
        PageKind::Zstd => match zstd_restore::restore(&bytes) {
            Ok(restored) => *page = restored,
            Err(zstd_restore::RestoreError::Malformed) => return PageStatus::BadBlock,
            Err(zstd_restore::RestoreError::Unsupported) => return PageStatus::Unsupported,
        },
    }
    PageStatus::Restored
}
