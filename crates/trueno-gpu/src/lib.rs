//! GPU kernels that compress and restore 4 KiB memory pages, and the toolkit that they are written with.
//!
//! The crate has two parts:
//!
//! - **Kernels** ([`kernels`]): LZ4 and Zstandard for batches of pages, in the standard formats. A kernel is emitted as
//!   PTX text, which the NVIDIA driver compiles for any device of compute capability 7.0 or newer.
//! - **Toolkit**: kernels are Rust code that builds a tree of plain data. The toolkit validates the tree, writes it as
//!   PTX, and also runs it on the CPU, where every memory access and race is checked.
//!
//! The crate needs neither CUDA nor LLVM, and has no unsafe code. It does not launch anything on a device: the crate
//! `trueno-zram-codec` does, behind an API for batches of pages.
//!
//! # Using a kernel
//! | kernel | work |
//! | --- | --- |
//! | [`Lz4WarpCompressKernel`], [`ZstdWarpCompressKernel`] | pages to packed LZ4 blocks or Zstandard frames, with an index |
//! | [`Lz4WarpDecompressKernel`], [`ZstdWarpDecompressKernel`] | packed pages back to pages, with a status for each |
//! | [`ZstdGroupOrderKernel`], then [`ZstdGroupDecompressKernel`] | the same for large Zstandard batches, about twice as fast |
//! | [`LaneRuleKernel`] | a probe that decides which form of the compressors a device gets |
//!
//! A compressor writes its pages one behind the other in page order. Pages that repeat 8 bytes or do not shrink are
//! stored as such ([`kernels::packed`]).
//!
//! To launch one with the CUDA driver, load the text of [`Kernel::emit_ptx_for`] with the device's
//! [`Target`] as a module. Launch [`Kernel::name`] with blocks of [`Kernel::block`] threads, up to [`Kernel::grid`]
//! blocks, and [`Kernel::dynamic_shared_bytes`]. Warps draw pages from a counter, so a grid of as many blocks as the
//! device holds at once serves any batch. The kernel's documentation lists the parameters.
//!
//! [`Lz4WarpCompressKernel`]: kernels::lz4::Lz4WarpCompressKernel
//! [`ZstdWarpCompressKernel`]: kernels::zstd::ZstdWarpCompressKernel
//! [`Lz4WarpDecompressKernel`]: kernels::lz4::Lz4WarpDecompressKernel
//! [`ZstdWarpDecompressKernel`]: kernels::zstd::ZstdWarpDecompressKernel
//! [`ZstdGroupOrderKernel`]: kernels::zstd::ZstdGroupOrderKernel
//! [`ZstdGroupDecompressKernel`]: kernels::zstd::ZstdGroupDecompressKernel
//! [`LaneRuleKernel`]: kernels::LaneRuleKernel
//! [`Kernel::emit_ptx_for`]: kernels::Kernel::emit_ptx_for
//! [`Kernel::name`]: kernels::Kernel::name
//! [`Kernel::block`]: kernels::Kernel::block
//! [`Kernel::grid`]: kernels::Kernel::grid
//! [`Kernel::dynamic_shared_bytes`]: kernels::Kernel::dynamic_shared_bytes
//!
//! ```
//! use trueno_gpu::kernels::Kernel;
//! use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Lz4WarpDecompressKernel};
//!
//! // For a device: the text for the driver, and the shape of the launch.
//! let compress = Lz4WarpCompressKernel::new(65_536);
//! let ptx = compress.emit_ptx();
//! assert!(ptx.contains(".entry lz4_warp_compress"));
//! assert_eq!((compress.grid(1000), compress.block()), (250, 128));
//!
//! // Without a device: the interpreter runs the same kernels on the CPU.
//! let page: [u8; 4096] = std::array::from_fn(|i| b"to be or not to be; "[i % 20]);
//! let packed = compress.interpret(&[page], |launch| launch)?;
//! let mut restored = [[0; 4096]];
//! let decompress = Lz4WarpDecompressKernel::new(65_536);
//! decompress.interpret(&packed.packed, &packed.index, &mut restored, |launch| launch)?;
//! assert!(restored == [page]);
//! # Ok::<(), trueno_gpu::interp::Fault>(())
//! ```
//!
//! # Writing a kernel
//! [`KernelBuilder`] builds the tree ([`ir`]). Registers borrow the builder and are `Copy`. Operators append
//! instructions, so the code reads like the algorithm. This kernel counts the zero words of each page:
//! ```
//! use trueno_gpu::{emit, KernelBuilder, Reg};
//!
//! /// Returns the sum over all lanes, in every lane.
//! fn warp_sum<'k>(k: &'k KernelBuilder, value: Reg<'k, u32>) -> Reg<'k, u32> {
//!     let sum = k.var(value);
//!     for distance in [16u32, 8, 4, 2, 1] {
//!         sum.set(sum + sum.shfl_xor(distance));
//!     }
//!     sum.get()
//! }
//!
//! let k = KernelBuilder::new("count_zero_words").with_warps_per_block(4);
//! let (pages, counts) = (k.param_ptr::<u32>("pages"), k.param_ptr::<u32>("counts"));
//! let page_count = k.param_u32("page_count");
//!
//! let lane = k.lane_id().named("lane");
//! let page = (k.block_id() * 4 + k.warp_id()).named("page");
//! k.if_uniform(page.lt(page_count), || {
//!     k.section("count in 8 rows of 128 words");
//!     let row = pages.step(page, 4096).step(lane, 16);
//!     let zeros = k.var(0u32).named("zeros");
//!     for i in 0..8 {
//!         for word in row.byte_offset(i * 512).load_vec::<4>() {
//!             k.when(word.eq(0)).set(zeros, zeros + 1);
//!         }
//!     }
//!     let total = warp_sum(&k, *zeros);
//!     k.when(lane.eq(0)).store(counts.index(page), total);
//! });
//!
//! let kernel = k.finish()?;
//! let ptx = emit(&kernel);
//! assert!(ptx.contains("@%p1 add.u32 %zeros, %zeros, 1;"));
//! assert!(ptx.contains("bra.uni"));
//! # Ok::<(), trueno_gpu::ValidateError>(())
//! ```
//!
//! - **Values** are assigned once; a [`Var`] is a variable. Operands are registers, variables or Rust constants
//!   ([`Operand`]). Types are `u32`, `i32`, `u64`, `f32` and predicates ([`Pred`]); widening is explicit, casts of the
//!   same bits are free.
//! - **Addresses** ([`Addr`]) are typed by state space and element. Constant offsets go into the instruction. Shared
//!   memory is declared as regions per warp or block ([`KernelBuilder::shared_per_warp`]); beyond 48 KiB it becomes
//!   dynamic.
//! - **Control flow** is structured. The `_uniform` forms become `bra.uni`, and the validator proves that all lanes
//!   agree: conditions come from constants, parameters, votes and shuffles by a uniform index, never from the lane's
//!   own number. Predicate what diverges: [`KernelBuilder::when`].
//! - **Mistakes** do not compile, or become a [`ValidateError`] with the path of the statement
//!   ([`validate`](mod@validate)). Only a [`ValidKernel`] can be emitted or run.
//! - **Instructions** are rows of one table ([`inst`]), with their spelling and their meaning over 32 lanes.
//!   [`emit`](fn@emit) and [`interp`] use the same rows. There are those that the kernels of this crate need: warp
//!   operations of all 32 lanes, atomic sums and ors of `u32`, no textures, no surfaces, no double precision.
#![forbid(unsafe_code)]

// Files that the tests of other crates include name this crate as they do.
#[cfg(test)]
extern crate self as trueno_gpu;

mod addr;
mod builder;
mod emit;
pub mod inst;
pub mod interp;
pub mod ir;
pub mod kernels;
mod target;
mod types;
pub mod validate;
mod value;

pub use addr::Addr;
pub use builder::{Guarded, KernelBuilder, LoopLabel, ScopeLabel, SharedPerBlock, SharedPerWarp};
pub use emit::{emit, emit_for};
pub use target::{PtxVersion, Target};
pub use types::{Element, Global, Integer, Logic, Scalar, Shared, Space, Value, Word};
pub use types::{MemTy, RegClass, StateSpace};
pub use validate::{ValidKernel, ValidateError};
pub use value::{Operand, Pred, Reg, Var};

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
