//! Lazy restore: VMs and processes run at once, and their memory comes from a page archive when it is touched.
//!
//! A VMM that restores a snapshot registers its guest memory with a userfaultfd, connects to a Unix socket, and sends the
//! list of its memory regions with the file descriptor: [Firecracker's protocol]. [`LazyRestore`] answers the page faults
//! from any [`Pages`], such as an [`Archive`](trueno_zram_archive::Archive), restores what lies near them and, in the
//! background, everything else. Zero pages are mapped, not copied. Memory that the guest returned through a balloon device
//! reads as zeros afterwards, never as old content. A page that is damaged fails loudly: the access is poisoned or the VM
//! is ended, and it never sees other bytes. Once all memory is restored, the handler withdraws, and the VM depends on it no
//! longer.
//!
//! An [`Archive`](trueno_zram_archive::Archive) with [`Verify::Touched`](trueno_zram_archive::Verify::Touched) answers a fault before
//! the page's group is proven. A thread of the lowest priority makes the proofs, and [`OnDisproof`] says what happens to a VM that
//! has pages which failed theirs.
//!
//! ```no_run
//! use std::os::unix::net::UnixListener;
//! use trueno_zram_archive::Archive;
//! use trueno_zram_restore::{LazyRestore, RestoreOptions};
//!
//! let restore = LazyRestore::new(Archive::open("guest.mem.lz4")?, RestoreOptions::default());
//! let listener = UnixListener::bind("uffd.sock")?;
//! // Now load the snapshot with the memory backend `Uffd` and the path of the socket.
//! restore.serve_all(&listener, None, |ended| println!("{ended:?}"))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`LazyRestore`] restores VMs. [`Touches`] names the memory to restore first.
//! - [`ProcessRestore`] restores processes, which move, unmap and fork their memory meanwhile. Each is handed over as a [`Process`]
//!   with its [`MissingMemory`]. The crate `trueno-zram-criu` does that for processes that CRIU restores.
//! - [`RestoreOptions`] are for both, and both report [`Notice`]s meanwhile, and a [`RestoreReport`] at the end.
//!
//! [Firecracker's protocol]: https://github.com/firecracker-microvm/firecracker/blob/main/docs/snapshotting/handling-page-faults-on-snapshot-resume.md
#![deny(unsafe_code)]
#![cfg(target_os = "linux")]

mod disproofs;
mod error;
mod event;
mod gate;
mod latency;
mod lazy_memory;
mod on_drop;
mod options;
mod process_handle;
mod processes;
mod read_intact;
mod report;
mod uffd;
mod unit_states;
mod vms;
mod wake;

pub use error::{Error, RegionProblem};
pub use latency::{FaultLatencies, LatencyHistogram};
pub use options::{OnDamage, OnDisproof, RestoreOptions};
pub use process_handle::Process;
pub use processes::{MemoryExtent, MissingMemory, ProcessRestore};
pub use report::{Ending, Notice, RestoreReport};
pub use trueno_zram_archive::{Image, Pages};
pub use vms::{LazyRestore, Touches};

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
