//! Replaces `zstd.rs` in builds without the feature `zstd`: contexts cannot be created, and every request is rejected.

use std::convert::Infallible;

use crate::error::{Error, Result};
use crate::page::Page;

pub(super) struct ZstdEncoder(Infallible);

impl ZstdEncoder {
    pub(super) fn new(_level: i32) -> Result<Self> {
        Err(unsupported())
    }

    pub(super) fn encode(&mut self, _page: &Page, _out: &mut Page) -> Result<Option<usize>> {
        match self.0 {}
    }
}

pub(super) struct ZstdDecoder(Infallible);

impl ZstdDecoder {
    pub(super) fn new() -> Result<Self> {
        Err(unsupported())
    }

    pub(super) fn decode(&mut self, _frame: &[u8], _page: &mut Page) -> Result<()> {
        match self.0 {}
    }
}

fn unsupported() -> Error {
    Error::Unsupported { what: "Zstandard".to_owned(), by: "this build (without the feature `zstd`)" }
}
