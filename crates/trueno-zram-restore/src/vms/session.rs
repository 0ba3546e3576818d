//! One VM: the state shared by its handler and the workers of the background fill.

use std::ops::Range;

use rustix::io::Errno;
use trueno_zram_core::{PAGE_SIZE, Page};

use super::proof::SessionProof;
use super::regions::{Region, Regions};
use super::touches::TouchRecorder;
use crate::disproofs::Disproofs;
use crate::error::Error;
use crate::latency::LatencyRecorder;
use crate::lazy_memory::{Content, Filled, LazyMemory, Stop};
use crate::options::RestoreOptions;
use crate::process_handle::Process;
use crate::report::Notify;
use crate::uffd::PROBE_ADDRESS;

/// A VM that is being restored.
pub(crate) struct Session<'a> {
    pub(crate) lazy: LazyMemory,
    pub(crate) vmm: &'a Process,
    pub(crate) regions: Regions,
    pub(crate) options: &'a RestoreOptions,
    pub(crate) recorder: Option<&'a TouchRecorder>,
    pub(crate) notify: &'a Notify,
    pub(crate) proof: SessionProof,
    /// The failed proofs of the source, for all VMs that are restored from it.
    pub(crate) disproofs: &'a Disproofs,
    pub(crate) latencies: LatencyRecorder,
    /// Latencies of all VMs.
    pub(crate) latencies_of_all: &'a LatencyRecorder,
}

impl Session<'_> {
    /// Reads the content of a unit. Huge units are never `Zeros`: hugetlb memory has no zero page.
    pub(crate) fn load<'b>(&self, region: &Region, unit: usize, buffer: &'b mut [Page]) -> Result<Content<'b>, Error> {
        let (first, pages) = (region.page_of(unit), &mut buffer[..region.pages_per_unit()]);
        let read =
            |page, out: &mut [Page]| self.lazy.source.read(page, out).map_err(|source| Error::Damaged { page, source });
        match (read(first, pages), &mut *pages) {
            (Ok(()), _) => {}
            (Err(error), [_]) => return Err(error),
            // One by one, to find the page that is damaged.
            (Err(_), pages) => (first..).zip(pages.chunks_mut(1)).try_for_each(|(page, out)| read(page, out))?,
        }
        Ok(if region.is_huge() { Content::Bytes(pages.as_flattened()) } else { Content::of(pages) })
    }

    /// Reads the content of a unit that still has to be filled. `None` if it is damaged: that is handled when it is touched.
    pub(crate) fn load_wanted<'b>(&self, region: &Region, unit: usize, buffer: &'b mut [Page]) -> Option<Content<'b>> {
        if self.lazy.states.is_wanted(unit) { self.load(region, unit, buffer).ok() } else { None }
    }

    /// Returns the zeros of a unit that was removed.
    pub(crate) fn zeros<'b>(&self, region: &Region, buffer: &'b mut [Page]) -> Content<'b> {
        if !region.is_huge() {
            return Content::Zeros(PAGE_SIZE);
        }
        let bytes = buffer[..region.pages_per_unit()].as_flattened_mut();
        bytes.fill(0);
        Content::Bytes(bytes)
    }

    /// Fills units that are missing, and wakes the threads that wait for them. Returns how many units are done: fewer than
    /// all if the VMM is removing memory, and events must be read before it goes on.
    pub(crate) fn put(&self, region: &Region, units: Range<usize>, content: Content<'_>) -> Result<usize, Stop> {
        let unit_len = content.len() / units.len();
        let mut next = units.start;
        while next < units.end {
            let (address, rest) =
                (region.address_of(next), content.part((next - units.start) * unit_len..content.len()));
            match self.lazy.fill(address, next..units.end, rest).map_err(|error| self.stop(error))? {
                Filled::Units(count) => next += count,
                Filled::Changing => break,
                Filled::Unmapped => {
                    let _ = self.lazy.uffd.wake(address, region.unit_len);
                    self.lazy.states.set_filled(next);
                    next += 1;
                }
            }
        }
        Ok(next - units.start)
    }

    /// Returns `true` if the VM has ended: no process has its memory any more. The process that connected may be another one.
    pub(crate) fn is_gone(&self) -> bool {
        if self.regions.find(PROBE_ADDRESS).is_some() {
            return self.vmm.has_ended();
        }
        self.lazy.uffd.is_gone()
    }

    /// Interprets an error of the kernel.
    pub(crate) fn stop(&self, error: Errno) -> Stop {
        Stop::new(error, || self.is_gone(), "filling a page of the VM")
    }
}
