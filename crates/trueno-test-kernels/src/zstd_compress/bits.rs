//! Bits in the order of Zstandard's bitstreams, and logarithms in steps of 1/256.

/// Bytes filled from their lowest bit on.
#[derive(Default)]
pub(super) struct BitWriter {
    bytes: Vec<u8>,
    bits: usize,
}

impl BitWriter {
    /// Appends the low `count` bits of `value`.
    pub(super) fn push(&mut self, value: usize, count: usize) {
        for bit in 0..count {
            if self.bits.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let last = self.bytes.last_mut().expect("pushed above");
            *last |= u8::from(value >> bit & 1 == 1) << (self.bits % 8);
            self.bits += 1;
        }
    }

    /// Returns the number of bits.
    pub(super) fn len_bits(&self) -> usize {
        self.bits
    }

    /// Returns the bytes, the last one filled up with zeros.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends the bit that marks a stream's end, and returns the bytes.
    pub(super) fn into_stream(mut self) -> Vec<u8> {
        self.push(1, 1);
        self.bytes
    }
}

/// Returns the largest `n` with `2^n <= value`; `value` is not 0.
pub(super) fn floor_log2(value: usize) -> usize {
    value.ilog2() as usize
}

/// Returns the logarithm to base 2 in steps of 1/256, linear between powers of two.
pub(super) fn log2_fixed(value: usize) -> usize {
    let whole = floor_log2(value);
    256 * whole + (value << 8 >> whole) - 256
}
