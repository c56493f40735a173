//! Checks of a cluster that has come to rest. Checks that hold at any moment are in [`super::invariants`],
//! whose opening says why the checks of this file wait.

use std::rc::Rc;
use std::time::Duration;

use plasmon::ObjectId;
use plasmon_linear::{Action, Call, violations};

use super::host::Host;
use super::worker::USER;
use super::{FIRST_REPLICATED_ID, IDS, REST_TIME, Simulation};
use crate::engine::Core;
use crate::object::Role;
use crate::transfer::LEASE;

/// Violations of one id that are shown.
const SHOWN: usize = 2;
/// Longest time until a call at rest is answered.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Longest time until a watcher was told what has happened at rest.
const TELLING_TIME: Duration = Duration::from_secs(1);
/// Times that a deletion is tried.
const DELETIONS: usize = 5;

impl Simulation {
    /// Ends all faults. Returns the promises that are broken then, or the fault that was found after a step.
    pub(super) fn wrong(&mut self) -> Vec<String> {
        let parts: [fn(&mut Self) -> Vec<String>; 4] = [
            |simulation| {
                simulation.mend();
                Vec::new()
            },
            Self::check_at_rest,
            Self::check_histories,
            Self::check_emptied,
        ];
        let mut wrong = Vec::new();
        for part in parts {
            if self.broken.is_none() {
                wrong.extend(part(self));
            }
        }
        wrong.extend(self.broken.take());
        wrong
    }

    /// Lets time pass until no worker waits. Returns which workers still wait.
    pub(super) fn await_workers(&mut self) -> Vec<String> {
        let until = self.time.now() + ANSWER_TIME;
        while self.time.now() < until && self.workers.iter().any(|worker| !worker.is_idle()) {
            self.step(until, false);
        }
        let waiting = self.workers.iter().enumerate().filter(|(_, worker)| !worker.is_idle());
        waiting.map(|(number, _)| format!("worker {number} waits for ever")).collect()
    }

    /// Checks that each object has one primary and as many replicas as were promised, and that all nodes give
    /// it.
    fn check_at_rest(&mut self) -> Vec<String> {
        let mut wrong = self.await_workers();
        for number in 0..self.workers.len() {
            self.with_worker(number, |worker, simulation| worker.ask_contains(simulation));
        }
        wrong.extend(self.await_workers());
        for id in 0..IDS {
            wrong.extend(self.check_placement(id));
            if self.hosts.iter().any(Host::has_disk) {
                // Replicas of earlier gets make room only when no other node's lease holds them.
                self.pass(LEASE + Duration::from_secs(1));
            }
            let is_there = !self.roles(id).is_empty();
            for number in 0..self.workers.len() {
                self.with_worker(number, |worker, simulation| worker.get(simulation, id));
            }
            wrong.extend(self.await_workers());
            for (number, worker) in self.workers.iter_mut().enumerate() {
                if let Some(got) = worker.last_get.take().filter(|got| got.is_ok() != is_there) {
                    let host = worker.host;
                    wrong.push(format!(
                        "id {id}: is there: {is_there}, but worker {number} of node {host} was told {got:?}"
                    ));
                }
            }
        }
        self.pass(TELLING_TIME);
        wrong.extend(self.check_watcher());
        wrong
    }

    /// The role of each replica of an object, with its life.
    pub(super) fn roles(&self, id: usize) -> Vec<(usize, Role, u64)> {
        let of = |(number, host): (usize, &Host)| {
            let objects = host.core()?.store.objects.borrow();
            let replica = objects.get(&self.ids[id])?;
            Some((number, replica.role(), replica.life))
        };
        self.hosts.iter().enumerate().filter_map(of).collect()
    }

    fn check_placement(&self, id: usize) -> Option<String> {
        let roles = self.roles(id);
        let (_, _, life) = *roles.first()?;
        let primaries = roles.iter().filter(|(_, role, _)| *role == Role::Primary).count();
        let staying = roles.iter().filter(|(_, role, _)| role.stays()).count();
        // A node that is being drained takes nothing new.
        let takes = |host: &&Host| host.core().is_some_and(|core| !core.placement.is_draining());
        let takers = self.hosts.iter().filter(takes).count();
        let promised = if id < FIRST_REPLICATED_ID { 1 } else { 2.min(takers) };
        // Of several primaries that are all being drained none becomes the only one.
        let is_right = (primaries == 1 || (primaries > 1 && takers == 0))
            && staying >= promised
            && roles.iter().all(|(.., other)| *other == life);
        (!is_right).then(|| {
            let known = self.known_holders(id);
            format!("id {id} is to have one primary and {promised} keepers: {roles:?}; keepers know {known}")
        })
    }

    /// Whether both keepers of an object know a holder, by the view of the first member.
    pub(super) fn is_known(&self, object: &ObjectId) -> bool {
        let cores: Vec<_> = self.hosts.iter().filter_map(Host::core).collect();
        let member = cores.iter().find(|core| !core.cluster.fenced()).expect("there are members");
        let keepers = member.cluster.keepers(object);
        let knows = |core: &Rc<Core>| !core.directory.table.borrow_mut().holders(object, USER).is_empty();
        cores.iter().filter(|core| keepers.contains(core.kernel.node)).all(|core| knows(core))
    }

    /// Text about the holders of an object that its keepers know.
    fn known_holders(&self, id: usize) -> String {
        let of = |host: &Host| {
            let core = host.core()?;
            let keepers = core.cluster.keepers(&self.ids[id]);
            let mut table = core.directory.table.borrow_mut();
            let holders = table.holders(&self.ids[id], 0);
            let short = table.short();
            let what = keepers.contains(core.kernel.node).then_some((holders.len(), short))?;
            Some(format!("node {}: {} holders, {} objects short", host.number, what.0, what.1))
        };
        self.hosts.iter().filter_map(of).collect::<Vec<_>>().join("; ")
    }

    /// Checks that the answers about each id fit one register.
    fn check_histories(&mut self) -> Vec<String> {
        let mut wrong: Vec<String> = Vec::new();
        let is_late = self.network.breaks || self.weather.breaks_connections();
        for (id, history) in self.histories.iter().enumerate() {
            // An id is also refused while another client claims it for a put that fails.
            let failed: Vec<_> = self.failed_puts[id]
                .iter()
                .map(|(begin, gone)| (*begin, refused_until(history, *gone, is_late)))
                .collect();
            let overlaps = |call: &Call| {
                let end = call.end.unwrap_or(u64::MAX);
                failed.iter().any(|(begin, gone)| *begin <= end && call.begin <= *gone)
            };
            let counts = |call: &&Call| call.action != Action::Refused || !overlaps(call);
            let history: Vec<_> = history.iter().filter(counts).copied().collect();
            let found = violations(&history, SHOWN);
            wrong.extend(found.into_iter().map(|violation| format!("id {id}: {violation}")));
        }
        self.workers.iter_mut().for_each(|worker| wrong.append(&mut worker.wrong));
        wrong
    }

    /// Deletes everything, and checks that nothing is left of it.
    fn check_emptied(&mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        for _ in 0..DELETIONS {
            for id in 0..IDS {
                let alive = |worker: &super::worker::Worker| self.hosts[worker.host].is_alive();
                let Some(worker) = self.workers.iter().position(alive) else { return wrong };
                self.with_worker(worker, |worker, simulation| worker.delete(simulation, id));
                wrong.extend(self.await_workers());
            }
            if (0..IDS).all(|id| self.roles(id).is_empty()) {
                break;
            }
        }
        self.pass(REST_TIME);
        wrong.extend(self.check_watcher());
        self.end_watcher();
        for host in &self.hosts {
            let Some(core) = host.core() else { continue };
            let status = core.services.status();
            let left = [
                ("objects", core.store.objects.borrow().len() as u64),
                ("bytes of memory", status.memory.used),
                ("copies made ahead", core.placement.copies_ahead() as u64),
                ("replacements", core.directory.writer.under_way() as u64),
                ("claims", status.cluster.copies.claims),
                ("leases", status.transfer.leases),
                ("fetches", status.transfer.fetching),
                ("open calls", u64::from(core.network.asks())),
                ("subscriptions", u64::from(core.store.objects.borrow().happenings.is_some())),
            ];
            for (what, count) in left.into_iter().filter(|(_, count)| *count > 0) {
                wrong.push(format!("node {} is left with {count} {what}", host.number));
            }
        }
        wrong
    }
}

/// End of the time in which an id is refused for a put that failed at `gone`. While the message that it was
/// given up is on its way, the next client that wants the id is refused once. With `is_late` the message may
/// have been lost with a connection, and all clients are refused until it has been sent again.
fn refused_until(history: &[Call], gone: u64, is_late: bool) -> u64 {
    let puts = |call: &&Call| call.begin > gone && matches!(call.action, Action::Put(_));
    if is_late {
        return history.iter().filter(puts).map(|call| call.begin).min().unwrap_or(u64::MAX);
    }
    let wants = |call: &&Call| call.begin > gone && matches!(call.action, Action::Refused | Action::Put(_));
    match history.iter().filter(wants).min_by_key(|call| call.end) {
        Some(Call { action: Action::Refused, end: Some(end), .. }) => *end,
        _ => gone,
    }
}
