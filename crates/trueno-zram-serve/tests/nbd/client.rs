//! A small NBD client, written from the protocol's text and not from the server.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISCONNECT: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const BLOCK_STATUS: u16 = 7;

/// The choices of a client in the negotiation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// `NBD_OPT_EXPORT_NAME`, simple replies.
    Old,
    /// `NBD_OPT_GO`, simple replies.
    Simple,
    /// `NBD_OPT_GO`, structured replies and `base:allocation`.
    Structured,
}

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    pub(crate) size: u64,
    pub(crate) flags: u16,
    structured: bool,
    cookie: u64,
}

/// A reply: its cookie, and its data or its error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) result: Result<Vec<u8>, u32>,
}

pub(crate) fn number<const N: usize>(stream: &mut impl Read) -> u64 {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

pub(crate) fn bytes(stream: &mut impl Read, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

pub(crate) fn greet(stream: &mut UnixStream) {
    assert_eq!(&bytes(stream, 16), b"NBDMAGICIHAVEOPT");
    assert_eq!(number::<2>(stream), 3);
    stream.write_all(&3u32.to_be_bytes()).unwrap();
}

pub(crate) fn send_option(stream: &mut UnixStream, option: u32, data: &[u8]) {
    let len = u32::try_from(data.len()).unwrap();
    let message = [b"IHAVEOPT", &option.to_be_bytes()[..], &len.to_be_bytes(), data].concat();
    stream.write_all(&message).unwrap();
}

/// Reads a reply to an option: its kind and data.
pub(crate) fn option_reply(stream: &mut UnixStream, option: u32) -> (u32, Vec<u8>) {
    assert_eq!(number::<8>(stream), 0x3e889045565a9);
    assert_eq!(number::<4>(stream), u64::from(option));
    let kind = u32::try_from(number::<4>(stream)).unwrap();
    let len = number::<4>(stream);
    (kind, bytes(stream, len))
}

pub(crate) fn counted(text: &[u8]) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_be_bytes()[..], text].concat()
}

impl Client {
    pub(crate) fn connect(path: &std::path::Path, name: &str, style: Style) -> Self {
        let mut stream = UnixStream::connect(path).unwrap();
        greet(&mut stream);
        if style == Style::Old {
            send_option(&mut stream, 1, name.as_bytes());
            let (size, flags) = (number::<8>(&mut stream), number::<2>(&mut stream));
            return Self { stream, size, flags: flags.try_into().unwrap(), structured: false, cookie: 0 };
        }
        if style == Style::Structured {
            send_option(&mut stream, 8, b"");
            assert_eq!(option_reply(&mut stream, 8), (1, vec![]));
            let data = [counted(name.as_bytes()), 1u32.to_be_bytes().to_vec(), counted(b"base:allocation")].concat();
            send_option(&mut stream, 10, &data);
            assert_eq!(option_reply(&mut stream, 10), (4, b"\0\0\0\x01base:allocation".to_vec()));
            assert_eq!(option_reply(&mut stream, 10), (1, vec![]));
        }
        send_option(&mut stream, 7, &[counted(name.as_bytes()), vec![0, 1, 0, 3]].concat());
        let (mut size, mut flags) = (0, 0);
        loop {
            let (kind, data) = option_reply(&mut stream, 7);
            match (kind, &data[..]) {
                (1, []) => break,
                (3, [0, 0, rest @ ..]) => {
                    size = u64::from_be_bytes(rest[..8].try_into().unwrap());
                    flags = u16::from_be_bytes(rest[8..].try_into().unwrap());
                }
                (3, [0, 3, rest @ ..]) => assert_eq!(rest, [0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0]),
                other => panic!("{other:?}"),
            }
        }
        Self { stream, size, flags, structured: style == Style::Structured, cookie: 0 }
    }

    /// Sends a request and returns its cookie.
    pub(crate) fn send(&mut self, flags: u16, command: u16, offset: u64, len: u32, data: &[u8]) -> u64 {
        self.cookie += 0x0101_0101_0101;
        let header = [
            &0x25609513u32.to_be_bytes()[..],
            &flags.to_be_bytes(),
            &command.to_be_bytes(),
            &self.cookie.to_be_bytes(),
            &offset.to_be_bytes(),
            &len.to_be_bytes(),
        ];
        self.stream.write_all(&[&header.concat()[..], data].concat()).unwrap();
        self.cookie
    }

    /// Reads a reply. Simple replies to reads have `read_len` bytes of data.
    pub(crate) fn receive(&mut self, read_len: u64) -> Reply {
        if !self.structured {
            assert_eq!(number::<4>(&mut self.stream), 0x67446698);
            let error = u32::try_from(number::<4>(&mut self.stream)).unwrap();
            let cookie = number::<8>(&mut self.stream);
            let result = if error == 0 { Ok(bytes(&mut self.stream, read_len)) } else { Err(error) };
            return Reply { cookie, result };
        }
        assert_eq!(number::<4>(&mut self.stream), 0x668e33ef);
        assert_eq!(number::<2>(&mut self.stream), 1, "this server sends one chunk per reply");
        let kind = number::<2>(&mut self.stream);
        let cookie = number::<8>(&mut self.stream);
        let len = number::<4>(&mut self.stream);
        let data = bytes(&mut self.stream, len);
        let result = match kind {
            0 => Ok(data),
            1 => Ok(data[8..].to_vec()),
            5 => Ok(data[4..].to_vec()),
            0x8001 => Err(u32::from_be_bytes(data[..4].try_into().unwrap())),
            other => panic!("chunk of kind {other}"),
        };
        Reply { cookie, result }
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn call(
        &mut self,
        flags: u16,
        command: u16,
        offset: u64,
        len: u32,
        data: &[u8],
    ) -> Result<Vec<u8>, u32> {
        let cookie = self.send(flags, command, offset, len, data);
        let reply = self.receive(if command == READ { len.into() } else { 0 });
        assert_eq!(reply.cookie, cookie);
        reply.result
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), u32> {
        self.call(0, WRITE, offset, u32::try_from(data.len()).unwrap(), data).map(drop)
    }

    pub(crate) fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        self.call(0, READ, offset, len, b"")
    }
}
