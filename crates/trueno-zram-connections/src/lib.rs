//! Connections of a server: a limit on their number, and which one is displaced when there are too many.
//!
//! A client can connect often and send nothing. A server that refuses newcomers once it is full is then locked by
//! clients that never speak. So a connection is *new* until its client has shown that it speaks the protocol, by a negotiation
//! or a first request. Then it is *established*. When [`Connections`] is full, the oldest new connection is displaced by the
//! next one. Established connections never are.
//!
//! NBD, the control socket, lazy restores and the page server count their connections here. The keeper answers from one thread,
//! and a vhost-user socket serves one machine at a time, so they do not.
//!
//! [`serve_each`] accepts connections, and serves each on a thread of its own.
#![deny(unsafe_code)]

mod listen;
mod socket;
#[cfg(test)]
mod tests;
#[cfg(target_os = "linux")]
mod unix_socket;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub use listen::{Client, Listen, MAX_CONNECTIONS, accept_next, serve_at_most, serve_each};
pub use socket::{Disconnect, Patience, Silence, deadline_after, enable_keepalive, stop_accepting, time_left};
#[cfg(target_os = "linux")]
pub use unix_socket::{Credentials, Received, peer_credentials, peer_process, receive};

/// Limits on the number of connections.
///
/// ```
/// use trueno_zram_connections::ConnectionLimits;
/// assert_eq!(ConnectionLimits::new(128).established, 128);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The most connections at a time, new and established.
    pub connections: usize,
    /// The most established connections at a time. If it is less than `connections`, the rest is a reserve for new ones.
    pub established: usize,
    /// The most connections established over time. No connection is admitted afterwards, and those that are new then leave.
    pub in_all: usize,
}

impl ConnectionLimits {
    /// This many connections at the same time, all of which may be established. There is no limit over time.
    #[must_use]
    pub fn new(connections: usize) -> Self {
        Self { connections, established: connections, in_all: usize::MAX }
    }
}

/// Why a connection is not established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It had to leave for another one, or no connections are served any more. It has been disconnected.
    Displaced,
    /// As many are established as may be at the same time.
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Established,
    /// It was disconnected. It counts until whoever serves it has noticed.
    Leaving,
}

#[derive(Debug)]
struct Entry<C> {
    connection: Arc<C>,
    phase: Phase,
}

#[derive(Debug)]
struct State<C> {
    /// By number, so that the oldest comes first.
    entries: BTreeMap<u64, Entry<C>>,
    next_number: u64,
    established_in_all: usize,
    closed: bool,
}

impl<C: Disconnect> State<C> {
    fn count(&self, phase: Phase) -> usize {
        self.entries.values().filter(|entry| entry.phase == phase).count()
    }

    /// Disconnects up to `count` connections that are in a phase, the oldest first. Returns whether there was one.
    fn disconnect(&mut self, phase: Phase, count: usize) -> bool {
        let found = self.entries.values_mut().filter(|entry| entry.phase == phase).take(count);
        found.fold(false, |_, entry| {
            entry.connection.disconnect();
            entry.phase = Phase::Leaving;
            true
        })
    }
}

/// The connections of a server.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use trueno_zram_connections::{ConnectionLimits, Connections, Refusal};
/// let connections = Connections::new(ConnectionLimits { established: 1, ..ConnectionLimits::new(2) });
/// let (first, second) = (UnixStream::pair()?.0, UnixStream::pair()?.0);
/// let first = connections.admit(first).expect("there is room");
/// let second = connections.admit(second).expect("there is room");
/// assert_eq!(first.establish(), Ok(()));
/// assert_eq!(second.establish(), Err(Refusal::Full));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Connections<C> {
    limits: ConnectionLimits,
    state: Mutex<State<C>>,
    /// A connection has left, or no more are admitted.
    changed: Condvar,
}

impl<C: Disconnect> Connections<C> {
    /// No connections yet.
    #[must_use]
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        let closed = limits.in_all == 0;
        let state = State { entries: BTreeMap::new(), next_number: 0, established_in_all: 0, closed };
        Arc::new(Self { limits, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Gives a new connection a place. If there is none, the oldest new one is disconnected, and this waits until its place is
    /// free: whoever serves a new connection must notice its end at once.
    ///
    /// # Errors
    /// The connection, if all are established, or no more are admitted.
    pub fn admit(self: &Arc<Self>, connection: C) -> Result<Admitted<C>, C> {
        self.enter(connection, WhenFull::Refuse)
    }

    /// Like [`admit`](Self::admit), but waits for the end of an established connection if all are. Returns `None` once no more
    /// are admitted.
    pub fn admit_or_wait(self: &Arc<Self>, connection: C) -> Option<Admitted<C>> {
        self.enter(connection, WhenFull::Wait).ok()
    }

    fn enter(self: &Arc<Self>, connection: C, when_full: WhenFull) -> Result<Admitted<C>, C> {
        let mut state = self.lock();
        while !state.closed && state.entries.len() >= self.limits.connections {
            let leaves = state.count(Phase::Leaving) > 0 || state.disconnect(Phase::New, 1);
            if !leaves && when_full == WhenFull::Refuse {
                return Err(connection);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return Err(connection);
        }
        let (number, connection) = (state.next_number, Arc::new(connection));
        state.next_number += 1;
        state.entries.insert(number, Entry { connection: Arc::clone(&connection), phase: Phase::New });
        Ok(Admitted { connections: Arc::clone(self), number, connection })
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Returns whether there are no connections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether no more connections are admitted.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Admits no more connections, and disconnects those that are new.
    pub fn close(&self) {
        Self::close_locked(&mut self.lock());
        self.changed.notify_all();
    }

    /// Disconnects all connections, and waits until they have left. Admits no more.
    pub fn end_all(&self) {
        let mut state = self.lock();
        Self::close_locked(&mut state);
        state.disconnect(Phase::Established, usize::MAX);
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.entries.is_empty()));
    }

    fn close_locked(state: &mut State<C>) {
        state.closed = true;
        state.disconnect(Phase::New, usize::MAX);
    }

    fn establish(&self, number: u64) -> Result<(), Refusal> {
        let mut state = self.lock();
        let established = state.count(Phase::Established);
        let Some(entry) = state.entries.get_mut(&number) else { return Err(Refusal::Displaced) };
        match entry.phase {
            Phase::Established => return Ok(()),
            Phase::Leaving => return Err(Refusal::Displaced),
            Phase::New if established >= self.limits.established => return Err(Refusal::Full),
            Phase::New => entry.phase = Phase::Established,
        }
        state.established_in_all += 1;
        if state.established_in_all >= self.limits.in_all {
            Self::close_locked(&mut state);
            self.changed.notify_all();
        }
        Ok(())
    }
}

impl<C> Connections<C> {
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> fmt::Debug for Connections<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connections({} of {:?})", self.lock().entries.len(), self.limits)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhenFull {
    Refuse,
    Wait,
}

/// A connection that is served. Dropping it ends the connection and frees its place.
#[derive(Debug)]
pub struct Admitted<C: Disconnect> {
    connections: Arc<Connections<C>>,
    number: u64,
    connection: Arc<C>,
}

impl<C: Disconnect> Admitted<C> {
    /// Returns the connection.
    #[must_use]
    pub fn connection(&self) -> &C {
        &self.connection
    }

    /// Marks the connection as established: it does not leave for others any more.
    ///
    /// # Errors
    /// [`Refusal`]. A connection that was [displaced](Refusal::Displaced) must be given up.
    pub fn establish(&self) -> Result<(), Refusal> {
        self.connections.establish(self.number)
    }
}

impl<C: Disconnect> Drop for Admitted<C> {
    fn drop(&mut self) {
        self.connection.disconnect();
        let entry = self.connections.lock().entries.remove(&self.number);
        // Not under the lock: closing a descriptor may take time.
        drop(entry);
        self.connections.changed.notify_all();
    }
}
