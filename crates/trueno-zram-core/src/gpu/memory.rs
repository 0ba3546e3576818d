//! Buffers in device memory.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;

use super::context::GpuContext;
use super::driver::CUdeviceptr;
use super::error::{GpuError, GpuResult};

/// A buffer in device memory.
///
/// The host accesses it only through a [`CudaStream`](super::stream::CudaStream), in that stream's order. So a shared reference
/// is enough to copy in either direction or to pass it to a kernel; two uncoordinated streams can corrupt the contents,
/// but not memory safety. Dropping a buffer waits for all work of its context, so that nothing in flight can still use
/// it. This includes kernels launched by other users of the context and has no time limit, unless the context was given
/// up. Buffers are meant to be kept and reused.
///
/// ```no_run
/// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, CudaStream};
/// let context = GpuContext::new(0)?;
/// let stream = CudaStream::new(&context)?;
/// let buffer = DeviceBuffer::new(&context, 4)?;
/// stream.upload(&buffer, 0, b"page")?;
/// let mut back = [0; 4];
/// stream.download(&buffer, 0, &mut back)?;
/// assert_eq!(back, *b"page");
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub struct DeviceBuffer {
    context: GpuContext,
    address: CUdeviceptr,
    len_bytes: usize,
}

impl DeviceBuffer {
    /// Allocates `len_bytes` uninitialised bytes, aligned to 256 bytes.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext};
    /// # let context = GpuContext::new(0)?;
    /// let pages = DeviceBuffer::new(&context, 1000 * 4096)?;
    /// assert_eq!(pages.address() % 256, 0);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Usually `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn new(context: &GpuContext, len_bytes: usize) -> GpuResult<Self> {
        let mut address = 0;
        // The driver rejects allocations of 0 bytes.
        let allocated = len_bytes.max(1);
        // SAFETY: the destination is a local variable; `drop` frees the memory.
        context.call(|driver| unsafe { driver.cuMemAlloc_v2(&raw mut address, allocated) })?;
        Ok(Self { context: context.clone(), address, len_bytes })
    }

    /// Returns the length in bytes.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// # let buffer = DeviceBuffer::new(&context, 8192)?;
    /// stream.fill(&buffer, 0..buffer.len_bytes(), 0)?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns the address on the device, for other libraries and for tables of pointers.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, CudaStream};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// let pages = DeviceBuffer::new(&context, 3 * 4096)?;
    /// let table: Vec<u8> = (0..3).flat_map(|page| (pages.address() + page * 4096).to_le_bytes()).collect();
    /// stream.upload(&DeviceBuffer::new(&context, table.len())?, 0, &table)?; // a pointer to each page
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn context(&self) -> &GpuContext {
        &self.context
    }

    /// Returns the address of a part, or an error if it exceeds the buffer.
    pub(crate) fn part(&self, offset: usize, len_bytes: usize) -> GpuResult<CUdeviceptr> {
        check_part(offset, len_bytes, self.len_bytes)?;
        // Device addresses have 64 bits, as does `usize` wherever CUDA runs.
        Ok(self.address + offset as u64)
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({:#x}, {} bytes)", self.address, self.len_bytes)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        self.context.call_in_drop(|driver| {
            // SAFETY: the call takes no arguments. After it, copies and kernels that use the buffer are done.
            unsafe { driver.cuCtxSynchronize() }?;
            // SAFETY: `new` allocated the memory, and nothing uses it any more.
            unsafe { driver.cuMemFree_v2(self.address) }
        });
    }
}

/// Checks that a part lies within a buffer.
pub(crate) fn check_part(offset: usize, len_bytes: usize, buffer_len_bytes: usize) -> GpuResult<Range<usize>> {
    match offset.checked_add(len_bytes) {
        Some(end) if end <= buffer_len_bytes => Ok(offset..end),
        _ => Err(GpuError::OutsideBuffer { offset, len_bytes, buffer_len_bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_parts_outside_the_buffer() {
        assert_eq!(check_part(0, 0, 0), Ok(0..0));
        assert_eq!(check_part(3, 5, 8), Ok(3..8));
        for (offset, len_bytes) in [(3, 6), (9, 0), (usize::MAX, 1), (1, usize::MAX)] {
            let refused = Err(GpuError::OutsideBuffer { offset, len_bytes, buffer_len_bytes: 8 });
            assert_eq!(check_part(offset, len_bytes, 8), refused);
        }
    }
}
