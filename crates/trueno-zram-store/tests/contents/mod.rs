//! The content of stores and archives as plain bytes.

use std::sync::Arc;

use trueno_zram_archive::{ContentBatch, ContentSpan, FrameReader};
use trueno_zram_store::{Store, StoreHandle};

/// The content of a store, through a handle.
pub(crate) fn content(store: &Arc<Store>) -> Vec<u8> {
    let mut bytes = vec![0xee; usize::try_from(store.size_bytes()).unwrap()];
    StoreHandle::new(store).unwrap().read_at(0, &mut bytes).unwrap();
    bytes
}

/// The content of an archive, through the reader of streams.
pub(crate) fn decoded(archive: &[u8]) -> Vec<u8> {
    let (mut bytes, mut batch) = (Vec::new(), ContentBatch::new());
    let mut reader = FrameReader::new(archive);
    while reader.read_batch(&mut batch).unwrap() {
        for span in batch.spans() {
            match span {
                ContentSpan::Data(data) => bytes.extend_from_slice(data),
                ContentSpan::Zeros(len) => bytes.resize(bytes.len() + usize::try_from(len).unwrap(), 0),
            }
        }
    }
    bytes
}
