//! Connections of a server: accepts them, limits their number, and decides which one is displaced when there are too many.
//!
//! A client can connect often and send nothing. A server that refuses newcomers once it is full can be locked by such clients.
//! So a connection is *new* until its client has shown that it speaks the protocol, by a negotiation or a first request. Then
//! it is *established*. When [`Connections`] is full, the next connection displaces the oldest new one. Established connections
//! are never displaced.
//!
//! - [`serve_each`] accepts connections, and serves each on a thread of its own.
//! - [`Connections`] counts connections for servers that accept them themselves.
//! - [`ClientTimeout`], [`deadline_after`] and [`time_left`] limit the time that a client may take.
//! - [`receive`] receives bytes with file descriptors; [`peer_credentials`] and [`peer_process`] identify the process at the
//!   other end of a unix socket.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::os::unix::net::{UnixListener, UnixStream};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("socket");
//! let listener = UnixListener::bind(&path)?;
//! let mut client = UnixStream::connect(&path)?;
//! client.write_all(b"?")?;
//! // Serves one client that speaks; any number of silent ones do not count.
//! trueno_zram_connections::serve_each(&listener, Some(1), |client| {
//!     let mut stream = client.connection();
//!     if stream.read_exact(&mut [0]).is_ok() && client.establish() {
//!         let _ = stream.write_all(b"!");
//!     }
//! })?;
//! let mut answer = [0];
//! client.read_exact(&mut answer)?;
//! assert_eq!(answer, *b"!");
//! # Ok::<(), std::io::Error>(())
//! ```
#![deny(unsafe_code)]

mod connections;
mod listen;
mod socket;
#[cfg(target_os = "linux")]
mod unix_socket;

pub use connections::{Admitted, ConnectionLimits, Connections, EstablishError};
pub use listen::{ClientConnection, Listen, MAX_CONNECTIONS, serve_each, serve_each_within};
pub use socket::{ClientTimeout, Disconnect, PausedAt, deadline_after, enable_keepalive, stop_accepting, time_left};
#[cfg(target_os = "linux")]
pub use unix_socket::{Credentials, Received, peer_credentials, peer_process, receive};

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
