//! Saves a store to a page archive.

use std::io::Write;

use rayon::prelude::*;
use trueno_zram_archive::{ArchiveWriter, Format, WriteOptions, WriteSummary};
use trueno_zram_core::{Algorithm, BatchCodec, CompressedBatch, PAGE_SIZE, Page, PageKind};

use crate::base::HoleRun;
use crate::error::Result;
use crate::snapshot::SnapshotPart;
use crate::store::Store;

/// Pages that are written at a time.
const BATCH_PAGES: usize = 4096;

impl Store {
    /// Saves all pages as they are now to a page archive, while requests go on.
    ///
    /// The archive has the format of `codec`: .zst files for Zstandard, .lz4 files otherwise. Pages that are held in that
    /// format go to the archive as they are. Others are compressed again. Each block has a checksum.
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
    /// [`Error::Archive`](crate::Error::Archive) if the output cannot be written; [`Error::Base`](crate::Error::Base);
    /// [`Error::CorruptEntry`](crate::Error::CorruptEntry); [`Error::Codec`](crate::Error::Codec).
    pub fn save<W: Write + Send>(&self, out: W, codec: &mut dyn BatchCodec) -> Result<(W, WriteSummary)> {
        let (format, kind) = match codec.algorithm() {
            Algorithm::Zstd { .. } => (Format::Zstd, PageKind::Zstd),
            Algorithm::Lz4 | Algorithm::None => (Format::Lz4, PageKind::Lz4),
        };
        // From here on, the store keeps its length.
        let mut snapshot = self.snapshot()?;
        let content_len = Some(self.size_bytes());
        let options = WriteOptions::default().with_format(format).with_content_len(content_len);
        let mut archive = ArchiveWriter::new(out, options)?;
        let mut base = BasePages { store: self, pages: Vec::new(), batch: CompressedBatch::new() };
        let mut at = 0;
        while let Some(part) = snapshot.read(BATCH_PAGES)? {
            match part {
                SnapshotPart::Holes(pages) => base.save(at..at + pages, &mut archive, codec)?,
                SnapshotPart::Pages(batch) => {
                    let batch = converted_to(kind, batch, codec)?;
                    codec.pool().install(|| archive.write_batch(&batch))?;
                }
            }
            at = snapshot.position();
        }
        Ok(archive.finish(None)?)
    }
}

/// Saves holes: zeros, or pages of the base.
struct BasePages<'a> {
    store: &'a Store,
    pages: Vec<Page>,
    batch: CompressedBatch,
}

impl BasePages<'_> {
    fn save<W: Write + Send>(
        &mut self,
        holes: std::ops::Range<u64>,
        archive: &mut ArchiveWriter<W>,
        codec: &mut dyn BatchCodec,
    ) -> Result<()> {
        let mut at = holes.start;
        while at < holes.end {
            let from_base = match self.store.hole_run(at..holes.end) {
                HoleRun::Zeros(pages) => {
                    archive.write_zero_pages(pages)?;
                    at += pages;
                    continue;
                }
                HoleRun::Base(pages) => pages,
            };
            let pages = usize::try_from(from_base).map_or(BATCH_PAGES, |pages| pages.min(BATCH_PAGES));
            self.pages.resize(pages, [0; PAGE_SIZE]);
            let read = |(number, page): (usize, &mut Page)| self.store.read_hole(at + number as u64, page);
            codec.pool().install(|| self.pages.par_iter_mut().enumerate().try_for_each(read))?;
            codec.compress_into(&self.pages, &mut self.batch, &())?;
            codec.pool().install(|| archive.write_batch_of(&self.batch, &self.pages))?;
            at += pages as u64;
        }
        Ok(())
    }
}

/// Compresses pages that are held in another format than `kind` with `codec`. The rest of the batch stays as it is.
fn converted_to(kind: PageKind, batch: CompressedBatch, codec: &mut dyn BatchCodec) -> Result<CompressedBatch> {
    let is_foreign = |held: PageKind| matches!(held, PageKind::Lz4 | PageKind::Zstd) && held != kind;
    let foreign: Vec<_> = batch.iter().filter(|page| is_foreign(page.kind())).collect();
    if foreign.is_empty() {
        return Ok(batch);
    }
    let mut pages = vec![[0; PAGE_SIZE]; foreign.len()];
    codec.decompress_pages(&foreign, &mut pages)?;
    let mut compressed = CompressedBatch::new();
    codec.compress_into(&pages, &mut compressed, &())?;
    let mut replaced = compressed.iter();
    let mut converted = CompressedBatch::new();
    for page in batch.iter() {
        converted.push(if is_foreign(page.kind()) { replaced.next().unwrap_or(page) } else { page });
    }
    Ok(converted)
}
