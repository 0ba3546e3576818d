//! Inputs, as the I/O crate opens them.

pub(crate) use trueno_zram_io::Input;
