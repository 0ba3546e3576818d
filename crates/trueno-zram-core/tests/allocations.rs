//! Counts allocations: a warm codec makes none, and a batch does not allocate per page.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use trueno_test_pages::{corpus, generate::Generator};
use trueno_zram_core::{Algorithm, CompressedBatch, CpuBatchCompressor, PAGE_SIZE, Page, PageCodec};

static OF_ALL_THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OF_THIS_THREAD: Cell<usize> = const { Cell::new(0) };
}

/// The system allocator with counters.
struct Counting;

// SAFETY: every call is passed unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        OF_ALL_THREADS.fetch_add(1, Ordering::Relaxed);
        OF_THIS_THREAD.set(OF_THIS_THREAD.get() + 1);
        // SAFETY: the caller upholds this trait's requirements.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds this trait's requirements.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations_of_this_thread(work: impl FnOnce()) -> usize {
    let before = OF_THIS_THREAD.get();
    work();
    OF_THIS_THREAD.get() - before
}

/// Counts those of the test harness's own thread, too: they are few.
fn allocations_of_all_threads(work: impl FnOnce()) -> usize {
    let before = OF_ALL_THREADS.load(Ordering::Relaxed);
    work();
    OF_ALL_THREADS.load(Ordering::Relaxed) - before
}

/// A single test, so that no other one allocates at the same time.
#[test]
fn warm_codecs_do_not_allocate_for_pages() {
    let mut codec = PageCodec::default();
    let (mut out, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    let single = allocations_of_this_thread(|| {
        for page in corpus::all_pages() {
            let data = codec.compress(page, &mut out).expect("LZ4 does not fail");
            codec.decompress(data, &mut back).expect("the page is intact");
        }
    });
    assert_eq!(single, 0);

    // Zstandard allocates for its first pages, one of which must not shrink.
    let mut codec = PageCodec::new(Algorithm::Zstd { level: 3 }).expect("the level is valid");
    let mut generator = Generator::new(3);
    let noise: Page = std::array::from_fn(|_| generator.byte());
    let mut round_trips = || {
        for page in corpus::all_pages().copied().step_by(7).chain([noise]) {
            let data = codec.compress(&page, &mut out).expect("there is memory");
            codec.decompress(data, &mut back).expect("the page is intact");
            assert!(back == page);
        }
    };
    round_trips();
    assert_eq!(allocations_of_this_thread(round_trips), 0);

    let pages: Vec<Page> = corpus::all_pages().copied().cycle().take(20_000).collect();
    let mut restored = vec![[0; PAGE_SIZE]; pages.len()];
    let (mut compressor, mut batch) = (CpuBatchCompressor::default(), CompressedBatch::new());
    compressor.compress_into(&pages, &mut batch, &()).expect("LZ4 does not fail");
    let both_ways = allocations_of_all_threads(|| {
        compressor.compress_into(&pages, &mut batch, &()).expect("LZ4 does not fail");
        compressor.decompress_into(&batch, &mut restored, &()).expect("the batch is intact");
    });
    assert!(both_ways < pages.len() / 20, "{both_ways} allocations for {} pages", pages.len());
}
