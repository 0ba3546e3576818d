//! The codecs to check: the CPU with each instruction set, the kernels in the interpreter, and the kernels on each GPU.

use std::num::NonZeroUsize;

use trueno_gpu::kernels::lz4::Mode;
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuDeviceInfo, GpuOptions};
use trueno_zram_core::{Algorithm, BatchCodec, CpuBatchCompressor, build_pool};

use super::samples::SampleSet;
use super::{Check, proofs};

type Opened = trueno_zram_core::Result<Box<dyn BatchCodec>>;

/// Slots so small that every set of samples fills the ring several times.
const GPU_SLOT_PAGES: usize = 100;
const INTERPRETER_SLOT_PAGES: usize = 7;

pub(super) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    for set in InstructionSet::available() {
        checks.extend(codec_checks(&format!("cpu {set}"), SampleSet::large, move || one_thread(set)));
    }
    for set in InstructionSet::available().into_iter().filter(|set| *set != InstructionSet::Scalar) {
        checks.push(same_bytes(format!("cpu {set}: same bytes as scalar"), move || {
            Ok((one_thread(set)?, one_thread(InstructionSet::Scalar)?))
        }));
    }
    checks.push(round_trip("cpu, all cores: round trip".into(), SampleSet::large, all_cores));
    checks.push(same_bytes("cpu, all cores: same bytes as one".into(), || {
        Ok((all_cores()?, one_thread(InstructionSet::detect())?))
    }));
    checks.extend(codec_checks("interpreter", SampleSet::small, || interpreted(Mode::Fast)));
    checks
        .push(round_trip("interpreter, ratio mode: round trip".into(), SampleSet::small, || interpreted(Mode::Ratio)));
    for device in GpuDeviceInfo::all().into_iter().filter(GpuDeviceInfo::is_supported) {
        let (index, name) = (device.index, format!("gpu {}", device.index));
        checks.extend(codec_checks(&name, SampleSet::large, move || on_gpu(index, Mode::Fast)));
        checks.push(round_trip(format!("{name}, ratio mode: round trip"), SampleSet::large, move || {
            on_gpu(index, Mode::Ratio)
        }));
    }
    checks
}

fn one_thread(instructions: InstructionSet) -> Opened {
    let pool = build_pool(NonZeroUsize::MIN)?;
    Ok(Box::new(CpuBatchCompressor::with_pool(Algorithm::Lz4, instructions, pool)?))
}

fn all_cores() -> Opened {
    Ok(Box::new(CpuBatchCompressor::new(Algorithm::Lz4)?))
}

/// The interpreter stops at races, reads of uninitialised memory and accesses out of bounds.
fn interpreted(mode: Mode) -> Opened {
    let options = GpuOptions::new().with_mode(mode);
    Ok(Box::new(GpuBatchCompressor::interpreted(config(0, INTERPRETER_SLOT_PAGES), &options)?))
}

fn on_gpu(device_index: u32, mode: Mode) -> Opened {
    let options = GpuOptions::new().with_mode(mode);
    Ok(Box::new(GpuBatchCompressor::with_options(config(device_index, GPU_SLOT_PAGES), &options)?))
}

fn config(device_index: u32, batch_size: usize) -> GpuBatchConfig {
    GpuBatchConfig { device_index, batch_size, ring_buffer_slots: 2, ..GpuBatchConfig::default() }
}

/// The checks of one codec: what it makes, what it reads, what it refuses. `set` makes the pages.
fn codec_checks(what: &str, set: fn() -> SampleSet, open: impl Fn() -> Opened + Copy + 'static) -> [Check; 3] {
    [
        round_trip(format!("{what}: round trip"), set, open),
        Check::new(format!("{what}: reads lz4_flex"), move || proofs::reads_foreign(opened(open)?.as_mut(), &set())),
        Check::new(format!("{what}: damage"), move || proofs::judges_damage(opened(open)?.as_mut(), &set())),
    ]
}

fn round_trip(name: String, set: fn() -> SampleSet, open: impl Fn() -> Opened + 'static) -> Check {
    Check::new(name, move || proofs::round_trip(opened(open)?.as_mut(), &set().pages))
}

fn same_bytes(
    name: String,
    open: impl Fn() -> trueno_zram_core::Result<(Box<dyn BatchCodec>, Box<dyn BatchCodec>)> + 'static,
) -> Check {
    Check::new(name, move || {
        let (mut one, mut other) = open().map_err(|e| e.to_string())?;
        proofs::same_bytes(one.as_mut(), other.as_mut(), &SampleSet::large().pages)
    })
}

fn opened(open: impl Fn() -> Opened) -> Result<Box<dyn BatchCodec>, String> {
    open().map_err(|error| error.to_string())
}
