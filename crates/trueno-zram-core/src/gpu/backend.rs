//! Chooses a back end for a batch and predicts whether offloading pays.

use crate::page::PAGE_SIZE;

/// The back end that compresses a batch.
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
    /// The CPU, one page at a time.
    Scalar,
}

/// The smallest batch, in pages, for which the GPU is worth its launch and transfers.
pub(crate) const MIN_GPU_PAGES: usize = 1000;
/// The smallest batch, in pages, for which the vector path is worth its set-up.
const SIMD_MIN_PAGES: usize = 4;

/// Selects the back end for a batch of `batch_size` pages: the GPU from 1000 pages on if one is available, otherwise
/// the CPU's vector path from 4 pages on, otherwise its scalar path.
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
        MIN_GPU_PAGES.. if gpu_available => BackendSelection::Gpu,
        SIMD_MIN_PAGES.. => BackendSelection::Simd,
        _ => BackendSelection::Scalar,
    }
}

/// Assumed compression speed of the CPU, in GB/s.
const CPU_BASELINE_GBPS: f64 = 3.0;
/// Fixed cost of a batch on the GPU, in seconds.
const GPU_FIXED_S: f64 = 20e-6;
/// The factor by which the CPU must take longer for the rule to hold.
const PCIE_RULE_FACTOR: f64 = 5.0;

/// Predicts, before a run, whether offloading `pages` pages to a GPU pays according to the "PCIe 5x rule".
///
/// Returns `true` if the CPU, at a baseline of 3 GB/s, takes more than 5 times as long as the GPU path. The GPU path
/// takes a fixed 20 us per batch, plus two transfers of the pages (there and back) at `pcie_gbps`, plus the kernel at
/// `gpu_gbps` (all speeds in 10^9 bytes per second). Returns `false` for 0 pages and for speeds that are not above 0.
///
/// The rule adds up transfers and kernel. A pipeline overlaps them and transfers only compressed bytes back, so the GPU
/// can be worthwhile where the rule says no.
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
    // Rounding does not matter: beyond 2^53 bytes the fixed cost is negligible.
    let gigabytes = pages as f64 * PAGE_SIZE as f64 / 1e9;
    let cpu_s = gigabytes / CPU_BASELINE_GBPS;
    let gpu_s = GPU_FIXED_S + 2.0 * gigabytes / pcie_gbps + gigabytes / gpu_gbps;
    cpu_s > PCIE_RULE_FACTOR * gpu_s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_end_changes_at_4_and_1000_pages() {
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
            assert_eq!(select_backend(pages, false), without, "{pages} pages without a GPU");
        }
    }

    #[test]
    fn rule_holds_once_the_fixed_cost_is_covered() {
        // At 64 and 500 GB/s a page takes 1365.3 ns on the CPU and 5 x 136.2 ns on the GPU. The fixed cost is 5 x 20
        // us: 100 us / 684.4 ns = 146.1 pages.
        assert!(!meets_pcie_rule(146, 64.0, 500.0));
        assert!(meets_pcie_rule(147, 64.0, 500.0));
        assert!(meets_pcie_rule(usize::MAX, 64.0, 500.0));
    }

    #[test]
    fn rule_never_holds_for_slow_links_or_kernels() {
        // Two transfers at 30 GB/s alone take a fifth of the CPU's time at 3 GB/s.
        assert!(!meets_pcie_rule(usize::MAX, 29.0, f64::INFINITY));
        assert!(meets_pcie_rule(1_000_000, 31.0, f64::INFINITY));
        assert!(!meets_pcie_rule(1_000_000, f64::INFINITY, 15.0));
        assert!(meets_pcie_rule(1_000_000, f64::INFINITY, 16.0));
    }

    #[test]
    fn rule_is_false_for_no_pages_and_invalid_speeds() {
        assert!(!meets_pcie_rule(0, 64.0, 500.0));
        for nonsense in [0.0, -1.0, f64::NAN, f64::NEG_INFINITY] {
            assert!(!meets_pcie_rule(10_000, nonsense, 500.0));
            assert!(!meets_pcie_rule(10_000, 64.0, nonsense));
        }
    }
}
