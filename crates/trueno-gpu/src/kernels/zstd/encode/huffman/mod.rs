//! The Huffman code of the literals (RFC 8878, section 4.2), built by a warp where the page was.

mod code;
mod count;
mod sort;
mod streams;
mod tree;
mod weights;

pub(super) use streams::write_streams;

use super::find::Workspace;
use crate::{Reg, Var};
use count::LiteralCounts;

/// Scratch memory in the page's place. Several parts are used twice, one after the other.
///
/// Number of occurrences of each byte, 4 bytes each; later, with what follows, the steps of the weights.
const COUNTS: u32 = 0;
/// Sort keys, 4 bytes each; then inner nodes; then the code length of each byte, 1 byte each.
const NODES: u32 = 1024;
/// Sort keys, then leaves, 4 bytes each; then the table of the weights.
const LEAVES: u32 = 2048;
/// Symbols in order of their counts, 1 byte each; then the weight of each symbol.
const SYMBOLS: u32 = 3072;
/// The tree's description: what may be written before it is found too long.
const DESCRIPTION: u32 = 3328;
const DESCRIPTION_BYTES: u32 = 160;
/// The next code of each length, 2 bytes each.
const NEXT_CODES: u32 = 3488;
/// Counts of digits and of lengths, 4 bytes each; then the codes, 2 bytes each: length above 12 bits of code.
const DIGITS: u32 = 3584;
const CODES: u32 = 3584;
const _: () = assert!(DESCRIPTION + DESCRIPTION_BYTES <= NEXT_CODES && NEXT_CODES + 32 <= DIGITS);

/// Codes of all bytes.
pub(super) const CODES_BYTES: u32 = 512;
const _: () = assert!(CODES + CODES_BYTES == super::format::PAGE_BYTES);
/// Position of the length in a code.
const CODE_LENGTH_SHIFT: u32 = 12;

/// The coding of the literals; all uniform.
#[derive(Clone, Copy)]
pub(super) struct LiteralsPlan<'k> {
    /// Bytes of the tree's description; 0 if the literals are not coded.
    pub(super) description_bytes: Var<'k, u32>,
    /// Bits of all literals.
    pub(super) bits: Var<'k, u32>,
    /// If all literals are equal, 1 more than the byte; otherwise 0.
    pub(super) repeated: Var<'k, u32>,
}

/// Plans the coding of the literals, of which there are at least two. Leaves codes and description in scratch memory.
pub(super) fn plan<'k>(ws: Workspace<'k>, literals: Reg<'k, u32>, total: Reg<'k, u32>) -> LiteralsPlan<'k> {
    let k = ws.k;
    let plan = LiteralsPlan { description_bytes: k.var(0u32), bits: k.var(0u32), repeated: k.var(0u32) };
    k.block_uniform(|raw| {
        let counted = count::count(ws, literals, total);
        let LiteralCounts { symbols, last, .. } = counted;
        k.if_uniform(symbols.eq(1), || {
            plan.repeated.set(last + 1);
            raw.exit();
        });
        raw.exit_if(counted.cannot_pay(k, total));
        sort::sort(ws, &counted);
        tree::grow(ws, *symbols);
        let lengths = code::limit_lengths(ws, *symbols, total, raw);
        let bits = code::assign_codes(ws, &lengths, *symbols, *last);
        let bytes = weights::describe(ws, &lengths, *symbols, *last);
        plan.bits.set(bits);
        plan.description_bytes.set(bytes);
    });
    k.sync_warp();
    plan
}

/// The codes and the description in registers, on the way from scratch memory to their final places.
pub(super) struct SavedCodes<'k> {
    codes: [Reg<'k, u32>; 4],
    description: Reg<'k, u32>,
}

impl<'k> SavedCodes<'k> {
    /// Takes the codes and the description from scratch memory.
    pub(super) fn take(ws: Workspace<'k>) -> Self {
        let Workspace { lane, page, .. } = ws;
        Self {
            codes: (page + CODES + lane * 16).shared::<u32>().load_vec(),
            description: (page + DESCRIPTION + lane * 4).shared::<u32>().load(),
        }
    }

    /// Stores the codes to global memory.
    pub(super) fn store_codes(&self, ws: Workspace<'k>) {
        codes_address(ws).step(ws.lane, 16).store_vec(self.codes);
    }

    /// Stores the given number of bytes of the description.
    pub(super) fn store_description(&self, ws: Workspace<'k>, to: Reg<'k, u32>, bytes: Reg<'k, u32>) {
        let Workspace { k, lane, .. } = ws;
        let left = (bytes - lane * 4).as_i32();
        let own = (to + lane * 4).shared::<u8>();
        for n in 0..4i32 {
            k.when(left.gt(n)).store(own.at(n), self.description >> (8 * n.cast_unsigned()));
        }
    }
}

/// Returns the address of the codes in global memory, behind the records.
fn codes_address(ws: Workspace<'_>) -> crate::Addr<'_, crate::types::Global, u32> {
    ws.records.byte_offset(super::record::RECORDS_BYTES.cast_signed())
}
