//! Our own kernels on pages in device memory.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use trueno_gpu::kernels::packed::{Mode, PACK_ALIGN_BYTES, PackedEntry};
use trueno_zram_core::gpu::raw::{
    CompressBuffers, DecompressBuffers, DeviceBuffer, LoadedKernel, PageCompressor, PageDecompressor, PageFormat,
};
use trueno_zram_core::{CompressedBatch, CpuBatchCompressor, IndexEntry, PAGE_SIZE, Page, PageKind};

use super::codec::{BLOCK_BOUND, Block, BlockCodec, C_LZ4, MakeCodec, ZSTD_3};
use super::resident::{Session, device_failed};
use super::{C_LZ4_BLOCKS, Engines};
use crate::engine::{Engine, compare};
use crate::error::{Error, Result};
use crate::kernels::ZSTD_3_FRAMES;

/// Room after the packed pages: copies of 16 bytes per lane may read past the end of the last page.
const SLACK_BYTES: usize = 64 * 1024;

/// The source of the compressed pages.
enum Encoder {
    /// A kernel.
    Kernel(Box<PageCompressor>),
    /// A codec on one CPU thread, for its blocks.
    Cpu(Box<dyn BlockCodec>),
}

/// A compressor, a decompressor, and their buffers.
pub(crate) struct KernelEngine<'a> {
    name: String,
    session: &'a Session,
    encoder: Encoder,
    decompressor: PageDecompressor,
    pages: u32,
    input: DeviceBuffer,
    packed: DeviceBuffer,
    packed_bytes: u64,
    held_bytes: u64,
    index: DeviceBuffer,
    decoded: DeviceBuffer,
    status: DeviceBuffer,
    /// The time of the codec on the CPU.
    encode: Duration,
    last: Duration,
}

/// Every kernel for batches of `pages` pages: each format and mode as the library launches it; and, to decompress, the blocks
/// of C lz4 and the frames of libzstd's level 3.
pub(crate) fn all(session: &Session, pages: usize) -> Result<Engines<'_>> {
    let mut engines: Engines<'_> = Vec::new();
    for (format, mode, name) in [
        (PageFormat::Lz4, Mode::Fast, "fast"),
        (PageFormat::Lz4, Mode::Ratio, "ratio"),
        (PageFormat::Zstd, Mode::Fast, "zstd fast"),
        (PageFormat::Zstd, Mode::Ratio, "zstd ratio"),
    ] {
        engines.push(Box::new(KernelEngine::of_product(session, name, format, mode, pages)?));
    }
    let on_cpu: [(_, _, Option<MakeCodec>); 2] =
        [(C_LZ4_BLOCKS, PageFormat::Lz4, C_LZ4), (ZSTD_3_FRAMES, PageFormat::Zstd, ZSTD_3)];
    for (name, format, make) in on_cpu {
        if let Some(make) = make {
            let encoder = Encoder::Cpu(make()?);
            engines.push(Box::new(KernelEngine::new(session, name, format, encoder, pages)?));
        }
    }
    Ok(engines)
}

impl<'a> KernelEngine<'a> {
    /// The format's kernels as the product uses them, for batches of `pages` pages.
    pub(super) fn of_product(
        session: &'a Session,
        name: &str,
        format: PageFormat,
        mode: Mode,
        pages: usize,
    ) -> Result<Self> {
        let compressor = PageCompressor::new(&session.context, format, mode).map_err(device_failed)?;
        let encoder = Encoder::Kernel(Box::new(compressor));
        Self::new(session, name, format, encoder, pages)
    }

    fn new(session: &'a Session, name: &str, format: PageFormat, encoder: Encoder, pages: usize) -> Result<Self> {
        let count = u32::try_from(pages).map_err(Error::engine(name))?;
        let set_up = || {
            Ok(Self {
                name: name.to_owned(),
                session,
                encoder,
                decompressor: PageDecompressor::new(&session.context, format)?,
                pages: count,
                input: session.buffer(pages * PAGE_SIZE)?,
                packed: session.buffer(pages * PAGE_SIZE + SLACK_BYTES)?,
                packed_bytes: 0,
                held_bytes: 0,
                index: session.buffer(pages * PackedEntry::BYTES)?,
                decoded: session.buffer(pages * PAGE_SIZE)?,
                status: session.buffer(pages * size_of::<u32>())?,
                encode: Duration::ZERO,
                last: Duration::ZERO,
            })
        };
        set_up().map_err(device_failed)
    }

    /// The packed pages on the device, and where each of them lies.
    pub(super) fn packed_pages(&self) -> Result<(&DeviceBuffer, Vec<IndexEntry>)> {
        let index = self.session.download(&self.index, self.index.len_bytes())?;
        let entry = |(page, bits): (usize, &[u8; PackedEntry::BYTES])| {
            let entry = PackedEntry::from_bits(u64::from_le_bytes(*bits));
            if !entry.is_placed() {
                return Err(Error::engine(&self.name)(format!("page {page} has no index entry")));
            }
            Ok(IndexEntry { offset: entry.offset_bytes(), len_bytes: entry.len_bytes(), kind: entry.kind() })
        };
        let entries = index.as_chunks().0.iter().enumerate().map(entry).collect::<Result<_>>()?;
        Ok((&self.packed, entries))
    }

    /// Checks the packed pages with the CPU's decoder, and notes how long they are.
    fn check(&mut self, pages: &[Page]) -> Result<()> {
        let (_, entries) = self.packed_pages()?;
        let end = entries.iter().map(|entry| entry.offset + padded(entry.len_bytes)).max().unwrap_or(0);
        self.packed_bytes = end;
        self.held_bytes = entries.iter().map(|entry| u64::from(entry.len_bytes)).sum();
        let failed = Error::engine(&self.name);
        let end = usize::try_from(end).unwrap_or(usize::MAX).min(self.packed.len_bytes());
        let packed = self.session.download(&self.packed, end)?;
        let batch = CompressedBatch::from_parts(packed, entries).map_err(&failed)?;
        let restored = CpuBatchCompressor::default().decompress(&batch).map_err(&failed)?;
        compare(&self.name, &restored, pages)
    }
}

/// The length of a packed page with the bytes that align the next one.
fn padded(len_bytes: u16) -> u64 {
    u64::from(len_bytes).next_multiple_of(PACK_ALIGN_BYTES.into())
}

impl Engine for KernelEngine<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn threads(&self) -> usize {
        1
    }

    fn load(&mut self, pages: &[Page]) -> Result<()> {
        let stream = &self.session.stream;
        stream.upload(&self.input, 0, pages.as_flattened()).map_err(device_failed)?;
        // Pages that a kernel does not write must not look right by chance.
        for buffer in [&self.packed, &self.decoded, &self.status] {
            stream.fill(buffer, 0..buffer.len_bytes(), 0xee).map_err(device_failed)?;
        }
        if let Encoder::Cpu(codec) = &mut self.encoder {
            let start = Instant::now();
            let (packed, index) = pack(codec.as_mut(), self.decompressor.format().kind(), pages);
            self.encode = start.elapsed();
            stream.upload(&self.packed, 0, &packed).map_err(device_failed)?;
            stream.upload(&self.index, 0, &index).map_err(device_failed)?;
        } else {
            self.compress(pages)?;
        }
        self.check(pages)
    }

    fn compress(&mut self, _: &[Page]) -> Result<Duration> {
        let Self { session, encoder, pages, input, packed, index, .. } = self;
        let Encoder::Kernel(compressor) = encoder else { return Ok(self.encode) };
        let buffers = CompressBuffers { input, output: packed, index, pages: *pages };
        self.last = session.time(|| {
            // The time starts when the index and the counters are zeroed.
            // SAFETY: three buffers, and one stream does all the work.
            unsafe { compressor.compress(&session.stream, buffers, Some(&session.start)) }.map_err(device_failed)
        })?;
        Ok(self.last)
    }

    fn held_bytes(&self) -> Result<u64> {
        Ok(self.held_bytes)
    }

    fn decompress(&mut self, _: &mut [Page]) -> Result<Duration> {
        let Self { session, decompressor, pages, packed, packed_bytes, index, decoded, status, .. } = self;
        let (packed_bytes, pages) = (*packed_bytes, *pages);
        let buffers = DecompressBuffers { packed, packed_bytes, index, output: decoded, status, pages };
        self.last = session.time(|| {
            // SAFETY: four buffers, and one stream does all the work.
            unsafe { decompressor.decompress(&session.stream, buffers, Some(&session.start)) }.map_err(device_failed)
        })?;
        Ok(self.last)
    }

    fn fetch(&mut self, pages: &mut [Page]) -> Result<()> {
        let status = self.session.download(&self.status, self.status.len_bytes())?;
        if let Some(page) = status.as_chunks().0.iter().position(|status: &[u8; 4]| *status != [0; 4]) {
            return Err(Error::engine(&self.name)(format!("refuses page {page}")));
        }
        self.session.stream.download(&self.decoded, 0, pages.as_flattened_mut()).map_err(device_failed)
    }

    fn stages(&self) -> Vec<(&'static str, Duration)> {
        vec![("kernel", self.last)]
    }

    fn note(&self) -> String {
        let launch = |loaded: &LoadedKernel| {
            let registers = loaded.attributes().map_or(0, |attributes| attributes.registers);
            format!("{} x {} warps, {registers} registers", loaded.resident_blocks(), loaded.block_threads() / 32)
        };
        match &self.encoder {
            Encoder::Kernel(compressor) => {
                format!("{}, {} MB of scratch", launch(compressor.loaded()), compressor.scratch_bytes() / 1_000_000)
            }
            Encoder::Cpu(_) => launch(self.decompressor.loaded()),
        }
    }
}

/// Packs the blocks that a codec makes of the pages, which are of kind `shrunk`, and their index.
fn pack(codec: &mut dyn BlockCodec, shrunk: PageKind, pages: &[Page]) -> (Vec<u8>, Vec<u8>) {
    let (mut packed, mut index) = (Vec::new(), Vec::new());
    let mut out: Block = [0; BLOCK_BOUND];
    for page in pages {
        let len_bytes = codec.encode_or_copy(page, &mut out);
        let kind = if len_bytes < PAGE_SIZE { shrunk } else { PageKind::Raw };
        let entry_len = u16::try_from(len_bytes).expect("no block is longer than a page");
        index.extend(PackedEntry::new(packed.len() as u64, entry_len, kind).bits().to_le_bytes());
        packed.extend_from_slice(&out[..len_bytes]);
        packed.resize(packed.len().next_multiple_of(PACK_ALIGN_BYTES as usize), 0);
    }
    (packed, index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::codec::{CopyPage, Trueno};

    #[test]
    fn packing_aligns_blocks() {
        let pages: [Page; 2] = [std::array::from_fn(|i| (i / 100).to_le_bytes()[0]), [3; PAGE_SIZE]];
        let instructions = trueno_zram_core::cpu::InstructionSet::detect();
        for codec in [Box::new(Trueno::new(instructions).unwrap()) as Box<dyn BlockCodec>, Box::new(CopyPage)] {
            let (packed, index) = pack(&mut *{ codec }, PageKind::Lz4, &pages);
            let entries: Vec<PackedEntry> =
                index.as_chunks().0.iter().map(|bits| PackedEntry::from_bits(u64::from_le_bytes(*bits))).collect();
            assert_eq!(entries[0].offset_bytes(), 0);
            assert_eq!(entries[1].offset_bytes(), padded(entries[0].len_bytes()));
            assert_eq!(packed.len() as u64, entries[1].offset_bytes() + padded(entries[1].len_bytes()));
        }
    }
}
