//! The Zstandard decompression kernel on a device: equal to its slow twin on every frame.

use std::time::Duration;

use rayon::prelude::*;
use trueno_gpu::Target;
use trueno_gpu::kernels::Kernel;
use trueno_gpu::kernels::packed::{PackedEntry, PageKind, PageStatus};
use trueno_gpu::kernels::zstd::ZstdWarpDecompressKernel;
use trueno_test_kernels::zstd_restore::{RestoreError, restore};
use trueno_test_pages::{PAGE_SIZE, Page, corpus, generate::Generator};
use trueno_zram_core::gpu::raw::{CudaEvent, DeviceBuffer, LaunchArgs, LoadedKernel};

use crate::frames::{LEVELS, compress, compress_with, crafted, damage, pages, random_sequences};
use crate::harness::{Device, FILL, device};
use crate::interpreter::pack;

/// Bytes after the output that must keep their fill.
const GUARD_BYTES: usize = 64 * 1024;

/// A batch of frames on the device.
struct Batch {
    input: DeviceBuffer,
    input_len: u64,
    index: DeviceBuffer,
    output: DeviceBuffer,
    status: DeviceBuffer,
    next_page: DeviceBuffer,
    pages: u32,
}

impl Batch {
    fn new(device: &Device, frames: Vec<Vec<u8>>) -> Self {
        let held: Vec<_> = frames.into_iter().map(|frame| (PageKind::Zstd, frame)).collect();
        let (index, bytes) = pack(&held);
        let words: Vec<u8> = index.iter().flat_map(|entry: &PackedEntry| entry.bits().to_le_bytes()).collect();
        let output = device.buffer(index.len() * PAGE_SIZE + GUARD_BYTES);
        device.stream.fill(&output, 0..output.len_bytes(), FILL).unwrap();
        Self {
            input: device.upload(&bytes),
            input_len: bytes.len() as u64,
            index: device.upload(&words),
            output,
            status: device.upload(&vec![0xff; index.len() * 4]),
            next_page: device.upload(&[0; 4]),
            pages: u32::try_from(index.len()).unwrap(),
        }
    }

    /// Runs the kernel once and returns its time.
    fn run(&self, device: &Device, kernel: &ZstdWarpDecompressKernel, loaded: &LoadedKernel) -> Duration {
        let [start, end] = [(); 2].map(|()| CudaEvent::timed(&device.context).unwrap());
        device.stream.fill(&self.next_page, 0..4, 0).unwrap();
        let args = LaunchArgs::new().buffer(&self.input).u64(self.input_len).buffer(&self.index).buffer(&self.output);
        let args = args.buffer(&self.status).buffer(&self.next_page).u32(self.pages);
        let grid = kernel.grid(self.pages).min(loaded.resident_blocks());
        device.stream.record(&start).unwrap();
        // SAFETY: the buffers have the sizes that the kernel's documentation states, and one stream uses them.
        unsafe { loaded.launch(&device.stream, grid, &args) }.unwrap();
        device.stream.record(&end).unwrap();
        end.wait().unwrap();
        end.since(&start).unwrap()
    }

    /// Returns the status and the output of each page. Checks the guard.
    fn results(&self, device: &Device) -> Vec<(PageStatus, Page)> {
        let (output, status) = (device.download(&self.output), device.download(&self.status));
        let (output, guard) = output.split_at(self.pages as usize * PAGE_SIZE);
        assert!(guard.iter().all(|byte| *byte == FILL), "nothing is written behind the pages");
        let codes = status.as_chunks().0.iter().map(|code| u32::from_le_bytes(*code));
        let status = codes.map(|code| PageStatus::from_code(code).unwrap());
        status.zip(output.as_chunks().0.iter().copied()).collect()
    }
}

/// Returns the kernel in the documented shape, and the wide one if the device has the memory for it.
fn kernels(device: &Device) -> Vec<(u32, ZstdWarpDecompressKernel, LoadedKernel)> {
    let kernel = ZstdWarpDecompressKernel::new(1 << 20);
    let wide = kernel.clone().with_target(Target::SM_90).with_warps_per_block(28);
    let shapes = [(4, kernel), (28, wide)].into_iter();
    let loads = |(warps, kernel): (u32, ZstdWarpDecompressKernel)| {
        let loaded = LoadedKernel::new(&device.context, kernel.ir()).ok()?;
        Some((warps, kernel, loaded))
    };
    let loaded: Vec<_> = shapes.filter_map(loads).collect();
    assert!(loaded.iter().any(|(warps, ..)| *warps == 4), "every device runs the documented shape");
    loaded
}

fn assert_equals_twin(device: &Device, frames: &[Vec<u8>]) -> usize {
    let expected: Vec<_> = frames.par_iter().map(|frame| restore(frame)).collect();
    for (warps, kernel, loaded) in kernels(device) {
        let batch = Batch::new(device, frames.to_vec());
        batch.run(device, &kernel, &loaded);
        for (i, ((status, page), expected)) in batch.results(device).iter().zip(&expected).enumerate() {
            let expected_status = match expected {
                Ok(_) => PageStatus::Restored,
                Err(RestoreError::Malformed) if frames[i].is_empty() || frames[i].len() > PAGE_SIZE + 32 => {
                    PageStatus::BadEntry
                }
                Err(RestoreError::Malformed) => PageStatus::BadBlock,
                Err(RestoreError::Unsupported) => PageStatus::Unsupported,
            };
            assert_eq!(*status, expected_status, "{warps} warps, frame {i}: {:02x?}", frames[i]);
            assert!(*page == expected.unwrap_or([FILL; PAGE_SIZE]), "{warps} warps, frame {i}: {:02x?}", frames[i]);
        }
    }
    expected.iter().filter(|page| page.is_ok()).count()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn zstd_frames_of_every_level_are_restored() {
    let device = device();
    let pages = pages(2, 60);
    for level in LEVELS {
        let frames: Vec<_> = pages.par_iter().map(|page| compress(page, level)).collect();
        assert_eq!(assert_equals_twin(&device, &frames), frames.len(), "level {level}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn damaged_zstd_frames_are_refused_or_restored_as_the_twin_does() {
    let device = device();
    let pages = pages(9, 61);
    for seed in 0..40 {
        let damaged = pages.par_iter().enumerate().flat_map_iter(|(i, page)| {
            let mut generator = Generator::new(seed << 32 | i as u64);
            let level = LEVELS[generator.below(LEVELS.len())];
            let whole = compress_with(page, level, generator.below(2) == 0, generator.below(6) == 0);
            let mut frames = vec![whole.clone()];
            for round in 0..20 {
                let mut frame = if round % 4 == 3 { random_sequences(&mut generator) } else { whole.clone() };
                if round % 5 == 4 {
                    generator.corrupt(&mut frame);
                } else {
                    damage(&mut generator, &mut frame);
                }
                frame.truncate(8191);
                frames.push(frame);
            }
            frames
        });
        let mut frames: Vec<Vec<u8>> = damaged.collect();
        frames.extend(crafted().into_iter().map(|(_, frame)| frame));
        let restored = assert_equals_twin(&device, &frames);
        assert!(restored > pages.len() && restored < frames.len() / 2, "{restored} of {}", frames.len());
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn zstd_speed_by_level() {
    let device = device();
    for (warps, kernel, loaded) in kernels(&device) {
        for (level, count) in [(1, 65_536), (3, 65_536), (9, 65_536), (19, 65_536), (3, 2_000), (3, 1_000)] {
            let sample: Vec<_> = corpus::all_pages().collect::<Vec<_>>();
            let sample: Vec<_> = sample.par_iter().map(|page| compress(*page, level)).collect();
            let batch = Batch::new(&device, sample.iter().cycle().take(count).cloned().collect());
            let mut times: Vec<_> = (0..9).map(|_| batch.run(&device, &kernel, &loaded)).collect();
            assert!(batch.results(&device).iter().all(|(status, _)| *status == PageStatus::Restored));
            times.sort();
            let gigabytes = (count * PAGE_SIZE) as f64 / 1e9;
            let speed = gigabytes / times[4].as_secs_f64();
            println!("{warps} warps, level {level}, {count} pages: {speed:.1} GB/s, {:?}", times[4]);
        }
    }
}
