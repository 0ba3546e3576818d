//! Takes an archive apart into fields, edits them, and puts it together again with every checksum made right.
//!
//! Shared by the property test and the fuzz target. It knows both layouts from `docs/FORMAT.md`, not from the crate. What
//! it calls a block is a whole frame in the Zstandard format.

use std::cell::RefCell;
use std::sync::LazyLock;

use trueno_zram_archive::ContentHash;

const PAGE: usize = 4096;
const GROUP: usize = 1024;

/// Returns which of `n` possibilities to take.
pub(crate) type Pick<'a> = &'a mut dyn FnMut(usize) -> usize;

/// An archive's fields.
#[derive(Clone)]
pub(crate) struct Forged {
    zstd: bool,
    /// Blocks have checksums.
    checksums: bool,
    /// The header of the LZ4 frame, checksum byte included.
    header: Vec<u8>,
    /// Raw flag and bytes of each block.
    pub(crate) blocks: Vec<(bool, Vec<u8>)>,
    /// The bytes after the end mark.
    content_checksum: Vec<u8>,
    /// Two bytes per page, those of groups of zeros left out.
    pub(crate) entries: Vec<u16>,
    sections: Vec<u8>,
    /// Offset with its flag for a group of zeros.
    pub(crate) groups: Vec<u64>,
    pub(crate) content_len: u64,
    frame_len: u64,
    counts: [u64; 4],
    /// The seek table of the Zstandard format: lengths of frame and content.
    seek: Vec<(u32, u32)>,
}

fn xxh32(bytes: &[u8]) -> u32 {
    let mut hash = ContentHash::new();
    hash.update(bytes);
    hash.digest()
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

const ZEROS: u64 = 1 << 63;
const LEN: u16 = (1 << 13) - 1;
const LZ4: u16 = 3 << 13;
const RAW: u16 = 4 << 13;

impl Forged {
    /// Takes apart an archive that is in order.
    pub(crate) fn parse(archive: &[u8]) -> Self {
        let zstd = archive.ends_with(&0x8f92_eab1_u32.to_le_bytes());
        let seek_len = if zstd { 17 + 8 * u32_at(archive, archive.len() - 9) } else { 0 };
        let seek_at = archive.len() - seek_len;
        let footer = seek_at - 80;
        let field = |number: usize| u64_at(archive, footer + 8 * number);
        let (entries_len, sections_len) = (u32_at(archive, footer + 48), u32_at(archive, footer + 52));
        let frame_len = usize::try_from(field(1)).expect("small");
        let entries_at = frame_len + 16;
        let table = entries_at + entries_len + sections_len;
        let short = |at: usize| u32::try_from(u32_at(archive, at)).expect("four bytes");
        let mut forged = Self {
            zstd,
            checksums: archive[4] & if zstd { 4 } else { 16 } != 0,
            header: Vec::new(),
            blocks: Vec::new(),
            content_checksum: Vec::new(),
            entries: (0..entries_len / 2)
                .map(|n| u16::from_le_bytes([archive[entries_at + 2 * n], archive[entries_at + 2 * n + 1]]))
                .collect(),
            sections: archive[entries_at + entries_len..table].to_vec(),
            groups: (table..footer).step_by(12).map(|at| u64_at(archive, at)).collect(),
            content_len: field(0),
            frame_len: field(1),
            counts: [field(2), field(3), field(4), field(5)],
            seek: (0..seek_len.saturating_sub(17) / 8)
                .map(|n| (short(seek_at + 8 + 8 * n), short(seek_at + 12 + 8 * n)))
                .collect(),
        };
        if zstd {
            forged.parse_frames(&archive[..frame_len]);
        } else {
            forged.parse_blocks(archive, frame_len);
        }
        forged
    }

    fn parse_frames(&mut self, data: &[u8]) {
        let mut rest = data;
        for (len, _) in &self.seek[..self.seek.len() - 1] {
            let (frame, after) = rest.split_at(*len as usize);
            let block = if frame[4] & 0x40 == 0 { 6 } else { 7 };
            let raw = frame[4] & 0x20 != 0 && frame[block] & 6 == 0;
            self.blocks.push((raw, frame.to_vec()));
            rest = after;
        }
        assert!(rest.is_empty(), "the frames fill the data");
    }

    fn parse_blocks(&mut self, archive: &[u8], frame_len: usize) {
        let header_len = if archive[4] & 8 == 0 { 7 } else { 15 };
        let checksum_len = if archive[4] & 16 == 0 { 0 } else { 4 };
        let (mut blocks, mut at) = (Vec::new(), header_len);
        while u32_at(archive, at) != 0 {
            let (raw, len) = (u32_at(archive, at) >> 31 != 0, u32_at(archive, at) & 0x7fff_ffff);
            blocks.push((raw, archive[at + 4..at + 4 + len].to_vec()));
            at += 4 + len + checksum_len;
        }
        self.header = archive[..header_len].to_vec();
        self.blocks = blocks;
        self.content_checksum = archive[at + 4..frame_len].to_vec();
    }

    fn checksums(&self) -> bool {
        self.checksums
    }

    /// Bytes between two raw pages, or two LZ4 blocks, that belong to neither.
    fn around_raw(&self) -> usize {
        match (self.zstd, self.checksums) {
            (false, false) => 4,
            (false, true) => 8,
            (true, false) => 10,
            (true, true) => 14,
        }
    }

    /// The length of a block as the entry implies it, without the overhead.
    fn len_of(&self, entry: u16) -> u16 {
        if self.zstd && entry >> 13 == 4 { (entry & LEN) + if self.checksums { 14 } else { 10 } } else { entry & LEN }
    }

    fn overhead(&self) -> u16 {
        match (self.zstd, self.checksums) {
            (true, _) => 0,
            (false, true) => 8,
            (false, false) => 4,
        }
    }

    /// Puts the archive together, with all checksums right.
    pub(crate) fn build(&self) -> Vec<u8> {
        let mut out = self.header.clone();
        for (raw, block) in &self.blocks {
            if self.zstd {
                out.extend_from_slice(block);
                continue;
            }
            let flag = if *raw { 1 << 31 } else { 0 };
            out.extend((u32::try_from(block.len()).expect("short") | flag).to_le_bytes());
            out.extend_from_slice(block);
            if self.checksums() {
                out.extend(xxh32(block).to_le_bytes());
            }
        }
        if !self.zstd {
            out.extend([0; 4]);
            out.extend_from_slice(&self.content_checksum);
        }
        let (mut table, mut entries) = (Vec::new(), &self.entries[..]);
        for group in &self.groups {
            let stored = if group & ZEROS == 0 { entries.len().min(GROUP) } else { 0 };
            let (own, rest) = entries.split_at(stored);
            entries = rest;
            table.extend(group.to_le_bytes());
            table.extend(xxh32(&own.iter().flat_map(|entry| entry.to_le_bytes()).collect::<Vec<_>>()).to_le_bytes());
        }
        let mut footer = Vec::new();
        for field in [self.content_len, self.frame_len].iter().chain(&self.counts) {
            footer.extend(field.to_le_bytes());
        }
        let entries_len = 2 * self.entries.len();
        for field in [entries_len, self.sections.len()] {
            footer.extend(u32::try_from(field).expect("short").to_le_bytes());
        }
        footer.extend(xxh32(&table).to_le_bytes());
        footer.extend(xxh32(&self.sections).to_le_bytes());
        footer.extend([1 + u8::from(self.zstd), 0, u8::from(self.zstd && self.checksums), 0]);
        footer.extend(xxh32(&footer).to_le_bytes());
        footer.extend(b"TZ-PAGES");
        let payload_len = 8 + entries_len + self.sections.len() + table.len() + footer.len();
        out.extend(0x184d_2a5d_u32.to_le_bytes());
        out.extend(u32::try_from(payload_len).expect("short").to_le_bytes());
        out.extend(b"TZ-INDEX");
        out.extend(self.entries.iter().flat_map(|entry| entry.to_le_bytes()));
        out.extend_from_slice(&self.sections);
        out.extend(table);
        out.extend(footer);
        if self.zstd {
            let frames = u32::try_from(self.seek.len()).expect("short");
            out.extend(0x184d_2a5e_u32.to_le_bytes());
            out.extend((frames * 8 + 9).to_le_bytes());
            out.extend(self.seek.iter().flat_map(|(len, content)| [len.to_le_bytes(), content.to_le_bytes()].concat()));
            out.extend(frames.to_le_bytes());
            out.push(0);
            out.extend(0x8f92_eab1_u32.to_le_bytes());
        }
        out
    }

    /// Edits one field, or a few that belong together.
    pub(crate) fn edit(&mut self, pick: Pick<'_>) {
        match pick(13) {
            0 => self.swap_entries(pick),
            1 => self.change_entry(pick),
            2 => self.shift_pages(pick),
            3 => self.move_group(pick),
            4 => drop(self.move_boundary(pick)),
            5 => self.toggle_zeros(pick),
            6 => self.change_footer(pick),
            7 => self.enter_raw_block(pick),
            8 => self.split_raw_block(pick),
            9 => self.change_block(pick),
            10 => self.swap_blocks(pick),
            11 => self.change_seek_table(pick),
            _ => self.rotate_group(pick),
        }
    }

    fn swap_entries(&mut self, pick: Pick<'_>) {
        if !self.entries.is_empty() {
            let (a, b) = (pick(self.entries.len()), pick(self.entries.len()));
            self.entries.swap(a, b);
        }
    }

    fn change_entry(&mut self, pick: Pick<'_>) {
        if self.entries.is_empty() {
            return;
        }
        let at = pick(self.entries.len());
        self.entries[at] = match pick(4) {
            0 => self.entries[at] ^ 1 << pick(16),
            1 => self.entries[at] & LEN | u16::try_from(pick(8)).expect("small") << 13,
            2 => self.entries[at].wrapping_add(1),
            _ => self.entries[at].wrapping_sub(1),
        };
    }

    /// Claims that two blocks are one, and another one two: pages between get other numbers, and all sums are right.
    fn shift_pages(&mut self, pick: Pick<'_>) {
        let own = |entry: &u16| matches!(entry >> 13, 3 | 4);
        let pairs: Vec<usize> = (1..self.entries.len())
            .filter(|at| own(&self.entries[at - 1]) && own(&self.entries[*at]))
            .filter(|at| self.len_of(self.entries[at - 1]) + self.len_of(self.entries[*at]) + self.overhead() < 4096)
            .collect();
        let wide: Vec<usize> = (0..self.entries.len()).filter(|at| own(&self.entries[*at])).collect();
        if pairs.is_empty() || wide.is_empty() {
            return;
        }
        let (join, split) = (pairs[pick(pairs.len())], wide[pick(wide.len())]);
        let len = self.len_of(self.entries[split]);
        if split == join || split + 1 == join || len <= self.overhead() + 2 {
            return;
        }
        let first = 1 + u16::try_from(pick(usize::from(len - self.overhead() - 1))).expect("short");
        let joined = self.len_of(self.entries[join - 1]) + self.len_of(self.entries[join]) + self.overhead();
        let halves = [LZ4 | first, LZ4 | (len - self.overhead() - first)];
        self.entries[join - 1] = LZ4 | joined;
        if split > join {
            self.entries[split] = halves[1];
            self.entries.insert(split, halves[0]);
            self.entries.remove(join);
        } else {
            self.entries.remove(join);
            self.entries[split] = halves[1];
            self.entries.insert(split, halves[0]);
        }
    }

    fn move_group(&mut self, pick: Pick<'_>) {
        if !self.groups.is_empty() {
            let (at, by) = (pick(self.groups.len()), 1 + pick(5000) as u64);
            self.groups[at] = match pick(3) {
                0 => self.groups[at].wrapping_add(by),
                1 => self.groups[at].wrapping_sub(by),
                _ => self.groups[pick(self.groups.len())],
            };
        }
    }

    /// Lets every group but the first start a block late, with the entries of the first and the last group made to fit.
    /// The groups between are in order, for all that can be seen in them. Returns whether it can.
    pub(crate) fn move_boundary(&mut self, pick: Pick<'_>) -> bool {
        let own = |entry: u16| matches!(entry >> 13, 3 | 4);
        let last_group = self.groups.len().saturating_sub(1) * GROUP;
        let stored = last_group > 0 && self.groups.iter().all(|group| group & ZEROS == 0);
        if !stored || self.entries.len() <= last_group + 1 {
            return false;
        }
        let steps: Vec<u16> = (0..self.groups.len()).map(|group| self.entries[group * GROUP]).collect();
        let (last, first) = (self.entries[GROUP - 1], self.entries[GROUP]);
        let joined = self.len_of(last) + self.len_of(first) + self.overhead();
        if !own(last) || !steps[1..].iter().all(|step| own(*step)) || joined > 4096 {
            return false;
        }
        for (number, step) in steps.iter().enumerate().skip(1) {
            self.groups[number] += u64::from(self.len_of(*step) + self.overhead());
        }
        self.entries[GROUP - 1] = if self.zstd { LZ4 } else { RAW } | joined;
        self.entries.remove(GROUP);
        let split = last_group + pick(self.entries.len() - last_group);
        let len = self.len_of(self.entries[split]);
        if own(self.entries[split]) && len > self.overhead() + 2 {
            self.entries[split] = LZ4 | (len - self.overhead() - 1);
            self.entries.insert(split, LZ4 | 1);
        }
        true
    }

    fn toggle_zeros(&mut self, pick: Pick<'_>) {
        if !self.groups.is_empty() {
            let at = pick(self.groups.len());
            self.groups[at] ^= ZEROS;
            if pick(2) == 0 {
                let stored = self.groups[..at].iter().filter(|group| **group & ZEROS == 0).count() * GROUP;
                if self.groups[at] & ZEROS != 0 && stored < self.entries.len() {
                    let end = self.entries.len().min(stored + GROUP);
                    self.entries.drain(stored..end);
                }
            }
        }
    }

    fn change_footer(&mut self, pick: Pick<'_>) {
        let by = [1u64, 16, 4096, 65_536][pick(4)];
        match pick(4) {
            0 => self.content_len = self.content_len.wrapping_add(by),
            1 => self.content_len = self.content_len.wrapping_sub(by),
            2 => self.frame_len = self.frame_len.wrapping_add(by),
            _ => {
                let (from, to) = (pick(4), pick(4));
                self.counts[from] = self.counts[from].wrapping_sub(1);
                self.counts[to] = self.counts[to].wrapping_add(1);
            }
        }
    }

    /// Puts a block of the forger's own into a raw page, and leads the index into it. The frame stays in order.
    fn enter_raw_block(&mut self, pick: Pick<'_>) {
        let raw: Vec<usize> = (0..self.entries.len()).filter(|at| self.entries[*at] == RAW | 4096).collect();
        let whole = self.raw_pages();
        if raw.is_empty() || raw.len() != whole.len() {
            return;
        }
        let number = pick(raw.len());
        let overhead = usize::from(self.overhead());
        let cut = 1 + pick(50);
        let (fake, fake_len) = self.fake_block();
        let start = if self.zstd { 10 } else { 0 };
        let content = &mut self.blocks[whole[number]].1;
        content[start + cut..start + cut + fake.len()].copy_from_slice(&fake);
        self.seal_raw_frame(whole[number]);
        // The page is said to be three blocks; what follows is joined to make up for two of them.
        let rest = self.blocks[whole[number]].1.len() - start - cut - fake.len() - overhead;
        let short = |len: usize| u16::try_from(len).expect("short");
        let lie = [LZ4 | short(start + cut), LZ4 | short(fake_len), LZ4 | short(rest)];
        let at = raw[number];
        self.entries.splice(at..=at, lie);
        for _ in 0..2 {
            let own = |entry: u16| matches!(entry >> 13, 3 | 4);
            let pair = (at + 4..self.entries.len().min((at / GROUP + 1) * GROUP)).rev().find(|at| {
                own(self.entries[at - 1])
                    && own(self.entries[*at])
                    && self.len_of(self.entries[at - 1]) + self.len_of(self.entries[*at]) + self.overhead() < 4096
            });
            let Some(pair) = pair else { return };
            let joined = self.len_of(self.entries[pair - 1]) + self.len_of(self.entries[pair]) + self.overhead();
            self.entries[pair - 1] = LZ4 | joined;
            self.entries.remove(pair);
        }
    }

    /// The blocks that are raw pages.
    fn raw_pages(&self) -> Vec<usize> {
        let len = if self.zstd { PAGE + self.around_raw() } else { PAGE };
        (0..self.blocks.len()).filter(|at| self.blocks[*at].0 && self.blocks[*at].1.len() == len).collect()
    }

    /// A page of 'X' as it stands in a file, and its length in an entry.
    fn fake_block(&self) -> (Vec<u8>, usize) {
        // Made once, since fuzzers ask for them often.
        static FRAMES: [LazyLock<Vec<u8>>; 2] =
            [LazyLock::new(|| fake_frame(false)), LazyLock::new(|| fake_frame(true))];
        static BLOCK: LazyLock<Vec<u8>> = LazyLock::new(|| padded_block(2000));
        if self.zstd {
            let fake = FRAMES[usize::from(self.checksums)].to_vec();
            let len = fake.len();
            return (fake, len);
        }
        let mut fake = (u32::try_from(BLOCK.len()).expect("short")).to_le_bytes().to_vec();
        fake.extend_from_slice(&BLOCK);
        if self.checksums() {
            fake.extend(xxh32(&BLOCK).to_le_bytes());
        }
        (fake, BLOCK.len())
    }

    /// Makes the checksum of a raw frame right.
    fn seal_raw_frame(&mut self, at: usize) {
        if self.zstd && self.checksums {
            let frame = &mut self.blocks[at].1;
            let end = frame.len() - 4;
            let checksum = zstd_checksum(&frame[10..end]);
            frame[end..].copy_from_slice(&checksum);
        }
    }

    /// Makes two blocks of a raw one, of the same length in the file: all content behind it moves.
    fn split_raw_block(&mut self, pick: Pick<'_>) {
        let whole = self.raw_pages();
        if whole.is_empty() {
            return;
        }
        let at = whole[pick(whole.len())];
        let bytes = self.blocks[at].1.clone();
        let halves = if self.zstd {
            // Both halves have more than 255 bytes, and so headers of the same length.
            let first = 10 + 256 + pick(3000);
            let around = self.around_raw();
            [&bytes[10..first], &bytes[first + around..bytes.len() - around + 10]]
                .map(|half| (true, self.raw_frame(half)))
        } else {
            let overhead = usize::from(self.overhead());
            let first = pick(PAGE - overhead + 1);
            [(true, bytes[..first].to_vec()), (true, bytes[first + overhead..].to_vec())]
        };
        self.blocks.splice(at..=at, halves);
    }

    /// A frame with a raw block of 256 bytes or more.
    fn raw_frame(&self, content: &[u8]) -> Vec<u8> {
        let short = |number: usize| u16::try_from(number).expect("short").to_le_bytes();
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x60 | if self.checksums { 4 } else { 0 }];
        frame.extend(short(content.len() - 256));
        frame.extend(short(content.len() << 3 | 1));
        frame.push(0);
        frame.extend_from_slice(content);
        if self.checksums {
            frame.extend(zstd_checksum(content));
        }
        frame
    }

    fn change_seek_table(&mut self, pick: Pick<'_>) {
        if !self.seek.is_empty() {
            let (a, b) = (pick(self.seek.len()), pick(self.seek.len()));
            match pick(3) {
                0 => self.seek.swap(a, b),
                1 => self.seek[a].0 ^= 1 << pick(16),
                _ => self.seek[a].1 ^= 1 << pick(16),
            }
        }
    }

    fn change_block(&mut self, pick: Pick<'_>) {
        if !self.blocks.is_empty() {
            let at = pick(self.blocks.len());
            let (raw, block) = &mut self.blocks[at];
            if block.is_empty() || pick(8) == 0 {
                *raw = !*raw;
            } else {
                let byte = pick(block.len());
                block[byte] ^= 1 << pick(8);
            }
        }
    }

    fn swap_blocks(&mut self, pick: Pick<'_>) {
        if !self.blocks.is_empty() {
            let (a, b) = (pick(self.blocks.len()), pick(self.blocks.len()));
            self.blocks.swap(a, b);
        }
    }

    /// Moves the entries of one group by one place.
    fn rotate_group(&mut self, pick: Pick<'_>) {
        let groups = self.entries.len().div_ceil(GROUP);
        if groups > 0 {
            let start = pick(groups) * GROUP;
            let end = self.entries.len().min(start + GROUP);
            self.entries[start..end].rotate_left(1);
        }
    }
}

/// A frame of a page of 'X'.
fn fake_frame(checksum: bool) -> Vec<u8> {
    let mut compressor = zstd::bulk::Compressor::new(1).expect("a level");
    compressor.include_checksum(checksum).expect("a parameter");
    compressor.compress(&[b'X'; PAGE]).expect("a page")
}

/// An LZ4 block of `len` bytes (300 to 3,000) that decodes to one page.
fn padded_block(len: usize) -> Vec<u8> {
    for literals in 300..len {
        let extended = |mut rest: usize| {
            let mut bytes = vec![255; rest / 255];
            rest %= 255;
            bytes.push(u8::try_from(rest).expect("below 255"));
            bytes
        };
        let mut block = vec![0xff];
        block.extend(extended(literals - 15));
        block.extend(std::iter::repeat_n(b'X', literals));
        block.extend([1, 0]);
        block.extend(extended(PAGE - literals - 5 - 4 - 15));
        block.extend([0x50, b'X', b'X', b'X', b'X', b'X']);
        if block.len() == len {
            return block;
        }
    }
    unreachable!("some number of literals makes any length")
}

/// The checksum of a Zstandard frame with this content: the last bytes of a frame by libzstd.
fn zstd_checksum(content: &[u8]) -> [u8; 4] {
    thread_local! {
        static COMPRESSOR: RefCell<zstd::bulk::Compressor<'static>> = RefCell::new({
            let mut compressor = zstd::bulk::Compressor::new(1).expect("a level");
            compressor.include_checksum(true).expect("a parameter");
            compressor
        });
    }
    let frame = COMPRESSOR.with_borrow_mut(|compressor| compressor.compress(content)).expect("some content");
    *frame.last_chunk().expect("a frame")
}

/// Lies about how many pages there are, with everything else made to fit.
impl Forged {
    /// Leaves the last pages out of the index. They must have entries.
    pub(crate) fn forget_pages(&mut self, pages: usize) {
        let left = usize::try_from(self.content_len.div_ceil(PAGE as u64)).expect("small") - pages;
        self.content_len = (left * PAGE) as u64;
        self.entries.truncate(self.entries.len() - pages);
        self.groups.truncate(left.div_ceil(GROUP));
        let mut missing = pages as u64;
        for count in &mut self.counts {
            let less = missing.min(*count);
            *count -= less;
            missing -= less;
        }
    }

    /// Adds raw pages that do not exist to the index.
    pub(crate) fn invent_pages(&mut self, pages: usize) {
        let first = usize::try_from(self.content_len.div_ceil(PAGE as u64)).expect("small");
        for page in first..first + pages {
            if page % GROUP == 0 {
                self.groups.push(self.groups.last().map_or(0, |last| last & !ZEROS) + 5000);
            }
            self.entries.push(RAW | 4096);
        }
        self.content_len = ((first + pages) * PAGE) as u64;
        self.counts[3] += pages as u64;
    }

    /// Claims that a page of one form has another one, in the counts alone. The forms are zero, same-filled, packed and raw.
    pub(crate) fn miscount(&mut self, from: usize, to: usize) {
        self.counts[from] -= 1;
        self.counts[to] += 1;
    }
}
