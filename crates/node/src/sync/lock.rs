//! A lock at its home: which clients hold the lock, and which wait for it. Owns [`Lock`]. Engine thread only.
//!
//! Calls that wait get the lock in the order in which they came, and readers that stand together share
//! it. When a client lets go of the lock, others of the same node may be first, [`MAX_TURNS`] times and
//! [`MAX_RUN`] long: the data that the lock protects are at that node already.
//!
//! Invariants: one client holds the lock, or all that hold it share it. A token is larger than all
//! before. Times are nanoseconds of the home's clock, except `at_ns`.

use std::collections::VecDeque;
use std::time::Duration;

use plasmon::sync::{LockHolder, LockInfo, SHOWN_HOLDERS, SyncKind};
use plasmon::text::printable;
use plasmon::{Error, ErrorKind, NodeId};

use super::abandoned::Leaver;

/// Maximum number of calls that wait for a lock.
pub(super) const MAX_WAITING: usize = 1024;
/// How often in a row calls of the same node may be first.
const MAX_TURNS: u8 = 8;
/// How long calls of the same node may be first.
const MAX_RUN: Duration = Duration::from_millis(5);
/// How much longer than a lease a home waits for news of a guard or a wait.
pub(super) const MARGIN: Duration = Duration::from_secs(1);

/// Returns a span in nanoseconds.
pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// A client that waits for a lock, or holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) node: NodeId,
    /// The number that the node gave to the call and its guard.
    pub(super) number: u64,
    pub(super) shared: bool,
    pub(super) ttl_ns: u64,
    pub(super) pid: u32,
    pub(super) uid: u32,
    /// Time since which the call waits, or its guard holds the lock.
    pub(super) since: u64,
    /// Time at which the home last heard of the call or guard.
    pub(super) heard: u64,
    /// Time that the clock of the claim's node showed when it sent the news that was heard last.
    pub(super) at_ns: u64,
    /// Whether the call does not wait: it is refused if it does not get the lock at once.
    pub(super) eager: bool,
    /// Token of the guard; 0 while the call waits.
    pub(super) token: u128,
    /// The holder before the guard, if that died or lost the lock.
    pub(super) follows: Option<Leaver>,
}

impl Claim {
    fn is(&self, node: NodeId, number: u64) -> bool {
        self.node == node && self.number == number
    }

    /// Returns the client as one that has died, or lost the lock.
    fn leaver(&self, at: u64) -> Leaver {
        Leaver { node: self.node, pid: self.pid, uid: self.uid, token: self.token, at }
    }

    /// Returns the client as people are told of it.
    fn told(&self, now: u64) -> LockHolder {
        let Self { node, pid, uid, token, .. } = *self;
        LockHolder { node, pid, uid, token, age_ms: now.saturating_sub(self.since) / 1_000_000 }
    }

    /// Returns the time after which the claim's lease is over, unless the home hears of the claim.
    pub(super) fn late_after(&self) -> u64 {
        self.heard.saturating_add(self.ttl_ns).saturating_add(nanos(MARGIN))
    }

    /// Whether the claim's lease is over, because the home has not heard of the claim for too long.
    fn is_late(&self, now: u64) -> bool {
        self.late_after() < now
    }
}

/// How a guard, or a call that waited, has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The client has unlocked, or waits no longer.
    Unlocked,
    /// The client has died, or its lease was over.
    Lost,
    /// The node has taken no grant for the call.
    Untaken,
}

/// Message of a home to a node about a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// A call has the lock.
    Granted { node: NodeId, number: u64, at_ns: u64, token: u128, abandoned: bool },
    /// A call does not get the lock.
    Refused { node: NodeId, number: u64, error: Error },
}

/// State at a home of a call or guard that the home may have heard of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    /// The call waits.
    Waits,
    /// The call holds the lock. Its node may not have been told so yet.
    Holds(Said),
    /// The home knows nothing of the call or guard.
    Unknown,
}

/// A lock at its home.
#[derive(Debug)]
pub(super) struct Lock {
    name: String,
    owner: Option<u32>,
    holders: Vec<Claim>,
    waiting: VecDeque<Claim>,
    /// The user whose call made this entry.
    user: u32,
    /// The last holder, if it died or lost the lock, until another one has been told.
    pub(super) abandoned: Option<Leaver>,
    /// The node that last had the lock.
    last: Option<NodeId>,
    /// Number of times in a row that a call of that node got the lock before calls that waited longer.
    turns: u8,
    /// Time since which the lock has stayed at that node.
    run_began: u64,
}

impl Lock {
    pub(super) fn new(name: String, owner: Option<u32>, user: u32) -> Self {
        Self {
            name,
            owner,
            holders: Vec::new(),
            waiting: VecDeque::new(),
            user,
            abandoned: None,
            last: None,
            turns: 0,
            run_began: 0,
        }
    }

    pub(super) fn user(&self) -> u32 {
        self.user
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn owner(&self) -> Option<u32> {
        self.owner
    }

    /// Whether nobody holds the lock or waits for it.
    pub(super) fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.waiting.is_empty()
    }

    /// Takes note that a holder has gone of which nothing more is known.
    pub(super) fn lose_unknown(&mut self, home: NodeId, now: u64) {
        let unknown = Leaver { node: home, pid: 0, uid: self.user, token: 0, at: now };
        self.abandoned.get_or_insert(unknown);
    }

    /// Returns the holder with the smallest token, and the number of holders.
    pub(super) fn holder(&self, now: u64) -> (Option<LockHolder>, u32) {
        (self.holders.first().map(|claim| claim.told(now)), self.holders.len() as u32)
    }

    /// Whether the lock is free although calls wait that had waited before this home began.
    pub(super) fn has_old_waits(&self, began: u64) -> bool {
        self.holders.is_empty() && self.waiting.iter().any(|claim| claim.since < began)
    }

    /// Returns the longest time to live of the claims that wait.
    pub(super) fn longest_wait(&self) -> Option<u64> {
        self.waiting.iter().map(|claim| claim.ttl_ns).max()
    }

    pub(super) fn holders(&self) -> &[Claim] {
        &self.holders
    }

    /// Takes note of a call that wants the lock. Returns what to tell a call that has it already.
    ///
    /// # Errors
    /// `Full` if too many calls wait.
    pub(super) fn want(&mut self, claim: Claim, again: bool) -> Result<Option<Said>, Error> {
        match self.hear(claim.node, claim.number, claim.at_ns, claim.heard) {
            Heard::Waits => return Ok(None),
            Heard::Holds(said) => return Ok(Some(said)),
            Heard::Unknown => {}
        }
        if self.waiting.len() >= MAX_WAITING {
            let name = printable(&self.name);
            let text = format!("{MAX_WAITING} calls wait for lock '{name}' already: let some of them end");
            return Err(Error::new(ErrorKind::Full, text));
        }
        // Those who waited at a former home keep their order.
        let place = match again {
            true => self.waiting.partition_point(|other| other.since <= claim.since),
            false => self.waiting.len(),
        };
        self.waiting.insert(place, claim);
        Ok(None)
    }

    /// Takes note of news of a call or guard; returns its state.
    pub(super) fn hear(&mut self, node: NodeId, number: u64, at_ns: u64, now: u64) -> Heard {
        let mut all = self.holders.iter_mut().map(|claim| (claim, true));
        let mut waiting = self.waiting.iter_mut().map(|claim| (claim, false));
        let is = |(claim, _): &(&mut Claim, bool)| claim.is(node, number);
        let Some((claim, holds)) = all.find(is).or_else(|| waiting.find(is)) else { return Heard::Unknown };
        (claim.heard, claim.at_ns) = (now, at_ns);
        match holds {
            true => {
                let (token, abandoned) = (claim.token, claim.follows.is_some());
                Heard::Holds(Said::Granted { node, number, at_ns, token, abandoned })
            }
            false => Heard::Waits,
        }
    }

    /// Takes note of a guard that a former home has given.
    pub(super) fn adopt(&mut self, claim: Claim) {
        self.last = Some(claim.node);
        self.holders.push(claim);
    }

    /// Whether a guard may be valid beside the known guards.
    pub(super) fn has_place_for(&self, claim: &Claim) -> bool {
        self.holders.iter().all(|holder| holder.shared && claim.shared)
    }

    /// Gives the lock to the calls whose turn it is. Returns the messages for the nodes.
    pub(super) fn advance(&mut self, now: u64, mut mint: impl FnMut() -> u128) -> Vec<Said> {
        let mut said = Vec::new();
        loop {
            let next = match self.holders.first() {
                None => self.next(now),
                Some(holder) => {
                    let joins = |claim: &Claim| claim.shared && holder.shared;
                    self.waiting.front().is_some_and(joins).then_some(0)
                }
            };
            let Some(mut claim) = next.and_then(|at| self.waiting.remove(at)) else { break };
            if self.last != Some(claim.node) {
                (self.last, self.turns, self.run_began) = (Some(claim.node), 0, now);
            }
            (claim.token, claim.since, claim.eager) = (mint(), now, false);
            claim.follows = self.abandoned.take();
            let Claim { node, number, at_ns, token, .. } = claim;
            let abandoned = claim.follows.is_some();
            said.push(Said::Granted { node, number, at_ns, token, abandoned });
            self.holders.push(claim);
        }
        let holder = self.holder(now);
        let refuse = |claim: &Claim| {
            let holder = said_of(holder.clone(), (claim.node, claim.pid));
            let name = printable(&self.name);
            let text = format!("lock '{name}' is held: {holder}. Wait for it, or try again later");
            let (node, number) = (claim.node, claim.number);
            Said::Refused { node, number, error: Error::new(ErrorKind::Busy, text) }
        };
        said.extend(self.waiting.iter().filter(|claim| claim.eager).map(refuse));
        self.waiting.retain(|claim| !claim.eager);
        said
    }

    /// Returns the place in the queue of the call that gets the free lock next.
    fn next(&mut self, now: u64) -> Option<usize> {
        let may_jump = self.turns < MAX_TURNS && now.saturating_sub(self.run_began) < nanos(MAX_RUN);
        let same = |claim: &Claim| Some(claim.node) == self.last;
        let at = self.waiting.iter().position(same).filter(|_| may_jump).unwrap_or(0);
        self.turns += u8::from(at > 0);
        (!self.waiting.is_empty()).then_some(at)
    }

    /// Ends all waits. Returns what to tell them.
    pub(super) fn refuse_waiting(&mut self, error: &Error) -> Vec<Said> {
        let refuse = |Claim { node, number, .. }| Said::Refused { node, number, error: error.clone() };
        self.waiting.drain(..).map(refuse).collect()
    }

    /// Ends a guard or a wait; returns whether there was one.
    pub(super) fn release(&mut self, node: NodeId, number: u64, end: End, now: u64) -> bool {
        if let Some(at) = self.holders.iter().position(|claim| claim.is(node, number)) {
            let claim = self.holders.remove(at);
            match end {
                End::Unlocked => {}
                End::Lost => self.abandoned = Some(claim.leaver(now)),
                // Nobody was told that the holder before died.
                End::Untaken => self.abandoned = self.abandoned.or(claim.follows),
            }
            return true;
        }
        let before = self.waiting.len();
        self.waiting.retain(|claim| !claim.is(node, number));
        self.waiting.len() < before
    }

    /// Returns the time after which the first guard or wait may be late.
    pub(super) fn next_late(&self) -> u64 {
        self.holders.iter().chain(&self.waiting).map(Claim::late_after).min().unwrap_or(u64::MAX)
    }

    /// Ends the guards and waits of which nothing was heard for too long; returns whether there were any.
    pub(super) fn drop_late(&mut self, now: u64) -> bool {
        self.drop_where(|claim| claim.is_late(now), true, now)
    }

    /// Ends the waits of nodes that have gone, and with `guards_too` their guards; returns whether
    /// there were any.
    pub(super) fn drop_nodes(&mut self, gone: &[NodeId], guards_too: bool, now: u64) -> bool {
        self.drop_where(|claim| gone.contains(&claim.node), guards_too, now)
    }

    fn drop_where(&mut self, is_over: impl Fn(&Claim) -> bool, guards_too: bool, now: u64) -> bool {
        let before = self.holders.len() + self.waiting.len();
        self.waiting.retain(|claim| !is_over(claim));
        if let Some(last) = self.holders.iter().rfind(|claim| guards_too && is_over(claim)) {
            self.abandoned = Some(last.leaver(now));
            self.holders.retain(|claim| !is_over(claim));
        }
        self.holders.len() + self.waiting.len() < before
    }

    /// Whether a user sees the lock in a list.
    pub(super) fn is_seen_by(&self, user: u32) -> bool {
        user == 0 || self.owner.is_none_or(|owner| owner == user)
    }

    /// Returns the lock's row in a list.
    pub(super) fn info(&self, home: NodeId, now: u64) -> LockInfo {
        LockInfo {
            name: self.name.clone(),
            kind: SyncKind::Lock,
            owner: self.owner,
            home,
            shared: self.holders.first().is_some_and(|claim| claim.shared),
            holders: self.holders.iter().take(SHOWN_HOLDERS).map(|claim| claim.told(now)).collect(),
            held: self.holders.len() as u32,
            waiting: self.waiting.len() as u32,
            parties: 0,
            generation: 0,
            abandoned: self.abandoned.map(|by| by.told(now)),
        }
    }
}

/// Says for people who holds a lock, and since when. `asker` is the node and the process that is told.
pub(super) fn said_of((holder, held): (Option<LockHolder>, u32), asker: (NodeId, u32)) -> String {
    let Some(LockHolder { node, pid, uid, age_ms, .. }) = holder else {
        return "others are before this call".to_owned();
    };
    let who = match (node, pid) == asker {
        true => format!("this process ({pid})"),
        false => format!("process {pid} of user {uid} on node {node}"),
    };
    let others = match held {
        ..=1 => String::new(),
        held => format!(", and {} more share it", held - 1),
    };
    format!("{who} has held it for {:.1} s{others}", age_ms as f64 / 1000.0)
}

#[cfg(test)]
mod tests;
