//! Facts about files that inputs and outputs share: identity, kind, standard streams, and socket files.

pub(crate) mod file_system;
pub(crate) mod regular_file;
pub(crate) mod standard_streams;
pub(crate) mod unix_socket;
