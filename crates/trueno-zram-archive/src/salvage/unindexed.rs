//! Blocks after those that the index of an archive describes.

use std::io::{Chain, Cursor, Read};

use crate::archive::Archive;
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::lz4::header::Lz4Header;
use crate::read_at::SequentialReader;
use crate::salvage::damage::{Damage, DamageKind, record};
use crate::stream::content::ContentBatch;
use crate::stream::reader::FrameReader;

/// Reads bytes that replace a header, and a part of the file after them.
pub(super) type SalvageStream = FrameReader<'static, Chain<Cursor<Vec<u8>>, SequentialReader>>;

/// The blocks after those that the index describes, read like a stream.
pub(super) struct UnindexedBlocks {
    stream: SalvageStream,
    /// Position in the file of the first block.
    at: u64,
    /// Length of the header that the stream was given.
    header_len: u64,
    /// Length of the content that the index describes.
    content_start: u64,
}

impl UnindexedBlocks {
    /// Opens the blocks of an archive from the position `at` on.
    pub(super) fn open(archive: &Archive, at: u64) -> Result<Self> {
        let Archive { footer, layout, .. } = archive;
        // An LZ4 stream ends with its end mark. The checksum after it is that of other content.
        let (header, end) = match layout {
            Layout::Lz4(_) => {
                let header = Lz4Header::archive(None, layout.block_checksums(), false);
                (header.encode(), footer.frame_len - layout.end_len() + 4)
            }
            Layout::Zstd { .. } => (Vec::new(), footer.frame_len),
        };
        let file = SequentialReader::new(&archive.file, at..end)?;
        let header_len = header.len() as u64;
        let stream = FrameReader::new(Cursor::new(header).chain(file)).salvaging();
        Ok(Self { stream, at, header_len, content_start: footer.content_len })
    }

    /// Restores the next batch. At the end, adds the damage.
    pub(super) fn read_batch(&mut self, out: &mut ContentBatch, damage: &mut Vec<Damage>) -> Result<bool> {
        match self.stream.read_batch(out) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error @ Error::Read { .. }) => return Err(error),
            // The first bytes do not start a frame.
            Err(_) => record(damage, self.at, self.content_start..self.content_start, DamageKind::Header),
        }
        for part in self.stream.damage() {
            let content = self.content_start + part.content.start..self.content_start + part.content.end;
            record(damage, (self.at + part.at).saturating_sub(self.header_len), content, part.kind);
        }
        Ok(false)
    }
}
