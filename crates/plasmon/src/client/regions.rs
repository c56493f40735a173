//! Calls that make regions, find them and list them.
//!
//! Owns no state. Any thread. All of these calls go by the socket. Operations on a region go by slot, or
//! without any call ([`region`](super::region)). The list of a cluster is made here, as that of objects is.

use std::sync::Arc;
use std::time::Duration;

use super::calling::Calls;
use super::connection::Undo;
use super::due::due;
use super::paging::pages;
use super::reading::microseconds;
use super::region::{Handle, Region};
use super::{Client, Question};
use crate::region::{RegionInfo, RegionOptions, Rights};
use crate::wire::{MAX_NAME_BYTES, Request, replies, requests};
use crate::{Error, ErrorKind, NodeId, Result};

/// List of the regions of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegionList {
    /// Regions by their names.
    pub regions: Vec<RegionInfo>,
    /// Nodes that did not tell all their regions, each with the reason: the list lacks what lives on them.
    pub missing: Vec<(NodeId, Error)>,
}

impl Client {
    /// Makes a region of `len` bytes, zeroed, and maps it with all rights.
    ///
    /// # Errors
    /// `Exists` if there is a region of this name, unless `options.exist_ok` lets the call map that region,
    /// which must be this user's and of this size. `Full` or `TooLarge` if the node has no room. `NotFound`
    /// if there is no such node. `Invalid` for a name of 0 or more than 255 bytes, and for a size of 0.
    /// `OutcomeUnknown` if the node that decides about the name does not answer. `Disconnected`, or
    /// `TimedOut` if the daemon does not answer.
    pub fn create_region(&self, name: &str, len: u64, options: &RegionOptions) -> Result<Region> {
        check_name(name)?;
        if len == 0 {
            let text = format!("region '{name}' cannot have 0 bytes: give it a size");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let RegionOptions { node, public, mappable, ephemeral, exist_ok, room } = *options;
        let create = requests::CreateRegion {
            name: name.to_owned(),
            len,
            node,
            public,
            mappable,
            ephemeral,
            exist_ok,
            room_us: room.map_or(0, |room| microseconds(Some(room))),
        };
        map(self, name, create, room)
    }

    /// Maps a region of this user or of root with the rights that are asked for. With a time-out, the call
    /// waits until such a region is made, at most for that time.
    ///
    /// # Errors
    /// `NotFound` if there is no such region, and none was made in time. `NotAllowed` if this user lacks one
    /// of the rights. `Lost` if the region's home is gone. `Invalid` for a name of 0 or more than 255 bytes.
    /// `Disconnected`, or `TimedOut` if a node does not answer.
    pub fn map_region(&self, name: &str, rights: Rights, timeout: Option<Duration>) -> Result<Region> {
        self.map_region_of(None, name, rights, timeout)
    }

    /// Maps a region as [`Client::map_region`] does, but only one that belongs to the user `owner`, if that
    /// is given. So no other user can offer a region of this name in its place.
    ///
    /// # Errors
    /// As [`Client::map_region`].
    pub fn map_region_of(
        &self,
        owner: Option<u32>,
        name: &str,
        rights: Rights,
        timeout: Option<Duration>,
    ) -> Result<Region> {
        check_name(name)?;
        let timeout_us = timeout.map_or(0, |timeout| microseconds(Some(timeout)));
        let wanted = requests::MapRegion { name: name.to_owned(), owner, rights, timeout_us };
        map(self, name, wanted, timeout)
    }

    /// Lists the regions of the cluster that this user may see, by their names. Regions that come, go or move
    /// during the call may be in the list or not.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` if the daemon or a node of the cluster does not answer.
    /// [`Client::list_regions`] has what the other nodes tell.
    pub fn regions(&self) -> Result<Vec<RegionInfo>> {
        let RegionList { regions, missing } = self.list_regions()?;
        match missing.into_iter().next() {
            Some((node, error)) => Err(error.while_doing(&format!("the regions of node {node}"))),
            None => Ok(regions),
        }
    }

    /// Lists regions as [`Client::regions`] does, and the nodes that do not answer.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` if the daemon does not answer.
    pub fn list_regions(&self) -> Result<RegionList> {
        let ask = |node, from| requests::ListRegions { node, from };
        let (regions, missing) = pages(self, ask, |page| (page.regions, page.next))?;
        let mut list = RegionList { regions, missing };
        list.regions.sort_unstable_by(|one, other| (&one.name, one.home).cmp(&(&other.name, other.home)));
        Ok(list)
    }
}

/// Asks for a handle, and maps the region's memory if it may be mapped. Without a time-out the call waits
/// for the answer alone.
fn map(
    client: &Client,
    name: &str,
    question: impl Question<Answer = replies::RegionMapped>,
    timeout: Option<Duration>,
) -> Result<Region> {
    let timeout = timeout.filter(|timeout| !timeout.is_zero());
    let due = timeout.map_or_else(|| client.due_of_answer(), |timeout| due(Some(timeout)));
    // A region is mapped by a client that has slots: they say whether it is still there.
    Calls(client).slots(due)?;
    let mapped = client.ask_until(question, Undo::Unmap, due)?;
    // Without memory of its own the handle makes calls.
    let place = mapped.place.as_ref().map(|place| client.connection.arena().region(place, mapped.len));
    let memory = place.transpose().map(Option::flatten).map_err(|error| {
        client.connection.send_and_forget(&Request::UnmapRegion { handle: mapped.handle });
        client.connection.fail(error)
    })?;
    let handle = Handle::new(Arc::clone(&client.connection), name, &mapped, memory);
    Ok(Region::new(client.clone(), handle))
}

fn check_name(name: &str) -> Result<()> {
    if (1..=MAX_NAME_BYTES).contains(&name.len()) {
        return Ok(());
    }
    let text =
        format!("the name of a region has 1 to {MAX_NAME_BYTES} bytes, and this one has {}", name.len());
    Err(Error::new(ErrorKind::Invalid, text))
}
