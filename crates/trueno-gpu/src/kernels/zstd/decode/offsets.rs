//! Resolves the repeated offsets of 32 sequences at once (section 3.1.1.5).
//!
//! The effect of a sequence on the last three offsets fits three bytes of a register, one per place: `0x80 + i` if the
//! place takes over the offset of place `i`, or the number of the lane whose new offset it takes. Such effects compose,
//! so a prefix scan over the lanes gives each sequence the combined effect of all sequences before it.

use crate::{KernelBuilder, Pred, Reg, Var};

/// Nothing changes.
const KEEP: u32 = 0x82_81_80;
/// The second or third offset moves to the front.
const SECOND_TO_FRONT: u32 = 0x82_80_81;
const THIRD_TO_FRONT: u32 = 0x81_80_82;
/// The lane's own offset (number 0 here) goes to the front.
const OWN_TO_FRONT: u32 = 0x81_80_00;

/// Marks a byte as the number of a place.
const PLACE: u32 = 0x80;

/// The last three offsets, the newest first; uniform.
#[derive(Clone, Copy)]
pub(super) struct OffsetHistory<'k>([Var<'k, u32>; 3]);

impl<'k> OffsetHistory<'k> {
    /// The offsets at the start of a frame.
    pub(super) fn new(k: &'k KernelBuilder) -> Self {
        Self([1u32, 4, 8].map(|offset| k.var(offset).named("repeated")))
    }

    /// Returns each lane's offset, and takes over those of all lanes. `value` is what the sequence says: 1 to 3 are
    /// repeated offsets, one further without literals. A lane without a sequence says 1, with literals.
    ///
    /// An offset of 0 or less comes out as 0 or wraps around; the caller refuses both.
    pub(super) fn resolve(
        self,
        k: &'k KernelBuilder,
        lane: Reg<'k, u32>,
        value: Reg<'k, u32>,
        has_literals: Pred<'k>,
    ) -> Reg<'k, u32> {
        k.section("repeated offsets");
        let is_new = value.gt(3);
        let which = value - has_literals.to_u32();
        // The first offset less one.
        let is_less_one = which.eq(3) & !is_new;
        let to_front = which.eq(1).select(SECOND_TO_FRONT, THIRD_TO_FRONT);
        let repeated = which.eq(0).select(KEEP, to_front);
        let own = (is_new | is_less_one).select(lane | OWN_TO_FRONT, repeated);
        let steps = k.var(own);
        for distance in [1u32, 2, 4, 8, 16] {
            let (before, there_is) = steps.shfl_up_checked(distance);
            k.when(there_is).set(steps, compose(before, *steps));
        }
        let (front, behind) = (*steps & 0xff, steps.bfe(8u32, 8u32));
        let offset = k.var(value - 3);
        // "Less one" waits for the offset before it, which may be such a one too. The lowest lane of them never waits.
        let waiting = k.var(is_less_one.ballot());
        let own_bit = k.lanemask_eq();
        k.while_uniform(
            || waiting.ne(0),
            || {
                let theirs = offset.shfl(behind);
                let is_known = (behind & PLACE).ne(0) | ((waiting >> (behind & 31)) & 1).eq(0);
                let ready = (waiting & own_bit).ne(0) & is_known;
                k.when(ready).set(offset, self.pick(behind, theirs) - 1);
                waiting.set(*waiting & !ready.ballot());
            },
        );
        let result = self.pick(front, offset.shfl(front));
        let last = steps.shfl(31u32);
        let next = [0u32, 8, 16].map(|shift| {
            let from = last.bfe(shift, 8u32);
            self.pick(from, offset.shfl(from))
        });
        for (offset, next) in self.0.into_iter().zip(next) {
            offset.set(next);
        }
        result
    }

    /// Returns the offset in a place, or `theirs` if the byte is the number of a lane.
    fn pick(self, byte: Reg<'k, u32>, theirs: Reg<'k, u32>) -> Reg<'k, u32> {
        let [first, second, third] = self.0;
        let one_of_two = (byte & 1).ne(0).select(*second, *first);
        let in_place = (byte & 2).ne(0).select(*third, one_of_two);
        (byte & PLACE).ne(0).select(in_place, theirs)
    }
}

/// Returns the step that does `before`, then `after`.
fn compose<'k>(before: Reg<'k, u32>, after: Reg<'k, u32>) -> Reg<'k, u32> {
    // A place selects that byte of `before`; another byte selects itself.
    let is_place = after.prmt(0u32, 0xba98u32);
    let bytes = is_place.bit_select(after, 0x0706_0504u32) & 0x0f0f_0f0f;
    let pairs = bytes | (bytes >> 4);
    let selector = pairs.prmt(0u32, 0x4420u32);
    before.prmt(after, selector)
}
