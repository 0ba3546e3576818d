//! Loads a store from a page archive.

use std::io::Read;
use std::sync::Arc;

use rayon::prelude::*;
use trueno_zram_archive::{ContentBatch, ContentSpan, FrameReader};
use trueno_zram_core::{BatchCodec, PAGE_SIZE};

use crate::error::Result;
use crate::handle::{StoreHandle, ZeroPages};
use crate::store::Store;

/// Bytes that a thread writes at a time.
const PART_BYTES: usize = 64 * PAGE_SIZE;

impl Store {
    /// Writes the content of a page archive, or of any other .lz4 file, to the store from its start on. Returns its length.
    ///
    /// Pages beyond the content stay as they are. Pages are restored and compressed on the pool of `codec`.
    /// [`save`](Self::save) has an example.
    ///
    /// # Errors
    /// [`Error::Archive`](crate::Error::Archive) if the file is damaged; [`Error::OutOfRange`](crate::Error::OutOfRange) if the
    /// content is longer than the store; [`Error::NoSpace`](crate::Error::NoSpace). The content before the error is in the store.
    pub fn load<R: Read + Send>(self: &Arc<Self>, input: R, codec: &mut dyn BatchCodec) -> Result<u64> {
        let pool = Arc::clone(codec.pool());
        let handles = (0..pool.current_num_threads()).map(|_| StoreHandle::new(self));
        let mut handles = handles.collect::<Result<Vec<_>>>()?;
        let mut reader = FrameReader::with_codec(input, codec);
        let mut batch = ContentBatch::new();
        let mut at = 0;
        while reader.read_batch(&mut batch)? {
            for span in batch.spans() {
                let len_bytes = match span {
                    ContentSpan::Zeros(len_bytes) => {
                        handles[0].write_zeroes(at, len_bytes, ZeroPages::Discard)?;
                        len_bytes
                    }
                    ContentSpan::Data(bytes) => {
                        pool.install(|| write_parts(&mut handles, at, bytes))?;
                        bytes.len() as u64
                    }
                };
                at += len_bytes;
            }
        }
        Ok(at)
    }
}

/// Writes bytes with all handles in parallel. Parts have whole pages, which are aligned in the store except after frames that other
/// tools wrote.
fn write_parts(handles: &mut [StoreHandle], at: u64, bytes: &[u8]) -> Result<()> {
    let share = bytes.len().div_ceil(handles.len()).next_multiple_of(PART_BYTES);
    handles
        .par_iter_mut()
        .zip(bytes.par_chunks(share))
        .enumerate()
        .try_for_each(|(number, (handle, part))| handle.write_at(at + (number * share) as u64, part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::StoreOptions;

    #[test]
    fn parts_of_all_handles_lie_one_after_the_other() {
        let len = 2 * PART_BYTES + 100;
        let store = Arc::new(Store::create(&StoreOptions::new(4 * PART_BYTES as u64)).unwrap());
        let mut handles = [(); 3].map(|()| StoreHandle::new(&store).unwrap());
        let bytes: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
        write_parts(&mut handles, 5000, &bytes).unwrap();
        let mut back = vec![0; 5000 + len];
        handles[0].read_at(0, &mut back).unwrap();
        assert!(back[..5000] == [0; 5000] && back[5000..] == bytes);
    }
}
