//! The driver layer on a real device: `cargo test --test gpu_device -- --ignored`.
//!
//! Run with `--ignored` on a machine without a GPU, these tests fail: a pass always means that a device ran them. The
//! `without_a_gpu` tests run everywhere.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use trueno_zram_core::gpu::GpuError;
use trueno_zram_core::gpu::raw::{
    CudaEvent, CudaStream, DeviceBuffer, EntryPoint, GpuContext, HostCaching, LaunchArgs, LoadedKernel, ParamKind,
    PinnedBuffer,
};
use trueno_zram_core::gpu::{GpuDeviceInfo, gpu_available};

#[path = "support/ptx.rs"]
mod ptx;

use ptx::store_to_null;

fn device() -> (GpuContext, CudaStream) {
    let context = GpuContext::new(0).expect("these tests need an NVIDIA GPU");
    let stream = CudaStream::new(&context).expect("a stream can be created");
    (context, stream)
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251).to_le_bytes()[0] ^ seed).collect()
}

#[test]
fn without_a_gpu_queries_do_not_panic() {
    // On any machine, the queries must succeed and be consistent.
    let devices = GpuDeviceInfo::all();
    assert_eq!(gpu_available(), devices.iter().any(GpuDeviceInfo::is_supported));
    if devices.is_empty() {
        let error = GpuContext::new(0).unwrap_err().to_string();
        assert!(error.starts_with("GPU not available: "), "{error}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn listed_devices_have_plausible_properties() {
    assert!(gpu_available());
    let (context, _) = device();
    let devices = GpuDeviceInfo::all();
    assert_eq!(devices[0], *context.info());
    let info = &devices[0];
    println!("{info:?} {:?}", context.limits());
    assert!(!info.name.is_empty() && info.total_memory > 1 << 30 && info.l2_cache_size >= 1 << 20);
    assert!(context.limits().multiprocessors > 0 && context.limits().shared_bytes_per_block >= 48 * 1024);
    assert!(context.free_memory().unwrap() <= info.total_memory);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn round_trips_bytes() {
    let (context, stream) = device();
    let buffer = DeviceBuffer::new(&context, 1 << 20).unwrap();
    let sent = pattern(1 << 20, 1);
    stream.upload(&buffer, 0, &sent).unwrap();
    let mut back = vec![0; 1 << 20];
    stream.download(&buffer, 0, &mut back).unwrap();
    assert!(back == sent);
    // A fill and a copy of parts.
    stream.fill(&buffer, 100..200, 0xee).unwrap();
    let mut part = vec![0; 4000];
    stream.download(&buffer, 50, &mut part).unwrap();
    assert!(part[..50] == sent[50..100] && part[50..150] == [0xee; 100] && part[150..] == sent[200..4050]);
    // Accesses outside a buffer are rejected.
    let len = buffer.len_bytes();
    assert!(matches!(stream.upload(&buffer, 1, &sent), Err(GpuError::OutsideBuffer { .. })));
    assert!(matches!(stream.fill(&buffer, len..len + 1, 0), Err(GpuError::OutsideBuffer { .. })));
    assert!(DeviceBuffer::new(&context, 0).is_ok());
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn pinned_bytes_round_trip_and_wait_for_their_copies() {
    let (context, stream) = device();
    let other = CudaStream::new(&context).unwrap();
    let len = 64 << 20;
    let buffer = DeviceBuffer::new(&context, len).unwrap();
    for caching in [HostCaching::Cached, HostCaching::WriteCombined] {
        let mut source = PinnedBuffer::new(&context, len, caching).unwrap();
        let mut back = PinnedBuffer::new(&context, len, HostCaching::Cached).unwrap();
        let sent = pattern(len, 2);
        source.bytes_mut().unwrap().copy_from_slice(&sent);
        stream.upload_pinned(&buffer, 0, &mut source, 0..len).unwrap();
        // This must wait for the upload, or zeros would be sent.
        source.bytes_mut().unwrap().fill(0);
        // Two halves by two streams: the second is ordered after the first.
        stream.download_pinned(&buffer, 0, &mut back, 0..len / 2).unwrap();
        other.download_pinned(&buffer, len / 2, &mut back, len / 2..len).unwrap();
        assert!(back.bytes().unwrap() == sent);
        assert!(matches!(
            stream.upload_pinned(&buffer, 0, &mut source, 1..len + 1),
            Err(GpuError::OutsideBuffer { .. })
        ));
        // Dropped in flight: the drop waits.
        stream.download_pinned(&buffer, 0, &mut back, 0..len).unwrap();
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn events_order_and_measure() {
    let (context, stream) = device();
    let (start, end) = (CudaEvent::timed(&context).unwrap(), CudaEvent::timed(&context).unwrap());
    assert!(start.is_reached().unwrap(), "an event that was never recorded counts as reached");
    let len = 256 << 20;
    let buffer = DeviceBuffer::new(&context, len).unwrap();
    stream.fill(&buffer, 0..len, 1).unwrap();
    stream.synchronize().unwrap();
    stream.record(&start).unwrap();
    stream.fill(&buffer, 0..len, 2).unwrap();
    stream.record(&end).unwrap();
    end.wait_for(Duration::from_secs(10)).unwrap();
    assert!(end.is_reached().unwrap());
    let time = end.since(&start).unwrap();
    println!("256 MiB filled in {time:?}");
    // Between 10 TB/s and 1 GB/s.
    assert!(time > Duration::from_micros(25) && time < Duration::from_millis(300), "{time:?}");
    let ordering = CudaEvent::ordering(&context).unwrap();
    stream.record(&ordering).unwrap();
    let other = CudaStream::new(&context).unwrap();
    other.wait_for_event(&ordering).unwrap();
    other.synchronize().unwrap();
    assert!(ordering.is_reached().unwrap());
    assert!(ordering.since(&start).is_err(), "the event has no timing");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rejects_invalid_ptx_with_the_compilers_message() {
    let (context, _) = device();
    let ptx = ".version 6.4\n.target sm_70\n.address_size 64\n.visible .entry bad() {\n    frobnicate.u32 %r1;\n}\n";
    let entry = EntryPoint { name: "bad", params: &[], block_threads: 1, dynamic_shared_bytes: 0 };
    let error = LoadedKernel::from_ptx(&context, ptx, entry).unwrap_err();
    println!("{error}");
    let GpuError::Ptx { error, log } = error else { panic!("{error}") };
    assert_eq!((error.call, error.code), ("cuModuleLoadDataEx", "CUDA_ERROR_INVALID_PTX"));
    assert!(log.contains("frobnicate") || log.contains("line 5"), "{log}");
    assert!(!error.poisons_context() && !context.is_lost());
    assert_eq!(LoadedKernel::from_ptx(&context, "a\0b", entry).unwrap_err(), GpuError::ZeroByte { at: 1 });
}

/// Each lane stores `100 + lane` through an address computed from an offset that another lane put in shared memory.
/// This pattern was once believed to crash GPUs.
const COMPUTED_ADDRESS: &str = r"
.version 6.4
.target sm_70
.address_size 64
.visible .entry computed_address(.param .u64 out, .param .u32 stride)
{
    .shared .align 4 .b8 offsets[128];
    .reg .u32 %lane, %stride, %offset, %base, %at, %value, %other;
    .reg .u64 %out, %wide, %to;
    ld.param.u64 %out, [out];
    ld.param.u32 %stride, [stride];
    mov.u32 %lane, %tid.x;
    mov.u32 %base, offsets;
    shl.b32 %at, %lane, 2;
    add.u32 %at, %at, %base;
    mul.lo.u32 %offset, %lane, %stride;
    st.shared.u32 [%at], %offset;
    bar.warp.sync 0xffffffff;
    xor.b32 %other, %lane, 31;
    shl.b32 %at, %other, 2;
    add.u32 %at, %at, %base;
    ld.shared.u32 %offset, [%at];
    cvt.u64.u32 %wide, %offset;
    add.u64 %to, %out, %wide;
    add.u32 %value, %lane, 100;
    st.global.u32 [%to], %value;
    ret;
}
";

const COMPUTED_ADDRESS_ENTRY: EntryPoint<'static> = EntryPoint {
    name: "computed_address",
    params: &[ParamKind::Buffer, ParamKind::U32],
    block_threads: 32,
    dynamic_shared_bytes: 0,
};

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn stores_through_addresses_computed_from_shared_memory() {
    let (context, stream) = device();
    let kernel = LoadedKernel::from_ptx(&context, COMPUTED_ADDRESS, COMPUTED_ADDRESS_ENTRY).unwrap();
    let out = DeviceBuffer::new(&context, 32 * 12).unwrap();
    stream.fill(&out, 0..32 * 12, 0).unwrap();
    // SAFETY: lane l writes 4 bytes at (31 - l) * 12, which is inside 32 * 12.
    unsafe { kernel.launch(&stream, 1, &LaunchArgs::new().buffer(&out).u32(12)) }.unwrap();
    let mut bytes = [0; 32 * 12];
    stream.download(&out, 0, &mut bytes).unwrap();
    for (i, chunk) in bytes.chunks_exact(12).enumerate() {
        let expected = u32::try_from(100 + 31 - i).unwrap();
        assert_eq!(chunk[..4], expected.to_le_bytes(), "lane {}", 31 - i);
        assert_eq!(chunk[4..], [0; 8]);
    }
    assert!(!context.is_lost());
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn launches_are_checked_and_attributes_can_be_queried() {
    let (context, stream) = device();
    let kernel = LoadedKernel::from_ptx(&context, COMPUTED_ADDRESS, COMPUTED_ADDRESS_ENTRY).unwrap();
    let out = DeviceBuffer::new(&context, 4096).unwrap();
    for args in [
        LaunchArgs::new(),
        LaunchArgs::new().buffer(&out),
        LaunchArgs::new().buffer(&out).u64(4),
        LaunchArgs::new().u32(4).buffer(&out),
        LaunchArgs::new().buffer(&out).u32(4).u32(4),
    ] {
        // SAFETY: no launch takes place.
        let refused = unsafe { kernel.launch(&stream, 1, &args) };
        assert!(matches!(refused, Err(GpuError::Arguments { .. })), "{args:?}: {refused:?}");
    }
    let made = kernel.attributes().unwrap();
    println!("{made:?}");
    assert!(made.registers > 0 && made.static_shared_bytes == 128 && made.local_bytes == 0);
    assert!(kernel.blocks_per_multiprocessor() > 0);
    let load = |entry| LoadedKernel::from_ptx(&context, COMPUTED_ADDRESS, entry);
    let with_shared = |dynamic_shared_bytes| load(EntryPoint { dynamic_shared_bytes, ..COMPUTED_ADDRESS_ENTRY });
    let most = context.limits().shared_bytes_per_block;
    assert_eq!(with_shared(most - 128).unwrap().blocks_per_multiprocessor(), 1);
    assert!(with_shared(most + 1).is_err());
    let missing = load(EntryPoint { name: "no_such_kernel", ..COMPUTED_ADDRESS_ENTRY }).unwrap_err();
    assert!(matches!(missing, GpuError::Driver(error) if error.code == "CUDA_ERROR_NOT_FOUND"), "{missing}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn threads_share_a_context() {
    let (context, _) = device();
    std::thread::scope(|scope| {
        for seed in 0..4u8 {
            let context = context.clone();
            scope.spawn(move || {
                let stream = CudaStream::new(&context).unwrap();
                let buffer = DeviceBuffer::new(&context, 1 << 16).unwrap();
                let (sent, mut back) = (pattern(1 << 16, seed), vec![0; 1 << 16]);
                for _ in 0..50 {
                    stream.upload(&buffer, 0, &sent).unwrap();
                    stream.download(&buffer, 0, &mut back).unwrap();
                    assert!(back == sent);
                }
            });
        }
    });
}

/// Poisons the process's context, so it runs in its own process.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn illegal_address_loses_the_context_without_hanging() {
    const CHILD: &str = "TRUENO_TEST_POISON";
    if std::env::var_os(CHILD).is_none() {
        let name = "illegal_address_loses_the_context_without_hanging";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--ignored", "--nocapture"])
            .env(CHILD, "1")
            .status();
        assert!(child.unwrap().success());
        return;
    }
    let (context, stream) = device();
    let other = GpuContext::new(0).unwrap();
    let kernel = store_to_null(&context);
    let mut input = PinnedBuffer::new(&context, 4096, HostCaching::Cached).unwrap();
    let mut output = PinnedBuffer::new(&context, 4096, HostCaching::Cached).unwrap();
    let out = DeviceBuffer::new(&context, 4096).unwrap();
    input.bytes_mut().unwrap().fill(7);
    stream.upload_pinned(&out, 0, &mut input, 0..4096).unwrap();
    // SAFETY: the store faults and changes nothing.
    unsafe { kernel.launch(&stream, 1, &LaunchArgs::new()) }.unwrap();
    let _ = stream.download_pinned(&out, 0, &mut output, 0..4096);
    let first = stream.synchronize().unwrap_err();
    println!("{first}");
    assert!(first.poisons_context() && context.is_lost());
    assert!(first.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{first}");
    let later = DeviceBuffer::new(&context, 1).unwrap_err();
    assert!(matches!(&later, GpuError::ContextLost { reason } if reason.contains("ILLEGAL_ADDRESS")), "{later}");
    // The device cannot be opened again, and other users of the context see the loss at once.
    assert!(other.is_lost() && other.synchronize().is_err());
    let again = GpuContext::new(0).unwrap_err().to_string();
    assert!(again.contains("ILLEGAL_ADDRESS"), "{again}");
    // Bytes that the GPU only read are still available to the CPU. Bytes that it may have written are not.
    assert_eq!(input.bytes().unwrap(), [7; 4096]);
    assert!(output.bytes().is_err());
    drop((kernel, out, input, output, stream, context));
}
