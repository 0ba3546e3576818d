//! The part of the stream reader that is about Zstandard.

use std::io::Read;

use trueno_zram_core::PAGE_SIZE;

use super::FrameReader;
use super::gather::peek_next_frame;
use crate::error::{Error, Result};
use crate::format::{Format, Layout};
use crate::index::builder::{IndexBuilder, Retention};
use crate::lz4::header::Lz4Header;
use crate::stream::content::{ContentBatch, SpanRef};
use crate::stream::frame::{FrameShape, FrameState};
use crate::stream::inline::INLINE_BYTES;
use crate::zstd::frame::{FrameHeader, FramePeek, MAX_HEADER_LEN};
use crate::zstd::libzstd::StreamDecoder;

impl<R: Read> FrameReader<'_, R> {
    /// Starts to read Zstandard frames of pages, or one other frame.
    pub(super) fn start_zstd(&mut self, at: u64) -> Result<()> {
        Format::Zstd.check_supported()?;
        (self.format, self.expected_index) = (Some(Format::Zstd), None);
        self.note_missing_seek_table();
        // An LZ4 frame with these fields is read alike. Each Zstandard frame tells whether it has a checksum.
        let mut header = Lz4Header { max_block_len: PAGE_SIZE, ..Lz4Header::archive(None, true, false) };
        let content_start = self.summary.content_len;
        if let FramePeek::Page(seen) = peek_next_frame(&mut self.input)? {
            let layout = Layout::Zstd { checksums: seen.checksum };
            let index = Some(IndexBuilder::new(layout, 0, Retention::Checksums));
            self.frame = Some(FrameState::new(at, content_start, header, FrameShape::PageFrames, index));
            return Ok(());
        }
        let mut needed = 5;
        let parsed = loop {
            let bytes = self.input.require(needed, "a frame's header")?;
            match FrameHeader::parse(bytes, at)? {
                Some(parsed) => break parsed,
                None => needed = (needed + 1).min(MAX_HEADER_LEN),
            }
        };
        if parsed.dictionary != 0 {
            return Err(Error::Dictionary { at, id: parsed.dictionary });
        }
        if self.summary.frames == 0 {
            self.announced_len = parsed.content_size;
        }
        header.content_size = parsed.content_size;
        let decoder = match &mut self.stream_decoder {
            Some(decoder) => decoder,
            none => none.insert(StreamDecoder::new()?),
        };
        decoder.start()?;
        self.summary.frames += 1;
        self.frame = Some(FrameState::new(at, content_start, header, FrameShape::Foreign, None));
        Ok(())
    }

    /// Decodes more of a Zstandard frame of any form; returns `true` if the batch is full.
    pub(super) fn decode_foreign(&mut self, out: &mut ContentBatch) -> Result<bool> {
        let frame = self.frame.as_mut().expect("a frame is being read");
        let decoder = self.stream_decoder.as_mut().expect("made with the frame");
        let start = out.extra.len();
        let limit = self.batch_bytes.max(INLINE_BYTES);
        let decoded = decoder.decode(&mut self.input, frame.at, &mut out.extra, limit);
        if decoded.is_err() && self.damage.is_none() {
            // The checksum comes last: what was decoded since the last batch may be wrong.
            out.extra.truncate(start);
        }
        let len = out.extra.len() - start;
        out.push(SpanRef::Extra { start, len });
        frame.content_len += len as u64;
        self.summary.content_len += len as u64;
        self.summary.input_len = self.input.position();
        match decoded {
            Ok(true) => {
                // libzstd has compared the length of the content and its checksum.
                self.frame = None;
                Ok(false)
            }
            Ok(false) => Ok(true),
            Err(error) => self.give_up(error, out).map(|()| false),
        }
    }
}
