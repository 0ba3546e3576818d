//! Pages, compressors, every form of the two calls, and checks of their results.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;
use trueno_gpu::kernels::lz4::Mode;
use trueno_test_pages::oracle::c_lz4_decompress;
use trueno_test_pages::{corpus, edge_pages, generate::Generator};
use trueno_zram_core::gpu::{
    DevicePages, FallbackStats, GpuBatchCompressor, GpuBatchConfig, GpuOptions, PackedOnDevice, PinnedBatch,
    PinnedPages,
};
use trueno_zram_core::{Algorithm, CompressedBatch, CompressedPage, PAGE_SIZE, Page, PageData, PageKind, same_filled};

/// Gives one test at a time exclusive use of the device: some take all of its memory, and some measure times.
pub(crate) fn lock_device() -> MutexGuard<'static, ()> {
    static DEVICE: Mutex<()> = Mutex::new(());
    // A failed test leaves nothing behind that affects another.
    DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn config(batch_size: usize, ring_buffer_slots: usize) -> GpuBatchConfig {
    GpuBatchConfig { batch_size, ring_buffer_slots, ..GpuBatchConfig::default() }
}

/// The same with Zstandard, at a level that uses fast mode unless the options say otherwise.
pub(crate) fn zstd_config(batch_size: usize, ring_buffer_slots: usize) -> GpuBatchConfig {
    GpuBatchConfig { algorithm: Algorithm::Zstd { level: 3 }, ..config(batch_size, ring_buffer_slots) }
}

pub(crate) fn in_mode(mode: Mode) -> GpuOptions {
    GpuOptions::new().with_mode(mode)
}

pub(crate) fn compressor(config: GpuBatchConfig, options: &GpuOptions) -> GpuBatchCompressor {
    GpuBatchCompressor::with_options(config, options).expect("these tests need an NVIDIA GPU")
}

/// Returns `count` pages: every committed page, every edge page and some generated ones, no two neighbours of one kind.
pub(crate) fn batch(count: usize) -> Vec<Page> {
    let mut generator = Generator::new(5);
    let generated = (0..800).map(|_| generator.page());
    let pages: Vec<Page> = corpus::all_pages()
        .copied()
        .chain(edge_pages::all().into_iter().map(|edge| *edge.page))
        .chain(generated)
        .collect();
    (0..count).map(|i| pages[i * 7919 % pages.len()]).collect()
}

/// Returns pages that are not same-filled, so that all of them cross the bus.
pub(crate) fn crossing(count: usize) -> Vec<Page> {
    let pages: Vec<Page> = batch(4000).into_iter().filter(|page| same_filled(page).is_none()).collect();
    pages.iter().copied().cycle().take(count).collect()
}

/// Restores a page with C lz4 or libzstd and compares every byte.
fn check_page(number: usize, held: PageData<'_>, page: &Page) {
    let fill = same_filled(page);
    match held.kind() {
        PageKind::SameFilled => assert_eq!(Some(held.bytes()), fill.as_ref().map(<[u8; 8]>::as_slice), "page {number}"),
        PageKind::Raw => assert!(held.bytes() == page && fill.is_none(), "page {number}"),
        PageKind::Lz4 => {
            let mut decoded = [0xa5; PAGE_SIZE];
            assert!(fill.is_none(), "page {number} is same-filled");
            assert_eq!(c_lz4_decompress(held.bytes(), &mut decoded), Some(PAGE_SIZE), "page {number}");
            assert!(decoded == *page, "page {number}: C lz4 decodes another page");
        }
        PageKind::Zstd => {
            let mut decoded = [0xa5; PAGE_SIZE];
            assert!(fill.is_none(), "page {number} is same-filled");
            let len_bytes = zstd::bulk::decompress_to_buffer(held.bytes(), &mut decoded);
            assert!(matches!(len_bytes, Ok(PAGE_SIZE)), "page {number}: {len_bytes:?}");
            assert!(decoded == *page, "page {number}: libzstd decodes another page");
        }
    }
}

pub(crate) fn check_values(held: &[CompressedPage], pages: &[Page]) {
    assert_eq!(held.len(), pages.len());
    held.par_iter().zip(pages).enumerate().for_each(|(i, (held, page))| check_page(i, held.data(), page));
}

pub(crate) fn check_batch(held: &CompressedBatch, pages: &[Page]) {
    assert_eq!(held.len(), pages.len());
    pages.par_iter().enumerate().for_each(|(i, page)| check_page(i, held.get(i).unwrap(), page));
}

/// Asserts that a batch holds the pages in the same bytes, wherever they lie in its arena.
pub(crate) fn assert_same(batch: &CompressedBatch, pages: &[CompressedPage], what: &str) {
    assert_eq!(batch.len(), pages.len(), "{what}");
    for (i, (held, page)) in batch.iter().zip(pages).enumerate() {
        assert!(held == page.data(), "{what}: page {i} has different bytes");
    }
}

pub(crate) fn assert_restored(restored: &[Page], pages: &[Page], what: &str) {
    assert_eq!(restored.len(), pages.len(), "{what}");
    let wrong = restored.iter().zip(pages).position(|(restored, page)| restored != page);
    assert_eq!(wrong, None, "{what}: the first page that differs");
}

/// Asserts that the device did all the work.
pub(crate) fn assert_no_fallback(compressor: &GpuBatchCompressor) {
    assert_eq!(compressor.stats().fallback, FallbackStats::default());
    assert!(compressor.uses_device());
}

/// The form in which a call takes or returns pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `compress_batch`, `decompress_batch`.
    Values,
    /// `compress_into`, `decompress_into`.
    Arena,
    /// `compress_pinned_into`, `decompress_pinned_into`.
    Pinned,
    /// `compress_all_pinned`, `decompress_all_pinned`.
    AllPinned,
    /// `compress_resident`, `decompress_resident`.
    Resident,
}

impl Form {
    pub(crate) const ALL: [Self; 5] = [Self::Values, Self::Arena, Self::Pinned, Self::AllPinned, Self::Resident];
}

/// Memory for all forms, reused for every batch.
pub(crate) struct Memory {
    pub(crate) batch: CompressedBatch,
    pub(crate) restored: Vec<Page>,
    pinned: PinnedPages,
    packed_pinned: PinnedBatch,
    on_device: DevicePages,
    packed: PackedOnDevice,
}

impl Memory {
    pub(crate) fn new(compressor: &GpuBatchCompressor, pages: usize) -> Self {
        Self {
            batch: CompressedBatch::new(),
            restored: Vec::with_capacity(pages),
            pinned: compressor.pinned_pages(pages).unwrap(),
            packed_pinned: compressor.pinned_batch(pages).unwrap(),
            on_device: compressor.device_pages(pages).unwrap(),
            packed: compressor.packed_on_device(pages).unwrap(),
        }
    }

    /// Compresses pages in the given form, into `self.batch`.
    pub(crate) fn compress(&mut self, compressor: &mut GpuBatchCompressor, form: Form, pages: &[Page]) {
        match form {
            Form::Values => {
                let result = compressor.compress_batch(pages).unwrap();
                self.batch.clear();
                result.pages.iter().for_each(|page| self.batch.push(page.data()));
            }
            Form::Arena => drop(compressor.compress_into(pages, &mut self.batch, &()).unwrap()),
            Form::Pinned => {
                self.pinned.set_len(pages.len());
                self.pinned.pages_mut().unwrap().copy_from_slice(pages);
                compressor.compress_pinned_into(&mut self.pinned, &mut self.batch, &()).unwrap();
            }
            Form::AllPinned => {
                self.pinned.set_len(pages.len());
                self.pinned.pages_mut().unwrap().copy_from_slice(pages);
                compressor.compress_all_pinned(&mut self.pinned, &mut self.packed_pinned, &()).unwrap();
                let (arena, index) = (self.packed_pinned.arena().unwrap(), self.packed_pinned.index());
                self.batch = CompressedBatch::from_parts(arena.to_vec(), index.to_vec()).unwrap();
            }
            Form::Resident => {
                self.on_device.upload(pages).unwrap();
                compressor.compress_resident(&self.on_device, &mut self.packed).unwrap();
                self.batch = self.packed.download().unwrap();
            }
        }
    }

    /// Restores `self.batch` in the given form, into `self.restored`. Previous contents cannot be mistaken for a
    /// result.
    pub(crate) fn restore(&mut self, compressor: &mut GpuBatchCompressor, form: Form) -> trueno_zram_core::Result<()> {
        const UNTOUCHED: Page = [0xee; PAGE_SIZE];
        let pages = self.batch.len();
        self.restored.clear();
        self.restored.resize(pages, UNTOUCHED);
        match form {
            Form::Values => {
                let values: Vec<CompressedPage> = self.batch.clone().into_pages();
                self.restored.copy_from_slice(&compressor.decompress_batch(&values)?.pages);
                Ok(())
            }
            Form::Arena => compressor.decompress_into(&self.batch, &mut self.restored, &()).map(drop),
            Form::Pinned => {
                self.pinned.set_len(pages);
                self.pinned.pages_mut()?.fill(UNTOUCHED);
                let done = compressor.decompress_pinned_into(&self.batch, &mut self.pinned, &());
                self.restored.copy_from_slice(self.pinned.pages()?);
                done.map(drop)
            }
            Form::AllPinned => {
                self.pinned.set_len(pages);
                self.pinned.pages_mut()?.fill(UNTOUCHED);
                self.packed_pinned.clear();
                self.batch.iter().try_for_each(|page| self.packed_pinned.push(page))?;
                let done = compressor.decompress_all_pinned(&mut self.packed_pinned, &mut self.pinned, &());
                self.restored.copy_from_slice(self.pinned.pages()?);
                done.map(drop)
            }
            Form::Resident => {
                self.on_device.upload(&self.restored)?;
                self.packed.upload(&self.batch)?;
                let done = compressor.decompress_resident(&self.packed, &mut self.on_device);
                self.on_device.download(&mut self.restored)?;
                done.map(drop)
            }
        }
    }
}
