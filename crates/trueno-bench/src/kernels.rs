//! GPU kernels on pages in device memory, beside nvCOMP in the same run.

use std::path::PathBuf;

use crate::corpora::Corpus;
use crate::document::{Document, Run};
use crate::engines::resident::{NvCompEngine, Session};
use crate::engines::{NVCOMP, kernels};
use crate::error::Result;
use crate::measure::{Observer, measure};
use trueno_zram_core::Page;

/// Our decompressor on blocks that C lz4 made on the CPU. Their ratio is the bar.
pub(crate) const C_LZ4_BLOCKS: &str = "c-lz4 blocks";

/// Measures every kernel on every corpus, repeated to `run.pages` pages.
///
/// # Errors
/// No GPU, no nvCOMP in the named file, or that of the first engine that fails or restores other pages.
pub fn run(
    corpora: &[Corpus],
    device_index: u32,
    nvcomp: Option<&PathBuf>,
    run: Run,
    observer: &dyn Observer,
) -> Result<Document> {
    let session = Session::new(device_index, nvcomp.map(PathBuf::as_path))?;
    let mut document = Document::new("kernels", run, &[C_LZ4_BLOCKS, NVCOMP], corpora);
    for corpus in corpora {
        observer.begin(&corpus.name);
        let pages: Vec<Page> = corpus.pages.iter().copied().cycle().take(run.pages).collect();
        let mut engines = kernels::all(&session, pages.len())?;
        if session.nvcomp.is_some() {
            engines.push(Box::new(NvCompEngine::new(&session, pages.len())?));
        }
        document.add_rows(&corpus.name, corpus.same_filled, &measure(engines, &pages, run.rounds, observer)?)?;
    }
    document.finish_rows();
    Ok(document)
}
