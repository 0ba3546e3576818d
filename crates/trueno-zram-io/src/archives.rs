//! Archives that are opened by their path, and the files beneath them.

pub(crate) mod archive_opener;
pub(crate) mod mapped_file;
pub(crate) mod unchanged_file;
