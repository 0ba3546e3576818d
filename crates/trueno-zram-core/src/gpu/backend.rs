//! Which back end suits a batch, and whether offloading it can pay.

use crate::page::PAGE_SIZE;

/// What a batch is compressed on.
///
/// ```
/// use trueno_zram_core::gpu::{select_backend, BackendSelection, gpu_available};
///
/// # let batch_size = 5000;
/// let backend = select_backend(batch_size, gpu_available());
///
/// match backend {
///     BackendSelection::Gpu => { /* use GPU */ }
///     BackendSelection::Simd => { /* use CPU SIMD */ }
///     BackendSelection::Scalar => { /* use scalar */ }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackendSelection {
    /// The GPU.
    Gpu,
    /// The CPU, with its vector instructions and all cores.
    Simd,
    /// The CPU, one page after the other.
    Scalar,
}

/// From this many pages on, the GPU is worth its launch and transfers.
const GPU_MIN_PAGES: usize = 1000;
/// From this many pages on, the vector path is worth its set-up.
const SIMD_MIN_PAGES: usize = 4;

/// Picks the back end for a batch of `batch_size` pages: the GPU from 1000 pages on if there is one, else the CPU's
/// vector path from 4 pages on, else its scalar path.
///
/// ```
/// use trueno_zram_core::gpu::{select_backend, gpu_available};
///
/// let batch_size = 5000;
/// let has_gpu = gpu_available();
///
/// let backend = select_backend(batch_size, has_gpu);
/// println!("Selected backend: {:?}", backend);
/// // Output: Gpu (for large batches with GPU available)
/// # assert_eq!(format!("{:?}", select_backend(batch_size, true)), "Gpu");
/// ```
#[must_use]
pub fn select_backend(batch_size: usize, gpu_available: bool) -> BackendSelection {
    match batch_size {
        GPU_MIN_PAGES.. if gpu_available => BackendSelection::Gpu,
        SIMD_MIN_PAGES.. => BackendSelection::Simd,
        _ => BackendSelection::Scalar,
    }
}

/// What the CPU is taken to compress a second, in GB.
const CPU_BASELINE_GBPS: f64 = 3.0;
/// What a batch costs on the GPU however small it is.
const GPU_FIXED_S: f64 = 20e-6;
/// How many times as long the CPU must take.
const PCIE_RULE_FACTOR: f64 = 5.0;

/// Predicts, before a run, whether offloading `pages` pages to a GPU pays by the "PCIe 5x rule".
///
/// True if the CPU's time for the pages, at a baseline of 3 GB/s, is more than 5 times the GPU path's: a fixed 20 us a
/// batch, the pages' bytes over the bus twice (there and back) at `pcie_gbps`, and the kernel at `gpu_gbps` (all in
/// 10^9 bytes a second). False for 0 pages, and for speeds that are not above 0.
///
/// The rule counts transfers and kernel one after the other. A pipeline overlaps them, and only compressed bytes go back:
/// the GPU can be worth it where the rule says no.
///
/// ```
/// use trueno_zram_core::gpu::meets_pcie_rule;
///
/// let pages = 10000;
/// let pcie_bandwidth = 64.0;  // GB/s (PCIe 5.0)
/// let gpu_throughput = 500.0; // GB/s
///
/// if meets_pcie_rule(pages, pcie_bandwidth, gpu_throughput) {
///     println!("GPU offload beneficial");
/// }
/// # assert!(meets_pcie_rule(pages, pcie_bandwidth, gpu_throughput));
/// # assert!(!meets_pcie_rule(10, pcie_bandwidth, gpu_throughput));
/// ```
#[must_use]
pub fn meets_pcie_rule(pages: usize, pcie_gbps: f64, gpu_gbps: f64) -> bool {
    if pages == 0 || !(pcie_gbps > 0.0 && gpu_gbps > 0.0) {
        return false;
    }
    // Rounding does not matter: past 2^53 bytes the fixed cost is long out of sight.
    let gigabytes = pages as f64 * PAGE_SIZE as f64 / 1e9;
    let cpu_s = gigabytes / CPU_BASELINE_GBPS;
    let gpu_s = GPU_FIXED_S + 2.0 * gigabytes / pcie_gbps + gigabytes / gpu_gbps;
    cpu_s > PCIE_RULE_FACTOR * gpu_s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_back_end_changes_at_4_and_at_1000_pages() {
        use BackendSelection::{Gpu, Scalar, Simd};
        for (pages, with_gpu, without) in [
            (0, Scalar, Scalar),
            (3, Scalar, Scalar),
            (4, Simd, Simd),
            (999, Simd, Simd),
            (1000, Gpu, Simd),
            (usize::MAX, Gpu, Simd),
        ] {
            assert_eq!(select_backend(pages, true), with_gpu, "{pages} pages with a GPU");
            assert_eq!(select_backend(pages, false), without, "{pages} pages without");
        }
    }

    #[test]
    fn the_rule_turns_where_the_fixed_cost_is_covered() {
        // At 64 and 500 GB/s a page takes 1365.3 ns on the CPU and 5 x 136.2 ns on the GPU; the fixed cost is 5 x 20 us:
        // 100 us / 684.4 ns = 146.1 pages.
        assert!(!meets_pcie_rule(146, 64.0, 500.0));
        assert!(meets_pcie_rule(147, 64.0, 500.0));
        assert!(meets_pcie_rule(usize::MAX, 64.0, 500.0));
    }

    #[test]
    fn slow_links_and_slow_kernels_never_pay() {
        // Two transfers at 30 GB/s alone take a fifth of the time at 3 GB/s.
        assert!(!meets_pcie_rule(usize::MAX, 29.0, f64::INFINITY));
        assert!(meets_pcie_rule(1_000_000, 31.0, f64::INFINITY));
        assert!(!meets_pcie_rule(1_000_000, f64::INFINITY, 15.0));
        assert!(meets_pcie_rule(1_000_000, f64::INFINITY, 16.0));
    }

    #[test]
    fn nothing_to_do_or_no_speed_is_no() {
        assert!(!meets_pcie_rule(0, 64.0, 500.0));
        for nonsense in [0.0, -1.0, f64::NAN, f64::NEG_INFINITY] {
            assert!(!meets_pcie_rule(10_000, nonsense, 500.0));
            assert!(!meets_pcie_rule(10_000, 64.0, nonsense));
        }
    }
}
