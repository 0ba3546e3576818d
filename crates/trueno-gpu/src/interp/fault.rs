//! Faults that stop a run, with their place in the kernel and in the grid.

use crate::ir::Path;
use crate::types::StateSpace;
use std::fmt;

/// A set of lanes of a warp: bit `i` is lane `i`.
///
/// ```
/// use trueno_gpu::interp::LaneSet;
/// assert_eq!(LaneSet(0b1000_0111).to_string(), "lanes 0-2, 7");
/// assert_eq!(LaneSet(1 << 31).to_string(), "lane 31");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneSet(pub u32);

impl LaneSet {
    /// All 32 lanes.
    ///
    /// ```
    /// assert_eq!(trueno_gpu::interp::LaneSet::ALL.to_string(), "lanes 0-31");
    /// ```
    pub const ALL: Self = Self(u32::MAX);
}

impl fmt::Display for LaneSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.count_ones() {
            0 => return f.write_str("no lane"),
            1 => f.write_str("lane ")?,
            _ => f.write_str("lanes ")?,
        }
        let mut lane = 0;
        let mut separator = "";
        while lane < 32 {
            let run = (self.0 >> lane).trailing_ones();
            match run {
                0 => {}
                1 => write!(f, "{separator}{lane}")?,
                _ => write!(f, "{separator}{lane}-{}", lane + run - 1)?,
            }
            if run > 0 {
                separator = ", ";
            }
            lane += run + 1;
        }
        Ok(())
    }
}

/// An address, and the buffer or shared region that it lies in or just past.
///
/// ```
/// use trueno_gpu::interp::Location;
/// use trueno_gpu::StateSpace;
/// let at = Location { space: StateSpace::Shared, address: 0x1404, name: Some("table".into()), offset: 4 };
/// assert_eq!(at.to_string(), "shared 0x1404 (`table` + 4)");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The state space.
    pub space: StateSpace,
    /// The address as the kernel computed it.
    pub address: u64,
    /// The buffer or region; `None` if there is none nearby.
    pub name: Option<String>,
    /// Bytes from its start; from the start of the warp's own part, if the region is per warp.
    pub offset: u64,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = match self.space {
            StateSpace::Global => "global",
            StateSpace::Shared => "shared",
        };
        write!(f, "{space} {:#x}", self.address)?;
        match &self.name {
            Some(name) => write!(f, " (`{name}` + {})", self.offset),
            None => Ok(()),
        }
    }
}

/// The kind of a memory access.
///
/// ```
/// assert_eq!(trueno_gpu::interp::Access::Atomic.to_string(), "atomic");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// A store that is declared as conflicting.
    ConflictingWrite,
    /// An atomic or reduction.
    Atomic,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ConflictingWrite => "conflicting write",
            Self::Atomic => "atomic",
        })
    }
}

/// The side that made the earlier access of a race.
///
/// ```
/// use trueno_gpu::interp::{LaneSet, Accessor};
/// assert_eq!(Accessor::Lanes(LaneSet(1)).to_string(), "lane 0 of the same warp");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accessor {
    /// Other lanes of the same warp. If several lanes accessed the byte, all except the faulting one.
    Lanes(LaneSet),
    /// Another warp of the block, which ran earlier since the last block barrier.
    OtherWarp,
}

impl fmt::Display for Accessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lanes(lanes) => write!(f, "{lanes} of the same warp"),
            Self::OtherWarp => f.write_str("another warp of the block"),
        }
    }
}

/// The reason that a run stopped.
///
/// ```
/// use trueno_gpu::interp::FaultKind;
/// assert_eq!(FaultKind::StepLimit { limit: 10 }.to_string(), "more than 10 steps");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// The launch does not fit the kernel: arguments or buffers.
    #[error("bad launch: {0}")]
    BadLaunch(String),
    /// An access that is not completely inside a buffer or the shared memory of the block.
    #[error("{access} of {bytes} bytes out of bounds at {at}")]
    OutOfBounds {
        /// Kind of access.
        access: Access,
        /// First address of the lowest faulting lane.
        at: Location,
        /// Number of bytes per lane.
        bytes: u32,
    },
    /// An access whose address is not a multiple of its size.
    #[error("misaligned {access} of {bytes} bytes at {at}")]
    Misaligned {
        /// Kind of access.
        access: Access,
        /// Address of the lowest faulting lane.
        at: Location,
        /// Number of bytes per lane.
        bytes: u32,
    },
    /// A read of memory that was never written.
    #[error("read of uninitialised memory at {at}")]
    UninitialisedMemory {
        /// First such byte.
        at: Location,
    },
    /// Two accesses of the same shared byte, at least one of them a write, without a barrier that orders them.
    #[error("race on {at}: {access} against an earlier {earlier} by {earlier_by}, with no barrier between")]
    SharedRace {
        /// First such byte.
        at: Location,
        /// The access that faulted.
        access: Access,
        /// The earlier access.
        earlier: Access,
        /// The side that made the earlier access.
        earlier_by: Accessor,
    },
    /// Two lanes of one store that is not declared as conflicting write the same byte. In global memory, equal values
    /// are allowed.
    #[error("several lanes store to {at}, and the store is not declared as conflicting")]
    StoreConflict {
        /// The byte.
        at: Location,
    },
    /// A load that promises the same address in all lanes, but whose lanes disagree.
    #[error("the lanes of a uniform load have different addresses")]
    DivergentUniformLoad,
    /// A shuffle, vote, match, reduction or warp barrier that not all lanes of the warp reach together.
    #[error("an operation of the whole warp, but only {reached} reached it")]
    WarpOperationMissed {
        /// Lanes that reached it.
        reached: LaneSet,
    },
    /// A block barrier that some lanes of the warp do not reach, or that another warp never reaches.
    #[error("block barrier reached by {reached} of this warp{}", match .ended_warp { Some(w) => format!("; warp {w} ended without it"), None => String::new() })]
    BlockBarrierMissed {
        /// Lanes of this warp that reached it.
        reached: LaneSet,
        /// A warp that ended while this one was waiting.
        ended_warp: Option<u32>,
    },
    /// A branch that promises to be uniform, but whose active lanes disagree.
    #[error("uniform branch, but only {taking} of {active} take it")]
    DivergentUniformBranch {
        /// Lanes whose condition holds.
        taking: LaneSet,
        /// Lanes active there.
        active: LaneSet,
    },
    /// A register that is read in a lane that has not written it.
    #[error("register {register} is read before it is written")]
    UnwrittenRegister {
        /// Name or number of the register.
        register: String,
    },
    /// A warp ran more steps than the launch allows.
    #[error("more than {limit} steps")]
    StepLimit {
        /// The limit.
        limit: u64,
    },
}

/// The place of a fault in the kernel and in the grid.
///
/// ```
/// use trueno_gpu::interp::{LaneSet, FaultSite};
/// use trueno_gpu::ir::{BlockKind, Path};
/// let path = Path::default().child(BlockKind::Body, 3);
/// let site = FaultSite { path, section: Some("copy".into()), block: 1, warp: 2, lanes: LaneSet(4) };
/// assert_eq!(site.to_string(), "at body[3] (section \"copy\"), block 1, warp 2, lane 2");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultSite {
    /// The statement.
    pub path: Path,
    /// The last section comment before it.
    pub section: Option<String>,
    /// The block.
    pub block: u32,
    /// The warp of the block.
    pub warp: u32,
    /// The lanes at fault.
    pub lanes: LaneSet,
}

impl fmt::Display for FaultSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}", self.path)?;
        if let Some(section) = &self.section {
            write!(f, " (section {section:?})")?;
        }
        write!(f, ", block {}, warp {}, {}", self.block, self.warp, self.lanes)
    }
}

/// A fault that stopped a run.
///
/// ```
/// use trueno_gpu::interp::{Fault, FaultKind};
/// let fault = Fault { kernel: "copy".into(), site: None, kind: FaultKind::StepLimit { limit: 5 } };
/// assert_eq!(fault.to_string(), "kernel `copy`: more than 5 steps");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kernel's name.
    pub kernel: String,
    /// The place of the fault; `None` if nothing ran yet.
    pub site: Option<Box<FaultSite>>,
    /// The kind of fault.
    pub kind: FaultKind,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel `{}`", self.kernel)?;
        if let Some(site) = &self.site {
            write!(f, " {site}")?;
        }
        write!(f, ": {}", self.kind)
    }
}

impl std::error::Error for Fault {}

/// A fault as the engine raises it: lanes and reason. The caller adds the place.
#[derive(Debug)]
pub(super) struct Trap {
    pub(super) lanes: LaneSet,
    pub(super) kind: FaultKind,
}

/// The result of a step. Boxed, so that the path without faults carries one word.
pub(super) type StepResult<T = ()> = Result<T, Box<Trap>>;

/// Raises a fault.
#[cold]
pub(super) fn trap<T>(lanes: u32, kind: FaultKind) -> StepResult<T> {
    Err(Box::new(Trap { lanes: LaneSet(lanes), kind }))
}
