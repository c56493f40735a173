//! The home's side of what other nodes ask about its regions. Owns [`Given`]. Engine thread only.
//!
//! Invariants: the home counts the mappings that it gives a node, and holds the memory of their regions until
//! the node has left all of them or has gone. A node that has gone gives its clients no bytes that it reads
//! from then on ([`membership`](crate::membership)), so the home may use the memory again. When the home
//! itself becomes a member anew, the other nodes lose the mappings that it gave, some sooner and some later.
//! The home holds the memory for [`HELD_FOR`] longer.

use std::cell::RefCell;
use std::hash::BuildHasher;
use std::rc::Rc;
use std::time::Duration;

use hashbrown::HashTable;
use plasmon::region::Rights;
use plasmon::text::printable;
use plasmon::wire::{Operation, Table, WireError};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::Regions;
use super::access::{are_carried, changes};
use super::finding::ensure_owner;
use super::frames::{Desk, RegionFrame};
use super::handles::At;
use super::home::{Done, Held, Region, Wanted};
use crate::guard::Fence;
use crate::kernel::random::Keyed;
use crate::net::frame::{Envelope, Frames, Message, Withdrawal};
use crate::net::sending::describe_segments;
use crate::transfer::locate;

/// Longest time that the home keeps a wait of another node's client. The node asks again while its client
/// waits.
pub(super) const WAIT_PATIENCE: Duration = Duration::from_secs(5);
/// Time that members may take to follow a view with a new membership of this node, or to be members again.
const HELD_FOR: Duration = Duration::from_secs(30);

/// A node that maps a region of this node, or with whose client the region ends.
struct Mapper {
    region: Rc<Region>,
    /// Keeps the memory of the region while the node maps it.
    held: Option<Held>,
    node: NodeId,
    /// Number of mappings that were given and not left. 0 only if the region ends with the node's client.
    count: u32,
    /// Whether the region ends with a client of the node, and so with the node.
    ends: bool,
}

impl Mapper {
    fn is_of(&self, desk: Desk) -> bool {
        Desk::of(&self.region) == desk
    }
}

/// The mappings that this node gave other nodes, found by the region. A call for one region does not look at
/// other regions.
#[derive(Default)]
pub(super) struct Given {
    hasher: Keyed,
    mappers: RefCell<HashTable<Mapper>>,
}

impl Given {
    fn give(&self, region: &Rc<Region>, to: NodeId, ends: bool) -> Desk {
        let (desk, again) = (Desk::of(region), |one: &Mapper| self.hash(Desk::of(&one.region)));
        let mut mappers = self.mappers.borrow_mut();
        let theirs = |one: &Mapper| one.node == to && one.is_of(desk);
        let mapper = mappers.entry(self.hash(desk), theirs, again).or_insert_with(|| Mapper {
            region: Rc::clone(region),
            held: None,
            node: to,
            count: 0,
            ends: false,
        });
        let mapper = mapper.into_mut();
        if mapper.held.is_none() {
            mapper.held = region.hold();
        }
        mapper.count += 1;
        mapper.ends |= ends;
        desk
    }

    fn leave(&self, desk: Desk, node: NodeId, count: u32) {
        let mut mappers = self.mappers.borrow_mut();
        let theirs = |one: &Mapper| one.node == node && one.is_of(desk);
        let Ok(mut mapper) = mappers.find_entry(self.hash(desk), theirs) else { return };
        let Mapper { count: left, held, ends, region, .. } = mapper.get_mut();
        *left = left.saturating_sub(count);
        if *left > 0 {
            return;
        }
        held.take();
        if !*ends || region.is_gone() {
            mapper.remove();
        }
    }

    /// Whether a node maps a region.
    fn has(&self, desk: Desk, node: NodeId) -> bool {
        let theirs = |one: &Mapper| one.node == node && one.is_of(desk) && one.count > 0;
        self.mappers.borrow().find(self.hash(desk), theirs).is_some()
    }

    /// Number of nodes that map a region.
    pub(super) fn count_of(&self, desk: Desk) -> usize {
        let mappers = self.mappers.borrow();
        mappers.iter_hash(self.hash(desk)).filter(|one| one.is_of(desk) && one.count > 0).count()
    }

    /// Forgets the mappings of a region that has another home now.
    pub(super) fn forget_region(&self, desk: Desk) {
        for node in self.mappers(desk) {
            self.leave(desk, node, u32::MAX);
        }
    }

    /// The nodes that map a region, or with whose clients the region ends.
    pub(super) fn mappers(&self, desk: Desk) -> Vec<NodeId> {
        let mappers = self.mappers.borrow();
        let those = mappers.iter_hash(self.hash(desk)).filter(|one| one.is_of(desk));
        those.map(|one| one.node).collect()
    }

    /// Forgets the mappings of nodes that have gone. Returns the regions that end with these nodes.
    pub(super) fn forget(&self, gone: &[NodeId]) -> Vec<Rc<Region>> {
        let mut ended = Vec::new();
        self.mappers.borrow_mut().retain(|mapper| {
            let is_gone = gone.contains(&mapper.node);
            if is_gone && mapper.ends {
                ended.push(Rc::clone(&mapper.region));
            }
            !is_gone
        });
        ended
    }

    /// Forgets all mappings, but not which regions end with clients of other nodes. Returns the holds on the
    /// memory of the regions, and the nodes with whose clients regions end.
    fn forget_all(&self) -> (Vec<Held>, Vec<NodeId>) {
        let (mut held, mut ending) = (Vec::new(), Vec::new());
        self.mappers.borrow_mut().retain(|mapper| {
            mapper.count = 0;
            held.extend(mapper.held.take());
            if mapper.ends {
                ending.push(mapper.node);
            }
            mapper.ends
        });
        (held, ending)
    }

    fn hash(&self, desk: Desk) -> u64 {
        self.hasher.hash_one(desk)
    }
}

impl Regions {
    /// Acts on a member's frame. The message of the envelope was taken out, and is `frame`.
    ///
    /// # Errors
    /// When no member sends such a frame.
    pub(super) fn act(self: &Rc<Self>, asked: Envelope, frame: RegionFrame) -> Result<(), WireError> {
        let (from, user) = (asked.from, asked.user);
        if asked.answers {
            // No task waits for the answer any more, so the mapping that it brings is left.
            if let RegionFrame::Mapped { desk, .. } | RegionFrame::Made { desk, .. } = frame {
                self.decline(from, desk);
            }
            return Ok(());
        }
        let answer = match frame {
            RegionFrame::Map { id, owner, rights } => self.on_map(from, user, id, (owner, rights)),
            RegionFrame::Access { desk, operation, data, fence } => {
                return self.on_access(asked, desk, (operation, fence), &data);
            }
            RegionFrame::Locate { desk } => match self.home.at(desk.number, desk.life) {
                // The region may be about to move.
                Ok(region) if region.is_frozen() => {
                    let regions = Rc::clone(self);
                    return self.answer_later(asked, async move {
                        region.thawed().await;
                        regions.on_locate(from, user, desk)
                    });
                }
                _ => self.on_locate(from, user, desk),
            },
            RegionFrame::Govern { desk, user: to, rights } => {
                let region = self.home.at(desk.number, desk.life);
                region
                    .and_then(|region| self.govern_here(&region, user, to, rights))
                    .map(|()| RegionFrame::Changed)
            }
            RegionFrame::Describe { desk } => {
                let region = self.home.at(desk.number, desk.life);
                let seen = region.and_then(|region| region.ensure_seen(user).map(|()| region));
                seen.map(|region| RegionFrame::Described { info: self.info(&region, user) })
            }
            RegionFrame::List { from } => {
                let (regions, next) = self.page(user, from);
                Ok(RegionFrame::Listed { regions, next })
            }
            RegionFrame::Leave { desk, count } => {
                self.given.leave(desk, from, count);
                return Ok(());
            }
            news @ (RegionFrame::Governed { .. }
            | RegionFrame::Departed { .. }
            | RegionFrame::Gone { .. }) => {
                self.on_news(from, news);
                return Ok(());
            }
            other => return self.begin(asked, other),
        };
        self.reply(&asked, answer);
        Ok(())
    }

    /// Begins to act on a frame whose answer takes several turns.
    ///
    /// # Errors
    /// When no member sends such a frame.
    fn begin(self: &Rc<Self>, asked: Envelope, frame: RegionFrame) -> Result<(), WireError> {
        let (regions, from, user) = (Rc::clone(self), asked.from, asked.user);
        match frame {
            RegionFrame::Make { name, len, public, mappable, ephemeral, exist_ok, room_us } => {
                let room = Duration::from_micros(room_us);
                let wanted = Wanted { name, len, public, mappable, ephemeral, exist_ok, room };
                let sender = asked.clone();
                self.answer_later(asked, async move {
                    let (region, is_new) = regions.home.make(wanted, user).await?;
                    let ends = is_new && ephemeral;
                    if !regions.cluster.has_sender(&sender) {
                        if ends {
                            regions.free_here(&region, region.owner()).await?;
                        }
                        let text = format!("node {from} has gone, which wanted the region");
                        return Err(Error::new(ErrorKind::Disconnected, text));
                    }
                    let desk = regions.given.give(&region, from, ends);
                    let (len, owner, changes) = (region.len(), region.owner(), region.changes());
                    Ok(RegionFrame::Made { desk, len, owner, changes, is_new })
                })
            }
            RegionFrame::Pull { desk, offset, from: pieces, fence } => self.answer_later(asked, async move {
                let region = regions.home.at(desk.number, desk.life)?;
                regions.pull(&region, (user, fence), offset, (from, &pieces)).await?;
                Ok(RegionFrame::Changed)
            }),
            RegionFrame::Copy { desk, offset, len, source, life, owner, source_offset } => {
                self.answer_later(asked, async move {
                    let region = regions.home.at(desk.number, desk.life)?;
                    let source = (source, life, owner);
                    regions.copy_here(&region, user, offset, source, (source_offset, len)).await?;
                    Ok(RegionFrame::Changed)
                })
            }
            RegionFrame::Move { desk, to, timeout_us } => {
                let due = self.sessions.due(timeout_us);
                self.answer_later(asked, async move {
                    let region = regions.home.at(desk.number, desk.life)?;
                    regions.move_here(&region, user, to, due).await?;
                    Ok(RegionFrame::Changed)
                })
            }
            RegionFrame::Halt { desk } => self.answer_later(asked, async move {
                regions.halt(from, desk).await;
                Ok(RegionFrame::Changed)
            }),
            RegionFrame::Take { id, life, region, pieces } => self.answer_later(asked, async move {
                regions.take_in(from, (id, life), region, pieces).await?;
                Ok(RegionFrame::Changed)
            }),
            RegionFrame::Adopt { id, life } => self.answer_later(asked, async move {
                regions.adopt(from, id, life).await?;
                Ok(RegionFrame::Changed)
            }),
            RegionFrame::Snapshot { desk, object, room_us } => self.answer_later(asked, async move {
                let region = regions.home.at(desk.number, desk.life)?;
                regions.snapshot_here(&region, user, object, Duration::from_micros(room_us)).await?;
                Ok(RegionFrame::Changed)
            }),
            RegionFrame::Free { desk } => self.answer_later(asked, async move {
                let region = regions.home.at(desk.number, desk.life)?;
                regions.free_here(&region, user).await?;
                Ok(RegionFrame::Changed)
            }),
            other => Err(WireError::Opcode(other.opcode())),
        }
    }

    /// Gives a node a mapping.
    fn on_map(
        &self,
        from: NodeId,
        user: u32,
        id: ObjectId,
        (owner, rights): (Option<u32>, Rights),
    ) -> Result<RegionFrame, Error> {
        let region = self.home.find(&id).ok_or_else(|| {
            if self.transfer.store.objects.borrow().get(&id).is_none() {
                // A keeper believes that the region is here. The withdrawal tells the keeper that it is not.
                self.transfer.store.unpublish(id, Withdrawal::Evicted);
            }
            let text = format!("node {} has this region no more: map it again", self.kernel.node);
            Error::new(ErrorKind::NotFound, text)
        })?;
        ensure_owner(region.name(), region.owner(), owner, user)?;
        region.ensure(user, rights)?;
        let desk = self.given.give(&region, from, false);
        let (len, owner, changes) = (region.len(), region.owner(), region.changes());
        Ok(RegionFrame::Mapped { desk, len, owner, changes })
    }

    /// Returns where the bytes of a region lie, to a node that maps the region.
    fn on_locate(&self, from: NodeId, user: u32, desk: Desk) -> Result<RegionFrame, Error> {
        let region = self.home.at(desk.number, desk.life)?;
        region.ensure(user, Rights::READ)?;
        if !self.given.has(desk, from) {
            let text =
                format!("node {from} does not map region '{}': map it again", printable(region.name()));
            return Err(Error::new(ErrorKind::NotHere, text));
        }
        let pieces = locate(&self.transfer.store, &region.run(0, region.len())?);
        describe_segments(&self.network, from, &pieces);
        Ok(RegionFrame::Located { pieces })
    }

    /// Carries out an operation of another node's client.
    fn on_access(
        self: &Rc<Self>,
        asked: Envelope,
        desk: Desk,
        (operation, fence): (Operation, Option<Fence>),
        data: &[u8],
    ) -> Result<(), WireError> {
        let user = asked.user;
        let region = match self.home.at(desk.number, desk.life) {
            Ok(region) => region,
            Err(error) => {
                self.reply(&asked, Err(error));
                return Ok(());
            }
        };
        let accessed = |done: Done| RegionFrame::Accessed { value: done.value, data: done.data.into() };
        match operation {
            Operation::Wait { offset, expected } => match region.wait(user, offset, expected) {
                Ok(waiting) => {
                    let clock = Rc::clone(&self.kernel);
                    self.answer_later(asked, async move {
                        let due = Some(clock.clock.now() + WAIT_PATIENCE);
                        let word = clock.clock.bounded(due, waiting).await;
                        let over = || Err(Error::new(ErrorKind::TimedOut, "the word did not change"));
                        Ok(accessed(Done { value: word.unwrap_or_else(over)?, data: Vec::new() }))
                    })
                }
                Err(error) => {
                    self.reply(&asked, Err(error));
                    Ok(())
                }
            },
            Operation::Fill { offset, len, byte } => self.answer_later(asked, async move {
                let _changing = region.begin_change().await;
                region.fill(user, offset, len, byte).await?;
                Ok(accessed(Done { value: 0, data: Vec::new() }))
            }),
            Operation::Read { len, .. } if !are_carried(len) => {
                let text = format!("{len} bytes do not fit a message");
                self.reply(&asked, Err(Error::new(ErrorKind::Invalid, text)));
                Ok(())
            }
            operation if changes(&operation) && fence.is_some() => {
                let data = data.to_vec();
                self.answer_later(asked, async move {
                    let _changing = region.begin_change().await;
                    region.ensure(user, Rights::WRITE)?;
                    let _fenced = region.begin_shown(fence).await?;
                    region.carry_out(user, operation, &data).map(accessed)
                })
            }
            operation if changes(&operation) && region.is_frozen() => {
                let data = data.to_vec();
                self.answer_later(asked, async move {
                    region.thawed().await;
                    region.carry_out(user, operation, &data).map(accessed)
                })
            }
            operation => {
                let done = region.carry_out(user, operation, data);
                self.reply(&asked, done.map(accessed));
                Ok(())
            }
        }
    }

    /// Answers a frame with what a task returns, when the task is over.
    fn answer_later(
        self: &Rc<Self>,
        asked: Envelope,
        task: impl Future<Output = Result<RegionFrame, Error>> + 'static,
    ) -> Result<(), WireError> {
        let regions = Rc::clone(self);
        self.kernel.spawn(async move {
            let answer = task.await;
            regions.reply(&asked, answer);
        });
        Ok(())
    }

    fn reply(&self, asked: &Envelope, answer: Result<RegionFrame, Error>) {
        match answer {
            Ok(answer) => self.network.answer(asked, answer),
            Err(error) => self.network.answer(asked, Message::Refused { error }),
        }
    }

    /// Tells the nodes that map a region that the region has ended.
    pub(super) fn tell_gone(&self, desk: Desk) {
        for node in self.given.mappers(desk) {
            self.network.tell(node, RegionFrame::Gone { desk }.into_message());
            // The region ends with no client any more.
            self.given.leave(desk, node, 0);
        }
    }

    /// Tells the nodes that map a region that the region lives on another node now.
    pub(super) fn tell_departed(&self, desk: Desk, to: NodeId) {
        for node in self.given.mappers(desk) {
            self.network.tell(node, RegionFrame::Departed { desk, to }.into_message());
        }
    }

    /// Grants rights to a region of this node, or revokes all of them if `rights` is empty. Tells the nodes
    /// that map the region.
    ///
    /// # Errors
    /// Errors of [`Region::govern`].
    pub(super) fn govern_here(
        &self,
        region: &Rc<Region>,
        by: u32,
        user: Option<u32>,
        rights: Rights,
    ) -> Result<(), Error> {
        let Some(change) = region.govern(by, user, rights)? else { return Ok(()) };
        let desk = Desk::of(region);
        for node in self.given.mappers(desk) {
            let change = change.clone();
            self.network.tell(node, RegionFrame::Governed { desk, change }.into_message());
        }
        self.watches.tell_change(&At::Here(Rc::clone(region)), &change);
        Ok(())
    }

    /// Begins a membership. Peers of the membership before know of no mapping between them and this node any
    /// more, or are about to forget them. No message of the streams of before reaches them, such as that a
    /// region was freed or a mapping left.
    pub(super) fn begin_anew(self: &Rc<Self>) {
        self.lose_mappings(|_| true);
        let (held, ending) = self.given.forget_all();
        if held.is_empty() && ending.is_empty() {
            return;
        }
        let regions = Rc::clone(self);
        self.kernel.spawn(async move {
            regions.kernel.clock.sleep(HELD_FOR).await;
            drop(held);
            if regions.cluster.ensure_member().is_ok() {
                let gone = |node: &NodeId| !regions.cluster.is_member(*node);
                regions.end_with(&ending.into_iter().filter(gone).collect::<Vec<_>>());
            }
        });
    }

    /// Loses the mappings of regions whose homes have gone, or whose homes forget the mappings that they gave
    /// this node.
    pub(super) fn lose_mappings(self: &Rc<Self>, is_gone: impl Fn(&NodeId) -> bool) {
        for mapping in self.mappings.lose(is_gone) {
            self.search(At::There(mapping).life());
        }
    }

    /// Frees the regions that end with the clients of nodes that have gone.
    pub(super) fn end_with(self: &Rc<Self>, gone: &[NodeId]) {
        for region in self.given.forget(gone) {
            let regions = Rc::clone(self);
            self.kernel.spawn(async move { drop(regions.free_here(&region, region.owner()).await) });
        }
    }
}
