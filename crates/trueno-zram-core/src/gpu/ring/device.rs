//! The operations of a device that the ring needs: memory, copies, launches, and marks to wait for.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use trueno_gpu::kernels::packed::PackedEntry;

use crate::gpu::codec::{PageFormat, STATUS_BYTES};
use crate::gpu::error::GpuResult;
use crate::gpu::pinned::HostCaching;
use crate::page::PAGE_SIZE;

/// A device that pages can be sent through.
///
/// Calls that copy or launch return at once: what they queue runs later, in the order of its [`DeviceQueue`]. A [`Mark`] shows how
/// far a queue has come. There are three implementations: a GPU ([`Cuda`](super::cuda::Cuda)), the interpreter
/// ([`Interpreter`](super::interpreter::Interpreter)), and, in tests, a device that fails and delays on demand.
pub trait RingDevice: fmt::Debug + Send + 'static {
    /// The short name of compressors on such a device.
    const NAME: &'static str;
    /// The name of such a device in messages.
    const DESCRIPTION: &'static str;

    /// Page-locked host memory.
    type Pinned: PinnedMemory;
    /// Device memory and marks of one slot of the ring.
    type Slot: fmt::Debug + Send + 'static;
    /// The allocator of both.
    type Allocator: DeviceAllocator<Pinned = Self::Pinned, Slot = Self::Slot>;

    /// Returns the allocator of the device's memory.
    fn allocator(&self) -> Self::Allocator;
    /// Returns the format of the device's kernels.
    fn format(&self) -> PageFormat;
    /// Returns `true` if the device hangs, given how long a slot has been in one state.
    fn hangs(&self, waiting: Duration, time_limit: Duration) -> bool {
        waiting > time_limit
    }
    /// Prepares host memory that another device of the same kind may have allocated. Fails while that device may still copy
    /// from or to it.
    fn adopt(&self, memory: &mut Self::Pinned) -> GpuResult<()>;
    /// Queues a copy of `part` of host memory to a device buffer, from byte `at` on.
    fn upload(
        &self,
        slot: &mut Self::Slot,
        to: SlotBuffer,
        at: usize,
        from: &mut Self::Pinned,
        part: Range<usize>,
    ) -> GpuResult<()>;
    /// Queues a copy from the start of a device buffer to `part` of host memory.
    fn download(
        &self,
        queue: DeviceQueue,
        slot: &mut Self::Slot,
        from: SlotBuffer,
        to: &mut Self::Pinned,
        part: Range<usize>,
    ) -> GpuResult<()>;
    /// Queues, behind [`Mark::H2dEnd`], the compression of `pages` pages of [`SlotBuffer::Pages`] to [`SlotBuffer::Packed`] and
    /// [`SlotBuffer::Index`], between [`Mark::KernelStart`] and [`Mark::KernelEnd`].
    fn compress(&mut self, slot: &mut Self::Slot, pages: u32) -> GpuResult<()>;
    /// Queues, behind [`Mark::H2dEnd`], the restoring of `pages` pages from `packed_bytes` of [`SlotBuffer::Packed`] to
    /// [`SlotBuffer::Pages`] and [`SlotBuffer::Status`], between the same marks.
    fn decompress(&mut self, slot: &mut Self::Slot, packed_bytes: usize, pages: u32) -> GpuResult<()>;

    /// Queues a mark.
    fn mark(&self, slot: &mut Self::Slot, mark: Mark) -> GpuResult<()>;
    /// Returns `true` if a mark is reached, or was never queued.
    fn is_reached(&self, slot: &Self::Slot, mark: Mark) -> GpuResult<bool>;
    /// Returns the device's time between two marks that are reached.
    fn elapsed(&self, slot: &Self::Slot, from: Mark, to: Mark) -> GpuResult<Duration>;

    /// Waits until all queued work has run.
    fn drain(&self, time_limit: Duration) -> GpuResult<()>;
    /// Ends the use of the device for good. What it still does cannot be waited for.
    fn give_up(&self, reason: &str);
    /// Returns the reason why the device cannot be used any more, if there is one.
    fn loss(&self) -> Option<String>;
}

/// A device that batches and streams run on: a GPU ([`Cuda`](super::cuda::Cuda)), or the interpreter in its place
/// ([`Interpreter`](super::interpreter::Interpreter)). The trait is sealed.
///
/// ```
/// use trueno_zram_core::gpu::{BatchDevice, GpuBatchCompressor};
///
/// /// Works for compressors on GPUs and for interpreted ones.
/// fn pages_on_cpu<D: BatchDevice>(compressor: &GpuBatchCompressor<D>) -> u64 {
///     compressor.stats().fallback.pages
/// }
/// ```
pub trait BatchDevice: RingDevice {}

impl<D: RingDevice> BatchDevice for D {}

/// Allocates memory of a device. Usable on any thread, while another thread uses the device.
pub trait DeviceAllocator: Clone + fmt::Debug + Send + 'static {
    /// Page-locked host memory.
    type Pinned;
    /// Device memory and marks of one slot of the ring.
    type Slot;

    /// Allocates host memory.
    fn pinned(&self, len_bytes: usize, caching: HostCaching) -> GpuResult<Self::Pinned>;
    /// Allocates device memory for a batch of up to `pages` pages.
    fn slot(&self, pages: u32) -> GpuResult<Self::Slot>;
}

/// Page-locked host memory. The CPU sees it while no copy uses it.
pub trait PinnedMemory: fmt::Debug + Send + 'static {
    /// Returns the bytes, once nothing writes them.
    fn bytes(&self) -> GpuResult<&[u8]>;
    /// Returns the bytes, once nothing reads or writes them.
    fn bytes_mut(&mut self) -> GpuResult<&mut [u8]>;
    /// Waits until no copy is in flight. If that succeeds, the bytes stay accessible, whatever happens to the device.
    fn settle(&mut self, time_limit: Duration) -> GpuResult<()>;
}

/// The device buffers of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotBuffer {
    /// Pages as they are.
    Pages,
    /// Packed pages.
    Packed,
    /// 8 bytes per page.
    Index,
    /// 4 bytes per page.
    Status,
}

impl SlotBuffer {
    /// All buffers of a slot, in order.
    pub const ALL: [Self; 4] = [Self::Pages, Self::Packed, Self::Index, Self::Status];

    /// Returns the number of bytes that the buffer has for each page of the slot.
    #[must_use]
    pub fn bytes_per_page(self) -> usize {
        match self {
            Self::Pages | Self::Packed => PAGE_SIZE,
            Self::Index => PackedEntry::BYTES,
            Self::Status => STATUS_BYTES,
        }
    }
}

/// A queue of work. Each queue runs in order, in parallel with the others; the compute queue runs in order for each slot
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceQueue {
    /// Copies to the device.
    H2d,
    /// Kernels, and the copy of their index. A slot's kernel may run before, beside or after those of other slots.
    Compute,
    /// Copies from the device.
    D2h,
}

/// A point in a slot's work that can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The copy to the device starts.
    H2dStart,
    /// The copy to the device is done.
    H2dEnd,
    /// The kernel starts.
    KernelStart,
    /// The kernel is done.
    KernelEnd,
    /// The index that the kernel wrote is on the host.
    IndexEnd,
    /// The copy to the host starts.
    D2hStart,
    /// The copy to the host is done.
    D2hEnd,
}

impl Mark {
    /// The number of marks.
    pub const COUNT: usize = 7;

    /// Returns the queue that reaches the mark.
    #[must_use]
    pub fn queue(self) -> DeviceQueue {
        match self {
            Self::H2dStart | Self::H2dEnd => DeviceQueue::H2d,
            Self::KernelStart | Self::KernelEnd | Self::IndexEnd => DeviceQueue::Compute,
            Self::D2hStart | Self::D2hEnd => DeviceQueue::D2h,
        }
    }
}
