//! Numbers of seven bits per byte (LEB128).

/// Appends a number.
pub(crate) fn put(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// The reason why bytes do not start with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VarintError {
    /// The bytes end within it.
    Truncated,
    /// It has more than 64 bits.
    TooLong,
}

/// Takes a number from the front. If it is too long, the bytes up to the one that makes it so are taken.
pub(crate) fn take(bytes: &mut &[u8]) -> Result<u64, VarintError> {
    let mut number = 0u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(VarintError::Truncated)?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return Err(VarintError::TooLong);
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(VarintError::TooLong)
}

/// Maps a number with a sign to one without, so that small distances in either direction stay small.
pub(crate) fn zigzag(number: i64) -> u64 {
    (number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned()
}

/// Undoes [`zigzag`].
pub(crate) fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back_and_longer_ones_are_refused() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put(number, &mut bytes);
            for len in 0..bytes.len() {
                assert_eq!(take(&mut &bytes[..len]), Err(VarintError::Truncated));
            }
            let mut rest = &bytes[..];
            assert_eq!((take(&mut rest), rest.len()), (Ok(number), 0));
        }
        assert_eq!(take(&mut &[0xff; 9][..]), Err(VarintError::Truncated));
        let too_long = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
        assert_eq!(take(&mut &too_long[..]), Err(VarintError::TooLong));
        for number in [0, 1, -1, 2, -2, i64::MAX, i64::MIN] {
            assert_eq!(unzigzag(zigzag(number)), number);
        }
    }
}
