//! Operands as text: registers, constants, addresses, predicates.

use super::Emitter;
use crate::ir::{MemAddr, Operand, PredUse, RegId};
use crate::types::RegClass;

impl Emitter<'_> {
    pub(super) fn reg(&self, id: RegId) -> String {
        self.names.of_reg(id).to_owned()
    }

    pub(super) fn pred(&self, p: PredUse) -> String {
        format!("{}{}", if p.negated { "!" } else { "" }, self.names.of_reg(p.reg))
    }

    pub(super) fn addr(&self, addr: MemAddr) -> String {
        match addr.offset {
            0 => format!("[{}]", self.names.of_reg(addr.base)),
            offset => format!("[{}+{offset}]", self.names.of_reg(addr.base)),
        }
    }

    /// Writes an operand. `spelling` ends in the type that a constant is written as.
    pub(super) fn operand(&self, operand: Operand, class: RegClass, spelling: &str) -> String {
        match operand {
            Operand::Reg(id) => self.reg(id),
            Operand::Imm(bits) => constant(bits, class, spelling),
        }
    }
}

fn constant(bits: u64, class: RegClass, spelling: &str) -> String {
    match class {
        // The assembler's value for true has all bits set.
        RegClass::Pred => if bits == 0 { "0" } else { "-1" }.to_owned(),
        RegClass::B64 => number(bits),
        RegClass::B32 => {
            let word = u32::try_from(bits & 0xffff_ffff).expect("masked to 32 bits");
            if spelling.ends_with("f32") {
                format!("0f{word:08X}")
            } else if spelling.ends_with("s32") {
                word.cast_signed().to_string()
            } else {
                number(u64::from(word))
            }
        }
    }
}

/// Small numbers read better in decimal, masks in hexadecimal.
fn number(bits: u64) -> String {
    if bits < 0x1_0000 { bits.to_string() } else { format!("0x{bits:X}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_written_in_the_instructions_type() {
        assert_eq!(constant(7, RegClass::B32, "add.u32"), "7");
        assert_eq!(constant(0xffff_ffff, RegClass::B32, "and.b32"), "0xFFFFFFFF");
        assert_eq!(constant(0xffff_ffff, RegClass::B32, "setp.lt.s32"), "-1");
        assert_eq!(constant(0x3f80_0000, RegClass::B32, "add.rn.f32"), "0f3F800000");
        assert_eq!(constant(1, RegClass::Pred, "mov.pred"), "-1");
        assert_eq!(constant(u64::MAX, RegClass::B64, "add.u64"), "0xFFFFFFFFFFFFFFFF");
    }
}
