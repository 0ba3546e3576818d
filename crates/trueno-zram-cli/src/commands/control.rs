//! The control socket of a running `serve`.

use std::path::Path;

use trueno_zram_serve::control::ControlClient;

use crate::failure::Failure;

/// Connects to the socket.
pub(crate) fn connect(socket: &Path) -> Result<ControlClient, Failure> {
    ControlClient::connect(socket).map_err(|error| Failure::io(socket.display(), &error))
}
