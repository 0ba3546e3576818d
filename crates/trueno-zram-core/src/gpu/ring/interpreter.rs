//! The interpreter as the ring's device: the same kernels, run on the CPU.

use std::ops::Range;
use std::time::{Duration, Instant};

use trueno_gpu::interp::Fault;
use trueno_gpu::kernels::packed::{Mode, PackedEntry, TableStores};

use super::device::{DeviceAllocator, DeviceQueue, Mark, PinnedMemory, RingDevice, SlotBuffer};
use crate::gpu::codec::{CompressKernel, DecompressKernel, PageFormat};
use crate::gpu::error::{GpuError, GpuResult};
use crate::gpu::launch_shape::LaunchShape;
use crate::gpu::memory::check_part;
use crate::gpu::pinned::HostCaching;

/// The kernels' interpreter, which checks every memory access. It is four orders of magnitude slower than a GPU.
///
/// All work is done at once, so every mark is reached as soon as it is set.
///
/// ```
/// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, Interpreter};
/// let compressor: GpuBatchCompressor<Interpreter> =
///     GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
/// assert!(compressor.uses_device());
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Interpreter {
    compress: CompressKernel,
    decompress: DecompressKernel,
}

impl Interpreter {
    pub(crate) fn new(format: PageFormat, mode: Mode) -> Self {
        let (pages, shape) = (u32::MAX, LaunchShape::EVERYWHERE);
        Self {
            // Lane orders are for tests: the form that does not depend on them gives the same bytes.
            compress: CompressKernel::new(format, pages, mode, TableStores::ReadBack, shape),
            decompress: DecompressKernel::new(format, pages, shape),
        }
    }
}

/// A slot's "device" memory and the times of its marks.
#[derive(Debug)]
pub struct InterpreterSlot {
    buffers: [Vec<u8>; SlotBuffer::ALL.len()],
    marks: [Option<Instant>; Mark::COUNT],
}

impl InterpreterSlot {
    fn set(&mut self, mark: Mark) {
        self.marks[mark as usize] = Some(Instant::now());
    }
}

fn fault(fault: Fault) -> GpuError {
    GpuError::Kernel { reason: fault.to_string(), kernel: fault.kernel }
}

/// Allocates ordinary memory.
#[derive(Clone, Copy, Debug)]
pub struct InterpreterAllocator;

impl DeviceAllocator for InterpreterAllocator {
    type Pinned = Vec<u8>;
    type Slot = InterpreterSlot;

    fn pinned(&self, len_bytes: usize, _caching: HostCaching) -> GpuResult<Vec<u8>> {
        Ok(vec![0; len_bytes])
    }

    fn slot(&self, pages: u32) -> GpuResult<InterpreterSlot> {
        let buffers = SlotBuffer::ALL.map(|buffer| vec![0; pages as usize * buffer.bytes_per_page()]);
        Ok(InterpreterSlot { buffers, marks: [None; Mark::COUNT] })
    }
}

impl RingDevice for Interpreter {
    const NAME: &'static str = "interpreter";
    const DESCRIPTION: &'static str = "interpreted GPU";

    type Pinned = Vec<u8>;
    type Slot = InterpreterSlot;
    type Allocator = InterpreterAllocator;

    fn allocator(&self) -> InterpreterAllocator {
        InterpreterAllocator
    }

    fn format(&self) -> PageFormat {
        self.compress.format()
    }

    fn adopt(&self, _memory: &mut Vec<u8>) -> GpuResult<()> {
        Ok(())
    }

    fn upload(
        &self,
        slot: &mut InterpreterSlot,
        to: SlotBuffer,
        at: usize,
        from: &mut Vec<u8>,
        part: Range<usize>,
    ) -> GpuResult<()> {
        let from = &from[check_part(part.start, part.len(), from.len())?];
        let to = &mut slot.buffers[to as usize];
        let place = check_part(at, from.len(), to.len())?;
        to[place].copy_from_slice(from);
        Ok(())
    }

    fn download(
        &self,
        _queue: DeviceQueue,
        slot: &mut InterpreterSlot,
        from: SlotBuffer,
        to: &mut Vec<u8>,
        part: Range<usize>,
    ) -> GpuResult<()> {
        let place = check_part(part.start, part.len(), to.len())?;
        let from = &slot.buffers[from as usize];
        let part = check_part(0, place.len(), from.len())?;
        to[place].copy_from_slice(&from[part]);
        Ok(())
    }

    fn compress(&mut self, slot: &mut InterpreterSlot, pages: u32) -> GpuResult<()> {
        slot.set(Mark::KernelStart);
        let [input, packed, index, _] = &mut slot.buffers;
        let run = self.compress.interpret(&input.as_chunks().0[..pages as usize]).map_err(fault)?;
        packed[..run.packed.len()].copy_from_slice(&run.packed);
        index[..run.index.len()].copy_from_slice(&run.index);
        slot.set(Mark::KernelEnd);
        Ok(())
    }

    fn decompress(&mut self, slot: &mut InterpreterSlot, packed_bytes: usize, pages: u32) -> GpuResult<()> {
        slot.set(Mark::KernelStart);
        let [output, packed, index, status] = &mut slot.buffers;
        let (count, input) = (pages as usize, &packed[..packed_bytes]);
        let (index, output) = (&index[..count * PackedEntry::BYTES], &mut output.as_chunks_mut().0[..count]);
        let run = self.decompress.interpret(input, index, output).map_err(fault)?;
        status[..run.status.len()].copy_from_slice(&run.status);
        slot.set(Mark::KernelEnd);
        Ok(())
    }

    fn mark(&self, slot: &mut InterpreterSlot, mark: Mark) -> GpuResult<()> {
        slot.set(mark);
        Ok(())
    }

    fn is_reached(&self, _slot: &InterpreterSlot, _mark: Mark) -> GpuResult<bool> {
        Ok(true)
    }

    fn elapsed(&self, slot: &InterpreterSlot, from: Mark, to: Mark) -> GpuResult<Duration> {
        let times = slot.marks[from as usize].zip(slot.marks[to as usize]);
        Ok(times.map_or(Duration::ZERO, |(from, to)| to.saturating_duration_since(from)))
    }

    fn drain(&self, _time_limit: Duration) -> GpuResult<()> {
        Ok(())
    }

    fn give_up(&self, _reason: &str) {}

    fn loss(&self) -> Option<String> {
        None
    }
}

impl PinnedMemory for Vec<u8> {
    fn bytes(&self) -> GpuResult<&[u8]> {
        Ok(self)
    }

    fn bytes_mut(&mut self) -> GpuResult<&mut [u8]> {
        Ok(self)
    }

    fn settle(&mut self, _time_limit: Duration) -> GpuResult<()> {
        Ok(())
    }
}
