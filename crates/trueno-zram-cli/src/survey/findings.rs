//! The findings of `inspect` in one file; `findings_json` writes them for programs, and `picture` draws them for people.

use serde::Serialize;
use trueno_zram_archive::address_map::StoredMap;

use super::{Copies, Entropies, Survey};

/// The kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Format {
    /// Plain bytes.
    Image,
    /// A page archive with its index.
    Archive,
    /// An .lz4 file without a usable page index.
    Lz4Frame,
    /// A .zst file without a usable page index.
    ZstdFrame,
}

/// Everything about one file.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) name: String,
    pub(crate) format: Format,
    /// Something the user should know before trusting the figures.
    pub(crate) note: Option<String>,
    /// There is more content than `inspect` looks at in a file of this size. The figures are those of its start.
    pub(crate) cut_off: bool,
    /// Size of the file, if it is compressed.
    pub(crate) file_bytes: Option<u64>,
    pub(crate) survey: Survey,
    /// Findings in the pages' content, if it was read.
    pub(crate) content: Option<Content>,
    /// The address map, if the file is a snapshot of a process.
    pub(crate) map: Option<StoredMap>,
}

/// Findings in the pages themselves.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) entropies: Entropies,
    pub(crate) copies: Copies,
}

impl Findings {
    pub(crate) fn new(name: &str, format: Format, survey: Survey) -> Self {
        Self {
            name: name.to_owned(),
            format,
            note: None,
            cut_off: false,
            file_bytes: None,
            survey,
            content: None,
            map: None,
        }
    }
}
