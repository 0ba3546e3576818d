//! Devices that fail for good: an illegal address, a kernel that hangs. Each ruins the device for the whole process, so
//! each test runs in its own process.

use std::process::Command;
use std::time::{Duration, Instant};

use trueno_gpu::kernels::lz4::Mode;
use trueno_zram_core::gpu::raw::{
    CudaStream, DeviceBuffer, EntryPoint, GpuContext, LaunchArgs, LoadedKernel, ParamKind,
};
use trueno_zram_core::gpu::{DevicePages, GpuBatchCompressor, GpuBatchConfig, PackedOnDevice, PinnedPages};
use trueno_zram_core::{CompressedBatch, Error, Page};

use crate::harness::{
    assert_no_fallback, assert_restored, batch, check_batch, check_values, compressor, config, crossing, in_mode,
    lock_device,
};
use crate::ptx::store_to_null;

/// Runs the named test again in its own process. Returns `true` if this is that process.
fn in_own_process(name: &str) -> bool {
    const CHILD: &str = "TRUENO_TEST_RUINS_THE_DEVICE";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let _device = lock_device();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([&format!("faults::{name}"), "--exact", "--ignored", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let (printed, said) = (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    println!("{printed}\n{said}");
    assert!(child.status.success(), "{}", child.status);
    // A renamed test would filter out every test, and pass.
    assert!(printed.contains("1 passed"), "the child process did not run the test");
    false
}

/// Each block stores that it has started, then occupies its multiprocessor for the given time.
const OCCUPY: &str = "
.version 6.4
.target sm_70
.address_size 64
.visible .entry occupy(.param .u64 started, .param .u64 duration_ns)
{
    .reg .u64 %started, %duration, %begin, %now, %passed, %offset;
    .reg .u32 %block, %one;
    .reg .pred %more;
    ld.param.u64 %started, [started];
    ld.param.u64 %duration, [duration_ns];
    mov.u32 %block, %ctaid.x;
    mul.wide.u32 %offset, %block, 4;
    add.u64 %started, %started, %offset;
    mov.u32 %one, 1;
    st.volatile.global.u32 [%started], %one;
    membar.sys;
    mov.u64 %begin, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %passed, %now, %begin;
    setp.lt.u64 %more, %passed, %duration;
    @%more bra again;
    ret;
}
";

/// The run time of the hung kernel: forever as far as a batch can tell, but the machine is usable again after the test.
const HANGS_FOR: Duration = Duration::from_secs(10);
/// The time that a batch waits for the kernel.
const TIME_LIMIT: Duration = Duration::from_millis(500);
/// When a batch must be done: twice the limit (a copy may be waited for too), plus the CPU's work.
const BOUND: Duration = Duration::from_secs(5);

/// A compressor that has been used in every form, so that nothing is left to allocate, compile or load: in the driver
/// those calls wait for running kernels.
struct Warm {
    compressor: GpuBatchCompressor,
    pinned: PinnedPages,
    on_device: DevicePages,
    packed: PackedOnDevice,
    context: GpuContext,
    stream: CudaStream,
    pages: Vec<Page>,
}

fn warm() -> Warm {
    let pages = crossing(20_000);
    let options = in_mode(Mode::Fast).with_time_limit(TIME_LIMIT);
    let mut compressor = compressor(config(1000, 3), &options);
    let result = compressor.compress_batch(&pages).unwrap();
    check_values(&result.pages, &pages);
    assert_restored(&compressor.decompress_batch(&result.pages).unwrap().pages, &pages, "before the fault");
    let (mut pinned, mut held) = (compressor.pinned_pages(pages.len()).unwrap(), CompressedBatch::new());
    pinned.pages_mut().unwrap().copy_from_slice(&pages);
    compressor.compress_pinned_into(&mut pinned, &mut held, &()).unwrap();
    let mut on_device = compressor.device_pages(pages.len()).unwrap();
    let mut packed = compressor.packed_on_device(pages.len()).unwrap();
    on_device.upload(&pages).unwrap();
    compressor.compress_resident(&on_device, &mut packed).unwrap();
    compressor.decompress_resident(&packed, &mut on_device).unwrap();
    assert_no_fallback(&compressor);
    let context = GpuContext::new(0).unwrap();
    let stream = CudaStream::new(&context).unwrap();
    Warm { compressor, pinned, on_device, packed, context, stream, pages }
}

/// Queues a store that faults, on the compressor's device.
fn poison(warm: &Warm) {
    let kernel = store_to_null(&warm.context);
    // SAFETY: the store faults and changes nothing.
    unsafe { kernel.launch(&warm.stream, 1, &LaunchArgs::new()) }.unwrap();
    // Unloading the kernel would wait for it, and see the fault before the batch does.
    std::mem::forget(kernel);
}

/// Runs batches until the fault is noticed, since a device takes time to report one. Earlier batches must be right too.
fn until_noticed(warm: &mut Warm, run: impl Fn(&mut Warm)) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while warm.compressor.uses_device() {
        assert!(Instant::now() < deadline, "the fault is not noticed");
        run(warm);
    }
}

/// Fills every multiprocessor with a kernel that does not end in time. Returns once it runs on all of them.
fn hang(warm: &Warm) {
    let limits = warm.context.limits();
    let (grid, shared) = (limits.multiprocessors, limits.shared_bytes_per_block);
    let (name, params) = ("occupy", &[ParamKind::Buffer, ParamKind::U64]);
    let entry = EntryPoint { name, params, block_threads: 1024, dynamic_shared_bytes: shared };
    let kernel = LoadedKernel::from_ptx(&warm.context, OCCUPY, entry).unwrap();
    assert_eq!(kernel.blocks_per_multiprocessor(), 1, "a block must fill a multiprocessor");
    let started = DeviceBuffer::new(&warm.context, grid as usize * 4).unwrap();
    let launch = |duration: Duration| {
        let duration_ns = u64::try_from(duration.as_nanos()).unwrap();
        warm.stream.fill(&started, 0..started.len_bytes(), 0).unwrap();
        // SAFETY: block b writes 4 bytes at 4 b, and there are `grid` blocks.
        unsafe { kernel.launch(&warm.stream, grid, &LaunchArgs::new().buffer(&started).u64(duration_ns)) }.unwrap();
    };
    let look = CudaStream::new(&warm.context).unwrap();
    let mut words = vec![0; started.len_bytes()];
    launch(Duration::ZERO);
    warm.stream.synchronize().unwrap();
    look.download(&started, 0, &mut words).unwrap();
    assert!(words.as_chunks().0.iter().all(|word| u32::from_le_bytes(*word) == 1), "every block must be running");
    launch(HANGS_FOR);
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        look.download(&started, 0, &mut words).unwrap();
        if words.as_chunks().0.iter().all(|word| u32::from_le_bytes(*word) == 1) {
            break;
        }
        assert!(Instant::now() < deadline, "the kernel does not start");
    }
    // Dropping any of them would wait for the kernel.
    std::mem::forget((kernel, started, look));
}

/// Asserts that the compressor works without the device: every form that has a fallback gives correct results at once.
fn assert_falls_back(warm: &mut Warm, reason: &str) {
    let Warm { compressor, pinned, on_device, packed, pages, .. } = warm;
    assert!(!compressor.uses_device());
    let given_up = compressor.stats().fallback.device_given_up.clone().unwrap();
    println!("given up: {given_up}");
    assert!(given_up.contains(reason), "{given_up}");
    let before = compressor.stats().fallback.clone();
    let result = compressor.compress_batch(pages).unwrap();
    check_values(&result.pages, pages);
    assert_eq!((result.h2d_time_ns, result.kernel_time_ns, result.d2h_time_ns), (0, 0, 0));
    assert_restored(&compressor.decompress_batch(&result.pages).unwrap().pages, pages, "on the CPU");
    let mut held = CompressedBatch::new();
    compressor.compress_into(pages, &mut held, &()).unwrap();
    check_batch(&held, pages);
    // Bytes that the GPU only read are intact.
    compressor.compress_pinned_into(pinned, &mut held, &()).unwrap();
    check_batch(&held, pages);
    let after = &compressor.stats().fallback;
    assert_eq!((after.batches, after.pages), (before.batches + 4, before.pages + 4 * pages.len() as u64));
    // Pages on the device are lost with it.
    for refused in [
        compressor.compress_resident(on_device, packed).map(drop),
        compressor.decompress_resident(packed, on_device).map(drop),
        on_device.upload(pages),
        on_device.download(pages),
        compressor.device_pages(1).map(drop),
        compressor.packed_on_device(1).map(drop),
        compressor.pinned_pages(1).map(drop),
        GpuBatchCompressor::new(GpuBatchConfig::default()).map(drop),
    ] {
        assert!(matches!(refused, Err(Error::Gpu(_) | Error::GpuNotAvailable(_))), "{refused:?}");
    }
    assert!(packed.is_empty() || packed.download().is_err());
}

#[test]
#[ignore = "needs a GPU"]
fn illegal_address_falls_back_to_the_cpu() {
    if !in_own_process("illegal_address_falls_back_to_the_cpu") {
        return;
    }
    let mut warm = warm();
    poison(&warm);
    until_noticed(&mut warm, |warm| {
        check_values(&warm.compressor.compress_batch(&warm.pages).unwrap().pages, &warm.pages);
    });
    let fallback = &warm.compressor.stats().fallback;
    println!("{fallback:?}");
    assert!(fallback.batches == 1 && fallback.pages > 0);
    assert!(fallback.last_reason.as_ref().unwrap().contains("CUDA_ERROR_ILLEGAL_ADDRESS"));
    assert_falls_back(&mut warm, "CUDA_ERROR_ILLEGAL_ADDRESS");
}

#[test]
#[ignore = "needs a GPU"]
fn illegal_address_in_decompression_falls_back_to_the_cpu() {
    if !in_own_process("illegal_address_in_decompression_falls_back_to_the_cpu") {
        return;
    }
    let mut warm = warm();
    let result = warm.compressor.compress_batch(&warm.pages).unwrap();
    poison(&warm);
    until_noticed(&mut warm, |warm| {
        let restored = warm.compressor.decompress_batch(&result.pages).unwrap();
        assert_restored(&restored.pages, &warm.pages, "after the fault");
    });
    let fallback = &warm.compressor.stats().fallback;
    assert!(fallback.batches == 1 && fallback.pages > 0, "{fallback:?}");
    assert_falls_back(&mut warm, "CUDA_ERROR_ILLEGAL_ADDRESS");
}

#[test]
#[ignore = "needs a GPU"]
fn illegal_address_fails_pages_on_the_device() {
    if !in_own_process("illegal_address_fails_pages_on_the_device") {
        return;
    }
    let mut warm = warm();
    poison(&warm);
    until_noticed(&mut warm, |warm| {
        if let Err(failed) = warm.compressor.compress_resident(&warm.on_device, &mut warm.packed) {
            println!("{failed}");
            let Error::Gpu(why) = failed else { panic!("{failed}") };
            assert!(why.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{why}");
        }
    });
    assert!(warm.packed.is_empty(), "no pages may be left that look like a result");
    assert_falls_back(&mut warm, "CUDA_ERROR_ILLEGAL_ADDRESS");
}

#[test]
#[ignore = "needs a GPU"]
fn device_lost_by_another_user_is_not_used() {
    if !in_own_process("device_lost_by_another_user_is_not_used") {
        return;
    }
    let mut warm = warm();
    poison(&warm);
    assert!(warm.stream.synchronize().is_err() && warm.context.is_lost());
    check_values(&warm.compressor.compress_batch(&warm.pages).unwrap().pages, &warm.pages);
    let fallback = &warm.compressor.stats().fallback;
    assert_eq!((fallback.batches, fallback.pages), (1, warm.pages.len() as u64));
    assert_falls_back(&mut warm, "given up");
}

#[test]
#[ignore = "needs a GPU"]
fn hung_kernel_falls_back_to_the_cpu_in_time() {
    if !in_own_process("hung_kernel_falls_back_to_the_cpu_in_time") {
        return;
    }
    let mut warm = warm();
    hang(&warm);
    let start = Instant::now();
    let result = warm.compressor.compress_batch(&warm.pages).unwrap();
    let took = start.elapsed();
    println!("done after {took:?}");
    assert!(took >= TIME_LIMIT && took < BOUND, "{took:?}");
    check_values(&result.pages, &warm.pages);
    let fallback = &warm.compressor.stats().fallback;
    assert_eq!((fallback.batches, fallback.pages), (1, warm.pages.len() as u64));
    assert_falls_back(&mut warm, "did not finish within 500 ms");
    assert!(start.elapsed() < HANGS_FOR, "something waited for the kernel");
}

#[test]
#[ignore = "needs a GPU"]
fn hung_kernel_leaves_page_locked_pages_to_the_cpu() {
    if !in_own_process("hung_kernel_leaves_page_locked_pages_to_the_cpu") {
        return;
    }
    let mut warm = warm();
    hang(&warm);
    let (start, mut held) = (Instant::now(), CompressedBatch::new());
    warm.compressor.compress_pinned_into(&mut warm.pinned, &mut held, &()).unwrap();
    let took = start.elapsed();
    println!("done after {took:?}");
    assert!(took >= TIME_LIMIT && took < BOUND, "{took:?}");
    check_batch(&held, &warm.pages);
    assert_falls_back(&mut warm, "did not finish within 500 ms");
    assert!(start.elapsed() < HANGS_FOR, "something waited for the kernel");
}

#[test]
#[ignore = "needs a GPU"]
fn hung_kernel_fails_pages_on_the_device_in_time() {
    if !in_own_process("hung_kernel_fails_pages_on_the_device_in_time") {
        return;
    }
    let mut warm = warm();
    hang(&warm);
    let start = Instant::now();
    let failed = warm.compressor.compress_resident(&warm.on_device, &mut warm.packed).unwrap_err();
    let took = start.elapsed();
    println!("{failed} after {took:?}");
    assert!(took >= TIME_LIMIT && took < BOUND, "{took:?}");
    assert!(matches!(&failed, Error::Gpu(why) if why.to_string().contains("did not finish within 500 ms")), "{failed}");
    assert_falls_back(&mut warm, "did not finish within 500 ms");
    assert!(start.elapsed() < HANGS_FOR, "something waited for the kernel");
}

#[test]
#[ignore = "needs a GPU"]
fn small_batches_survive_a_ring_that_timed_out() {
    if !in_own_process("small_batches_survive_a_ring_that_timed_out") {
        return;
    }
    let mut warm = warm();
    hang(&warm);
    // Fewer pages than a slot, including same-filled ones, which do not cross the bus.
    for count in [1, 37, 500] {
        let pages = batch(count);
        let result = warm.compressor.compress_batch(&pages).unwrap();
        check_values(&result.pages, &pages);
        assert_restored(&warm.compressor.decompress_batch(&result.pages).unwrap().pages, &pages, "on the CPU");
    }
    assert_falls_back(&mut warm, "did not finish within 500 ms");
}

#[test]
#[ignore = "needs a GPU"]
fn drop_waits_for_a_foreign_hung_kernel_only_up_to_the_limit() {
    if !in_own_process("drop_waits_for_a_foreign_hung_kernel_only_up_to_the_limit") {
        return;
    }
    let warm = warm();
    hang(&warm);
    let Warm { compressor: dropped, pinned, on_device, packed, context, stream, pages } = warm;
    let start = Instant::now();
    drop((dropped, pinned));
    let took = start.elapsed();
    println!("done after {took:?}");
    assert!(took >= TIME_LIMIT && took < BOUND, "{took:?}");
    assert!(!context.is_lost(), "another user's kernel must not make us give the device up");
    // The kernel ends at last. The memory is freed, and the device works as before.
    stream.synchronize().unwrap();
    drop((on_device, packed));
    let mut next = compressor(config(1000, 3), &in_mode(Mode::Fast));
    check_values(&next.compress_batch(&pages).unwrap().pages, &pages);
    assert_no_fallback(&next);
}
