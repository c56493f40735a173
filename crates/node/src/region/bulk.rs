//! Transfers of many bytes between regions and the memory that clients were lent, without a copy on the way
//! between hosts. Owns no state. Engine thread only.
//!
//! The node that needs the bytes reads them where they are: a client's node in the home's memory, the home of
//! a region in the memory of a client's node, or of another home. No node writes into another's memory. The
//! home has checked rights and bounds before it reads for itself. Another node that reads in the home's
//! memory checks bounds itself. The home checked the right of its user when it answered where the bytes lie.
//!
//! Invariant: the memory that is read is used for nothing else until the reader has said that it is done,
//! even if the call that wanted the bytes is over.

use std::any::Any;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::channel::oneshot;
use plasmon::region::Rights;
use plasmon::shared::CallResult;
use plasmon::wire::{LentRange, Operation};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::Regions;
use super::access::{are_carried, ensure};
use super::frames::{CARRIED_MAX_BYTES, ask};
use super::handles::At;
use super::home::{Fenced, Region};
use super::mapping::Mapping;
use crate::guard::Fence;
use crate::kernel::ClientKey;
use crate::memory::Run;
use crate::net::frame::{Ask, Location};
use crate::net::sending::{describe_segments, knows_segments};
use crate::transfer::{Given, in_turns, locate, part, read_given, read_run, whole};

/// Longest time that a home may take to read bytes for a transfer.
const PULL_PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// A range of a region: offset and length in bytes.
type Range = (u64, u64);

impl Regions {
    /// Checks that the handle has the right that a transfer takes. Returns the user of the client, and the
    /// memory that the client was lent.
    fn take_lent(
        &self,
        client: ClientKey,
        (has, wanted): (Rights, Rights),
        memory: LentRange,
        len: u64,
    ) -> Result<(u32, Rc<Given>), Error> {
        ensure(has, wanted)?;
        Ok((self.user(client), self.requests.give(client, memory, len)?))
    }

    /// Reads bytes of a region into memory that a client was lent.
    pub(super) async fn read_to(
        self: Rc<Self>,
        client: ClientKey,
        (at, rights): (At, Rights),
        (offset, len): Range,
        memory: LentRange,
        patience: Duration,
    ) -> Result<CallResult, Error> {
        let (user, given) = self.take_lent(client, (rights, Rights::READ), memory, len)?;
        match at {
            At::Here(region) => {
                region.ensure(user, Rights::READ)?;
                let (run, _held) = (region.run(offset, len)?, region.hold());
                in_turns(&self.transfer, len, |at, chunk| {
                    run.read(at, chunk)?;
                    given.write(at, chunk)
                })
                .await?;
                region.ensure_there()?;
            }
            At::There(mapping) if are_carried(len) => {
                let operation = Operation::Read { offset, len };
                let done = self.access(&mapping, (user, None), operation, Bytes::new(), patience).await?;
                given.write(0, &done.data).map_err(inside)?;
            }
            At::There(mapping) => {
                self.read_from_home(&mapping, user, (offset, len), &given, patience).await?
            }
        }
        Ok(CallResult::of(&[len]))
    }

    /// Reads bytes of a region in its home's memory.
    async fn read_from_home(
        self: &Rc<Self>,
        mapping: &Rc<Mapping>,
        user: u32,
        range: Range,
        given: &Rc<Given>,
        patience: Duration,
    ) -> Result<(), Error> {
        let read = async {
            // This node may not know the home's memory any more, since the connection broke. Then the home is
            // asked again.
            for is_last in [false, true] {
                let pieces = self.pieces(mapping, user, patience).await?;
                let pieces = cut(&pieces, range).ok_or_else(|| outside(&mapping.name, range, mapping.len))?;
                if is_last || knows_segments(&self.network, mapping.home, &pieces) {
                    let keeps = mapping.keep()?;
                    read_given(&self.transfer, mapping.home, &pieces, given, keeps).await?;
                    break;
                }
                mapping.set_located(None);
            }
            Ok(())
        };
        let due = self.kernel.clock.now() + patience;
        let read = self.kernel.clock.bounded(Some(due), read).await;
        read.unwrap_or_else(|| Err(late(&mapping.name)))?;
        // A node that was no member meanwhile may have read bytes that were not the region's any more.
        mapping.ensure()?;
        self.cluster.ensure_member()
    }

    /// Returns the places of the bytes of a region at its home.
    async fn pieces(
        self: &Rc<Self>,
        mapping: &Rc<Mapping>,
        user: u32,
        patience: Duration,
    ) -> Result<Rc<Vec<Location>>, Error> {
        if let Some(pieces) = mapping.located() {
            mapping.ensure()?;
            return Ok(pieces);
        }
        loop {
            let before = mapping.relocations.get();
            let question = ask::Locate { desk: mapping.desk() };
            let ask::Located { pieces } = self.ask_home(mapping, user, question, patience, false).await?;
            // A relocation that overtook the answer makes the answer void: the home asked this node to stop
            // reading.
            if mapping.relocations.get() == before {
                let pieces = Rc::new(pieces);
                mapping.set_located(Some(Rc::clone(&pieces)));
                return Ok(pieces);
            }
        }
    }

    /// Writes bytes of memory that a client was lent to a region.
    pub(super) async fn write_from(
        self: Rc<Self>,
        client: ClientKey,
        (at, rights, fence): (At, Rights, Option<Fence>),
        (offset, len): Range,
        memory: LentRange,
        patience: Duration,
    ) -> Result<CallResult, Error> {
        let (user, given) = self.take_lent(client, (rights, Rights::WRITE), memory, len)?;
        match at {
            At::Here(region) => {
                let _changing = region.begin_change().await;
                region.ensure(user, Rights::WRITE)?;
                let (run, _held) = (region.run(offset, len)?, region.hold());
                let fenced = region.begin_shown(fence).await?;
                let mut allowed = Ok(());
                let copied = in_turns(&self.transfer, len, |at, chunk| {
                    allowed = fenced.as_ref().map_or(Ok(()), Fenced::ensure);
                    allowed.clone().map_err(|error| error.to_string())?;
                    given.read(at, chunk).map_err(|error| error.to_string())?;
                    run.write(at, chunk).map_err(|error| error.to_string())
                });
                let copied = copied.await;
                allowed.and(copied)?;
                region.ensure_there()?;
                region.changed(offset, len);
            }
            At::There(mapping) => match given.run().filter(|_| !are_carried(len)) {
                Some(run) => {
                    let from = locate(&self.transfer.store, &run);
                    describe_segments(&self.network, mapping.home, &from);
                    let question = ask::Pull { desk: mapping.desk(), offset, from, fence };
                    self.ask_holding(&mapping, user, question, given).await?;
                }
                None => self.carry(&mapping, (user, fence), (offset, len), &given, patience).await?,
            },
        }
        Ok(CallResult::of(&[len]))
    }

    /// Writes bytes of a client's memory to a region of another node by messages.
    async fn carry(
        self: &Rc<Self>,
        mapping: &Rc<Mapping>,
        user: (u32, Option<Fence>),
        (offset, len): Range,
        given: &Rc<Given>,
        patience: Duration,
    ) -> Result<(), Error> {
        let mut at = 0;
        while at < len {
            let mut data = vec![0; CARRIED_MAX_BYTES.min(len - at) as usize];
            given.read(at, &mut data).map_err(inside)?;
            let operation = Operation::Write { offset: offset.saturating_add(at) };
            at += data.len() as u64;
            self.access(mapping, user, operation, data.into(), patience).await?;
        }
        Ok(())
    }

    /// Asks a home to read memory of this node, and keeps this memory until the home has answered, even if
    /// the call is over before.
    async fn ask_holding<Q: Ask<Answer = ask::Changed> + 'static>(
        self: &Rc<Self>,
        mapping: &Rc<Mapping>,
        user: u32,
        question: Q,
        held: Rc<Given>,
    ) -> Result<(), Error> {
        let (sender, answer) = oneshot::channel();
        let (regions, mapping) = (Rc::clone(self), Rc::clone(mapping));
        self.kernel.spawn(async move {
            let answer = regions.ask_home(&mapping, user, question, PULL_PATIENCE, true).await;
            drop(held);
            // The call may be over.
            _ = sender.send(answer);
        });
        let ended = || Error::new(ErrorKind::Internal, "this node is ending");
        answer.await.map_err(|_| ended())?.map(|ask::Changed| ())
    }

    /// Copies bytes from one region to another, at the home of the region that is written.
    pub(super) async fn copy(
        self: Rc<Self>,
        (at, rights): (At, Rights),
        user: u32,
        offset: u64,
        (source, source_rights): (At, Rights),
        (source_offset, len): Range,
        patience: Duration,
    ) -> Result<CallResult, Error> {
        ensure(rights, Rights::WRITE)?;
        ensure(source_rights, Rights::READ)?;
        let (source, life, owner) = match &source {
            At::Here(region) => (region.id(), region.life(), region.owner()),
            At::There(mapping) => (mapping.id, mapping.desk().life, mapping.owner),
        };
        match at {
            At::Here(region) => {
                self.copy_here(&region, user, offset, (source, life, owner), (source_offset, len)).await?;
            }
            At::There(mapping) => {
                let desk = mapping.desk();
                let question = ask::Copy { desk, offset, len, source, life, owner, source_offset };
                let ask::Changed = self.ask_home(&mapping, user, question, patience, true).await?;
            }
        }
        Ok(CallResult::of(&[len]))
    }

    /// Copies bytes of any region to a region of this node.
    ///
    /// # Errors
    /// `NotFound` if the source is no more: the caller would take `Freed` and `Lost` for errors of the region
    /// that is written.
    pub(super) async fn copy_here(
        self: &Rc<Self>,
        region: &Rc<Region>,
        user: u32,
        offset: u64,
        (source, life, owner): (ObjectId, u64, u32),
        (source_offset, len): Range,
    ) -> Result<(), Error> {
        let _changing = region.begin_change().await;
        region.ensure(user, Rights::WRITE)?;
        // The region may end while the source is looked for. Without the hold, its memory could then be
        // another region's.
        let held = region.hold();
        let into = region.run(offset, len)?;
        let found = self.find_by_id(source, "the source", Some(owner), Rights::READ, user).await;
        match found.map_err(no_source)? {
            At::Here(from) if from.life() == life => {
                let _held = (held, from.hold());
                let bytes = from.run(source_offset, len).map_err(no_source)?;
                self.copy_between(&bytes, &into).await?;
                region.ensure_there()?;
                region.changed(offset, len);
                Ok(())
            }
            At::There(mapping) if mapping.desk().life == life => {
                let pieces = self.pieces(&mapping, user, PULL_PATIENCE).await.map_err(no_source)?;
                let pieces = cut(&pieces, (source_offset, len))
                    .ok_or_else(|| outside(&mapping.name, (source_offset, len), mapping.len))?;
                let (home, keeps) = (mapping.home, mapping.keep().map_err(no_source)?);
                self.pull_now(region, user, offset, (home, &pieces), Some(keeps)).await
            }
            _ => Err(no_source(Error::new(ErrorKind::Freed, "it was freed: map it again"))),
        }
    }

    /// Copies bytes between two ranges of this node's memory, which may overlap.
    async fn copy_between(self: &Rc<Self>, from: &Run, into: &Run) -> Result<(), Error> {
        // Where the two ranges overlap, the end is copied first if it would be overwritten.
        let backwards = from.offset() < into.offset();
        let len = from.len();
        in_turns(&self.transfer, len, |at, chunk| {
            let at = if backwards { len - at - chunk.len() as u64 } else { at };
            from.read(at, chunk)?;
            into.write(at, chunk)
        })
        .await
    }

    /// Reads bytes in another node's memory into a region of this node, as soon as the region may be changed.
    pub(super) async fn pull(
        self: &Rc<Self>,
        region: &Rc<Region>,
        (user, fence): (u32, Option<Fence>),
        offset: u64,
        from: (NodeId, &[Location]),
    ) -> Result<(), Error> {
        let _changing = region.begin_change().await;
        region.ensure(user, Rights::WRITE)?;
        // A read of the fabric ends without being asked, and writers with later guards wait for its end.
        let fenced = region.begin_shown(fence).await?.map(|fenced| Rc::new(fenced) as Rc<dyn Any>);
        self.pull_now(region, user, offset, from, fenced).await
    }

    async fn pull_now(
        self: &Rc<Self>,
        region: &Rc<Region>,
        user: u32,
        offset: u64,
        (from, pieces): (NodeId, &[Location]),
        kept: Option<Rc<dyn Any>>,
    ) -> Result<(), Error> {
        region.ensure(user, Rights::WRITE)?;
        let too_many = || Error::new(ErrorKind::Invalid, "no memory has so many bytes");
        let len = whole(pieces).ok_or_else(too_many)?;
        let into = region.run(offset, len)?;
        let keeps: Rc<dyn Any> = Rc::new((region.hold(), kept));
        read_run(&self.transfer, from, pieces, into, keeps).await?;
        region.ensure_there()?;
        region.changed(offset, len);
        Ok(())
    }
}

/// Returns the pieces of a range of a region. `None` if the range is not within the region.
fn cut(pieces: &[Location], (offset, len): Range) -> Option<Vec<Location>> {
    let is_within = offset.checked_add(len)? <= whole(pieces)?;
    is_within.then(|| part(pieces, offset, len))
}

fn outside(name: &str, (offset, len): Range, size: u64) -> Error {
    let text = format!("{len} bytes at {offset} are not within region '{name}' of {size} bytes");
    Error::new(ErrorKind::Invalid, text)
}

/// Makes the error of bounds that were checked before.
fn inside(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, error.to_string())
}

/// Makes the error for a region that cannot be copied from, from the region's own error.
fn no_source(error: Error) -> Error {
    if matches!(error.kind(), ErrorKind::Freed | ErrorKind::Lost | ErrorKind::NotFound) {
        let text = format!("the region that is copied from is no more ({error})");
        return Error::new(ErrorKind::NotFound, text);
    }
    error
}

fn late(name: &str) -> Error {
    Error::new(ErrorKind::TimedOut, format!("the bytes of region '{name}' did not come within the time-out"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(segment: u32, offset: u64, len: u64) -> Location {
        Location { segment, version: 1, offset, len }
    }

    #[test]
    fn a_range_is_cut_out_of_pieces() {
        let pieces = [location(1, 100, 10), location(2, 0, 5)];
        assert_eq!(cut(&pieces, (0, 15)), Some(pieces.to_vec()));
        assert_eq!(cut(&pieces, (8, 4)), Some(vec![location(1, 108, 2), location(2, 0, 2)]));
        assert_eq!(cut(&pieces, (10, 5)), Some(vec![location(2, 0, 5)]));
        assert_eq!(cut(&pieces, (15, 0)), Some(vec![]));
        assert_eq!(
            [cut(&pieces, (15, 1)), cut(&pieces, (16, 0)), cut(&pieces, (u64::MAX, 2))],
            [None, None, None]
        );
    }
}
