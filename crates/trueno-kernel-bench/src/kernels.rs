//! The kernels to be measured, ready on the device.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use trueno_gpu::kernels::lz4::{Mode, TableStores};
use trueno_zram_core::gpu::raw::{
    BlockShape, DeviceBuffer, GpuContext, GpuResult, LaunchArgs, Launcher, LoadedKernel, Lz4Compressor,
    Lz4Decompressor, Module, ParamKind, Stream, lane_rule,
};

use crate::args::number;
use crate::resident::Resident;

/// What a kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Parameters: input pages, packed output, index (zeroed), scratch, counter (zeroed), number of pages.
    Compress,
    /// Parameters: packed input, its length, index, output pages, a status a page, counter (zeroed), number of pages.
    Decompress,
}

impl Direction {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Compress => "compress",
            Self::Decompress => "decompress",
        }
    }

    fn params(self) -> &'static [ParamKind] {
        use ParamKind::{Buffer, U32, U64};
        match self {
            Self::Compress => &[Buffer, Buffer, Buffer, Buffer, Buffer, U32],
            Self::Decompress => &[Buffer, U64, Buffer, Buffer, Buffer, Buffer, U32],
        }
    }
}

/// The launch that a foreign kernel wants. The grid is persistent: as many blocks as fit the device at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    warps_per_block: u32,
    dynamic_shared_bytes: u32,
    /// Global memory for each warp of the grid.
    scratch_bytes_per_warp: usize,
}

/// Which blocks a decompression kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepts {
    Everything,
    RawPages,
}

/// Whether what a compression kernel makes is decompressed too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocks {
    /// They are.
    Decompressed,
    /// They are not: they are byte for byte those of the first kernel of the same mode.
    SameAsFirstOfMode,
}

/// The name of the copy kernels.
pub(crate) const COPY: &str = "copy";

/// Pages copied as they are: what memory bandwidth alone allows.
pub(crate) fn copies(context: &GpuContext) -> Result<Vec<Loaded>, String> {
    let kernels = [(Direction::Compress, "copy_pack"), (Direction::Decompress, "copy_unpack")];
    let load = |(direction, entry)| {
        let shape = Shape { warps_per_block: 4, dynamic_shared_bytes: 0, scratch_bytes_per_warp: 0 };
        let loaded = foreign(context, COPY, direction, include_str!("copy.ptx"), entry, shape)?;
        Ok(Loaded { accepts: Accepts::RawPages, ..loaded })
    };
    kernels.into_iter().map(load).collect()
}

/// Our own: each mode in the device's best shape and in the one that runs everywhere, with both table stores where the
/// device can be trusted; and the decompressor in the same shapes.
pub(crate) fn own(context: &GpuContext) -> Result<Vec<Loaded>, String> {
    let seen = lane_rule(context).map_err(|e| e.to_string())?;
    println!("lane rule: {seen:?}: {:?}", seen.table_stores());
    let best = BlockShape::best_for(context.info().compute_capability, context.limits());
    let mut shapes = vec![best, BlockShape::EVERYWHERE];
    shapes.dedup();
    let mut stores = vec![seen.table_stores(), TableStores::ReadBack];
    stores.dedup();
    let mut kernels = Vec::new();
    for (mode, mode_name) in [(Mode::Fast, "fast"), (Mode::Ratio, "ratio")] {
        for shape in &shapes {
            for stores in &stores {
                let mut name = named(mode_name, *shape, best);
                if *stores != seen.table_stores() {
                    name += "/read-back";
                }
                let first = *shape == best && *stores == seen.table_stores();
                let blocks = if first { Blocks::Decompressed } else { Blocks::SameAsFirstOfMode };
                let kernel = compressor(context, &name, mode, *stores, *shape);
                kernels.push(Loaded { blocks, ..kernel.map_err(|e| format!("{name}: {e}"))? });
            }
        }
    }
    for shape in &shapes {
        let name = named("lz4", *shape, best);
        kernels.push(decompressor(context, &name, *shape).map_err(|e| format!("{name}: {e}"))?);
    }
    Ok(kernels)
}

fn compressor(
    context: &GpuContext,
    name: &str,
    mode: Mode,
    stores: TableStores,
    shape: BlockShape,
) -> GpuResult<Loaded> {
    let compressor = Lz4Compressor::with_shape(context, mode, stores, shape)?;
    let (facts, scratch_bytes) = (Facts::of(compressor.loaded())?, compressor.scratch_bytes());
    let loaded = Loaded::new(name, Direction::Compress, facts, Engine::Compress(compressor));
    Ok(Loaded { mode: Some(mode), scratch_bytes, ..loaded })
}

fn decompressor(context: &GpuContext, name: &str, shape: BlockShape) -> GpuResult<Loaded> {
    let decompressor = Lz4Decompressor::with_shape(context, shape)?;
    let facts = Facts::of(decompressor.loaded())?;
    Ok(Loaded::new(name, Direction::Decompress, facts, Engine::Decompress(decompressor)))
}

fn named(what: &str, shape: BlockShape, best: BlockShape) -> String {
    if shape == best { what.to_owned() } else { format!("{what}/{} warps", shape.warps_per_block) }
}

/// A kernel from a PTX file, for trying one without building anything.
pub(crate) struct FileKernel {
    name: String,
    direction: Direction,
    file: PathBuf,
    entry: String,
    shape: Shape,
}

impl FileKernel {
    pub(crate) fn compress(spec: &str) -> Result<Self, String> {
        Self::parse(Direction::Compress, spec)
    }

    pub(crate) fn decompress(spec: &str) -> Result<Self, String> {
        Self::parse(Direction::Decompress, spec)
    }

    fn parse(direction: Direction, spec: &str) -> Result<Self, String> {
        let fields: Vec<&str> = spec.split(',').collect();
        let (name, file, entry, warps, shared, scratch) = match fields[..] {
            [name, file, entry, warps, shared] => (name, file, entry, warps, shared, "12288"),
            [name, file, entry, warps, shared, scratch] => (name, file, entry, warps, shared, scratch),
            _ => return Err(format!("{spec:?} is not NAME,FILE,ENTRY,WARPS,SHARED[,SCRATCH]")),
        };
        let shape = Shape {
            warps_per_block: number("warps a block", warps)?,
            dynamic_shared_bytes: number("shared memory", shared)?,
            scratch_bytes_per_warp: number("scratch", scratch)?,
        };
        if !(1..=32).contains(&shape.warps_per_block) {
            return Err(format!("{name}: a block has 1 to 32 warps"));
        }
        Ok(Self { name: name.into(), direction, file: file.into(), entry: entry.into(), shape })
    }

    pub(crate) fn load(&self, context: &GpuContext) -> Result<Loaded, String> {
        let ptx = std::fs::read_to_string(&self.file).map_err(|e| format!("{}: {e}", self.file.display()))?;
        foreign(context, &self.name, self.direction, &ptx, &self.entry, self.shape)
    }
}

/// A kernel on the device.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) direction: Direction,
    pub(crate) accepts: Accepts,
    pub(crate) blocks: Blocks,
    pub(crate) mode: Option<Mode>,
    pub(crate) facts: Facts,
    pub(crate) scratch_bytes: usize,
    engine: RefCell<Engine>,
}

/// What a kernel came to on the device.
#[derive(Clone, Copy, Default)]
pub(crate) struct Facts {
    pub(crate) grid: u32,
    pub(crate) blocks_per_sm: u32,
    pub(crate) block_threads: u32,
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) registers: u32,
    pub(crate) local_bytes: u32,
}

impl Facts {
    fn of(kernel: &LoadedKernel) -> GpuResult<Self> {
        let made = kernel.attributes()?;
        Ok(Self {
            grid: kernel.resident_blocks(),
            blocks_per_sm: kernel.blocks_per_multiprocessor(),
            block_threads: kernel.block_threads(),
            dynamic_shared_bytes: kernel.dynamic_shared_bytes(),
            registers: made.registers,
            local_bytes: made.local_bytes,
        })
    }
}

/// How it is launched.
enum Engine {
    Compress(Lz4Compressor),
    Decompress(Lz4Decompressor),
    Foreign { launcher: Launcher, scratch: DeviceBuffer, counters: DeviceBuffer },
}

/// A kernel of which only the text and the launch are known.
fn foreign(
    context: &GpuContext,
    name: &str,
    direction: Direction,
    ptx: &str,
    entry: &str,
    shape: Shape,
) -> Result<Loaded, String> {
    let say = |error| format!("{name}: {error}");
    let module = Arc::new(Module::from_ptx(context, ptx).map_err(say)?);
    let launcher = Launcher::new(&module, entry, direction.params()).map_err(say)?;
    launcher.allow_dynamic_shared(shape.dynamic_shared_bytes).map_err(say)?;
    let made = launcher.attributes().map_err(say)?;
    let block_threads = shape.warps_per_block * 32;
    let blocks_per_sm = launcher.blocks_per_multiprocessor(block_threads, shape.dynamic_shared_bytes).map_err(say)?;
    if blocks_per_sm == 0 {
        return Err(format!("{name}: no block of {shape:?} and {} registers fits an SM", made.registers));
    }
    let grid = blocks_per_sm * context.limits().multiprocessors;
    let scratch_bytes = grid as usize * shape.warps_per_block as usize * shape.scratch_bytes_per_warp;
    let scratch = DeviceBuffer::new(context, scratch_bytes).map_err(say)?;
    let counters = DeviceBuffer::new(context, 16).map_err(say)?;
    let facts = Facts {
        grid,
        blocks_per_sm,
        block_threads,
        dynamic_shared_bytes: shape.dynamic_shared_bytes,
        registers: made.registers,
        local_bytes: made.local_bytes,
    };
    let engine = Engine::Foreign { launcher, scratch, counters };
    Ok(Loaded { scratch_bytes, ..Loaded::new(name, direction, facts, engine) })
}

impl Loaded {
    fn new(name: &str, direction: Direction, facts: Facts, engine: Engine) -> Self {
        Self {
            name: name.to_owned(),
            direction,
            accepts: Accepts::Everything,
            blocks: Blocks::Decompressed,
            mode: None,
            facts,
            scratch_bytes: 0,
            engine: RefCell::new(engine),
        }
    }

    /// Zeroes what the kernel wants zeroed.
    pub(crate) fn prepare(&self, stream: &Stream, data: &Resident) -> Result<(), String> {
        let prepared = match &mut *self.engine.borrow_mut() {
            Engine::Compress(compressor) => compressor.zero(stream, data.pages, &data.index),
            Engine::Decompress(decompressor) => decompressor.zero(stream),
            Engine::Foreign { counters, .. } => {
                if self.direction == Direction::Compress {
                    data.zero(stream, &data.index)?;
                }
                stream.fill(counters, 0..counters.len_bytes(), 0)
            }
        };
        prepared.map_err(|e| format!("{}: {e}", self.name))
    }

    /// Queues one run over all pages.
    pub(crate) fn launch(&self, stream: &Stream, data: &Resident) -> Result<(), String> {
        let launched = match &mut *self.engine.borrow_mut() {
            Engine::Compress(compressor) => {
                // SAFETY: `prepare` comes before each launch, and one stream does all the work.
                unsafe { compressor.launch_zeroed(stream, &data.input, data.pages, &data.packed, &data.index) }
            }
            Engine::Decompress(decompressor) => {
                // SAFETY: as above.
                unsafe { decompressor.launch_zeroed(stream, data.packed_pages(), &data.decoded, &data.status) }
            }
            Engine::Foreign { launcher, scratch, counters } => {
                let args = match self.direction {
                    Direction::Compress => LaunchArgs::new()
                        .buffer(&data.input)
                        .buffer(&data.packed)
                        .buffer(&data.index)
                        .buffer(scratch)
                        .buffer(counters)
                        .u32(data.pages),
                    Direction::Decompress => LaunchArgs::new()
                        .buffer(&data.packed)
                        .u64(data.packed_len_bytes())
                        .buffer(&data.index)
                        .buffer(&data.decoded)
                        .buffer(&data.status)
                        .buffer(counters)
                        .u32(data.pages),
                };
                let facts = self.facts;
                // SAFETY: `Resident` has room for that many pages in every buffer, and the scratch for every warp of the
                // grid; that the kernel keeps to them is its contract. This program holds nothing that matters if not.
                unsafe { launcher.launch(stream, facts.grid, facts.block_threads, facts.dynamic_shared_bytes, &args) }
            }
        };
        launched.map_err(|e| format!("{}: {e}", self.name))
    }
}
