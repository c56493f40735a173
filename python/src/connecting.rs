//! Connecting to a node, for Python.
//!
//! Owns no state. Runs without the GIL.

use std::path::PathBuf;
use std::time::Duration;

use plasmon::{Class, Client, Result, Socket};

use crate::error::signalled;

/// Connects to the named socket, or to the default one, as a client of a class. `timeout` applies to
/// connecting, and to calls without a time-out.
pub(crate) fn connected(
    socket: Option<PathBuf>,
    name: &str,
    timeout: Option<Duration>,
    class: Class,
) -> Result<Client> {
    let socket = socket.map_or_else(Socket::find, Socket::from);
    let connect = || Client::connect_with(socket, name, timeout, Some(&mut signalled));
    // A client has normal work unless it says otherwise.
    let client = if class == Class::Normal { connect() } else { class.during(connect) }?;
    Ok(match timeout {
        Some(timeout) => client.within(timeout),
        None => client,
    })
}
