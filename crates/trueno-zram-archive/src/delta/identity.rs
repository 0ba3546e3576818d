//! What tells one archive from all others.

use crate::index::Footer;

use super::layout;

pub(crate) const IDENTITY_LEN: usize = 16;

/// Tells an archive from all others: the start of a BLAKE3 hash of its length and of its footer, which has checksums of all
/// parts of its index.
///
/// It finds the wrong base before any page is read. It does not replace the hashes of pages, which every page is compared
/// with: an archive can be changed and keep its footer.
///
/// ```
/// # let archive = trueno_zram_archive::doc_page_archive(4096);
/// # let other = trueno_zram_archive::doc_page_archive(8192);
/// assert_ne!(archive.identity(), other.identity());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArchiveIdentity([u8; IDENTITY_LEN]);

impl ArchiveIdentity {
    /// Takes the bytes of an identity.
    ///
    /// ```
    /// let identity = trueno_zram_archive::ArchiveIdentity::from_bytes([7; 16]);
    /// assert_eq!(identity.to_string(), "07070707070707070707070707070707");
    /// ```
    #[must_use]
    pub fn from_bytes(bytes: [u8; IDENTITY_LEN]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the identity.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_page_archive(4096);
    /// assert_eq!(archive.identity().as_bytes().len(), 16);
    /// ```
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; IDENTITY_LEN] {
        &self.0
    }

    /// Returns the identity of a standard archive.
    pub(crate) fn of_archive(file_len: u64, footer: &Footer) -> Self {
        Self(digest(&[b"page archive", &file_len.to_le_bytes(), &footer.encode()]))
    }

    /// Returns the identity of a delta.
    pub(crate) fn of_delta(footer: &layout::Footer) -> Self {
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
    *hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes")
}
