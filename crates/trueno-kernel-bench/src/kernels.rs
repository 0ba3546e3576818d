//! The kernels to be measured, and how each is set up.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::Arc;

use trueno_zram_core::gpu::raw::{
    DeviceBuffer, DeviceLimits, GpuContext, LaunchArgs, Launcher, Module, ParamKind, Stream,
};

use crate::args::number;
use crate::resident::Resident;

/// What a kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Parameters: input pages, packed output, index (zeroed), scratch, four counters (zeroed), number of pages.
    Compress,
    /// Parameters: packed input, its length, index, output pages, a status a page, four counters (zeroed), number of pages.
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

/// The launch that a kernel wants. The grid is persistent: as many blocks as fit the device at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) warps_per_block: u32,
    pub(crate) dynamic_shared_bytes: u32,
    /// Global memory for each warp of the grid.
    pub(crate) scratch_bytes_per_warp: usize,
}

/// Which blocks a decompression kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepts {
    Everything,
    RawPages,
}

/// A kernel that can be measured.
pub(crate) trait KernelVariant {
    fn name(&self) -> &str;
    fn direction(&self) -> Direction;
    fn ptx(&self, limits: &DeviceLimits) -> Result<String, String>;
    fn entry(&self) -> &str;
    fn shape(&self, limits: &DeviceLimits) -> Shape;

    fn accepts(&self) -> Accepts {
        Accepts::Everything
    }
}

/// The name of the copy kernels.
pub(crate) const COPY: &str = "copy";

/// The kernels that come with the binary.
pub(crate) fn builtin() -> Vec<Box<dyn KernelVariant>> {
    vec![Box::new(Copy(Direction::Compress)), Box::new(Copy(Direction::Decompress))]
}

/// Pages copied as they are.
struct Copy(Direction);

impl KernelVariant for Copy {
    fn name(&self) -> &str {
        COPY
    }

    fn direction(&self) -> Direction {
        self.0
    }

    fn ptx(&self, _limits: &DeviceLimits) -> Result<String, String> {
        Ok(include_str!("copy.ptx").to_owned())
    }

    fn entry(&self) -> &str {
        match self.0 {
            Direction::Compress => "copy_pack",
            Direction::Decompress => "copy_unpack",
        }
    }

    fn shape(&self, _limits: &DeviceLimits) -> Shape {
        Shape { warps_per_block: 4, dynamic_shared_bytes: 0, scratch_bytes_per_warp: 0 }
    }

    fn accepts(&self) -> Accepts {
        Accepts::RawPages
    }
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
            [name, file, entry, warps, shared] => (name, file, entry, warps, shared, "8192"),
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
}

impl KernelVariant for FileKernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn direction(&self) -> Direction {
        self.direction
    }

    fn ptx(&self, _limits: &DeviceLimits) -> Result<String, String> {
        std::fs::read_to_string(&self.file).map_err(|e| format!("{}: {e}", self.file.display()))
    }

    fn entry(&self) -> &str {
        &self.entry
    }

    fn shape(&self, _limits: &DeviceLimits) -> Shape {
        self.shape
    }
}

/// A kernel on the device.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) direction: Direction,
    pub(crate) accepts: Accepts,
    pub(crate) shape: Shape,
    pub(crate) grid: u32,
    pub(crate) blocks_per_sm: u32,
    pub(crate) registers: u32,
    pub(crate) local_bytes: u32,
    launcher: Launcher,
    scratch: DeviceBuffer,
}

pub(crate) fn load_all(context: &GpuContext, variants: &[Box<dyn KernelVariant>]) -> Result<Vec<Loaded>, String> {
    variants.iter().map(|variant| load(context, variant.as_ref())).collect()
}

fn load(context: &GpuContext, variant: &dyn KernelVariant) -> Result<Loaded, String> {
    let limits = context.limits();
    let ptx = variant.ptx(limits)?;
    let say = |error| format!("{}: {error}", variant.name());
    let module = Arc::new(Module::from_ptx(context, &ptx).map_err(say)?);
    let launcher = Launcher::new(&module, variant.entry(), variant.direction().params()).map_err(say)?;
    let shape = variant.shape(limits);
    launcher.allow_dynamic_shared(shape.dynamic_shared_bytes).map_err(say)?;
    let made = launcher.attributes().map_err(say)?;
    let threads = shape.warps_per_block * 32;
    let blocks_per_sm = launcher.blocks_per_multiprocessor(threads, shape.dynamic_shared_bytes).map_err(say)?;
    if blocks_per_sm == 0 {
        return Err(format!(
            "{}: no block of {} warps with {} + {} bytes of shared memory and {} registers fits an SM",
            variant.name(),
            shape.warps_per_block,
            made.static_shared_bytes,
            shape.dynamic_shared_bytes,
            made.registers
        ));
    }
    let grid = blocks_per_sm * limits.multiprocessors;
    let warps = grid as usize * shape.warps_per_block as usize;
    let scratch = DeviceBuffer::new(context, warps * shape.scratch_bytes_per_warp).map_err(say)?;
    Ok(Loaded {
        name: variant.name().to_owned(),
        direction: variant.direction(),
        accepts: variant.accepts(),
        shape,
        grid,
        blocks_per_sm,
        registers: made.registers,
        local_bytes: made.local_bytes,
        launcher,
        scratch,
    })
}

impl Loaded {
    pub(crate) fn block_threads(&self) -> u32 {
        self.shape.warps_per_block * 32
    }

    pub(crate) fn scratch_bytes(&self) -> usize {
        self.scratch.len_bytes()
    }

    /// Zeroes what the kernel wants zeroed.
    pub(crate) fn prepare(&self, stream: &Stream, data: &Resident) -> Result<(), String> {
        if self.direction == Direction::Compress {
            data.zero(stream, &data.index)?;
        }
        data.zero(stream, &data.counters)
    }

    /// Queues one run over all pages.
    pub(crate) fn launch(&self, stream: &Stream, data: &Resident) -> Result<(), String> {
        let args = match self.direction {
            Direction::Compress => LaunchArgs::new()
                .buffer(&data.input)
                .buffer(&data.packed)
                .buffer(&data.index)
                .buffer(&self.scratch)
                .buffer(&data.counters)
                .u32(data.pages),
            Direction::Decompress => LaunchArgs::new()
                .buffer(&data.packed)
                .u64(data.packed_len_bytes())
                .buffer(&data.index)
                .buffer(&data.decoded)
                .buffer(&data.status)
                .buffer(&data.counters)
                .u32(data.pages),
        };
        let shared = self.shape.dynamic_shared_bytes;
        // SAFETY: `Resident` has room for that many pages in every buffer, and the scratch for every warp of the grid; that
        // the kernel keeps to them is its contract. This program holds nothing that matters if it does not.
        unsafe { self.launcher.launch(stream, self.grid, self.block_threads(), shared, &args) }
            .map_err(|e| format!("{}: {e}", self.name))
    }
}
