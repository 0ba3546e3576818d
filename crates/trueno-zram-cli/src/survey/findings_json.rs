//! The findings of `inspect` as `--json` prints them.

use serde::{Serialize, Serializer};
use trueno_zram_archive::address_map::{MappedRun, PageState, StoredMap, StoredMapping};

use super::findings::{Content, Findings, Format};
use super::{Entropies, Overview, ratio};
use crate::print::json::{self, PageKinds};

impl Findings {
    /// The findings as `--json` prints them.
    pub(crate) fn to_json(&self) -> impl Serialize {
        let survey = &self.survey;
        FindingsJson {
            file: &self.name,
            format: self.format,
            note: self.note.as_deref(),
            cut_off: self.cut_off,
            bytes: survey.bytes,
            kinds: survey.kinds,
            held_bytes: survey.held_bytes,
            held_ratio: survey.ratio(),
            held_ratio_without_same_filled: survey.ratio_of_rest(),
            file_bytes: self.file_bytes,
            ratio: self.file_bytes.map(|file_bytes| ratio(survey.bytes, file_bytes)),
            lz4_sizes: SizesJson { step_bytes: super::SIZE_STEP, by_step: &survey.lz4_sizes },
            zstd_sizes: SizesJson { step_bytes: super::SIZE_STEP, by_step: &survey.zstd_sizes },
            content: ContentJson::new(self.content.as_ref()),
            overview: &survey.overview,
            address_map: self.map.as_ref().map(|map| MapJson {
                pid: map.pid,
                process: &map.command,
                taken_unix_s: map.taken_unix_s,
                consistency: json::consistency(map.consistency),
                ranges: map,
            }),
        }
    }
}

#[derive(Serialize)]
struct FindingsJson<'a> {
    file: &'a str,
    format: Format,
    note: Option<&'a str>,
    cut_off: bool,
    bytes: u64,
    #[serde(flatten)]
    kinds: PageKinds,
    held_bytes: u64,
    held_ratio: f64,
    held_ratio_without_same_filled: f64,
    file_bytes: Option<u64>,
    ratio: Option<f64>,
    lz4_sizes: SizesJson<'a>,
    zstd_sizes: SizesJson<'a>,
    #[serde(flatten)]
    content: ContentJson<'a>,
    overview: &'a Overview,
    address_map: Option<MapJson<'a>>,
}

#[derive(Serialize)]
struct SizesJson<'a> {
    step_bytes: usize,
    by_step: &'a [u64],
}

/// The content as `--json` prints it; null unless it was read.
#[derive(Debug, Serialize)]
pub(crate) struct ContentJson<'a> {
    entropy: Option<EntropyJson<'a>>,
    copies: Option<CopiesJson>,
}

impl<'a> ContentJson<'a> {
    pub(crate) fn new(content: Option<&'a Content>) -> Self {
        let entropy = |content: &'a Content| EntropyJson {
            mean_bits: content.entropies.mean_bits(),
            entropies: &content.entropies,
        };
        let copies =
            |content: &Content| CopiesJson { pages: content.copies.copies(), exact: content.copies.is_exact() };
        Self { entropy: content.map(entropy), copies: content.map(copies) }
    }
}

#[derive(Debug, Serialize)]
struct EntropyJson<'a> {
    mean_bits: Option<f64>,
    #[serde(flatten)]
    entropies: &'a Entropies,
}

#[derive(Debug, Serialize)]
struct CopiesJson {
    pages: u64,
    exact: bool,
}

/// Addresses are text: many JSON readers do not keep such large numbers exactly.
#[derive(Serialize)]
struct MapJson<'a> {
    pid: u32,
    process: &'a str,
    taken_unix_s: u64,
    consistency: &'static str,
    #[serde(serialize_with = "ranges")]
    ranges: &'a StoredMap,
}

#[derive(Serialize)]
struct RangeJson<'a> {
    #[serde(serialize_with = "hex")]
    start: u64,
    #[serde(serialize_with = "hex")]
    end: u64,
    permissions: String,
    anonymous: bool,
    name: &'a str,
    first_page: u64,
    pages: u64,
    untouched_pages: u64,
    unreadable_pages: u64,
    #[serde(serialize_with = "runs")]
    runs: StoredMapping<'a>,
}

#[derive(Serialize)]
struct RunJson {
    #[serde(serialize_with = "hex")]
    start: u64,
    #[serde(serialize_with = "hex")]
    end: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_page: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable_pages: Option<u64>,
}

impl RunJson {
    /// `None` for untouched pages, which are not listed.
    fn of(run: MappedRun) -> Option<Self> {
        let (first_page, pages, unreadable_pages) = match run.state {
            PageState::Stored => (Some(run.first_page), Some(run.pages), None),
            PageState::Unreadable => (None, None, Some(run.pages)),
            PageState::Untouched => return None,
        };
        Some(Self { start: run.start, end: run.end(), first_page, pages, unreadable_pages })
    }
}

fn ranges<S: Serializer>(map: &StoredMap, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(map.mappings().map(|mapping| RangeJson {
        start: mapping.start,
        end: mapping.end(),
        permissions: mapping.flags.permissions(),
        anonymous: mapping.flags.is_anonymous(),
        name: mapping.name,
        first_page: mapping.first_page,
        pages: mapping.pages.stored,
        untouched_pages: mapping.pages.untouched,
        unreadable_pages: mapping.pages.unreadable,
        runs: mapping,
    }))
}

fn runs<S: Serializer>(mapping: &StoredMapping<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(mapping.runs().filter_map(RunJson::of))
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn hex<S: Serializer>(address: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{address:#x}"))
}
