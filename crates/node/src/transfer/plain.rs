//! Reads of bytes that are no object's: those of regions, and of the memory that clients write to regions.
//! Engine thread only.
//!
//! Invariant: what the caller `keeps` is kept until no operation of the fabric reads there any more, even if
//! the read was given up.

use std::any::Any;
use std::rc::Rc;

use plasmon::{Error, ErrorKind, NodeId};

use super::failure::Failure;
use super::landing::{Given, GivenMemory};
use super::pieces::whole;
use super::reading::Here;
use super::record::Arrived;
use crate::memory::Run;
use crate::net::frame::Location;
use crate::transfer::Transfer;

/// Reads another node's memory into memory that a client has given. Returns when nothing writes there any
/// more.
///
/// # Errors
/// `Disconnected` when the bytes cannot be read, `Internal` when they have no room.
pub(crate) async fn read_given(
    transfer: &Transfer,
    from: NodeId,
    pieces: &[Location],
    given: &Rc<Given>,
    keeps: Rc<dyn Any>,
) -> Result<(), Error> {
    let broken =
        |why: String| Error::new(ErrorKind::Disconnected, format!("cannot read from node {from}: {why}"));
    let len = whole(pieces).ok_or_else(|| broken("its pieces make up no memory".into()))?;
    let landing = given.take_plain(len, Some(keeps));
    let landing = landing.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    let plan = transfer.tuner.choose(from, len).plan;
    let here = Here { landing: &landing, arrived: &Arrived::default() };
    let read = transfer.read_part(from, pieces, here, len, None, plan).await;
    drop(landing);
    transfer.settle(given).await?;
    read.map(drop).map_err(|failure| match failure {
        Failure::Here(error) => error,
        failure => broken(failure.to_string()),
    })
}

/// Reads another node's memory into a region of this node. Returns when nothing writes there any more.
///
/// # Errors
/// As [`read_given`].
pub(crate) async fn read_run(
    transfer: &Transfer,
    from: NodeId,
    pieces: &[Location],
    into: Run,
    keeps: Rc<dyn Any>,
) -> Result<(), Error> {
    let room = into.len();
    let given = Given::new(GivenMemory::Region(into), room);
    read_given(transfer, from, pieces, &given, keeps).await
}
