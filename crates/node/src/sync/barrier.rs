//! A barrier at its home: which nodes have parties, and how many have arrived. Owns [`Barrier`].
//! Engine thread only.
//!
//! A node tells how many handles its clients have, and how many calls wait at the barrier. When as many
//! calls wait as the barrier has parties, all nodes are told that they pass.
//!
//! Invariants: a generation is passed once, by as many calls as there are parties, and each of these
//! calls has another index. A broken barrier is passed no more, and ends with its last handle.

use std::collections::BTreeMap;

use plasmon::sync::{LockInfo, SyncKind};
use plasmon::text::printable;
use plasmon::{Error, ErrorKind, NodeId};

use super::frames::{Meeting, Party as Process};

/// Message of a home to a node about a barrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// The first `count` calls of the node pass, with the indices from `first` on.
    Passed { node: NodeId, generation: u64, first: u32, count: u32 },
    /// The barrier is broken.
    Broken { node: NodeId, why: String },
}

/// The parties of one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Party {
    handles: u32,
    /// Number of calls that wait for the present generation.
    arrived: u32,
    /// The generation that the node waits for once it has heard what it was told.
    generation: u64,
    /// First index of the calls that passed the generation before.
    first: u32,
    /// Number of calls that passed the generation before.
    count: u32,
    /// Number of handles that were closed so far.
    left: u32,
    /// The process that has had a handle for the longest, and its place in the order of such processes.
    pid: u32,
    order: u64,
    /// Whether the node was told that the barrier is broken.
    heard: bool,
}

/// A barrier at its home.
#[derive(Debug)]
pub(super) struct Barrier {
    name: String,
    owner: Option<u32>,
    parties: u32,
    /// The number that distinguishes the barrier from others that had its name before.
    life: u64,
    generation: u64,
    nodes: BTreeMap<NodeId, Party>,
    /// Whether a home before this one knew the barrier.
    is_taken: bool,
    /// The next place in the order of the parties' processes.
    next_order: u64,
    broken: Option<String>,
}

impl Barrier {
    pub(super) fn new(row: &Meeting, life: u64) -> Self {
        Self {
            name: row.name.clone(),
            owner: row.owner,
            parties: row.parties,
            life,
            generation: 0,
            nodes: BTreeMap::new(),
            is_taken: row.life != 0,
            next_order: 0,
            broken: None,
        }
    }

    pub(super) fn life(&self) -> u64 {
        self.life
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Refuses a further handle that does not fit.
    ///
    /// # Errors
    /// `Invalid` if the barrier has another number of parties; `Broken` if the barrier is broken.
    pub(super) fn ensure_joins(&self, parties: u32) -> Result<(), Error> {
        if parties != self.parties {
            return Err(differs(&self.name, (self.parties, parties), self.eldest()));
        }
        match &self.broken {
            Some(why) => Err(still_broken(why, self.eldest())),
            None => Ok(()),
        }
    }

    /// Returns the party that has been there for the longest.
    pub(super) fn eldest(&self) -> Option<Process> {
        let known = self.nodes.iter().filter(|(_, party)| party.handles > 0 && party.pid != 0);
        let (node, party) = known.min_by_key(|(_, party)| party.order)?;
        Some(Process { node: *node, pid: party.pid })
    }

    /// Takes note of the parties that a node tells of.
    pub(super) fn gather(&mut self, node: NodeId, row: &Meeting) {
        if row.life != 0 && row.life != self.life {
            // The node remembers an earlier barrier of the name.
            return;
        }
        let (waits, present) = (self.arrived() > 0, self.generation);
        // A call that has just arrived waits for the present generation.
        let generation = if row.life == 0 { present } else { row.generation };
        let party =
            self.nodes.entry(node).or_insert(Party { generation, left: row.left, ..Party::default() });
        let leaves = row.left > party.left;
        (party.handles, party.left) = (row.handles, row.left);
        if party.pid != row.pid {
            (party.pid, party.order) = (row.pid, self.next_order);
            self.next_order += 1;
        }
        party.heard &= row.arrived == 0 || row.broken.is_some();
        if row.life == 0 {
            return;
        }
        party.arrived = match party.generation.saturating_sub(row.generation) {
            0 => row.arrived,
            // The node has not heard yet that some of these calls have passed.
            _ => row.arrived.saturating_sub(party.count),
        };
        if row.generation >= party.generation {
            (party.generation, party.first, party.count) = (row.generation, row.first, row.count);
        }
        self.generation = self.generation.max(row.generation);
        if let Some(why) = &row.broken {
            self.break_up(why.clone());
        } else if leaves && waits {
            self.break_up(format!(
                "barrier '{}' is broken: a party on node {node} closed it while others waited",
                printable(&self.name)
            ));
        }
    }

    /// Breaks the barrier, if it is not broken yet.
    pub(super) fn break_up(&mut self, why: String) {
        self.broken.get_or_insert(why);
    }

    /// Takes note of nodes that have gone. The barrier is broken if one of them had parties.
    pub(super) fn lose(&mut self, gone: &[NodeId]) {
        for node in gone {
            if self.nodes.remove(node).is_some_and(|party| party.handles > 0) {
                let name = printable(&self.name);
                self.break_up(format!(
                    "barrier '{name}' is broken: node {node} has gone, and parties with it"
                ));
            }
        }
    }

    /// Takes note that all members have told of their parties. If members have gone since, parties that
    /// only the former home knew may have gone with them. Then the barrier is broken.
    pub(super) fn end_takeover(&mut self, has_lost: bool) {
        let handles: u64 = self.nodes.values().map(|party| u64::from(party.handles)).sum();
        let is_taken = std::mem::take(&mut self.is_taken) && has_lost;
        if is_taken && self.arrived() > 0 && handles < u64::from(self.parties) {
            let name = printable(&self.name);
            self.break_up(format!("barrier '{name}' is broken: a node has gone that may have had parties"));
        }
    }

    /// Number of calls that wait for the present generation.
    fn arrived(&self) -> u64 {
        let present = self.nodes.values().filter(|party| party.generation == self.generation);
        present.map(|party| u64::from(party.arrived)).sum()
    }

    /// Whether no client has a handle.
    pub(super) fn is_over(&self) -> bool {
        self.nodes.values().all(|party| party.handles == 0 && party.arrived == 0)
    }

    /// Passes the barrier if all parties have arrived. Returns the messages for the nodes.
    pub(super) fn advance(&mut self) -> Vec<Told> {
        if let Some(why) = &self.broken {
            let waits = self.nodes.iter_mut().filter(|(_, party)| !party.heard);
            let told = waits.map(|(node, party)| {
                (party.arrived, party.heard) = (0, true);
                Told::Broken { node: *node, why: why.clone() }
            });
            return told.collect();
        }
        let mut told = self.tell_late();
        while self.parties > 0 && self.arrived() >= u64::from(self.parties) {
            let (generation, mut first) = (self.generation, 0);
            self.generation += 1;
            for (node, party) in self.nodes.iter_mut().filter(|(_, one)| one.generation == generation) {
                let count = party.arrived.min(self.parties - first);
                told.push(Told::Passed { node: *node, generation, first, count });
                *party = Party {
                    arrived: party.arrived - count,
                    generation: generation + 1,
                    first,
                    count,
                    ..*party
                };
                first += count;
            }
        }
        told
    }

    /// Tells nodes of a generation that others have passed by the decision of a former home. The calls of
    /// these nodes get the indices that are left.
    fn tell_late(&mut self) -> Vec<Told> {
        let Some(passed) = self.generation.checked_sub(1) else { return Vec::new() };
        let mut taken: Vec<(u32, u32)> = self
            .nodes
            .values()
            .filter(|party| party.generation == self.generation && party.count > 0)
            .map(|party| (party.first, party.count))
            .collect();
        taken.sort_unstable();
        let mut free = Vec::new();
        let mut at = 0;
        for (first, count) in taken {
            free.push((at, first.max(at)));
            at = at.max(first.saturating_add(count));
        }
        free.push((at, self.parties.max(at)));
        free.retain(|(from, to)| from < to);
        free.reverse();
        let mut told = Vec::new();
        let late = self.nodes.iter_mut().filter(|(_, party)| party.generation < self.generation);
        for (node, party) in late {
            let mut waits = if party.generation == passed { party.arrived } else { 0 };
            (party.generation, party.count) = (self.generation, 0);
            loop {
                let (first, to) = free.pop().unwrap_or((0, 0));
                let count = waits.min(to - first);
                told.push(Told::Passed { node: *node, generation: passed, first, count });
                (waits, party.arrived) = (waits - count, party.arrived - count);
                (party.first, party.count) = (first, party.count + count);
                if first + count < to {
                    free.push((first + count, to));
                }
                if waits == 0 || free.is_empty() {
                    break;
                }
            }
        }
        told
    }

    /// Whether a user sees the barrier in a list.
    pub(super) fn is_seen_by(&self, user: u32) -> bool {
        user == 0 || self.owner.is_none_or(|owner| owner == user)
    }

    /// Returns the barrier's row in a list.
    pub(super) fn info(&self, home: NodeId) -> LockInfo {
        let handles: u64 = self.nodes.values().map(|party| u64::from(party.handles)).sum();
        LockInfo {
            name: self.name.clone(),
            kind: SyncKind::Barrier,
            owner: self.owner,
            home,
            shared: false,
            holders: Vec::new(),
            held: handles.try_into().unwrap_or(u32::MAX),
            waiting: self.arrived().try_into().unwrap_or(u32::MAX),
            parties: self.parties,
            generation: self.generation,
            abandoned: None,
        }
    }
}

/// Makes the error for a handle to a barrier that has other parties.
pub(super) fn differs(name: &str, (has, wanted): (u32, u32), eldest: Option<Process>) -> Error {
    let (name, whose) = (printable(name), eldest_for_people(eldest));
    let text = format!("barrier '{name}' has {has} parties, and not {wanted}{whose}");
    Error::new(ErrorKind::Invalid, text)
}

/// Makes the error for a handle to a barrier that was broken before.
pub(super) fn still_broken(why: &str, eldest: Option<Process>) -> Error {
    let whose = eldest_for_people(eldest);
    let text = format!(
        "{why}. This barrier is an earlier one of the name, which is free when all have closed their handles \
         to it{whose}"
    );
    Error::new(ErrorKind::Broken, text)
}

/// Says for people which party has been at a barrier for the longest.
pub(super) fn eldest_for_people(eldest: Option<Process>) -> String {
    eldest.map_or_else(String::new, |Process { node, pid }| {
        format!(
            ". Process {pid} on node {node} has had a handle for the longest: if it is stopped, or of an \
             earlier run, end it"
        )
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 16])
    }

    fn row(handles: u32, arrived: u32, generation: u64) -> Meeting {
        Meeting {
            name: "a".to_owned(),
            owner: None,
            parties: 4,
            life: 9,
            handles,
            arrived,
            generation,
            first: 0,
            count: 0,
            left: 0,
            pid: 0,
            broken: None,
        }
    }

    fn barrier() -> Barrier {
        Barrier::new(&row(0, 0, 0), 9)
    }

    fn passed(at: u8, generation: u64, first: u32, count: u32) -> Told {
        Told::Passed { node: node(at), generation, first, count }
    }

    #[test]
    fn all_pass_when_as_many_have_arrived_as_there_are_parties() {
        let mut barrier = barrier();
        barrier.gather(node(1), &row(2, 2, 0));
        barrier.gather(node(2), &row(3, 1, 0));
        assert!(barrier.advance().is_empty());
        barrier.gather(node(2), &row(3, 3, 0));
        assert_eq!(barrier.advance(), [passed(1, 0, 0, 2), passed(2, 0, 2, 2)]);
        // One more call had arrived, and waits for the next generation. The node tells of this call
        // before it has heard that the others passed.
        barrier.gather(node(2), &row(3, 3, 0));
        assert_eq!(barrier.info(node(1)).waiting, 1);
        barrier.gather(node(2), &row(3, 2, 1));
        barrier.gather(node(1), &row(2, 2, 1));
        assert_eq!(barrier.advance(), [passed(1, 1, 0, 2), passed(2, 1, 2, 2)]);
        assert_eq!(barrier.generation(), 2);
    }

    #[test]
    fn who_closes_it_while_others_wait_breaks_it() {
        let mut barrier = barrier();
        barrier.gather(node(1), &row(2, 0, 0));
        barrier.gather(node(1), &Meeting { left: 1, ..row(1, 0, 0) });
        assert_eq!(barrier.ensure_joins(4), Ok(()), "nobody waited");
        assert_eq!(barrier.ensure_joins(5).expect_err("others").kind(), ErrorKind::Invalid);
        barrier.gather(node(2), &row(1, 1, 0));
        barrier.gather(node(1), &Meeting { left: 2, ..row(0, 0, 0) });
        let told = barrier.advance();
        assert!(matches!(&told[..], [Told::Broken { .. }, Told::Broken { .. }]), "{told:?}");
        assert!(barrier.advance().is_empty(), "both were told");
        barrier.gather(node(2), &row(1, 1, 0));
        let told = barrier.advance();
        assert!(matches!(&told[..], [Told::Broken { node: one, .. }] if *one == node(2)), "{told:?}");
        assert_eq!(barrier.ensure_joins(4).expect_err("broken").kind(), ErrorKind::Broken);
        assert!(!barrier.is_over());
        barrier.gather(node(2), &row(0, 0, 0));
        assert!(barrier.is_over());
    }

    #[test]
    fn who_comes_too_late_learns_of_the_party_that_was_there_first() {
        let mut barrier = barrier();
        assert_eq!(barrier.eldest(), None);
        barrier.gather(node(9), &Meeting { pid: 90, ..row(1, 0, 0) });
        barrier.gather(node(1), &Meeting { pid: 10, ..row(1, 0, 0) });
        let is = |at, pid| Some(Process { node: node(at), pid });
        assert_eq!(barrier.eldest(), is(9, 90));
        barrier.break_up("process 10 has ended".to_owned());
        let refused = barrier.ensure_joins(4).expect_err("broken");
        let text = refused.to_string();
        assert!(text.contains("process 10 has ended") && text.contains("an earlier one"), "{text}");
        let eldest = format!("Process 90 on node {}", node(9));
        assert!(text.contains(&eldest), "{text}");
        let refused = barrier.ensure_joins(5).expect_err("another number").to_string();
        assert!(refused.contains(&eldest), "{refused}");
        // The eldest closes its handle, another one of its node does not.
        barrier.gather(node(9), &Meeting { pid: 91, left: 1, ..row(1, 0, 0) });
        assert_eq!(barrier.eldest(), is(1, 10));
    }

    #[test]
    fn a_node_that_goes_breaks_it_if_it_had_parties() {
        let mut barrier = barrier();
        barrier.gather(node(1), &row(1, 1, 0));
        barrier.lose(&[node(3)]);
        assert!(barrier.advance().is_empty());
        barrier.gather(node(3), &Meeting { life: 0, ..row(1, 0, 0) });
        barrier.lose(&[node(3)]);
        assert!(matches!(&barrier.advance()[..], [Told::Broken { .. }]));
    }

    #[test]
    fn what_a_former_home_has_decided_holds_for_all() {
        let mut barrier = barrier();
        // Node 2 has passed with the indices 1 and 2. Nodes 1 and 3 have not heard of that.
        barrier.gather(node(2), &Meeting { first: 1, count: 2, ..row(2, 0, 1) });
        barrier.gather(node(1), &row(1, 1, 0));
        barrier.gather(node(3), &row(1, 1, 0));
        assert_eq!(barrier.advance(), [passed(1, 0, 0, 1), passed(3, 0, 3, 1)]);
        assert!(barrier.advance().is_empty());
        let mut split = self::barrier();
        split.gather(node(2), &Meeting { first: 1, count: 2, ..row(2, 0, 1) });
        split.gather(node(1), &row(2, 2, 0));
        assert_eq!(split.advance(), [passed(1, 0, 0, 1), passed(1, 0, 3, 1)]);
        // Rows of an earlier barrier of the same name do not count.
        split.gather(node(4), &Meeting { life: 8, ..row(0, 0, 7) });
        assert_eq!(split.generation(), 1);
    }

    proptest! {
        #[test]
        fn a_generation_is_passed_by_as_many_as_there_are_parties(
            acts in prop::collection::vec((1u8..5, 0u32..4), 1..200),
        ) {
            let mut barrier = barrier();
            let mut nodes = [(0u32, 0u64, 0u32, 0u32); 5];
            (1..5).for_each(|at| barrier.gather(node(at), &Meeting { life: 0, ..row(9, 0, 0) }));
            for (at, more) in acts {
                let (arrived, generation, first, count) = &mut nodes[usize::from(at)];
                *arrived += more;
                let said = row(9, *arrived, *generation);
                barrier.gather(node(at), &Meeting { first: *first, count: *count, ..said });
                let mut indices: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
                for told in barrier.advance() {
                    let Told::Passed { node: to, generation, first, count } = told else {
                        panic!("nobody breaks it")
                    };
                    let to = (1..5).find(|at| node(*at) == to).expect("a node");
                    let (arrived, ..) = nodes[usize::from(to)];
                    nodes[usize::from(to)] = (arrived - count, generation + 1, first, count);
                    // Nodes without calls are told too.
                    if count > 0 {
                        indices.entry(generation).or_default().extend(first..first + count);
                    }
                }
                for (generation, mut all) in indices {
                    all.sort_unstable();
                    prop_assert_eq!(all, [0, 1, 2, 3], "generation {}", generation);
                }
            }
        }
    }
}
