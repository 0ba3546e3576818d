//! Unix sockets: the process at the other end, and messages with file descriptors.
#![allow(unsafe_code, reason = "rustix has no forms of these calls that accept the process number 0")]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The bytes of `struct cmsghdr`: its length with what follows, as `usize`, and its level and type, as `i32`.
const HEADER_LEN: usize = size_of::<usize>() + 2 * size_of::<i32>();
/// The most file descriptors of one message: `SCM_MAX_FD` of the kernel.
const MAX_FDS: usize = 253;
/// Room for the sender and all file descriptors. So a descriptor is lost only if the process may not have more of them.
const CONTROL_LEN: usize = message_len(size_of::<libc::ucred>()) + message_len(MAX_FDS * size_of::<i32>());

/// Returns the bytes of a control message with this much content, up to the start of the next one.
const fn message_len(content_len: usize) -> usize {
    (HEADER_LEN + content_len).next_multiple_of(align_of::<usize>())
}

/// Room for control messages, which start at multiples of a word.
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

/// Bytes that were received, and the file descriptors and the sender that came with them.
#[derive(Debug, Default)]
pub struct Received {
    /// The number of bytes; 0 at the end of the stream.
    pub len_bytes: usize,
    /// The file descriptors.
    pub fds: Vec<OwnedFd>,
    /// The process that sent it. `None` if the socket does not ask for it (`SO_PASSCRED`), or if it is in a PID namespace
    /// invisible to this process.
    pub sender: Option<u32>,
    /// `true` if file descriptors were lost because this process may not have more of them.
    pub is_truncated: bool,
}

/// Receives at most as many bytes as `bytes` holds, and the file descriptors that were sent with them.
///
/// ```
/// use std::io::Write;
/// use std::os::unix::net::UnixStream;
/// let (ours, mut theirs) = UnixStream::pair()?;
/// theirs.write_all(b"hello")?;
/// let mut bytes = [0; 16];
/// let received = trueno_zram_connections::receive(&ours, &mut bytes)?;
/// assert_eq!((&bytes[..received.len_bytes], received.fds.len()), (&b"hello"[..], 0));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Those of `recvmsg`.
pub fn receive(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<Received> {
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; CONTROL_LEN]);
    // SAFETY: its fields are numbers and pointers, for which zeros are valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // The field's type depends on the C library.
    message.msg_controllen = CONTROL_LEN as _;
    let len_bytes = loop {
        // SAFETY: `message` points to `bytes` and to `control`, both borrowed until the call returns, with their lengths.
        let received = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match usize::try_from(received) {
            Ok(len) => break len,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    };
    let is_truncated = message.msg_flags & libc::MSG_CTRUNC != 0;
    let mut received = Received { len_bytes, is_truncated, ..Received::default() };
    for ControlMessage { level, kind, content } in messages(&control.0) {
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => received.fds.extend(words(content).map(|fd| {
                // SAFETY: the kernel has made the descriptor for this message. Nothing else owns it.
                unsafe { OwnedFd::from_raw_fd(fd) }
            })),
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => received.sender = sender(content),
            _ => {}
        }
    }
    Ok(received)
}

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ControlMessage<'a> {
    level: i32,
    kind: i32,
    content: &'a [u8],
}

/// Returns the control messages in a buffer that was zeros before the kernel wrote them.
fn messages(mut control: &[u8]) -> impl Iterator<Item = ControlMessage<'_>> {
    std::iter::from_fn(move || {
        let (len, rest) = control.split_first_chunk()?;
        let len = usize::from_ne_bytes(*len);
        let mut level_and_kind = words(rest);
        let (level, kind) = (level_and_kind.next()?, level_and_kind.next()?);
        // Behind the last message there are zeros.
        let content = control.get(HEADER_LEN..len)?;
        control = control.get(len.next_multiple_of(align_of::<usize>())..).unwrap_or_default();
        Some(ControlMessage { level, kind, content })
    })
}

fn words(bytes: &[u8]) -> impl Iterator<Item = i32> {
    bytes.as_chunks().0.iter().map(|word| i32::from_ne_bytes(*word))
}

/// Returns the sender stated in a `struct ucred`, which starts with its process number; 0 means a process of an invisible PID
/// namespace.
fn sender(content: &[u8]) -> Option<u32> {
    words(content).next().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0)
}

/// The process that has connected, and its effective user at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process; `None` if it is in a PID namespace invisible to this process, such as that of a container's host.
    pub pid: Option<u32>,
    /// The user.
    pub uid: u32,
}

/// Returns the process and the user at the other end of a socket.
///
/// ```
/// let (one, _other) = std::os::unix::net::UnixStream::pair()?;
/// assert_eq!(trueno_zram_connections::peer_credentials(&one)?.pid, Some(std::process::id()));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Those of the operating system.
// Not `rustix::net::sockopt::socket_peercred`: its process number is never 0, but the kernel gives 0 for one that is not seen.
pub fn peer_credentials(stream: &UnixStream) -> io::Result<Credentials> {
    let [pid, uid, _gid] = socket_option(stream, libc::SO_PEERCRED)?;
    Ok(Credentials { pid: u32::try_from(pid).ok().filter(|pid| *pid != 0), uid: uid.cast_unsigned() })
}

/// Opens the process at the other end of a socket. The descriptor (`pidfd`) never refers to another process, even if its number
/// is reused.
///
/// ```
/// let (one, _other) = std::os::unix::net::UnixStream::pair()?;
/// let this_process = trueno_zram_connections::peer_process(&one)?;
/// # drop(this_process);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Those of the operating system; [`io::ErrorKind::NotFound`] if the process is in an invisible PID namespace.
pub fn peer_process(stream: &UnixStream) -> io::Result<OwnedFd> {
    // Linux 6.5 hands the process out itself, so that its number cannot have been reused.
    match socket_option(stream, libc::SO_PEERPIDFD) {
        // SAFETY: the kernel has just created the descriptor for this call; nothing else owns it.
        Ok([fd]) if fd >= 0 => return Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {}
        Err(error) => return Err(error),
    }
    let pid = peer_credentials(stream)?.pid.and_then(|pid| Pid::from_raw(pid.cast_signed()));
    Ok(pidfd_open(pid.ok_or(io::ErrorKind::NotFound)?, PidfdFlags::empty())?)
}

/// Returns a socket option that consists of words.
fn socket_option<const N: usize>(stream: &UnixStream, name: i32) -> io::Result<[i32; N]> {
    let mut value = [0i32; N];
    let expected_len = size_of_val(&value);
    let mut len = libc::socklen_t::try_from(expected_len).map_err(io::Error::other)?;
    // SAFETY: `value` has `len` bytes until the call returns, and any bytes are valid for it.
    let result = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, name, value.as_mut_ptr().cast(), &raw mut len)
    };
    match result {
        0 if usize::try_from(len).is_ok_and(|len| len == expected_len) => Ok(value),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;

    fn control(messages: &[(i32, i32, &[i32])]) -> [u8; CONTROL_LEN] {
        let mut bytes = Vec::new();
        for (level, kind, words) in messages {
            bytes.extend((HEADER_LEN + words.len() * 4).to_ne_bytes());
            bytes.extend([level, kind].into_iter().chain(*words).flat_map(|word| word.to_ne_bytes()));
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        bytes.resize(CONTROL_LEN, 0);
        bytes.try_into().unwrap()
    }

    #[test]
    fn control_messages_are_found_one_by_one() {
        let bytes = control(&[(1, 2, &[77, 5, 6]), (1, 1, &[3, 4])]);
        let found: Vec<(i32, i32, Vec<i32>)> =
            messages(&bytes).map(|message| (message.level, message.kind, words(message.content).collect())).collect();
        assert_eq!(found, [(1, 2, vec![77, 5, 6]), (1, 1, vec![3, 4])]);
        assert_eq!(messages(&control(&[])).count(), 0);
        for len in [0usize, 1, HEADER_LEN - 1, CONTROL_LEN + 1, usize::MAX] {
            let mut bytes = control(&[(1, 1, &[3])]);
            bytes[..8].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(messages(&bytes).count(), 0, "{len}");
        }
        for cut in 0..HEADER_LEN {
            assert_eq!(messages(&bytes[..cut]).count(), 0, "{cut}");
        }
    }

    #[test]
    fn a_sender_that_this_namespace_does_not_see_is_none() {
        let ucred = |pid: i32| control(&[(1, 2, &[pid, 0, 0])]);
        let sender_of = |bytes: &[u8]| messages(bytes).next().and_then(|message| sender(message.content));
        assert_eq!(sender_of(&ucred(0)), None);
        assert_eq!(sender_of(&ucred(-1)), None);
        assert_eq!(sender_of(&ucred(4711)), Some(4711));
        assert_eq!(sender_of(&control(&[(1, 2, &[])])), None);
    }

    #[test]
    fn a_message_says_who_sent_it_if_the_socket_asks() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut bytes = [0; 2];
        theirs.write_all(b"abc").unwrap();
        let received = receive(&ours, &mut bytes).unwrap();
        assert_eq!((received.len_bytes, &bytes, received.sender), (2, b"ab", None));
        set_passcred(&ours);
        theirs.write_all(b"d").unwrap();
        assert_eq!(receive(&ours, &mut [0]).unwrap().sender, None, "sent before it was asked for");
        let received = receive(&ours, &mut bytes).unwrap();
        assert_eq!((received.len_bytes, received.sender), (1, Some(std::process::id())));
        drop(theirs);
        assert_eq!(receive(&ours, &mut bytes).unwrap().len_bytes, 0);
    }

    fn set_passcred(stream: &UnixStream) {
        let on = 1i32;
        // SAFETY: the option is an `i32`, which is read only.
        let result = unsafe {
            libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, (&raw const on).cast(), 4)
        };
        assert_eq!(result, 0);
    }

    #[test]
    fn the_peer_of_a_socket_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let process = peer_process(&one).unwrap();
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).unwrap();
        assert!(info.contains(&format!("Pid:\t{}\n", std::process::id())), "{info}");
    }
}
