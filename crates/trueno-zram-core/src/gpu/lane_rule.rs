//! Probes each device once for the lane that wins a conflicting store.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use trueno_gpu::kernels::{Kernel, LaneRuleCounts, LaneRuleKernel};

use super::context::GpuContext;
use super::error::GpuResult;
use super::kernel::LoadedKernel;
use super::launch_args::LaunchArgs;
use super::memory::DeviceBuffer;
use super::stream::CudaStream;

/// Rounds per warp, with about 125 conflicts each: even a single multiprocessor sees a hundred thousand.
const ROUNDS: u32 = 128;
/// Maximum number of blocks, so that the counts fit in 32 bits on any device.
const MAX_BLOCKS: u32 = 4096;

/// Returns the results of probing the device for conflicting 16-bit stores to shared memory. The probe runs once per
/// process and device; later calls return the same counts.
///
/// ```no_run
/// let context = trueno_zram_core::gpu::raw::GpuContext::new(0)?;
/// let seen = trueno_zram_core::gpu::raw::lane_rule(&context)?;
/// println!("{seen:?}: {:?}", seen.table_stores());
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
///
/// # Errors
/// If the probe cannot be run.
pub fn lane_rule(context: &GpuContext) -> GpuResult<LaneRuleCounts> {
    static BY_DEVICE: Mutex<BTreeMap<u32, LaneRuleCounts>> = Mutex::new(BTreeMap::new());
    // The map is consistent between any two of its operations, even after a panic. The lock is held during the probe,
    // so that only one runs.
    let mut by_device = BY_DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let index = context.info().index;
    if let Some(seen) = by_device.get(&index) {
        return Ok(*seen);
    }
    let seen = probe(context)?;
    by_device.insert(index, seen);
    Ok(seen)
}

fn probe(context: &GpuContext) -> GpuResult<LaneRuleCounts> {
    let kernel = LoadedKernel::new(context, LaneRuleKernel::new().ir())?;
    let stream = CudaStream::new(context)?;
    let counts = DeviceBuffer::new(context, 8)?;
    stream.fill(&counts, 0..8, 0)?;
    let grid = kernel.resident_blocks().min(MAX_BLOCKS);
    // SAFETY: the kernel only adds to the two words of the buffer.
    unsafe { kernel.launch(&stream, grid, &LaunchArgs::new().buffer(&counts).u32(ROUNDS)) }?;
    let mut words = [0; 8];
    stream.download(&counts, 0, &mut words)?;
    let [a, b, c, d, e, f, g, h] = words;
    Ok(LaneRuleCounts {
        conflicts: u32::from_le_bytes([a, b, c, d]),
        lowest_lane_won: u32::from_le_bytes([e, f, g, h]),
    })
}
