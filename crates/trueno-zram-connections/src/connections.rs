//! The connections of a server: their limits, their phases, and the choice of the one that is displaced.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::socket::Disconnect;

/// Limits on the number of connections.
///
/// ```
/// use trueno_zram_connections::ConnectionLimits;
/// let limits = ConnectionLimits::new(128).with_established(120).with_total(Some(1000));
/// assert_eq!((limits.connections, limits.established, limits.total), (128, 120, Some(1000)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionLimits {
    /// The most connections at a time, new and established.
    pub connections: usize,
    /// The most established connections at a time. If it is less than `connections`, the rest is a reserve for new ones.
    pub established: usize,
    /// The most connections established over time; `None` for any number. Once it is reached, new connections are disconnected,
    /// and no more are admitted.
    pub total: Option<usize>,
}

impl ConnectionLimits {
    /// Allows this many connections at a time, all of which may be established, and any number over time.
    #[must_use]
    pub fn new(connections: usize) -> Self {
        Self { connections, established: connections, total: None }
    }

    /// Limits the established connections at a time. The other places are a reserve for new ones.
    #[must_use]
    pub fn with_established(self, established: usize) -> Self {
        Self { established, ..self }
    }

    /// Limits the connections that are established over time.
    #[must_use]
    pub fn with_total(self, total: Option<usize>) -> Self {
        Self { total, ..self }
    }

    fn is_total_reached(&self, established: usize) -> bool {
        self.total.is_some_and(|total| established >= total)
    }
}

/// The reason why a connection is not established. [`Connections`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EstablishError {
    /// Another connection took its place, or no connections are served any more. It has been disconnected.
    Displaced,
    /// [`ConnectionLimits::established`] connections are established already.
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Established,
    /// It was disconnected. It counts until the thread that serves it notices.
    Leaving,
}

#[derive(Debug)]
struct ServedConnection<C> {
    connection: Arc<C>,
    phase: Phase,
}

#[derive(Debug)]
struct ConnectionTable<C> {
    /// By number, so that the oldest comes first.
    entries: BTreeMap<u64, ServedConnection<C>>,
    next_number: u64,
    established_total: usize,
    closed: bool,
}

impl<C: Disconnect> ConnectionTable<C> {
    fn count(&self, phase: Phase) -> usize {
        self.entries.values().filter(|entry| entry.phase == phase).count()
    }

    /// Disconnects up to `count` connections that are in a phase, the oldest first. Returns `true` if there was one.
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
/// use trueno_zram_connections::{ConnectionLimits, Connections, EstablishError};
/// let connections = Connections::new(ConnectionLimits::new(2).with_established(1));
/// let (first, second) = (UnixStream::pair()?.0, UnixStream::pair()?.0);
/// let first = connections.admit(first).expect("there is room");
/// let second = connections.admit(second).expect("there is room");
/// assert_eq!(first.establish(), Ok(()));
/// assert_eq!(second.establish(), Err(EstablishError::Full));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Connections<C> {
    limits: ConnectionLimits,
    state: Mutex<ConnectionTable<C>>,
    /// A connection has left, or no more are admitted.
    changed: Condvar,
}

impl<C: Disconnect> Connections<C> {
    /// Creates a server's list of connections, which is empty.
    #[must_use]
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        let closed = limits.is_total_reached(0);
        let state = ConnectionTable { entries: BTreeMap::new(), next_number: 0, established_total: 0, closed };
        Arc::new(Self { limits, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Admits a connection. If all places are taken, the oldest new connection is disconnected, and this call waits until its
    /// place is free. So the thread that serves a new connection must notice its end at once.
    ///
    /// # Errors
    /// Returns the connection if all others are established, or if no more are admitted.
    pub fn admit(self: &Arc<Self>, connection: C) -> Result<Admitted<C>, C> {
        self.enter(connection, WhenFull::Refuse)
    }

    /// Like [`admit`](Self::admit), but waits for the end of an established connection if all of them are established. Returns
    /// `None` once no more are admitted.
    ///
    /// ```
    /// use std::os::unix::net::UnixStream;
    /// use trueno_zram_connections::{ConnectionLimits, Connections};
    /// let connections = Connections::new(ConnectionLimits::new(1));
    /// let first = connections.admit_or_wait(UnixStream::pair()?.0).expect("there is room");
    /// assert_eq!(first.establish(), Ok(()));
    /// // Ends the first connection; the second would wait for that.
    /// drop(first);
    /// assert!(connections.admit_or_wait(UnixStream::pair()?.0).is_some());
    /// # Ok::<(), std::io::Error>(())
    /// ```
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
        state.entries.insert(number, ServedConnection { connection: Arc::clone(&connection), phase: Phase::New });
        Ok(Admitted { connections: Arc::clone(self), number, connection })
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Returns `true` if there are no connections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if no more connections are admitted.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Admits no more connections, and disconnects those that are new.
    ///
    /// ```
    /// use std::os::unix::net::UnixStream;
    /// use trueno_zram_connections::{ConnectionLimits, Connections};
    /// let connections = Connections::new(ConnectionLimits::new(8));
    /// connections.close();
    /// assert!(connections.is_closed() && connections.admit(UnixStream::pair()?.0).is_err());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn close(&self) {
        Self::close_locked(&mut self.lock());
        self.changed.notify_all();
    }

    /// Disconnects all connections, and waits until they have left. Admits no more.
    ///
    /// ```
    /// use std::io::Read;
    /// use std::os::unix::net::UnixStream;
    /// use trueno_zram_connections::{ConnectionLimits, Connections};
    /// let connections = Connections::new(ConnectionLimits::new(8));
    /// let (ours, _theirs) = UnixStream::pair()?;
    /// let client = connections.admit(ours).expect("there is room");
    /// // The thread that serves a client notices the end of its connection.
    /// std::thread::spawn(move || client.connection().read(&mut [0]));
    /// connections.end_all();
    /// assert!(connections.is_empty());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn end_all(&self) {
        let mut state = self.lock();
        Self::close_locked(&mut state);
        state.disconnect(Phase::Established, usize::MAX);
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.entries.is_empty()));
    }

    fn close_locked(state: &mut ConnectionTable<C>) {
        state.closed = true;
        state.disconnect(Phase::New, usize::MAX);
    }

    fn establish(&self, number: u64) -> Result<(), EstablishError> {
        let mut state = self.lock();
        let established = state.count(Phase::Established);
        let Some(entry) = state.entries.get_mut(&number) else { return Err(EstablishError::Displaced) };
        match entry.phase {
            Phase::Established => return Ok(()),
            Phase::Leaving => return Err(EstablishError::Displaced),
            Phase::New if established >= self.limits.established => return Err(EstablishError::Full),
            Phase::New => entry.phase = Phase::Established,
        }
        state.established_total += 1;
        if self.limits.is_total_reached(state.established_total) {
            Self::close_locked(&mut state);
            self.changed.notify_all();
        }
        Ok(())
    }
}

impl<C> Connections<C> {
    fn lock(&self) -> MutexGuard<'_, ConnectionTable<C>> {
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

/// A connection that has a place. Dropping it ends the connection and frees the place. [`Connections`] has an example.
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

    /// Marks the connection as established: no other connection takes its place any more.
    ///
    /// # Errors
    /// [`EstablishError`]. A caller must stop serving a connection that was [displaced](EstablishError::Displaced).
    pub fn establish(&self) -> Result<(), EstablishError> {
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

#[cfg(test)]
mod tests;
