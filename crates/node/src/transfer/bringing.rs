//! Bringing an object that its node has not sealed yet into memory of this node. Owns no state. Engine thread
//! only. Invariant: the bytes that are returned have the digest of the object, if this node compares it.

use std::cell::Cell;
use std::rc::Rc;

use plasmon::{Error, ErrorKind, NodeId};

use super::comparing::Wanted;
use super::failure::Failure;
use super::landing::{Target, extent_of};
use super::pieces::whole;
use super::reading::Here;
use super::record::Arrived;
use crate::memory::Extent;
use crate::net::frame::Location;
use crate::object::Head;
use crate::transfer::Transfer;

/// Number of times that an object is read whose bytes come damaged.
const TRIES: usize = 3;

/// Reads an object into memory of this node from where another node says that it lies.
///
/// # Errors
/// `Full` without room for it, `Disconnected` when it cannot be read, `Damaged` when its bytes do not have
/// its digest, `Invalid` when it does not lie in the pieces.
pub(crate) async fn bring_unsealed(
    transfer: &Rc<Transfer>,
    from: NodeId,
    head: &Head,
    pieces: &[Location],
) -> Result<Extent, Error> {
    let id = head.id;
    if whole(pieces).unwrap_or(0) != head.len() {
        let text = format!("object {id} does not lie in the pieces that node {from} has named");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let failed = |kind, why: String| {
        let text = format!("object {id} cannot be brought from node {from}: {why}");
        Error::new(kind, text).about(id)
    };
    let mut tries = 1;
    loop {
        match bring(transfer, from, head, pieces).await {
            Ok(extent) => return Ok(extent),
            Err(Failure::Here(error)) => return Err(error),
            Err(Failure::Damaged { .. }) if tries < TRIES => tries += 1,
            Err(why @ Failure::Damaged { .. }) => return Err(failed(ErrorKind::Damaged, why.to_string())),
            Err(why) => return Err(failed(ErrorKind::Disconnected, why.to_string())),
        }
    }
}

async fn bring(
    transfer: &Rc<Transfer>,
    from: NodeId,
    head: &Head,
    pieces: &[Location],
) -> Result<Extent, Failure> {
    let wanted = Wanted::new(Cell::new(false));
    let landing = transfer.landing(head, &Target::Replica, &wanted).await?;
    let plan = transfer.tuner.choose(from, head.len()).plan;
    let here = Here { landing: &landing, arrived: &Arrived::default() };
    transfer.read_part(from, pieces, here, head.len(), None, plan).await?;
    transfer.compare(head, &landing, &wanted).await?;
    extent_of(landing)?.ok_or_else(Failure::gone)
}
