//! Values dropped on a separate thread, because freeing device memory may block forever.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// A value whose drop is waited for no longer than a time limit.
///
/// Device memory and modules are freed only when nothing runs in the context any more, including kernels launched by
/// other users of the primary context. We wait for them in `cuCtxSynchronize`; `cuMemFree` and `cuModuleUnload` would
/// wait anyway, and `cuMemFreeHost` gives no better guarantee. Streams and events are destroyed at once. None of these
/// calls takes a time limit. If one takes too long, its thread continues on its own, and the memory is freed when the
/// kernels end, or never. The context is not given up for this: a long kernel is not a hung one, and none of our work
/// is running.
#[derive(Debug)]
pub(crate) struct BoundedDrop<T: Send + 'static> {
    /// `Some` until dropped.
    value: Option<T>,
    time_limit: Duration,
}

impl<T: Send + 'static> BoundedDrop<T> {
    pub(crate) fn new(value: T, time_limit: Duration) -> Self {
        Self { value: Some(value), time_limit }
    }
}

impl<T: Send + 'static> Deref for BoundedDrop<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("the value is present until it is dropped")
    }
}

impl<T: Send + 'static> DerefMut for BoundedDrop<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("the value is present until it is dropped")
    }
}

impl<T: Send + 'static> Drop for BoundedDrop<T> {
    fn drop(&mut self) {
        let Some(value) = self.value.take() else { return };
        // Without a new thread the value leaks: dropping it here might never return.
        let value = ManuallyDrop::new(value);
        let (done, ended) = channel::<()>();
        let freeing = thread::Builder::new().name("gpu-free".to_owned()).spawn(move || {
            let _done = done;
            drop(ManuallyDrop::into_inner(value));
        });
        let Ok(freeing) = freeing else { return };
        if ended.recv_timeout(self.time_limit) == Err(RecvTimeoutError::Timeout) {
            return;
        }
        // A second panic would abort the process.
        if let Err(panic) = freeing.join()
            && !thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::{Receiver, Sender};
    use std::time::Instant;

    use super::*;

    /// Blocks in `drop` until it receives a message, then sends one.
    struct Slow(Receiver<()>, Sender<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
            let _ = self.1.send(());
        }
    }

    #[test]
    fn slow_drop_continues_in_the_background() {
        let ((go, gate), (done, ended)) = (channel(), channel());
        let start = Instant::now();
        drop(BoundedDrop::new(Slow(gate, done), Duration::from_millis(5)));
        assert!(start.elapsed() >= Duration::from_millis(5));
        assert!(ended.try_recv().is_err(), "the drop is still running");
        go.send(()).unwrap();
        assert_eq!(ended.recv(), Ok(()), "the drop completes later");
    }

    #[test]
    fn fast_drop_is_waited_for() {
        let ((go, gate), (done, ended)) = (channel(), channel());
        go.send(()).unwrap();
        drop(BoundedDrop::new(Slow(gate, done), Duration::from_secs(30)));
        assert_eq!(ended.try_recv(), Ok(()), "the drop is complete");
    }

    #[test]
    fn panic_in_drop_is_propagated() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("in drop");
            }
        }
        let value = BoundedDrop::new(Panics, Duration::from_secs(30));
        let panic = catch_unwind(AssertUnwindSafe(|| drop(value))).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"in drop"));
    }
}
