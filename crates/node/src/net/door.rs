//! Doors: places for connections of clients and nodes that have not proved yet that they may connect.
//!
//! A door owns its places. Any thread with tokio. Every TCP port has a [`Door`], which bounds the number of
//! strangers in all and from one address. So neither one host nor all hosts together use up the file
//! descriptors. If all places are taken, a new connection gets the place of the stranger that has stood there
//! longest without being served, once that stranger has had its time. So silent connections keep nobody
//! waiting.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// The number of places in a door, and how long a place is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Number of places for one address.
    pub(crate) each: usize,
    /// Number of places in all.
    pub(crate) all: usize,
    /// Time for which a place is kept although another connection wants it.
    pub(crate) grace: Duration,
}

/// Limits of the control port, where nodes have to prove that they belong to the cluster.
pub(crate) const CONTROL: Limits = Limits { each: 64, all: 128, grace: Duration::from_secs(1) };
/// Limits of the data port of the *socket* protocol, where readers have to show a lease.
pub(crate) const DATA: Limits = Limits { each: 64, all: 128, grace: Duration::from_secs(1) };
/// Limits of the port of metrics and health, where every client is a stranger.
pub(crate) const HEALTH: Limits = Limits { each: 32, all: 64, grace: Duration::ZERO };
/// Maximum number of connections of strangers at all ports.
pub(crate) const STRANGERS: usize = CONTROL.all + DATA.all + HEALTH.all;

/// The door of a port.
pub(crate) struct Door {
    limits: Limits,
    standing: Mutex<Standing>,
}

#[derive(Default)]
struct Standing {
    next: u64,
    /// The strangers by their numbers; the one that has stood longest is first.
    strangers: BTreeMap<u64, Stranger>,
}

struct Stranger {
    address: IpAddr,
    since: Instant,
    served: Arc<AtomicBool>,
    /// Dropped when the place becomes another's, which ends [`Place::hold`].
    _place: oneshot::Sender<Infallible>,
}

/// The place of a connection in a door, until this is dropped or the place becomes another's.
pub(crate) struct Place {
    door: Arc<Door>,
    number: u64,
    served: Arc<AtomicBool>,
    lost: oneshot::Receiver<Infallible>,
}

/// The error of a connection whose place was given to another.
#[derive(Debug, thiserror::Error)]
#[error("it has shown nothing, and others want its place")]
pub(crate) struct Displaced;

impl Door {
    /// Makes a door in which nobody stands.
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, standing: Mutex::default() })
    }

    /// Takes a place for a connection from an address, if there is one.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        self.enter_at(address, Instant::now())
    }

    fn enter_at(self: &Arc<Self>, address: IpAddr, now: Instant) -> Option<Place> {
        let address = host(address);
        let mut standing = self.lock();
        let of_address = standing.strangers.values().filter(|one| one.address == address).count();
        let only = (of_address >= self.limits.each).then_some(address);
        if only.is_some() || standing.strangers.len() >= self.limits.all {
            standing.make_way(only, now, self.limits.grace)?;
        }
        let number = standing.next;
        standing.next += 1;
        let (sender, lost) = oneshot::channel();
        let served = Arc::<AtomicBool>::default();
        let stranger = Stranger { address, since: now, served: Arc::clone(&served), _place: sender };
        standing.strangers.insert(number, stranger);
        Some(Place { door: Arc::clone(self), number, served, lost })
    }

    fn lock(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().expect("no holder of this lock panics")
    }
}

impl Standing {
    /// Removes the stranger that has stood longest, of an address or of all; `None` if all may stay.
    fn make_way(&mut self, only: Option<IpAddr>, now: Instant, grace: Duration) -> Option<()> {
        let idle = |one: &Stranger| !one.served.load(Ordering::Relaxed);
        let mut there = self.strangers.iter();
        let (number, longest) =
            there.find(|(_, one)| only.is_none_or(|address| one.address == address) && idle(one))?;
        if now.saturating_duration_since(longest.since) < grace {
            return None;
        }
        let number = *number;
        self.strangers.remove(&number).map(drop)
    }
}

impl Place {
    /// Does some work for as long as the place is not another's.
    ///
    /// # Errors
    /// When the place becomes another's.
    pub(crate) async fn hold<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Displaced> {
        tokio::select! {
            biased;
            _ = &mut self.lost => Err(Displaced),
            done = work => Ok(done),
        }
    }

    /// A flag that says whether the connection is being served; a served connection keeps its place.
    pub(crate) fn served(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.served)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.door.lock().strangers.remove(&self.number);
    }
}

/// The part of an address that counts as one host: of IPv6, the smallest network that a host is given.
fn host(address: IpAddr) -> IpAddr {
    const HOST: u128 = (1 << 64) - 1;
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !HOST).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(1);

    fn door(grace: Duration) -> (Arc<Door>, Instant) {
        (Door::new(Limits { each: 2, all: 3, grace }), Instant::now())
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn is_lost(place: &mut Place) -> bool {
        matches!(place.lost.try_recv(), Err(oneshot::error::TryRecvError::Closed))
    }

    #[test]
    fn the_oldest_of_an_address_makes_way_for_the_next_of_it() {
        let (door, now) = door(Duration::ZERO);
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(address);
        let mut first = door.enter_at(other, now).unwrap();
        let mut second = door.enter_at(one, now).unwrap();
        let mut third = door.enter_at(one, now).unwrap();
        let mut fourth = door.enter_at(one, now).unwrap();
        let lost = [&mut first, &mut second, &mut third, &mut fourth].map(is_lost);
        assert_eq!(lost, [false, true, false, false]);
        // The place is another's by now: dropping it takes nobody's place.
        drop(second);
        assert_eq!(door.lock().strangers.len(), 3);
    }

    #[test]
    fn the_oldest_of_all_makes_way_for_another_address() {
        let (door, now) = door(Duration::ZERO);
        let mut places: Vec<_> =
            (1..=4).map(|last| door.enter_at(IpAddr::from([10, 0, 0, last]), now).unwrap()).collect();
        assert_eq!(places.iter_mut().map(is_lost).collect::<Vec<_>>(), [true, false, false, false]);
        drop(places);
        assert!(door.lock().strangers.is_empty());
    }

    #[test]
    fn who_is_served_or_has_just_come_stays() {
        let (door, now) = door(GRACE);
        let one = address("10.0.0.1");
        let mut first = door.enter_at(one, now).unwrap();
        let mut second = door.enter_at(one, now + GRACE / 2).unwrap();
        assert!(door.enter_at(one, now + GRACE / 2).is_none());
        first.served().store(true, Ordering::Relaxed);
        assert!(door.enter_at(one, now + GRACE).is_none(), "the second came half a moment ago");
        assert!(door.enter_at(one, now + 2 * GRACE).is_some());
        assert!(!is_lost(&mut first) && is_lost(&mut second));
    }

    #[test]
    fn addresses_that_one_host_has_are_one() {
        assert_eq!(host(address("::ffff:10.0.0.1")), address("10.0.0.1"));
        assert_eq!(host(address("2001:db8:1:2::1")), host(address("2001:db8:1:2:3:4:5:6")));
        assert_ne!(host(address("2001:db8:1:2::1")), host(address("2001:db8:1:3::1")));
        assert_ne!(host(address("10.0.0.1")), host(address("10.0.0.2")));
    }
}
