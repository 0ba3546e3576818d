//! Runs kernels on the CPU: 32 lanes in lockstep over checked memory, with counters.
//!
//! CI has no GPU, and a GPU rarely shows that a kernel is faulty. The interpreter runs the tree of a kernel as it is,
//! stops at the first thing that a device leaves undefined, and counts what the kernel costs.
//!
//! ```
//! use trueno_gpu::KernelBuilder;
//! use trueno_gpu::inst::CountKind;
//! use trueno_gpu::interp::{FaultKind, Launch, DeviceMemory};
//!
//! // Each lane adds its neighbour's word to its own, through shared memory.
//! let k = KernelBuilder::new("neighbours");
//! let (input, output) = (k.param_ptr::<u32>("input"), k.param_ptr::<u32>("output"));
//! let lane = k.lane_id();
//! let words = k.shared_per_block("words", 128, 4).base::<u32>();
//! let own = input.index(lane).load();
//! words.byte_add(lane * 4).store(own);
//! k.sync_warp();
//! let neighbour = words.byte_add((lane ^ 1) * 4).load();
//! output.index(lane).store(own + neighbour);
//! let kernel = k.finish()?;
//!
//! let mut memory = DeviceMemory::new();
//! let bytes: Vec<u8> = (0..32u32).flat_map(u32::to_le_bytes).collect();
//! let input = memory.add("input", &bytes);
//! let output = memory.add_uninit("output", 128);
//! let report = Launch::new(&kernel).grid(1).arg(input).arg(output).run(&mut memory)?;
//! assert_eq!(memory.bytes(output)?[..12], [1, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0]);
//! assert_eq!(report.total[CountKind::SharedLoad], 1);
//! assert_eq!(report.total.shared_wavefronts, 2);
//!
//! // A buffer that is too small is a fault.
//! let short = memory.add_uninit("short", 100);
//! let fault = Launch::new(&kernel).arg(input).arg(short).run(&mut memory).unwrap_err();
//! assert!(matches!(fault.kind, FaultKind::OutOfBounds { bytes: 4, .. }));
//! assert!(fault.to_string().contains("lanes 25-31"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Execution
//! The first launch of a kernel lowers its tree to a flat program, in which each step acts on all lanes of a warp at
//! once. Blocks run in parallel on the current rayon pool, in ascending order ([`Launch::threads`] limits their
//! number). The warps of a block take turns in ascending order: each runs until it ends or waits at a block barrier. So
//! a warp may spin until another block that has started writes something. Waiting for a later warp of its own block, or
//! for a block that has not started, ends at the step limit.
//!
//! A kernel that gives the same bytes on every device gives them here, with any number of threads. The same holds for
//! counters, except in kernels that spin: with more than one thread, how long they spin depends on timing.
//!
//! One core runs about 20 million warp instructions per second (`cargo test --release -p trueno-zram-kernels --lib --
//! --ignored --nocapture speed` measures it). That is about 1,500 pages per second for a kernel of 13,000 instructions
//! per page.
//!
//! # Faults
//! A [`Fault`] names the kernel, the statement, its section, the block, the warp and the lanes. [`FaultKind`] lists the
//! faults: accesses out of bounds, misaligned or of unwritten memory; races on shared memory; stores of several lanes
//! to one place; barriers and warp operations that not all lanes reach; uniform branches and loads whose lanes
//! disagree; registers read before they are written; too many steps.
//!
//! # Memory order
//! Accesses to a shared byte by two lanes, at least one of them a write, are a race unless they are ordered:
//! - Accesses of one lane are ordered among themselves.
//! - Within a warp, `bar.warp.sync` orders what the lanes do before it and after it. Nothing else does: not the lanes of
//!   one instruction, nor successive instructions, nor a shuffle, vote or match.
//! - Between warps of a block, only `bar.sync` orders accesses.
//! - Stores declared as conflicting do not race with each other, nor do atomics. They race with everything else.
//!
//! In global memory, only races within one store are checked: two lanes may store to one place if the values are equal
//! or the store is declared as conflicting. Accesses of different warps and blocks are not checked.
//!
//! # Lane orders
//! If lanes of one instruction conflict on purpose, they act in the [`LaneOrder`] of the launch. Run a kernel in
//! several orders: if the bytes differ, they depend on something that no device guarantees.
//!
//! # Counters
//! [`LaunchReport`] counts warp instructions by kind, shared-memory wavefronts with bank conflicts, and global sectors.
//! It does so for the run, for each warp, and for each section of the kernel.

mod access;
mod fault;
mod grid;
mod lower;
mod lower_inst;
mod memory;
mod narrow;
mod order;
mod program;
mod report;
mod shared;
mod traffic;
mod warp;
mod warp_ops;

#[cfg(test)]
mod tests;

pub(crate) use lower::Lowered;

pub use fault::{Access, Accessor, Fault, FaultKind, FaultSite, LaneSet, Location};
pub use memory::{BufferId, DeviceMemory, UnwrittenByte};
pub use order::LaneOrder;
pub use report::{Counts, LaunchReport, SectionReport, WarpReport};

use crate::ir::ParamTy;
use crate::validate::ValidKernel;

/// A kernel argument.
///
/// ```
/// use trueno_gpu::interp::{Arg, DeviceMemory};
/// let mut memory = DeviceMemory::new();
/// let pages = memory.add("pages", &[0; 8192]);
/// let args: [Arg; 2] = [pages.into(), 2u32.into()];
/// assert_eq!(args, [Arg::Buffer(pages), Arg::U32(2)]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arg {
    /// A 32-bit number.
    U32(u32),
    /// A 64-bit number.
    U64(u64),
    /// A pointer to the start of a buffer.
    Buffer(BufferId),
}

impl From<u32> for Arg {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<u64> for Arg {
    fn from(value: u64) -> Self {
        Self::U64(value)
    }
}

impl From<BufferId> for Arg {
    fn from(buffer: BufferId) -> Self {
        Self::Buffer(buffer)
    }
}

/// Default limit on the steps of a warp.
const DEFAULT_STEP_LIMIT: u32 = 100_000_000;

/// A launch: kernel, grid, arguments and options.
///
/// ```
/// use trueno_gpu::interp::{LaneOrder, Launch, DeviceMemory};
/// use trueno_gpu::kernels::{Kernel, SameFillKernel};
/// let kernel = SameFillKernel::new();
/// let mut memory = DeviceMemory::new();
/// let pages = memory.add("pages", &[7; 4096]);
/// let flags = memory.add_uninit("flags", 4);
/// Launch::new(kernel.ir())
///     .arg(pages)
///     .arg(flags)
///     .arg(1u32)
///     .lane_order(LaneOrder::Shuffled { seed: 7 })
///     .step_limit(10_000)
///     .threads(1)
///     .run(&mut memory)?;
/// assert_eq!(memory.bytes(flags).unwrap(), [1, 0, 0, 0]);
/// # Ok::<(), trueno_gpu::interp::Fault>(())
/// ```
#[derive(Debug, Clone)]
pub struct Launch<'k> {
    kernel: &'k ValidKernel,
    blocks: u32,
    args: Vec<Arg>,
    order: LaneOrder,
    step_limit: u32,
    threads: Option<usize>,
}

impl<'k> Launch<'k> {
    /// Prepares a launch of one block, without arguments.
    ///
    /// ```
    /// # let kernel = &trueno_gpu::KernelBuilder::new("doc").finish().unwrap();
    /// let launch = trueno_gpu::interp::Launch::new(kernel);
    /// ```
    #[must_use]
    pub fn new(kernel: &'k ValidKernel) -> Self {
        Self {
            kernel,
            blocks: 1,
            args: vec![],
            order: LaneOrder::default(),
            step_limit: DEFAULT_STEP_LIMIT,
            threads: None,
        }
    }

    /// Sets the number of blocks.
    ///
    /// ```
    /// # let kernel = &trueno_gpu::KernelBuilder::new("doc").finish().unwrap();
    /// let launch = trueno_gpu::interp::Launch::new(kernel).grid(16);
    /// ```
    #[must_use]
    pub fn grid(mut self, blocks: u32) -> Self {
        self.blocks = blocks;
        self
    }

    /// Returns the number of blocks.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Adds the next argument.
    ///
    /// ```
    /// # let kernel = &trueno_gpu::KernelBuilder::new("doc").finish().unwrap();
    /// let launch = trueno_gpu::interp::Launch::new(kernel).arg(4096u32).arg(1u64 << 40);
    /// ```
    #[must_use]
    pub fn arg(mut self, arg: impl Into<Arg>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Sets the order in which lanes act where it makes a difference.
    ///
    /// ```
    /// # let kernel = &trueno_gpu::KernelBuilder::new("doc").finish().unwrap();
    /// use trueno_gpu::interp::{LaneOrder, Launch};
    /// let launch = Launch::new(kernel).lane_order(LaneOrder::Descending);
    /// ```
    #[must_use]
    pub fn lane_order(mut self, order: LaneOrder) -> Self {
        self.order = order;
        self
    }

    /// Sets the limit on the steps of each warp, 100 million by default and at most 2^32 - 1. A step is an instruction
    /// or a change of control flow, so there are a few more steps than counted instructions.
    ///
    /// ```
    /// # let kernel = &trueno_gpu::KernelBuilder::new("doc").finish().unwrap();
    /// let launch = trueno_gpu::interp::Launch::new(kernel).step_limit(50_000);
    /// ```
    #[must_use]
    pub fn step_limit(mut self, steps: u64) -> Self {
        self.step_limit = u32::try_from(steps).unwrap_or(u32::MAX);
        self
    }

    /// Sets the number of blocks that may run at once. With 1 they run in ascending order on the calling thread, so
    /// that even a kernel that depends on the order of blocks gives the same result each time.
    ///
    /// ```
    /// # let kernel = &trueno_gpu::KernelBuilder::new("doc").finish().unwrap();
    /// let launch = trueno_gpu::interp::Launch::new(kernel).threads(1);
    /// ```
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads.max(1));
        self
    }

    /// Runs the grid.
    ///
    /// # Errors
    /// The fault of the lowest block that has one. Bytes that blocks wrote before it stay in memory.
    ///
    /// ```
    /// use trueno_gpu::interp::{FaultKind, Launch, DeviceMemory};
    /// use trueno_gpu::kernels::{Kernel, SameFillKernel};
    /// let fault = Launch::new(SameFillKernel::new().ir()).run(&mut DeviceMemory::new()).unwrap_err();
    /// assert!(matches!(fault.kind, FaultKind::BadLaunch(_)), "three arguments are missing");
    /// ```
    pub fn run(&self, memory: &mut DeviceMemory) -> Result<LaunchReport, Fault> {
        let fail = |kind| Fault { kernel: self.kernel.name.clone(), site: None, kind };
        let warps_per_block = self.kernel.warps_per_block;
        let params = self.params(memory).map_err(|e| fail(FaultKind::BadLaunch(e)))?;
        let program = self.kernel.lowered().of(self.kernel);
        let shape = warp::GridShape { blocks: self.blocks, warps_per_block, params: &params };
        let cx = warp::LaunchContext { program, shape, memory, order: self.order, step_limit: self.step_limit };
        grid::run(&cx, self.threads)
    }

    /// Returns the arguments as bits.
    fn params(&self, memory: &DeviceMemory) -> Result<Vec<u64>, String> {
        let params = &self.kernel.params;
        if params.len() != self.args.len() {
            return Err(format!("{} arguments for {} parameters", self.args.len(), params.len()));
        }
        let bits = params.iter().zip(&self.args).map(|(param, arg)| match (param.ty, *arg) {
            (ParamTy::U32, Arg::U32(value)) => Ok(u64::from(value)),
            (ParamTy::U64, Arg::U64(value)) => Ok(value),
            (ParamTy::Pointer(_), Arg::Buffer(buffer)) => match memory.address(buffer) {
                Some(start) => Ok(start),
                None => Err(format!("parameter `{}`: the buffer belongs to another memory", param.name)),
            },
            (ty, arg) => Err(format!("parameter `{}` is {ty:?}, the argument {arg:?}", param.name)),
        });
        bits.collect()
    }
}
