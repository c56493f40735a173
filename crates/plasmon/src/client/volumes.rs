//! Calls about volumes of files, as [`files`](crate::files) makes them.
//!
//! Owns no state. Any thread. An operation goes by slot if it fits one, else by the socket. A change that is
//! given up goes on at the home.

use std::time::Duration;

use bytes::Bytes;

use super::Client;
use super::calling::Calls;
use super::connection::{Undo, unexpected};
use super::due::{Due, due};
use super::paging::pages;
use crate::shared::{CallPayload, CallRequest, Manner, PAYLOAD_LEN};
use crate::wire::files::{
    FileAnswer, FileAsked, FilesCall, VolumeChange, VolumeInfo, VolumeTerms, decoded, encoded,
};
use crate::wire::{MAX_NAME, replies, requests};
use crate::{Class, Error, ErrorKind, NodeId, Result};

/// List of the volumes of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeList {
    /// Volumes by their names.
    pub volumes: Vec<VolumeInfo>,
    /// Nodes that did not tell all their volumes, each with the reason: the list lacks those whose home they
    /// are.
    pub missing: Vec<(NodeId, Error)>,
}

/// Calls about volumes of a client.
#[derive(Debug, Clone, Copy)]
pub struct Volumes<'a>(&'a Client);

impl<'a> Volumes<'a> {
    /// Calls by this client.
    pub fn by(client: &'a Client) -> Self {
        Self(client)
    }

    /// Creates a volume, whose home is a node by its id, or the node of this host.
    ///
    /// # Errors
    /// `Exists` if there is a volume of this name. `Full` if the home has no room for another one. `Invalid`
    /// for a name of 0 or more than 255 bytes. `NotFound` if there is no such node. `TimedOut` or
    /// `Disconnected` if a node does not answer.
    pub fn create(self, name: &str, home: Option<NodeId>, terms: VolumeTerms) -> Result<VolumeInfo> {
        check(name)?;
        let create = requests::CreateVolume { name: name.to_owned(), home, terms };
        let replies::Volume(info) = self.0.ask(create, Undo::Nothing)?;
        Ok(info)
    }

    /// Changes the terms of a volume.
    ///
    /// # Errors
    /// `NotFound` if there is no such volume, `NotAllowed` if it belongs to another user. Otherwise as
    /// [`Volumes::create`].
    pub fn set(self, name: &str, change: VolumeChange) -> Result<VolumeInfo> {
        check(name)?;
        let replies::Volume(info) =
            self.0.ask(requests::SetVolume { name: name.to_owned(), change }, Undo::Nothing)?;
        Ok(info)
    }

    /// Removes a volume with all its files.
    ///
    /// # Errors
    /// `Busy` while sessions are attached. Otherwise as [`Volumes::set`].
    pub fn remove(self, name: &str) -> Result<()> {
        check(name)?;
        self.0.ask(requests::RemoveVolume { name: name.to_owned() }, Undo::Nothing).map(drop)
    }

    /// Lists the volumes of the cluster by their names, and the nodes that do not answer.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` if the daemon does not answer.
    pub fn list(self) -> Result<VolumeList> {
        let ask = |node, from| requests::ListVolumes { node, from };
        let (mut volumes, missing) = pages(self.0, ask, |page| (page.volumes, page.next))?;
        volumes.sort_unstable_by(|one, other| (&one.name, one.home).cmp(&(&other.name, other.home)));
        Ok(VolumeList { volumes, missing })
    }

    /// Attaches to a volume: a new session, or one that goes on.
    pub(crate) fn attach(
        self,
        attach: requests::AttachVolume,
        timeout: Option<Duration>,
    ) -> Result<replies::VolumeAttached> {
        check(&attach.name)?;
        let due = timeout.map_or_else(|| self.0.due_of_answer(), |timeout| due(Some(timeout)));
        Calls(self.0).slots(due)?;
        self.0.ask_until(attach, Undo::Nothing, due)
    }

    /// Ends the session of an attached volume.
    pub(crate) fn detach(self, volume: u32) -> Result<()> {
        self.0.ask(requests::DetachVolume { volume }, Undo::Nothing).map(drop)
    }

    /// Has an operation carried out, and returns what the home says.
    pub(crate) fn ask(self, volume: u32, asked: FileAsked, timeout: Duration) -> Result<FileAnswer> {
        let due = due(Some(timeout));
        let payload = encoded(&asked);
        if payload.len() <= PAYLOAD_LEN
            && let Some(payload) = CallPayload::new(&payload)
        {
            let request = CallRequest {
                opcode: FilesCall::OPCODE,
                class: Class::chosen(),
                timeout_us: u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX),
                arguments: [volume.into(), 0, 0, 0, 0, 0],
                payload,
            };
            let manner = Manner { far: false, goes_on: asked.operation.changes() };
            let call = Calls(self.0).begin(&request, manner, due)?;
            let result = Calls(self.0).finish(call, due)?.into_result()?;
            match result.values[0] {
                0 => {
                    let bytes = Bytes::copy_from_slice(&result.payload);
                    return decoded(bytes, "answer about a file")
                        .map_err(|error| self.0.connection.fail(unexpected(&error.to_string())));
                }
                // The outcome is too long for a slot.
                _ => return self.ask_by_socket(volume, asked, due),
            }
        }
        self.ask_by_socket(volume, asked, due)
    }

    fn ask_by_socket(self, volume: u32, asked: FileAsked, due: Due) -> Result<FileAnswer> {
        let on_file = requests::OnFile { volume, asked };
        let replies::FileDone(answer) = self.0.ask_until(on_file, Undo::Nothing, due)?;
        Ok(answer)
    }
}

impl Volumes<'_> {
    /// Connects to the same socket again, as the client was set up. The call ends within `timeout`.
    pub(crate) fn reconnect(self, name: &str, timeout: Duration) -> Result<Client> {
        let old = self.0;
        let mut stop = || old.interrupt.as_ref().is_some_and(|interrupt| interrupt());
        let socket = old.connection.at().clone();
        let new = Client::connect_with(socket, name, Some(timeout), Some(&mut stop))?;
        let (interrupt, patience, verifies) = (old.interrupt.clone(), old.patience, old.verifies);
        Ok(Client { interrupt, patience, verifies, ..new })
    }

    /// Whether the daemon still holds its end of the connection.
    pub(crate) fn is_connected(self) -> bool {
        self.0.connection.is_alive() && self.0.connection.slots().is_some()
    }
}

fn check(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME {
        let text = format!("a volume cannot have a name of {} bytes: give it 1 to {MAX_NAME}", name.len());
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn names_have_1_to_255_bytes() {
        assert!(check("main").is_ok() && check(&"v".repeat(255)).is_ok());
        assert!(check("").is_err() && check(&"v".repeat(256)).is_err());
    }
}
