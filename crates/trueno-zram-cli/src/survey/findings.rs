//! What `inspect` found, for machines; `picture` draws it for people.

use serde::Serialize;
use serde_json::{Value, json};
use trueno_zram_core::PAGE_SIZE;

use super::{Copies, Entropies, Survey, ratio};
use crate::address_map::{AddressMap, PageState};

/// What kind of file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Format {
    /// Plain bytes.
    Image,
    /// A page archive with its index.
    Archive,
    /// An .lz4 file without a page index.
    Lz4Frame,
}

/// Everything about one file.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) name: String,
    pub(crate) format: Format,
    /// What the user should know beside.
    pub(crate) note: Option<String>,
    /// Bytes of the file, if it is compressed.
    pub(crate) file_bytes: Option<u64>,
    pub(crate) survey: Survey,
    /// What can only be said of pages that were looked at.
    pub(crate) content: Option<Content>,
    /// If it is the snapshot of a process.
    pub(crate) map: Option<AddressMap>,
}

/// What was found in the pages themselves.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) entropies: Entropies,
    pub(crate) copies: Copies,
}

impl Format {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Archive => "page archive",
            Self::Lz4Frame => ".lz4 file without a page index",
        }
    }
}

impl Findings {
    pub(crate) fn new(name: &str, format: Format, survey: Survey) -> Self {
        Self { name: name.to_owned(), format, note: None, file_bytes: None, survey, content: None, map: None }
    }

    /// For scripts.
    pub(crate) fn to_json(&self) -> Value {
        let survey = &self.survey;
        let content = self.content.as_ref();
        json!({
            "file": self.name,
            "format": self.format,
            "note": self.note,
            "bytes": survey.bytes,
            "pages": survey.pages,
            "zero": survey.zero,
            "same_filled": survey.same_filled,
            "lz4": survey.lz4,
            "raw": survey.raw,
            "held_bytes": survey.held_bytes,
            "ratio": survey.ratio(),
            "ratio_without_same_filled": survey.ratio_of_rest(),
            "file_bytes": self.file_bytes,
            "file_ratio": self.file_bytes.map(|file_bytes| ratio(survey.bytes, file_bytes)),
            "lz4_sizes": { "step_bytes": super::SIZE_STEP, "pages": survey.lz4_sizes },
            "entropy": content.map(|content| json!({
                "pages": content.entropies.pages,
                "mean_bits": content.entropies.mean_bits(),
                "by_half_bit": content.entropies.by_half_bit,
            })),
            "copies": content.map(|content| json!({
                "pages": content.copies.copies(),
                "exact": content.copies.is_exact(),
            })),
            "overview": survey.overview,
            "address_map": self.map.as_ref().map(map_json),
        })
    }
}

/// Addresses as text: numbers of JSON are not exact so far up.
fn map_json(map: &AddressMap) -> Value {
    let ranges = map.mappings.iter().map(|mapping| {
        let mut runs = Vec::new();
        let (mut at, mut page) = (mapping.start, mapping.first_page);
        for run in &mapping.runs {
            let end = at + run.pages * PAGE_SIZE as u64;
            match run.state {
                PageState::Stored => {
                    runs.push(json!({ "start": hex(at), "end": hex(end), "first_page": page, "pages": run.pages }));
                    page += run.pages;
                }
                PageState::Unreadable => {
                    runs.push(json!({ "start": hex(at), "end": hex(end), "unreadable_pages": run.pages }));
                }
                PageState::Untouched => {}
            }
            at = end;
        }
        json!({
            "start": hex(mapping.start),
            "end": hex(mapping.end()),
            "permissions": mapping.flags.permissions(),
            "anonymous": mapping.flags.is_anonymous(),
            "name": mapping.name,
            "first_page": mapping.first_page,
            "pages": mapping.pages(PageState::Stored),
            "untouched_pages": mapping.pages(PageState::Untouched),
            "unreadable_pages": mapping.pages(PageState::Unreadable),
            "runs": runs,
        })
    });
    json!({
        "pid": map.pid,
        "command": map.command,
        "taken_unix_s": map.taken_unix_s,
        "consistency": map.consistency,
        "ranges": ranges.collect::<Vec<_>>(),
    })
}

fn hex(address: u64) -> String {
    format!("{address:#x}")
}
