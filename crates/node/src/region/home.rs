//! Regions that live on this node: how they are made, found and freed. Owns [`Home`].
//!
//! Engine thread only. The name of a region is unique in the cluster, because at its home there is a *deed*
//! of it: an object without bytes, under the id of the name, that no user sees. A deed is claimed, published,
//! repaired and lost like every object. Freeing a region deletes its deed. A region lives as long as its deed
//! is in the table of this node.
//!
//! Invariants: a region here has a *desk*, the number of its place. A later region may get the same desk, but
//! desk and life together never name another region. Memory of a region is used for nothing else as long as
//! anybody holds it ([`Held`]), also after the region has ended.

mod arriving;
mod fencing;
mod freezing;
mod region;
mod rights;
mod waiting;
mod words;

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use plasmon::region::{Rights, region_id};
use plasmon::status::{RegionsStatus, Status};
use plasmon::text::printable;
use plasmon::wire::MAX_NAME_BYTES;
use plasmon::{DeleteOutcome, Error, ErrorKind, ObjectId};

pub(crate) use self::arriving::Arrived;
pub(crate) use self::fencing::Fenced;
pub(crate) use self::freezing::Frozen;
pub(crate) use self::region::{Held, Region};
use self::region::{Parts, freed, moved};
pub(crate) use self::words::Done;
use self::words::FILL_STEP_BYTES;
use crate::directory::Directory;
use crate::kernel::Kernel;
use crate::kernel::index::{Index, Indexed};
use crate::kernel::random::HashMap;
use crate::membership::Cluster;
use crate::memory::Run;
use crate::object::DEEDS;
use crate::placement::Placement;
use crate::store::Store;

/// Maximum number of regions of a node.
const MAX_REGIONS: usize = 1 << 20;
/// Number of desks after which a page of a list ends, however few regions were found.
const PAGE_VISITS: usize = 1 << 14;

/// A region that is to be made.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    /// Number of bytes of the region.
    pub(crate) len: u64,
    /// Rights that every user gets.
    pub(crate) public: Rights,
    /// Whether processes of the owner may map the region.
    pub(crate) mappable: bool,
    /// Whether the region ends with the connection that makes it.
    pub(crate) ephemeral: bool,
    /// Whether a region of this name, user and size is taken instead, if there is one here.
    pub(crate) exist_ok: bool,
    /// Longest time that the call waits for others to make room.
    pub(crate) room: Duration,
}

/// Parts of the node that its regions use.
pub(crate) struct Ground {
    kernel: Rc<Kernel>,
    store: Rc<Store>,
    cluster: Rc<Cluster>,
    counts: Counts,
}

/// Numbers of operations that were carried out so far, and of calls that wait now.
#[derive(Default)]
struct Counts {
    reads: Cell<u64>,
    writes: Cell<u64>,
    atomics: Cell<u64>,
    fills: Cell<u64>,
    waits: Cell<u64>,
    notifies: Cell<u64>,
    waiting: Rc<Cell<u64>>,
}

/// Regions that live on this node.
pub(crate) struct Home {
    ground: Rc<Ground>,
    directory: Rc<Directory>,
    placement: Rc<Placement>,
    /// Regions by desk.
    desks: RefCell<Vec<Option<Rc<Region>>>>,
    /// Desks that are free.
    free: RefCell<Vec<u32>>,
    /// Regions by the id of their name.
    by_id: RefCell<Index<Rc<Region>>>,
    /// Desks and lives of regions that have moved away lately, with the times when they moved.
    moved: RefCell<VecDeque<(u32, u64, Instant)>>,
    /// Regions that have ended, and whose end nobody was told of so far.
    ended: RefCell<Vec<Rc<Region>>>,
    /// Regions that are being made, with those who wait for the outcome.
    making: RefCell<HashMap<ObjectId, Vec<oneshot::Sender<()>>>>,
}

impl Indexed for Rc<Region> {
    fn id(&self) -> ObjectId {
        Region::id(self)
    }
}

/// A region that is being made. No other call on this node makes a region of this id until this is dropped.
struct Making {
    home: Rc<Home>,
    id: ObjectId,
}

impl Drop for Making {
    fn drop(&mut self) {
        for waiting in self.home.making.borrow_mut().remove(&self.id).into_iter().flatten() {
            // The waiting task may have gone.
            let _ = waiting.send(());
        }
    }
}

impl Home {
    /// Makes the home of a node, which has no regions.
    pub(crate) fn new(placement: &Rc<Placement>) -> Rc<Self> {
        let ground = Ground {
            kernel: Rc::clone(&placement.kernel),
            store: Rc::clone(&placement.store),
            cluster: Rc::clone(&placement.cluster),
            counts: Counts::default(),
        };
        Rc::new(Self {
            ground: Rc::new(ground),
            directory: Rc::clone(&placement.directory),
            placement: Rc::clone(placement),
            desks: RefCell::default(),
            free: RefCell::default(),
            by_id: RefCell::default(),
            ended: RefCell::default(),
            moved: RefCell::default(),
            making: RefCell::default(),
        })
    }

    /// Makes a region of zeros for a user. Returns the region, and whether it is new. With `exist_ok` it may
    /// have been there, or made by another call.
    ///
    /// # Errors
    /// `Exists` if the name is taken; `Full` and `TooLarge` if there is no room; `Invalid` for a name or a
    /// length that no region has; `Disconnected` if this node takes nothing new.
    pub(crate) async fn make(
        self: &Rc<Self>,
        wanted: Wanted,
        user: u32,
    ) -> Result<(Rc<Region>, bool), Error> {
        check(&wanted)?;
        let id = region_id(&wanted.name);
        let _making = loop {
            self.ensure_takes(&wanted.name)?;
            if let Some(there) = self.find(&id) {
                let same = wanted.exist_ok && there.owner() == user && there.len() == wanted.len;
                return if same { Ok((there, false)) } else { Err(exists(&wanted)) };
            }
            match self.begin(id) {
                Some(making) => break making,
                None if wanted.exist_ok => self.outcome(&id).await,
                None => return Err(exists(&wanted)),
            }
        };
        if self.directory.known_here(&id, DEEDS) == Some(true) {
            return Err(exists(&wanted));
        }
        let claims = &self.directory.claims;
        let claim = claims.claim(id, DEEDS, wanted.room).await.map_err(|error| cannot(&wanted, error))?;
        let (store, Wanted { name, mappable, len, room, .. }) = (&self.ground.store, &wanted);
        let memory = store.region_room(name, *mappable, *len, user, *room).await?;
        self.zero(&memory).await?;
        let claim = claims.ascertain(claim, DEEDS, wanted.room).await;
        let claim = claim.map_err(|error| cannot(&wanted, error))?;
        // No other task runs between this line and the entry of the region.
        self.ensure_takes(&wanted.name)?;
        if store.objects.borrow().conflict(&id).is_some() {
            return Err(exists(&wanted));
        }
        let life = self.ground.kernel.lives.draw();
        let deed = store.seal_deed(id, life).map_err(|error| cannot(&wanted, error))?;
        claim.fulfil();
        let memory = Rc::new(memory);
        let parts = Parts { ground: Rc::clone(&self.ground), memory, deed, owner: user };
        Ok((self.enter(wanted, parts, true), true))
    }

    /// Refuses to make a region on a node that is about to leave, that does not know what its cluster has, or
    /// that has too many regions.
    fn ensure_takes(&self, name: &str) -> Result<(), Error> {
        self.placement.ensure_stays()?;
        self.ground.ensure_serves(name)?;
        if self.by_id.borrow().len() + self.making.borrow().len() < MAX_REGIONS {
            return Ok(());
        }
        let text = format!(
            "cannot make region '{}': node {} has {MAX_REGIONS} regions and takes no more; free some, or \
             make it on another node",
            printable(name),
            self.ground.kernel.node
        );
        Err(Error::new(ErrorKind::Full, text))
    }

    /// Begins to make a region. `None` if another call makes a region of this id now.
    fn begin(self: &Rc<Self>, id: ObjectId) -> Option<Making> {
        let mut making = self.making.borrow_mut();
        if making.contains_key(&id) {
            return None;
        }
        making.insert(id, Vec::new());
        Some(Making { home: Rc::clone(self), id })
    }

    /// Waits until the call that makes a region of this id has made it, or has failed.
    async fn outcome(&self, id: &ObjectId) {
        let (sender, told) = oneshot::channel();
        match self.making.borrow_mut().get_mut(id) {
            Some(waiting) => waiting.push(sender),
            None => return,
        }
        // The outcome does not matter: the caller looks for the region in any case.
        let _ = told.await;
    }

    /// Sets the bytes of a new region to zero, [`FILL_STEP_BYTES`] in a turn.
    async fn zero(&self, run: &Run) -> Result<(), Error> {
        for at in (0..run.len()).step_by(FILL_STEP_BYTES as usize) {
            let len = FILL_STEP_BYTES.min(run.len() - at);
            let zeroed = run.fill(at, len as usize, 0);
            zeroed.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
            self.ground.kernel.clock.sleep(Duration::ZERO).await;
        }
        Ok(())
    }

    /// Gives a region whose deed was made a desk. A new region gets a desk that is free. A region that has
    /// arrived may have been here before, and gets a desk that no region had: desk and life name one stay of
    /// the region, so messages about another stay have no effect.
    fn enter(&self, wanted: Wanted, parts: Parts, is_new: bool) -> Rc<Region> {
        // A former region of the name may have ended a moment ago.
        self.end_gone();
        let mut desks = self.desks.borrow_mut();
        let former = if is_new { self.free.borrow_mut().pop() } else { None };
        let desk = former.unwrap_or_else(|| {
            desks.push(None);
            // There are at most MAX_REGIONS desks, and one more for each arrival.
            (desks.len() - 1) as u32
        });
        let region = Rc::new(Region::new(wanted, desk, parts));
        desks[desk as usize] = Some(Rc::clone(&region));
        self.by_id.borrow_mut().insert_with(&region.id(), |_| Rc::clone(&region));
        region
    }

    /// Returns the region whose name has this id, if it lives here.
    pub(crate) fn find(&self, id: &ObjectId) -> Option<Rc<Region>> {
        self.entered(id).filter(|region| !region.is_gone())
    }

    fn entered(&self, id: &ObjectId) -> Option<Rc<Region>> {
        self.by_id.borrow().get(id).cloned()
    }

    /// Returns the region that has this desk and life.
    ///
    /// # Errors
    /// `Freed` if the region has ended, `NotHere` if it has moved away lately.
    pub(crate) fn at(&self, desk: u32, life: u64) -> Result<Rc<Region>, Error> {
        let region = self.desks.borrow().get(desk as usize).cloned().flatten();
        let region = region.filter(|region| region.life() == life && !region.is_gone());
        region.ok_or_else(|| {
            if self.moved.borrow().iter().any(|one| (one.0, one.1) == (desk, life)) {
                return moved("of this handle");
            }
            let text = format!(
                "the region was freed: it is not on node {} any more; make it again",
                self.ground.kernel.node
            );
            Error::new(ErrorKind::Freed, text)
        })
    }

    /// Frees a region for a user: its name at once, and its memory when nobody holds it any more. Masters and
    /// the user that the node runs as may free it.
    ///
    /// # Errors
    /// `NotAllowed` for other users, `Freed` if the region has ended, `OutcomeUnknown` if the keeper of its
    /// name does not answer.
    pub(crate) async fn free(self: &Rc<Self>, region: &Rc<Region>, user: u32) -> Result<(), Error> {
        region.ensure_there()?;
        if user != own_user() {
            region.ensure(user, Rights::MASTER)?;
        }
        let (id, life) = (region.id(), region.life());
        let outcomes = self.directory.deletion.delete_all(&[id], &[life], DEEDS).await;
        self.end_gone();
        match outcomes {
            Ok(outcomes) if outcomes.contains(&DeleteOutcome::Absent) => Err(freed(region.name())),
            Ok(_) => Ok(()),
            Err(error) => {
                let what = format!("region '{}' may have been freed or not", printable(region.name()));
                Err(error.while_doing(&what))
            }
        }
    }

    /// Returns a page of the regions that a user may see, and the place at which the next page begins. A user
    /// may see regions to which the user has a right; the user that the node runs as may see all.
    pub(crate) fn list(&self, user: u32, from: u64, most: usize) -> (Vec<Rc<Region>>, Option<u64>) {
        let desks = self.desks.borrow();
        let first = usize::try_from(from).unwrap_or(usize::MAX).min(desks.len());
        let mut page = Vec::new();
        for (at, desk) in desks.iter().enumerate().skip(first) {
            if page.len() >= most || at - first >= PAGE_VISITS {
                return (page, Some(at as u64));
            }
            page.extend(desk.iter().filter(|region| region.is_seen_by(user) && !region.is_gone()).cloned());
        }
        (page, None)
    }

    /// Ends the regions whose deeds have gone. Called at each tick.
    pub(crate) fn on_tick(self: &Rc<Self>) {
        self.end_gone();
    }

    /// Ends the regions whose deeds have gone: regions that were freed, that have moved away, or that were
    /// given up for another region of the name while this node was no member.
    fn end_gone(&self) {
        let ended = self.ground.store.objects.borrow_mut().take_ended_deeds();
        for id in ended {
            // The name may have another region by now.
            let Some(region) = self.entered(&id).filter(|region| region.is_gone()) else { continue };
            self.by_id.borrow_mut().remove(&id);
            self.desks.borrow_mut()[region.desk() as usize] = None;
            self.free.borrow_mut().push(region.desk());
            region.end();
            self.ended.borrow_mut().push(region);
        }
    }

    /// Takes the regions that have ended since the last call.
    pub(crate) fn take_ended(&self) -> Vec<Rc<Region>> {
        self.ended.take()
    }

    /// Enters the regions and the operations on them into a report.
    pub(crate) fn report(&self, status: &mut Status) {
        let (store, counts) = (&self.ground.store, &self.ground.counts);
        status.regions = RegionsStatus {
            regions: self.count(),
            bytes: store.regions.bytes(),
            limit: store.region_limit(),
            user_limit: self.ground.kernel.config.user_regions.into(),
            in_pieces: store.regions.in_pieces(),
            crowded_out: store.regions.crowded_out(),
            reads: counts.reads.get(),
            writes: counts.writes.get(),
            atomics: counts.atomics.get(),
            fills: counts.fills.get(),
            waits: counts.waits.get(),
            notifies: counts.notifies.get(),
            waiting: counts.waiting.get(),
            ..RegionsStatus::default()
        };
    }
}

impl Home {
    /// Number of regions.
    pub(crate) fn count(&self) -> u64 {
        self.by_id.borrow().len() as u64
    }

    /// Returns the names of at most `most` regions, for messages to people.
    pub(crate) fn names(&self, most: usize) -> Vec<String> {
        self.all().iter().take(most).map(|region| printable(region.name()).into_owned()).collect()
    }

    /// Returns the regions that live here.
    pub(crate) fn all(&self) -> Vec<Rc<Region>> {
        self.desks.borrow().iter().flatten().cloned().collect()
    }
}

impl Ground {
    /// Refuses to serve a region while this node does not know whether it was freed elsewhere.
    fn ensure_serves(&self, name: &str) -> Result<(), Error> {
        let cluster = &self.cluster;
        if !cluster.withholds() && !cluster.fenced() {
            return Ok(());
        }
        cluster
            .ensure_member()
            .map_err(|error| error.while_doing(&format!("region '{}'", printable(name))))?;
        let text = format!(
            "region '{}' cannot be used now: node {} has just become a member of its cluster again, and \
             learns what others freed or made meanwhile; try again",
            printable(name),
            self.kernel.node
        );
        Err(Error::new(ErrorKind::Disconnected, text))
    }
}

/// Refuses a region whose name, length or rights no region can have.
fn check(wanted: &Wanted) -> Result<(), Error> {
    let Wanted { name, len, public, .. } = wanted;
    let why = match () {
        () if name.is_empty() => "a region needs a name".to_owned(),
        () if name.len() > MAX_NAME_BYTES => {
            format!("the name of a region has {} bytes, and {MAX_NAME_BYTES} at most are allowed", name.len())
        }
        () if *len == 0 => format!("region '{}' cannot have 0 bytes: give it a size", printable(name)),
        () if public.master => {
            format!("region '{}': everybody cannot be its master; grant users that right", printable(name))
        }
        () => return Ok(()),
    };
    Err(Error::new(ErrorKind::Invalid, why))
}

fn exists(wanted: &Wanted) -> Error {
    let text = match wanted.exist_ok {
        false => "map it, free it first, or take another name",
        true => "it is another user's or has another size, or lives on another node",
    };
    let text = format!("region '{}' exists already: {text}", printable(&wanted.name));
    Error::new(ErrorKind::Exists, text)
}

/// Makes the error for a region that could not be made, from the error of its deed.
fn cannot(wanted: &Wanted, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Exists => exists(wanted),
        _ => error.while_doing(&format!("cannot make region '{}'", printable(&wanted.name))),
    }
}

/// Returns the user that the node runs as.
fn own_user() -> u32 {
    rustix::process::getuid().as_raw()
}
