//! Surveys the pages of content that arrives in parts of any length.

use rayon::prelude::*;
use trueno_zram_core::{CompressedBatch, Error, FILL_WORD_BYTES, PAGE_SIZE, Page, PageData, PageKind};

use super::copies::{self, Copies};
use super::entropy::{Entropies, EntropyTable};
use super::{Content, Survey, SurveyedPage};
use crate::engine::Engine;

/// The source of the kinds and sizes of pages.
enum Sizes<'a> {
    /// Pages are compressed to find out.
    Compress { engine: &'a mut Engine, batch: CompressedBatch },
    /// The index of an archive has told them already.
    Known,
}

/// Surveys the content of an image.
pub(crate) struct Surveyor<'a> {
    sizes: Sizes<'a>,
    table: EntropyTable,
    pages: Vec<Page>,
    filled_bytes: usize,
    survey: Survey,
    entropies: Entropies,
    copies: Copies,
}

impl<'a> Surveyor<'a> {
    /// Compresses pages with `engine` to find out how they would be stored.
    pub(crate) fn compressing(engine: &'a mut Engine) -> Self {
        let batch_pages = engine.batch_pages();
        Self::new(Sizes::Compress { engine, batch: CompressedBatch::new() }, batch_pages, Survey::default())
    }

    /// Looks at content only; `survey` has the kinds and sizes.
    pub(crate) fn of_surveyed(survey: Survey, batch_pages: usize) -> Self {
        Self::new(Sizes::Known, batch_pages, survey)
    }

    fn new(sizes: Sizes<'a>, batch_pages: usize, survey: Survey) -> Self {
        Self {
            sizes,
            table: EntropyTable::new(),
            pages: vec![[0; PAGE_SIZE]; batch_pages],
            filled_bytes: 0,
            survey,
            entropies: Entropies::default(),
            copies: Copies::new(),
        }
    }

    /// Adds content. Whole pages are not copied if there is no start of a page before them.
    pub(crate) fn bytes(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let (whole, rest) = bytes.as_chunks::<PAGE_SIZE>();
            if self.filled_bytes == 0 && whole.len() >= self.pages.len() {
                for pages in whole.chunks(self.pages.len()) {
                    self.survey_pages(pages)?;
                }
                bytes = rest;
                continue;
            }
            let room = &mut self.pages.as_flattened_mut()[self.filled_bytes..];
            let (now, rest) = bytes.split_at(bytes.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            self.filled_bytes += now.len();
            bytes = rest;
            if self.filled_bytes == self.pages.len() * PAGE_SIZE {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Adds zero bytes. Whole pages of them cost next to nothing.
    pub(crate) fn zeros(&mut self, mut len_bytes: u64) -> Result<(), Error> {
        const ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
        let started = self.filled_bytes % PAGE_SIZE;
        if started > 0 {
            let now = usize::try_from(len_bytes).unwrap_or(PAGE_SIZE).min(PAGE_SIZE - started);
            self.bytes(&ZEROS[..now])?;
            len_bytes -= now as u64;
        }
        if len_bytes >= PAGE_SIZE as u64 {
            // Earlier pages are counted first, so that the overview is in order.
            self.flush()?;
            if matches!(self.sizes, Sizes::Compress { .. }) {
                self.survey.add(SurveyedPage::Zero, len_bytes / PAGE_SIZE as u64);
            }
        }
        let rest = usize::try_from(len_bytes % PAGE_SIZE as u64).expect("shorter than a page");
        self.bytes(&ZEROS[..rest])
    }

    /// Surveys what is left, including a last page that may be shorter.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        let tail_bytes = self.filled_bytes % PAGE_SIZE;
        let whole = self.filled_bytes / PAGE_SIZE;
        self.filled_bytes -= tail_bytes;
        self.flush()?;
        if tail_bytes == 0 {
            return Ok(());
        }
        if matches!(self.sizes, Sizes::Compress { .. }) {
            // As archives store it.
            let tail = &self.pages[whole][..tail_bytes];
            let len_bytes = lz4_flex::block::compress(tail).len();
            let shrinks = len_bytes < tail_bytes;
            let held = u16::try_from(len_bytes).ok().filter(|_| shrinks).map_or(SurveyedPage::Raw, SurveyedPage::Lz4);
            self.survey.add_tail(held, tail_bytes);
        }
        Ok(())
    }

    /// Returns what was found.
    pub(crate) fn into_findings(self) -> (Survey, Option<Content>) {
        (self.survey, Some(Content { entropies: self.entropies, copies: self.copies }))
    }

    /// Surveys the buffered pages.
    fn flush(&mut self) -> Result<(), Error> {
        debug_assert_eq!(self.filled_bytes % PAGE_SIZE, 0);
        let buffer = std::mem::take(&mut self.pages);
        let surveyed = self.survey_pages(&buffer[..self.filled_bytes / PAGE_SIZE]);
        self.pages = buffer;
        self.filled_bytes = 0;
        surveyed
    }

    fn survey_pages(&mut self, pages: &[Page]) -> Result<(), Error> {
        if let Sizes::Compress { engine, batch } = &mut self.sizes {
            engine.compress_into(pages, batch)?;
            batch.iter().for_each(|data| self.survey.add(held(data), 1));
        }
        let table = &self.table;
        let look = |page: &Page| match trueno_zram_core::same_filled(page) {
            // Zero and same-filled pages are counted by kind, not as copies.
            Some([0, 0, 0, 0, 0, 0, 0, 0]) => (None, None),
            Some(_) => (Some(table.bits(page)), None),
            None => (Some(table.bits(page)), Some(copies::hash(page))),
        };
        let looks: Vec<_> = pages.par_iter().with_min_len(16).map(look).collect();
        for (bits, hash) in looks {
            if let Some(bits) = bits {
                self.entropies.add(bits);
            }
            if let Some(hash) = hash {
                self.copies.add(hash);
            }
        }
        Ok(())
    }
}

/// Returns how a compressed page is stored.
fn held(data: PageData<'_>) -> SurveyedPage {
    let len_bytes = u16::try_from(data.bytes().len()).unwrap_or(u16::MAX);
    match data.kind() {
        PageKind::SameFilled if data.bytes() == [0; FILL_WORD_BYTES] => SurveyedPage::Zero,
        PageKind::SameFilled => SurveyedPage::SameFilled,
        PageKind::Lz4 => SurveyedPage::Lz4(len_bytes),
        PageKind::Zstd => SurveyedPage::Zstd(len_bytes),
        PageKind::Raw => SurveyedPage::Raw,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::args::Backend;

    fn engine() -> Engine {
        Engine::with(Backend::Cpu, NonZeroUsize::MIN).expect("the CPU is always there")
    }

    fn survey_of(pieces: &[(&[u8], u64)]) -> (Survey, u64, u64) {
        let mut engine = engine();
        let mut surveyor = Surveyor::compressing(&mut engine);
        for (bytes, zeros) in pieces {
            surveyor.bytes(bytes).unwrap();
            surveyor.zeros(*zeros).unwrap();
        }
        surveyor.finish().unwrap();
        (surveyor.survey, surveyor.entropies.pages, surveyor.copies.copies())
    }

    #[test]
    fn the_pieces_in_which_content_comes_do_not_matter() {
        let text: Vec<u8> = (0..3 * PAGE_SIZE + 100).map(|i| (i / 7).to_le_bytes()[0]).collect();
        let mut image = text.clone();
        image.extend(vec![0; 5 * PAGE_SIZE]);
        image.extend(&text);
        let (whole, measured, copies) = survey_of(&[(&image, 0)]);
        let (pieces, pieces_measured, pieces_copies) = survey_of(&[
            (&text[..1], 0),
            (&text[1..5000], 0),
            (&text[5000..], 3 * PAGE_SIZE as u64 + 5),
            (&[], 2 * PAGE_SIZE as u64 - 5),
            (&text, 0),
        ]);
        assert_eq!(format!("{whole:?}"), format!("{pieces:?}"));
        assert_eq!((measured, copies), (pieces_measured, pieces_copies));
        assert_eq!(whole.bytes, image.len() as u64);
        assert_eq!((whole.kinds.pages, whole.kinds.zero), (12, 4), "the zeros do not lie on page boundaries");
    }

    #[test]
    fn copies_and_entropy_leave_out_what_is_counted_elsewhere() {
        let ramp: Vec<u8> = (0..PAGE_SIZE).map(|i| (i / 3).to_le_bytes()[0]).collect();
        let image = [&ramp[..], &[0; PAGE_SIZE], &[7; PAGE_SIZE], &[7; PAGE_SIZE], &ramp, &ramp].concat();
        let (survey, measured, copies) = survey_of(&[(&image, 0)]);
        assert_eq!((survey.kinds.zero, survey.kinds.same_filled), (1, 2));
        assert_eq!((measured, copies), (5, 2), "the zero page has no entropy; same-filled pages are no copies");
    }
}
