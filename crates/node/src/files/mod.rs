//! Files: volumes of names, attributes and maps, whose bytes are objects.
//!
//! Owns [`Files`]. Engine thread only. A *volume* has a home ([`homes`]), which keeps its state ([`state`],
//! [`volume`]). The effect of an operation is decided from the state alone ([`decide`]) and is a list of
//! changes ([`change`]), which only [`apply`] carries out. The home sends changes to mirrors ([`log`],
//! [`walk`]), which keep the state too ([`mirror`]); a record at the coordinator names home and mirrors
//! ([`record`]). The home of a new volume is chosen by [`making`]. A client attaches to a volume and gets a
//! *session* ([`attached`]); its node passes operations on to the home ([`operations`]), and tells the
//! session when cached names, attributes or bytes have changed ([`watch`], [`following`]). Objects that are
//! to lie on other nodes are brought there ([`place`], [`keeping`], [`pull`]), ranges of objects are read
//! where they lie ([`peek`]), and objects that no file has are deleted ([`sweep`]). [`check`] compares the
//! counts of a volume with its files, and [`credit`] lets unused credit lapse. Inodes without a name stay for
//! a moment ([`lingering`]). [`answer`] tells sessions what they may keep, [`tally`] counts the work of
//! homes, and [`abuse`] logs faults of clients. [`known`] and [`granted`] remember which inodes and bytes
//! sessions without trust may name.

mod abuse;
mod access;
mod answer;
mod apply;
mod attached;
mod change;
mod check;
mod credit;
mod cut;
mod decide;
mod few;
mod following;
mod frames;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod granted;
mod homes;
mod inherited;
mod keeping;
mod kinds;
mod known;
mod lingering;
mod log;
mod long;
mod making;
mod map;
mod mirror;
mod opens;
mod operations;
mod peek;
mod place;
mod pull;
mod ranges;
mod record;
mod requests;
mod service;
mod state;
mod sweep;
mod tally;
mod volume;
mod walk;
mod watch;

use std::cell::Cell;
use std::rc::{Rc, Weak};

use plasmon::wire::files::MAX_GROUPS;

use self::attached::AllAttached;
use self::decide::Limits;
use self::following::Following;
use self::granted::Granted;
use self::homes::Homes;
use self::kinds::Kinds;
use self::long::LongAnswers;
use self::opens::Opened;
use self::peek::Peeking;
use self::place::Placing;
use self::sweep::Sweeping;
use self::volume::Volume;
use crate::directory::Directory;
use crate::kernel::{ClientKey, Kernel};
use crate::membership::Cluster;
use crate::net::network::Network;
use crate::placement::Placement;
use crate::placement::drain::Lodgers;
use crate::sessions::Sessions;
use crate::store::Store;

/// Files of this node: the volumes whose home it is, and the sessions of its clients.
pub(crate) struct Files {
    /// Reference to these files, for methods that get only `&self`.
    own: Weak<Self>,
    kernel: Rc<Kernel>,
    network: Rc<Network>,
    cluster: Rc<Cluster>,
    directory: Rc<Directory>,
    placement: Rc<Placement>,
    store: Rc<Store>,
    sessions: Rc<Sessions>,
    homes: Rc<Homes>,
    attached: AllAttached,
    granted: Granted,
    opened: Opened,
    following: Following,
    long: LongAnswers,
    sweeping: Sweeping,
    placing: Rc<Placing>,
    peeking: Peeking,
    /// Limits of volumes beside their terms, as of the last tick.
    limits: Cell<Limits>,
    /// Number of bytes of memory that all volumes take: the sum of the last tick, and the difference that
    /// operations made since.
    taken: Cell<u64>,
    /// Numbers of operations of this node's clients so far, by kind.
    kinds: Kinds,
    /// Number of operations of this node's clients so far that failed.
    failed: Cell<u64>,
    /// Number of reads of this node's clients so far that objects here served, number of reads that brought
    /// objects, and number of bytes that the reads returned.
    reads: [Cell<u64>; 3],
}

impl Files {
    pub(crate) fn new(placement: &Rc<Placement>, sessions: &Rc<Sessions>) -> Rc<Self> {
        let memory = placement.kernel.config.files_memory.unwrap_or(placement.kernel.config.memory / 20);
        let free = placement.store.arena.borrow_mut().usage().free;
        let files = Rc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            kernel: Rc::clone(&placement.kernel),
            network: Rc::clone(&placement.network),
            cluster: Rc::clone(&placement.cluster),
            directory: Rc::clone(&placement.directory),
            placement: Rc::clone(placement),
            store: Rc::clone(&placement.store),
            sessions: Rc::clone(sessions),
            homes: Rc::new(Homes::new(placement)),
            attached: AllAttached::default(),
            granted: Granted::default(),
            opened: Opened::default(),
            following: Following::default(),
            long: LongAnswers::default(),
            sweeping: Sweeping::default(),
            placing: Rc::new(Placing::new(placement)),
            peeking: Peeking::default(),
            limits: Cell::new(Limits { memory, free }),
            taken: Cell::default(),
            kinds: Kinds::default(),
            failed: Cell::default(),
            reads: Default::default(),
        });
        let lodgers = Rc::downgrade(&(Rc::clone(&files.homes) as Rc<dyn Lodgers>));
        // The slot is empty, because a node makes its files once.
        _ = placement.drain.volumes.set(lodgers);
        files
    }

    fn user(&self, client: ClientKey) -> u32 {
        self.sessions.client(client, |client| client.uid)
    }

    /// Returns the group of a client's process and its further groups, at most [`MAX_GROUPS`].
    fn groups(&self, client: ClientKey) -> (u32, Vec<u32>) {
        let (gid, mut groups) = self.sessions.client(client, |client| (client.gid, client.groups.clone()));
        groups.truncate(MAX_GROUPS);
        (gid, groups)
    }

    /// Returns the limits of a volume: of memory for names, it may take what other volumes leave.
    fn limits_of(&self, volume: &Volume) -> Limits {
        let (limits, own) = (self.limits.get(), volume.state.borrow().memory);
        let others = self.taken.get().saturating_sub(own);
        let free = volume.room.get().unwrap_or(limits.free);
        Limits { memory: limits.memory.saturating_sub(others), free }
    }

    /// Adds up the memory that all volumes take.
    fn count_memory(&self) {
        self.taken.set(self.homes.memory());
    }

    /// Acts on new records of volumes.
    fn follow_records(self: &Rc<Self>) {
        self.homes.follow_records();
        self.tell_homes();
        for record in self.cluster.volumes.take_removed() {
            if !self.homes.has_somebody(&record) {
                self.sweep_lost(record.volume);
            }
        }
    }

    /// Returns the volume of this number, if this node is its home.
    fn volume_of(&self, number: u32) -> Option<Rc<Volume>> {
        self.homes.volume_of(number)
    }
}
