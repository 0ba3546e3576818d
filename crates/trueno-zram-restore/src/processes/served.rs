//! A process that the handler serves: its faults, its streams, and children whose memory is not known yet.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::memory::ProcessMemory;
use super::proof::FollowedProofs;
use super::streams::Streams;
use crate::event::Fault;
use crate::latency::TouchedGroups;

/// A process, as the handler sees it.
pub(super) struct ServedProcess {
    pub(super) memory: Arc<ProcessMemory>,
    pub(super) faults: Vec<Fault>,
    /// Faults that a worker is about to answer. They are answered here if the page is removed meanwhile.
    pub(super) delegated: Vec<Fault>,
    pub(super) touched_groups: TouchedGroups,
    pub(super) proofs: FollowedProofs,
    pub(super) streams: Streams,
    /// Units behind faults, the latest block last.
    pub(super) blocks: Vec<Range<usize>>,
    /// Children that were forked while a change was under way, if one was. The order of both is not known.
    pub(super) unsettled_children: Option<Vec<UnsettledChild>>,
    /// It was seen to change its memory since then.
    pub(super) was_changing: bool,
    /// It had threads that may change memory while another one forks.
    pub(super) has_more_threads: bool,
    /// The time at which old changes were last forgotten.
    pub(super) last_forget: Instant,
}

/// A child that gets nothing until the changes beside its fork are known.
pub(super) struct UnsettledChild {
    pub(super) memory: Arc<ProcessMemory>,
    pub(super) since: Instant,
}

impl ServedProcess {
    pub(super) fn new(memory: Arc<ProcessMemory>) -> Self {
        Self {
            touched_groups: TouchedGroups::of(&*memory.lazy.source),
            memory,
            faults: Vec::new(),
            delegated: Vec::new(),
            proofs: FollowedProofs::default(),
            streams: Streams::default(),
            blocks: Vec::new(),
            unsettled_children: None,
            was_changing: false,
            has_more_threads: false,
            last_forget: Instant::now(),
        }
    }

    /// Takes the faults to answer now, with those that were left to workers and are still missing.
    pub(super) fn take_faults(&mut self) -> Vec<Fault> {
        let Self { memory, faults, delegated, .. } = self;
        let states = &memory.lazy.states;
        let is_there = |unit: usize| states.is_filled(unit) && !states.is_removed(unit);
        delegated.retain(|fault| !memory.layout().find(fault.address).is_some_and(is_there));
        faults.append(delegated);
        std::mem::take(faults)
    }

    /// Returns `true` if there is something to do without an event.
    pub(super) fn is_busy(&self) -> bool {
        !self.blocks.is_empty()
            || self.unsettled_children.is_some()
            || self.proofs.has_missing() && !self.memory.is_lost()
    }

    pub(super) fn has_unsettled_children(&self) -> bool {
        self.unsettled_children.as_ref().is_some_and(|children| !children.is_empty())
    }
}
