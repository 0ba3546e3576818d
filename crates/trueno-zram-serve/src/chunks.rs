//! A stream of unknown length within a connection: chunks preceded by their lengths, and an empty one at the end.

use std::io::{self, Read, Write};

/// The longest chunk.
const MAX_CHUNK: usize = 1 << 20;

/// Writes chunks. [`finish`](Self::finish) writes the last one.
#[derive(Debug)]
pub(crate) struct ChunkWriter<W> {
    out: W,
}

impl<W: Write> ChunkWriter<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out }
    }

    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.out.write_all(&0u32.to_be_bytes())
    }
}

impl<W: Write> Write for ChunkWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = &bytes[..bytes.len().min(MAX_CHUNK)];
        // An empty chunk would be the end.
        if !part.is_empty() {
            self.out.write_all(&u32::try_from(part.len()).unwrap_or(0).to_be_bytes())?;
            self.out.write_all(part)?;
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Reads chunks up to the last one, and nothing after it.
#[derive(Debug)]
pub(crate) struct ChunkReader<R> {
    input: R,
    /// Bytes of the present chunk that were not read.
    left: usize,
    ended: bool,
}

impl<R: Read> ChunkReader<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, left: 0, ended: false }
    }
}

impl<R: Read> Read for ChunkReader<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.ended {
            let mut len = [0; 4];
            self.input.read_exact(&mut len)?;
            self.left = u32::from_be_bytes(len) as usize;
            self.ended = self.left == 0;
        }
        if self.ended || bytes.is_empty() {
            return Ok(0);
        }
        let len = bytes.len().min(self.left);
        let read = self.input.read(&mut bytes[..len])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_up_to_the_end_and_no_further() {
        let content: Vec<u8> = (0..=250u8).cycle().take(3 * MAX_CHUNK + 5).collect();
        let mut writer = ChunkWriter::new(Vec::new());
        writer.write_all(&content).unwrap();
        writer.write_all(b"").unwrap();
        writer.finish().unwrap();
        let stream = [&writer.out[..], b"behind"].concat();
        let mut input = &stream[..];
        let mut back = Vec::new();
        ChunkReader::new(&mut input).read_to_end(&mut back).unwrap();
        assert!(back == content);
        assert_eq!(input, b"behind");
    }

    #[test]
    fn a_stream_that_is_cut_off_is_an_error() {
        let whole = [&5u32.to_be_bytes()[..], b"hello", &[0; 4]].concat();
        for len in 0..whole.len() {
            assert!(ChunkReader::new(&whole[..len]).read_to_end(&mut Vec::new()).is_err());
        }
    }
}
