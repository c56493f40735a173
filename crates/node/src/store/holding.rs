//! Content of a full store, and the holders of pins, for errors. Owns no state. Engine thread only.
//!
//! The parts that are told add up to the bytes that are used. Pins are looked up by their holders rather
//! than by walking all objects, and at most [`MAX_PINS`] of them, because a store is full often.

use std::collections::hash_map::Entry;
use std::ops::ControlFlow;
use std::rc::{Rc, Weak};

use bytesize::ByteSize;
use plasmon::NodeId;

use super::quotas::largest;
use super::{Pinned, Store};
use crate::kernel::ClientKey;
use crate::kernel::random::{HashMap, HashSet};
use crate::memory::{Domain, Usage};
use crate::object::{InMemory, Replica, Table};

/// Maximum number of pins that an error looks at.
const MAX_PINS: usize = 1 << 16;

/// A client or a node that has objects pinned.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Holder {
    Client(ClientKey),
    Node(NodeId),
}

/// Bytes that are pinned, of all holders and of each.
#[derive(Default)]
struct Pins {
    seen: HashSet<(Holder, Domain, u32)>,
    objects: HashSet<(Domain, u32)>,
    holders: HashMap<Holder, u64>,
    /// Number of bytes of pinned objects that are not deleted.
    bytes: u64,
    deleted_bytes: u64,
    looked_at: usize,
}

impl Pins {
    /// Adds a pin on a replica, which may have been deleted.
    fn add(&mut self, holder: Holder, replica: &Replica, is_deleted: bool) -> ControlFlow<()> {
        let (entry, len) = ((replica.domain(), replica.entry()), replica.len());
        if self.seen.insert((holder, entry.0, entry.1)) {
            *self.holders.entry(holder).or_default() += len;
        }
        if self.objects.insert(entry) {
            *(if is_deleted { &mut self.deleted_bytes } else { &mut self.bytes }) += len;
        }
        self.count()
    }

    /// Counts a pin that was looked at; breaks if no further pin is to be looked at.
    fn count(&mut self) -> ControlFlow<()> {
        self.looked_at += 1;
        if self.is_cut() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn is_cut(&self) -> bool {
        self.looked_at >= MAX_PINS
    }
}

impl Store {
    /// Describes what the store holds, in lines with the words of `plasmon status`: the parts, the pinned
    /// bytes with their holders, and the bytes of the largest creators.
    pub(super) fn holding(&self, usage: &Usage) -> Vec<String> {
        let objects = self.objects.borrow();
        let InMemory { primary, kept, cached, unsealed } = objects.in_memory();
        let doomed = objects.doomed().map(|replica| replica.len()).sum();
        let regions = self.regions.bytes().min(usage.used);
        let others = usage.used.saturating_sub(primary + kept + cached + unsealed + doomed + regions);
        let parts = [
            (primary, "primary"),
            (kept, "kept for others"),
            (cached, "cached"),
            (unsealed, "unsealed"),
            (doomed, "deleted but pinned"),
            (regions, "regions"),
            (others, "buffers of clients, objects on their way and rounding"),
        ];
        let mut lines = vec![format!(
            "memory: {} of {} used, largest free piece {}",
            size(usage.used),
            size(usage.capacity),
            size(usage.largest_run)
        )];
        let parts = parts.into_iter().filter(|(bytes, _)| *bytes > 0);
        lines.extend(parts.map(|(bytes, what)| format!("{what}: {}", size(bytes))));
        lines.push(self.tell_pins(&self.pins(&objects), primary + kept + cached));
        lines.extend(self.tell_creators());
        lines
    }

    /// Returns the pins of clients and of other nodes.
    fn pins(&self, objects: &Table) -> Pins {
        let mut removed: HashMap<(Domain, u32), Rc<Replica>> = HashMap::default();
        for replica in objects.doomed() {
            if let Entry::Vacant(place) = removed.entry((replica.domain(), replica.entry())) {
                place.insert(replica);
            }
        }
        let is_removed = |replica: &Replica| removed.contains_key(&(replica.domain(), replica.entry()));
        let mut pins = Pins::default();
        let enough = self.readers.each_pin(&mut |client, pinned| {
            let replica = match pinned {
                Pinned::Counted(replica) => Some(replica),
                Pinned::Entry(domain, entry) => {
                    removed.get(&(domain, entry)).or_else(|| objects.in_entry(domain, entry))
                }
            };
            match replica.filter(|replica| replica.in_memory()) {
                Some(replica) => pins.add(Holder::Client(client), replica, is_removed(replica)),
                None => pins.count(),
            }
        });
        if enough.is_continue()
            && let Some(lessor) = self.lessor.get().and_then(Weak::upgrade)
        {
            let _ = lessor
                .each_lease(&mut |node, replica| pins.add(Holder::Node(node), replica, is_removed(replica)));
        }
        pins
    }

    /// Tells how much of the `sealed` bytes is pinned, and the holders with most pinned bytes,
    /// deleted objects included.
    fn tell_pins(&self, pins: &Pins, sealed: u64) -> String {
        if pins.holders.is_empty() {
            return "pinned: nothing".into();
        }
        let holders = largest(pins.holders.iter().map(|(holder, bytes)| (*holder, *bytes)));
        let more = pins.holders.len() - holders.len();
        let name = |holder| match holder {
            Holder::Client(client) => self.readers.describe(client),
            Holder::Node(node) => format!("node {node} (reading)"),
        };
        let mut named: Vec<_> =
            holders.into_iter().map(|(holder, bytes)| format!("{} {}", name(holder), size(bytes))).collect();
        if more > 0 {
            named.push(format!("{more} more"));
        }
        let extent = match pins.bytes {
            all if sealed > 0 && all >= sealed => ", which is all that is sealed",
            _ if pins.is_cut() => " or more",
            _ => "",
        };
        let deleted = match pins.deleted_bytes {
            0 => String::new(),
            bytes => format!(", and {} that are deleted", size(bytes)),
        };
        format!("pinned: {}{extent}{deleted}; by {}", size(pins.bytes), named.join(", "))
    }

    /// Tells which users and clients have created most of the bytes that are here, in memory or on disk.
    fn tell_creators(&self) -> Option<String> {
        let quotas = self.quotas.borrow();
        let users = quotas.largest_users().into_iter();
        let users: Vec<_> = users.map(|(user, bytes)| format!("user {user} {}", size(bytes))).collect();
        let clients = quotas.largest_clients().into_iter();
        let clients: Vec<_> = clients
            .map(|(client, bytes)| format!("{} {}", self.readers.describe(client), size(bytes)))
            .collect();
        let by_clients = if clients.is_empty() {
            String::new()
        } else {
            format!(" (of clients that are connected: {})", clients.join(", "))
        };
        let told = || format!("created here, in memory or on disk: {}{by_clients}", users.join(", "));
        (!users.is_empty()).then(told)
    }
}

fn size(bytes: u64) -> impl std::fmt::Display {
    ByteSize::b(bytes).display().iec()
}
