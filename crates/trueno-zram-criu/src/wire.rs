//! The wire format of Protocol Buffers, as far as pagemaps need it.

use crate::error::PagemapProblem;

/// Wire types: <https://protobuf.dev/programming-guides/encoding/#structure>.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LEN: u64 = 2;
const FIXED32: u64 = 5;

/// The longest varint: 64 bits, 7 per byte.
const MAX_VARINT_LEN: usize = 10;

/// A field of a message: its number, and its value if it is an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) number: u64,
    /// `None` for strings, messages and numbers of fixed width.
    pub(crate) integer: Option<u64>,
}

/// The fields of a message, in order.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
    /// Position of `rest` in the file.
    at: u64,
}

impl<'a> Fields<'a> {
    /// Reads the fields of `message`, which is at the position `at` of its file.
    pub(crate) fn new(message: &'a [u8], at: u64) -> Self {
        Self { rest: message, at }
    }

    /// Returns the next field.
    pub(crate) fn next(&mut self) -> Result<Option<Field>, PagemapProblem> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let at = self.at;
        let key = self.varint()?;
        let (number, wire_type) = (key >> 3, key & 7);
        let integer = match wire_type {
            VARINT => Some(self.varint()?),
            FIXED64 => self.skip(8)?,
            FIXED32 => self.skip(4)?,
            LEN => {
                let len = self.varint()?;
                self.skip(len)?
            }
            _ => return Err(PagemapProblem::WireType { at, wire_type }),
        };
        Ok(Some(Field { number, integer }))
    }

    fn skip(&mut self, len: u64) -> Result<Option<u64>, PagemapProblem> {
        let rest = usize::try_from(len).ok().and_then(|len| self.rest.get(len..));
        self.rest = rest.ok_or(PagemapProblem::Truncated { at: self.at })?;
        self.at += len;
        Ok(None)
    }

    fn varint(&mut self) -> Result<u64, PagemapProblem> {
        let mut value = 0u64;
        for (place, byte) in self.rest.iter().take(MAX_VARINT_LEN).enumerate() {
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if place == MAX_VARINT_LEN - 1 && bits > 1 {
                break;
            }
            value |= bits << (7 * place);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[place + 1..];
                self.at += place as u64 + 1;
                return Ok(value);
            }
        }
        match self.rest.len() {
            0..MAX_VARINT_LEN => Err(PagemapProblem::Truncated { at: self.at }),
            _ => Err(PagemapProblem::Varint { at: self.at }),
        }
    }
}

/// Appends an integer field.
pub(crate) fn put_integer(message: &mut Vec<u8>, number: u64, value: u64) {
    put_varint(message, number << 3 | VARINT);
    put_varint(message, value);
}

fn put_varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    message.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(message: &[u8]) -> Result<Vec<(u64, Option<u64>)>, PagemapProblem> {
        let (mut fields, mut all) = (Fields::new(message, 100), Vec::new());
        while let Some(Field { number, integer }) = fields.next()? {
            all.push((number, integer));
        }
        Ok(all)
    }

    #[test]
    fn integers_of_all_lengths_read_back() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), 1 << 63, u64::MAX] {
            let mut message = Vec::new();
            put_integer(&mut message, 5, value);
            put_integer(&mut message, 1000, 7);
            assert_eq!(fields(&message), Ok(vec![(5, Some(value)), (1000, Some(7))]));
        }
    }

    #[test]
    fn other_fields_are_skipped_by_their_length() {
        let message = [0x0a, 2, b'h', b'i', 0x11, 1, 2, 3, 4, 5, 6, 7, 8, 0x1d, 1, 2, 3, 4, 0x20, 9];
        assert_eq!(fields(&message), Ok(vec![(1, None), (2, None), (3, None), (4, Some(9))]));
    }

    #[test]
    fn malformed_messages_say_where() {
        assert_eq!(fields(&[0x08]), Err(PagemapProblem::Truncated { at: 101 }));
        assert_eq!(fields(&[0x08, 0x80, 0x80]), Err(PagemapProblem::Truncated { at: 101 }));
        assert_eq!(fields(&[0x0a, 3, 1, 2]), Err(PagemapProblem::Truncated { at: 102 }));
        assert_eq!(fields(&[0x0b]), Err(PagemapProblem::WireType { at: 100, wire_type: 3 }));
        let endless = [[0x08].as_slice(), &[0xff; 12]].concat();
        assert_eq!(fields(&endless), Err(PagemapProblem::Varint { at: 101 }));
        let beyond_64_bits = [[0x08].as_slice(), &[0xff; 9], &[2]].concat();
        assert_eq!(fields(&beyond_64_bits), Err(PagemapProblem::Varint { at: 101 }));
        let huge_length = [[0x0a].as_slice(), &[0xff; 9], &[1]].concat();
        assert_eq!(fields(&huge_length), Err(PagemapProblem::Truncated { at: 111 }));
    }
}
