//! Exports: the devices that a transport serves.

use std::sync::Arc;

use trueno_zram_core::PAGE_SIZE;
use trueno_zram_store::{PageState, Store, StoreHandle, ZeroPages};

/// Length of a sector: the unit of positions in virtio and in the kernel, independent of the block size.
#[cfg(any(feature = "ublk", feature = "vhost-user"))]
pub(crate) const SECTOR_BYTES: u64 = 512;

/// A device that is opened once per thread.
///
/// ```
/// use trueno_zram_serve::{Export, ExportError, ExportIo, Extent};
/// use trueno_zram_store::{PageState, ZeroPages};
///
/// /// A device of 1 MiB that cannot be written, and reads as one byte repeated.
/// #[derive(Clone, Debug)]
/// struct Pattern(u8);
///
/// impl Export for Pattern {
///     fn size_bytes(&self) -> u64 {
///         1 << 20
///     }
///
///     fn is_read_only(&self) -> bool {
///         true
///     }
///
///     fn open(&self) -> Result<Box<dyn ExportIo>, ExportError> {
///         Ok(Box::new(self.clone()))
///     }
/// }
///
/// impl ExportIo for Pattern {
///     fn read_at(&mut self, _offset: u64, bytes: &mut [u8]) -> Result<(), ExportError> {
///         bytes.fill(self.0);
///         Ok(())
///     }
///
///     fn write_at(&mut self, _offset: u64, _bytes: &[u8]) -> Result<(), ExportError> {
///         Err(ExportError::ReadOnly)
///     }
///
///     fn discard(&mut self, _offset: u64, _len_bytes: u64) -> Result<(), ExportError> {
///         Err(ExportError::ReadOnly)
///     }
///
///     fn write_zeroes(&mut self, _offset: u64, _len_bytes: u64, _pages: ZeroPages) -> Result<(), ExportError> {
///         Err(ExportError::ReadOnly)
///     }
///
///     fn extent(&mut self, _offset: u64, len_bytes: u64) -> Extent {
///         Extent { state: PageState::Data, len_bytes }
///     }
/// }
///
/// let mut bytes = [0; 3];
/// Pattern(7).open()?.read_at(4096, &mut bytes)?;
/// assert_eq!(bytes, [7; 3]);
/// # Ok::<(), ExportError>(())
/// ```
pub trait Export: Send + Sync + std::fmt::Debug {
    /// Length in bytes.
    fn size_bytes(&self) -> u64;

    /// Returns `true` if writes are refused.
    fn is_read_only(&self) -> bool;

    /// Opens the export for one thread, with all memory that its requests need.
    ///
    /// # Errors
    /// [`ExportError`] if memory or a codec is unavailable.
    fn open(&self) -> Result<Box<dyn ExportIo>, ExportError>;
}

/// An export as one thread uses it. Servers check ranges before they call; exports of stores check them again. [`Export`] has an
/// example.
pub trait ExportIo: Send {
    /// Reads bytes.
    ///
    /// # Errors
    /// [`ExportError`]; the contents of `bytes` are then unspecified.
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), ExportError>;

    /// Writes bytes. Without enough room, nothing is written, up to
    /// [`MAX_UNDIVIDED_WRITE_BYTES`](trueno_zram_store::MAX_UNDIVIDED_WRITE_BYTES); longer writes and other errors may have changed
    /// some pages.
    ///
    /// # Errors
    /// [`ExportError`].
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExportError>;

    /// Frees as much as possible of a range. Its content is unspecified afterwards.
    ///
    /// # Errors
    /// [`ExportError`].
    fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<(), ExportError>;

    /// Sets bytes to zero.
    ///
    /// # Errors
    /// [`ExportError`].
    fn write_zeroes(&mut self, offset: u64, len_bytes: u64, pages: ZeroPages) -> Result<(), ExportError>;

    /// Makes finished writes durable for the life of the device. Does nothing by default: memory needs no flush.
    ///
    /// # Errors
    /// [`ExportError`].
    fn flush(&mut self) -> Result<(), ExportError> {
        Ok(())
    }

    /// Returns the first bytes of a range that have the same state: at least one, at most `len_bytes`.
    fn extent(&mut self, offset: u64, len_bytes: u64) -> Extent;
}

/// A number of bytes that have the same state.
///
/// ```
/// # use std::sync::Arc;
/// # use trueno_zram_serve::{Export, StoreExport};
/// # use trueno_zram_store::{PageState, Store, StoreOptions};
/// # let export = StoreExport::new(Arc::new(Store::create(&StoreOptions::new(1 << 20))?));
/// let mut io = export.open()?;
/// io.write_at(8192, b"data")?;
/// let first = io.extent(0, export.size_bytes());
/// assert_eq!((first.state, first.len_bytes), (PageState::Hole, 8192));
/// let next = io.extent(first.len_bytes, export.size_bytes() - first.len_bytes);
/// assert_eq!((next.state, next.len_bytes), (PageState::Data, 4096));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Their state.
    pub state: PageState,
    /// Their number.
    pub len_bytes: u64,
}

impl Extent {
    /// Returns the first bytes of a range whose pages have the same state.
    pub(crate) fn first(offset: u64, len_bytes: u64, state_of: impl Fn(u64) -> PageState) -> Self {
        let page_size = PAGE_SIZE as u64;
        let end = offset.saturating_add(len_bytes);
        let first = offset / page_size;
        let state = state_of(first);
        let pages = (first..end.div_ceil(page_size)).take_while(|page| state_of(*page) == state).count() as u64;
        let reached = (first + pages.max(1)).saturating_mul(page_size);
        Self { state, len_bytes: reached.min(end).saturating_sub(offset).max(1) }
    }
}

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// There is no memory left for the data.
    #[error("no space left")]
    NoSpace(#[source] trueno_zram_store::Error),
    /// The request reaches beyond the end.
    #[error("the request reaches beyond the end")]
    OutOfRange(#[source] trueno_zram_store::Error),
    /// The export does not accept writes.
    #[error("the export is read-only")]
    ReadOnly,
    /// Data is damaged, or a codec failed.
    #[error(transparent)]
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl From<trueno_zram_store::Error> for ExportError {
    fn from(error: trueno_zram_store::Error) -> Self {
        match error {
            trueno_zram_store::Error::NoSpace { .. } => Self::NoSpace(error),
            trueno_zram_store::Error::OutOfRange { .. } => Self::OutOfRange(error),
            other => Self::Failed(Box::new(other)),
        }
    }
}

/// A store as a device.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_serve::{Export, StoreExport};
/// use trueno_zram_store::{Store, StoreOptions};
/// let export = StoreExport::new(Arc::new(Store::create(&StoreOptions::new(1 << 20))?));
/// export.open()?.write_at(0, b"bytes")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct StoreExport {
    store: Arc<Store>,
}

impl StoreExport {
    /// Serves `store`.
    #[must_use]
    pub fn new(store: Arc<Store>) -> Self {
        Self { store }
    }
}

impl Export for StoreExport {
    fn size_bytes(&self) -> u64 {
        self.store.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn open(&self) -> Result<Box<dyn ExportIo>, ExportError> {
        Ok(Box::new(StoreHandle::new(&self.store)?))
    }
}

impl ExportIo for StoreHandle {
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), ExportError> {
        Ok(Self::read_at(self, offset, bytes)?)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExportError> {
        Ok(Self::write_at(self, offset, bytes)?)
    }

    fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<(), ExportError> {
        Ok(Self::discard(self, offset, len_bytes)?)
    }

    fn write_zeroes(&mut self, offset: u64, len_bytes: u64, pages: ZeroPages) -> Result<(), ExportError> {
        Ok(Self::write_zeroes(self, offset, len_bytes, pages)?)
    }

    fn extent(&mut self, offset: u64, len_bytes: u64) -> Extent {
        Extent::first(offset, len_bytes, |page| self.store().page_state(page).unwrap_or(PageState::Data))
    }
}
