//! `trueno-zram flatten`: a delta into a standard archive.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use trueno_zram_archive::address_map::{self, StoredMap};
use trueno_zram_archive::{Pages, WriteOptions, WriteSummary, process_state};
use trueno_zram_core::{PAGE_SIZE, Page};
use trueno_zram_io::{
    Claim, ClaimedRange, Compressed, Input, NamedArchive, Output, OutputOptions, OutputTarget, PageSource,
};

use crate::args::{Global, compression::CompressionArgs};
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files::{
    self,
    delta::BasesArgs,
    needed_files::{self, NeededFiles},
    restore::input_failure,
};
use crate::print::{
    progress::Progress,
    report::{self, FileNames},
};

/// Make a standard archive of a delta.
///
/// The archive holds all pages, also copies and those that the delta takes from its base. It needs no base, and lz4 or zstd can read
/// it. An address map is kept.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The delta.
    #[arg(value_name = "DELTA")]
    file: PathBuf,
    /// The archive to write; `-` is standard output.
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Overwrite the output.
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    bases: BasesArgs,
    #[command(flatten)]
    compression: CompressionArgs,
    /// Keep a hash of each page in the archive, for deltas that are made from it later.
    #[arg(long)]
    page_hashes: bool,
}

const COMMAND: &str = "flatten";

/// No block of zeros in an LZ4 archive crosses a multiple of this number of pages.
const ZERO_RUN_PAGES: u64 = 16;

/// The content of an archive as a source of pages.
struct ArchiveSource {
    from: Arc<NamedArchive>,
    next_page: u64,
}

impl PageSource for ArchiveSource {
    type Error = Failure;

    fn len_bytes(&self) -> Option<u64> {
        Some(self.from.archive.len_bytes())
    }

    fn claim(&mut self, room: &mut [Page]) -> Result<Claim, Failure> {
        let NamedArchive { archive, name } = &*self.from;
        let pages = archive.page_count() - self.next_page;
        if pages == 0 {
            return Ok(Claim::End);
        }
        let is_zero = |page| archive.is_zero(page).map_err(|error| input_failure(name, error));
        let mut zeros = 0;
        while zeros < pages && is_zero(self.next_page + zeros)? {
            zeros += 1;
        }
        // Zeros are whole pages. Claims start where blocks of zeros must, as those of an image do: so it becomes the same archive.
        let left = archive.len_bytes() - self.next_page * PAGE_SIZE as u64;
        let zeros = zeros.min(left / PAGE_SIZE as u64);
        let zeros = if zeros == pages { zeros } else { zeros / ZERO_RUN_PAGES * ZERO_RUN_PAGES };
        if zeros > 0 {
            self.next_page += zeros;
            return Ok(Claim::Zeros(zeros * PAGE_SIZE as u64));
        }
        let pages = usize::try_from(pages).unwrap_or(room.len()).min(room.len());
        let range = ClaimedRange::in_archive(&self.from, self.next_page, pages);
        self.next_page += pages as u64;
        Ok(Claim::Range(range))
    }

    fn sections(&mut self) -> Result<Vec<(&'static str, Vec<u8>)>, Failure> {
        let NamedArchive { archive, name } = &*self.from;
        let map = StoredMap::read(archive.stored()).map_err(|error| Failure::at(name, error))?;
        let map = map.map(|map| (address_map::SECTION, map.into_bytes()));
        let state = archive.stored().section(process_state::SECTION, process_state::MAX_BYTES);
        let state = state.map_err(|error| Failure::at(name, error))?.map(|state| (process_state::SECTION, state));
        Ok(map.into_iter().chain(state).collect())
    }
}

/// Runs `trueno-zram flatten`.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let target = files::single_target(&args.output, global)?;
    if global.json {
        needed_files::check_stdout(std::slice::from_ref(&args.file), global)?;
    }
    files::for_each(std::slice::from_ref(&args.file), COMMAND, global, |path| flatten(path, args, global, &target))
}

fn flatten(path: &Path, args: &Args, global: &Global, target: &OutputTarget) -> Result<(), Failure> {
    let mut engine = Engine::compressing(global, args.compression)?;
    let input = Input::open_nonblocking(path)?;
    let name = input.name.clone();
    let chain = args.bases.open_delta(path, &input)?;
    let chain =
        chain.ok_or_else(|| Failure::at(&name, "it is not a delta, as `compress --base` and `--dedup` make them"))?;
    NeededFiles::of_base(chain.bases()).check_target(target, global)?;
    let archive = chain.archive;
    let options = OutputOptions::default().with_force(args.force).with_binary(true);
    let output = Output::create(target, Some(&input.metadata), options)?;
    let output_name = output.name.clone();
    let options = WriteOptions::default()
        .with_format(args.compression.format())
        .with_content_len(archive.len_bytes())
        .with_page_hashes(args.page_hashes);
    let progress = Progress::start(global, &name, options.content_len);
    let from = Arc::new(NamedArchive { archive, name: name.clone() });
    let source = ArchiveSource { from, next_page: 0 };
    let Compressed { out, summary, .. } = engine.compress(source, output, options, &progress)?;
    out.finish_with(Some(&input.metadata), &mut |warning| report::warn(global, &output_name, &warning.to_string()))?;
    let time = progress.finish(global);
    report::say_engine(global, &engine);
    let names = FileNames { command: COMMAND, file: &name, output: Some(&output_name) };
    let mut report = names.compressed(&summary, time, &engine);
    report.bytes_in = input.len_bytes.unwrap_or(0);
    let WriteSummary { content_len, archive_len, .. } = summary;
    let speed = report.gbps(content_len);
    report::say(global, &format!("{name}: {content_len} bytes into {archive_len}, {speed:.2} GB/s: {output_name}"));
    report.print_json(global)
}
