//! Homes of volumes: which node decides about which volume. Engine thread only.
//!
//! A name of a volume is unique in the cluster as that of a region is: its home has a deed of it, an object
//! without bytes under the id of the name, that no user sees. A volume lives as long as its home.

use std::rc::Rc;
use std::time::Duration;

use plasmon::text::printable;
use plasmon::wire::files::{Place, VolumeChange, VolumeInfo, VolumeTerms, volume_id};
use plasmon::wire::{MAX_NAME, Reply};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::Files;
use super::frames::ask;
use super::state::State;
use super::volume::Volume;
use crate::kernel::ClientKey;
use crate::kernel::random::random_u64;
use crate::object::{DEEDS, ROOT};
use crate::placement::drain::Settled;

/// How long another node may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of volumes of a node.
const MAX_VOLUMES: usize = 1 << 12;
/// Number of rows of a page of the list.
const PAGE_ROWS: usize = 24;

/// Checks the name of a volume.
///
/// # Errors
/// `Invalid`.
fn ensure_name(name: &str) -> Result<(), Error> {
    let fits = !name.is_empty() && name.len() <= MAX_NAME;
    if fits && !name.chars().any(|letter| letter.is_control() || letter == '/') {
        return Ok(());
    }
    let text = format!(
        "'{}' is no name of a volume: use 1 to {MAX_NAME} bytes without '/' and control characters",
        printable(name)
    );
    Err(Error::new(ErrorKind::Invalid, text))
}

/// Refuses a place without nodes.
///
/// # Errors
/// `Invalid`.
fn ensure_place(place: &Place) -> Result<(), Error> {
    if place.is_valid() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, "the place of a volume names no node, or too many"))
}

pub(super) fn no_volume(name: &str) -> Error {
    let name = printable(name);
    let text = format!("there is no volume '{name}': create it with `plasmon volume create {name}`");
    Error::new(ErrorKind::NotFound, text)
}

impl Settled for Files {
    fn count(&self) -> u64 {
        self.volumes.borrow().len() as u64
    }

    fn names(&self, most: usize) -> Vec<String> {
        let volumes = self.volumes.borrow();
        volumes.values().take(most).map(|volume| format!("'{}'", printable(&volume.name))).collect()
    }
}

impl Files {
    /// The volume of a name, if its home is this node.
    pub(super) fn volume_here(&self, name: &str) -> Option<Rc<Volume>> {
        let volumes = self.volumes.borrow();
        let volume = volumes.values().find(|volume| volume.name == name)?;
        (!volume.ends.get() && self.has_deed(volume)).then(|| Rc::clone(volume))
    }

    /// The volume of a number, if its home is this node.
    pub(super) fn volume_of(&self, number: u32) -> Option<Rc<Volume>> {
        self.volumes.borrow().get(&number).filter(|volume| self.has_deed(volume)).cloned()
    }

    fn has_deed(&self, volume: &Volume) -> bool {
        self.store.objects.borrow().has(&volume.deed)
    }

    /// Refuses to say what this node does not know: while it is no member, or has just become one again.
    pub(super) fn ensure_serves(&self) -> Result<(), Error> {
        self.cluster.ensure_member()?;
        if !self.cluster.withholds() {
            return Ok(());
        }
        let text =
            format!("node {} has just become a member again, and knows its volumes soon", self.kernel.node);
        Err(Error::new(ErrorKind::Disconnected, text))
    }

    /// The nodes other than this one that may be the home of a volume.
    async fn homes_of(&self, id: &ObjectId) -> Result<Vec<NodeId>, Error> {
        if self.cluster.solo() {
            return Ok(Vec::new());
        }
        match self.directory.holders(*id, DEEDS).await {
            Ok(holders) => {
                Ok(holders.iter().map(|(node, _)| *node).filter(|node| *node != self.kernel.node).collect())
            }
            Err(error) if error.kind() == ErrorKind::Lost => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// The home of a volume.
    ///
    /// # Errors
    /// `NotFound`.
    pub(super) async fn home(&self, name: &str) -> Result<NodeId, Error> {
        if self.volume_here(name).is_some() {
            return Ok(self.kernel.node);
        }
        let homes = self.homes_of(&volume_id(name)).await?;
        homes.first().copied().ok_or_else(|| no_volume(name))
    }

    /// Creates a volume on a node.
    pub(super) async fn create(
        self: Rc<Self>,
        client: ClientKey,
        name: String,
        home: Option<NodeId>,
        terms: VolumeTerms,
    ) -> Result<Reply, Error> {
        let user = self.user(client);
        let info = match home.filter(|home| *home != self.kernel.node) {
            None => self.create_here(&name, user, terms).await?,
            Some(home) => {
                let ask::Described { info } =
                    self.network.ask(home, user, ask::Create { name, terms }, PATIENCE).await?;
                info
            }
        };
        Ok(Reply::Volume(info))
    }

    /// Makes this node the home of a new volume.
    ///
    /// # Errors
    /// `Exists` if the name is taken, or being taken; `Invalid` for terms that cannot be kept; `Full` if
    /// there are too many volumes; `NotAllowed` if this node keeps none.
    pub(super) async fn create_here(
        &self,
        name: &str,
        user: u32,
        terms: VolumeTerms,
    ) -> Result<VolumeInfo, Error> {
        ensure_name(name)?;
        self.ensure_takes(&terms)?;
        let id = volume_id(name);
        let exists = || Error::new(ErrorKind::Exists, format!("volume '{}' exists", printable(name)));
        if self.directory.known_here(&id, DEEDS) == Some(true) {
            return Err(exists());
        }
        let claims = &self.directory.claims;
        let claim = claims.claim(id, DEEDS, Duration::ZERO).await?;
        let claim = claims.ascertain(claim, DEEDS, Duration::ZERO).await?;
        // From here on nothing else happens until the volume is there.
        self.ensure_takes(&terms)?;
        if self.store.objects.borrow().conflict(&id).is_some() {
            return Err(exists());
        }
        let deed = self.store.seal_deed(id, self.kernel.lives.draw())?;
        claim.fulfil();
        let number = self.draw_number();
        let terms = VolumeTerms { copies: terms.copies.max(1), metadata_copies: 1, ..terms };
        let state = State::new(number, terms, user, user, Volume::time(&self.kernel));
        let volume = Rc::new(Volume::new(&self.kernel, name, state, user, deed));
        let info = volume.info();
        self.volumes.borrow_mut().insert(number, volume);
        self.count_memory();
        tracing::info!("this node is the home of volume '{}'", printable(name));
        Ok(info)
    }

    /// Draws the number of a volume. It is part of the ids of objects, also of volumes that are gone.
    fn draw_number(&self) -> u32 {
        loop {
            let number = random_u64() as u32;
            if number != 0 && !self.volumes.borrow().contains_key(&number) {
                return number;
            }
        }
    }

    fn ensure_takes(&self, terms: &VolumeTerms) -> Result<(), Error> {
        ensure_place(&terms.place)?;
        self.placement.ensure_stays()?;
        self.ensure_serves()?;
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
        if terms.metadata_copies > 1 {
            let text = format!(
                "this release keeps names and attributes on one node, not on {}: use --metadata-copies 1",
                terms.metadata_copies
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if self.volumes.borrow().len() >= MAX_VOLUMES {
            let text = format!("node {} is the home of {MAX_VOLUMES} volumes already", self.kernel.node);
            return Err(Error::new(ErrorKind::Full, text));
        }
        Ok(())
    }

    /// Changes the terms of a volume.
    pub(super) async fn set(
        self: Rc<Self>,
        client: ClientKey,
        name: String,
        change: VolumeChange,
    ) -> Result<Reply, Error> {
        let (user, home) = (self.user(client), self.home(&name).await?);
        let info = if home == self.kernel.node {
            self.set_here(&name, user, change)?
        } else {
            let ask::Described { info } =
                self.network.ask(home, user, ask::Set { name, change }, PATIENCE).await?;
            info
        };
        Ok(Reply::Volume(info))
    }

    /// Changes the terms of a volume whose home is this node.
    ///
    /// # Errors
    /// `NotFound`, `NotAllowed` for another user than its owner and root, and `Invalid` for a place without
    /// nodes.
    pub(super) fn set_here(&self, name: &str, user: u32, change: VolumeChange) -> Result<VolumeInfo, Error> {
        let volume = self.owned(name, user)?;
        change.place.as_ref().map_or(Ok(()), ensure_place)?;
        volume.set(change);
        Ok(volume.info())
    }

    /// A volume of this home that a user may change.
    fn owned(&self, name: &str, user: u32) -> Result<Rc<Volume>, Error> {
        self.ensure_serves()?;
        let volume = self.volume_here(name).ok_or_else(|| no_volume(name))?;
        if user != volume.owner && user != ROOT {
            let text = format!("volume '{}' belongs to user {}", printable(name), volume.owner);
            return Err(Error::new(ErrorKind::NotAllowed, text));
        }
        Ok(volume)
    }

    /// Removes a volume.
    pub(super) async fn remove(self: Rc<Self>, client: ClientKey, name: String) -> Result<Reply, Error> {
        let (user, home) = (self.user(client), self.home(&name).await?);
        if home == self.kernel.node {
            self.remove_here(&name, user).await?;
        } else {
            let ask::Ended = self.network.ask(home, user, ask::Remove { name }, PATIENCE).await?;
        }
        Ok(Reply::Done)
    }

    /// Removes a volume whose home is this node, with all its files.
    ///
    /// # Errors
    /// As [`Files::set_here`]; `Busy` while sessions are attached.
    pub(super) async fn remove_here(self: &Rc<Self>, name: &str, user: u32) -> Result<(), Error> {
        let volume = self.owned(name, user)?;
        let sessions = volume.state.borrow().sessions.len();
        if sessions > 0 {
            let text =
                format!("volume '{}' has {sessions} sessions: unmount it everywhere first", printable(name));
            return Err(Error::new(ErrorKind::Busy, text));
        }
        volume.ends.set(true);
        let (id, life) = (volume_id(name), volume.deed.life);
        if let Err(error) = self.directory.deletion.delete_all(&[id], &[life], DEEDS).await {
            volume.ends.set(false);
            return Err(error);
        }
        self.volumes.borrow_mut().remove(&volume.number);
        self.sweep_all(&volume);
        Ok(())
    }

    /// Lists the volumes whose home a node is.
    pub(super) async fn list(
        self: Rc<Self>,
        client: ClientKey,
        node: NodeId,
        from: u64,
    ) -> Result<Reply, Error> {
        let (volumes, next) = if node == self.kernel.node {
            self.page(from)
        } else {
            let user = self.user(client);
            let ask::Listed { volumes, next } =
                self.network.ask(node, user, ask::List { from }, PATIENCE).await?;
            (volumes, next)
        };
        Ok(Reply::Volumes { volumes, next })
    }

    /// A page of the volumes whose home this node is.
    pub(super) fn page(&self, from: u64) -> (Vec<VolumeInfo>, Option<u64>) {
        let volumes = self.volumes.borrow();
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let rows = volumes.values().filter(|volume| !volume.ends.get()).skip(from);
        let mut page: Vec<_> = rows.take(PAGE_ROWS + 1).map(|volume| volume.info()).collect();
        let more = page.len() > PAGE_ROWS;
        page.truncate(PAGE_ROWS);
        (page, more.then(|| (from + PAGE_ROWS) as u64))
    }

    /// Forgets volumes whose deeds have gone: their names may be others' by now.
    pub(super) fn tidy_volumes(&self) {
        let volumes: Vec<_> = self.volumes.borrow().values().cloned().collect();
        for volume in volumes.iter().filter(|volume| !volume.ends.get() && !self.has_deed(volume)) {
            tracing::warn!("volume '{}' has another home by now", printable(&volume.name));
            self.volumes.borrow_mut().remove(&volume.number);
        }
    }
}
