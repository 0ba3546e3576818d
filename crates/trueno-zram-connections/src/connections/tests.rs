//! Clients that speak, and clients that do not.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::thread;

use super::*;

/// A client, and a thread that serves it: it establishes the connection at the first byte, and leaves at the end.
fn serve(connections: &Arc<Connections<UnixStream>>, ours: UnixStream) -> Result<(), UnixStream> {
    let admitted = connections.admit(ours)?;
    thread::spawn(move || {
        let mut byte = [0];
        while (&*admitted.connection).read(&mut byte).is_ok_and(|read| read > 0) {
            let answer = match admitted.establish() {
                Ok(()) => b"+",
                Err(EstablishError::Full) => b"-",
                Err(EstablishError::Displaced) => return,
            };
            if std::io::Write::write_all(&mut &*admitted.connection, answer).is_err() {
                return;
            }
        }
    });
    Ok(())
}

struct Client(UnixStream);

impl Client {
    fn connect(connections: &Arc<Connections<UnixStream>>) -> Option<Self> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        serve(connections, ours).ok().map(|()| Self(theirs))
    }

    /// Speaks, and returns the answer; `None` if the connection has ended.
    fn speak(&mut self) -> Option<u8> {
        let mut answer = [0];
        std::io::Write::write_all(&mut self.0, b"?").ok()?;
        self.0.read_exact(&mut answer).ok().map(|()| answer[0])
    }

    fn has_ended(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0))
    }
}

#[test]
fn the_oldest_new_connection_is_displaced_and_established_ones_stay() {
    let connections = Connections::new(ConnectionLimits::new(3));
    let mut first = Client::connect(&connections).unwrap();
    assert_eq!(first.speak(), Some(b'+'));
    let (mut second, mut third) = (Client::connect(&connections).unwrap(), Client::connect(&connections).unwrap());
    let mut fourth = Client::connect(&connections).unwrap();
    assert!(second.has_ended(), "the oldest that never spoke");
    assert!(connections.len() <= 3);
    for client in [&mut third, &mut fourth, &mut first] {
        assert_eq!(client.speak(), Some(b'+'));
    }
    assert!(Client::connect(&connections).is_none(), "all are established");
    drop(third);
    let (ours, theirs) = UnixStream::pair().unwrap();
    // It waits until the place is free, however long its thread takes.
    let admitted = connections.admit_or_wait(ours).unwrap();
    assert_eq!(admitted.establish(), Ok(()));
    drop(theirs);
}

#[test]
fn any_number_of_silent_connections_leaves_room_for_one_that_speaks() {
    // More places than clients that speak: those that have ended may take a moment to leave.
    let connections = Connections::new(ConnectionLimits::new(12));
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.extend((0..15).map(|_| Client::connect(&connections).unwrap()));
        let mut client = Client::connect(&connections).unwrap();
        assert_eq!(client.speak(), Some(b'+'));
        assert!(connections.len() <= 12);
    }
}

#[test]
fn a_reserve_stays_for_connections_that_are_not_established() {
    let limits = ConnectionLimits::new(3).with_established(2);
    let connections = Connections::new(limits);
    let mut long = [(); 2].map(|()| Client::connect(&connections).unwrap());
    assert!(long.iter_mut().all(|client| client.speak() == Some(b'+')));
    for _ in 0..10 {
        assert_eq!(Client::connect(&connections).unwrap().speak(), Some(b'-'), "served, but not established");
    }
    assert!(long.iter_mut().all(|client| client.speak() == Some(b'+')), "still there");
}

#[test]
fn new_connections_are_disconnected_once_as_many_were_established_as_are_allowed_in_total() {
    let connections = Connections::new(ConnectionLimits::new(8).with_total(Some(2)));
    let mut silent = Client::connect(&connections).unwrap();
    let mut first = Client::connect(&connections).unwrap();
    assert_eq!(first.speak(), Some(b'+'));
    assert!(!connections.is_closed());
    drop(first);
    let mut second = Client::connect(&connections).unwrap();
    assert_eq!(second.speak(), Some(b'+'));
    assert!(silent.has_ended() && connections.is_closed());
    assert!(Client::connect(&connections).is_none());
    assert_eq!(second.speak(), Some(b'+'), "it is served to its end");
    connections.end_all();
    assert!(connections.is_empty() && second.has_ended());
    assert!(Connections::<UnixStream>::new(ConnectionLimits::new(8).with_total(Some(0))).is_closed());
}

#[test]
fn waiting_for_a_place_ends_when_no_more_are_admitted() {
    let connections = Connections::new(ConnectionLimits::new(1));
    let mut client = Client::connect(&connections).unwrap();
    assert_eq!(client.speak(), Some(b'+'));
    thread::scope(|threads| {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let waits = threads.spawn(|| connections.admit_or_wait(ours).is_none());
        connections.close();
        assert!(waits.join().unwrap());
    });
    assert_eq!(client.speak(), Some(b'+'));
}
