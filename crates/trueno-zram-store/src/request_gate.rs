//! The gate between requests and a change of the store's length: a request is either seen to be at work, or sees the new length.

use std::sync::atomic::Ordering;

use crate::atomic_word::AtomicWord;

/// The part of a thread's word that counts the requests it is in: one, and others within that. The rest counts those that ended.
const DEPTH_BITS: u32 = 8;
const DEPTH_MASK: u64 = (1 << DEPTH_BITS) - 1;

/// Enters a request of the thread whose word `thread` is: only that thread changes it. Returns the length of the store, `pages`, which
/// holds until [`leave`].
///
/// The thread stores that it is in a request, then loads the length. The one that resizes stores the length, then loads who is in a
/// request. The fences between both pairs make at least one of them see the other's store.
pub(crate) fn enter<W: AtomicWord>(thread: &W, pages: &W) -> u64 {
    thread.store(thread.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    W::fence();
    pages.load(Ordering::Acquire)
}

/// Leaves a request that [`enter`] entered.
pub(crate) fn leave<W: AtomicWord>(thread: &W) {
    let inner = thread.load(Ordering::Relaxed).wrapping_sub(1);
    let ended = if inner & DEPTH_MASK == 0 { inner.wrapping_add(1 << DEPTH_BITS) } else { inner };
    thread.store(ended, Ordering::Release);
}

/// Publishes a length. Afterwards, requests that [`current`] does not return have it.
pub(crate) fn publish<W: AtomicWord>(pages: &W, new: u64) {
    pages.store(new, Ordering::Release);
    W::fence();
}

/// Returns the number of the request that the thread is in, if it is in one.
pub(crate) fn current<W: AtomicWord>(thread: &W) -> Option<u64> {
    let word = thread.load(Ordering::Acquire);
    (word & DEPTH_MASK != 0).then_some(word >> DEPTH_BITS)
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn a_request_is_told_from_the_next_one_and_has_others_within_it() {
        let (thread, pages) = (std::sync::atomic::AtomicU64::new(u64::MAX << DEPTH_BITS), 7.into());
        assert_eq!(current(&thread), None);
        assert_eq!(enter(&thread, &pages), 7);
        let first = current(&thread).unwrap();
        enter(&thread, &pages);
        leave(&thread);
        assert_eq!(current(&thread), Some(first));
        leave(&thread);
        assert_eq!(current(&thread), None);
        enter(&thread, &pages);
        assert!(current(&thread).is_some_and(|second| second != first));
    }

    /// Page 1 of two is written by a thread while another one cuts it off, clears it, and makes it part of the store again.
    #[test]
    fn a_page_that_was_cut_off_is_never_written_afterwards() {
        loom::model(|| {
            let shared = Arc::new((AtomicU64::new(0), AtomicU64::new(2), AtomicU64::new(0)));
            let writer = loom::thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    let (active, pages, page) = &*shared;
                    if enter(active, pages) > 1 {
                        page.store(7, Ordering::Relaxed);
                    }
                    leave(active);
                }
            });
            let (active, pages, page) = &*shared;
            publish(pages, 1);
            if current(active).is_none() {
                page.store(0, Ordering::Relaxed);
                publish(pages, 1);
                writer.join().unwrap();
                assert_eq!(page.load(Ordering::Relaxed), 0, "the writer saw the new length, or was waited for");
            }
        });
    }
}
