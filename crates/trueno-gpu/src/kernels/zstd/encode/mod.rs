//! The Zstandard compressor: finds sequences, codes literals and sequences, and writes one frame per page.
//!
//! A warp works in the shared memory of a page and a hash table of the same size:
//!
//! 1. `find` searches windows of 32 positions, one per lane. Each position has a candidate from the table and one for
//!    each of the three repeated offsets, which are compared at all positions at once by ballots. The sequences of a
//!    window are chosen one after the other, by score. After each with a new offset, the repeated offsets are compared
//!    anew. Ratio mode also looks matches up by eight bytes.
//! 2. `literals` gathers the bytes that no match covers into one run, where the table was. `huffman` counts them, grows
//!    the tree in rounds (all nodes lighter than the two lightest together pair up at once), limits the code lengths,
//!    describes the weights (as two FSE chains, or 4 bits each), and writes four streams with eight lanes each. It
//!    works where the page was, and the frame is built there too.
//! 3. `fse` counts the codes of literal lengths, offsets and match lengths. For each kind it uses one symbol, the
//!    predefined table or a described one, whichever takes fewer bits. `sequences` prepares the steps of 32 sequences;
//!    three lanes walk the three chains of states; all lanes join the bits.
//! 4. `frame` adds the headers. A page that does not shrink is loaded again and stored raw.
//!
//! The crate `trueno-test-kernels` makes the same bytes in plain code, and tests compare every page with it. `choices`
//! has the decisions that the format leaves to an encoder.

mod bits;
mod choices;
mod codes;
mod compress;
mod find;
mod format;
mod frame;
mod fse;
mod huffman;
mod literals;
mod record;
mod sequences;

use super::{Mode, TableStores};
use crate::kernels::packed::PAGE_BYTES;
pub(super) use compress::COMPRESS;
pub use compress::ZstdWarpCompressKernel;
