//! Everything that the tool prints: lines and reports for people, JSON for scripts, progress, pictures. Data that commands write
//! to their outputs does not pass through here.

pub(crate) mod draw;
pub(crate) mod json;
pub(crate) mod latency;
pub(crate) mod messages;
pub(crate) mod printable;
pub(crate) mod progress;
pub(crate) mod quantity;
pub(crate) mod report;
pub(crate) mod stdout;
pub(crate) mod stopwatch;
pub(crate) mod terminal;
