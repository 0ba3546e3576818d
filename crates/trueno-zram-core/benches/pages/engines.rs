//! The codecs that are compared.

use trueno_bench_engines::{CLz4, Flex, MemcpyPage, PageEngine, Result, TruenoPage, Zstd};
use trueno_zram_core::cpu::InstructionSet;

/// All engines; the first is the bar that the others are measured against.
pub(crate) fn all() -> Result<Vec<Box<dyn PageEngine>>> {
    let mut engines: Vec<Box<dyn PageEngine>> = vec![Box::new(CLz4::new())];
    for backend in InstructionSet::available() {
        engines.push(Box::new(TruenoPage::new(backend)?));
    }
    engines.push(Box::new(Flex));
    engines.push(Box::new(Zstd::new()?));
    engines.push(Box::new(MemcpyPage));
    Ok(engines)
}
