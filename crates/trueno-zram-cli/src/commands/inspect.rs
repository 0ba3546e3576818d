//! `trueno-zram inspect`: what the pages of images and archives are made of.

use std::fs::File;
use std::io::{self, Cursor, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rayon::prelude::*;
use trueno_zram_archive::address_map::StoredMap;
use trueno_zram_archive::{
    Archive, BlockPlace, ContentBatch, ContentSpan, Delta, Error, FrameReader, IndexVerdict, Pages,
};
use trueno_zram_core::{PAGE_SIZE, Page, PageKind};
use trueno_zram_io::{ArchiveChain, Input};

use crate::args::{Global, verify::VerifyPolicy};
use crate::commands::{inspect_delta::DeltaFindings, list};
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files::{
    self,
    delta::BasesArgs,
    folders::{FileFilter, FolderArgs},
    needed_files::{self, NeededFiles},
    restore::{input_failure, pages_by_index},
};
use crate::print::{json, messages, quantity, stdout, terminal::Style};
use crate::survey::{Container, Findings, Format, HEAD_BYTES, Ranges, Survey, SurveyedPage, Surveyor};

/// Show what the pages of files and archives are made of.
///
/// The pages of an image are compressed to find out how they would be stored. For a page archive, its index has that
/// information: pages are decoded only if --decode asks for entropy and copies. Other .lz4 and .zst files are decoded, and their
/// content is inspected: 1 GiB and 255 times the size of the file at most, not counting zeros that are stored as such.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Images, page archives, deltas or other .lz4 and .zst files; `-` is standard input.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Also decode the pages of archives, to show their entropy and which pages are copies of others.
    #[arg(long)]
    decode: bool,
    /// List all ranges of a snapshot's address map, not only the largest.
    #[arg(long)]
    ranges: bool,
    /// The proof of an archive's pages that comes before --decode looks at them; `all` compares all blocks with the index in any case.
    #[arg(long, value_enum, default_value_t = VerifyPolicy::Group)]
    verify: VerifyPolicy,
    #[command(flatten)]
    bases: BasesArgs,
    #[command(flatten)]
    folders: FolderArgs,
    /// A line per compressed file, as `-l` of lz4, zstd and gzip.
    #[arg(short, long, hide = true, conflicts_with_all = ["decode", "ranges"])]
    list: bool,
}

const COMMAND: &str = "inspect";

/// Pages of an archive that a thread restores at a time: a group, which is compared with the index as a whole.
const PAGES_AT_ONCE: usize = 1024;

/// The content that is inspected at most: this much, and `CONTENT_PER_FILE_BYTE` for each byte of the file (no .lz4 file holds
/// more per byte; .zst files can). Zeros that are stored as runs do not count.
const MIN_CONTENT_LIMIT_BYTES: u64 = 1 << 30;
const CONTENT_PER_FILE_BYTE: u64 = 255;

/// The position of a file among those shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FilePosition {
    First,
    /// With an empty line before it.
    Later,
}

impl FilePosition {
    /// Prints the text of a file.
    fn print(self, describe: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        stdout::print(|out| {
            let separated = if self == Self::First { Ok(()) } else { writeln!(out) };
            separated.and_then(|()| describe(out))
        })
    }
}

/// Runs `trueno-zram inspect`.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let filter = if args.list { FileFilter::Compressed } else { FileFilter::All };
    let Some(files) = args.folders.expand(&args.files, filter, global)? else { return Ok(ExitCode::SUCCESS) };
    needed_files::check_stdout(&files, global)?;
    if args.list && !global.json {
        return list::run(&files, &args.bases, global);
    }
    let mut engine = Engine::choose(global)?;
    let mut position = FilePosition::First;
    files::for_each(&files, COMMAND, global, |path| {
        inspect(path, args, global, &mut engine, std::mem::replace(&mut position, FilePosition::Later))
    })
}

fn inspect(
    path: &Path,
    args: &Args,
    global: &Global,
    engine: &mut Engine,
    position: FilePosition,
) -> Result<(), Failure> {
    let input = Input::open(path)?;
    if let Some(ArchiveChain { archive, files }) = args.bases.open_delta(path, &input)? {
        let chain = ArchiveChain { archive: archive.with_verify(args.verify.into()), files };
        return inspect_delta(&input, &chain, args, global, engine, position);
    }
    let findings = engine.pool().install(|| survey_input(input, args, engine))?;
    if let Some(note) = findings.note.as_ref().filter(|_| !global.quiet) {
        messages::problem(format_args!("{}: {note}", findings.name));
    }
    if findings.cut_off && !global.quiet {
        let (name, bytes) = (&findings.name, quantity::bytes(findings.survey.bytes));
        messages::problem(format_args!("{name}: warning: only the first {bytes} of its content are inspected"));
    }
    if global.json {
        return json::print(global, COMMAND, &findings.to_json());
    }
    let ranges = if args.ranges { Ranges::All } else { Ranges::Largest };
    position.print(|out| findings.describe(out, Style::of_stdout(), ranges))
}

/// Shows a delta.
fn inspect_delta(
    input: &Input,
    chain: &ArchiveChain,
    args: &Args,
    global: &Global,
    engine: &Engine,
    position: FilePosition,
) -> Result<(), Failure> {
    NeededFiles::of_base(chain.bases()).check_stdout(global)?;
    let archive = &chain.archive;
    let delta = archive.as_delta().expect("opened as a delta");
    let mut content = None;
    if args.decode {
        let mut surveyor = Surveyor::of_surveyed(Survey::default(), engine.batch_pages());
        // Zeros are passed over by the map: a few bytes of a delta stand for thousands of them.
        let (mut page, pages) = (0, delta.len_bytes() / PAGE_SIZE as u64);
        let data = std::iter::from_fn(|| {
            while page < pages {
                match delta.zero_run(page) {
                    Ok(0) => {
                        page += 1;
                        return Some(Ok(page - 1..page));
                    }
                    Ok(zeros) => page += zeros,
                    Err(error) => {
                        page = pages;
                        return Some(Err(error));
                    }
                }
            }
            None
        });
        let survey = || survey_content(archive, joined(data), &input.name, &mut surveyor, engine.batch_pages());
        engine.pool().install(survey)?;
        (_, content) = surveyor.into_findings();
    }
    let findings = DeltaFindings::new(input, archive, delta, content.as_ref());
    if global.json {
        return json::print(global, COMMAND, &findings);
    }
    position.print(|out| findings.describe(out, Style::of_stdout()))
}

fn survey_input(input: Input, args: &Args, engine: &mut Engine) -> Result<Findings, Failure> {
    let name = input.name.clone();
    let head = head(input.file()).map_err(|e| Failure::io(&name, &e))?;
    let magic = head.first_chunk();
    let format = magic.and_then(|magic| trueno_zram_archive::Format::of_magic(*magic));
    if let Some(magic) = magic.filter(|_| Delta::is_delta(&head)) {
        // It comes from a pipe, and its pages are of no use without its base.
        return Err(input_failure(&name, Error::NotCompressed { magic: *magic }));
    }
    let seekable = input.len_bytes.is_some();
    if seekable {
        input.rewind()?;
    }
    match (format, seekable) {
        (Some(format), true) => of_archive(args, &input, frame_format(format), engine),
        (Some(format), false) => {
            of_pipe_archive(&name, Cursor::new(head).chain(input.file()), frame_format(format), engine)
        }
        (None, _) => {
            let note = Container::detect(&head).map(Container::note);
            let findings = match seekable {
                true => of_image(input, engine),
                false => of_pipe(&name, Cursor::new(head).chain(input.file()), engine),
            };
            Ok(Findings { note, ..findings? })
        }
    }
}

/// Reads the first bytes, as many as it takes to recognize the file.
fn head(file: &File) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    file.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Returns the name of a file of this format that is not an archive.
fn frame_format(format: trueno_zram_archive::Format) -> Format {
    match format {
        trueno_zram_archive::Format::Lz4 => Format::Lz4Frame,
        trueno_zram_archive::Format::Zstd => Format::ZstdFrame,
    }
}

/// An archive by its index, or any other compressed file.
fn of_archive(args: &Args, input: &Input, frame: Format, engine: &mut Engine) -> Result<Findings, Failure> {
    let note = match pages_by_index(input)? {
        Ok(Some(archive)) => {
            let archive = archive.with_verify(args.verify.into());
            return of_index(args, input, archive.stored(), engine);
        }
        Ok(None) => None,
        Err(error) => Some(format!("{error}; inspecting the content without the index")),
    };
    input.rewind()?;
    let (findings, _) = of_stream(&input.name, input.file(), input.len_bytes, frame, engine)?;
    let file_bytes = if findings.cut_off { findings.file_bytes } else { input.len_bytes };
    Ok(Findings { note, file_bytes, ..findings })
}

/// A compressed file from a pipe. Its index, if it has one, comes last and is checked against the content.
fn of_pipe_archive(
    name: &str,
    input: impl Read + Send,
    frame: Format,
    engine: &mut Engine,
) -> Result<Findings, Failure> {
    let (findings, index) = of_stream(name, input, None, frame, engine)?;
    let (format, note) = match index {
        IndexVerdict::Absent => (frame, None),
        IndexVerdict::Agrees => {
            let note =
                "a page archive from a pipe: all its pages were decoded, and its address map, if any, is not shown";
            (Format::Archive, Some(note.to_owned()))
        }
        IndexVerdict::Disagrees(why) => {
            (frame, Some(format!("bad index: {why}; inspecting the content without the index")))
        }
    };
    Ok(Findings { format, note, ..findings })
}

/// An archive with an index.
fn of_index(args: &Args, input: &Input, archive: &Archive, engine: &Engine) -> Result<Findings, Failure> {
    let name = &input.name;
    let failed = |error| input_failure(name, error);
    let mut survey = Survey::default();
    survey_index(archive, &mut survey).map_err(failed)?;
    let map = StoredMap::read(archive).map_err(|e| Failure::damaged(name, e))?;
    let pages = archive.page_count();
    if let Some(map) = &map {
        map.check_pages(pages).map_err(|e| Failure::damaged(name, e))?;
    }
    let mut findings = Findings::new(name, Format::Archive, survey);
    findings.file_bytes = Some(archive.info().archive_len);
    findings.map = map;
    if args.decode {
        let mut surveyor = Surveyor::of_surveyed(findings.survey, engine.batch_pages());
        // Zeros are passed over by the index: a few bytes of an archive stand for thousands of them.
        let whole_pages = archive.len_bytes() / PAGE_SIZE as u64;
        let data = archive.blocks(0..whole_pages).map_err(failed)?.filter_map(|block| match block {
            Ok(block) if block.zero => None,
            Ok(block) => Some(Ok(block.first_page..block.first_page + 1)),
            Err(error) => Some(Err(error)),
        });
        survey_content(archive, joined(data), name, &mut surveyor, engine.batch_pages())?;
        (findings.survey, findings.content) = surveyor.into_findings();
    }
    while archive.prove_next().map_err(failed)? {}
    Ok(findings)
}

/// Looks at pages of an archive, on all threads of the pool.
fn survey_content(
    archive: &dyn Pages,
    runs: impl Iterator<Item = Result<Range<u64>, Error>>,
    name: &str,
    surveyor: &mut Surveyor<'_>,
    batch_pages: usize,
) -> Result<(), Failure> {
    let failed = |error| input_failure(name, error);
    let mut room = vec![[0; PAGE_SIZE]; batch_pages];
    let (mut runs, mut run) = (runs.fuse(), 0..0);
    loop {
        let (mut parts, mut free) = (Vec::new(), &mut room[..]);
        while !free.is_empty() {
            if run.is_empty() {
                let Some(next) = runs.next() else { break };
                run = next.map_err(failed)?;
            }
            let pages = usize::try_from(run.end - run.start).unwrap_or(usize::MAX).min(free.len()).min(PAGES_AT_ONCE);
            let (part, rest) = free.split_at_mut(pages);
            parts.push((run.start, part));
            run.start += pages as u64;
            free = rest;
        }
        let filled = batch_pages - free.len();
        if filled == 0 {
            break;
        }
        parts.into_par_iter().try_for_each(|(first, part)| archive.read(first, part)).map_err(failed)?;
        surveyor.bytes(room[..filled].as_flattened()).map_err(|error| Failure::at(name, error))?;
    }
    surveyor.finish().map_err(|error| Failure::at(name, error))
}

/// Joins runs of pages that follow each other.
fn joined(runs: impl Iterator<Item = Result<Range<u64>, Error>>) -> impl Iterator<Item = Result<Range<u64>, Error>> {
    let mut runs = runs.peekable();
    std::iter::from_fn(move || {
        let mut run = match runs.next()? {
            Ok(run) => run,
            Err(error) => return Some(Err(error)),
        };
        while let Some(Ok(next)) = runs.next_if(|next| next.as_ref().is_ok_and(|next| next.start == run.end)) {
            run.end = next.end;
        }
        Some(Ok(run))
    })
}

/// Counts the blocks of an archive by its index.
fn survey_index(archive: &Archive, survey: &mut Survey) -> Result<(), Error> {
    let (pages, content_len) = (archive.page_count(), archive.len_bytes());
    for block in archive.blocks(0..pages)? {
        add_block(survey, &block?, content_len);
    }
    Ok(())
}

fn add_block(survey: &mut Survey, block: &BlockPlace, content_len: u64) {
    let held = match block.kind {
        PageKind::SameFilled if block.zero => SurveyedPage::Zero,
        PageKind::SameFilled => SurveyedPage::SameFilled,
        PageKind::Lz4 => SurveyedPage::Lz4(u16::try_from(block.len_bytes).unwrap_or(u16::MAX)),
        PageKind::Zstd => SurveyedPage::Zstd(u16::try_from(block.len_bytes).unwrap_or(u16::MAX)),
        PageKind::Raw => SurveyedPage::Raw,
    };
    let left = content_len.saturating_sub(block.first_page * PAGE_SIZE as u64);
    match usize::try_from(left) {
        Ok(tail_bytes) if tail_bytes < PAGE_SIZE => survey.add_tail(held, tail_bytes),
        _ => survey.add(held, block.pages),
    }
}

/// The content of any compressed file, and whether its index, if it has one, agrees with it.
fn of_stream(
    name: &str,
    input: impl Read + Send,
    input_len: Option<u64>,
    frame: Format,
    engine: &mut Engine,
) -> Result<(Findings, IndexVerdict), Failure> {
    let mut surveyor = Surveyor::compressing(engine);
    let mut reader = FrameReader::new(input);
    let mut batch = ContentBatch::new();
    let (mut data_bytes, mut cut_off) = (0, false);
    while !cut_off && reader.read_batch(&mut batch).map_err(|e| input_failure(name, e))? {
        data_bytes += survey_batch(&mut surveyor, &batch).map_err(|e| Failure::at(name, e))?;
        let file_bytes = input_len.unwrap_or(reader.summary().input_len);
        cut_off = data_bytes > MIN_CONTENT_LIMIT_BYTES + file_bytes.saturating_mul(CONTENT_PER_FILE_BYTE);
    }
    surveyor.finish().map_err(|e| Failure::at(name, e))?;
    let (survey, content) = surveyor.into_findings();
    let mut findings = Findings::new(name, frame, survey);
    findings.file_bytes = Some(reader.summary().input_len);
    findings.content = content;
    findings.cut_off = cut_off;
    Ok((findings, reader.summary().index.clone()))
}

/// Surveys a batch. Returns how many of its bytes had to be looked at.
fn survey_batch(surveyor: &mut Surveyor<'_>, batch: &ContentBatch) -> Result<u64, trueno_zram_core::Error> {
    batch.spans().try_fold(0, |data_bytes, span| match span {
        ContentSpan::Data(bytes) => surveyor.bytes(bytes).map(|()| data_bytes + bytes.len() as u64),
        ContentSpan::Zeros(len_bytes) => surveyor.zeros(len_bytes).map(|()| data_bytes),
    })
}

/// An image that can seek: its holes are not read.
fn of_image(input: Input, engine: &mut Engine) -> Result<Findings, Failure> {
    let name = input.name.clone();
    let mut pages: Vec<Page> = vec![[0; PAGE_SIZE]; engine.batch_pages()];
    let mut surveyor = Surveyor::compressing(engine);
    let mut reader = input.into_pages();
    while let Some(span) = reader.next_span(&mut pages)? {
        let taken = match span {
            ContentSpan::Data(bytes) => surveyor.bytes(bytes),
            ContentSpan::Zeros(len_bytes) => surveyor.zeros(len_bytes),
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
