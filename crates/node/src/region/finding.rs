//! Requests about regions as a whole: made, mapped, freed, governed, listed. Owns no state. Engine thread
//! only.
//!
//! A region is found by its name: the keepers of the name know which node has its deed
//! ([`home`](super::home)), and that node is its home.
//!
//! Invariant: a client gets a handle only to a region that its user may see.

use std::rc::Rc;
use std::time::Duration;

use plasmon::region::{RegionInfo, RegionState, Rights, region_id};
use plasmon::wire::{Access, NewObject, RegionPlace, Reply};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::Regions;
use super::access::{LONGEST_OPERATION, ensure, wrong_answer};
use super::frames::{Desk, ask};
use super::handles::At;
use super::home::{Region, Wanted};
use super::mapping::leave;
use crate::kernel::ClientKey;
use crate::net::sending::stream_to;
use crate::object::DEEDS;
use crate::service::Outcome;

/// Time that another node may take to answer a question whose time the client does not limit.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// Shortest and longest pause before a region that is waited for is looked for again.
const LOOK_AGAIN_AFTER: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(200)];
/// Time that a home may be away while a region of it is to end with a client of this node.
const AWAY_PATIENCE: Duration = Duration::from_secs(30);
/// Pause before a home that is away is asked again to free a region.
const AWAY_PAUSE: Duration = Duration::from_secs(1);

/// User to whose regions everybody has access without naming an owner.
const ROOT: u32 = 0;

/// Refuses a region that belongs to another user than the caller expects.
///
/// # Errors
/// `NotAllowed`, with the option that allows the call.
pub(super) fn ensure_owner(name: &str, owner: u32, expected: Option<u32>, user: u32) -> Result<(), Error> {
    let is_expected = expected.map_or(owner == user || owner == ROOT, |expected| owner == expected);
    if is_expected {
        return Ok(());
    }
    let text = format!(
        "region '{name}' belongs to user {owner}: name its owner to map it all the same (`--owner {owner}`, \
         in Python owner={owner})"
    );
    Err(Error::new(ErrorKind::NotAllowed, text))
}

/// Makes the error of a search that a node held up for as long as the caller waits.
fn unanswered(name: &str) -> Error {
    let text = format!(
        "region '{name}' was not found within the time-out: its home, or a node that knows where it is, does \
         not answer; `plasmon status --cluster` says which nodes are silent"
    );
    Error::new(ErrorKind::TimedOut, text)
}

impl Regions {
    /// Returns the user of a client.
    pub(super) fn user(&self, client: ClientKey) -> u32 {
        self.sessions.client(client, |client| client.uid)
    }

    /// Makes a region here or on another node, and a handle to the region.
    pub(super) async fn create(
        self: Rc<Self>,
        client: ClientKey,
        wanted: Wanted,
        node: Option<NodeId>,
    ) -> Outcome {
        let user = self.user(client);
        match node.filter(|node| *node != self.kernel.node) {
            None => {
                let ephemeral = wanted.ephemeral;
                let (region, is_new) = self.home.make(wanted, user).await?;
                self.keep(client, At::Here(region), is_new && ephemeral)
            }
            Some(node) if !self.cluster.is_member(node) => {
                let text = format!(
                    "cannot make region '{}' on node {node}: no member of this cluster has that id; \
                     `plasmon status --cluster` lists the members",
                    wanted.name
                );
                Err(Error::new(ErrorKind::NotFound, text))
            }
            Some(node) => {
                let (id, name, patience) =
                    (region_id(&wanted.name), wanted.name.clone(), wanted.room + ANSWER_PATIENCE);
                let question = ask::Make {
                    name: wanted.name,
                    len: wanted.len,
                    public: wanted.public,
                    mappable: wanted.mappable,
                    ephemeral: wanted.ephemeral,
                    exist_ok: wanted.exist_ok,
                    room_us: wanted.room.as_micros() as u64,
                };
                let stream = stream_to(&self.network, node);
                let ask::Made { desk, len, owner, changes, is_new } =
                    self.network.ask(node, user, question, patience).await?;
                let told = (desk, len, owner, changes);
                let mapping = self.mappings.enter((node, stream), (id, &name), told);
                self.keep(client, At::There(mapping), is_new && wanted.ephemeral)
            }
        }
    }

    /// Makes the handle to a region that a client has made; with `ends`, the region ends with the client.
    fn keep(self: &Rc<Self>, client: ClientKey, at: At, ends: bool) -> Outcome {
        if ends {
            self.handles.end_with(client, at.clone());
        }
        self.hand_out(client, at, Rights::ALL)
    }

    /// Makes a handle to a region. Waits until there is the region, or the time-out is over.
    pub(super) async fn map(
        self: Rc<Self>,
        client: ClientKey,
        name: String,
        owner: Option<u32>,
        rights: Rights,
        timeout_us: u64,
    ) -> Outcome {
        let (user, due) = (self.user(client), self.sessions.due(timeout_us));
        // A time-out of 0 does not end the search: the call waits for nodes that are slow to answer, and not
        // for the region to be made.
        let last = due.filter(|_| timeout_us > 0);
        let [mut pause, longest] = LOOK_AGAIN_AFTER;
        let mut missed = None;
        loop {
            let found = self.kernel.clock.bounded(last, self.find_seen(&name, owner, rights, user)).await;
            match found.unwrap_or_else(|| Err(missed.take().unwrap_or_else(|| unanswered(&name)))) {
                Ok(at) => return self.hand_out(client, at, rights),
                Err(error) => {
                    let is_over = due.is_some_and(|due| self.kernel.clock.now() + pause > due);
                    // A home, or a keeper of the name, that is silent may answer later, or leave the cluster.
                    let may_come = matches!(
                        error.kind(),
                        ErrorKind::NotFound | ErrorKind::NotHere | ErrorKind::TimedOut
                    );
                    if !may_come || is_over {
                        return Err(error);
                    }
                    missed = Some(error);
                }
            }
            self.kernel.clock.sleep(pause).await;
            pause = longest.min(pause * 2);
        }
    }

    /// Finds a region by its name, with rights for a user.
    pub(crate) async fn find(
        self: &Rc<Self>,
        name: &str,
        owner: Option<u32>,
        rights: Rights,
        user: u32,
    ) -> Result<At, Error> {
        self.find_by_id(region_id(name), name, owner, rights, user).await
    }

    /// Finds a region by its name, with rights for a user. Also a user who asks for no right must have some
    /// right, because a handle shows what becomes of the region.
    async fn find_seen(
        self: &Rc<Self>,
        name: &str,
        owner: Option<u32>,
        rights: Rights,
        user: u32,
    ) -> Result<At, Error> {
        let at = self.find(name, owner, rights, user).await?;
        match &at {
            // The home has checked the rights already.
            _ if rights != Rights::NONE => {}
            At::Here(region) => region.ensure_seen(user)?,
            At::There(mapping) => {
                let question = ask::Describe { desk: mapping.desk() };
                let ask::Described { .. } =
                    self.ask_home(mapping, user, question, ANSWER_PATIENCE, false).await?;
            }
        }
        Ok(at)
    }

    /// Finds a region by the id of its name, with rights for a user.
    pub(super) async fn find_by_id(
        self: &Rc<Self>,
        id: ObjectId,
        name: &str,
        owner: Option<u32>,
        rights: Rights,
        user: u32,
    ) -> Result<At, Error> {
        let due = self.kernel.clock.now() + ANSWER_PATIENCE;
        let [mut pause, longest] = LOOK_AGAIN_AFTER;
        loop {
            if let Some(region) = self.home.find(&id) {
                ensure_owner(name, region.owner(), owner, user)?;
                region.ensure(user, rights)?;
                return Ok(At::Here(region));
            }
            match self.homes_of(&id, name).await {
                Ok(homes) => match self.map_at(&homes, (id, name), (owner, rights), user).await {
                    // A home that is cut off leaves the cluster. Its region is lost then, or lives elsewhere.
                    Err(error) if error.kind() == ErrorKind::Disconnected => {
                        if self.kernel.clock.now() + pause >= due {
                            return Err(error);
                        }
                    }
                    found => return found,
                },
                // A region that was made a moment ago may not be published yet. The keeper knows of it from
                // the claim.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Lost) => {
                    let is_over = self.cluster.solo() || self.kernel.clock.now() >= due;
                    if is_over || !self.may_exist(id).await? {
                        return Err(error);
                    }
                }
                // A keeper of the name that is silent may answer later, or leave the cluster.
                Err(error) => {
                    if error.kind() != ErrorKind::TimedOut || self.kernel.clock.now() + pause >= due {
                        return Err(error);
                    }
                }
            }
            self.kernel.clock.sleep(pause).await;
            pause = longest.min(pause * 2);
        }
    }

    /// Whether the first keeper of the name of a region knows of the region, or does not answer.
    async fn may_exist(&self, id: ObjectId) -> Result<bool, Error> {
        match self.directory.known(&[id], DEEDS).await {
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(true),
            known => Ok(known?.contains(&true)),
        }
    }

    /// Asks each of these nodes for a mapping of a region. The region's home gives one. A node that is not
    /// the home says so, and withdraws what a keeper that was away still knows of it.
    async fn map_at(
        self: &Rc<Self>,
        homes: &[NodeId],
        (id, name): (ObjectId, &str),
        (owner, rights): (Option<u32>, Rights),
        user: u32,
    ) -> Result<At, Error> {
        let mut missed = Error::new(ErrorKind::NotFound, format!("there is no region '{name}'"));
        for home in homes {
            let stream = stream_to(&self.network, *home);
            match self.network.ask(*home, user, ask::Map { id, owner, rights }, ANSWER_PATIENCE).await {
                Ok(ask::Mapped { desk, len, owner, changes }) => {
                    let told = (desk, len, owner, changes);
                    let mapping = self.mappings.enter((*home, stream), (id, name), told);
                    return Ok(At::There(mapping));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => missed = error,
                Err(error) => return Err(error),
            }
        }
        Err(missed)
    }

    /// Returns the nodes other than this one that may be the home of a region, as far as the keepers of its
    /// name know.
    async fn homes_of(self: &Rc<Self>, id: &ObjectId, name: &str) -> Result<Vec<NodeId>, Error> {
        let nobody = || Error::new(ErrorKind::NotFound, format!("there is no region '{name}'"));
        let lost = || {
            let text = format!("region '{name}' is lost: its home has left the cluster; make it anew");
            Error::new(ErrorKind::Lost, text)
        };
        if self.cluster.solo() {
            return Err(if self.directory.has_lost(id) { lost() } else { nobody() });
        }
        let holders = self.directory.holders(*id, DEEDS).await;
        let holders =
            holders.map_err(|error| if error.kind() == ErrorKind::Lost { lost() } else { error })?;
        let nodes: Vec<_> =
            holders.iter().map(|(node, _)| *node).filter(|node| *node != self.kernel.node).collect();
        if nodes.is_empty() { Err(nobody()) } else { Ok(nodes) }
    }

    /// Makes a handle to a region, and grants the client the memory that it may map.
    fn hand_out(&self, client: ClientKey, at: At, rights: Rights) -> Outcome {
        let (len, home, owner) = match &at {
            At::Here(region) => (region.len(), self.kernel.node, region.owner()),
            At::There(mapping) => (mapping.len, mapping.home, mapping.owner),
        };
        let mapped = match &at {
            At::Here(region) => region.place(self.user(client)),
            At::There(_) => None,
        };
        let slots = mapped.as_ref().filter(|_| rights.read).and_then(|_| self.sessions.slots(client));
        // A client maps several pieces by their descriptors, and keeps the descriptors for writing. The
        // owner's processes may write, whatever rights a handle has.
        let in_pieces = mapped.as_ref().is_some_and(|there| there.pieces.len() > 1);
        let access = if rights.write || in_pieces { Access::Write } else { Access::Read };
        let (granted, descriptors) = match (&mapped, &slots) {
            (Some(there), Some(_)) => self.sessions.grant(client, &there.segments, access)?,
            _ => Default::default(),
        };
        let (handle, word) = self.handles.open(client, (at.clone(), rights), slots.as_deref())?;
        self.watches.note_opened(client, handle, &at);
        let place = mapped.zip(word);
        let place =
            place.map(|(there, word)| RegionPlace { pieces: there.pieces, word, writable: rights.write });
        Ok((Reply::RegionMapped { handle, len, home, owner, rights, place, granted }, descriptors))
    }

    /// Frees the region of a handle.
    pub(super) async fn free(
        self: Rc<Self>,
        client: ClientKey,
        handle: u32,
        timeout_us: u64,
    ) -> Result<Reply, Error> {
        let (user, due) = (self.user(client), self.sessions.due(timeout_us));
        let freeing = self.with_region(client, handle, async |at, _| self.free_at(&at, user).await);
        self.kernel.clock.bounded(due, freeing).await.unwrap_or_else(|| {
            let text = "the region was not freed everywhere within the time-out: it may be yet";
            Err(Error::new(ErrorKind::OutcomeUnknown, text))
        })?;
        Ok(Reply::Done)
    }

    /// Moves the region of a handle to another node.
    pub(super) async fn move_region(
        self: Rc<Self>,
        client: ClientKey,
        handle: u32,
        to: NodeId,
        timeout_us: u64,
    ) -> Result<Reply, Error> {
        let (user, due) = (self.user(client), self.sessions.due(timeout_us));
        self.with_region(client, handle, async |at, _| match at {
            At::Here(region) => self.move_here(&region, user, to, due).await,
            At::There(mapping) => {
                let question = ask::Move { desk: mapping.desk(), to, timeout_us };
                let patience =
                    Duration::from_micros(timeout_us).min(LONGEST_OPERATION).saturating_add(ANSWER_PATIENCE);
                self.ask_home(&mapping, user, question, patience, true).await.map(|ask::Changed| ())
            }
        })
        .await?;
        Ok(Reply::Done)
    }

    /// Frees a region, here or at its home.
    async fn free_at(self: &Rc<Self>, at: &At, user: u32) -> Result<(), Error> {
        match at {
            At::Here(region) => self.free_here(region, user).await,
            At::There(mapping) => {
                let question = ask::Free { desk: mapping.desk() };
                let ask::Changed = self.ask_home(mapping, user, question, ANSWER_PATIENCE, true).await?;
                self.end_mappings(mapping.home, mapping.desk());
                Ok(())
            }
        }
    }

    /// Frees a region of this node, and tells the nodes that map it.
    pub(super) async fn free_here(self: &Rc<Self>, region: &Rc<Region>, user: u32) -> Result<(), Error> {
        let freed = self.home.free(region, user).await;
        self.end_all();
        freed
    }

    /// Notes the end of regions of this node: clients do not touch them any more, and nodes and watches are
    /// told.
    pub(super) fn end_all(&self) {
        for region in self.home.take_ended() {
            self.let_touch(&region, false);
            self.tell_gone(Desk::of(&region));
            if region.has_moved() {
                self.handles.let_go(&region);
            } else {
                self.watches.tell_end(&At::Here(region), Some(self.kernel.node), RegionState::Freed);
            }
        }
    }

    /// Grants rights to a region, or revokes them.
    pub(super) async fn govern(
        self: Rc<Self>,
        client: ClientKey,
        handle: u32,
        to: Option<u32>,
        rights: Rights,
    ) -> Result<Reply, Error> {
        let user = self.user(client);
        self.with_region(client, handle, async |at, _| match at {
            At::Here(region) => {
                let region = self.home.at(region.desk(), region.life())?;
                self.govern_here(&region, user, to, rights)
            }
            At::There(mapping) => {
                let question = ask::Govern { desk: mapping.desk(), user: to, rights };
                self.ask_home(&mapping, user, question, ANSWER_PATIENCE, true).await.map(|ask::Changed| ())
            }
        })
        .await?;
        Ok(Reply::Done)
    }

    /// Makes an object of the bytes of a region. The region's home makes it.
    pub(super) async fn snapshot(
        self: Rc<Self>,
        client: ClientKey,
        handle: u32,
        object: NewObject,
        room: Duration,
    ) -> Result<Reply, Error> {
        let user = self.user(client);
        self.with_region(client, handle, async |at, rights| {
            ensure(rights, Rights::READ)?;
            match at {
                At::Here(region) => self.snapshot_here(&region, user, object.clone(), room).await,
                At::There(mapping) => {
                    let (object, room_us) = (object.clone(), room.as_micros() as u64);
                    let question = ask::Snapshot { desk: mapping.desk(), object, room_us };
                    self.ask_home(&mapping, user, question, room + ANSWER_PATIENCE, true)
                        .await
                        .map(|ask::Changed| ())
                }
            }
        })
        .await?;
        Ok(Reply::Done)
    }

    /// Returns the properties of a region, as its home knows them.
    pub(super) async fn describe(self: Rc<Self>, client: ClientKey, handle: u32) -> Result<Reply, Error> {
        let user = self.user(client);
        let describe = async |at, _| match at {
            At::Here(region) => {
                let region = self.home.at(region.desk(), region.life())?;
                region.ensure_seen(user)?;
                Ok(self.info(&region, user))
            }
            At::There(mapping) => {
                let question = ask::Describe { desk: mapping.desk() };
                self.ask_home(&mapping, user, question, ANSWER_PATIENCE, false).await.map(|told| told.info)
            }
        };
        let info = self.with_region(client, handle, describe).await?;
        Ok(Reply::Region(info))
    }

    /// Returns the description of a region of this node, for a user.
    pub(super) fn info(&self, region: &Rc<Region>, user: u32) -> RegionInfo {
        let handles = self.handles.count_of(region) as u32;
        let nodes = self.given.count_of(Desk::of(region)) as u32;
        RegionInfo { handles, nodes, ..region.info(user) }
    }

    /// Returns a page of the regions of a node.
    pub(super) async fn list(
        self: Rc<Self>,
        client: ClientKey,
        node: NodeId,
        from: u64,
    ) -> Result<Reply, Error> {
        let user = self.user(client);
        let (regions, next) = if node == self.kernel.node {
            self.page(user, from)
        } else {
            let ask::Listed { regions, next } =
                self.network.ask(node, user, ask::List { from }, ANSWER_PATIENCE).await?;
            // A list whose next page does not come after this one would have no end.
            if next.is_some_and(|next| next <= from || next > u32::MAX.into()) {
                return Err(wrong_answer(node));
            }
            (regions, next)
        };
        Ok(Reply::Regions { regions, next })
    }

    /// Returns a page of the regions of this node, and the place of the next page.
    pub(super) fn page(&self, user: u32, from: u64) -> (Vec<RegionInfo>, Option<u64>) {
        /// Maximum number of rows of a page. A row has 335 bytes at most, and a frame of 16 KiB carries a
        /// page.
        const PAGE_ROWS: usize = 40;
        let (regions, next) = self.home.list(user, from, PAGE_ROWS);
        (regions.iter().map(|region| self.info(region, user)).collect(), next)
    }

    /// Ends the handles of a client, and frees the regions that end with the client.
    pub(super) fn end_client(self: &Rc<Self>, client: ClientKey) {
        for at in self.handles.close_all(client) {
            let regions = Rc::clone(self);
            self.kernel.spawn(async move {
                match at {
                    At::Here(region) => drop(regions.free_here(&region, ROOT).await),
                    At::There(mapping) => regions.free_there(mapping.home, mapping.desk()).await,
                }
            });
        }
    }

    /// Frees a region of another node that ends with a client of this node, even if the mapping was lost. A
    /// home that stays away has gone with the region, or frees the region when this node has gone.
    async fn free_there(&self, home: NodeId, desk: Desk) {
        let due = self.kernel.clock.now() + AWAY_PATIENCE;
        while self.kernel.clock.now() < due {
            let freed = self.network.ask(home, ROOT, ask::Free { desk }, ANSWER_PATIENCE).await;
            match freed {
                Err(error) if error.kind() == ErrorKind::Disconnected => {}
                _ => return,
            }
            self.kernel.clock.sleep(AWAY_PAUSE).await;
        }
    }

    /// Gives up a mapping that came after the call which asked for it was over.
    pub(super) fn decline(&self, home: NodeId, desk: Desk) {
        leave(&self.network, home, desk, 1);
    }
}
