//! Homes of volumes: which node decides about which volume. Owns [`Homes`]. Engine thread only.
//!
//! Any node finds the home of a volume by its record at the coordinator. Invariants: the name of a volume is
//! unique in the cluster, since there is one record of it. A volume lives as long as its home or one of its
//! mirrors.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::text::printable;
use plasmon::wire::MAX_NAME_BYTES;
use plasmon::wire::files::{MAX_FOLLOWERS, Place, VolumeChange, VolumeInfo, VolumeState, VolumeTerms};
use plasmon::{Error, ErrorKind, NodeId};

use super::attached::SESSION_LEASES;
use super::log::Log;
use super::mirror::Mirrors;
use super::record::{LOOK_PAUSE, Whereabouts, copies};
use super::state::State;
use super::tally::Tally;
use super::volume::Volume;
use crate::control::records::{MAX_RECORDS, VolumeRecord};
use crate::kernel::Kernel;
use crate::kernel::random::{HashSet, random_u64};
use crate::membership::Cluster;
use crate::net::network::Network;
use crate::object::ROOT;
use crate::placement::Placement;
use crate::placement::drain::Lodgers;

/// Time that another node may take to answer.
pub(super) const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// Time for which a new volume waits for its first mirror.
const FIRST_MIRROR_PATIENCE: Duration = Duration::from_secs(2);
/// Pause before a volume whose home is changing is asked for again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Time that it may take until this node hears of a volume that was made or removed at another node.
pub(super) const NEWS_PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of rows of a page of the list.
const PAGE_ROWS: usize = 24;

/// Checks the name of a volume.
///
/// # Errors
/// `Invalid`.
fn ensure_name(name: &str) -> Result<(), Error> {
    let fits = !name.is_empty() && name.len() <= MAX_NAME_BYTES;
    if fits && !name.chars().any(|letter| letter.is_control() || letter == '/') {
        return Ok(());
    }
    let text = format!(
        "'{}' is no name of a volume: use 1 to {MAX_NAME_BYTES} bytes without '/' and control characters",
        printable(name)
    );
    Err(Error::new(ErrorKind::Invalid, text))
}

/// Refuses a place that names no node, or too many nodes.
///
/// # Errors
/// `Invalid`.
fn ensure_place(place: &Place) -> Result<(), Error> {
    if place.is_valid() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, "the place of a volume names no node, or too many"))
}

/// Refuses more copies of names and attributes than a volume can have.
///
/// # Errors
/// `Invalid`.
fn ensure_metadata_copies(copies: u16) -> Result<(), Error> {
    if usize::from(copies) <= MAX_FOLLOWERS {
        return Ok(());
    }
    let text = format!("names and attributes are kept on {MAX_FOLLOWERS} nodes at most, not on {copies}");
    Err(Error::new(ErrorKind::Invalid, text))
}

pub(super) fn no_volume(name: &str) -> Error {
    let name = printable(name);
    let text = format!("there is no volume '{name}': create it with `plasmon volume create {name}`");
    Error::new(ErrorKind::NotFound, text)
}

/// Makes the error for a volume whose record is not the record that was to be removed.
pub(super) fn changing() -> Error {
    Error::new(ErrorKind::Disconnected, "the record of the volume is changing: try again")
}

/// Makes the error for a volume that has gone.
pub(super) fn lost(volume: u32) -> Error {
    let text = format!("volume number {volume} was removed");
    Error::new(ErrorKind::Lost, text)
}

/// Refuses other users than the owner and root.
///
/// # Errors
/// `NotAllowed`.
pub(super) fn ensure_owner(name: &str, owner: u32, user: u32) -> Result<(), Error> {
    if user == owner || user == ROOT {
        return Ok(());
    }
    let text = format!("volume '{}' belongs to user {owner}", printable(name));
    Err(Error::new(ErrorKind::NotAllowed, text))
}

/// Volumes whose home or mirror this node is.
pub(super) struct Homes {
    pub(super) kernel: Rc<Kernel>,
    pub(super) network: Rc<Network>,
    pub(super) cluster: Rc<Cluster>,
    pub(super) placement: Rc<Placement>,
    /// Volumes whose home is this node, by number.
    pub(super) volumes: RefCell<BTreeMap<u32, Rc<Volume>>>,
    /// Volumes of other homes that this node mirrors.
    pub(super) mirrors: Mirrors,
    /// Numbers of the volumes for which this node asks the coordinator to make a record.
    pub(super) creating: RefCell<HashSet<u32>>,
    /// Whether a log has messages to send at the end of the turn.
    pub(super) gathers: Rc<Cell<bool>>,
    /// Whether a task asks mirrors at each interval whether they are there.
    pub(super) beats: Cell<bool>,
    /// Number of batches of changes that this node has applied as a mirror.
    pub(super) applied: Cell<u64>,
    /// Counts of volumes whose home was this node.
    pub(super) former: Cell<Tally>,
}

impl Lodgers for Homes {
    fn count(&self) -> u64 {
        (self.volumes.borrow().len() + self.mirrors.borrow().len()) as u64
    }

    fn names(&self, most: usize) -> Vec<String> {
        let (volumes, mirrors) = (self.volumes.borrow(), self.mirrors.borrow());
        let records =
            volumes.keys().chain(mirrors.keys()).filter_map(|volume| self.cluster.volumes.get(*volume));
        records.take(most).map(|record| format!("'{}'", printable(&record.name))).collect()
    }

    fn refused(&self) -> u64 {
        let volumes = self.volumes.borrow();
        let refused = |volume: &&Rc<Volume>| volume.nobody_joins.get() && self.mirrors_of(volume).is_empty();
        volumes.values().filter(refused).count() as u64
    }
}

impl Homes {
    pub(super) fn new(placement: &Rc<Placement>) -> Self {
        Self {
            kernel: Rc::clone(&placement.kernel),
            network: Rc::clone(&placement.network),
            cluster: Rc::clone(&placement.cluster),
            placement: Rc::clone(placement),
            volumes: RefCell::default(),
            mirrors: Mirrors::default(),
            creating: RefCell::default(),
            gathers: Rc::default(),
            beats: Cell::default(),
            applied: Cell::default(),
            former: Cell::default(),
        }
    }

    /// Number of bytes of memory that the names, attributes and maps of all volumes take here.
    pub(super) fn memory(&self) -> u64 {
        let (volumes, mirrors) = (self.volumes.borrow(), self.mirrors.borrow());
        let states = volumes.values().map(|volume| &volume.state);
        let states = states.chain(mirrors.values().map(|mirror| &mirror.state));
        states.map(|state| state.borrow().memory).sum()
    }

    /// Returns the time when sessions end whose nodes have gone now, unless the sessions go on elsewhere.
    pub(super) fn end_of_orphans(&self) -> Instant {
        self.kernel.clock.now() + self.kernel.config.lease * SESSION_LEASES
    }

    /// Returns the volume of this name, if this node is its home.
    pub(super) fn volume_here(&self, name: &str) -> Option<Rc<Volume>> {
        let volumes = self.volumes.borrow();
        volumes.values().find(|volume| *volume.name.borrow() == name && !volume.ends.get()).cloned()
    }

    /// Returns the volume of this number, if this node is its home.
    pub(super) fn volume_of(&self, number: u32) -> Option<Rc<Volume>> {
        self.volumes.borrow().get(&number).cloned()
    }

    /// Returns the record of the volume of this name.
    ///
    /// # Errors
    /// `NotFound`; `Disconnected` while nodes that have the volume may come back.
    fn known(&self, name: &str) -> Result<Rc<VolumeRecord>, Error> {
        let known = self.cluster.volumes.named(name);
        known.ok_or_else(|| match self.cluster.is_settling() {
            true => {
                let text = format!("the nodes with volume '{}' may come back soon", printable(name));
                Error::new(ErrorKind::Disconnected, text)
            }
            false => no_volume(name),
        })
    }

    /// Waits until a volume of this name is known, or until no node with one can come back.
    pub(super) async fn await_others(&self, name: &str) {
        while self.cluster.volumes.named(name).is_none() && self.cluster.is_settling() {
            self.kernel.clock.sleep(RETRY_PAUSE).await;
        }
    }

    /// Waits until this node has heard that a volume was removed, or [`NEWS_PATIENCE`] is over.
    pub(super) async fn await_removal(&self, volume: u32) {
        let due = self.kernel.clock.now() + NEWS_PATIENCE;
        while self.cluster.volumes.get(volume).is_some() && self.kernel.clock.now() < due {
            self.kernel.clock.sleep(LOOK_PAUSE).await;
        }
    }

    /// Waits [`RETRY_PAUSE`] for the record of a volume of this number.
    ///
    /// # Errors
    /// `Lost` if no node with the volume can come back.
    pub(super) async fn await_record(&self, volume: u32) -> Result<(), Error> {
        match self.cluster.is_settling() {
            true => self.kernel.clock.sleep(RETRY_PAUSE).await,
            false => return Err(lost(volume)),
        }
        Ok(())
    }

    /// Returns the volume of this name, for a question to its home.
    ///
    /// # Errors
    /// `Disconnected` if another node is the home, or soon will be; `NotFound`.
    pub(super) fn ensure_here(&self, name: &str) -> Result<Rc<Volume>, Error> {
        self.cluster.ensure_member()?;
        if let Some(volume) = self.volume_here(name) {
            return Ok(volume);
        }
        self.known(name)?;
        let text = format!("node {} is not the home of volume '{}'", self.kernel.node, printable(name));
        Err(Error::new(ErrorKind::Disconnected, text))
    }

    /// Refuses to give this node's objects while it is no member, or has just become a member again.
    pub(super) fn ensure_serves(&self) -> Result<(), Error> {
        self.cluster.ensure_member()?;
        if !self.cluster.withholds() {
            return Ok(());
        }
        let text =
            format!("node {} has just become a member again, and gives its objects soon", self.kernel.node);
        Err(Error::new(ErrorKind::Disconnected, text))
    }

    /// Returns the home of a volume.
    ///
    /// # Errors
    /// `NotFound`; `Disconnected` while the volume has no home, `Lost` if it will have none.
    pub(super) fn home(&self, name: &str) -> Result<NodeId, Error> {
        if self.volume_here(name).is_some() {
            return Ok(self.kernel.node);
        }
        let record = self.known(name)?;
        let name = printable(name);
        match self.whereabouts(&record) {
            Whereabouts::At(home) => Ok(home),
            Whereabouts::Waits => {
                let text = format!("the home of volume '{name}' is gone, and a mirror takes its place soon");
                Err(Error::new(ErrorKind::Disconnected, text))
            }
            Whereabouts::Lost => {
                let text = format!(
                    "volume '{name}' is lost: no node is left that had its names; `plasmon volume rm {name} \
                     --lost` forgets it"
                );
                Err(Error::new(ErrorKind::Lost, text))
            }
        }
    }

    /// Asks the home of a volume by `act`. Waits while the volume has no home, and for news of a volume that
    /// this node does not know.
    ///
    /// # Errors
    /// As [`Homes::home`], and those of `act`.
    pub(super) async fn with_home<T>(
        &self,
        name: &str,
        act: impl AsyncFn(NodeId) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let asked = self.kernel.clock.now();
        loop {
            let done = match self.home(name) {
                Ok(home) => act(home).await,
                Err(error) => Err(error),
            };
            let patience = match done.as_ref().map_err(Error::kind) {
                Err(ErrorKind::Disconnected) => ANSWER_PATIENCE,
                Err(ErrorKind::NotFound) => NEWS_PATIENCE,
                _ => return done,
            };
            if self.kernel.clock.now() >= asked + patience {
                return done;
            }
            self.cluster.ensure_member()?;
            self.kernel.clock.sleep(RETRY_PAUSE).await;
        }
    }

    /// Makes this node the home of a new volume.
    ///
    /// # Errors
    /// `Exists` if the name is taken; `Invalid` for terms that cannot be kept; `Full` if there are too many
    /// volumes; `NotAllowed` if this node keeps none; `Disconnected` if the coordinator does not answer.
    pub(super) async fn create_here(
        self: &Rc<Self>,
        name: &str,
        user: u32,
        terms: VolumeTerms,
    ) -> Result<VolumeInfo, Error> {
        ensure_name(name)?;
        self.ensure_takes(&terms)?;
        self.await_others(name).await;
        // The coordinator decides whether the name is taken, because this node may not have heard yet that it
        // is free.
        if self.is_full_for(name) {
            return Err(self.not_created(name));
        }
        let volume = self.draw_number();
        let (home, mirrors) = (self.kernel.node, Vec::new());
        let record = VolumeRecord { name: name.to_owned(), volume, owner: user, number: 1, home, mirrors };
        self.creating.borrow_mut().insert(volume);
        let made = self.make(&record, terms).await;
        self.creating.borrow_mut().remove(&volume);
        let volume = made?.ok_or_else(|| self.not_created(name))?;
        tracing::info!("this node is the home of volume '{}'", printable(name));
        self.tend_records();
        let due = self.kernel.clock.now() + FIRST_MIRROR_PATIENCE;
        let wanted = copies(volume.state.borrow().terms.metadata_copies);
        let lacks = || self.mirrors_of(&volume).len() + 1 < wanted && !volume.nobody_joins.get();
        while lacks() && self.kernel.clock.now() < due {
            self.kernel.clock.sleep(LOOK_PAUSE).await;
            self.tend_records();
        }
        Ok(volume.info(self.mirrors_of(&volume)))
    }

    /// Whether there are as many volumes as there may be, and none has this name.
    fn is_full_for(&self, name: &str) -> bool {
        self.cluster.volumes.named(name).is_none() && self.cluster.volumes.count() >= MAX_RECORDS
    }

    /// Makes the error for a volume that cannot be created.
    fn not_created(&self, name: &str) -> Error {
        if self.is_full_for(name) {
            let text = format!(
                "there are {MAX_RECORDS} volumes in the cluster, and there may be no more: remove one with \
                 `plasmon volume rm`"
            );
            return Error::new(ErrorKind::Full, text);
        }
        Error::new(ErrorKind::Exists, format!("volume '{}' exists", printable(name)))
    }

    /// Asks the coordinator to enter a new volume, and makes it. `None` if the coordinator has another volume
    /// of the name.
    async fn make(
        self: &Rc<Self>,
        record: &VolumeRecord,
        terms: VolumeTerms,
    ) -> Result<Option<Rc<Volume>>, Error> {
        if !self.cluster.propose(record.clone(), false).await? {
            return Ok(None);
        }
        let due = self.kernel.clock.now() + ANSWER_PATIENCE;
        while self.cluster.volumes.get(record.volume).is_none() {
            if self.kernel.clock.now() >= due {
                let text = format!("the coordinator does not tell of volume '{}'", printable(&record.name));
                return Err(Error::new(ErrorKind::Disconnected, text));
            }
            self.kernel.clock.sleep(LOOK_PAUSE).await;
        }
        // No other task runs between this line and the entry of the volume.
        let terms = VolumeTerms { copies: terms.copies.max(1), ..terms };
        let (owner, now) = (record.owner, Volume::time(&self.kernel));
        let state = State::new(record.volume, terms, owner, owner, now);
        let log = Log::new(&self.kernel, &self.gathers, record);
        let volume = Rc::new(Volume::new(&self.kernel, record, state, log));
        self.volumes.borrow_mut().insert(record.volume, Rc::clone(&volume));
        Ok(Some(volume))
    }

    /// Returns the mirrors of a volume, by its record.
    pub(super) fn mirrors_of(&self, volume: &Volume) -> Vec<NodeId> {
        self.cluster.volumes.get(volume.number).map_or_else(Vec::new, |record| record.mirrors.clone())
    }

    /// Draws the number of a new volume: a random number that no known volume has. Ids of objects contain the
    /// number, and objects may outlive their volume.
    fn draw_number(&self) -> u32 {
        loop {
            let number = random_u64() as u32;
            if number != 0 && self.cluster.volumes.get(number).is_none() {
                return number;
            }
        }
    }

    fn ensure_takes(&self, terms: &VolumeTerms) -> Result<(), Error> {
        ensure_place(&terms.place)?;
        self.ensure_keeps()?;
        ensure_metadata_copies(terms.metadata_copies)
    }

    /// Refuses if this node may not be the home of a volume.
    ///
    /// # Errors
    /// `Disconnected` while the node is drained or no member, `NotAllowed` by its settings.
    pub(super) fn ensure_keeps(&self) -> Result<(), Error> {
        self.placement.ensure_stays()?;
        self.cluster.ensure_member()?;
        let config = &self.kernel.config;
        if !config.files {
            let text = format!("node {} was started with --no-files: choose another home", self.kernel.node);
            return Err(Error::new(ErrorKind::NotAllowed, text));
        }
        if config.cache {
            let text = format!(
                "node {} is a cache, which may drop what files consist of: choose a home without --cache",
                self.kernel.node
            );
            return Err(Error::new(ErrorKind::NotAllowed, text));
        }
        Ok(())
    }

    /// Changes the terms of a volume whose home is this node. Mirrors join and leave afterwards.
    ///
    /// # Errors
    /// `NotFound`, `NotAllowed` for another user than its owner and root, and `Invalid` for a place without
    /// nodes and for too many copies of names.
    pub(super) async fn set_here(
        self: &Rc<Self>,
        name: &str,
        user: u32,
        change: VolumeChange,
    ) -> Result<VolumeInfo, Error> {
        let volume = self.owned(name, user)?;
        change.place.as_ref().map_or(Ok(()), ensure_place)?;
        change.metadata_copies.map_or(Ok(()), ensure_metadata_copies)?;
        volume.set(change);
        volume.settled().await?;
        self.tend_records();
        Ok(volume.info(self.mirrors_of(&volume)))
    }

    /// Returns a volume of this home that a user may change.
    fn owned(&self, name: &str, user: u32) -> Result<Rc<Volume>, Error> {
        let volume = self.ensure_here(name)?;
        ensure_owner(name, volume.owner, user)?;
        volume.log.ensure_decides(true)?;
        Ok(volume)
    }

    /// Removes a volume whose home is this node, but not its objects.
    ///
    /// # Errors
    /// `NotFound`; `NotAllowed` for another user than the owner and root; `Busy` while sessions are attached.
    pub(super) async fn remove_here(&self, name: &str, user: u32) -> Result<Rc<Volume>, Error> {
        let volume = self.owned(name, user)?;
        let sessions = volume.state.borrow().sessions.len();
        if sessions > 0 {
            let text =
                format!("volume '{}' has {sessions} sessions: unmount it everywhere first", printable(name));
            return Err(Error::new(ErrorKind::Busy, text));
        }
        volume.ends.set(true);
        let removed = self.remove_record(&volume).await;
        if removed.is_err() {
            volume.ends.set(false);
            removed?;
        }
        self.depose(&volume);
        Ok(volume)
    }

    async fn remove_record(&self, volume: &Volume) -> Result<(), Error> {
        volume.settled().await?;
        let record = self.cluster.volumes.get(volume.number).ok_or_else(changing)?;
        let removed = self.cluster.propose(record.next(record.home, record.mirrors.clone()), true).await?;
        if removed { Ok(()) } else { Err(changing()) }
    }

    /// Returns a page of the volumes whose home is this node. The first member also lists volumes without a
    /// home.
    pub(super) fn page(&self, from: u64) -> (Vec<VolumeInfo>, Option<u64>) {
        let volumes = self.volumes.borrow();
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let rows = volumes.values().filter(|volume| !volume.ends.get());
        let rows = rows.map(|volume| volume.info(self.mirrors_of(volume)));
        let is_first =
            self.cluster.view.borrow().members.iter().map(|one| one.node).min() == Some(self.kernel.node);
        let others = if is_first { self.cluster.volumes.all() } else { Vec::new() };
        let away = others.iter().filter_map(|record| Some((record, self.state_of(record)?)));
        let rows = rows.chain(away.map(|(record, state)| unknown(record, state)));
        let mut page: Vec<_> = rows.skip(from).take(PAGE_ROWS + 1).collect();
        let more = page.len() > PAGE_ROWS;
        page.truncate(PAGE_ROWS);
        (page, more.then(|| (from + PAGE_ROWS) as u64))
    }

    /// Returns the state of a volume without a home.
    fn state_of(&self, record: &VolumeRecord) -> Option<VolumeState> {
        match self.whereabouts(record) {
            Whereabouts::At(_) => None,
            Whereabouts::Waits => Some(VolumeState::Waits),
            Whereabouts::Lost => Some(VolumeState::Lost),
        }
    }
}

/// Makes the information about a volume without a home.
fn unknown(record: &VolumeRecord, state: VolumeState) -> VolumeInfo {
    VolumeInfo {
        name: record.name.clone(),
        number: record.volume,
        owner: record.owner,
        home: record.home,
        mirrors: record.mirrors.clone(),
        joining: Vec::new(),
        state,
        terms: VolumeTerms::default(),
        used: 0,
        inodes: 0,
        sessions: 0,
        memory: 0,
        age_ms: 0,
    }
}
