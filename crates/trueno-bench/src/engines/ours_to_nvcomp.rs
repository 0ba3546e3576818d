//! Pages that our kernels compress and nvCOMP restores, on the device.

use std::sync::Arc;
use std::time::Duration;

use trueno_gpu::kernels::packed::Mode;
use trueno_zram_core::gpu::raw::{DeviceBuffer, PageFormat};
use trueno_zram_core::{PAGE_SIZE, Page};

use super::kernels::KernelEngine;
use super::nvcomp::Decoder;
use super::resident::{Session, device_failed};
use crate::engine::{Engine, verify};
use crate::error::{Error, Result};

/// Our compressor with nvCOMP's decompressor.
pub(crate) struct CrossEngine<'a> {
    name: String,
    session: &'a Session,
    format: PageFormat,
    ours: KernelEngine<'a>,
    decoded: Arc<DeviceBuffer>,
    /// Set up for the pages of the last `load`.
    decoder: Option<Decoder<'a>>,
    frames: usize,
    /// Pages that are raw or same-filled, with their numbers: nvCOMP has nothing to decode.
    others: Vec<(usize, Page)>,
    /// Frames of edge pages that were checked before, for the note.
    edge_frames: usize,
    last: Duration,
}

impl<'a> CrossEngine<'a> {
    /// An engine for batches of exactly `pages` pages, in a session with nvCOMP.
    pub(crate) fn new(session: &'a Session, format: PageFormat, mode: Mode, pages: usize) -> Result<Self> {
        let mode_name = match mode {
            Mode::Fast => "fast",
            Mode::Ratio => "ratio",
        };
        let format_name = match format {
            PageFormat::Lz4 => "",
            PageFormat::Zstd => "zstd ",
        };
        let name = format!("{format_name}{mode_name} by nvcomp");
        Ok(Self {
            ours: KernelEngine::of_product(session, &name, format, mode, pages)?,
            name,
            session,
            format,
            decoded: Arc::new(session.buffer(pages * PAGE_SIZE).map_err(device_failed)?),
            decoder: None,
            frames: 0,
            others: Vec::new(),
            edge_frames: 0,
            last: Duration::ZERO,
        })
    }

    /// Checks such an engine on `pages`, and returns how many frames nvCOMP restored.
    pub(crate) fn check(session: &'a Session, format: PageFormat, mode: Mode, pages: &[Page]) -> Result<usize> {
        let mut engine = Self::new(session, format, mode, pages.len())?;
        verify(&mut engine, pages)?;
        Ok(engine.frames)
    }

    /// Notes that nvCOMP also restored frames of edge pages.
    pub(crate) fn with_edge_frames(self, edge_frames: usize) -> Self {
        Self { edge_frames, ..self }
    }

    fn decoder(&self) -> Result<&Decoder<'a>> {
        self.decoder.as_ref().ok_or_else(|| Error::engine(&self.name)("no pages are loaded"))
    }
}

impl Engine for CrossEngine<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn threads(&self) -> usize {
        1
    }

    fn load(&mut self, pages: &[Page]) -> Result<()> {
        self.ours.load(pages)?;
        let Session { context, stream, nvcomp, .. } = self.session;
        let nvcomp = nvcomp.as_ref().ok_or_else(|| Error::engine(&self.name)("nvCOMP is not loaded"))?;
        let (packed, entries) = self.ours.packed_pages()?;
        let is_frame = |number: &usize| entries[*number].kind == self.format.kind();
        let (frames, others): (Vec<usize>, Vec<usize>) = (0..pages.len()).partition(is_frame);
        let chunks = frames.iter().map(|number| packed.address() + entries[*number].offset);
        let decoder = nvcomp.decoder(self.format, context, stream, chunks, frames.iter().copied(), &self.decoded)?;
        decoder.set_sizes(frames.iter().map(|number| u64::from(entries[*number].len_bytes)))?;
        // Pages that nvCOMP does not write must not look right by chance.
        stream.fill(&self.decoded, 0..self.decoded.len_bytes(), 0xee).map_err(device_failed)?;
        self.frames = frames.len();
        self.others = others.into_iter().map(|number| (number, pages[number])).collect();
        self.decoder = Some(decoder);
        Ok(())
    }

    fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
        self.last = self.ours.compress(pages)?;
        Ok(self.last)
    }

    fn held_bytes(&self) -> Result<u64> {
        self.ours.held_bytes()
    }

    fn decompress(&mut self, _: &mut [Page]) -> Result<Duration> {
        self.last = self.session.time(|| self.decoder()?.decompress())?;
        Ok(self.last)
    }

    fn fetch(&mut self, pages: &mut [Page]) -> Result<()> {
        let decoder = self.decoder()?;
        decoder.check_statuses()?;
        decoder.check_sizes()?;
        self.session.stream.download(&self.decoded, 0, pages.as_flattened_mut()).map_err(device_failed)?;
        for (number, page) in &self.others {
            pages[*number] = *page;
        }
        Ok(())
    }

    fn stages(&self) -> Vec<(&'static str, Duration)> {
        vec![("kernel", self.last)]
    }

    fn note(&self) -> String {
        let Self { frames, edge_frames, .. } = self;
        let pages = frames + self.others.len();
        format!("nvCOMP restored {frames} frames of {pages} pages and {edge_frames} of edge pages, all identical")
    }
}
