//! GPU kernels on pages in device memory, beside nvCOMP in the same run.

use std::path::PathBuf;

use trueno_gpu::kernels::packed::Mode;
use trueno_zram_core::Page;
use trueno_zram_core::gpu::raw::PageFormat;

use crate::corpora::{Corpus, mix};
use crate::document::{Document, RunSettings};
use crate::engine::verify;
use crate::engines::ours_to_nvcomp::CrossEngine;
use crate::engines::resident::{NvCompEngine, Session};
use crate::engines::{C_LZ4_BLOCKS, NVCOMP, NVCOMP_ZSTD, kernels};
use crate::error::Result;
use crate::measure::{Batches, Observer, measure};

/// Our decompressor on frames that libzstd made on the CPU at level 3.
pub(crate) const ZSTD_3_FRAMES: &str = "zstd-3 frames";

/// Measures every kernel on every corpus, repeated to `run.pages` pages.
///
/// ```no_run
/// use std::num::NonZeroUsize;
/// use trueno_bench::{RunSettings, kernels, load, table};
///
/// let run = RunSettings { rounds: 5, pages: 65_536, threads: NonZeroUsize::MIN };
/// let nvcomp = Some(&"libnvcomp.so.6".into());
/// let document = kernels::run(&load(&[], usize::MAX)?, 0, nvcomp, run, &())?;
/// println!("{}", table::draw(&document));
/// # Ok::<(), trueno_bench::Error>(())
/// ```
///
/// # Errors
/// No GPU, no nvCOMP in the named file, or that of the first engine that fails or restores other pages.
pub fn run(
    corpora: &[Corpus],
    device_index: u32,
    nvcomp: Option<&PathBuf>,
    run: RunSettings,
    observer: &dyn Observer,
) -> Result<Document> {
    let session = Session::new(device_index, nvcomp.map(PathBuf::as_path))?;
    let mut document = Document::new("kernels", run, &[C_LZ4_BLOCKS, NVCOMP, NVCOMP_ZSTD], corpora);
    let cross_modes = [Mode::Fast, Mode::Ratio].into_iter().filter(|_| session.nvcomp.is_some());
    let mut cross = Vec::new();
    for mode in cross_modes {
        observer.begin("edge pages by nvCOMP");
        let edge_pages: Vec<Page> = crate::edge_pages::all().into_iter().map(|edge| *edge.page).collect();
        cross.push((mode, CrossEngine::check(&session, PageFormat::Zstd, mode, &edge_pages)?));
    }
    for corpus in corpora {
        observer.begin(&corpus.name);
        let pages = mix(std::slice::from_ref(corpus), run.pages)?;
        let mut engines = kernels::all(&session, pages.len())?;
        for (mode, edge_frames) in &cross {
            let engine = CrossEngine::new(&session, PageFormat::Zstd, *mode, pages.len())?;
            engines.push(Box::new(engine.with_edge_frames(*edge_frames)));
        }
        if session.nvcomp.is_some() {
            for format in PageFormat::ALL {
                engines.push(Box::new(NvCompEngine::new(&session, format, pages.len())?));
            }
        }
        document.add_rows(
            &corpus.name,
            corpus.same_filled,
            &measure(engines, Batches::Repeated(&pages), run.rounds, observer)?,
        )?;
    }
    document.finish_rows();
    Ok(document)
}

/// Launches every kernel a few times on every corpus and checks the results, without timing.
///
/// # Errors
/// As [`run`].
pub fn check(corpora: &[Corpus], device_index: u32, run: RunSettings, observer: &dyn Observer) -> Result<()> {
    let session = Session::new(device_index, None)?;
    for corpus in corpora {
        let pages = mix(std::slice::from_ref(corpus), run.pages)?;
        for mut engine in kernels::all(&session, pages.len())? {
            observer.begin(&format!("{} on {}", engine.name(), corpus.name));
            verify(engine.as_mut(), &pages)?;
        }
    }
    Ok(())
}
