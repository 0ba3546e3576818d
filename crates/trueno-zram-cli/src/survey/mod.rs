//! Surveys the pages of an image: kinds, sizes, entropy, copies, and where they are.

mod container;
mod copies;
mod entropy;
mod findings;
mod findings_json;
mod overview;
mod picture;
mod surveyor;

use trueno_zram_core::{FILL_WORD_BYTES, PAGE_SIZE};

use crate::print::json::PageKinds;
use crate::print::report::ratio;

pub(crate) use container::{Container, HEAD_BYTES};
pub(crate) use copies::Copies;
pub(crate) use entropy::Entropies;
pub(crate) use findings::{Content, Findings, Format};
pub(crate) use findings_json::ContentJson;
pub(crate) use overview::{Overview, OverviewCell};
pub(crate) use picture::Ranges;
pub(crate) use surveyor::Surveyor;

/// The stored form of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SurveyedPage {
    Zero,
    SameFilled,
    /// In this many bytes.
    Lz4(u16),
    /// In this many bytes.
    Zstd(u16),
    Raw,
}

/// Compressed sizes are counted in steps of 256 bytes.
pub(crate) const SIZE_STEP: usize = 256;
const SIZE_STEPS: usize = PAGE_SIZE / SIZE_STEP;

/// Counts over all pages of an image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// Bytes of the image.
    pub(crate) bytes: u64,
    pub(crate) kinds: PageKinds,
    /// Bytes of all pages as stored. Same-filled pages, zero pages included, take a word of 8 bytes.
    pub(crate) held_bytes: u64,
    /// LZ4 pages by their size: 1 to 256 bytes, 257 to 512, and so on.
    pub(crate) lz4_sizes: [u64; SIZE_STEPS],
    /// Zstandard pages in the same way.
    pub(crate) zstd_sizes: [u64; SIZE_STEPS],
    pub(crate) overview: Overview,
}

impl SurveyedPage {
    /// Returns the bytes that such a page takes.
    fn bytes(self) -> u64 {
        match self {
            Self::Zero | Self::SameFilled => FILL_WORD_BYTES as u64,
            Self::Lz4(len_bytes) | Self::Zstd(len_bytes) => len_bytes.into(),
            Self::Raw => PAGE_SIZE as u64,
        }
    }
}

impl Survey {
    /// Counts `pages` whole pages of the same kind and size.
    pub(crate) fn add(&mut self, held: SurveyedPage, pages: u64) {
        self.add_bytes(held, pages, pages * PAGE_SIZE as u64);
    }

    /// Counts a shorter last page.
    pub(crate) fn add_tail(&mut self, held: SurveyedPage, len_bytes: usize) {
        self.add_bytes(held, 1, len_bytes as u64);
    }

    fn add_bytes(&mut self, held: SurveyedPage, pages: u64, bytes: u64) {
        self.bytes += bytes;
        let kinds = &mut self.kinds;
        kinds.pages += pages;
        let held_bytes = (held.bytes() * pages).min(bytes);
        self.held_bytes += held_bytes;
        *match held {
            SurveyedPage::Zero => &mut kinds.zero,
            SurveyedPage::SameFilled => &mut kinds.same_filled,
            SurveyedPage::Lz4(len_bytes) => {
                self.lz4_sizes[size_step(len_bytes)] += pages;
                &mut kinds.lz4
            }
            SurveyedPage::Zstd(len_bytes) => {
                self.zstd_sizes[size_step(len_bytes)] += pages;
                &mut kinds.zstd
            }
            SurveyedPage::Raw => &mut kinds.raw,
        } += pages;
        let zero_pages = if held == SurveyedPage::Zero { pages } else { 0 };
        self.overview.add(pages, held_bytes, zero_pages);
    }

    /// Returns the bytes of the image divided by the bytes stored; 1 for an empty image.
    pub(crate) fn ratio(&self) -> f64 {
        ratio(self.bytes, self.held_bytes)
    }

    /// Returns the ratio of the pages that are not one repeated word.
    pub(crate) fn ratio_of_rest(&self) -> f64 {
        let same = self.kinds.zero + self.kinds.same_filled;
        let rest_bytes = self.bytes.saturating_sub(same * PAGE_SIZE as u64);
        ratio(rest_bytes, self.held_bytes.saturating_sub(same * FILL_WORD_BYTES as u64))
    }
}

/// The step that counts a page of this size.
fn size_step(len_bytes: u16) -> usize {
    (usize::from(len_bytes).saturating_sub(1) / SIZE_STEP).min(SIZE_STEPS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_by_kind_and_size() {
        let mut survey = Survey::default();
        for (held, pages) in [
            (SurveyedPage::Zero, 10),
            (SurveyedPage::SameFilled, 1),
            (SurveyedPage::Lz4(1), 1),
            (SurveyedPage::Lz4(256), 1),
            (SurveyedPage::Lz4(257), 1),
            (SurveyedPage::Lz4(4095), 1),
            (SurveyedPage::Raw, 1),
        ] {
            survey.add(held, pages);
        }
        survey.add_tail(SurveyedPage::Raw, 100);
        let kinds = PageKinds { pages: 17, zero: 10, same_filled: 1, lz4: 4, zstd: 0, raw: 2 };
        assert_eq!(survey.kinds, kinds);
        assert_eq!((survey.lz4_sizes[0], survey.lz4_sizes[1], survey.lz4_sizes[15]), (2, 1, 1));
        assert_eq!(survey.bytes, 16 * 4096 + 100);
        assert_eq!(survey.held_bytes, 11 * 8 + 1 + 256 + 257 + 4095 + 4096 + 100);
        let rest = (5 * 4096 + 100) as f64 / (survey.held_bytes - 88) as f64;
        assert_eq!(survey.ratio_of_rest(), rest);
        assert_eq!(Survey::default().ratio(), 1.0);
    }
}
