//! Streams the content of any .lz4 or .zst input from start to end. `archive` reads pages by number.

pub(crate) mod content;
pub(crate) mod decoder;
pub(crate) mod frame;
pub(crate) mod history;
pub(crate) mod index_check;
pub(crate) mod inline;
pub(crate) mod input;
pub(crate) mod parallel;
pub(crate) mod reader;
