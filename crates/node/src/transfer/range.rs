//! Reading ranges of objects of other nodes, without bringing the objects here. Owns no state.
//! Engine thread only.
//!
//! The bytes are read one-sidedly into blocks of the pools, from where their holder said that the object
//! lies, and behind them the holder's stamp. If the stamp has the expected value, the bytes were the
//! object's when they were read. No byte stays here, so a deletion need not know of this node.

use std::ops::Range;

use bytes::Bytes;
use futures::future::Either;
use plasmon::{Error, ErrorKind, NodeId};

use super::failure::Failure;
use super::pieces::{pairs, part, whole};
use super::reading::in_window;
use crate::directory::arrivals::Lies;
use crate::memory::Piece;
use crate::net::frame::MESSAGE_MAX_BYTES;
use crate::transfer::Transfer;

/// Maximum number of bytes of a range.
pub(crate) const MAX_RANGE_BYTES: u64 = 64 << 10;
/// Number of reads of a range that are under way at a time.
const WINDOW: u32 = 4;

/// Reads a range of the data of an object at a holder.
///
/// # Errors
/// `NotFound` if the object does not lie there, `Invalid` if the object has no such range, and
/// other errors if it cannot be read.
pub(crate) async fn read_range(
    transfer: &Transfer,
    holder: NodeId,
    lies: &Lies,
    range: Range<u64>,
) -> Result<Bytes, Error> {
    let (head, pieces, _) = lies;
    let len = range.end.saturating_sub(range.start);
    if len == 0 || len > MAX_RANGE_BYTES || range.end > head.data_len || whole(pieces) != Some(head.len()) {
        let text = format!("object {} has no range of bytes {range:?} that can be read alone", head.id);
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    try_range(transfer, holder, lies, range.start, len).await.map_err(|failure| match failure {
        Failure::Here(error) => error,
        failure => Error::new(ErrorKind::NotFound, failure.to_string()),
    })
}

async fn try_range(
    transfer: &Transfer,
    holder: NodeId,
    (_, pieces, stamp): &Lies,
    at: u64,
    len: u64,
) -> Result<Bytes, Failure> {
    let unknown = || Failure::Holder("its memory is not known here".into());
    let stamp_there = transfer.network.remote_stamp(holder, *stamp).ok_or_else(unknown)?;
    let word = transfer.network.block(stamp_there.on, size_of::<u64>())?;
    let here = Piece { segment: 0, offset: 0, len };
    let (mut there, mut blocks) = (Vec::new(), Vec::new());
    for (from, into) in pairs(part(pieces, at, len), [here], MESSAGE_MAX_BYTES as u64) {
        let remote = transfer.network.remote(holder, &from).ok_or_else(unknown)?;
        blocks.push((transfer.network.block(remote.on, into.len as usize)?, remote));
        there.push(from);
    }
    let read = |(block, remote): &(plasmon_fabric::Slice, _)| {
        Either::Left(transfer.read_slice(holder, block.clone(), *remote))
    };
    let reads = blocks.iter().map(read);
    let stamp_read = || Either::Right(transfer.read_slice(holder, word.clone(), stamp_there));
    // A later read sees a later state: the stamp is read behind the bytes.
    if transfer.network.reads_in_order(holder, &there, &stamp_there) {
        in_window(reads.chain([stamp_read()]), WINDOW + 1).await?;
    } else {
        in_window(reads, WINDOW).await?;
        in_window(std::iter::once(stamp_read()), 1).await?;
    }
    let mut value = [0; size_of::<u64>()];
    word.copy_to_slice(&mut value)?;
    if u64::from_ne_bytes(value) != stamp.value {
        return Err(Failure::Holder("it is not where it was".into()));
    }
    let mut bytes = Vec::with_capacity(len as usize);
    blocks.iter().for_each(|(block, _)| bytes.extend(block.to_vec()));
    Ok(bytes.into())
}
