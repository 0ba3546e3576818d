//! The commands, one file each: its arguments and its `run`.

pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod compress;
pub(crate) mod control;
pub(crate) mod criu;
pub(crate) mod decompress;
pub(crate) mod extract;
pub(crate) mod flatten;
pub(crate) mod info;
pub(crate) mod inspect;
mod inspect_delta;
mod list;
pub(crate) mod man;
pub(crate) mod restore;
pub(crate) mod selftest;
pub(crate) mod serve;
pub(crate) mod snapshot;
pub(crate) mod test;
