//! Copies of many bytes on all threads of the current pool.

use rayon::prelude::*;

/// Bytes that a thread copies at a time.
const CUT_BYTES: usize = 128 * 1024;

/// Copies `from` to `to`, which is as long.
pub(crate) fn parallel_copy(to: &mut [u8], from: &[u8]) {
    parallel_copy_in(CUT_BYTES, to, from);
}

/// Copies in parts of `cut_bytes`, each by one thread.
pub(crate) fn parallel_copy_in(cut_bytes: usize, to: &mut [u8], from: &[u8]) {
    let cuts = to.par_chunks_mut(cut_bytes).zip(from.par_chunks(cut_bytes));
    cuts.for_each(|(to, from)| to.copy_from_slice(from));
}
