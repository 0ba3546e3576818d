//! The launch shape of the page kernels: warps per block, by device.

use trueno_gpu::Target;

use super::device::DeviceLimits;

/// The number of warps per block of the page kernels, and the lowest target that supports it.
///
/// ```
/// use trueno_zram_core::gpu::raw::LaunchShape;
/// assert_eq!((LaunchShape::EVERYWHERE.warps_per_block, LaunchShape::WIDE.warps_per_block), (4, 28));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Warps per block.
    pub warps_per_block: u32,
    /// The target that the kernel is validated for.
    pub target: Target,
}

impl LaunchShape {
    /// Four warps with static shared memory. Runs on every supported device.
    ///
    /// ```
    /// use trueno_zram_core::gpu::raw::LaunchShape;
    /// assert!(LaunchShape::EVERYWHERE.shared_bytes() <= 48 * 1024, "every device has 48 KiB");
    /// ```
    pub const EVERYWHERE: Self = Self { warps_per_block: 4, target: Target::SM_70 };
    /// One block that fills a multiprocessor: the fastest shape on Hopper.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::packed::{Mode, TableStores};
    /// use trueno_zram_core::gpu::raw::{LaunchShape, GpuContext, PageCompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// // On a device without that much shared memory this is an error.
    /// let (format, stores) = (PageFormat::Zstd, TableStores::ReadBack);
    /// let compressor = PageCompressor::with_shape(&context, format, Mode::Fast, stores, LaunchShape::WIDE)?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub const WIDE: Self = Self { warps_per_block: 28, target: Target::SM_90 };
    /// Maximum shared memory per warp of the page kernels.
    const WARP_SHARED_BYTES: u32 = 8 * 1024;
    /// Shared memory per block lost to the alignment of the pages.
    const SLACK_BYTES: u32 = 3 * 1024;

    /// Returns the maximum shared memory of a block of the page kernels.
    ///
    /// ```
    /// use trueno_zram_core::gpu::raw::LaunchShape;
    /// assert!(LaunchShape::WIDE.shared_bytes() <= 227 * 1024);
    /// ```
    #[must_use]
    pub const fn shared_bytes(self) -> u32 {
        self.warps_per_block * Self::WARP_SHARED_BYTES + Self::SLACK_BYTES
    }

    /// Returns the best shape for a device: the wide one, if the device has enough shared memory and is new enough.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{LaunchShape, GpuContext};
    /// let context = GpuContext::new(0)?;
    /// let shape = LaunchShape::best_for(context.info().compute_capability, context.limits());
    /// println!("{} warps per block", shape.warps_per_block);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn best_for(compute_capability: (u32, u32), limits: &DeviceLimits) -> Self {
        let (major, minor) = compute_capability;
        let wide = Self::WIDE;
        // Some devices newer than Hopper have less shared memory, so both are checked.
        let fits = Target::for_capability(major, minor)
            .is_some_and(|target| is_at_least(target, wide.target) && target.max_shared_bytes() >= wide.shared_bytes());
        if fits && limits.shared_bytes_per_block >= wide.shared_bytes() { wide } else { Self::EVERYWHERE }
    }
}

/// Returns `true` if a device of target `target` runs code generated for `wanted`.
pub(super) fn is_at_least(target: Target, wanted: Target) -> bool {
    let place = |target| Target::ALL.iter().position(|known| *known == target);
    place(target) >= place(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(shared_kib: u32) -> DeviceLimits {
        DeviceLimits { multiprocessors: 132, shared_bytes_per_block: shared_kib * 1024, driver_version: 13_000 }
    }

    #[test]
    fn wide_shape_needs_enough_shared_memory() {
        for (capability, shared_kib, wide) in [
            ((7, 0), 96, false),
            ((7, 5), 64, false),
            ((8, 0), 163, false),
            ((8, 6), 99, false),
            ((9, 0), 227, true),
            ((9, 0), 226, false),
            ((10, 0), 227, true),
            ((10, 3), 227, true),
            ((12, 0), 99, false),
            // Newer than Hopper, of a kind without that much memory, whatever the driver reports.
            ((12, 0), 227, false),
            ((8, 9), 227, false),
        ] {
            let expected = if wide { LaunchShape::WIDE } else { LaunchShape::EVERYWHERE };
            assert_eq!(LaunchShape::best_for(capability, &limits(shared_kib)), expected, "{capability:?}");
        }
    }
}
