//! The findings of `inspect` in a delta: the origins of its pages.

use std::io::{self, Write};

use serde::Serialize;
use trueno_zram_archive::{Delta, PageArchive, Pages};
use trueno_zram_io::Input;

use crate::files::delta::Origins;
use crate::print::{json::PageKinds, printable::printable, quantity, report, terminal::Style};
use crate::survey::{Content, ContentJson};

/// The findings, for scripts and people.
#[derive(Debug, Serialize)]
pub(crate) struct DeltaFindings<'a> {
    file: &'a str,
    format: &'static str,
    bytes: u64,
    file_bytes: u64,
    ratio: f64,
    #[serde(flatten)]
    origins: Origins,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_identity: Option<String>,
    /// Deltas from this one down to a standard archive, or to a delta without a base.
    depth: usize,
    #[serde(flatten)]
    kinds: PageKinds,
    #[serde(flatten)]
    content_json: ContentJson<'a>,
    /// Findings in the pages themselves, if they were read.
    #[serde(skip)]
    content: Option<&'a Content>,
}

impl<'a> DeltaFindings<'a> {
    pub(crate) fn new(input: &'a Input, archive: &PageArchive, delta: &Delta, content: Option<&'a Content>) -> Self {
        let file_bytes = input.len_bytes.unwrap_or(0);
        Self {
            file: &input.name,
            format: "delta",
            bytes: delta.len_bytes(),
            file_bytes,
            ratio: report::ratio(delta.len_bytes(), file_bytes),
            origins: Origins::of(delta),
            base_identity: delta.base_record().map(|base| base.identity.to_string()),
            depth: archive.depth(),
            kinds: PageKinds::of_delta(delta),
            content_json: ContentJson::new(content),
            content,
        }
    }

    /// Writes the findings for people to read.
    pub(crate) fn describe(&self, out: &mut dyn Write, style: Style) -> io::Result<()> {
        let Self { file, bytes, file_bytes, ratio, origins, depth, kinds, .. } = self;
        let file = printable(file);
        let (size, file_size) = (quantity::bytes(*bytes), quantity::bytes(*file_bytes));
        writeln!(out, "{file}: a delta of {}, in {file_size} (ratio {ratio:.3})", size)?;
        writeln!(out, "  pages    {} of which {} are zero", kinds.pages, kinds.zero)?;
        writeln!(out, "  content  {}", printable(&origins.to_string()))?;
        writeln!(out, "  stored   {}", PageKinds { zero: 0, ..*kinds })?;
        match origins.base().zip(self.base_identity.as_ref()) {
            Some((base, identity)) => {
                writeln!(out, "  base     {} (identity {identity}), {depth} in the chain", printable(base))?;
            }
            None => writeln!(out, "  base     none: the file has all pages, and equal ones once")?,
        }
        match self.content {
            Some(content) => content.describe(out, style),
            None => writeln!(out, "  use --decode to see entropy and copies"),
        }
    }
}
