// SPDX-License-Identifier: GPL-2.0
//! How a program in the guest tells the plugin where it is: by an instruction that does nothing, on any
//! machine and in any state of a tracer, and that no compiler emits.
//!
//! `nopl MAGIC+n(%rax,%rax,1)`: the eight-byte NOP of the manuals with a displacement that is ours. It reads
//! no memory.

/// What a marker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The window is near: from here on instructions are instrumented.
    Arm,
    /// The window begins behind this one.
    Begin,
    /// An iteration begins, and the one before ends.
    Iteration,
    /// The window ends with this one.
    End,
}

/// The opcode, its ModRM and its SIB.
pub const OPCODE: [u8; 4] = [0x0f, 0x1f, 0x84, 0x00];

/// The displacement, but for the mark's number: "blk" in ASCII.
pub const MAGIC: u32 = 0x626c_6b00;

impl Mark {
    /// The displacement of this mark.
    pub const fn displacement(self) -> u32 {
        MAGIC + 1 + self as u32
    }

    /// The mark that an instruction is.
    pub fn of(instruction: &[u8]) -> Option<Self> {
        let displacement = instruction.strip_prefix(&OPCODE)?;
        let displacement = u32::from_le_bytes(displacement.try_into().ok()?);
        [Self::Arm, Self::Begin, Self::Iteration, Self::End]
            .into_iter()
            .find(|m| m.displacement() == displacement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_told_from_padding() {
        let begin = [0x0f, 0x1f, 0x84, 0x00, 0x02, 0x6b, 0x6c, 0x62];
        assert_eq!(Mark::of(&begin), Some(Mark::Begin));
        assert_eq!(Mark::of(&begin[..7]), None);
        // As assemblers pad, with and without a prefix.
        assert_eq!(Mark::of(&[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]), None);
        assert_eq!(Mark::of(&[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]), None);
        for mark in [Mark::Arm, Mark::Begin, Mark::Iteration, Mark::End] {
            let mut bytes = OPCODE.to_vec();
            bytes.extend(mark.displacement().to_le_bytes());
            assert_eq!(Mark::of(&bytes), Some(mark));
        }
    }
}
