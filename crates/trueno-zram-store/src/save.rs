//! Saves a store to a page archive.

use std::io::Write;

use trueno_zram_archive::{ArchiveWriter, Summary, WriteOptions};
use trueno_zram_core::{BatchCodec, CompressedBatch, IndexEntry, PAGE_SIZE, PageKind};

use crate::error::Result;
use crate::snapshot::SnapshotPart;
use crate::store::Store;

/// Pages that are written at a time.
const BATCH_PAGES: usize = 4096;

impl Store {
    /// Saves all pages as they are now to a page archive, while requests go on.
    ///
    /// LZ4 blocks go to the archive as they are held. Zstandard frames are compressed again by `codec`, an LZ4 codec.
    /// Each block has a checksum.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_store::{Store, StoreHandle, StoreOptions};
    /// use trueno_zram_core::CpuBatchCompressor;
    /// let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
    /// StoreHandle::new(&store)?.write_at(0, b"saved")?;
    /// let (archive, summary) = store.save(Vec::new(), &mut CpuBatchCompressor::default())?;
    /// assert_eq!(summary.content_len, 1 << 20);
    ///
    /// let other = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
    /// other.load(&archive[..], &mut CpuBatchCompressor::default())?;
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Archive`](crate::Error::Archive) if the output cannot be written;
    /// [`Error::CorruptEntry`](crate::Error::CorruptEntry); [`Error::Codec`](crate::Error::Codec).
    pub fn save<W: Write + Send>(&self, out: W, codec: &mut dyn BatchCodec) -> Result<(W, Summary)> {
        let options =
            WriteOptions { content_len: Some(self.size_bytes()), content_checksum: false, ..WriteOptions::default() };
        let mut archive = ArchiveWriter::new(out, options)?;
        let mut snapshot = self.snapshot()?;
        while let Some(part) = snapshot.read(BATCH_PAGES)? {
            match part {
                SnapshotPart::Holes(pages) => archive.write_zero_pages(pages)?,
                SnapshotPart::Pages(batch) => {
                    let batch = without_zstd(batch, codec)?;
                    codec.pool().install(|| archive.write_batch(&batch))?;
                }
            }
        }
        Ok(archive.finish(None)?)
    }
}

/// Compresses Zstandard pages of a batch with `codec`. Other pages stay as they are.
fn without_zstd(batch: CompressedBatch, codec: &mut dyn BatchCodec) -> Result<CompressedBatch> {
    let frames: Vec<_> = batch.iter().filter(|page| page.kind() == PageKind::Zstd).collect();
    if frames.is_empty() {
        return Ok(batch);
    }
    let mut pages = vec![[0; PAGE_SIZE]; frames.len()];
    codec.decompress_pages(&frames, &mut pages)?;
    let mut compressed = CompressedBatch::new();
    codec.compress_into(&pages, &mut compressed, &())?;
    let mut replaced = compressed.iter();
    let mut arena = Vec::with_capacity(batch.arena().len());
    let index = batch.iter().map(|page| {
        let page = if page.kind() == PageKind::Zstd { replaced.next().unwrap_or(page) } else { page };
        let offset = arena.len() as u64;
        arena.extend_from_slice(page.bytes());
        let len_bytes = u16::try_from(page.bytes().len()).expect("PageData holds at most 4096 bytes");
        IndexEntry { offset, len_bytes, kind: page.kind() }
    });
    let index = index.collect();
    Ok(CompressedBatch::from_parts(arena, index)?)
}
