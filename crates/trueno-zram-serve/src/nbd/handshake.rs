//! The negotiation of an export and of optional parts of the protocol.

use std::io;

use super::protocol::{
    ALLOCATION, ALLOCATION_ID, BigEndianFields, EXPORT_NAME_PADDING, MAX_PAYLOAD, OPTION_MAGIC, SERVER_MAGIC,
    handshake, info, option, put_option_reply, reply, transmission,
};
use super::stream::{BufferedStream, Duplex};
use super::{Exports, NamedExport};

/// The longest data of an option. Names have at most 4096 bytes, and clients ask for few contexts.
const MAX_OPTION_LEN: usize = 64 << 10;

/// Options that a client may send before it must choose.
const MAX_OPTIONS: usize = 256;

/// Contexts that a client may ask for in one option.
const MAX_QUERIES: u32 = 256;

/// The result of a negotiation.
#[derive(Clone, Debug)]
pub(super) struct Agreement {
    pub(super) export: NamedExport,
    pub(super) structured_replies: bool,
    pub(super) allocation_context: bool,
}

/// The state of a negotiation.
struct Negotiation<'a, S> {
    stream: &'a mut BufferedStream<S>,
    exports: &'a Exports,
    no_zeroes: bool,
    structured_replies: bool,
    /// The export for which the client selected `base:allocation`.
    allocation_of: Option<String>,
}

/// The state of a negotiation after an option.
enum OptionOutcome {
    Next,
    Agreed(NamedExport),
    Disconnect,
}

/// Negotiates with a client. Returns `None` if it leaves, or does not keep to the protocol.
pub(super) fn negotiate<S: Duplex>(stream: &mut BufferedStream<S>, exports: &Exports) -> io::Result<Option<Agreement>> {
    stream.out.extend(SERVER_MAGIC.to_be_bytes());
    stream.out.extend(OPTION_MAGIC.to_be_bytes());
    stream.out.extend((handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
    let Some(flags) = stream.take()?.map(u32::from_be_bytes) else { return Ok(None) };
    let (fixed, no_zeroes) = (u32::from(handshake::FIXED_NEWSTYLE), u32::from(handshake::NO_ZEROES));
    if flags & !(fixed | no_zeroes) != 0 {
        return Ok(None);
    }
    let mut negotiation = Negotiation {
        stream,
        exports,
        no_zeroes: flags & no_zeroes != 0,
        structured_replies: false,
        allocation_of: None,
    };
    for _ in 0..MAX_OPTIONS {
        match negotiation.next_option()? {
            OptionOutcome::Next => {}
            OptionOutcome::Disconnect => return Ok(None),
            OptionOutcome::Agreed(export) => {
                let allocation_context = negotiation.allocation_of.as_deref() == Some(&export.name);
                let structured_replies = negotiation.structured_replies;
                return Ok(Some(Agreement { export, structured_replies, allocation_context }));
            }
        }
    }
    Ok(None)
}

impl<S: Duplex> Negotiation<'_, S> {
    fn next_option(&mut self) -> io::Result<OptionOutcome> {
        let Some(header) = self.stream.take::<16>()? else { return Ok(OptionOutcome::Disconnect) };
        let mut fields = BigEndianFields(&header);
        let (Some(OPTION_MAGIC), Some(option), Some(len)) = (fields.u64(), fields.u32(), fields.u32()) else {
            return Ok(OptionOutcome::Disconnect);
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > MAX_OPTION_LEN {
            // The client gets the reason, but what it sends is not read.
            self.reply(option, reply::ERR_TOO_BIG, b"");
            self.stream.flush()?;
            return Ok(OptionOutcome::Disconnect);
        }
        let Some(data) = self.stream.peek(len)?.and_then(|bytes| bytes.get(..len)) else {
            return Ok(OptionOutcome::Disconnect);
        };
        let data = data.to_vec();
        self.stream.consume(len);
        let outcome = self.answer(option, &data);
        if matches!(outcome, OptionOutcome::Disconnect) {
            self.stream.flush()?;
        }
        Ok(outcome)
    }

    fn answer(&mut self, option: u32, data: &[u8]) -> OptionOutcome {
        match option {
            option::EXPORT_NAME => return self.export_name(data),
            option::ABORT => {
                self.reply(option, reply::ACK, b"");
                return OptionOutcome::Disconnect;
            }
            option::LIST if data.is_empty() => self.list(),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured_replies = true;
                self.reply(option, reply::ACK, b"");
            }
            option::LIST | option::STRUCTURED_REPLY => self.reply(option, reply::ERR_INVALID, b"data is not allowed"),
            option::INFO | option::GO => return self.info_or_go(option, data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data),
            _ => self.reply(option, reply::ERR_UNSUPPORTED, b""),
        }
        OptionOutcome::Next
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        put_option_reply(&mut self.stream.out, option, kind, data);
    }

    /// Answers the oldest option to choose an export. The protocol allows no refusal but to disconnect.
    fn export_name(&mut self, name: &[u8]) -> OptionOutcome {
        let Some(export) = self.exports.find(name) else { return OptionOutcome::Disconnect };
        self.stream.out.extend(export.export.size_bytes().to_be_bytes());
        self.stream.out.extend(flags_of(&export).to_be_bytes());
        if !self.no_zeroes {
            self.stream.out.extend(EXPORT_NAME_PADDING);
        }
        OptionOutcome::Agreed(export)
    }

    fn list(&mut self) {
        for export in self.exports.iter() {
            let len = u32::try_from(export.name.len()).unwrap_or(0);
            let data = [&len.to_be_bytes()[..], export.name.as_bytes()].concat();
            self.reply(option::LIST, reply::SERVER, &data);
        }
        self.reply(option::LIST, reply::ACK, b"");
    }

    fn info_or_go(&mut self, option: u32, data: &[u8]) -> OptionOutcome {
        let Some((name, asked)) = parse_info(data) else {
            self.reply(option, reply::ERR_INVALID, b"the request is malformed");
            return OptionOutcome::Next;
        };
        let Some(export) = self.exports.find(name) else {
            self.reply(option, reply::ERR_UNKNOWN, b"there is no such export");
            return OptionOutcome::Next;
        };
        let size = export.export.size_bytes();
        let flags = flags_of(&export);
        let about = [&info::EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &flags.to_be_bytes()].concat();
        self.reply(option, reply::INFO, &about);
        if asked.contains(&info::NAME) {
            let about = [&info::NAME.to_be_bytes()[..], export.name.as_bytes()].concat();
            self.reply(option, reply::INFO, &about);
        }
        if asked.contains(&info::BLOCK_SIZE) {
            // Any byte can be addressed; whole pages are fast.
            let sizes = [1, 4096, MAX_PAYLOAD].map(u32::to_be_bytes).concat();
            self.reply(option, reply::INFO, &[&info::BLOCK_SIZE.to_be_bytes()[..], &sizes].concat());
        }
        self.reply(option, reply::ACK, b"");
        if option == option::GO { OptionOutcome::Agreed(export) } else { OptionOutcome::Next }
    }

    fn meta_context(&mut self, option: u32, data: &[u8]) {
        let setting = option == option::SET_META_CONTEXT;
        let Some((name, queries)) = parse_contexts(data).filter(|_| self.structured_replies || !setting) else {
            let why: &[u8] = if self.structured_replies { b"malformed" } else { b"negotiate structured replies first" };
            return self.reply(option, reply::ERR_INVALID, why);
        };
        let Some(export) = self.exports.find(name) else {
            return self.reply(option, reply::ERR_UNKNOWN, b"there is no such export");
        };
        let lists_all = !setting && (queries.is_empty() || queries.contains(&&b"base:"[..]));
        let found = lists_all || queries.contains(&ALLOCATION);
        if setting {
            self.allocation_of = found.then(|| export.name.clone());
        }
        if found {
            let id = if setting { ALLOCATION_ID } else { 0 };
            self.reply(option, reply::META_CONTEXT, &[&id.to_be_bytes()[..], ALLOCATION].concat());
        }
        self.reply(option, reply::ACK, b"");
    }
}

/// The name and the kinds of information that `NBD_OPT_INFO` and `NBD_OPT_GO` ask for.
fn parse_info(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let mut fields = BigEndianFields(data);
    let name = fields.length_prefixed()?;
    let count = fields.u16()?;
    let asked: Option<Vec<u16>> = (0..count).map(|_| fields.u16()).collect();
    Some((name, asked?)).filter(|_| fields.is_empty())
}

/// The name and the queries of the options for metadata contexts.
fn parse_contexts(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut fields = BigEndianFields(data);
    let name = fields.length_prefixed()?;
    let count = fields.u32().filter(|count| *count <= MAX_QUERIES)?;
    let queries: Option<Vec<_>> = (0..count).map(|_| fields.length_prefixed()).collect();
    Some((name, queries?)).filter(|_| fields.is_empty())
}

/// The transmission flags of an export.
fn flags_of(export: &NamedExport) -> u16 {
    let writable = transmission::SEND_FUA
        | transmission::SEND_TRIM
        | transmission::SEND_WRITE_ZEROES
        | transmission::SEND_FAST_ZERO;
    let any = transmission::HAS_FLAGS | transmission::SEND_FLUSH | transmission::SEND_DF | transmission::CAN_MULTI_CONN;
    any | if export.export.is_read_only() { transmission::READ_ONLY } else { writable }
}
