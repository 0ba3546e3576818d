//! The commands that look at files, machines and processes, run as users run them.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod bombs;
mod core_file;
mod hostile;
mod info;
mod inspect;
mod manual;
mod names;
mod schema;
mod selftest;
#[path = "../files/shim.rs"]
#[allow(dead_code, reason = "shared with the tests of the other commands")]
mod shim;
mod snapshot;
#[path = "../files/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the other commands")]
mod support;
mod victim;
