//! Writes content at its offset, by many lanes, or only counts it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use trueno_zram_archive::ContentSpan;

use super::WriteMode;
use crate::error::{Error, Operation, Result};
use crate::output::positional_file::Prepared;
use crate::output::{data_runs, zeros};
use crate::pipeline::timeline::{Stage, timed};
use crate::workers::Observer;

/// The destination of content, and the bytes that were written.
pub(super) struct ContentWriter<'a> {
    pub(super) mode: WriteMode,
    name: String,
    written: AtomicU64,
    pub(super) observer: &'a dyn Observer,
}

impl<'a> ContentWriter<'a> {
    pub(super) fn new(mode: WriteMode, name: &str, observer: &'a dyn Observer) -> Self {
        Self { mode, name: name.to_owned(), written: AtomicU64::new(0), observer }
    }

    /// Returns `true` if the content is written in order, not at its offset.
    pub(super) fn is_in_order(&self) -> bool {
        matches!(self.mode, WriteMode::InOrder)
    }

    /// Writes content at its offset, unless the sink takes it in order.
    pub(super) fn write<'s>(&self, start: u64, spans: impl Iterator<Item = ContentSpan<'s>>) -> Result<()> {
        if self.is_in_order() {
            return Ok(());
        }
        let mut at = start;
        self.writing(|| {
            for span in spans {
                self.write_span(at, span)?;
                at += span.len_bytes();
            }
            Ok(())
        })?;
        self.count(at - start);
        Ok(())
    }

    fn write_span(&self, mut at: u64, span: ContentSpan<'_>) -> io::Result<()> {
        let WriteMode::Positional { file, sparse } = &self.mode else { return Ok(()) };
        match span {
            ContentSpan::Data(bytes) if *sparse => {
                data_runs(bytes).try_for_each(|(skipped, data)| file.write_at(at + skipped as u64, data))
            }
            ContentSpan::Data(bytes) => file.write_at(at, bytes),
            ContentSpan::Zeros(_) if *sparse => Ok(()),
            ContentSpan::Zeros(len_bytes) => zeros(len_bytes).try_for_each(|piece| {
                file.write_at(at, piece)?;
                at += piece.len() as u64;
                Ok(())
            }),
        }
    }

    /// Prepares a range for pages that are not zero; `None` if they are not written by position.
    pub(super) fn prepare(&self, at: u64, len_bytes: usize) -> Result<Option<Prepared<'_>>> {
        match &self.mode {
            WriteMode::Positional { file, .. } => self.writing(|| file.prepare(at, len_bytes)).map(Some),
            WriteMode::InOrder | WriteMode::Discard => Ok(None),
        }
    }

    /// Writes pages within a prepared range, or only counts them.
    pub(super) fn write_prepared(&self, prepared: Option<&Prepared<'_>>, at: u64, bytes: &[u8]) -> Result<()> {
        if let Some(prepared) = prepared {
            self.writing(|| prepared.write_at(at, bytes))?;
        }
        self.count(bytes.len() as u64);
        Ok(())
    }

    fn writing<T>(&self, write: impl FnOnce() -> io::Result<T>) -> Result<T> {
        timed(self.observer, Stage::Write, write).map_err(|error| Error::io(&self.name, Operation::Write, error))
    }

    /// Counts content that was written.
    pub(super) fn count(&self, len_bytes: u64) {
        let written = self.written.fetch_add(len_bytes, Ordering::Relaxed) + len_bytes;
        self.observer.progress(written, written);
    }

    /// Returns the bytes that were written.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}
