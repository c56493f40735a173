//! A node's services, composed. Owns all owners of state. Engine thread only.
//!
//! This is the only place that knows all rooms. [`Core::compose`] makes each owner of those below it, and
//! registers the services. Invariant: each part of a service's state sits in a cell of its own, which is
//! borrowed for the length of a call and never across an await.

use std::rc::Rc;

use futures::channel::mpsc::UnboundedSender;
use rustix::fd::OwnedFd;

use super::classes::Classes;
use super::overview::Overview;
use crate::call::Calls;
use crate::control::records::Proposal;
use crate::directory::Directory;
use crate::files::Files;
use crate::guard::Guards;
use crate::kernel::Kernel;
use crate::kernel::waker::Waker;
use crate::membership::Cluster;
use crate::membership::views::Change;
use crate::net::frame::Envelope;
use crate::net::network::Network;
use crate::numa::Binding;
use crate::placement::Placement;
use crate::region::{Regions, Watching};
use crate::service::{Overlap, Service, Services};
use crate::sessions::places::Places;
use crate::sessions::{Clients, Requests, Sessions};
use crate::spill::Recovered;
use crate::store::Store;
use crate::sync::Locks;
use crate::transfer::{Transfer, Tunings};

/// The owners of a node's state.
pub(crate) struct Core {
    pub(crate) kernel: Rc<Kernel>,
    pub(crate) network: Rc<Network>,
    pub(crate) store: Rc<Store>,
    pub(crate) cluster: Rc<Cluster>,
    pub(crate) directory: Rc<Directory>,
    pub(crate) transfer: Rc<Transfer>,
    pub(crate) placement: Rc<Placement>,
    pub(crate) sessions: Rc<Sessions>,
    pub(crate) requests: Rc<Requests>,
    pub(crate) services: Rc<Services>,
    pub(crate) guards: Rc<Guards>,
    #[cfg(test)]
    pub(crate) regions: Rc<Regions>,
}

/// Resources of the host that a node has beside memory and network.
pub(crate) struct Host {
    /// The memory node that the engine is bound to.
    pub(crate) numa: Binding,
    /// Limits of the number of clients.
    pub(crate) places: Places,
    /// Best parameters towards each peer, as far as they were measured.
    pub(crate) tunings: Tunings,
    /// Wakes the engine from other threads.
    pub(crate) waker: Waker,
    /// The epoll set on which the engine sleeps.
    pub(crate) epoll: Rc<OwnedFd>,
    /// Whether the node takes the place of one that was killed, which has left its socket.
    pub(crate) succeeds: bool,
    /// The channel to the control thread, for changes of records of volumes.
    pub(crate) proposals: UnboundedSender<Proposal>,
}

impl Core {
    /// Makes all owners, each of those below it, and registers the services. `more` are services that this
    /// release does not have.
    ///
    /// # Errors
    /// When two services claim one opcode.
    pub(crate) fn compose(
        store: &Rc<Store>,
        clients: Clients,
        host: Host,
        more: Vec<Rc<dyn Service>>,
    ) -> Result<Self, Overlap> {
        let (kernel, network) = (&store.kernel, &store.network);
        let services = Rc::new(Services::new(kernel, network));
        let cluster = Rc::new(Cluster::new(kernel, network, store));
        // It is set once, here.
        _ = cluster.volumes.proposals.set(host.proposals);
        let directory = Rc::new(Directory::new(kernel, network, store, &cluster));
        let transfer = Rc::new(Transfer::new(&directory, host.tunings, host.waker));
        let placement = Rc::new(Placement::new(&transfer));
        let sessions =
            Rc::new(Sessions::new(store, &directory.claims, &services, clients, host.places, host.epoll));
        let requests = Rc::new(Requests::new(&placement, &services, &sessions));
        let overview = Rc::new(Overview::new(&cluster, store, &services, host.numa));
        let mut all: Vec<Rc<dyn Service>> =
            vec![overview, directory.clone(), transfer.clone(), placement.clone()];
        all.push(Rc::new(Classes { kernel: Rc::clone(kernel), network: Rc::clone(network) }));
        all.extend(more);
        all.push(requests.clone());
        let guards = Rc::new(Guards::new(kernel));
        let regions = Regions::new(&placement, &sessions, &requests, &guards);
        all.push(regions.clone());
        all.push(Rc::new(Watching(Rc::clone(&regions))));
        all.push(Calls::new(&placement, &sessions, &requests));
        all.push(Locks::new(&cluster, &sessions, &guards, host.succeeds));
        all.push(Files::new(&placement, &sessions));
        services.register(all)?;
        Ok(Self {
            kernel: Rc::clone(kernel),
            network: Rc::clone(network),
            store: Rc::clone(store),
            cluster,
            directory,
            transfer,
            placement,
            sessions,
            requests,
            services,
            guards,
            #[cfg(test)]
            regions,
        })
    }

    /// Takes over objects that a former node of this host left on disk. The node is a member.
    pub(crate) fn recover(&self, recovered: Vec<Recovered>) {
        if !recovered.is_empty() {
            let taken = self.store.recover(recovered);
            taken.iter().for_each(|replica| self.placement.note_expiry(replica));
            self.directory.withhold_recovered();
        }
    }

    /// Acts on a member's frame.
    pub(crate) fn dispatch(&self, frame: Envelope) {
        self.cluster.trust(&frame.from);
        let unclaimed = if frame.is_answer() { self.network.complete(frame) } else { Some(frame) };
        if let Some(frame) = unclaimed {
            self.services.on_frame(frame);
        }
    }

    /// Has all rooms follow a change of the members.
    pub(crate) fn follow(&self, change: Option<Change>) {
        let Some(change) = change else { return };
        self.services.on_change(&change);
        if let Change::Records | Change::FormerLives(_) = change {
            return;
        }
        self.cluster.wake_watchers();
        if let Change::View(_) = change {
            let admitted = self.network.admit_strangers(self.kernel.clock.now());
            admitted.into_iter().for_each(|frame| self.dispatch(frame));
        }
    }
}
