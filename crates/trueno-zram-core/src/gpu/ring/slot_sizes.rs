//! The sizes of the slots that a call is split into.

use super::piece::PIECE_PAGES;

/// Slots at the start and at the end of a call are no smaller than this, unless `batch_size` is. A kernel takes 60 µs for any
/// number of pages below it (H200), which is what 640 pages take on the bus.
const SMALLEST_SLOT_PAGES: usize = 1024;

/// Returns the number of pages of a call's next slot.
///
/// The device idles while the first slot is staged, and the bus idles while the last one is compressed and delivered. So a
/// call starts with small slots and doubles them, and halves them towards its end. A call of 16,000 pages in slots of 4,096
/// becomes 1024, 1024, 2048, 4096, 4096, 2048, 1024, 640.
pub(super) fn next_slot_pages(pages_before: usize, pages_left: usize, slot_pages: usize) -> usize {
    let smallest = SMALLEST_SLOT_PAGES.min(slot_pages);
    let rising = pages_before.max(smallest);
    let falling = pages_left.div_ceil(2).next_multiple_of(PIECE_PAGES).max(smallest);
    rising.min(falling).min(slot_pages).min(pages_left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot_sizes(pages: usize, slot_pages: usize) -> Vec<usize> {
        let (mut sizes, mut before) = (Vec::new(), 0);
        while before < pages {
            sizes.push(next_slot_pages(before, pages - before, slot_pages));
            before += sizes.last().expect("pushed just now");
        }
        sizes
    }

    #[test]
    fn slots_rise_at_the_start_and_fall_at_the_end() {
        assert_eq!(slot_sizes(16_000, 4096), [1024, 1024, 2048, 4096, 4096, 2048, 1024, 640]);
        assert_eq!(slot_sizes(4000, 4096), [1024, 1024, 1024, 928]);
        assert_eq!(slot_sizes(1000, 4096), [1000]);
        assert_eq!(slot_sizes(0, 4096), []);
    }

    #[test]
    fn slots_of_fewer_pages_than_the_smallest_are_all_full() {
        assert_eq!(slot_sizes(3500, 1000), [1000, 1000, 1000, 500]);
        assert_eq!(slot_sizes(23, 4), [4, 4, 4, 4, 4, 3]);
        assert_eq!(slot_sizes(700, 300), [300, 300, 100]);
    }

    #[test]
    fn every_call_is_cut_whole_into_slots_that_fit() {
        for slot_pages in [1, 2, 255, 256, 257, 1000, 1024, 1025, 4096, 10_000, 65_536] {
            for pages in (0..5000).step_by(97).chain([16_000, 64_000, 1 << 20]) {
                let sizes = slot_sizes(pages, slot_pages);
                assert_eq!(sizes.iter().sum::<usize>(), pages, "{pages} pages in slots of {slot_pages}");
                assert!(sizes.iter().all(|size| (1..=slot_pages).contains(size)), "{sizes:?}");
            }
        }
    }

    #[test]
    fn long_calls_have_few_more_slots_than_they_need() {
        for slot_pages in [1024, 4096, 16_384] {
            let pages = 1 << 20;
            assert!(slot_sizes(pages, slot_pages).len() <= pages / slot_pages + 12, "slots of {slot_pages}");
        }
    }
}
