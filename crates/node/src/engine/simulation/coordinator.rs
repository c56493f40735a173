//! The coordinator of a simulation: the list of members, and what it tells them.
//!
//! Each node hears all news in their order, after a delay of its own. In some runs one node hears all of them
//! seconds later. An expelled node has fenced itself before the others hear that it is gone, as the leases of
//! the real coordinators make sure.

use std::time::Duration;

use super::host::Host;
use super::{below, percent, span};
use crate::control::Event;
use crate::control::records::{Proposed, Records, VolumeRecord};
use crate::net::members::{Member, View};

/// Longest time that news take to a node.
const MAX_NEWS_DELAY: Duration = Duration::from_millis(20);
/// Longest time by which a node hears later than the others.
const MAX_LAG: Duration = Duration::from_secs(4);
/// Number of runs in a hundred in which a node hears later than the others.
const LAG_PERCENT: usize = 20;

/// The members, and the number of their changes.
#[derive(Default)]
pub(super) struct Coordinator {
    epoch: u64,
    /// Time at which the members last changed, or may have changed.
    changed_at: Duration,
    last_incarnation: u64,
    members: Vec<Member>,
    records: Records,
    /// A host that hears of everything later than the others, and by how much.
    pub(super) late: Option<(usize, Duration)>,
    /// A host that is told of no view, until [`Coordinator::catch_up`] tells it the last one.
    pub(super) deaf: Option<usize>,
}

impl Coordinator {
    /// Makes a host's node a member, as a new incarnation.
    pub(super) fn join(&mut self, hosts: &mut [Host], host: usize, now: Duration) {
        let Some(member) = hosts[host].member() else { return };
        self.last_incarnation = member.incarnation.max(self.last_incarnation + 1);
        let incarnation = self.last_incarnation;
        self.members.retain(|other| other.node != member.node);
        self.members.push(Member { incarnation, ..member });
        // A coordinator that began anew goes on from the members' epoch.
        let known = hosts[host].core().map_or(0, |core| core.cluster.epoch());
        self.epoch = self.epoch.max(known) + 1;
        self.changed_at = now;
        let joined = Event::Joined {
            incarnation,
            view: self.view(),
            coordinator: None,
            records: self.records.clone(),
        };
        hosts[host].send(joined, now + self.delay(host));
        self.tell(hosts, now, Some(host));
    }

    /// Begins anew, without members and without knowledge of the former ones.
    pub(super) fn begin_anew(&mut self) {
        self.members.clear();
        self.epoch = 0;
    }

    /// Takes a host's node for gone.
    pub(super) fn remove(&mut self, hosts: &mut [Host], host: usize, now: Duration) {
        if let Some(node) = hosts[host].id() {
            self.members.retain(|member| member.node != node);
        }
        self.forget(hosts, now, Some(host));
    }

    /// Takes members for gone that no host has any more.
    pub(super) fn forget(&mut self, hosts: &mut [Host], now: Duration, but: Option<usize>) {
        let alive: Vec<_> = hosts.iter().filter_map(Host::id).collect();
        self.members.retain(|member| alive.contains(&member.node));
        self.epoch += 1;
        self.changed_at = now;
        self.tell(hosts, now, but);
    }

    /// Answers what members have asked for.
    pub(super) fn decide(&mut self, hosts: &mut [Host], now: Duration) {
        let before = self.records.clone();
        for (number, host) in hosts.iter_mut().enumerate() {
            let proposals = host.take_proposals();
            if !self.has(host) {
                continue;
            }
            for proposal in proposals {
                self.records.change(&proposal);
                let record = self.records.get(&proposal.record.name);
                let outcome = Ok(record.map(|record| VolumeRecord::clone(record)));
                let proposed = Proposed { ask: proposal.ask, outcome };
                host.send(Event::Proposed(proposed), now + self.delay(number));
            }
        }
        let news = self.records.since(&before);
        if news.is_empty() {
            return;
        }
        for (number, host) in hosts.iter_mut().enumerate().filter(|(_, host)| self.has(host)) {
            host.send(Event::Records(news.clone()), now + self.delay(number));
        }
    }

    /// The record of a volume.
    pub(super) fn record(&self, name: &str) -> Option<&VolumeRecord> {
        self.records.get(name).map(|record| &**record)
    }

    /// Whether a host's node is a member.
    pub(super) fn has(&self, host: &Host) -> bool {
        host.id().is_some_and(|node| self.members.iter().any(|member| member.node == node))
    }

    /// Number of the present view.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Time at which the members last changed.
    pub(super) fn changed_at(&self) -> Duration {
        self.changed_at
    }

    /// Number of members.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    fn view(&self) -> View {
        View { epoch: self.epoch, members: self.members.clone() }
    }

    fn tell(&self, hosts: &mut [Host], now: Duration, but: Option<usize>) {
        for (number, host) in hosts.iter_mut().enumerate() {
            if Some(number) != but && self.deaf != Some(number) && self.has(host) {
                host.send(Event::View { view: self.view(), skips: false }, now + self.delay(number));
            }
        }
    }

    /// Tells the deaf host the present view, and that it has missed others.
    pub(super) fn catch_up(&mut self, hosts: &mut [Host], now: Duration) {
        if let Some(host) = self.deaf.take() {
            hosts[host].send(Event::View { view: self.view(), skips: true }, now + self.delay(host));
        }
    }

    /// Draws whether a host hears later than the others in this run, and which.
    pub(super) fn draw_lag(&mut self, hosts: usize) {
        self.late = percent(LAG_PERCENT).then(|| (below(hosts), span(MAX_LAG)));
    }

    /// Draws the time that news take to a host.
    fn delay(&self, host: usize) -> Duration {
        let lag = self.late.filter(|(late, _)| *late == host).map_or(Duration::ZERO, |(_, lag)| lag);
        lag + span(MAX_NEWS_DELAY)
    }
}
