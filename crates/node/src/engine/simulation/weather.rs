//! Faults of a simulation and their times. A seed breaks some kinds of things and not others. Half of the
//! faults wait until an object is being pushed, and then hit one of its two nodes.

use std::time::Duration;

use plasmon_fabric::Faults;

use super::host::Host;
use super::networks::Networks;
use super::{Simulation, below, percent, span};
use crate::control::Event;
use crate::transfer::pushes_with;

/// Longest time between two faults.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Longest time that a partition or a stall lasts.
const MAX_OUTAGE: Duration = Duration::from_secs(4);
/// Number of nodes in a hundred that are expelled while the coordinator is away.
const BLACKOUT_PERCENT: usize = 80;
/// Longest time between the first and the last expulsion while the coordinator is away.
const BLACKOUT_TIME: Duration = Duration::from_secs(1);
/// Longest time for which the better network separates two hosts: longer than nodes need to change to the
/// other network.
const MAX_DETOUR: Duration = Duration::from_secs(9);
/// Number of faults in a hundred that wait for a push.
const AMID_PUSH_PERCENT: usize = 50;
/// Longest time for which a fault waits for a push.
const PUSH_PATIENCE: Duration = Duration::from_secs(1);
/// Longest time until the coordinator takes a dead node for gone.
const MAX_LEASE: Duration = Duration::from_secs(5);

/// Number of reads in a million that bring a wrong byte, in runs in which reads do so.
const SPOILED_READ_PPM: u32 = 50_000;
/// Number of operations in a million on which a connection breaks, in runs in which connections do so.
const CUT_PPM: u32 = 1_000;
/// Number of messages and writes in a million that are done before they have arrived, in some seeds.
const EARLY_SEND_PPM: u32 = 200_000;
/// Longest times after which writes by a broken connection still land: shorter than the life of a window's
/// key.
const LATE_WRITES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(50), Duration::from_secs(5)];

/// The delays of a run's network, whether its reads bring wrong bytes, and how connections break.
pub(super) fn faults() -> Faults {
    let delay_max = Duration::from_micros([50, 500, 5000][below(3)]);
    let spoiled_read_ppm = if percent(25) { SPOILED_READ_PPM } else { 0 };
    let delay_min = Duration::from_micros(5);
    let cut_ppm = if percent(25) { CUT_PPM } else { 0 };
    let early_send_ppm = if percent(50) { EARLY_SEND_PPM } else { 0 };
    let late_write_max = LATE_WRITES[below(LATE_WRITES.len())];
    Faults {
        delay_min,
        delay_max,
        split_reads: true,
        cut_ppm,
        early_send_ppm,
        late_write_max,
        spoiled_read_ppm,
        patience: None,
    }
}

/// Something that may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A node dies. Its host gets a new one later.
    Death,
    /// Two hosts cannot reach each other for a while.
    Partition,
    /// All connections between two hosts break. The hosts can make new ones at once.
    Cut,
    /// Two hosts cannot reach each other by the better network for a while.
    Detour,
    /// A node gets no time for a while.
    Stall,
    /// A node is expelled, and is a member again later.
    Expulsion,
    /// A node is drained. Its host gets a new one later.
    Drain,
    /// The coordinator is away: most nodes are expelled, one after the other, and are members again later, in
    /// any order.
    Blackout,
}

/// Something that is to happen.
#[derive(Debug, Clone, Copy)]
enum Plan {
    /// The next fault, of a kind that is drawn at that time.
    Anything,
    /// The coordinator notices a death.
    Notice,
    /// The host's node starts again, or joins again.
    Return(usize),
    /// The two hosts reach each other again.
    Heal(u32, u32),
}

/// Faults that are to happen, and those that may.
#[derive(Default)]
pub(super) struct Weather {
    kinds: Vec<Kind>,
    plans: Vec<(Duration, Plan)>,
    /// The fault that waits for a push, and the time until which it waits.
    awaits: Option<(Duration, Kind)>,
    /// Number of faults in the middle of a push.
    pub(super) amid_pushes: usize,
    /// Number of deaths so far: at most one a run, by which nothing that two nodes keep is lost.
    deaths: usize,
}

impl Weather {
    /// Whether nodes come back in this run with objects. Such a node brings objects that were not there in
    /// the meantime, also if their ids were created anew and deleted. So clients delete nothing in such a
    /// run.
    pub(super) fn brings_back(&self, have_disks: bool) -> bool {
        self.kinds.contains(&Kind::Expulsion)
            || self.kinds.contains(&Kind::Blackout)
            || have_disks && self.kinds.contains(&Kind::Death)
    }

    /// Whether connections break, so that messages come late.
    pub(super) fn breaks_connections(&self) -> bool {
        self.kinds.contains(&Kind::Cut) || self.kinds.contains(&Kind::Detour)
    }

    /// Time at which something happens next.
    pub(super) fn due(&self) -> Option<Duration> {
        self.plans.iter().map(|(at, _)| *at).chain(self.awaits.map(|(until, _)| until)).min()
    }

    /// Ends all partitions, wrong bytes and cuts, and plans nothing more.
    pub(super) fn mend(&mut self, network: &Networks, hosts: usize) {
        (self.plans, self.awaits) = (Vec::new(), None);
        network.change_faults(|faults| (faults.spoiled_read_ppm, faults.cut_ppm) = (0, 0));
        for one in 0..hosts as u32 {
            (0..one).for_each(|other| network.partition(one, other, false));
        }
    }

    fn plan(&mut self, at: Duration, plan: Plan) {
        self.plans.push((at, plan));
    }

    fn take_due(&mut self, now: Duration) -> Option<Plan> {
        let at = self.plans.iter().position(|(at, _)| *at <= now)?;
        Some(self.plans.remove(at).1)
    }
}

impl Simulation {
    /// Decides which kinds of things happen in this run.
    pub(super) fn draw_weather(&mut self) {
        // Members change in one way only, because promises hold for one failure at a time.
        let change = [Kind::Death, Kind::Expulsion, Kind::Drain, Kind::Blackout][below(4)];
        let all = [change, Kind::Partition, Kind::Stall, Kind::Cut];
        self.weather.kinds = all.into_iter().filter(|_| percent(50)).collect();
        if self.network.has_better() {
            self.weather.kinds.push(Kind::Detour);
        }
        if !self.weather.kinds.is_empty() {
            self.weather.plan(self.time.now() + span(MAX_PAUSE), Plan::Anything);
        }
    }

    /// Lets happen what is due.
    pub(super) fn let_weather_happen(&mut self) {
        while let Some(plan) = self.weather.take_due(self.time.now()) {
            let now = self.time.now();
            if !matches!(plan, Plan::Anything) {
                self.log(format_args!("{plan:?}"));
            }
            match plan {
                Plan::Anything => {
                    let kind = self.weather.kinds[below(self.weather.kinds.len())];
                    if percent(AMID_PUSH_PERCENT) {
                        self.weather.awaits = Some((now + PUSH_PATIENCE, kind));
                    } else {
                        self.happen(kind, self.any_two());
                    }
                    self.weather.plan(now + span(MAX_PAUSE), Plan::Anything);
                }
                Plan::Notice => self.coordinator.forget(&mut self.hosts, now, None),
                Plan::Return(host) => self.bring_back(host),
                Plan::Heal(one, other) => self.network.partition(one, other, false),
            }
        }
        if let Some((until, kind)) = self.weather.awaits {
            let push = self.push_under_way();
            if push.is_some() || until <= self.time.now() {
                self.weather.awaits = None;
                self.weather.amid_pushes += usize::from(push.is_some());
                self.happen(kind, push.unwrap_or_else(|| self.any_two()));
            }
        }
    }

    /// Two hosts, which may be the same.
    fn any_two(&self) -> (usize, usize) {
        (below(self.hosts.len()), below(self.hosts.len()))
    }

    /// The hosts of an object that is being pushed, in any order.
    fn push_under_way(&self) -> Option<(usize, usize)> {
        let pushes = |node: &Host| pushes_with(&node.core()?.transfer);
        let (host, other) =
            self.hosts.iter().enumerate().find_map(|(host, node)| Some((host, pushes(node)?)))?;
        let other = self.hosts.iter().position(|host| host.id() == Some(other))?;
        Some(if percent(50) { (host, other) } else { (other, host) })
    }

    /// Expels a host's node at a time, and takes it back later.
    fn expel_for_a_while(&mut self, host: usize, at: Duration) {
        self.hosts[host].is_expelled = true;
        self.hosts[host].send(Event::Expelled, at);
        self.note_cut_off(host);
        self.weather.plan(at + span(MAX_OUTAGE), Plan::Return(host));
    }

    /// Has a host's node become a member. The node may be a new one.
    pub(super) fn bring_back(&mut self, host: usize) {
        if !self.hosts[host].is_alive() {
            self.hosts[host].start_again();
        }
        if !self.coordinator.has(&self.hosts[host]) {
            if self.weather.kinds.contains(&Kind::Blackout) {
                self.note_return();
            }
            self.join(host);
        }
    }

    fn happen(&mut self, kind: Kind, (host, other): (usize, usize)) {
        let now = self.time.now();
        self.log(format_args!("{kind:?} of node {host}, and {other}"));
        // Most nodes are there at any time.
        let is_whole = self.coordinator.len() == self.hosts.len()
            && (0..self.hosts.len()).all(|host| self.hosts[host].is_alive() && !self.hosts[host].is_expelled);
        match kind {
            Kind::Death if is_whole && self.weather.deaths == 0 => {
                self.weather.deaths += 1;
                self.hosts[host].kill();
                self.note_loss(host);
                let noticed = now + span(MAX_LEASE);
                self.weather.plan(noticed, Plan::Notice);
                self.weather.plan(noticed + span(MAX_OUTAGE), Plan::Return(host));
            }
            Kind::Partition if host != other => {
                let (one, other) = (host as u32, other as u32);
                self.network.partition(one, other, true);
                self.weather.plan(now + span(MAX_OUTAGE), Plan::Heal(one, other));
            }
            Kind::Cut if host != other => self.network.cut(host as u32, other as u32),
            Kind::Detour if host != other => {
                let (one, other) = (host as u32, other as u32);
                self.network.part_better(one, other);
                self.weather.plan(now + span(MAX_DETOUR), Plan::Heal(one, other));
            }
            Kind::Stall => self.hosts[host].stall(now + span(MAX_OUTAGE)),
            Kind::Expulsion if is_whole => self.expel_for_a_while(host, now),
            Kind::Blackout if is_whole => {
                for host in 0..self.hosts.len() {
                    if percent(BLACKOUT_PERCENT) {
                        self.expel_for_a_while(host, now + span(BLACKOUT_TIME));
                    }
                }
            }
            Kind::Drain if is_whole => {
                self.hosts[host].drain();
                self.weather.plan(now + MAX_OUTAGE + span(MAX_OUTAGE), Plan::Return(host));
            }
            _ => {}
        }
    }
}
