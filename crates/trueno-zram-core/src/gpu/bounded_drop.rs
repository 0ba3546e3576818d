//! Values that are dropped on a thread of their own: to free memory of a device may take for ever.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// A value whose dropping is waited for no longer than a limit.
///
/// Device memory and modules are freed when nothing runs in the context any more, kernels of others among it: they share the
/// primary context. We wait for them in `cuCtxSynchronize`, and would in `cuMemFree` and `cuModuleUnload`, whatever we did; of
/// `cuMemFreeHost` nothing else is promised. Streams and events are destroyed at once. None of these calls takes a limit:
/// if one is too long, the thread goes on by itself, and the memory is freed when the kernels end, or never. The context
/// is not given up for it: a long kernel is not a hung one, and nothing of ours runs.
#[derive(Debug)]
pub(crate) struct BoundedDrop<T: Send + 'static> {
    /// There until it is dropped.
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
        self.value.as_ref().expect("there until it is dropped")
    }
}

impl<T: Send + 'static> DerefMut for BoundedDrop<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("there until it is dropped")
    }
}

impl<T: Send + 'static> Drop for BoundedDrop<T> {
    fn drop(&mut self) {
        let Some(value) = self.value.take() else { return };
        // If there is no thread to be had, it leaks: dropped here, it might never return.
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
        // A second panic would end the process.
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

    /// Takes until it is told, and says when it is done.
    struct Slow(Receiver<()>, Sender<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
            let _ = self.1.send(());
        }
    }

    #[test]
    fn what_takes_too_long_is_dropped_later() {
        let ((go, gate), (done, ended)) = (channel(), channel());
        let start = Instant::now();
        drop(BoundedDrop::new(Slow(gate, done), Duration::from_millis(5)));
        assert!(start.elapsed() >= Duration::from_millis(5));
        assert!(ended.try_recv().is_err(), "it is not done yet");
        go.send(()).unwrap();
        assert_eq!(ended.recv(), Ok(()), "and then it is");
    }

    #[test]
    fn what_is_dropped_soon_is_waited_for() {
        let ((go, gate), (done, ended)) = (channel(), channel());
        go.send(()).unwrap();
        drop(BoundedDrop::new(Slow(gate, done), Duration::from_secs(30)));
        assert_eq!(ended.try_recv(), Ok(()), "it is done already");
    }

    #[test]
    fn a_panic_is_passed_on() {
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
