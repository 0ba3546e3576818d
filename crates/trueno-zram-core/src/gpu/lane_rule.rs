//! Asks each device once which lane wins a conflicting store.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use trueno_gpu::kernels::{Kernel, LaneRuleCounts, LaneRuleKernel};

use super::context::GpuContext;
use super::error::GpuResult;
use super::kernel::LoadedKernel;
use super::launch::LaunchArgs;
use super::memory::DeviceBuffer;
use super::stream::Stream;

/// Rounds of each warp, of about 125 conflicts: even one multiprocessor alone sees a hundred thousand.
const ROUNDS: u32 = 128;
/// Blocks at most, so that the counts fit 32 bits on any device.
const MAX_BLOCKS: u32 = 4096;

/// What a probe of the device saw of conflicting 16-bit shared stores. It runs once a process and device; later calls
/// give the same counts.
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
    // A map is whole between any two of its operations, whatever panicked. Held during the probe: one is enough.
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
    let stream = Stream::new(context)?;
    let counts = DeviceBuffer::new(context, 8)?;
    stream.fill(&counts, 0..8, 0)?;
    let grid = kernel.resident_blocks().min(MAX_BLOCKS);
    // SAFETY: the kernel adds to the two words that there are.
    unsafe { kernel.launch(&stream, grid, &LaunchArgs::new().buffer(&counts).u32(ROUNDS)) }?;
    let mut words = [0; 8];
    stream.download(&counts, 0, &mut words)?;
    let [a, b, c, d, e, f, g, h] = words;
    Ok(LaneRuleCounts {
        conflicts: u32::from_le_bytes([a, b, c, d]),
        lowest_lane_won: u32::from_le_bytes([e, f, g, h]),
    })
}
