//! Connections of a listening socket: accepted for as long as it lasts, and served by a bounded number of threads.

use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

/// Connections that are served at the same time, unless something else is asked for. More of them wait.
pub const MAX_CONNECTIONS: usize = 128;

/// How long to wait for descriptors or memory to become free.
const PAUSE: Duration = Duration::from_millis(10);

/// Accepts the next connection. If there are no descriptors or there is no memory for it, or if the client has left already, it
/// waits a little and tries again.
///
/// # Errors
/// Any other error of `accept`.
///
/// ```no_run
/// use std::os::unix::net::UnixListener;
/// let listener = UnixListener::bind("socket")?;
/// let (connection, _) = trueno_zram_restore::accept_next(|| listener.accept())?;
/// # drop(connection);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn accept_next<C>(mut accept: impl FnMut() -> io::Result<C>) -> io::Result<C> {
    loop {
        match accept() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_transient(&error) => thread::sleep(PAUSE),
            accepted => return accepted,
        }
    }
}

/// Accepts up to `limit` connections, and serves each on a thread of its own, [`MAX_CONNECTIONS`] at a time. Returns when all have
/// ended. Where no thread can be started, a connection is served by the caller's, and others wait.
///
/// # Errors
/// Those of [`accept_next`]. Connections are served to their end before it returns.
pub fn serve_each<C: Send + Sync>(
    accept: impl FnMut() -> io::Result<C>,
    limit: Option<usize>,
    serve: impl Fn(&C) + Sync,
) -> io::Result<()> {
    let at_a_time = NonZeroUsize::new(MAX_CONNECTIONS).expect("it is not 0");
    serve_at_most(at_a_time, accept, limit, serve, || {})
}

/// Like [`serve_each`], with the number of connections `at_a_time`. Calls `crowded` when a connection has to wait for the first time.
pub(crate) fn serve_at_most<C: Send + Sync>(
    at_a_time: NonZeroUsize,
    mut accept: impl FnMut() -> io::Result<C>,
    limit: Option<usize>,
    serve: impl Fn(&C) + Sync,
    crowded: impl FnOnce(),
) -> io::Result<()> {
    let (places, serve, mut crowded) = (Places::new(at_a_time.get()), &serve, Some(crowded));
    thread::scope(|threads| {
        for _ in 0..limit.unwrap_or(usize::MAX) {
            let connection = Arc::new(accept_next(&mut accept)?);
            if !places.has_free()
                && let Some(crowded) = crowded.take()
            {
                crowded();
            }
            let place = places.take();
            let theirs = Arc::clone(&connection);
            let work = move || {
                let _place = place;
                serve(&theirs);
            };
            if thread::Builder::new().name("client".into()).spawn_scoped(threads, work).is_err() {
                serve(&connection);
            }
        }
        Ok(())
    })
}

/// Places for connections that are being served.
#[derive(Debug)]
struct Places {
    free: Mutex<usize>,
    /// One more is free.
    changed: Condvar,
}

/// A place that is free again when this is dropped.
#[derive(Debug)]
struct Place<'a>(&'a Places);

impl Places {
    fn new(count: usize) -> Self {
        Self { free: Mutex::new(count), changed: Condvar::new() }
    }

    /// Returns whether there is a free place now.
    fn has_free(&self) -> bool {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) > 0
    }

    /// Waits for a free place.
    fn take(&self) -> Place<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        *self.changed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner) -= 1;
        Place(self)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.changed.notify_one();
    }
}

/// Whether a later connection may be accepted all the same: a client that left, a network that is down, or a shortage. accept(2)
/// also lists EOPNOTSUPP among the errors of a network, but a socket that cannot accept at all gives it as well.
fn is_transient(error: &io::Error) -> bool {
    const TRANSIENT: [Errno; 12] = [
        Errno::CONNABORTED,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        Errno::PROTO,
        Errno::NOPROTOOPT,
        Errno::NONET,
        Errno::NETDOWN,
        Errno::HOSTDOWN,
        Errno::HOSTUNREACH,
        Errno::NETUNREACH,
    ];
    error.raw_os_error().is_some_and(|code| TRANSIENT.iter().any(|errno| errno.raw_os_error() == code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn errors_that_pass_do_not_end_the_listening_and_others_do() {
        let errors = [
            Errno::MFILE,
            Errno::CONNABORTED,
            Errno::INTR,
            Errno::NFILE,
            Errno::NOPROTOOPT,
            Errno::NONET,
            Errno::INVAL,
        ];
        let mut answers = errors.iter().map(|errno| Err((*errno).into()));
        let failed = accept_next(|| answers.next().unwrap_or(Ok(()))).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
        accept_next(|| answers.next().unwrap_or(Ok(()))).unwrap();
    }

    #[test]
    fn the_number_of_connections_at_a_time_is_bounded() {
        let (now, most, served) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let serve = |_: &()| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(5));
            now.fetch_sub(1, Ordering::SeqCst);
            served.fetch_add(1, Ordering::SeqCst);
        };
        serve_at_most(NonZeroUsize::new(3).unwrap(), || Ok(()), Some(20), serve, || {}).unwrap();
        assert_eq!(served.load(Ordering::SeqCst), 20);
        assert!(most.load(Ordering::SeqCst) <= 3, "{most:?}");
    }

    #[test]
    fn that_connections_wait_is_reported_once() {
        let (report, waits) = std::sync::mpsc::channel();
        let waits = Mutex::new(waits);
        // The first connection is served until another one is known to wait.
        let serve = |number: &usize| {
            if *number == 0 {
                waits.lock().unwrap().recv_timeout(Duration::from_secs(600)).expect("a notice that one waits");
            }
        };
        let mut accepted = 0..;
        let accept = || Ok(accepted.next().expect("there is always another one"));
        serve_at_most(NonZeroUsize::MIN, accept, Some(5), serve, || report.send(()).unwrap()).unwrap();
        assert!(waits.lock().unwrap().try_recv().is_err(), "one notice");
    }

    #[test]
    fn nothing_is_reported_while_there_is_room() {
        let serve = |_: &()| {};
        serve_at_most(NonZeroUsize::new(3).unwrap(), || Ok(()), Some(3), serve, || panic!("there is room")).unwrap();
    }
}
