//! Regions: memory with a name that clients of all nodes read and write. Owns [`Regions`].
//!
//! Engine thread only. A region lives on one node, its *home* ([`home`]). A client has it by a *handle*, a
//! number of its own connection ([`handles`]). A handle stands for the region itself if the region lives
//! here, or for a *mapping* that its home gave this node ([`mapping`]). [`finding`] makes regions and
//! handles. [`moving`] brings regions to other homes. [`still`] keeps everybody from changing a region for a
//! while. [`access`] carries operations out, here or by asking the home, and [`bulk`] moves many bytes
//! without a copy. [`watching`] has clients told what happens to their regions ([`events`]). [`answering`] is
//! the home's side for other nodes.
//!
//! Invariant: the home checks rights and bounds of each operation, for the user whom the asking node names.

mod access;
mod answering;
mod bulk;
mod events;
mod finding;
mod frames;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod handles;
pub(crate) mod home;
mod mapping;
mod moving;
mod service;
mod still;
mod watching;

use std::rc::{Rc, Weak};

use self::events::Watches;
use self::handles::Handles;
use self::home::Home;
use self::mapping::Mappings;
use self::moving::Arrivals;
pub(crate) use self::watching::Watching;
use crate::directory::Directory;
use crate::guard::Guards;
use crate::kernel::Kernel;
use crate::membership::Cluster;
use crate::net::network::Network;
use crate::placement::Placement;
use crate::placement::drain::Residents;
use crate::sessions::{Requests, Sessions};
use crate::transfer::Transfer;

/// Regions that live on this node, and regions of other nodes to which its clients have handles.
pub(crate) struct Regions {
    /// Reference to these regions, for methods that get only `&self`.
    own: Weak<Self>,
    kernel: Rc<Kernel>,
    network: Rc<Network>,
    cluster: Rc<Cluster>,
    directory: Rc<Directory>,
    transfer: Rc<Transfer>,
    sessions: Rc<Sessions>,
    requests: Rc<Requests>,
    guards: Rc<Guards>,
    pub(crate) home: Rc<Home>,
    mappings: Mappings,
    handles: Handles,
    /// Watches of clients that are told what happens to their regions.
    watches: Watches,
    /// Mappings of regions of this node that it gave other nodes.
    given: answering::Given,
    /// Regions that are about to move to this node.
    arrivals: Arrivals,
}

impl Regions {
    pub(crate) fn new(
        placement: &Rc<Placement>,
        sessions: &Rc<Sessions>,
        requests: &Rc<Requests>,
        guards: &Rc<Guards>,
    ) -> Rc<Self> {
        let regions = Rc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            kernel: Rc::clone(&placement.kernel),
            network: Rc::clone(&placement.network),
            cluster: Rc::clone(&placement.cluster),
            directory: Rc::clone(&placement.directory),
            transfer: Rc::clone(&placement.transfer),
            sessions: Rc::clone(sessions),
            requests: Rc::clone(requests),
            guards: Rc::clone(guards),
            home: Home::new(placement),
            mappings: Mappings::new(&placement.network),
            handles: Handles::default(),
            watches: Watches::new(placement.kernel.node),
            given: answering::Given::default(),
            arrivals: Arrivals::default(),
        });
        let residents = Rc::downgrade(&(Rc::clone(&regions) as Rc<dyn Residents>));
        // The slot is empty, because a node makes its regions once.
        _ = placement.drain.residents.set(residents);
        regions
    }
}
