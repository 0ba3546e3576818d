//! Shared memory as data: named regions and their places in the memory of the block.

/// Static shared memory that a block may have on every device.
pub(crate) const STATIC_LIMIT_BYTES: u32 = 48 * 1024;

/// The largest alignment requested from the driver. The kernel makes larger alignments itself, from slack. On an H200,
/// where the system uses the first 1024 bytes, a larger `.align` is accepted but not honoured.
pub(crate) const GRANTED_ALIGN: u32 = 1024;

/// A region: an index into [`SharedLayout::regions`].
///
/// ```
/// use trueno_gpu::{KernelBuilder, ir::{Inst, RegionId, Stmt}};
/// let k = KernelBuilder::new("doc");
/// let _ = k.shared_per_block("sums", 128, 4).base::<u32>();
/// let kernel = k.finish().unwrap();
/// let Stmt::Inst { inst: Inst::SharedBase { region: RegionId(i), .. }, .. } = kernel.body[0] else { unreachable!() };
/// assert_eq!(kernel.shared.regions[i as usize].name, "sums");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegionId(pub u32);

/// The owner of each copy of a region.
///
/// ```
/// use trueno_gpu::{KernelBuilder, ir::RegionScope};
/// let k = KernelBuilder::new("doc").with_warps_per_block(4);
/// let _ = k.shared_per_warp("page", 4096, 16);
/// let shared = k.finish().unwrap().into_ir().shared;
/// assert_eq!((shared.regions[0].scope, shared.bytes), (RegionScope::Warp, 4 * 4096));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionScope {
    /// Each warp of the block has its own.
    Warp,
    /// The block has one.
    Block,
}

/// A named region of shared memory.
///
/// ```
/// let k = trueno_gpu::KernelBuilder::new("doc").with_warps_per_block(2);
/// let _ = k.shared_per_warp("bits", 100, 16);
/// let region = &k.finish().unwrap().shared.regions[0];
/// assert_eq!((region.bytes, region.stride), (100, 112)); // the next warp's part is aligned too
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionInfo {
    /// Name.
    pub name: String,
    /// The owner of each copy.
    pub scope: RegionScope,
    /// Size in bytes; for a region per warp, of one warp's part.
    pub bytes: u32,
    /// Alignment, a power of two.
    pub align: u32,
    /// Bytes from one warp's part to the next: the size, rounded up to the alignment.
    pub stride: u32,
    /// Offset from the aligned start of the block's shared memory.
    pub offset: u32,
}

/// The shared memory of a block.
///
/// Up to 48 KiB it is static. Beyond that it is dynamic, and the launch must request [`SharedLayout::launch_bytes`].
/// The kernel rounds its start up to alignments above 1024 itself, using slack that [`SharedLayout::total_bytes`]
/// includes.
///
/// ```
/// let k = trueno_gpu::KernelBuilder::new("doc").with_warps_per_block(4);
/// let _ = (k.shared_per_warp("page", 4096, 16), k.shared_per_block("total", 4, 4));
/// let shared = k.finish().unwrap().into_ir().shared;
/// assert_eq!(shared.total_bytes(), 4 * 4096 + 4);
/// assert!(!shared.dynamic);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedLayout {
    /// Regions, by [`RegionId`].
    pub regions: Vec<RegionInfo>,
    /// Bytes from the aligned start to the end of the last region.
    pub bytes: u32,
    /// The largest alignment of a region.
    pub align: u32,
    /// `true` if the memory is dynamic.
    pub dynamic: bool,
}

impl SharedLayout {
    /// Places regions in order of decreasing alignment, which wastes little space between them, and computes their
    /// `stride` and `offset`. Returns `None` if a size or the sum exceeds 32 bits, or an alignment is not a power of
    /// two.
    ///
    /// ```
    /// use trueno_gpu::ir::{RegionInfo, RegionScope, SharedLayout};
    /// let region = |name: &str, scope, bytes, align| RegionInfo { name: name.into(), scope, bytes, align, stride: 0, offset: 0 };
    /// let layout = SharedLayout::of(
    ///     vec![region("total", RegionScope::Block, 4, 4), region("page", RegionScope::Warp, 4096, 4096)],
    ///     4,
    /// ).unwrap();
    /// assert_eq!(layout.regions[1].offset, 0);
    /// assert_eq!(layout.regions[0].offset, 4 * 4096);
    /// assert!(!layout.dynamic);
    /// ```
    #[must_use]
    pub fn of(mut regions: Vec<RegionInfo>, warps_per_block: u32) -> Option<Self> {
        let mut order: Vec<usize> = (0..regions.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(regions[i].align));
        let mut end = 0u32;
        let mut align = 1;
        for i in order {
            let region = &mut regions[i];
            if !region.align.is_power_of_two() {
                return None;
            }
            align = align.max(region.align);
            region.stride = region.bytes.checked_next_multiple_of(region.align)?;
            region.offset = end.checked_next_multiple_of(region.align)?;
            let copies = match region.scope {
                RegionScope::Warp => warps_per_block,
                RegionScope::Block => 1,
            };
            end = region.offset.checked_add(region.stride.checked_mul(copies)?)?;
        }
        let mut layout = Self { regions, bytes: end, align, dynamic: false };
        layout.dynamic = layout.total_bytes() > STATIC_LIMIT_BYTES;
        Some(layout)
    }

    /// Returns the dynamic shared memory to request at launch, in bytes; 0 if the memory is static.
    ///
    /// ```
    /// assert_eq!(trueno_gpu::ir::SharedLayout::default().launch_bytes(), 0);
    /// ```
    #[must_use]
    pub fn launch_bytes(&self) -> u32 {
        if self.dynamic { self.total_bytes() } else { 0 }
    }

    /// Returns all shared memory of the block in bytes, including the slack for large alignments.
    ///
    /// ```
    /// assert_eq!(trueno_gpu::ir::SharedLayout::default().total_bytes(), 0);
    /// ```
    #[must_use]
    pub fn total_bytes(&self) -> u32 {
        self.bytes.saturating_add(self.align.saturating_sub(GRANTED_ALIGN))
    }
}
