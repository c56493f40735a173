//! Leases: how guards are renewed, and end. The state is that of `Locks`. Engine thread only.
//!
//! While clients hold locks or wait for them, one task looks after all tickets. After a third of a ticket's
//! time to live it tells the home that the guard or the wait goes on, by one frame for many tickets. A
//! lease lasts for nine tenths of its time to live, counted from before the home was asked, and never
//! longer than this node's membership. A lease is renewed as long as its client says that it is alive.

use std::rc::Rc;
use std::time::Duration;

use plasmon::NodeId;

use super::Locks;
use super::frames::{MAX_ROWS, MAX_WAITS, Numbered, Row, ask};
use super::lock::nanos;
use super::tickets::{State, Ticket};
use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;

/// Number of looks at all tickets during the shortest time to live.
const LOOKS: u64 = 12;
/// The shortest and the longest time between two looks at all tickets.
const PERIOD: [Duration; 2] = [Duration::from_millis(8), Duration::from_millis(250)];
/// How long a home may take to answer.
const BEAT_PATIENCE: Duration = Duration::from_secs(5);

/// The guards and waits that a home is told of.
#[derive(Default)]
struct News {
    guards: Vec<Rc<Ticket>>,
    waits: Vec<Rc<Ticket>>,
}

impl Locks {
    /// Takes note that a client is alive.
    pub(super) fn note_alive(&self, client: ClientKey) {
        self.alive.borrow_mut().insert(client, self.now());
    }

    /// Returns the time until which a lease is valid if it is not renewed. A lease never outlasts
    /// this node's membership.
    pub(super) fn lease_end(&self, ticket: &Ticket, now: u64) -> u64 {
        let left = self.cluster.validity.left(self.kernel.clock.boot_ns()).map_or(u64::MAX, nanos);
        let member = if self.cluster.fenced() { 0 } else { now.saturating_add(left) };
        ticket.until().unwrap_or(0).min(member)
    }

    /// Starts the task that looks after the tickets, if it does not run.
    pub(super) fn begin_keeping(self: &Rc<Self>) {
        if !self.is_keeping.replace(true) {
            let locks = Rc::clone(self);
            self.kernel.spawn(async move {
                while locks.tickets.are_there() {
                    locks.kernel.clock.sleep(locks.look()).await;
                }
                locks.is_keeping.set(false);
            });
        }
    }

    /// Looks after all tickets. Returns the time until the next look.
    fn look(self: &Rc<Self>) -> Duration {
        let now = self.now();
        let mut news: HashMap<NodeId, News> = HashMap::default();
        let mut shortest = u64::MAX;
        for ticket in self.tickets.all() {
            let ttl = ticket.lock.ttl_ns();
            let home = self.places.home(&ticket.lock.id);
            shortest = shortest.min(ttl);
            let renewed = match *ticket.state.borrow() {
                State::Holds { renewed, .. } => Some(renewed),
                State::Waits(_) => None,
                State::Ended => continue,
            };
            let Some(renewed) = renewed else {
                match ticket.asked.get() {
                    Some((asked, _, at)) if asked == home => {
                        if now.saturating_sub(at) >= ttl / 3 {
                            news.entry(home).or_default().waits.push(ticket);
                        }
                    }
                    _ => self.want(&ticket),
                }
                continue;
            };
            let until = self.lease_end(&ticket, now);
            if until <= now {
                self.lose(&ticket, "its lease was not renewed in time");
                continue;
            }
            self.guards.set(ticket.key.0, ticket.key.1, until);
            let said = self.alive.borrow().get(&ticket.key.0).copied().unwrap_or(0);
            let is_alive = now.saturating_sub(said) < ttl;
            if is_alive && now.saturating_sub(renewed) >= ttl / 3 && !ticket.renewing.replace(true) {
                news.entry(home).or_default().guards.push(ticket);
            }
        }
        for (home, news) in news {
            self.tell_all(home, now, news);
        }
        Duration::from_nanos(shortest / LOOKS).clamp(PERIOD[0], PERIOD[1])
    }

    /// Tells a home which guards and waits go on, in as many frames as needed.
    fn tell_all(self: &Rc<Self>, home: NodeId, now: u64, News { guards, waits }: News) {
        let frames = guards.len().div_ceil(MAX_ROWS).max(waits.len().div_ceil(MAX_WAITS));
        let (mut guards, mut waits) = (guards.into_iter(), waits.into_iter());
        for _ in 0..frames {
            let guards: Vec<_> = guards.by_ref().take(MAX_ROWS).collect();
            let waits: Vec<_> = waits.by_ref().take(MAX_WAITS).collect();
            let epoch = self.cluster.epoch();
            waits.iter().for_each(|ticket| ticket.asked.set(Some((home, epoch, now))));
            self.kernel.spawn(Rc::clone(self).keep(home, now, guards, waits));
        }
    }

    async fn keep(self: Rc<Self>, home: NodeId, at_ns: u64, guards: Vec<Rc<Ticket>>, waits: Vec<Rc<Ticket>>) {
        let rows: Vec<Row> = guards.iter().map(|ticket| ticket.row(at_ns)).collect();
        let numbers: Vec<Numbered> = waits.iter().map(|ticket| ticket.numbered()).collect();
        let question = ask::Keep { at_ns, guards: rows, waits: numbers };
        let answer = self.network.ask(home, 0, question, BEAT_PATIENCE).await;
        guards.iter().for_each(|ticket| ticket.renewing.set(false));
        let Ok(ask::Kept { unknown }) = answer else {
            // The home does not answer, or is not the home. The next look asks again.
            waits.iter().for_each(|ticket| ticket.asked.set(None));
            return;
        };
        for ticket in &guards {
            let mut state = ticket.state.borrow_mut();
            let State::Holds { renewed, .. } = &mut *state else { continue };
            if !unknown.contains(&ticket.number.get()) {
                *renewed = at_ns.max(*renewed);
                drop(state);
                self.guards.set(ticket.key.0, ticket.key.1, self.lease_end(ticket, self.now()));
            } else {
                drop(state);
                // The answer of a node that is the home no more says nothing.
                if self.places.home(&ticket.lock.id) == home {
                    self.lose(ticket, "its home does not know it any more");
                }
            }
        }
        for ticket in waits.iter().filter(|ticket| ticket.waits() && unknown.contains(&ticket.number.get())) {
            self.want(ticket);
        }
    }
}
