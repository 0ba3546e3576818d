//! Devices that fail for good: an illegal address, a kernel that does not end. Each ruins the device for the whole process, so
//! each runs in a process of its own.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trueno_gpu::kernels::lz4::Mode;
use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, LaunchArgs, Launcher, Module, ParamKind, Stream};
use trueno_zram_core::gpu::{DevicePages, GpuBatchCompressor, GpuBatchConfig, PackedOnDevice, PinnedPages};
use trueno_zram_core::{CompressedBatch, Error, Page};

use crate::harness::{
    alone, assert_no_fallback, assert_restored, batch, check_batch, check_values, compressor, config, crossing, in_mode,
};
use crate::ptx::STORE_TO_NULL;

/// Runs the test of that name again in a process of its own, unless this is that process. Whether it is.
fn in_a_process_of_its_own(name: &str) -> bool {
    const CHILD: &str = "TRUENO_TEST_RUINS_THE_DEVICE";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let _alone = alone();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([&format!("faults::{name}"), "--exact", "--ignored", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let (printed, said) = (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    println!("{printed}\n{said}");
    assert!(child.status.success(), "{}", child.status);
    // A name that has changed would filter out every test, and pass.
    assert!(printed.contains("1 passed"), "the child ran the test");
    false
}

/// Each block says that it has started, then keeps its multiprocessor for that long.
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

/// How long the hung kernel hangs: for ever, as far as a batch can see, but the machine is of use again after the test.
const HANGS_FOR: Duration = Duration::from_secs(10);
/// How long a batch waits for it.
const TIME_LIMIT: Duration = Duration::from_millis(500);
/// By when a batch must be there: the limit twice (a copy may be waited for, too), and the CPU's work.
const BOUND: Duration = Duration::from_secs(5);

/// A compressor that has been used in every form, so that nothing is still to be allocated, compiled or loaded: the driver
/// makes those calls wait for kernels that run.
struct Warm {
    compressor: GpuBatchCompressor,
    pinned: PinnedPages,
    on_device: DevicePages,
    packed: PackedOnDevice,
    context: GpuContext,
    stream: Stream,
    pages: Vec<Page>,
}

fn warm() -> Warm {
    let pages = crossing(20_000);
    let options = in_mode(Mode::Fast).time_limit(TIME_LIMIT);
    let mut compressor = compressor(config(1000, 3), &options);
    let result = compressor.compress_batch(&pages).unwrap();
    check_values(&result.pages, &pages);
    assert_restored(&compressor.decompress_batch(&result.pages).unwrap().pages, &pages, "while all is well");
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
    let stream = Stream::new(&context).unwrap();
    Warm { compressor, pinned, on_device, packed, context, stream, pages }
}

/// Queues the store that faults, on the device that the compressor uses.
fn poison(warm: &Warm) {
    let module = Arc::new(Module::from_ptx(&warm.context, STORE_TO_NULL).unwrap());
    let kernel = Launcher::new(&module, "store_to_null", &[]).unwrap();
    // SAFETY: the store faults and changes nothing.
    unsafe { kernel.launch(&warm.stream, 1, 1, 0, &LaunchArgs::new()) }.unwrap();
    // To unload the module would wait for the kernel, and learn of the fault before the batch does.
    std::mem::forget((kernel, module));
}

/// Runs batches until the fault shows: a device takes its time to report one. Those before must be right, too.
fn until_noticed(warm: &mut Warm, run: impl Fn(&mut Warm)) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while warm.compressor.uses_device() {
        assert!(Instant::now() < deadline, "the fault is not noticed");
        run(warm);
    }
}

/// Fills every multiprocessor with a kernel that does not end in time; returns once it runs on all of them.
fn hang(warm: &Warm) {
    let limits = warm.context.limits();
    let (grid, shared) = (limits.multiprocessors, limits.shared_bytes_per_block);
    let module = Arc::new(Module::from_ptx(&warm.context, OCCUPY).unwrap());
    let kernel = Launcher::new(&module, "occupy", &[ParamKind::Buffer, ParamKind::U64]).unwrap();
    kernel.allow_dynamic_shared(shared).unwrap();
    assert_eq!(kernel.blocks_per_multiprocessor(1024, shared).unwrap(), 1, "a block fills a multiprocessor");
    let started = DeviceBuffer::new(&warm.context, grid as usize * 4).unwrap();
    let launch = |duration: Duration| {
        let duration_ns = u64::try_from(duration.as_nanos()).unwrap();
        warm.stream.fill(&started, 0..started.len_bytes(), 0).unwrap();
        // SAFETY: block b writes 4 bytes at 4 b, and there are `grid` blocks.
        unsafe {
            kernel.launch(&warm.stream, grid, 1024, shared, &LaunchArgs::new().buffer(&started).u64(duration_ns))
        }
        .unwrap();
    };
    let look = Stream::new(&warm.context).unwrap();
    let mut words = vec![0; started.len_bytes()];
    launch(Duration::ZERO);
    warm.stream.synchronize().unwrap();
    look.download(&started, 0, &mut words).unwrap();
    assert!(words.as_chunks().0.iter().all(|word| u32::from_le_bytes(*word) == 1), "every block runs");
    launch(HANGS_FOR);
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        look.download(&started, 0, &mut words).unwrap();
        if words.as_chunks().0.iter().all(|word| u32::from_le_bytes(*word) == 1) {
            break;
        }
        assert!(Instant::now() < deadline, "the kernel does not start");
    }
    // To drop any of them would wait for the kernel.
    std::mem::forget((kernel, module, started, look));
}

/// The compressor goes on without the device: every form that the CPU can stand in for comes out right, at once.
fn assert_on_the_cpu(warm: &mut Warm, reason: &str) {
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
    // What the GPU only read is still there.
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
fn an_illegal_address_ends_on_the_cpu() {
    if !in_a_process_of_its_own("an_illegal_address_ends_on_the_cpu") {
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
    assert_on_the_cpu(&mut warm, "CUDA_ERROR_ILLEGAL_ADDRESS");
}

#[test]
#[ignore = "needs a GPU"]
fn an_illegal_address_during_a_decompression_ends_on_the_cpu() {
    if !in_a_process_of_its_own("an_illegal_address_during_a_decompression_ends_on_the_cpu") {
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
    assert_on_the_cpu(&mut warm, "CUDA_ERROR_ILLEGAL_ADDRESS");
}

#[test]
#[ignore = "needs a GPU"]
fn an_illegal_address_fails_pages_on_the_device() {
    if !in_a_process_of_its_own("an_illegal_address_fails_pages_on_the_device") {
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
    assert!(warm.packed.is_empty(), "no pages are left to be taken for a result");
    assert_on_the_cpu(&mut warm, "CUDA_ERROR_ILLEGAL_ADDRESS");
}

#[test]
#[ignore = "needs a GPU"]
fn a_device_that_someone_else_has_lost_is_not_used() {
    if !in_a_process_of_its_own("a_device_that_someone_else_has_lost_is_not_used") {
        return;
    }
    let mut warm = warm();
    poison(&warm);
    assert!(warm.stream.synchronize().is_err() && warm.context.is_lost());
    check_values(&warm.compressor.compress_batch(&warm.pages).unwrap().pages, &warm.pages);
    let fallback = &warm.compressor.stats().fallback;
    assert_eq!((fallback.batches, fallback.pages), (1, warm.pages.len() as u64));
    assert_on_the_cpu(&mut warm, "given up");
}

#[test]
#[ignore = "needs a GPU"]
fn a_hung_kernel_ends_on_the_cpu_in_time() {
    if !in_a_process_of_its_own("a_hung_kernel_ends_on_the_cpu_in_time") {
        return;
    }
    let mut warm = warm();
    hang(&warm);
    let start = Instant::now();
    let result = warm.compressor.compress_batch(&warm.pages).unwrap();
    let took = start.elapsed();
    println!("there after {took:?}");
    assert!(took >= TIME_LIMIT && took < BOUND, "{took:?}");
    check_values(&result.pages, &warm.pages);
    let fallback = &warm.compressor.stats().fallback;
    assert_eq!((fallback.batches, fallback.pages), (1, warm.pages.len() as u64));
    assert_on_the_cpu(&mut warm, "did not finish within 500 ms");
    assert!(start.elapsed() < HANGS_FOR, "nothing waited for the kernel");
}

#[test]
#[ignore = "needs a GPU"]
fn a_hung_kernel_leaves_page_locked_pages_to_the_cpu() {
    if !in_a_process_of_its_own("a_hung_kernel_leaves_page_locked_pages_to_the_cpu") {
        return;
    }
    let mut warm = warm();
    hang(&warm);
    let (start, mut held) = (Instant::now(), CompressedBatch::new());
    warm.compressor.compress_pinned_into(&mut warm.pinned, &mut held, &()).unwrap();
    let took = start.elapsed();
    println!("there after {took:?}");
    assert!(took >= TIME_LIMIT && took < BOUND, "{took:?}");
    check_batch(&held, &warm.pages);
    assert_on_the_cpu(&mut warm, "did not finish within 500 ms");
    assert!(start.elapsed() < HANGS_FOR, "nothing waited for the kernel");
}

#[test]
#[ignore = "needs a GPU"]
fn a_hung_kernel_fails_pages_on_the_device_in_time() {
    if !in_a_process_of_its_own("a_hung_kernel_fails_pages_on_the_device_in_time") {
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
    assert_on_the_cpu(&mut warm, "did not finish within 500 ms");
    assert!(start.elapsed() < HANGS_FOR, "nothing waited for the kernel");
}

#[test]
#[ignore = "needs a GPU"]
fn a_ring_that_is_given_up_by_time_keeps_small_batches_right() {
    if !in_a_process_of_its_own("a_ring_that_is_given_up_by_time_keeps_small_batches_right") {
        return;
    }
    let mut warm = warm();
    hang(&warm);
    // Fewer pages than a slot, among them same-filled ones, which do not cross the bus.
    for count in [1, 37, 500] {
        let pages = batch(count);
        let result = warm.compressor.compress_batch(&pages).unwrap();
        check_values(&result.pages, &pages);
        assert_restored(&warm.compressor.decompress_batch(&result.pages).unwrap().pages, &pages, "on the CPU");
    }
    assert_on_the_cpu(&mut warm, "did not finish within 500 ms");
}

#[test]
#[ignore = "needs a GPU"]
fn dropping_waits_for_a_hung_kernel_of_others_no_longer_than_the_limit() {
    if !in_a_process_of_its_own("dropping_waits_for_a_hung_kernel_of_others_no_longer_than_the_limit") {
        return;
    }
    let warm = warm();
    hang(&warm);
    let Warm { compressor: dropped, pinned, on_device, packed, context, stream, pages } = warm;
    let start = Instant::now();
    drop((dropped, pinned));
    let took = start.elapsed();
    println!("there after {took:?}");
    assert!(took >= TIME_LIMIT && took < BOUND, "{took:?}");
    assert!(!context.is_lost(), "a kernel of others is no reason to give the device up");
    // It ends after all: the memory is freed, and the device as good as before.
    stream.synchronize().unwrap();
    drop((on_device, packed));
    let mut next = compressor(config(1000, 3), &in_mode(Mode::Fast));
    check_values(&next.compress_batch(&pages).unwrap().pages, &pages);
    assert_no_fallback(&next);
}
