//! The documentation's snippets, unchanged, on a device.

use trueno_zram_core::gpu::{
    BackendSelection, GpuBackend, GpuBatchCompressor, GpuBatchConfig, GpuDeviceInfo, gpu_available, meets_pcie_rule,
    select_backend,
};
use trueno_zram_core::{Algorithm, Error, PAGE_SIZE};

use crate::harness::{assert_no_fallback, check_values, lock_device};

#[test]
#[ignore = "needs a GPU"]
fn basic_usage() -> Result<(), Error> {
    let _device = lock_device();
    let mut ran = false;
    if gpu_available() {
        let config = GpuBatchConfig {
            device_index: 0,
            algorithm: Algorithm::Lz4,
            batch_size: 1000,
            async_dma: true,
            ring_buffer_slots: 4,
        };

        let mut compressor = GpuBatchCompressor::new(config)?;

        let pages: Vec<[u8; PAGE_SIZE]> = vec![[0u8; PAGE_SIZE]; 1000];
        let result = compressor.compress_batch(&pages)?;

        println!("Compression ratio: {:.2}x", result.compression_ratio());

        ran = true;
        check_values(&result.pages, &pages);
        assert_eq!(result.compression_ratio(), 512.0);
        assert_no_fallback(&compressor);
    }
    assert!(ran, "these tests need an NVIDIA GPU");
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn results_statistics_and_configuration() -> Result<(), Error> {
    let _device = lock_device();
    let config = GpuBatchConfig::default();
    let mut compressor = GpuBatchCompressor::new(config)?;
    // The documentation's pages are zero. These pages cross the bus, so that there are times to print.
    let pages: Vec<[u8; PAGE_SIZE]> =
        (0..1000).map(|n: usize| std::array::from_fn(|i| (i / 64 * (n + 1)).to_le_bytes()[0])).collect();

    let result = compressor.compress_batch(&pages)?;

    // Timing components
    println!("H2D transfer: {} ns", result.h2d_time_ns);
    println!("Kernel execution: {} ns", result.kernel_time_ns);
    println!("D2H transfer: {} ns", result.d2h_time_ns);
    println!("Total time: {} ns", result.total_time_ns);

    // Metrics
    let throughput = result.throughput_bytes_per_sec(pages.len() * PAGE_SIZE);
    println!("Throughput: {:.2} GB/s", throughput / 1e9);
    println!("Compression ratio: {:.2}x", result.compression_ratio());
    println!("PCIe 5x rule satisfied: {}", result.pcie_rule_satisfied());

    let stats = compressor.stats();

    println!("Pages compressed: {}", stats.pages_compressed);
    println!("Input bytes: {}", stats.total_bytes_in);
    println!("Output bytes: {}", stats.total_bytes_out);
    println!("Time: {} ns", stats.total_time_ns);
    println!("Ratio: {:.2}x", stats.compression_ratio());
    println!("Throughput: {:.2} GB/s", stats.throughput_gbps());

    let config = compressor.config();
    println!("Batch size: {}", config.batch_size);
    println!("Async DMA: {}", config.async_dma);

    check_values(&result.pages, &pages);
    assert!(throughput > 0.0 && result.compression_ratio() > 1.0);
    assert!(result.h2d_time_ns > 0 && result.kernel_time_ns > 0 && result.d2h_time_ns > 0);
    assert_eq!((stats.pages_compressed, stats.total_bytes_in), (1000, 4_096_000));
    assert_eq!((config.batch_size, config.async_dma), (1000, true));
    assert_no_fallback(&compressor);
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn helper_functions() {
    let _device = lock_device();
    assert!(gpu_available(), "these tests need an NVIDIA GPU");

    let batch_size = 5000;
    let has_gpu = gpu_available();

    let backend = select_backend(batch_size, has_gpu);
    println!("Selected backend: {:?}", backend);
    // Output: Gpu (for large batches with GPU available)

    assert_eq!(format!("{backend:?}"), "Gpu");
    match backend {
        BackendSelection::Gpu => { /* use GPU */ }
        BackendSelection::Simd | BackendSelection::Scalar => panic!("there is a GPU"),
    }

    let pages = 10000;
    let pcie_bandwidth = 64.0; // GB/s (PCIe 5.0)
    let gpu_throughput = 500.0; // GB/s

    assert!(meets_pcie_rule(pages, pcie_bandwidth, gpu_throughput));

    let info = GpuDeviceInfo {
        index: 0,
        name: "RTX 4090".to_string(),
        total_memory: 24 * 1024 * 1024 * 1024,
        l2_cache_size: 72 * 1024 * 1024,
        compute_capability: (8, 9),
        backend: GpuBackend::Cuda,
    };

    println!("Optimal batch: {} pages", info.optimal_batch_size());
    println!("Supported: {}", info.is_supported());

    assert_eq!((info.optimal_batch_size(), info.is_supported()), (14_745, true));
    let devices = GpuDeviceInfo::all();
    assert!(devices.iter().any(|device| device.is_supported() && device.optimal_batch_size() >= 6144), "{devices:?}");
}
