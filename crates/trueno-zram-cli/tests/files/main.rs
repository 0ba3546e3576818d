//! The commands that turn files into others, run as users run them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod damage;
mod extract;
mod foreign;
mod outputs;
mod reports;
mod round_trips;
mod signals;
mod sparse;
mod support;
