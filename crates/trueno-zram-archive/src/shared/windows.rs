//! Buffers for the blocks of several pages, kept for the next reader.

use std::sync::{Mutex, PoisonError};

/// Buffers that no thread uses.
#[derive(Debug, Default)]
pub(super) struct Windows(Mutex<Vec<Vec<u8>>>);

impl Windows {
    /// Returns a buffer of any length.
    pub(super) fn take(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Keeps a buffer for later.
    pub(super) fn give_back(&self, window: Vec<u8>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(window);
    }
}
