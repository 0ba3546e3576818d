//! The identity of an archive.

use std::sync::Arc;

use crate::archive::Archive;
use crate::error::Result;
use crate::index::layout::IndexFooter;
use crate::read_at::ReadAt;

use super::layout::DeltaFooter;
use super::open::read_footer;

pub(crate) const IDENTITY_LEN: usize = 16;

/// Tells an archive from all others: the start of a BLAKE3 hash of its length and of its footer, which has checksums of all
/// parts of its index.
///
/// It finds the wrong base before any page is read. It does not replace the hashes of pages, which every page is compared
/// with: an archive can be changed and keep its footer.
///
/// ```
/// let identity = trueno_zram_archive::ArchiveIdentity::from_bytes([7; 16]);
/// assert_eq!(identity.to_string(), "07070707070707070707070707070707");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArchiveIdentity([u8; IDENTITY_LEN]);

impl ArchiveIdentity {
    /// Reads the identity of an archive or a delta, without its bases; `None` if the file is neither.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use trueno_zram_archive::{Archive, ArchiveIdentity, WriteOptions, compress};
    /// let mut file = Vec::new();
    /// compress(&b"some memory"[..], &mut file, &WriteOptions::default())?;
    /// let file = Arc::new(file);
    /// let archive = Archive::read_from(file.clone())?.expect("it has an index");
    /// assert_eq!(ArchiveIdentity::read(file)?, Some(archive.identity()));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Archive::read_from`]; [`Error::Delta`](crate::Error::Delta).
    pub fn read(file: Arc<dyn ReadAt>) -> Result<Option<Self>> {
        match read_footer(&*file)? {
            Some(delta) => Ok(Some(Self::of_delta(&delta))),
            None => Ok(Archive::read_from(file)?.map(|archive| archive.identity())),
        }
    }

    /// Takes the bytes of an identity.
    ///
    /// ```
    /// use trueno_zram_archive::ArchiveIdentity;
    /// let stored = *ArchiveIdentity::from_bytes([7; 16]).as_bytes();
    /// assert_eq!(ArchiveIdentity::from_bytes(stored).to_string(), "07".repeat(16));
    /// ```
    #[must_use]
    pub fn from_bytes(bytes: [u8; IDENTITY_LEN]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the identity.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; IDENTITY_LEN] {
        &self.0
    }

    /// Returns the identity of a standard archive.
    pub(crate) fn of_archive(file_len: u64, footer: &IndexFooter) -> Self {
        Self(digest(&[b"page archive", &file_len.to_le_bytes(), &footer.encode()]))
    }

    /// Returns the identity of a delta.
    pub(crate) fn of_delta(footer: &DeltaFooter) -> Self {
        Self(digest(&[b"page delta", &footer.encode()]))
    }
}

impl std::fmt::Display for ArchiveIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for ArchiveIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Returns the start of the BLAKE3 hash of these parts, one after the other.
pub(crate) fn digest(parts: &[&[u8]]) -> [u8; IDENTITY_LEN] {
    let mut hasher = blake3::Hasher::new();
    parts.iter().for_each(|part| {
        hasher.update(part);
    });
    cut(&hasher.finalize())
}

/// Returns the start of a BLAKE3 hash.
pub(crate) fn cut(hash: &blake3::Hash) -> [u8; IDENTITY_LEN] {
    *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
}
