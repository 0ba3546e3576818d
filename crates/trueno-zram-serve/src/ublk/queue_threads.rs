//! The threads of a device's queues: starts them, and tells which of them failed.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Why a device ended that nobody asked to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UblkError {
    /// A queue could not go on. Its requests would have waited for ever, so the device was removed.
    #[error("queue {queue} failed")]
    Queue {
        /// The number of the queue.
        queue: u16,
        /// What failed.
        #[source]
        source: io::Error,
    },
    /// The thread of a queue panicked.
    #[error("the thread of queue {queue} panicked")]
    Panicked {
        /// The number of the queue.
        queue: u16,
    },
    /// The driver stopped the device, on behalf of another program.
    #[error("{} was stopped by another program", path.display())]
    Stopped {
        /// The path of the device.
        path: PathBuf,
    },
}

/// What the thread of a queue reports.
enum Event {
    /// The driver can hand out requests.
    Fetching,
    /// The thread is about to end.
    Ended,
}

/// A thread for each queue.
pub(super) struct QueueThreads {
    threads: Vec<(u16, JoinHandle<io::Result<()>>)>,
    sender: Sender<Event>,
}

/// Receives what the threads report. It is apart from them, so that one thread can wait while another stops the device.
pub(super) struct QueueEvents(Receiver<Event>);

/// Reports that a thread ends, also if it panics.
struct TellEnd(Sender<Event>);

impl Drop for TellEnd {
    fn drop(&mut self) {
        // If nobody listens any more, the device is being removed.
        let _ = self.0.send(Event::Ended);
    }
}

impl QueueThreads {
    pub(super) fn new() -> (Self, QueueEvents) {
        let (sender, events) = channel();
        (Self { threads: Vec::new(), sender }, QueueEvents(events))
    }

    /// Starts the thread of a queue. `run` calls its argument once the driver can hand out requests.
    pub(super) fn start<F>(&mut self, queue: u16, run: F) -> io::Result<()>
    where
        F: FnOnce(&dyn Fn()) -> io::Result<()> + Send + 'static,
    {
        let end = TellEnd(self.sender.clone());
        let thread = std::thread::Builder::new().name(format!("ublk-{queue}")).spawn(move || {
            run(&|| {
                let _ = end.0.send(Event::Fetching);
            })
        })?;
        self.threads.push((queue, thread));
        Ok(())
    }

    /// Waits for the ends of all threads. Returns why the first one failed that did.
    pub(super) fn join(&mut self) -> Result<(), UblkError> {
        let ends: Vec<_> = self.threads.drain(..).map(|(queue, thread)| (queue, thread.join())).collect();
        ends.into_iter().try_for_each(|(queue, end)| match end {
            Ok(Ok(())) => Ok(()),
            Ok(Err(source)) => Err(UblkError::Queue { queue, source }),
            Err(_) => Err(UblkError::Panicked { queue }),
        })
    }
}

impl QueueEvents {
    /// Waits until all queues can get requests. Returns `false` if one ended instead.
    pub(super) fn wait_until_fetching(&self, queues: u16, patience: Duration) -> io::Result<bool> {
        for _ in 0..queues {
            match self.0.recv_timeout(patience) {
                Ok(Event::Fetching) => {}
                Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => return Ok(false),
                Err(RecvTimeoutError::Timeout) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        Ok(true)
    }

    /// Waits until a queue ends.
    pub(super) fn wait_for_end(&self) {
        while let Ok(Event::Fetching) = self.0.recv() {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A queue that fetches and then runs until it is stopped, as the driver would do it.
    fn until_stopped(stopped: &Arc<AtomicBool>) -> impl FnOnce(&dyn Fn()) -> io::Result<()> + Send + 'static {
        let stopped = Arc::clone(stopped);
        move |fetching| {
            fetching();
            while !stopped.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Ok(())
        }
    }

    #[test]
    fn queues_that_are_stopped_have_not_failed() {
        let stopped = Arc::default();
        let (mut threads, events) = QueueThreads::new();
        (0..3).for_each(|queue| threads.start(queue, until_stopped(&stopped)).unwrap());
        assert!(events.wait_until_fetching(3, PATIENCE).unwrap());
        stopped.store(true, Ordering::Relaxed);
        events.wait_for_end();
        threads.join().unwrap();
    }

    #[test]
    fn a_queue_that_fails_is_named_while_others_are_stopped() {
        let stopped = Arc::default();
        let (mut threads, events) = QueueThreads::new();
        threads.start(0, until_stopped(&stopped)).unwrap();
        threads
            .start(1, |fetching| {
                fetching();
                Err(io::Error::from_raw_os_error(5))
            })
            .unwrap();
        events.wait_for_end();
        stopped.store(true, Ordering::Relaxed);
        let error = threads.join().unwrap_err();
        assert!(matches!(&error, UblkError::Queue { queue: 1, source } if source.raw_os_error() == Some(5)), "{error}");
        assert!(threads.join().is_ok(), "nothing is left to wait for");
    }

    #[test]
    fn a_queue_that_panics_is_named() {
        let stopped = Arc::default();
        let (mut threads, events) = QueueThreads::new();
        threads.start(0, until_stopped(&stopped)).unwrap();
        // Without the message of the panic hook.
        threads.start(7, |_| std::panic::resume_unwind(Box::new("a panic"))).unwrap();
        events.wait_for_end();
        stopped.store(true, Ordering::Relaxed);
        assert!(matches!(threads.join(), Err(UblkError::Panicked { queue: 7 })));
    }

    #[test]
    fn a_queue_that_never_fetches_keeps_the_device_from_starting() {
        let (mut threads, events) = QueueThreads::new();
        threads.start(0, |_| Err(io::ErrorKind::PermissionDenied.into())).unwrap();
        assert!(!events.wait_until_fetching(1, PATIENCE).unwrap());
        assert!(matches!(threads.join(), Err(UblkError::Queue { queue: 0, .. })));

        let stopped: Arc<AtomicBool> = Arc::default();
        let (mut threads, events) = QueueThreads::new();
        let waits = Arc::clone(&stopped);
        threads.start(0, move |_| until_stopped(&waits)(&|| ())).unwrap();
        let error = events.wait_until_fetching(1, Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        stopped.store(true, Ordering::Relaxed);
        threads.join().unwrap();
    }
}
