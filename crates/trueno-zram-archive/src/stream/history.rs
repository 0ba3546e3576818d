//! The last 64 KiB of a frame's content, which linked blocks refer to.

/// The farthest that a linked block can refer back.
const REACH: usize = 64 << 10;

/// The end of the content so far.
#[derive(Debug, Default)]
pub(crate) struct History(Vec<u8>);

impl History {
    /// Returns up to 64 KiB of content.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0[self.0.len().saturating_sub(REACH)..]
    }

    /// Appends content of the frame to its history.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let kept = &bytes[bytes.len().saturating_sub(REACH)..];
        // Twice the reach is kept, so that small blocks do not move 64 KiB each.
        if self.0.len() + kept.len() > 2 * REACH {
            let needed = REACH.saturating_sub(kept.len());
            self.0.drain(..self.0.len() - needed.min(self.0.len()));
        }
        self.0.extend_from_slice(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_are_kept_in_bounded_memory() {
        for step in [1, 100, 65_535, 65_536, 70_000, 200_000] {
            let (mut history, mut all) = (History::default(), Vec::new());
            while all.len() < 500_000 {
                let bytes: Vec<u8> = (0..step).map(|n| (all.len() + n).to_le_bytes()[1]).collect();
                history.push(&bytes);
                all.extend(bytes);
                if step > 1 || all.len() % 1000 == 0 {
                    assert_eq!(history.bytes(), &all[all.len().saturating_sub(REACH)..]);
                }
                assert!(history.0.len() <= 2 * REACH);
            }
        }
    }
}
