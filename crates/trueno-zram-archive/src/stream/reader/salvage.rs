//! Makes a [`FrameReader`] salvage: it goes on after damage, and lists it.

use std::io::Read;

use super::FrameReader;
use crate::salvage::damage::{Damage, DamageKind, record};

impl<R: Read> FrameReader<'_, R> {
    /// Makes the reader go on after damage. Content that cannot be restored becomes zeros, and is listed by
    /// [`damage`](Self::damage).
    ///
    /// A damaged block header ends the reading, since a stream cannot find the next block: the rest of the frame becomes
    /// zeros, if its length is known. [`SalvageReader`](crate::SalvageReader) finds the next block by the index.
    ///
    /// ```
    /// use trueno_zram_archive::{ContentBatch, DamageKind, FrameReader};
    /// let wrong_checksum = b"\x04\x22\x4d\x18\x70\x40\xad\x05\x00\x00\x80hello\x01\x02\x03\x04\x00\x00\x00\x00";
    /// let mut reader = FrameReader::new(&wrong_checksum[..]).salvaging();
    /// while reader.read_batch(&mut ContentBatch::new())? {}
    /// assert_eq!((reader.damage()[0].kind, reader.damage()[0].content.end), (DamageKind::Checksum, 5));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn salvaging(mut self) -> Self {
        self.damage = Some(Vec::new());
        self
    }

    /// Adds damage to the header at the start of the input to the list.
    pub(crate) fn with_damaged_header(mut self) -> Self {
        record(self.damage.get_or_insert_default(), 0, 0..0, DamageKind::Header);
        self
    }

    /// Returns the damage so far, in order of the content. Empty unless the reader is [`salvaging`](Self::salvaging).
    #[must_use]
    pub fn damage(&self) -> &[Damage] {
        self.damage.as_deref().unwrap_or_default()
    }

    /// Returns the damage, without a copy of the list.
    ///
    /// ```
    /// assert!(trueno_zram_archive::FrameReader::new(std::io::empty()).salvaging().into_damage().is_empty());
    /// ```
    #[must_use]
    pub fn into_damage(self) -> Vec<Damage> {
        self.damage.unwrap_or_default()
    }
}
