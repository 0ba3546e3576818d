//! Codecs alone: one page at a time on one thread, in the cache; and our batches from one thread to all.

use trueno_zram_core::cpu::InstructionSet;

use crate::bench::thread_series;
use crate::corpora::{Corpus, mix};
use crate::document::{Document, RunSettings};
use crate::engines::codec::{C_LZ4, CopyPage, RIVALS, Trueno};
use crate::engines::in_cache::{BATCH_PAGES, InCache};
use crate::engines::{BAR, Engines};
use crate::error::Result;
use crate::measure::{Batches, Observer, measure};

/// Measures every codec on every corpus. `run.pages` is the batch of the thread series.
///
/// # Errors
/// That of the first engine that fails or restores other pages.
pub fn run(corpora: &[Corpus], run: RunSettings, observer: &dyn Observer) -> Result<Document> {
    let mut document = Document::new("pages", run, &[BAR], corpora);
    for corpus in corpora {
        observer.begin(&corpus.name);
        let timed = measure(engines()?, Batches::Pieces(&corpus.pages, BATCH_PAGES), run.rounds, observer)?;
        document.add_rows(&corpus.name, corpus.same_filled, &timed)?;
    }
    document.corpora.iter_mut().for_each(|corpus| corpus.variants = 1);
    document.finish_rows();
    observer.begin("threads");
    document.scaling = thread_series(&mix(corpora, run.pages)?, run, observer)?;
    Ok(document)
}

fn engines() -> Result<Engines<'static>> {
    let mut engines: Engines<'static> = Vec::new();
    for rival in RIVALS {
        engines.push(Box::new(InCache::new(rival()?)));
    }
    for instructions in InstructionSet::available() {
        engines.push(Box::new(InCache::new(Box::new(Trueno::new(instructions)?))));
        if let Some(c_lz4) = C_LZ4 {
            engines.push(Box::new(InCache::on_blocks_of(c_lz4()?, Box::new(Trueno::new(instructions)?))));
        }
    }
    engines.push(Box::new(InCache::new(Box::new(CopyPage))));
    Ok(engines)
}
