//! The requests of clients. Owns no state but counts of subscriptions: the parts below have the rest. Engine
//! thread only.
//!
//! Invariants: a request that can be answered at once is answered at once. A request that has to wait becomes
//! a task of its client ([`answering`](super::answering)). A request that fails leaves everything as it was.
//!
//! [`Creations`] and [`Lending`] have what clients make and borrow. [`Requests`] answers all other requests.
//!
//! [`writing`] makes objects, [`replacing`] puts them in the place of others, [`reading`] finds them,
//! [`seeking`] finds those that exist, [`listing`] lists them, [`removing`] deletes and evicts them, and
//! [`lending`] lends memory to work in. [`placement`] puts objects where they are wanted, [`transfer`] tells
//! and asks how they move, and [`overseeing`] and [`following`] ask the other nodes.

mod following;
mod lending;
mod listing;
mod overseeing;
mod placement;
mod reading;
mod removing;
mod replacing;
mod seeking;
mod service;
mod transfer;
mod writing;

use std::cell::Cell;
use std::rc::Rc;

use plasmon::wire::Reply;
use plasmon::{Class, Error, ErrorKind, ObjectId};

use self::lending::Lending;
pub(crate) use self::writing::Creations;
pub(super) use self::writing::{Begun, INLINE_MAX_BYTES, weight};
use super::Sessions;
use super::subscriptions::Subscriptions;
use crate::directory::Directory;
use crate::kernel::{ClientKey, Kernel};
use crate::membership::Cluster;
use crate::net::network::Network;
use crate::placement::Placement;
use crate::service::Services;
use crate::store::Store;
use crate::transfer::Transfer;

/// The requests of clients that are about objects, this node or its cluster.
pub(crate) struct Requests {
    kernel: Rc<Kernel>,
    network: Rc<Network>,
    store: Rc<Store>,
    cluster: Rc<Cluster>,
    directory: Rc<Directory>,
    transfer: Rc<Transfer>,
    placement: Rc<Placement>,
    services: Rc<Services>,
    sessions: Rc<Sessions>,
    /// Objects that clients make.
    pub(crate) creations: Rc<Creations>,
    lending: Rc<Lending>,
    subscriptions: Subscriptions,
    /// Held by each subscription to the whole cluster: the count of holders tells their number.
    followers: Rc<()>,
    /// The number of the next feed.
    next_feed: Cell<u64>,
}

impl Requests {
    pub(crate) fn new(placement: &Rc<Placement>, services: &Rc<Services>, sessions: &Rc<Sessions>) -> Self {
        let creations = Rc::new(Creations::new(placement, sessions));
        Self {
            kernel: Rc::clone(&placement.kernel),
            network: Rc::clone(&placement.network),
            store: Rc::clone(&placement.store),
            cluster: Rc::clone(&placement.cluster),
            directory: Rc::clone(&placement.directory),
            transfer: Rc::clone(&placement.transfer),
            placement: Rc::clone(placement),
            services: Rc::clone(services),
            sessions: Rc::clone(sessions),
            lending: Rc::new(Lending::new(placement, sessions, &creations)),
            creations,
            subscriptions: Subscriptions::new(sessions, &placement.network),
            followers: Rc::default(),
            next_feed: Cell::new(1),
        }
    }

    fn hello(&self, client: ClientKey, name: String) -> Reply {
        self.sessions.client_mut(client, |client| {
            client.name = name;
            client.greeted = true;
        });
        let user = self.sessions.client(client, |client| client.uid);
        let arena = self.store.arena.borrow();
        Reply::Hello {
            node: self.kernel.node,
            segment_size: arena.segment_size(),
            segments: arena.segment_count(),
            inline_max: INLINE_MAX_BYTES,
            user,
            capacity: arena.capacity(),
        }
    }

    fn set_options(
        &self,
        client: ClientKey,
        name: Option<String>,
        quota: Option<u64>,
        class: Option<Class>,
    ) -> Result<Reply, Error> {
        if let Some(class) = class {
            self.sessions.classify(client, class)?;
        }
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            self.sessions.client_mut(client, |client| client.name = name);
        }
        if let Some(quota) = quota {
            self.store.quotas.borrow_mut().limit_client(client, Some(quota).filter(|quota| *quota > 0));
        }
        Ok(Reply::Done)
    }
}

fn exists(id: ObjectId, what: &str) -> Error {
    let text =
        format!("object {id} {what}; objects never change: put another name or id, or delete this one first");
    Error::new(ErrorKind::Exists, text)
}
