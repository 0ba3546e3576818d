//! Outputs, as the I/O crate makes them.

pub(crate) use trueno_zram_io::{Output, OutputOptions, Target};
