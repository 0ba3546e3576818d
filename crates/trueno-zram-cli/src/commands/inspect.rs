//! `trueno-zram inspect`: what the pages of an image or an archive are made of.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use trueno_zram_archive::{ArchiveReader, BlockPlace, ContentBatch, ContentSpan, FrameReader};
use trueno_zram_core::{PAGE_SIZE, Page, PageKind};

use crate::address_map::{self, AddressMap};
use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::input::{self, Input};
use crate::survey::{Findings, Format, Held, Survey, Surveyor};
use crate::terminal::{DrawChoice, Style, printable};

/// Show what the pages of a file or an archive are made of.
///
/// Of an image, every page is compressed to see how it would be held. Of a page archive, the index tells that: no page is
/// read, unless --decode asks for entropy and copies. Other .lz4 files are decoded, and their content is inspected.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// An image, a page archive or another .lz4 file; `-` is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Decode an archive's pages too, to see their entropy and which are copies of others.
    #[arg(long)]
    decode: bool,
    /// Take the file as an image even if it is a .lz4 file.
    #[arg(long, conflicts_with = "decode")]
    raw: bool,
    /// How to draw.
    #[arg(long, value_enum, default_value_t = DrawChoice::Auto)]
    draw: DrawChoice,
    /// List all ranges of a snapshot's address map, not the largest alone.
    #[arg(long)]
    ranges: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let findings = look(args, global)?;
    if let Some(note) = findings.note.as_ref().filter(|_| !global.quiet) {
        eprintln!("trueno-zram: {}: {note}", printable(&findings.name));
    }
    let text = if global.json {
        serde_json::to_string(&findings.to_json()).map_err(|e| Failure::at("the report", e))? + "\n"
    } else {
        findings.describe(Style::choose(args.draw), args.ranges)
    };
    io::stdout().write_all(text.as_bytes()).map_err(|e| Failure::io("standard output", &e))?;
    Ok(ExitCode::SUCCESS)
}

fn look(args: &Args, global: &Global) -> Result<Findings, Failure> {
    let input = Input::open(&args.file)?;
    let name = input.name.clone();
    let mut engine = Engine::choose(global)?;
    let failed = |error: io::Error| Failure::io(&name, &error);
    let head = head(input.file()).map_err(failed)?;
    let is_lz4 = !args.raw && starts_lz4(&head);
    let seekable = input.len_bytes.is_some();
    if seekable {
        rewind(input.file(), &head).map_err(failed)?;
    }
    match (is_lz4, seekable) {
        (true, true) => of_archive(args, &input, &mut engine),
        (true, false) => of_stream(&name, Cursor::new(head).chain(input.file()), &mut engine, None),
        (false, true) => of_image(input, &mut engine),
        (false, false) => of_pipe(&name, Cursor::new(head).chain(input.file()), &mut engine),
    }
}

/// The first bytes, up to the length of a frame's magic number.
fn head(file: &File) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    file.take(4).read_to_end(&mut head)?;
    Ok(head)
}

fn rewind(mut file: &File, head: &[u8]) -> io::Result<()> {
    let back = i64::try_from(head.len()).expect("four bytes at most");
    file.seek(SeekFrom::Current(-back)).map(drop)
}

/// By the LZ4 frame format: a frame, a skippable frame, or a frame of the old format.
fn starts_lz4(head: &[u8]) -> bool {
    let magic = head.first_chunk().map(|magic| u32::from_le_bytes(*magic));
    matches!(magic, Some(0x184d_2204 | 0x184c_2102 | 0x184d_2a50..=0x184d_2a5f))
}

/// An archive by its index, or any other .lz4 file.
fn of_archive(args: &Args, input: &Input, engine: &mut Engine) -> Result<Findings, Failure> {
    let name = &input.name;
    let note = match ArchiveReader::open(input.file()) {
        Ok(Some(archive)) => return of_index(args, name, archive, engine),
        Ok(None) => None,
        Err(error) => Some(format!("{error}; inspecting the content without the index")),
    };
    let mut file = input.file();
    file.rewind().map_err(|e| Failure::io(name, &e))?;
    let findings = of_stream(name, file, engine, input.len_bytes)?;
    Ok(Findings { note, ..findings })
}

/// An archive with an index.
fn of_index(args: &Args, name: &str, mut archive: ArchiveReader<&File>, engine: &Engine) -> Result<Findings, Failure> {
    let failed = |error| archive_failed(name, error);
    let mut survey = Survey::default();
    let (pages, content_len) = (archive.page_count(), archive.content_len());
    for block in archive.blocks(0..pages).map_err(failed)? {
        add_block(&mut survey, &block.map_err(failed)?, content_len);
    }
    let bytes = archive.section(address_map::SECTION, address_map::MAX_BYTES).map_err(failed)?;
    let map = bytes.map(|bytes| AddressMap::from_bytes(&bytes)).transpose().map_err(|e| Failure::at(name, e))?;
    let mut findings = Findings::new(name, Format::Archive, survey);
    findings.file_bytes = Some(archive.archive_len());
    findings.map = map;
    if args.decode {
        let mut surveyor = Surveyor::of_surveyed(findings.survey, engine.batch_pages());
        let mut reader = archive.read_pages(0..pages).map_err(failed)?;
        let mut batch = ContentBatch::new();
        while reader.read_batch(&mut batch).map_err(failed)? {
            take(&mut surveyor, &batch).map_err(|e| Failure::at(name, e))?;
        }
        surveyor.finish().map_err(|e| Failure::at(name, e))?;
        (findings.survey, findings.content) = surveyor.into_findings();
    }
    Ok(findings)
}

fn add_block(survey: &mut Survey, block: &BlockPlace, content_len: u64) {
    let held = match block.kind {
        PageKind::SameFilled if block.zero => Held::Zero,
        PageKind::SameFilled => Held::SameFilled,
        PageKind::Lz4 | PageKind::Zstd => Held::Lz4(u16::try_from(block.len_bytes).unwrap_or(u16::MAX)),
        PageKind::Raw => Held::Raw,
    };
    let left = content_len.saturating_sub(block.first_page * PAGE_SIZE as u64);
    match usize::try_from(left) {
        Ok(tail_bytes) if tail_bytes < PAGE_SIZE => survey.add_tail(held, tail_bytes),
        _ => survey.add(held, block.pages),
    }
}

/// Any .lz4 file: its content.
fn of_stream(
    name: &str,
    input: impl Read + Send,
    engine: &mut Engine,
    file_bytes: Option<u64>,
) -> Result<Findings, Failure> {
    let mut surveyor = Surveyor::compressing(engine);
    let mut reader = FrameReader::new(input);
    let mut batch = ContentBatch::new();
    while reader.read_batch(&mut batch).map_err(|e| archive_failed(name, e))? {
        take(&mut surveyor, &batch).map_err(|e| Failure::at(name, e))?;
    }
    surveyor.finish().map_err(|e| Failure::at(name, e))?;
    let (survey, content) = surveyor.into_findings();
    let mut findings = Findings::new(name, Format::Lz4Frame, survey);
    findings.file_bytes = Some(file_bytes.unwrap_or(reader.summary().input_len));
    findings.content = content;
    Ok(findings)
}

fn take(surveyor: &mut Surveyor<'_>, batch: &ContentBatch) -> Result<(), trueno_zram_core::Error> {
    batch.spans().try_for_each(|span| match span {
        ContentSpan::Data(bytes) => surveyor.bytes(bytes),
        ContentSpan::Zeros(len_bytes) => surveyor.zeros(len_bytes),
    })
}

/// An image that can be sought in: holes are not read.
fn of_image(input: Input, engine: &mut Engine) -> Result<Findings, Failure> {
    let name = input.name.clone();
    let mut pages: Vec<Page> = vec![[0; PAGE_SIZE]; engine.batch_pages()];
    let mut surveyor = Surveyor::compressing(engine);
    let mut reader = input.into_pages();
    loop {
        let taken = match reader.next(&mut pages).map_err(|e| Failure::io(&name, &e))? {
            input::Piece::Data(len_bytes) => surveyor.bytes(&pages.as_flattened()[..len_bytes]),
            input::Piece::Zeros(len_bytes) => surveyor.zeros(len_bytes),
            input::Piece::End => break,
        };
        taken.map_err(|e| Failure::at(&name, e))?;
    }
    image_findings(&name, surveyor)
}

/// An image from a pipe.
fn of_pipe(name: &str, mut input: impl Read, engine: &mut Engine) -> Result<Findings, Failure> {
    let mut buffer = vec![0; engine.batch_pages() * PAGE_SIZE];
    let mut surveyor = Surveyor::compressing(engine);
    loop {
        match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(len_bytes) => surveyor.bytes(&buffer[..len_bytes]).map_err(|e| Failure::at(name, e))?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::io(name, &error)),
        }
    }
    image_findings(name, surveyor)
}

fn image_findings(name: &str, mut surveyor: Surveyor<'_>) -> Result<Findings, Failure> {
    surveyor.finish().map_err(|e| Failure::at(name, e))?;
    let (survey, content) = surveyor.into_findings();
    Ok(Findings { content, ..Findings::new(name, Format::Image, survey) })
}

fn archive_failed(name: &str, error: trueno_zram_archive::Error) -> Failure {
    Failure::at(name, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lz4_files_are_known_by_their_first_bytes() {
        for (head, known) in [
            (&[0x04, 0x22, 0x4d, 0x18][..], true),
            (&[0x02, 0x21, 0x4c, 0x18], true),
            (&[0x5f, 0x2a, 0x4d, 0x18], true),
            (&[0x60, 0x2a, 0x4d, 0x18], false),
            (&[0x04, 0x22, 0x4d], false),
            (&[], false),
        ] {
            assert_eq!(starts_lz4(head), known, "{head:x?}");
        }
    }
}
