//! PTX that provokes faults, for tests of failing devices.

use trueno_zram_core::gpu::raw::{EntryPoint, GpuContext, LoadedKernel};

/// Stores to the first page of the address space, which is never mapped.
const STORE_TO_NULL: &str = "
.version 6.4
.target sm_70
.address_size 64
.visible .entry store_to_null()
{
    .reg .u64 %to;
    mov.u64 %to, 16;
    st.global.u32 [%to], 1;
    ret;
}
";

/// Loads a kernel that stores to the first page of the address space.
pub(crate) fn store_to_null(context: &GpuContext) -> LoadedKernel {
    let entry = EntryPoint { name: "store_to_null", params: &[], block_threads: 1, dynamic_shared_bytes: 0 };
    LoadedKernel::from_ptx(context, STORE_TO_NULL, entry).unwrap()
}
