//! The shared memory of a block: data, written bytes, and the accesses of each byte since the last barrier.
//!
//! One cell holds a 32-bit word and everything known about its four bytes, so that an access needs one lookup. Per byte
//! it has the last writer, and the readers since the last barrier of the warp; per word, the times of the two, which
//! are steps of the warp. Between block barriers the warps of a block run one after the other, so a cell only needs a
//! summary of what other warps did.

use super::fault::{Access, Accessor, LaneSet};
use super::memory::AccessProblem;
use super::narrow::lane_u8;
use super::traffic::bits;

/// Start of shared memory. It is not 0, so that a kernel that relies on a base of 0 faults.
pub(super) const fn base_address(align: u32) -> u32 {
    if align > 1024 { align } else { 1024 }
}

#[derive(Debug, Clone, Copy, Default)]
struct SharedWord {
    data: u32,
    /// Block phase and warp that accessed the word last.
    owner: u32,
    write_time: u32,
    read_time: u32,
    /// Four tags: the writer of each byte.
    writers: u32,
    /// Four tags: the readers of each byte.
    readers: u32,
    /// Accesses of the owner and of other warps since the last block barrier.
    sums: AccessSummary,
    /// `0xff` in each byte that was written.
    written: u32,
}

/// Bytes of a word that were accessed, by kind: one nibble each for reads, writes, conflicting writes and atomics. The
/// low half is for the owner, the high half for other warps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct AccessSummary(u32);

/// A tag holds the lane and kind of an access in one byte: `many | kind (2 bits) | lane (5 bits)`; 0 means none.
mod tag {
    use super::Access;
    pub(super) const MANY: u8 = 0x80;
    pub(super) const fn new(access: Access, lane: u8) -> u8 {
        lane | match access {
            Access::Read | Access::Write => 0x20,
            Access::ConflictingWrite => 0x40,
            Access::Atomic => 0x60,
        }
    }
    pub(super) const fn lane(tag: u8) -> Option<usize> {
        if tag & MANY == 0 { Some((tag & 31) as usize) } else { None }
    }
    pub(super) const fn write_kind(tag: u8) -> Access {
        match tag & 0x60 {
            0x40 => Access::ConflictingWrite,
            0x60 => Access::Atomic,
            _ => Access::Write,
        }
    }
    /// Repeats the tag in all four bytes.
    pub(super) const fn splat(tag: u8) -> u32 {
        tag as u32 * 0x0101_0101
    }
}

impl AccessSummary {
    const fn shift(access: Access) -> u32 {
        match access {
            Access::Read => 0,
            Access::Write => 4,
            Access::ConflictingWrite => 8,
            Access::Atomic => 12,
        }
    }

    /// Moves the owner's accesses to those of other warps.
    fn pass_on(self) -> Self {
        Self((self.0 >> 16 | self.0) << 16)
    }

    /// Returns the accesses that other warps must not have made: one bit per kind, to be multiplied by the nibble of a
    /// byte mask.
    const fn rivals(access: Access) -> u32 {
        0x10000
            * match access {
                Access::Read => 0x1110,
                Access::Write => 0x1111,
                Access::ConflictingWrite => 0x1011,
                Access::Atomic => 0x0111,
            }
    }
}

/// Returns `true` if two unordered accesses of different lanes do not race.
const fn compatible(a: Access, b: Access) -> bool {
    matches!(
        (a, b),
        (Access::Read, Access::Read)
            | (Access::ConflictingWrite, Access::ConflictingWrite)
            | (Access::Atomic, Access::Atomic)
    )
}

/// The data that race tracking needs besides the address, the same for all lanes of an instruction.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedAccess {
    /// Accesses of the warp at or before this time are ordered before this one.
    floor: u32,
    /// Step of the warp.
    now: u32,
    /// Block phase and warp.
    owner: u32,
    access: Access,
    /// Tag of lane 0.
    tag: u8,
    /// From [`AccessSummary::rivals`].
    rivals: u32,
    /// From [`AccessSummary::shift`].
    shift: u32,
}

/// The problem with a shared access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SharedProblem {
    /// A read of a byte that was never written.
    UnwrittenByte { address: u32 },
    /// Address of the byte, and the earlier access.
    Race { address: u32, earlier: Access, earlier_by: Accessor },
    /// Two lanes of the same store.
    Conflict { address: u32 },
}

#[derive(Debug)]
pub(super) struct SharedMemory {
    base: u32,
    len_bytes: u32,
    /// Empty before the first block.
    cells: Vec<SharedWord>,
    /// One more than the number of barriers that the block has passed.
    phase: u32,
}

impl SharedMemory {
    pub(super) fn new(base: u32, len_bytes: u32) -> Self {
        Self { base, len_bytes, cells: Vec::new(), phase: 1 }
    }

    /// Starts a new block, with unwritten memory.
    pub(super) fn reset(&mut self) {
        self.cells.clear();
        self.cells.resize(self.len_bytes.div_ceil(4) as usize, SharedWord::default());
        self.phase = 1;
    }

    /// Records that all warps met at a block barrier.
    pub(super) fn block_barrier(&mut self) {
        self.phase += 1;
    }

    /// Returns the tracking data for an access of a warp at its step `now`, where `floor` is the step of its last barrier.
    pub(super) fn visit(&self, floor: u32, now: u32, warp: u32, access: Access) -> SharedAccess {
        SharedAccess {
            floor,
            now,
            owner: self.phase << 5 | warp,
            access,
            tag: tag::new(access, 0),
            rivals: AccessSummary::rivals(access),
            shift: AccessSummary::shift(access),
        }
    }

    /// Returns the first problem of bounds or alignment that an access has.
    #[inline]
    pub(super) fn check(&self, address: u32, bytes: u32) -> Result<(), AccessProblem> {
        if u64::from(address.wrapping_sub(self.base)) + u64::from(bytes) > u64::from(self.len_bytes) {
            return Err(AccessProblem::OutOfBounds);
        }
        if address & (bytes - 1) != 0 {
            return Err(AccessProblem::Misaligned);
        }
        Ok(())
    }

    /// Returns the lanes whose access is out of bounds or misaligned.
    pub(super) fn check_all(&self, addresses: &[u32; 32], lanes: u32, bytes: u32) -> u32 {
        // Addresses past the last one that fits. If the memory is smaller than one access, all are.
        let Some(last) = self.len_bytes.checked_sub(bytes) else { return lanes };
        let mut bad = 0;
        for (lane, &address) in addresses.iter().enumerate() {
            bad |= u32::from(address.wrapping_sub(self.base) > last || address & (bytes - 1) != 0) << lane;
        }
        bad & lanes
    }

    /// Loads `BYTES` bytes (1, 2 or 4) per lane at checked addresses, zero-extended.
    pub(super) fn load_lanes<const BYTES: u32>(
        &mut self,
        visit: &SharedAccess,
        lanes: u32,
        addresses: &[u32; 32],
    ) -> Result<[u32; 32], (usize, SharedProblem)> {
        let mut loaded = [0; 32];
        for lane in bits(lanes) {
            loaded[lane] = self.load::<BYTES>(visit, lane, addresses[lane]).map_err(|problem| (lane, problem))?;
        }
        Ok(loaded)
    }

    /// Stores the low `BYTES` bytes (1, 2 or 4) per lane at checked addresses, in ascending order of lanes.
    pub(super) fn store_lanes<const BYTES: u32>(
        &mut self,
        visit: &SharedAccess,
        lanes: u32,
        addresses: &[u32; 32],
        values: &[u32; 32],
    ) -> Result<(), (usize, SharedProblem)> {
        for lane in bits(lanes) {
            self.store::<BYTES>(visit, lane, addresses[lane], values[lane]).map_err(|problem| (lane, problem))?;
        }
        Ok(())
    }

    /// Loads `BYTES` bytes (1, 2 or 4) at a checked address, zero-extended.
    // Inlined into the loops over lanes, where most of it is the same for all lanes: a third faster overall.
    #[inline(always)]
    pub(super) fn load<const BYTES: u32>(
        &mut self,
        visit: &SharedAccess,
        lane: usize,
        address: u32,
    ) -> Result<u32, SharedProblem> {
        let field = WordBytes::new::<BYTES>(address);
        let cell = &mut self.cells[(address.wrapping_sub(self.base) / 4) as usize];
        let missing = field.mask & !cell.written;
        if missing != 0 {
            return Err(SharedProblem::UnwrittenByte { address: (address & !3) + missing.trailing_zeros() / 8 });
        }
        // Atomics get here too: they both read and write.
        if visit.access == Access::Read {
            cell.touch::<true>(visit, lane, address, field)?;
        } else {
            cell.touch::<false>(visit, lane, address, field)?;
        }
        Ok((cell.data & field.mask) >> field.shift)
    }

    /// Stores the low `BYTES` bytes (1, 2 or 4) at a checked address.
    #[inline(always)]
    pub(super) fn store<const BYTES: u32>(
        &mut self,
        visit: &SharedAccess,
        lane: usize,
        address: u32,
        value: u32,
    ) -> Result<(), SharedProblem> {
        let field = WordBytes::new::<BYTES>(address);
        let cell = &mut self.cells[(address.wrapping_sub(self.base) / 4) as usize];
        cell.touch::<false>(visit, lane, address, field)?;
        cell.data = cell.data & !field.mask | value << field.shift & field.mask;
        cell.written |= field.mask;
        Ok(())
    }
}

/// The bytes of an access inside its word.
#[derive(Debug, Clone, Copy)]
struct WordBytes {
    shift: u32,
    /// `0xff` in each byte of the access.
    mask: u32,
    /// One bit per byte.
    nibble: u32,
}

impl WordBytes {
    #[inline(always)]
    const fn new<const BYTES: u32>(address: u32) -> Self {
        let byte = if BYTES == 4 { 0 } else { address & 3 };
        let mask = if BYTES == 4 { u32::MAX } else { ((1 << (BYTES * 8)) - 1) << (byte * 8) };
        Self { shift: byte * 8, mask, nibble: ((1 << BYTES) - 1) << byte }
    }
}

impl SharedWord {
    /// Checks an access against the earlier ones of the word, and records it.
    #[inline(always)]
    fn touch<const READ: bool>(
        &mut self,
        visit: &SharedAccess,
        lane: usize,
        address: u32,
        field: WordBytes,
    ) -> Result<(), SharedProblem> {
        if self.owner != visit.owner {
            self.change_owner(visit.owner);
        }
        let known_writers = if self.write_time > visit.floor { self.writers } else { 0 };
        let known_readers = if self.read_time > visit.floor { self.readers } else { 0 };
        let (writers, readers) = (known_writers & field.mask, known_readers & field.mask);
        // The common case: no earlier access, or only of this kind by this lane. For reads, also many readers.
        let me = tag::splat(visit.tag | lane_u8(lane)) & field.mask;
        let mut suspect = writers != 0 && writers != me || self.sums.0 & visit.rivals.wrapping_mul(field.nibble) != 0;
        if !READ {
            suspect |= readers != 0 && readers != tag::splat(tag::new(Access::Read, 0) | lane_u8(lane)) & field.mask;
        }
        if suspect {
            self.investigate(visit, lane, address, field, writers, readers)?;
        }
        if READ {
            self.readers = known_readers | me | many(readers, me);
            self.read_time = visit.now;
        } else {
            self.writers = if writers == 0 || visit.access == Access::Write {
                known_writers & !field.mask | me
            } else {
                merge(known_writers, me, field.mask)
            };
            self.write_time = visit.now;
        }
        self.sums.0 |= field.nibble << visit.shift;
        Ok(())
    }

    fn change_owner(&mut self, owner: u32) {
        self.sums = if self.owner >> 5 == owner >> 5 { self.sums.pass_on() } else { AccessSummary::default() };
        self.owner = owner;
        // Times belong to the warp.
        self.write_time = 0;
        self.read_time = 0;
    }

    /// Returns the race that writers and readers since the warp's last barrier, or accesses of other warps, make.
    #[inline(never)]
    fn investigate(
        &self,
        visit: &SharedAccess,
        lane: usize,
        address: u32,
        field: WordBytes,
        writers: u32,
        readers: u32,
    ) -> Result<(), SharedProblem> {
        let word = address & !3;
        for earlier in [Access::Read, Access::Write, Access::ConflictingWrite, Access::Atomic] {
            let common = self.sums.0 >> 16 >> AccessSummary::shift(earlier) & field.nibble;
            if common != 0 && !compatible(earlier, visit.access) {
                let address = word + common.trailing_zeros();
                return Err(SharedProblem::Race { address, earlier, earlier_by: Accessor::OtherWarp });
            }
        }
        for (byte, tag) in tags(writers) {
            let earlier = tag::write_kind(tag);
            if compatible(earlier, visit.access) || tag::lane(tag) == Some(lane) {
                continue;
            }
            let address = word + byte;
            if earlier == Access::Write && visit.access == Access::Write && self.write_time == visit.now {
                return Err(SharedProblem::Conflict { address });
            }
            return Err(SharedProblem::Race { address, earlier, earlier_by: earlier_by(tag, lane) });
        }
        for (byte, tag) in tags(readers) {
            if visit.access != Access::Read && tag::lane(tag) != Some(lane) {
                let address = word + byte;
                return Err(SharedProblem::Race { address, earlier: Access::Read, earlier_by: earlier_by(tag, lane) });
            }
        }
        Ok(())
    }
}

fn earlier_by(tag: u8, lane: usize) -> Accessor {
    Accessor::Lanes(LaneSet(match tag::lane(tag) {
        Some(other) => 1 << other,
        None => !(1 << lane),
    }))
}

/// Returns the bytes that have a tag.
fn tags(word: u32) -> impl Iterator<Item = (u32, u8)> {
    (0u32..).zip(word.to_le_bytes()).filter(|(_, tag)| *tag != 0)
}

/// Returns [`tag::MANY`] in each byte where `old` has a tag other than `me`'s. All readers are of one kind, so this and
/// the union of the tags make the new tags: once several lanes meet, their numbers no longer matter.
#[inline]
fn many(old: u32, me: u32) -> u32 {
    // Carries stay inside each byte. The top bit of a byte says that it is not 0.
    let nonzero = |v: u32| (((v & 0x7f7f_7f7f) + 0x7f7f_7f7f) | v) & 0x8080_8080;
    nonzero(old) & nonzero(old ^ me)
}

/// Adds `me` to the tags of the bytes in `mask`: a byte with another lane's tag gets [`tag::MANY`].
fn merge(old: u32, me: u32, mask: u32) -> u32 {
    let (mut merged, me, mask) = (old.to_le_bytes(), me.to_le_bytes(), mask.to_le_bytes());
    for (byte, old) in merged.iter_mut().enumerate().filter(|(byte, _)| mask[*byte] != 0) {
        let alone = *old == 0 || tag::lane(*old) == tag::lane(me[byte]);
        *old = if alone { me[byte] } else { me[byte] | tag::MANY };
    }
    u32::from_le_bytes(merged)
}
