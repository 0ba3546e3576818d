//! Files mapped into memory, in which a page that the kernel cannot provide is an error and not the end of the process.

pub(crate) mod bus_error;
pub(crate) mod guarded_mapping;
