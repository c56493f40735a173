//! Bytes that are no object's: reads of other nodes' regions and of the memory that their clients lend,
//! and copies within this node. Owns no state. Engine thread only.
//!
//! Invariant: memory that the caller `keeps` is kept until no operation of the fabric reads there
//! any more, even if the read was given up.

use std::any::Any;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use plasmon::{Error, ErrorKind, NodeId};

use super::failure::Failure;
use super::landing::{Given, GivenMemory};
use super::pieces::whole;
use super::reading::Here;
use super::record::Arrived;
use crate::memory::Run;
use crate::net::frame::Location;
use crate::transfer::Transfer;

/// Number of bytes that the engine copies before other tasks get their turn.
const TURN_BYTES: u64 = 1 << 20;
/// Number of bytes that are copied by way of the processor's caches at a time.
const CHUNK_BYTES: u64 = 256 << 10;
/// Alignment in bytes of the buffer of copies. An allocator puts large buffers 16 bytes behind the
/// beginning of a page. Some processors (AMD's from Zen 3 on) copy with `rep movsb` at a fifth of
/// their speed if the target lies up to 31 bytes further in its page than the source, as such a
/// buffer does beside the beginning of a region.
const ALIGNMENT_BYTES: usize = 4096;

/// Has `copy` copy bytes of this node, some at a time, by way of a buffer that all copies share. `copy`
/// gets the position of the bytes, and the part of the buffer for them.
///
/// # Errors
/// `Internal` when `copy` fails, although its bounds were checked before.
pub(crate) async fn in_turns<E: Display>(
    transfer: &Transfer,
    len: u64,
    mut copy: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<(), Error> {
    let mut at = 0;
    while at < len {
        let bytes = CHUNK_BYTES.min(len - at);
        let mut buffer = transfer.copied.take();
        buffer.resize(CHUNK_BYTES as usize + ALIGNMENT_BYTES, 0);
        let begin = buffer.as_ptr().align_offset(ALIGNMENT_BYTES);
        let copied = copy(at, &mut buffer[begin..begin + bytes as usize]);
        transfer.copied.set(buffer);
        copied.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        at += bytes;
        if at < len && at.is_multiple_of(TURN_BYTES) {
            transfer.kernel.clock.sleep(Duration::ZERO).await;
        }
    }
    Ok(())
}

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
