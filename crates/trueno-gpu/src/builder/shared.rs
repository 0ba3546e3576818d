//! Declares shared memory: named regions per warp or per block.

use super::KernelBuilder;
use crate::addr::Addr;
use crate::inst::Op;
use crate::ir::{self, Inst, RegionId, RegionInfo, RegionScope};
use crate::types::{Element, Shared};
use crate::value::{Operand, Reg};
use std::marker::PhantomData;

/// A region of which each warp of the block has its own copy.
///
/// ```
/// let k = trueno_gpu::KernelBuilder::new("doc").with_warps_per_block(4);
/// let page = k.shared_per_warp("page", 4096, 4096);
/// let own = page.base::<u32>(k.warp_id());
/// own.index(k.lane_id()).store(0);
/// let kernel = k.finish().unwrap();
/// assert_eq!(kernel.shared.bytes, 4 * 4096);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct SharedPerWarp<'k> {
    k: &'k KernelBuilder,
    region: RegionId,
    stride: u32,
}

/// A region that the warps of a block share.
///
/// ```
/// let k = trueno_gpu::KernelBuilder::new("doc");
/// let total = k.shared_per_block("total", 4, 4);
/// total.base::<u32>().reduce(trueno_gpu::ir::AtomOp::Add, 1u32);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct SharedPerBlock<'k> {
    k: &'k KernelBuilder,
    region: RegionId,
}

impl KernelBuilder {
    /// Declares a region of `bytes` for each warp of the block, aligned to `align` (a power of two).
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let table = k.shared_per_warp("table", 4096, 4096);
    /// # let _ = table;
    /// ```
    #[must_use]
    pub fn shared_per_warp(&self, name: &str, bytes: u32, align: u32) -> SharedPerWarp<'_> {
        let region = self.declare_region(name, RegionScope::Warp, bytes, align);
        // A size or alignment that does not round up is rejected when the layout is computed.
        let stride = bytes.checked_next_multiple_of(align).unwrap_or(0);
        SharedPerWarp { k: self, region, stride }
    }

    /// Declares a region of `bytes` for the whole block, aligned to `align` (a power of two).
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let sums = k.shared_per_block("sums", 128, 4);
    /// # let _ = sums;
    /// ```
    #[must_use]
    pub fn shared_per_block(&self, name: &str, bytes: u32, align: u32) -> SharedPerBlock<'_> {
        SharedPerBlock { k: self, region: self.declare_region(name, RegionScope::Block, bytes, align) }
    }

    fn declare_region(&self, name: &str, scope: RegionScope, bytes: u32, align: u32) -> RegionId {
        let regions = &mut self.state.borrow_mut().regions;
        regions.push(RegionInfo { name: name.to_owned(), scope, bytes, align, stride: 0, offset: 0 });
        RegionId(u32::try_from(regions.len() - 1).expect("a kernel has few regions"))
    }

    fn shared_base(&self, region: RegionId) -> Reg<'_, u32> {
        let dst = self.fresh();
        self.push(Inst::SharedBase { dst: dst.id, region });
        dst
    }
}

fn addr<'k, E: Element>(base: Reg<'k, u32>) -> Addr<'k, Shared, E> {
    Addr { k: base.k, base: base.id, offset: 0, ty: PhantomData }
}

impl<'k> SharedPerWarp<'k> {
    /// Returns the start of the given warp's part ([`KernelBuilder::warp_id`] for its own). Call it once and keep the
    /// result: each call computes it again.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let page = k.shared_per_warp("page", 4096, 16).base::<u8>(k.warp_id());
    /// # let _ = page;
    /// ```
    #[must_use]
    pub fn base<E: Element>(self, warp: impl Operand<'k, u32>) -> Addr<'k, Shared, E> {
        let first = self.k.shared_base(self.region);
        let args = [warp.lower(self.k), ir::Operand::Imm(u64::from(self.stride)), ir::Operand::Reg(first.id)];
        addr(self.k.pure(Op::MadLoU32, &args))
    }
}

impl<'k> SharedPerBlock<'k> {
    /// Returns the start of the region.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let sums = k.shared_per_block("sums", 128, 4).base::<u32>();
    /// # let _ = sums;
    /// ```
    #[must_use]
    pub fn base<E: Element>(self) -> Addr<'k, Shared, E> {
        addr(self.k.shared_base(self.region))
    }
}
