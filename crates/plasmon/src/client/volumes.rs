//! Calls about volumes of files, as [`files`](crate::files) makes them.
//!
//! Owns no state. Any thread. An operation goes by slot if it fits one, else by the socket. A change that is
//! given up goes on at the home.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::Client;
use super::calling::Calls;
use super::connection::{Undo, unexpected};
use super::due::{Due, due};
use super::nodes::find_nodes;
use super::paging::pages;
use crate::shared::{CallPayload, CallRequest, Manner, PAYLOAD_LEN};
use crate::wire::files::{
    FileAnswer, FileAnswered, FileAsked, FileReads, FilesCall, Kept, MAX_PLACE_NODES, MAX_TOLD_OPENS,
    NodeCheck, Peeking, Place, Settling, VolumeChange, VolumeInfo, VolumeTerms, decoded,
};
use crate::wire::{BySlot, MAX_NAME_BYTES, SlotResult, replies, requests};
use crate::{Class, Error, ErrorKind, NodeId, ObjectId, Result};

/// Longest wait for a range of an object. After this time the whole object is brought.
const PEEK_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest wait until a node has looked through its objects.
const CHECK_TIMEOUT: Duration = Duration::from_secs(600);

/// Nodes that did not check what they have, each with the reason.
type Unchecked = Vec<(NodeId, Error)>;

/// List of the volumes of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeList {
    /// Volumes by their names.
    pub volumes: Vec<VolumeInfo>,
    /// Nodes that did not tell all their volumes, each with the reason: the list lacks those whose home they
    /// are.
    pub missing: Vec<(NodeId, Error)>,
}

/// Finds the place that a text stands for: `local`, `spread`, or nodes with commas between, each the name or
/// address of a host, or an id or its beginning.
///
/// # Errors
/// As [`find_nodes`]; `Invalid` for too many nodes.
pub fn find_place(client: &Client, text: &str) -> Result<Place> {
    let place = match text {
        "local" => Place::Local,
        "spread" => Place::Spread,
        nodes => {
            let nodes: Vec<_> = nodes.split(',').map(str::trim).collect();
            Place::Nodes(find_nodes(client, &nodes, None)?)
        }
    };
    check_place(Some(&place))?;
    Ok(place)
}

/// Calls of a client about volumes of files.
#[derive(Debug, Clone, Copy)]
pub struct Volumes<'a>(&'a Client);

impl<'a> Volumes<'a> {
    /// Makes calls about volumes by this client.
    pub fn by(client: &'a Client) -> Self {
        Self(client)
    }

    /// Creates a volume whose home is the node `home`. With `None` the home is the node of this host, or
    /// another node if that one keeps no names of files.
    ///
    /// # Errors
    /// `Exists` if there is a volume of this name. `Full` if the home, or the cluster, has no room for
    /// another one. `NotAllowed` if the node may not be a home, because it is a cache or was started with
    /// `--no-files`. `Invalid` for a name of 0 or more than 255 bytes. `NotFound` if there is no such node.
    /// `TimedOut` or `Disconnected` if a node does not answer.
    pub fn create(self, name: &str, home: Option<NodeId>, terms: VolumeTerms) -> Result<VolumeInfo> {
        check(name)?;
        check_place(Some(&terms.place))?;
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
        check_place(change.place.as_ref())?;
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
        self.0.ask(requests::RemoveVolume { name: name.to_owned(), lost: false }, Undo::Nothing).map(drop)
    }

    /// Forgets a volume that no node has any more. Its objects are deleted.
    ///
    /// # Errors
    /// `Busy` if a node has it. Otherwise as [`Volumes::set`].
    pub fn forget(self, name: &str) -> Result<()> {
        check(name)?;
        self.0.ask(requests::RemoveVolume { name: name.to_owned(), lost: true }, Undo::Nothing).map(drop)
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

    /// Tells what a session that goes on has open: each inode with the number of its opens, and of those that
    /// have the right to map the file.
    pub(crate) fn tell_opened(self, volume: u32, opens: &[(u64, u32, u32)]) -> Result<()> {
        let mut pages = opens.chunks(MAX_TOLD_OPENS).peekable();
        loop {
            let page = pages.next().unwrap_or_default().to_vec();
            let more = pages.peek().is_some();
            self.0.ask(requests::TellOpened { volume, opens: page, more }, Undo::Nothing)?;
            if !more {
                return Ok(());
            }
        }
    }

    /// Ends the session of an attached volume.
    pub(crate) fn detach(self, volume: u32) -> Result<()> {
        self.0.ask(requests::DetachVolume { volume }, Undo::Nothing).map(drop)
    }

    /// Has an object of an attached volume brought to its place, without waiting for the end of this.
    pub(crate) fn begin_settling(self, volume: u32, id: ObjectId, place: &Place, copies: u16) {
        let begin = requests::BeginSettling(Settling { volume, ids: vec![id], place: place.clone(), copies });
        self.0.connection.send_and_forget(&begin.into());
    }

    /// Tells how reads of an attached volume were served, without waiting for an answer.
    pub(crate) fn count_reads(self, reads: FileReads) {
        let count = requests::CountReads(reads);
        self.0.connection.send_and_forget(&count.into());
    }

    /// Waits until objects of an attached volume lie where they are to, or stay because no node takes them.
    /// The objects are brought there also when this call has ended: a node that does not take them may have
    /// to leave the cluster before another is asked.
    pub(crate) fn settle(
        self,
        (volume, ids): (u32, &[ObjectId]),
        (place, copies): (&Place, u16),
        timeout: Duration,
    ) -> Result<replies::Settled> {
        let settle = requests::Settle(Settling { volume, ids: ids.to_vec(), place: place.clone(), copies });
        self.0.ask_until(settle, Undo::Cancel, due(Some(timeout)))
    }

    /// Number of nodes that have each of these objects of an attached volume. If `copies` is not 0, so many
    /// nodes are made to keep each object that fewer nodes keep.
    pub(crate) fn look_after(self, volume: u32, ids: &[ObjectId], copies: u16) -> Result<Vec<Kept>> {
        let look = requests::LookAfter { volume, ids: ids.to_vec(), copies };
        let told = self.0.ask_until(look, Undo::Nothing, due(Some(CHECK_TIMEOUT)))?;
        if told.kept.len() == ids.len() {
            return Ok(told.kept);
        }
        Err(self.0.connection.fail(unexpected("another number of objects")))
    }

    /// Has all nodes look through their objects of an attached volume. Returns what each node has, and the
    /// nodes that did not answer.
    pub(crate) fn check(self, volume: u32, sweep: bool) -> Result<(BTreeMap<NodeId, NodeCheck>, Unchecked)> {
        let replies::Members(nodes) = self.0.ask(requests::Members, Undo::Nothing)?;
        let (mut checked, mut missing) = (BTreeMap::new(), Vec::new());
        for node in nodes {
            let check = requests::CheckVolume { volume, node, sweep };
            match self.0.ask_until(check, Undo::Nothing, due(Some(CHECK_TIMEOUT))) {
                Ok(replies::VolumeChecked(found)) => _ = checked.insert(node, found),
                Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
                Err(error) => missing.push((node, error)),
            }
        }
        Ok((checked, missing))
    }

    /// Reads a range of an object of another node, of an attached volume, without bringing the object.
    pub(crate) fn peek(self, peek: Peeking) -> Result<Bytes> {
        let peek = requests::Peek(peek);
        let replies::Peeked { bytes } = self.0.ask_until(peek, Undo::Nothing, due(Some(PEEK_TIMEOUT)))?;
        Ok(bytes)
    }

    /// Has an operation carried out, and returns the home's answer.
    pub(crate) fn ask(self, volume: u32, asked: FileAsked, timeout: Duration) -> Result<FileAnswer> {
        let due = due(Some(timeout));
        let call = FilesCall::OnFile { volume, asked };
        let (opcode, arguments, payload) = call.packed();
        let FilesCall::OnFile { asked, .. } = call;
        if payload.len() <= PAYLOAD_LEN
            && let Some(payload) = CallPayload::new(&payload)
        {
            let request = CallRequest {
                opcode,
                class: Class::chosen(),
                timeout_us: u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX),
                arguments,
                payload,
            };
            let manner = Manner { far: false, goes_on: asked.operation.changes() };
            let call = Calls(self.0).begin(&request, manner, due)?;
            let result = Calls(self.0).finish(call, due)?.into_result()?;
            match FileAnswered::of_values(result.values, &result.payload) {
                Some(FileAnswered { too_long: false }) => {
                    let bytes = Bytes::copy_from_slice(&result.payload);
                    return decoded(bytes, "answer about a file")
                        .map_err(|error| self.0.connection.fail(unexpected(&error.to_string())));
                }
                Some(FileAnswered { too_long: true }) => return self.ask_by_socket(volume, asked, due),
                None => {
                    let wrong = unexpected("a result that is none of an operation on a file");
                    return Err(self.0.connection.fail(wrong));
                }
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
        let mut stop = || self.is_interrupted();
        let socket = old.connection.at().clone();
        let new = Client::connect_with(socket, name, Some(timeout), Some(&mut stop))?;
        let (interrupt, patience, verifies) = (old.interrupt.clone(), old.patience, old.verifies);
        Ok(Client { interrupt, patience, verifies, ..new })
    }

    /// Whether the caller's thread is to give its call up.
    pub(crate) fn is_interrupted(self) -> bool {
        self.0.interrupt.as_ref().is_some_and(|interrupt| interrupt())
    }

    /// Whether the daemon still holds its end of the connection.
    pub(crate) fn is_connected(self) -> bool {
        self.0.connection.is_alive() && self.0.connection.slots().is_some()
    }
}

fn check(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        let text =
            format!("a volume cannot have a name of {} bytes: give it 1 to {MAX_NAME_BYTES}", name.len());
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

fn check_place(place: Option<&Place>) -> Result<()> {
    match place {
        Some(place) if !place.is_valid() => {
            let text = format!("a place has 1 to {MAX_PLACE_NODES} nodes, and '{place}' has not");
            Err(Error::new(ErrorKind::Invalid, text))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_PLACE_NODES, NodeId, Place, check, check_place};

    #[test]
    fn places_have_some_nodes_and_not_too_many() {
        let nodes = |many| Place::Nodes(vec![NodeId::from_bytes([1; NodeId::LEN]); many]);
        assert!(check_place(None).is_ok() && check_place(Some(&Place::Spread)).is_ok());
        assert!(check_place(Some(&nodes(1))).is_ok() && check_place(Some(&nodes(MAX_PLACE_NODES))).is_ok());
        assert!(
            check_place(Some(&nodes(0))).is_err() && check_place(Some(&nodes(MAX_PLACE_NODES + 1))).is_err()
        );
    }

    #[test]
    fn names_have_1_to_255_bytes() {
        assert!(check("main").is_ok() && check(&"v".repeat(255)).is_ok());
        assert!(check("").is_err() && check(&"v".repeat(256)).is_err());
    }
}
