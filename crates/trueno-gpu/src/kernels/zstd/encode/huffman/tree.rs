//! The Huffman tree, grown in rounds.
//!
//! Nodes lighter than the two lightest together are merged with one another before any new node is, so that all of them
//! pair up at once: some 11 rounds instead of 120 merges. A round sees 32 leaves and 32 inner nodes, one of each per
//! lane. When a node is merged, its weight is replaced by its parent's number.

use super::super::find::Workspace;
use super::sort::for_each_32;
use super::{LEAVES, NODES};
use crate::kernels::reduce::warp_or;
use crate::{Reg, Var};

/// The weight of a missing node: larger than any real one, and doubling it does not overflow.
const NONE: u32 = 0x3fff_ffff;

/// Position of the depth in an inner node; its ancestor lies below.
pub(super) const DEPTH_SHIFT: u32 = 8;
pub(super) const ANCESTOR_MASK: u32 = 0xff;

/// Grows the tree over the leaves, of which there are at least two. Leaves each leaf's parent at [`LEAVES`], and the
/// depth of each inner node at [`NODES`].
pub(super) fn grow<'k>(ws: Workspace<'k>, leaves: Reg<'k, u32>) {
    let k = ws.k;
    k.section("huffman: grow the tree");
    let tree = TreeGrowth { ws, leaf: k.var(0u32), inner: k.var(0u32), made: k.var(0u32) };
    k.do_while_uniform(|| {
        tree.round(leaves);
        (tree.made + 1).lt(leaves)
    });
    find_depths(ws, leaves - 2);
}

/// The state of growth; all uniform.
struct TreeGrowth<'k> {
    ws: Workspace<'k>,
    /// The lightest leaf that has no parent.
    leaf: Var<'k, u32>,
    /// The lightest inner node that has no parent.
    inner: Var<'k, u32>,
    /// Inner nodes made.
    made: Var<'k, u32>,
}

impl<'k> TreeGrowth<'k> {
    /// Pairs up the lightest nodes.
    fn round(&self, leaves: Reg<'k, u32>) {
        let Self { ws: Workspace { k, lane, page, .. }, leaf, inner, made } = *self;
        let (first_leaf, first_inner) = ((page + LEAVES).shared::<u32>(), (page + NODES).shared::<u32>());
        let (own_leaf, own_inner) = (leaf + lane, inner + lane);
        let leaf_weight = k.when(own_leaf.lt(leaves)).load_or(first_leaf.index(own_leaf), NONE);
        let inner_weight = k.when(own_inner.lt(made)).load_or(first_inner.index(own_inner), NONE);
        let [leaf0, leaf1, leaf31] = [0u32, 1, 31].map(|n| leaf_weight.shfl(n));
        let [inner0, inner1, inner31] = [0u32, 1, 31].map(|n| inner_weight.shfl(n));
        let lightest_two = (leaf0 + leaf1).min(inner0 + inner1).min(leaf0 + inner0);
        // Not beyond what the lanes see.
        let limit = (lightest_two - 1).min(leaf31.min(inner31));
        let taken_leaves = k.var(leaf_weight.le(limit).ballot().popc());
        let taken_inner = k.var(inner_weight.le(limit).ballot().popc());
        k.if_uniform(((taken_leaves + taken_inner) & 1).ne(0), || {
            // The heaviest stays; of equal ones, the inner node.
            let heaviest_leaf = taken_leaves.ne(0).select(leaf_weight.shfl(taken_leaves - 1), 0u32);
            let heaviest_inner = taken_inner.ne(0).select(inner_weight.shfl(taken_inner - 1), 0u32);
            let leaf_stays = heaviest_leaf.gt(heaviest_inner).to_u32();
            taken_leaves.set(taken_leaves - leaf_stays);
            taken_inner.set(taken_inner - (1 - leaf_stays));
        });
        let lighter = self.lighter_inner_nodes(leaf_weight, inner_weight, *taken_inner);

        // The leaves' ranks among all taken nodes, as a set of 64 bits.
        let rank = lane + lighter;
        let is_taken = lane.lt(taken_leaves);
        let bit = |rank: Reg<'k, u32>| is_taken.select(1u32 << rank, 0u32);
        let [low, high] = [warp_or(k, bit(rank)), warp_or(k, bit(rank - 32))];
        // The lane's pair has the ranks 2n and 2n + 1.
        let upper = lane.ge(16);
        let word = upper.select(high, low);
        let shift = (lane << 1) & 31;
        let leaves_before = (word & ((1u32 << shift) - 1)).popc() + upper.select(low.popc(), 0u32);
        let pair = word >> shift;
        let is_leaf = [(pair & 1).ne(0), (pair & 2).ne(0)];
        let leaf_numbers = [leaves_before, leaves_before + (pair & 1)];
        let nodes: [_; 2] = std::array::from_fn(|n| {
            let number = leaf_numbers[n];
            let rank = (lane << 1) + u32::from(n == 1);
            is_leaf[n].select((page + LEAVES) + ((leaf + number) << 2), (page + NODES) + ((inner + rank - number) << 2))
        });
        let pairs = (taken_leaves + taken_inner) >> 1;
        let active = lane.lt(pairs);
        let weights = nodes.map(|node| k.when(active).load_or(node.shared::<u32>(), 0u32));
        k.sync_warp();
        let parent = made + lane;
        for node in nodes {
            k.when(active).store(node.shared::<u32>(), parent);
        }
        k.when(active).store(first_inner.index(parent), weights[0] + weights[1]);
        k.sync_warp();
        leaf.set(leaf + taken_leaves);
        inner.set(inner + taken_inner);
        made.set(made + pairs);
    }

    /// Returns the number of taken inner nodes that are lighter than the lane's leaf, by binary search over the lanes.
    fn lighter_inner_nodes(
        &self,
        leaf_weight: Reg<'k, u32>,
        inner_weight: Reg<'k, u32>,
        taken_inner: Reg<'k, u32>,
    ) -> Reg<'k, u32> {
        let Workspace { k, lane, .. } = self.ws;
        let lighter = k.var(0u32);
        k.if_uniform(taken_inner.ne(0), || {
            let weight = lane.lt(taken_inner).select(inner_weight, NONE);
            for step in [16u32, 8, 4, 2, 1] {
                let there = weight.shfl(lighter + (step - 1));
                k.when(there.lt(leaf_weight)).set(lighter, lighter + step);
            }
            let there = weight.shfl(*lighter);
            k.when(there.lt(leaf_weight)).set(lighter, lighter + 1);
        });
        *lighter
    }
}

/// Replaces each inner node by its depth and the root: every node adds its ancestor's depth and goes on to the
/// ancestor's ancestor, until all have arrived.
fn find_depths<'k>(ws: Workspace<'k>, root: Reg<'k, u32>) {
    let Workspace { k, page, .. } = ws;
    k.section("huffman: depths");
    let node = |n: Reg<'k, u32>| (page + NODES).shared::<u32>().index(n);
    let nodes = root + 1;
    for_each_32(ws, nodes, |n, inside| {
        let parent = k.when(inside).load_or(node(n), 0u32);
        k.when(inside).store(node(n), n.eq(root).select(root, parent | (1 << DEPTH_SHIFT)));
    });
    k.sync_warp();
    k.do_while_uniform(|| {
        let under_way = k.var(false);
        for_each_32(ws, nodes, |n, inside| {
            let own = k.when(inside).load_or(node(n), root);
            let ancestor = node(own & ANCESTOR_MASK).load();
            k.sync_warp();
            let further = ancestor & ANCESTOR_MASK;
            k.when(inside).store(node(n), (own & !ANCESTOR_MASK) + ancestor);
            under_way.set(*under_way | further.ne(root));
            k.sync_warp();
        });
        under_way.any()
    });
}
