//! The threads of a device's queues: starts and stops them, and reports the one that failed.

use std::cell::Cell;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The reason why a device ended that was not stopped by its owner.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UblkError {
    /// A queue failed. Its requests would have waited forever, so the device was removed.
    #[error("queue {queue} failed")]
    Queue {
        /// The number of the queue.
        queue: u16,
        /// The error.
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

/// A report from the thread of a queue.
#[derive(Debug)]
enum QueueEvent {
    /// The driver can hand out requests.
    Fetching,
    /// The thread is about to end.
    Ended {
        /// `true` if it was fetching before.
        fetched: bool,
    },
}

/// The work of a queue's thread. It calls its argument once the driver can hand out requests.
pub(super) type RunQueue = Box<dyn FnOnce(&dyn Fn()) -> io::Result<()> + Send>;

/// The time to wait for threads before the driver is asked again to stop their queues.
const STOP_AGAIN: Duration = Duration::from_millis(100);

/// A thread for each queue.
#[derive(Debug, Default)]
pub(super) struct QueueThreads {
    threads: Vec<(u16, JoinHandle<io::Result<()>>)>,
}

/// Receives the reports of the threads, until all have ended. It is separate from them, so that one thread can wait while another
/// stops the device.
#[derive(Debug)]
pub(super) struct QueueEvents(Receiver<QueueEvent>);

/// Reports that a thread ends, also if it panics.
struct EndReporter {
    events: Sender<QueueEvent>,
    fetched: Cell<bool>,
}

impl EndReporter {
    fn report_fetching(&self) {
        self.fetched.set(true);
        // Without a receiver, the device is being removed.
        let _ = self.events.send(QueueEvent::Fetching);
    }
}

impl Drop for EndReporter {
    fn drop(&mut self) {
        let _ = self.events.send(QueueEvent::Ended { fetched: self.fetched.get() });
    }
}

impl QueueThreads {
    /// Starts a thread for each queue, in order of their numbers. No queue runs before all threads have started, and none does
    /// after an error: a queue that fetches while the driver stops might never end.
    pub(super) fn start(queues: Vec<RunQueue>) -> io::Result<(Self, QueueEvents)> {
        Self::start_with(queues, |queue| thread::Builder::new().name(format!("ublk-{queue}")))
    }

    fn start_with(queues: Vec<RunQueue>, builder: impl Fn(u16) -> thread::Builder) -> io::Result<(Self, QueueEvents)> {
        let (sender, events) = channel();
        // Set once no more threads are started: `true` if there is one for each queue.
        let all_started = Arc::new(OnceLock::new());
        let mut threads = Vec::with_capacity(queues.len());
        let mut failed = None;
        for (queue, run) in (0..).zip(queues) {
            let (events, all_started) = (sender.clone(), Arc::clone(&all_started));
            let started = builder(queue).spawn(move || {
                if !all_started.wait() {
                    return Ok(());
                }
                let reporter = EndReporter { events, fetched: Cell::new(false) };
                run(&|| reporter.report_fetching())
            });
            match started {
                Ok(thread) => threads.push((queue, thread)),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        all_started.set(failed.is_none()).expect("it is set once");
        match failed {
            None => Ok((Self { threads }, QueueEvents(events))),
            Some(error) => {
                // They do not run their queues.
                threads.into_iter().for_each(|(_, thread)| _ = thread.join());
                Err(error)
            }
        }
    }

    /// Has the driver stop all queues, and waits for their threads. Returns the error of the first queue that failed.
    ///
    /// `stop` reaches queues that are fetching. A queue that begins to fetch just afterwards is stopped by the next call.
    pub(super) fn stop(&mut self, mut stop: impl FnMut()) -> Result<(), UblkError> {
        stop();
        while !self.end_within(STOP_AGAIN) {
            stop();
        }
        let ends: Vec<_> = self.threads.drain(..).map(|(queue, thread)| (queue, thread.join())).collect();
        ends.into_iter().try_for_each(|(queue, end)| match end {
            Ok(Ok(())) => Ok(()),
            Ok(Err(source)) => Err(UblkError::Queue { queue, source }),
            Err(_) => Err(UblkError::Panicked { queue }),
        })
    }

    /// Waits until all threads have ended. Returns `false` after `timeout`.
    fn end_within(&self, timeout: Duration) -> bool {
        const LOOK_AGAIN: Duration = Duration::from_millis(1);
        let start = Instant::now();
        while !self.threads.iter().all(|(_, thread)| thread.is_finished()) {
            if start.elapsed() >= timeout {
                return false;
            }
            thread::sleep(LOOK_AGAIN);
        }
        true
    }
}

impl QueueEvents {
    /// Waits until each of the queues can get requests, or has ended. Returns `false` if one has ended. The others are then
    /// known to the driver, which can stop them.
    ///
    /// # Errors
    /// If that takes all queues together longer than `timeout`.
    pub(super) fn wait_until_fetching(&self, queues: u16, timeout: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + timeout;
        let (mut begun, mut ended) = (0, false);
        while begun < queues {
            match self.0.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(QueueEvent::Fetching) => begun += 1,
                Ok(QueueEvent::Ended { fetched }) => {
                    begun += u16::from(!fetched);
                    ended = true;
                }
                // All have ended.
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
                Err(RecvTimeoutError::Timeout) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        Ok(!ended)
    }

    /// Waits until a queue ends.
    pub(super) fn wait_for_end(&self) {
        while let Ok(QueueEvent::Fetching) = self.0.recv() {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// A stand-in for the driver: it stops the queues that are fetching at that moment, and no others.
    #[derive(Debug, Default)]
    struct Driver {
        queues: Mutex<Vec<Arc<AtomicBool>>>,
        /// The number of calls of `stop`.
        stops: AtomicUsize,
    }

    impl Driver {
        fn stop(&self) {
            self.stops.fetch_add(1, Ordering::SeqCst);
            self.queues.lock().unwrap().iter().for_each(|stopped| stopped.store(true, Ordering::SeqCst));
        }

        /// A queue that fetches once `ready` allows it, and then runs until it is stopped.
        fn queue(self: &Arc<Self>, ready: impl FnOnce(&Self) + Send + 'static) -> RunQueue {
            let driver = Arc::clone(self);
            Box::new(move |fetching| {
                ready(&driver);
                let stopped = Arc::new(AtomicBool::new(false));
                driver.queues.lock().unwrap().push(Arc::clone(&stopped));
                fetching();
                while !stopped.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                Ok(())
            })
        }
    }

    fn failing(queue: impl FnOnce(&dyn Fn()) + Send + 'static) -> RunQueue {
        Box::new(move |fetching| {
            queue(fetching);
            Err(io::Error::from_raw_os_error(5))
        })
    }

    #[test]
    fn queues_that_are_stopped_have_not_failed() {
        let driver = Arc::new(Driver::default());
        let queues = (0..3).map(|_| driver.queue(|_| ())).collect();
        let (mut threads, events) = QueueThreads::start(queues).unwrap();
        assert!(events.wait_until_fetching(3, TIMEOUT).unwrap());
        driver.stop();
        events.wait_for_end();
        threads.stop(|| driver.stop()).unwrap();
    }

    #[test]
    fn a_queue_that_fails_is_named_while_others_are_stopped() {
        let driver = Arc::new(Driver::default());
        let queues = vec![driver.queue(|_| ()), failing(|fetching| fetching())];
        let (mut threads, events) = QueueThreads::start(queues).unwrap();
        events.wait_for_end();
        let error = threads.stop(|| driver.stop()).unwrap_err();
        assert!(matches!(&error, UblkError::Queue { queue: 1, source } if source.raw_os_error() == Some(5)), "{error}");
        assert!(threads.stop(|| ()).is_ok(), "nothing is left to wait for");
    }

    #[test]
    fn a_queue_that_panics_is_named() {
        let driver = Arc::new(Driver::default());
        // Without the message of the panic hook.
        let panics: RunQueue = Box::new(|_| std::panic::resume_unwind(Box::new("a panic")));
        let (mut threads, events) = QueueThreads::start(vec![driver.queue(|_| ()), panics]).unwrap();
        events.wait_for_end();
        assert!(matches!(threads.stop(|| driver.stop()), Err(UblkError::Panicked { queue: 1 })));
    }

    #[test]
    fn a_queue_that_never_fetches_keeps_the_device_from_starting() {
        let queue: RunQueue = Box::new(|_| Err(io::ErrorKind::PermissionDenied.into()));
        let (mut threads, events) = QueueThreads::start(vec![queue]).unwrap();
        assert!(!events.wait_until_fetching(1, TIMEOUT).unwrap());
        assert!(matches!(threads.stop(|| ()), Err(UblkError::Queue { queue: 0, .. })));

        let stopped: Arc<AtomicBool> = Arc::default();
        let waits = Arc::clone(&stopped);
        let silent: RunQueue = Box::new(move |_| {
            while !waits.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            Ok(())
        });
        let (mut threads, events) = QueueThreads::start(vec![silent]).unwrap();
        let error = events.wait_until_fetching(1, Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        threads.stop(|| stopped.store(true, Ordering::SeqCst)).unwrap();
    }

    #[test]
    fn a_queue_that_fails_at_the_start_does_not_keep_a_slower_one_from_being_stopped() {
        let driver = Arc::new(Driver::default());
        let (failed, is_failed) = channel();
        let slow = driver.queue(move |_| {
            // It fetches well after the other one has failed.
            is_failed.recv().unwrap();
            thread::sleep(Duration::from_millis(20));
        });
        let queues = vec![slow, failing(move |_| failed.send(()).unwrap()), failing(|fetching| fetching())];
        let (mut threads, events) = QueueThreads::start(queues).unwrap();
        assert!(!events.wait_until_fetching(3, TIMEOUT).unwrap());
        let error = threads.stop(|| driver.stop()).unwrap_err();
        assert!(matches!(error, UblkError::Queue { queue: 1, .. }), "{error}");
        assert_eq!(driver.queues.lock().unwrap().len(), 1, "the driver knew the queue when it was told to stop");
    }

    #[test]
    fn a_queue_that_fetches_after_the_stop_is_stopped_again() {
        let driver = Arc::new(Driver::default());
        let late = driver.queue(|driver| {
            while driver.stops.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            // The stop is over: it did not reach this queue.
            drop(driver.queues.lock().unwrap());
        });
        let (mut threads, events) = QueueThreads::start(vec![late]).unwrap();
        assert!(events.wait_until_fetching(1, Duration::from_millis(1)).is_err());
        threads.stop(|| driver.stop()).unwrap();
    }

    #[test]
    fn a_thread_that_cannot_be_started_keeps_all_queues_from_running() {
        let ran = Arc::new(AtomicBool::new(false));
        let queue = || -> RunQueue {
            let ran = Arc::clone(&ran);
            Box::new(move |_| {
                ran.store(true, Ordering::SeqCst);
                Ok(())
            })
        };
        // There is no room for such a stack.
        let builder = |queue| match queue {
            2 => thread::Builder::new().stack_size(1 << 60),
            _ => thread::Builder::new(),
        };
        assert!(QueueThreads::start_with(vec![queue(), queue(), queue(), queue()], builder).is_err());
        assert!(!ran.load(Ordering::SeqCst));
    }

    #[test]
    fn the_timeout_is_for_all_queues_together() {
        let (sender, receiver) = channel();
        // Each queue begins soon after the one before, but the last one would begin after minutes.
        let queues = thread::spawn(move || {
            while sender.send(QueueEvent::Fetching).is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let waited = QueueEvents(receiver).wait_until_fetching(u16::MAX, Duration::from_millis(50));
        assert_eq!(waited.unwrap_err().kind(), io::ErrorKind::TimedOut);
        queues.join().unwrap();
    }
}
