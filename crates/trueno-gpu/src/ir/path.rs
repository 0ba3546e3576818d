//! The position of a statement in the tree.

use std::fmt;

/// The position of a statement in the tree, such as `body[12].loop[3].then[0]`.
///
/// ```
/// use trueno_gpu::ir::{BlockKind, Path};
/// let path = Path::default().child(BlockKind::Body, 12).child(BlockKind::Loop, 3).child(BlockKind::Then, 0);
/// assert_eq!(path.to_string(), "body[12].loop[3].then[0]");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Path(pub Vec<(BlockKind, usize)>);

/// The block of a statement that a [`Path`] goes into.
///
/// ```
/// use trueno_gpu::{KernelBuilder, ValidateError, ir::BlockKind};
/// let k = KernelBuilder::new("doc");
/// let odd = (k.lane_id() & 1).ne(0);
/// k.block(|_| k.if_uniform(odd, || k.sync_warp()));
/// let Err(ValidateError::NotUniform { path, .. }) = k.finish() else { unreachable!() };
/// assert_eq!(path.0.last(), Some(&(BlockKind::Scope, 0))); // the `if` inside the scope
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// Body of the kernel.
    Body,
    /// First block of an `If`.
    Then,
    /// Second block of an `If`.
    Else,
    /// Body of a loop.
    Loop,
    /// Body of a scope.
    Scope,
}

impl Path {
    /// Returns the path of statement `index` in the block `part` of this statement.
    ///
    /// ```
    /// use trueno_gpu::ir::{BlockKind, Path};
    /// assert_eq!(Path::default().child(BlockKind::Body, 2).to_string(), "body[2]");
    /// ```
    #[must_use]
    pub fn child(&self, part: BlockKind, index: usize) -> Self {
        let mut steps = self.0.clone();
        steps.push((part, index));
        Self(steps)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (part, index)) in self.0.iter().enumerate() {
            let name = match part {
                BlockKind::Body => "body",
                BlockKind::Then => "then",
                BlockKind::Else => "else",
                BlockKind::Loop => "loop",
                BlockKind::Scope => "scope",
            };
            let dot = if i == 0 { "" } else { "." };
            write!(f, "{dot}{name}[{index}]")?;
        }
        Ok(())
    }
}
