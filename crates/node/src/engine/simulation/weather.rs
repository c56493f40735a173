//! What breaks in a simulation, and when. A seed breaks some kinds of things and not others.

use std::time::Duration;

use plasmon_fabric::{Faults, MemoryNetwork};

use super::{Simulation, below, percent, span};
use crate::control::Event;

/// Longest time between two things that happen.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Longest time that a partition or a stall lasts.
const MAX_OUTAGE: Duration = Duration::from_secs(4);
/// Longest time until the coordinator takes a dead node for gone.
const MAX_LEASE: Duration = Duration::from_secs(5);

/// Number of reads, in a million, that bring a wrong byte where reads do so.
const SPOILED_READ_PPM: u32 = 50_000;

/// The delays of a run's network, and whether its reads bring wrong bytes.
pub(super) fn faults() -> Faults {
    let delay_max = Duration::from_micros([50, 500, 5000][below(3)]);
    let spoiled_read_ppm = if percent(25) { SPOILED_READ_PPM } else { 0 };
    let delay_min = Duration::from_micros(5);
    Faults { delay_min, delay_max, split_reads: true, spoiled_read_ppm, ..Faults::default() }
}

/// Something that may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A node dies. Its host gets a new one later.
    Death,
    /// Two hosts cannot reach each other for a while.
    Partition,
    /// A node gets no time for a while.
    Stall,
    /// A node is expelled, and is a member again later.
    Expulsion,
    /// A node is drained. Its host gets a new one later.
    Drain,
}

/// Something that is to happen.
#[derive(Debug, Clone, Copy)]
enum Plan {
    /// The next thing of a kind that is drawn then.
    Anything,
    /// The coordinator notices a death.
    Notice,
    /// The host's node starts again, or joins again.
    Return(usize),
    /// The two hosts reach each other again.
    Heal(u32, u32),
}

/// What is to happen, and what may.
#[derive(Default)]
pub(super) struct Weather {
    kinds: Vec<Kind>,
    plans: Vec<(Duration, Plan)>,
    /// One death a run: what two nodes keep is not lost by it.
    deaths: usize,
}

impl Weather {
    /// Whether nodes come back in this run with objects. Such a node brings what was not there meanwhile,
    /// also if its id was created anew and deleted: clients delete nothing in such a run.
    pub(super) fn brings_back(&self, have_disks: bool) -> bool {
        self.kinds.contains(&Kind::Expulsion) || have_disks && self.kinds.contains(&Kind::Death)
    }

    /// When something happens next.
    pub(super) fn due(&self) -> Option<Duration> {
        self.plans.iter().map(|(at, _)| *at).min()
    }

    /// Ends all partitions and wrong bytes, and plans nothing more.
    pub(super) fn mend(&mut self, network: &MemoryNetwork, hosts: usize) {
        self.plans.clear();
        network.change_faults(|faults| faults.spoiled_read_ppm = 0);
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
        // Members change in one way only: what is promised is promised for one failure at a time.
        let change = [Kind::Death, Kind::Expulsion, Kind::Drain][below(3)];
        let all = [change, Kind::Partition, Kind::Stall];
        self.weather.kinds = all.into_iter().filter(|_| percent(50)).collect();
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
                    self.happen(kind);
                    self.weather.plan(now + span(MAX_PAUSE), Plan::Anything);
                }
                Plan::Notice => self.coordinator.forget(&mut self.hosts, now, None),
                Plan::Return(host) => self.bring_back(host),
                Plan::Heal(one, other) => self.network.partition(one, other, false),
            }
        }
    }

    /// Has a host's node be a member, which may be a new node.
    pub(super) fn bring_back(&mut self, host: usize) {
        if !self.hosts[host].is_alive() {
            self.hosts[host].start_again();
        }
        if !self.coordinator.has(&self.hosts[host]) {
            self.join(host);
        }
    }

    fn happen(&mut self, kind: Kind) {
        let (now, host) = (self.time.now(), below(self.hosts.len()));
        self.log(format_args!("{kind:?} of node {host}"));
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
            Kind::Partition => {
                let (one, other) = (host as u32, below(self.hosts.len()) as u32);
                if one != other {
                    self.network.partition(one, other, true);
                    self.weather.plan(now + span(MAX_OUTAGE), Plan::Heal(one, other));
                }
            }
            Kind::Stall => self.hosts[host].stall(now + span(MAX_OUTAGE)),
            Kind::Expulsion if is_whole => {
                self.hosts[host].is_expelled = true;
                self.hosts[host].send(Event::Expelled, now);
                self.note_cut_off(host);
                self.weather.plan(now + span(MAX_OUTAGE), Plan::Return(host));
            }
            Kind::Drain if is_whole => {
                self.hosts[host].drain();
                self.weather.plan(now + MAX_OUTAGE + span(MAX_OUTAGE), Plan::Return(host));
            }
            Kind::Death | Kind::Expulsion | Kind::Drain => {}
        }
    }
}
