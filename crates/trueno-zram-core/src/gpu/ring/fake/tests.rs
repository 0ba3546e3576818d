//! Tests that the fake device detects misuse.

use super::*;
use crate::gpu::ring::device::PinnedMemory;
use crate::page::PAGE_SIZE;

const PAGES: u32 = 2;
const BYTES: usize = 2 * PAGE_SIZE;

struct Parts {
    // Dropped in this order.
    host: FakePinned,
    slot: FakeSlot,
    device: FakeDevice,
}

fn parts() -> Parts {
    let device = FakeDevice::new(Schedule::OneByOne);
    let mut host = device.allocator().pinned(BYTES, HostCaching::Cached).unwrap();
    host.bytes_mut().unwrap().fill(7);
    let slot = device.allocator().slot(PAGES).unwrap();
    Parts { host, slot, device }
}

impl Parts {
    fn upload(&mut self) {
        self.device.upload(&mut self.slot, SlotBuffer::Pages, 0, &mut self.host, 0..BYTES).unwrap();
    }

    fn start(&mut self) {
        self.upload();
        self.device.mark(&mut self.slot, Mark::H2dEnd).unwrap();
        self.device.compress(&mut self.slot, PAGES).unwrap();
    }

    fn drain(&self) {
        self.device.drain(Duration::ZERO).unwrap();
    }
}

#[test]
fn work_runs_when_polled_and_one_operation_at_a_time() {
    let mut parts = parts();
    parts.start();
    // Upload, mark, wait, mark, kernel, mark: each poll runs one of them, the uploads first.
    let polls: Vec<bool> = (0..6).map(|_| parts.device.is_reached(&parts.slot, Mark::KernelEnd).unwrap()).collect();
    assert_eq!(polls, [false, false, false, false, false, true]);
    assert_eq!((parts.device.pending(), parts.device.seen().pages), (0, 2));
    assert_eq!(parts.host.bytes().unwrap(), [7; BYTES]);
}

#[test]
fn a_kernel_waits_for_its_uploads() {
    let device = FakeDevice::new(Schedule::LastFirst);
    let mut host = device.allocator().pinned(BYTES, HostCaching::Cached).unwrap();
    let slot = device.allocator().slot(PAGES).unwrap();
    let mut parts = Parts { host: device.allocator().pinned(BYTES, HostCaching::Cached).unwrap(), slot, device };
    parts.start();
    for _ in 0..5 {
        assert!(!parts.device.is_reached(&parts.slot, Mark::KernelEnd).unwrap());
    }
    assert!(parts.device.is_reached(&parts.slot, Mark::KernelEnd).unwrap());
    // A copy that is queued has the bytes: to see them is to wait for it.
    parts.device.download(DeviceQueue::D2h, &mut parts.slot, SlotBuffer::Index, &mut host, 0..16).unwrap();
    assert_eq!(parts.device.pending(), 1);
    assert_ne!(host.bytes().unwrap()[..16], [0; 16]);
    assert_eq!(parts.device.pending(), 0);
}

#[test]
fn a_kernel_may_overtake_that_of_another_slot() {
    let overtakes = |seed| {
        let device = FakeDevice::new(Schedule::Random(seed));
        let [mut first, mut second] = [(); 2].map(|()| {
            let (host, slot) = (
                device.allocator().pinned(BYTES, HostCaching::Cached).unwrap(),
                device.allocator().slot(PAGES).unwrap(),
            );
            Parts { host, slot, device: device.clone() }
        });
        first.start();
        second.start();
        let is_done = |parts: &Parts| device.is_reached(&parts.slot, Mark::KernelEnd).unwrap();
        let overtakes = loop {
            match (is_done(&first), is_done(&second)) {
                (false, false) => {}
                (is_first_done, _) => break !is_first_done,
            }
        };
        first.drain();
        overtakes
    };
    let overtaken = (0..64).filter(|seed| overtakes(*seed)).count();
    assert!((1..64).contains(&overtaken), "{overtaken} of 64");
}

#[test]
#[should_panic(expected = "races with")]
fn an_upload_under_a_queued_kernel_is_noticed() {
    let mut parts = parts();
    parts.start();
    parts.upload();
}

#[test]
#[should_panic(expected = "races with")]
fn a_download_beside_a_queued_kernel_is_noticed() {
    let mut parts = parts();
    let mut out = parts.device.allocator().pinned(BYTES, HostCaching::Cached).unwrap();
    parts.start();
    let _ = parts.device.download(DeviceQueue::D2h, &mut parts.slot, SlotBuffer::Packed, &mut out, 0..16);
}

#[test]
#[should_panic(expected = "races with")]
fn a_kernel_that_does_not_wait_for_an_upload_is_noticed() {
    let mut parts = parts();
    parts.device.mark(&mut parts.slot, Mark::H2dEnd).unwrap();
    parts.upload();
    let _ = parts.device.compress(&mut parts.slot, PAGES);
}

#[test]
#[should_panic(expected = "has a kernel queued")]
fn two_kernels_at_once_in_a_slot_are_noticed() {
    let mut parts = parts();
    parts.start();
    let _ = parts.device.compress(&mut parts.slot, PAGES);
}

#[test]
#[should_panic(expected = "were not uploaded")]
fn a_kernel_on_stale_pages_is_noticed() {
    let mut parts = parts();
    parts.start();
    parts.drain();
    parts.device.compress(&mut parts.slot, PAGES).unwrap();
    parts.drain();
}

#[test]
#[should_panic(expected = "has 32 bytes")]
fn a_copy_of_more_than_the_kernel_made_is_noticed() {
    let mut parts = parts();
    let mut out = parts.device.allocator().pinned(BYTES, HostCaching::Cached).unwrap();
    parts.start();
    parts.drain();
    parts.device.download(DeviceQueue::D2h, &mut parts.slot, SlotBuffer::Packed, &mut out, 0..48).unwrap();
    parts.drain();
}

#[test]
#[should_panic(expected = "is freed while a copy")]
fn host_memory_freed_under_a_copy_is_noticed() {
    let mut parts = parts();
    parts.upload();
    drop(parts.host);
}

#[test]
#[should_panic(expected = "is freed while it has work")]
fn a_slot_freed_under_its_work_is_noticed() {
    let Parts { host, mut slot, device } = parts();
    device.mark(&mut slot, Mark::H2dStart).unwrap();
    drop(slot);
    drop(host);
}

#[test]
#[should_panic(expected = "waits for ever")]
fn a_wait_for_a_copy_that_hangs_is_noticed() {
    let mut parts = parts();
    parts.device.arm([(0, InjectedFault::Hang)]);
    parts.upload();
    let _ = parts.host.bytes_mut();
}

#[test]
fn a_lost_device_gives_the_same_answer_to_all_and_counts_who_asks() {
    let mut parts = parts();
    parts.device.arm([(0, InjectedFault::IllegalAddress)]);
    let first = parts.device.mark(&mut parts.slot, Mark::H2dStart).unwrap_err();
    assert_eq!(first.to_string(), "cuEventRecord: CUDA_ERROR_ILLEGAL_ADDRESS (700)");
    assert!(parts.device.loss().is_some());
    let second = parts.device.upload(&mut parts.slot, SlotBuffer::Pages, 0, &mut parts.host, 0..8).unwrap_err();
    assert!(matches!(second, GpuError::ContextLost { reason } if reason == first.to_string()));
    assert_eq!(parts.device.seen().calls_after_loss, 1);
}
