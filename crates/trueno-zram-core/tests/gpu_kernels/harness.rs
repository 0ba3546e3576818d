//! Pages, the device, and single runs of a kernel over a batch.

use rayon::prelude::*;
use trueno_gpu::kernels::lz4::{Mode, TableStores};
use trueno_gpu::kernels::packed::{PackedEntry, PageKind, PageStatus};
use trueno_test_pages::{PAGE_SIZE, Page, corpus, edge_pages, generate::Generator};
use trueno_zram_core::gpu::raw::{
    CompressBuffers, CudaStream, DecompressBuffers, DeviceBuffer, GpuContext, LaunchShape, PageCompressor,
    PageDecompressor, PageFormat, lane_rule,
};

/// The fill of buffers before a run.
pub(crate) const FILL: u8 = 0xee;
/// Bytes after a buffer's used part that must keep their fill.
const GUARD_BYTES: usize = 64 * 1024;

pub(crate) struct Device {
    pub(crate) context: GpuContext,
    pub(crate) stream: CudaStream,
}

/// A packed batch as it left the device.
#[derive(Clone, PartialEq)]
pub(crate) struct Packed {
    pub(crate) index: Vec<PackedEntry>,
    pub(crate) bytes: Vec<u8>,
}

impl Packed {
    pub(crate) fn page(&self, page: usize) -> (PageKind, &[u8]) {
        let entry = self.index[page];
        let start = usize::try_from(entry.offset_bytes()).unwrap();
        (entry.kind(), &self.bytes[start..start + usize::from(entry.len_bytes())])
    }
}

pub(crate) fn device() -> Device {
    let context = GpuContext::new(0).expect("these tests need an NVIDIA GPU");
    let stream = CudaStream::new(&context).expect("a stream can be created");
    Device { context, stream }
}

impl Device {
    /// Returns every shape worth testing: the documented one, the device's best, and odd ones.
    pub(crate) fn shapes(&self) -> Vec<LaunchShape> {
        let best = LaunchShape::best_for(self.context.info().compute_capability, self.context.limits());
        let with_warps = |warps_per_block| LaunchShape { warps_per_block, ..LaunchShape::EVERYWHERE };
        let mut shapes = vec![LaunchShape::EVERYWHERE, with_warps(1), with_warps(5)];
        if best != LaunchShape::EVERYWHERE {
            shapes.push(best);
        }
        shapes
    }

    /// Returns both table stores, or only the one that is safe on the device.
    pub(crate) fn table_stores(&self) -> Vec<TableStores> {
        let trusted = lane_rule(&self.context).unwrap().table_stores();
        if trusted == TableStores::ReadBack { vec![trusted] } else { vec![TableStores::ReadBack, trusted] }
    }

    /// Returns a compressor for every mode, shape and kind of table stores of a format, each with a name.
    pub(crate) fn compressors(&self, format: PageFormat) -> Vec<(String, Mode, PageCompressor)> {
        let mut all = Vec::new();
        for mode in [Mode::Fast, Mode::Ratio] {
            for shape in self.shapes() {
                for stores in self.table_stores() {
                    let compressor = PageCompressor::with_shape(&self.context, format, mode, stores, shape).unwrap();
                    let name = format!("{format:?} {mode:?} {stores:?} {} warps", shape.warps_per_block);
                    all.push((name, mode, compressor));
                }
            }
        }
        all
    }

    pub(crate) fn decompressors(&self, format: PageFormat) -> Vec<(u32, PageDecompressor)> {
        let load = |shape: LaunchShape| {
            (shape.warps_per_block, PageDecompressor::with_shape(&self.context, format, shape).unwrap())
        };
        self.shapes().into_iter().map(load).collect()
    }

    pub(crate) fn buffer(&self, len_bytes: usize) -> DeviceBuffer {
        DeviceBuffer::new(&self.context, len_bytes).unwrap()
    }

    /// Returns a buffer that holds `bytes`.
    pub(crate) fn upload(&self, bytes: &[u8]) -> DeviceBuffer {
        let buffer = self.buffer(bytes.len());
        self.stream.upload(&buffer, 0, bytes).unwrap();
        buffer
    }

    /// Returns a filled buffer with a guard after `len_bytes`.
    fn filled(&self, len_bytes: usize) -> DeviceBuffer {
        let buffer = self.buffer(len_bytes + GUARD_BYTES);
        self.stream.fill(&buffer, 0..len_bytes + GUARD_BYTES, FILL).unwrap();
        buffer
    }

    /// Returns all bytes of a buffer.
    pub(crate) fn download(&self, buffer: &DeviceBuffer) -> Vec<u8> {
        let mut bytes = vec![0; buffer.len_bytes()];
        self.stream.download(buffer, 0, &mut bytes).unwrap();
        bytes
    }

    /// Compresses a batch. Checks that the index is complete, the pages lie in order without gaps, and nothing else is
    /// written.
    pub(crate) fn compress(&self, compressor: &mut PageCompressor, pages: &[Page]) -> Packed {
        let input = self.upload(pages.as_flattened());
        let output = self.filled(pages.len() * PAGE_SIZE);
        let index = self.filled(pages.len() * 8);
        let count = u32::try_from(pages.len()).unwrap();
        let buffers = CompressBuffers { input: &input, output: &output, index: &index, pages: count };
        // SAFETY: one stream uses the buffers.
        unsafe { compressor.compress(&self.stream, buffers, None) }.unwrap();
        let index = self.download(&index);
        let (index, guard) = index.split_at(pages.len() * 8);
        assert!(guard.iter().all(|byte| *byte == FILL), "the index's guard is intact");
        let (index, end) = crate::interpreter::whole_index(index);
        let mut bytes = self.download(&output);
        assert!(bytes[end..].iter().all(|byte| *byte == FILL), "nothing is written behind the packed pages");
        bytes.truncate(end);
        Packed { index, bytes }
    }

    /// Restores a batch. Returns the status and the output of each page. Checks that nothing else is written.
    pub(crate) fn decompress(
        &self,
        decompressor: &mut PageDecompressor,
        index: &[PackedEntry],
        bytes: &[u8],
    ) -> Vec<(PageStatus, Page)> {
        let words: Vec<u8> = index.iter().flat_map(|entry| entry.bits().to_le_bytes()).collect();
        let (packed, index_buffer) = (self.upload(bytes), self.upload(&words));
        let output = self.filled(index.len() * PAGE_SIZE);
        let status = self.filled(index.len() * 4);
        let pages = u32::try_from(index.len()).unwrap();
        let buffers = DecompressBuffers {
            packed: &packed,
            packed_bytes: bytes.len() as u64,
            index: &index_buffer,
            output: &output,
            status: &status,
            pages,
        };
        // SAFETY: one stream uses the buffers.
        unsafe { decompressor.decompress(&self.stream, buffers, None) }.unwrap();
        let (output, status) = (self.download(&output), self.download(&status));
        let (output, output_guard) = output.split_at(index.len() * PAGE_SIZE);
        let (status, status_guard) = status.split_at(index.len() * 4);
        assert!([output_guard, status_guard].iter().all(|guard| guard.iter().all(|byte| *byte == FILL)));
        let status = status.as_chunks().0.iter().map(|code| PageStatus::from_code(u32::from_le_bytes(*code)).unwrap());
        status.zip(output.as_chunks().0.iter().copied()).collect()
    }
}

/// Returns every committed page, every edge page, and 2,000 generated ones.
pub(crate) fn many_pages() -> Vec<Page> {
    let mut generator = Generator::new(21);
    let generated = (0..2000).map(|_| generator.page());
    corpus::all_pages().copied().chain(edge_pages::all().into_iter().map(|edge| *edge.page)).chain(generated).collect()
}

/// Returns a small sample of all pages, for tools that slow a device down a hundredfold.
pub(crate) fn few_pages() -> Vec<Page> {
    many_pages().into_iter().step_by(29).collect()
}

pub(crate) fn is_same_filled(page: &Page) -> bool {
    page.as_chunks::<8>().0.iter().all(|word| *word == page[..8])
}

/// Returns `true` if a rejected page was left unchanged.
pub(crate) fn is_untouched(page: &Page) -> bool {
    page.iter().all(|byte| *byte == FILL)
}

/// Returns the blocks of every other encoder and of our own on the CPU that are shorter than the page, each with its
/// page.
pub(crate) fn blocks_of(pages: &[Page]) -> Vec<(Vec<u8>, Page)> {
    use trueno_test_pages::oracle::foreign_blocks;
    use trueno_zram_core::{cpu::InstructionSet, lz4::Codec};

    let of_page = |page: &Page| {
        let mut blocks: Vec<Vec<u8>> = foreign_blocks(page).into_iter().map(|(_, block)| block).collect();
        let mut out = [0; PAGE_SIZE];
        let len = Codec::new(InstructionSet::detect()).unwrap().encode(page, &mut out);
        blocks.extend(len.map(|len| out[..len].to_vec()));
        blocks.into_iter().map(|block| (block, *page)).collect::<Vec<_>>()
    };
    pages.par_iter().flat_map_iter(of_page).collect()
}
