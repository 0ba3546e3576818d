//! PTX that provokes faults, for tests of failing devices.

/// Stores to the first page of the address space, which is never mapped.
pub(crate) const STORE_TO_NULL: &str = "
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
