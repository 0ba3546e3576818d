//! The commands that turn files into others, run as users run them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod collisions;
mod criu;
mod damage;
mod delta;
mod drivers;
mod extract;
mod faults;
mod file_systems;
mod foreign;
mod in_place;
mod lz4_compat;
mod outputs;
mod parallel;
mod reports;
mod round_trips;
mod shim;
mod signals;
mod sparse;
mod standard_output;
mod streams;
mod support;
mod terminal;
mod threads;
mod zst;
