//! Lack of memory, times, counts, and limits on the multiprocessors.

use std::num::NonZeroU32;

use trueno_gpu::kernels::packed::{Mode, PackedEntry};
use trueno_zram_core::gpu::raw::{
    CompressBuffers, CudaStream, DecompressBuffers, DeviceBuffer, GpuContext, PageCompressor, PageDecompressor,
    PageFormat,
};
use trueno_zram_core::gpu::{BatchTimes, GpuBatchCompressor, GpuBatchConfig};
use trueno_zram_core::{CompressedBatch, Error, PAGE_SIZE};

use crate::harness::{
    assert_no_fallback, assert_restored, batch, check_values, compressor, config, crossing, in_mode, lock_device,
};

#[test]
#[ignore = "needs a GPU"]
fn rejects_a_ring_larger_than_device_memory() {
    let _device = lock_device();
    let pages = batch(2000);
    let mut before = compressor(config(500, 2), &in_mode(Mode::Fast));
    // Take the rest of the device's memory, except less than a GiB.
    let context = GpuContext::new(0).unwrap();
    let taken: Vec<_> = std::iter::from_fn(|| DeviceBuffer::new(&context, 1 << 30).ok()).collect();
    let large = config(1 << 19, 2);
    let Err(Error::GpuNotAvailable(why)) = GpuBatchCompressor::new(large) else { panic!("there is no memory left") };
    assert!(why.contains("OUT_OF_MEMORY"), "{why}");
    drop(taken);
    let Err(Error::Gpu(_)) = before.device_pages(usize::MAX) else { panic!("no device has that much memory") };
    let Err(Error::Gpu(_)) = before.pinned_pages(usize::MAX) else { panic!("no host has that much memory") };
    let result = before.compress_batch(&pages).unwrap();
    check_values(&result.pages, &pages);
    assert_restored(&before.decompress_batch(&result.pages).unwrap().pages, &pages, "by the compressor created before");
    assert_no_fallback(&before);
    check_values(&compressor(config(500, 2), &in_mode(Mode::Fast)).compress_batch(&pages).unwrap().pages, &pages);
}

/// Batches that would be restored in groups need no more memory than small ones.
#[test]
#[ignore = "needs a GPU"]
fn zstandard_is_restored_without_memory_for_groups() {
    let _device = lock_device();
    let context = GpuContext::new(0).unwrap();
    let stream = CudaStream::new(&context).unwrap();
    let mut decompressor = PageDecompressor::new(&context, PageFormat::Zstd).unwrap();
    let count = decompressor.least_group_pages().unwrap();
    let pages = batch(count as usize);
    let buffer = |bytes_per_page: usize| DeviceBuffer::new(&context, pages.len() * bytes_per_page).unwrap();
    let (input, output, status) = (buffer(PAGE_SIZE), buffer(PAGE_SIZE), buffer(4));
    let (packed, index) = (buffer(PAGE_SIZE), buffer(PackedEntry::BYTES));
    stream.upload(&input, 0, pages.as_flattened()).unwrap();
    let mut compressor = PageCompressor::new(&context, PageFormat::Zstd, Mode::Fast).unwrap();
    let buffers = CompressBuffers { input: &input, output: &packed, index: &index, pages: count };
    // SAFETY: three buffers, used in one stream.
    unsafe { compressor.compress(&stream, buffers, None) }.unwrap();
    let buffers = DecompressBuffers {
        packed: &packed,
        packed_bytes: packed.len_bytes() as u64,
        index: &index,
        output: &output,
        status: &status,
        pages: count,
    };
    let mut restore = || {
        for buffer in [&output, &status] {
            stream.fill(buffer, 0..buffer.len_bytes(), 0xee).unwrap();
        }
        // SAFETY: four buffers, used in one stream.
        unsafe { decompressor.decompress(&stream, buffers, None) }.unwrap();
        let (mut restored, mut codes) = (vec![[0; PAGE_SIZE]; pages.len()], vec![0; pages.len() * 4]);
        stream.download(&output, 0, restored.as_flattened_mut()).unwrap();
        stream.download(&status, 0, &mut codes).unwrap();
        assert!(codes.iter().all(|byte| *byte == 0), "a page was refused");
        assert_restored(&restored, &pages, "on the device");
        decompressor.scratch_bytes()
    };
    let mut taken = Vec::new();
    for len_bytes in [1 << 30, 1 << 26, 1 << 22] {
        taken.extend(std::iter::from_fn(|| DeviceBuffer::new(&context, len_bytes).ok()));
    }
    assert_eq!(restore(), 0, "there was memory for groups");
    drop(taken);
    assert!(restore() > 0, "with memory, such a batch is restored in groups");
}

/// Checks the times of a batch. Stage times add up over slots that overlap.
fn assert_plausible(times: BatchTimes, slots: u64, what: &str) {
    println!("{what}: {times:?}");
    for stage in [times.h2d_time_ns, times.kernel_time_ns, times.d2h_time_ns] {
        assert!(stage > 0 && stage <= times.total_time_ns * slots, "{what}: {times:?}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn times_are_plausible_in_every_form() {
    let _device = lock_device();
    let pages = crossing(20_000);
    for (slots, async_dma) in [(4, true), (1, true), (4, false)] {
        let config = GpuBatchConfig { async_dma, ..config(1000, slots) };
        let mut compressor = compressor(config, &in_mode(Mode::Fast));
        let what = format!("{slots} slots, async {async_dma}");
        let under_way = if async_dma { slots as u64 } else { 1 };
        let mut held = CompressedBatch::new();
        // The first calls allocate and compile.
        for _ in 0..2 {
            let result = compressor.compress_batch(&pages).unwrap();
            let (h2d_time_ns, kernel_time_ns) = (result.h2d_time_ns, result.kernel_time_ns);
            let (d2h_time_ns, total_time_ns) = (result.d2h_time_ns, result.total_time_ns);
            let times = BatchTimes { h2d_time_ns, kernel_time_ns, d2h_time_ns, total_time_ns };
            assert_plausible(times, under_way, &format!("compress, {what}"));
            let throughput = result.throughput_bytes_per_sec(pages.len() * PAGE_SIZE);
            assert!(throughput > 1e8 && throughput < 1e12, "{throughput}");
            let restored = compressor.decompress_batch(&result.pages).unwrap();
            assert_plausible(restored.times, under_way, &format!("decompress, {what}"));
            let times = compressor.compress_into(&pages, &mut held, &()).unwrap();
            assert_plausible(times, under_way, &format!("compress_into, {what}"));
        }
        let (mut on_device, mut packed) =
            (compressor.device_pages(20_000).unwrap(), compressor.packed_on_device(20_000).unwrap());
        on_device.upload(&pages).unwrap();
        let there = compressor.compress_resident(&on_device, &mut packed).unwrap();
        let back = compressor.decompress_resident(&packed, &mut on_device).unwrap();
        for times in [there, back] {
            println!("resident: {times:?}");
            assert!(times.kernel_time_ns > 0 && times.kernel_time_ns <= times.total_time_ns);
            assert_eq!((times.h2d_time_ns, times.d2h_time_ns), (0, 0));
        }
        assert_no_fallback(&compressor);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn multiprocessor_limit_is_respected() {
    let _device = lock_device();
    let all = GpuContext::new(0).expect("these tests need an NVIDIA GPU").limits().multiprocessors;
    let pages = crossing(20_000);
    let shares = [NonZeroU32::new(all.div_ceil(8)), None];
    let [(few_bytes, few), (all_bytes, all)] = shares.map(|multiprocessors| {
        let options = in_mode(Mode::Fast).with_multiprocessors(multiprocessors);
        let mut compressor = compressor(config(1000, 4), &options);
        let made = compressor.compress_batch(&pages).unwrap().pages;
        let (mut on_device, mut packed) =
            (compressor.device_pages(20_000).unwrap(), compressor.packed_on_device(20_000).unwrap());
        on_device.upload(&pages).unwrap();
        // The best of five, to exclude other users' work.
        let mut best = [u64::MAX; 2];
        for _ in 0..5 {
            let there = compressor.compress_resident(&on_device, &mut packed).unwrap().kernel_time_ns;
            let back = compressor.decompress_resident(&packed, &mut on_device).unwrap().kernel_time_ns;
            best = [best[0].min(there), best[1].min(back)];
        }
        assert_no_fallback(&compressor);
        (made, best)
    });
    println!("an eighth: {few:?} ns, all: {all:?} ns (compress, decompress)");
    assert!(few_bytes == all_bytes, "the limit must not change the bytes");
    for (few, all) in few.into_iter().zip(all) {
        assert!(few > all + all / 2, "an eighth of the device takes longer: {few} ns and {all} ns");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn stats_count_pages_and_bytes() {
    let _device = lock_device();
    let pages = batch(2000);
    let mut compressor = compressor(config(300, 3), &in_mode(Mode::Fast));
    assert_eq!((compressor.stats().pages_compressed, compressor.stats().compression_ratio()), (0, 1.0));
    let result = compressor.compress_batch(&pages).unwrap();
    let held: u64 = result.pages.iter().map(|page| page.bytes().len() as u64).sum();
    let mut again = CompressedBatch::new();
    compressor.compress_into(&pages[..500], &mut again, &()).unwrap();
    let held = held + again.iter().map(|page| page.bytes().len() as u64).sum::<u64>();
    compressor.decompress_batch(&result.pages).unwrap();
    let stats = compressor.stats().clone();
    assert_eq!((stats.pages_compressed, stats.total_bytes_in, stats.total_bytes_out), (2500, 2500 * 4096, held));
    assert_eq!(stats.pages_decompressed, 2000);
    assert!(stats.total_time_ns >= result.total_time_ns && stats.decompress_time_ns > 0);
    assert!(stats.throughput_gbps() > 0.0 && stats.compression_ratio() > 1.0);
    // On the device: packed bytes, including the padding between pages.
    let (mut on_device, mut packed) =
        (compressor.device_pages(500).unwrap(), compressor.packed_on_device(500).unwrap());
    on_device.upload(&pages[..500]).unwrap();
    compressor.compress_resident(&on_device, &mut packed).unwrap();
    compressor.decompress_resident(&packed, &mut on_device).unwrap();
    assert_eq!(compressor.stats().pages_compressed, 3000);
    assert_eq!(compressor.stats().total_bytes_out, held + packed.len_bytes() as u64);
    assert_eq!(compressor.stats().pages_decompressed, 2500);
    assert_no_fallback(&compressor);
}
