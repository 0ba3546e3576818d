//! Reads many pages of a source of which some may be damaged.

use std::ops::{ControlFlow, Range};

use trueno_zram_archive::Pages;
use trueno_zram_core::{PAGE_SIZE, Page};

use crate::lazy_memory::Stop;

/// Pages that are read at a time near damage.
const NEAR_DAMAGE_PAGES: usize = 16;

/// Receives consecutive pages; `None` for those that cannot be read.
pub(crate) type TakePages<'a> = dyn FnMut(Range<u64>, Option<&[Page]>) -> Result<(), Stop> + 'a;

/// Reads pages that follow each other, as many at a time as `buffer` holds, and passes them to `take`. If one of them is
/// damaged, those near it are read in smaller portions: a damaged group of an archive is read a few times, not once per page.
pub(crate) fn read_intact(
    source: &dyn Pages,
    pages: Range<u64>,
    buffer: &mut [Page],
    take: &mut TakePages<'_>,
) -> Result<(), Stop> {
    let (at_a_time, mut next, mut taken) = (buffer.len(), pages.start, Ok(()));
    source.visit(pages.clone(), buffer, &mut |first, portion| {
        let count = portion.as_ref().map_or(at_a_time, |portion| portion.len());
        next = pages.end.min(first.saturating_add(count as u64));
        taken = match portion {
            Ok(portion) => take(first..next, Some(portion)),
            Err(_) if at_a_time == 1 => take(first..next, None),
            Err(_) if at_a_time <= NEAR_DAMAGE_PAGES => read_intact(source, first..next, &mut [[0; PAGE_SIZE]], take),
            Err(_) => read_intact(source, first..next, &mut [[0; PAGE_SIZE]; NEAR_DAMAGE_PAGES], take),
        };
        if taken.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    taken?;
    // A group that cannot be read at all is visited only once.
    if next < pages.end { take(next..pages.end, None) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use trueno_zram_archive::{Error, Image, Result, Visit};

    use super::*;

    /// Pages of which some are damaged, and the number of reads.
    struct Damaged {
        image: Image,
        pages: Range<u64>,
        reads: AtomicUsize,
    }

    impl Damaged {
        fn new(pages: Range<u64>) -> Self {
            let image = Image::new((0..200u8).map(|number| [number; PAGE_SIZE]).collect());
            Self { image, pages, reads: AtomicUsize::new(0) }
        }
    }

    impl Pages for Damaged {
        fn len_bytes(&self) -> u64 {
            self.image.len_bytes()
        }

        fn read(&self, first: u64, out: &mut [Page]) -> Result<()> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            let end = first + out.len() as u64;
            if first < self.pages.end && self.pages.start < end {
                Err(Error::NoIndex)
            } else {
                self.image.read(first, out)
            }
        }

        fn is_zero(&self, page: u64) -> Result<bool> {
            self.image.is_zero(page)
        }
    }

    /// A group that cannot be read: one error for all its pages.
    struct Unreadable;

    impl Pages for Unreadable {
        fn len_bytes(&self) -> u64 {
            200 * PAGE_SIZE as u64
        }

        fn read(&self, _: u64, _: &mut [Page]) -> Result<()> {
            Err(Error::NoIndex)
        }

        fn visit(&self, pages: Range<u64>, _: &mut [Page], visit: &mut Visit<'_>) {
            let _ = visit(pages.start, Err(Error::NoIndex));
        }

        fn is_zero(&self, _: u64) -> Result<bool> {
            Err(Error::NoIndex)
        }
    }

    /// Reads all pages from 3 on. Returns those that were taken, and those that were not.
    fn read(source: &dyn Pages) -> (Vec<u64>, Vec<u64>) {
        let (mut intact, mut damaged) = (Vec::new(), Vec::new());
        let all = read_intact(source, 3..200, &mut [[0xff; PAGE_SIZE]; 200], &mut |pages, content| {
            match content {
                Some(content) => {
                    assert!(pages.clone().zip(content).all(|(number, page)| u64::from(page[9]) == number));
                    assert_eq!(content.len() as u64, pages.end - pages.start);
                    intact.extend(pages);
                }
                None => damaged.extend(pages),
            }
            Ok(())
        });
        assert!(all.is_ok());
        (intact, damaged)
    }

    #[test]
    fn all_pages_but_the_damaged_ones_are_taken_in_order() {
        for damaged in [0..3, 3..4, 77..78, 70..90, 199..200, 3..200] {
            let source = Damaged::new(damaged.clone());
            let (intact, found) = read(&source);
            assert_eq!(intact, (3..200).filter(|page| !damaged.contains(page)).collect::<Vec<_>>());
            assert_eq!(found, (3..200).filter(|page| damaged.contains(page)).collect::<Vec<_>>());
        }
        let source = Damaged::new(77..78);
        read(&source);
        assert_eq!(source.reads.into_inner(), 1 + 197usize.div_ceil(NEAR_DAMAGE_PAGES) + NEAR_DAMAGE_PAGES);
    }

    #[test]
    fn all_pages_of_a_group_that_cannot_be_read_are_damaged() {
        assert_eq!(read(&Unreadable), (Vec::new(), (3..200).collect()));
    }

    #[test]
    fn a_stop_ends_the_reading() {
        let source = Damaged::new(150..151);
        let stopped = read_intact(&source, 0..200, &mut [[0; PAGE_SIZE]; 10], &mut |_, _| Err(Stop::Ended));
        assert!(matches!(stopped, Err(Stop::Ended)));
        assert_eq!(source.reads.into_inner(), 1);
    }
}
