//! Bytes that are all zero.

/// Number of bytes examined together: few enough to stop early, and enough for wide vectors. With 64 it takes four times as long.
const STEP: usize = 256;

/// Returns `true` if all bytes are zero. Most pages that are not zero differ within their first bytes.
///
/// ```
/// use trueno_page::{PAGE_SIZE, is_zero};
/// let mut page = [0; PAGE_SIZE];
/// assert!(is_zero(&page) && is_zero(&page[..100]));
/// page[4095] = 1;
/// assert!(!is_zero(&page));
/// ```
#[must_use]
#[inline]
pub fn is_zero(bytes: &[u8]) -> bool {
    let (steps, rest) = bytes.as_chunks::<STEP>();
    let starts_with_zero = bytes.first().is_none_or(|first| *first == 0);
    starts_with_zero && steps.iter().all(|step| any_bits(step) == 0) && any_bits(rest) == 0
}

/// Returns the bits that are set in any of the bytes.
fn any_bits(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |bits, byte| bits | byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slow twin.
    fn is_zero_byte_by_byte(bytes: &[u8]) -> bool {
        bytes.iter().all(|byte| *byte == 0)
    }

    #[test]
    fn every_length_and_every_bit_is_seen() {
        // Miri takes its time.
        let step = if cfg!(miri) { 503 } else { 1 };
        let mut bytes = [0; 4096 + 3];
        for len in (0..1100).step_by(step).chain([4095, 4096, 4099]) {
            assert!(is_zero(&bytes[..len]), "{len} bytes");
        }
        for at in (0..bytes.len()).step_by(step) {
            bytes[at] = 1 << (at % 8);
            for range in [0..at, 0..at + 1, at..bytes.len(), at + 1..bytes.len(), 0..bytes.len()] {
                let part = &bytes[range.clone()];
                assert_eq!(is_zero(part), is_zero_byte_by_byte(part), "byte {at} of {range:?}");
            }
            bytes[at] = 0;
        }
    }
}
