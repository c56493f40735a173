//! The registry: the one list of members, in the node that embeds the coordinator.
//!
//! Owns the list of members and the records of volumes. Control thread. One task for each connection talks to
//! a node; the list is behind a lock that is never held across an await. A node is a member for as long as
//! its connection lives and carries a message at least once a lease. Every change makes a new epoch, and
//! every node is told the change. A node gets the list of all members only when it joins, or when it is too
//! slow for the remembered changes.
//!
//! The records are in memory alone. When the coordinator begins anew, nodes that join again tell the records
//! of the volumes that they have. Such a record does not change for a while, in which nodes may join that
//! know a later one. If a volume of its name was made meanwhile, one of the two gets another name: the new
//! one while the coordinator is young, afterwards the one that came back.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use std::{io, iter};

use plasmon::NodeId;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use super::admission;
use super::guard::Guard;
use super::messages::{
    BEATS_A_LEASE, FromCoordinator, FromNode, MAX_MEMBERS_A_MESSAGE, MAX_RECORDS_A_MESSAGE, Wire,
    is_other_protocol, parse_node,
};
use super::records::{Proposal, Proposed, RecordNews, Records, VolumeRecord, settling_time};
use crate::kernel::seldom::Seldom;
use crate::net::door::Place;
use crate::net::members::{Change, Member, View};

/// The largest epoch that a node may claim to have seen. Changes of members never reach it.
const LAST_EPOCH: u64 = 1 << 62;
/// Number of the last changes that are remembered, for nodes that were not told of them yet.
const MAX_REMEMBERED_CHANGES: usize = 256;

/// Number of nodes of former coordinators that are remembered.
const MAX_LIVES: usize = 64;
/// Maximum number of names that are tried for a volume whose name another volume has.
const MAX_NAMES: usize = 4;

/// The one list of members.
pub(crate) struct Registry {
    node: NodeId,
    lease: Duration,
    members: Mutex<Members>,
    changed: watch::Sender<Arc<View>>,
    volumes: Mutex<Volumes>,
    begun: Instant,
    recorded: watch::Sender<Arc<Records>>,
    /// The nodes of former coordinators that members have followed.
    lives: watch::Sender<Vec<NodeId>>,
}

/// The records of volumes.
#[derive(Default)]
struct Volumes {
    records: Arc<Records>,
    /// For each volume, the time at which a node of a former coordinator first told its record.
    told: HashMap<u32, Instant>,
    /// Numbers of volumes that were removed. What nodes of a former coordinator tell of them is ignored.
    removed: BTreeSet<u32>,
}

struct Members {
    view: Arc<View>,
    /// The last changes. Each begins at the epoch to which the one before led.
    changes: VecDeque<Arc<Change>>,
}

impl Registry {
    /// Makes the list of a cluster of one node.
    pub(crate) fn new(own: Member, lease: Duration) -> Arc<Self> {
        let node = own.node;
        let view = Arc::new(View { epoch: 1, members: vec![own] });
        let (changed, _) = watch::channel(Arc::clone(&view));
        let members = Mutex::new(Members { view, changes: VecDeque::new() });
        let (recorded, _) = watch::channel(Arc::default());
        let (lives, _) = watch::channel(Vec::new());
        let (volumes, begun) = (Mutex::default(), Instant::now());
        Arc::new(Self { node, lease, members, changed, volumes, begun, recorded, lives })
    }

    /// Returns the view, now and after every change.
    pub(crate) fn views(&self) -> watch::Receiver<Arc<View>> {
        self.changed.subscribe()
    }

    /// Returns the records of volumes, now and after every change.
    pub(crate) fn records(&self) -> watch::Receiver<Arc<Records>> {
        self.recorded.subscribe()
    }

    /// Returns the nodes of the former coordinators that members have followed, after every change.
    pub(crate) fn lives(&self) -> watch::Receiver<Vec<NodeId>> {
        self.lives.subscribe()
    }

    /// Changes a record, if the record still is the one before the proposed one.
    pub(crate) fn propose(&self, proposal: &Proposal) -> Proposed {
        let Proposal { ask, record, removes } = proposal;
        let mut volumes = self.volumes.lock().expect("no holder of this lock panics");
        let settles = settling_time(self.lease);
        if volumes.told.get(&record.volume).is_some_and(|told| told.elapsed() < settles) {
            let text =
                "the coordinator has begun anew, and waits for members that may know more of the volume";
            return Proposed { ask: *ask, outcome: Err(text.into()) };
        }
        if volumes.records.allows(proposal) {
            let mut records = Records::clone(&volumes.records);
            records.change(proposal);
            volumes.told.remove(&record.volume);
            if *removes {
                volumes.removed.insert(record.volume);
            }
            volumes.records = Arc::new(records);
            self.recorded.send_replace(Arc::clone(&volumes.records));
        }
        let now = volumes.records.get(&record.name).map(|now| VolumeRecord::clone(now));
        Proposed { ask: *ask, outcome: Ok(now) }
    }

    /// Enters the records that a node of a former coordinator has followed.
    fn restore(&self, records: Vec<VolumeRecord>) {
        let mut volumes = self.volumes.lock().expect("no holder of this lock panics");
        let mut table = Records::clone(&volumes.records);
        let is_young = self.begun.elapsed() < settling_time(self.lease);
        for mut record in records.into_iter().filter(VolumeRecord::is_valid) {
            let volume = record.volume;
            let named = |record: VolumeRecord| RecordNews { name: record.name.clone(), record: Some(record) };
            if let Some(known) = table.of_volume(volume) {
                if known.number < record.number && volumes.told.contains_key(&volume) {
                    record.name.clone_from(&known.name);
                    table.follow(named(record));
                }
                continue;
            }
            if volumes.removed.contains(&volume) {
                continue;
            }
            if let Some(other) = table.get(&record.name).cloned() {
                let renames_other = is_young && !volumes.told.contains_key(&other.volume);
                let apart = if renames_other { other.apart() } else { record.apart() };
                let mut names = iter::successors(Some(apart), |apart| Some(apart.apart())).take(MAX_NAMES);
                let Some(apart) = names.find(|apart| table.get(&apart.name).is_none()) else {
                    warn!("volume number {volume} is left out: its name '{}' is taken", record.name);
                    continue;
                };
                let (name, new) = (&record.name, &apart.name);
                warn!("there are two volumes '{name}' since the coordinator began anew: one is '{new}' now");
                match renames_other {
                    true => table.follow(named(apart)),
                    false => record = apart,
                }
            }
            volumes.told.insert(volume, Instant::now());
            table.follow(named(record));
        }
        if table != *volumes.records {
            volumes.records = Arc::new(table);
            self.recorded.send_replace(Arc::clone(&volumes.records));
        }
    }

    /// Serves the connection of a node until it ends.
    pub(crate) async fn serve(
        self: Arc<Self>,
        guard: Guard,
        stream: TcpStream,
        peer: SocketAddr,
        mut place: Place,
    ) {
        static NOT_LET_IN: Seldom = Seldom::new();
        let let_in = place.hold(self.let_in(&guard, stream)).await;
        // The node is a member now, or leaves.
        drop(place);
        let (mut wire, member) = match let_in.unwrap_or_else(|displaced| Err(displaced.to_string())) {
            Ok(let_in) => let_in,
            Err(reason) => {
                if let Some(unsaid) = NOT_LET_IN.due() {
                    warn!(%peer, unsaid, "not let in: {reason}");
                }
                return;
            }
        };
        let (node, listen) = (member.node, member.listen.clone());
        info!(%node, listen, "a node joined");
        match self.attend(&mut wire).await {
            Ok(()) => info!(%node, listen, "a node left"),
            Err(error) => warn!(%node, listen, %error, "a node is taken for dead"),
        }
        self.remove(&member);
    }

    /// Makes a node that has connected a member; the error says why not.
    async fn let_in(&self, guard: &Guard, stream: TcpStream) -> Result<(Wire, Member), String> {
        let mut wire = guard.accept(stream).await.map_err(|turned| turned.to_string())?;
        match timeout(self.lease, self.admit(&mut wire)).await {
            Ok(Ok(member)) => Ok((wire, member)),
            Ok(Err(error)) if guard.secret().is_none() && is_other_protocol(&error) => {
                // The other end may be gone already.
                let _ = timeout(self.lease, wire.turn_tls_away()).await;
                Err("it uses a secret, and this cluster does not: start it without --secret-file, or all \
                     nodes of the cluster with one secret"
                    .into())
            }
            Ok(Err(error)) => Err(format!("it did not join: {error}")),
            Err(_) => Err("it did not ask to join".into()),
        }
    }

    /// Answers the request to join.
    async fn admit(&self, wire: &mut Wire) -> io::Result<Member> {
        let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
        let Some(FromNode::Join { protocol, member, epoch, coordinator, records }) = wire.receive().await?
        else {
            return Err(invalid("its first message was not a request to join".into()));
        };
        let former = coordinator.as_deref().map(parse_node).transpose()?.filter(|node| *node != self.node);
        if let Err(reason) = self.add(protocol, &member, epoch, former) {
            wire.send(&FromCoordinator::Refused(reason.clone())).await?;
            return Err(invalid(reason));
        }
        if former.is_some() {
            self.restore(records);
        }
        Ok(member)
    }

    /// Enters a member that has followed views up to an epoch, of the coordinator in the node `former` if
    /// that is another one; the error says why not.
    fn add(&self, protocol: u32, member: &Member, epoch: u64, former: Option<NodeId>) -> Result<(), String> {
        let mut members = self.lock();
        admission::check(protocol, member, &members.view.members)?;
        if member.node == self.node {
            return Err(format!("node {} is the coordinator's own", member.node));
        }
        if epoch > LAST_EPOCH {
            return Err(format!(
                "it claims to have followed the cluster to epoch {epoch}, which is impossible"
            ));
        }
        // This is known before the member is.
        former.into_iter().for_each(|former| self.note_life(former));
        let mut view = View::clone(&members.view);
        view.members.retain(|other| other.node != member.node);
        view.members.push(member.clone());
        // A coordinator that starts again goes on from the members' epoch.
        view.epoch = view.epoch.max(epoch);
        self.announce(&mut members, view);
        Ok(())
    }

    /// Takes note of the node of a former coordinator.
    fn note_life(&self, node: NodeId) {
        self.lives.send_if_modified(|lives| {
            let is_new = !lives.contains(&node);
            if is_new {
                lives.push(node);
                let surplus = lives.len().saturating_sub(MAX_LIVES);
                lives.drain(..surplus);
            }
            is_new
        });
    }

    /// Sends views and heartbeats and receives heartbeats, until the node leaves or falls silent.
    async fn attend(&self, wire: &mut Wire) -> io::Result<()> {
        let mut views = self.views();
        let mut told = Arc::clone(&views.borrow_and_update());
        let mut records = self.records();
        let mut told_records = Arc::clone(&records.borrow_and_update());
        self.welcome(wire, &told, &told_records).await?;
        let mut beat = interval(self.lease / BEATS_A_LEASE);
        // Silence is counted in beats of this node, not in time: while this process stands still, it hears
        // nobody, although the others are not silent.
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut silent_beats = 0;
        loop {
            tokio::select! {
                message = wire.receive() => match message? {
                    Some(FromNode::Heartbeat) => silent_beats = 0,
                    Some(FromNode::Propose(proposal)) => {
                        silent_beats = 0;
                        let proposed = FromCoordinator::Proposed(self.propose(&proposal));
                        timeout(self.lease, wire.send(&proposed)).await??;
                    }
                    Some(FromNode::Leave) => return Ok(()),
                    Some(FromNode::Join { .. }) => {
                        return Err(io::Error::new(io::ErrorKind::InvalidData, "it asked to join twice"));
                    }
                    None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its connection closed")),
                },
                _ = views.changed() => {
                    let view = Arc::clone(&views.borrow_and_update());
                    for change in self.changes(&told, &view) {
                        let changed = FromCoordinator::Changed(Change::clone(&change));
                        timeout(self.lease, wire.send(&changed)).await??;
                    }
                    told = view;
                }
                _ = records.changed() => {
                    let now = Arc::clone(&records.borrow_and_update());
                    self.tell(wire, now.since(&told_records)).await?;
                    told_records = now;
                }
                _ = beat.tick() => {
                    silent_beats += 1;
                    if silent_beats > BEATS_A_LEASE {
                        return Err(io::Error::new(
                            io::ErrorKind::TimedOut,
                            format!("it was silent for {:?}", self.lease),
                        ));
                    }
                    timeout(self.lease, wire.send(&FromCoordinator::Heartbeat)).await??;
                }
            }
        }
    }

    /// Tells a node of records.
    async fn tell(&self, wire: &mut Wire, news: Vec<RecordNews>) -> io::Result<()> {
        for news in news.chunks(MAX_RECORDS_A_MESSAGE) {
            timeout(self.lease, wire.send(&FromCoordinator::Records(news.to_vec()))).await??;
        }
        Ok(())
    }

    /// Tells a joining node who the members are, and which volumes there are.
    async fn welcome(&self, wire: &mut Wire, view: &View, records: &Records) -> io::Result<()> {
        let (first, more) = view.members.split_at(view.members.len().min(MAX_MEMBERS_A_MESSAGE));
        let welcome = FromCoordinator::Welcome {
            view: View { epoch: view.epoch, members: first.to_vec() },
            more: more.len(),
            coordinator: self.node.to_string(),
            lease_ms: self.lease.as_millis() as u64,
            records: records.len(),
        };
        timeout(self.lease, wire.send(&welcome)).await??;
        for members in more.chunks(MAX_MEMBERS_A_MESSAGE) {
            timeout(self.lease, wire.send(&FromCoordinator::More(members.to_vec()))).await??;
        }
        self.tell(wire, records.since(&Records::default())).await
    }

    /// The changes that lead from one view to the other: single steps if they are remembered, else one that
    /// skips views.
    pub(super) fn changes(&self, told: &View, view: &View) -> Vec<Arc<Change>> {
        let members = self.lock();
        let since = members.changes.iter().skip_while(|change| change.before != told.epoch);
        let steps: Vec<_> = since.take_while(|change| change.epoch <= view.epoch).cloned().collect();
        drop(members);
        match steps.last() {
            Some(last) if last.epoch == view.epoch => steps,
            _ => vec![Arc::new(Change { skips: true, ..view.since(told) })],
        }
    }

    /// Removes this incarnation of a node.
    fn remove(&self, gone: &Member) {
        let mut members = self.lock();
        let mut view = View::clone(&members.view);
        view.members.retain(|member| (member.node, member.incarnation) != (gone.node, gone.incarnation));
        if view.members.len() != members.view.members.len() {
            self.announce(&mut members, view);
        }
    }

    fn announce(&self, members: &mut Members, mut view: View) {
        view.epoch += 1;
        let change = view.since(&members.view);
        if members.changes.len() == MAX_REMEMBERED_CHANGES {
            members.changes.pop_front();
        }
        members.changes.push_back(Arc::new(change));
        members.view = Arc::new(view);
        self.changed.send_replace(Arc::clone(&members.view));
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::embedded::Leading;
    use crate::control::member::{Coordinator, News};

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 16])
    }

    fn record(volume: u32, home: u8, number: u64) -> VolumeRecord {
        VolumeRecord { name: "main".into(), volume, owner: 7, number, home: node(home), mirrors: vec![] }
    }

    #[test]
    fn of_two_volumes_of_one_name_none_is_lost() {
        let own = Member { node: node(1), incarnation: 1, listen: String::new(), fabrics: vec![], token: 0 };
        let registry = Registry::new(own, Duration::from_secs(2));
        let named =
            |name: &str| registry.records().borrow().get(name).map(|record| (record.volume, record.number));
        let proposal = Proposal { ask: 1, record: record(7, 1, 1), removes: false };
        assert_eq!(registry.propose(&proposal).outcome, Ok(Some(record(7, 1, 1))));
        let before = registry.records().borrow().clone();
        // The volume was made before the nodes came back that have a volume of the name.
        registry.restore(vec![record(5, 2, 3)]);
        assert_eq!((named("main"), named("main.7")), (Some((5, 3)), Some((7, 1))));
        let news = registry.records().borrow().since(&before);
        let names: Vec<_> = news.iter().map(|news| news.name.as_str()).collect();
        assert_eq!(names, ["main.7", "main"], "the volume has its new name before it loses the old one");
        registry.restore(vec![record(5, 3, 4), record(6, 4, 9)]);
        assert_eq!(
            (named("main"), named("main.6")),
            (Some((5, 4)), Some((6, 9))),
            "the first keeps the name"
        );
        registry.restore(vec![record(6, 5, 10), record(5, 2, 3)]);
        assert_eq!((named("main"), named("main.6")), (Some((5, 4)), Some((6, 10))));
        // A name that another volume has is not taken from it.
        registry.restore(vec![VolumeRecord { name: "main.9".into(), ..record(8, 2, 1) }, record(9, 2, 1)]);
        assert_eq!((named("main.9"), named("main.9.9")), (Some((8, 1)), Some((9, 1))));
        let next = VolumeRecord { name: "main.7".into(), ..record(7, 2, 2) };
        let proposal = Proposal { ask: 2, record: next.clone(), removes: false };
        assert_eq!(registry.propose(&proposal).outcome, Ok(Some(next)), "it goes on under its name");
    }

    #[test]
    fn the_node_of_the_coordinator_follows_every_view() {
        let member = |number| Member {
            node: node(number),
            incarnation: 1,
            listen: String::new(),
            fabrics: vec![],
            token: 0,
        };
        let registry = Registry::new(member(1), Duration::from_secs(2));
        let mut own = Leading::new(node(1), &registry);
        let announce = |members: &[Member]| {
            let mut known = registry.lock();
            let view = View { members: members.to_vec(), ..View::clone(&known.view) };
            registry.announce(&mut known, view);
        };
        let test = async {
            own.join(&member(1)).await.expect("it is a member");
            announce(&[member(1), member(2)]);
            announce(&[member(1), member(2), member(3)]);
            announce(&[member(1), member(3)]);
            let mut told = Vec::new();
            for _ in 0..3 {
                match own.next().await {
                    Ok(News::View { view, skips }) => told.push((view.epoch, view.members.len(), skips)),
                    _ => panic!("it was told something else"),
                }
            }
            assert_eq!(told, [(2, 2, false), (3, 3, false), (4, 2, false)]);
            // Too many changes are not remembered.
            for number in 0..=MAX_REMEMBERED_CHANGES {
                announce(&[member(1), member(number as u8)]);
            }
            let Ok(News::View { view, skips }) = own.next().await else {
                panic!("it was told something else")
            };
            assert_eq!((view.epoch, skips), (registry.views().borrow().epoch, true));
        };
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(test);
    }

    #[test]
    fn a_coordinator_that_stood_still_takes_nobody_for_silent() {
        let lease = Duration::from_millis(20);
        let own = Member { node: node(1), incarnation: 1, listen: String::new(), fabrics: vec![], token: 0 };
        let registry = Registry::new(own, lease);
        let (near, far) = tokio::io::duplex(1 << 16);
        let (mut wire, mut member) = (Wire::new(near), Wire::new(far));
        let mut speaks = true;
        let test = async {
            let attended = registry.attend(&mut wire);
            let attending = async {
                for _ in 0..20 {
                    member.send(&FromNode::Heartbeat).await.unwrap();
                    // All tasks run on this thread, so no other task runs meanwhile.
                    let begun = Instant::now();
                    while begun.elapsed() < 2 * lease {
                        std::hint::spin_loop();
                    }
                    assert!(member.receive::<FromCoordinator>().await.unwrap().is_some(), "it has gone");
                }
                speaks = false;
                while member.receive::<FromCoordinator>().await.unwrap().is_some() {}
            };
            tokio::select! {
                result = attended => result,
                () = attending => panic!("the coordinator keeps its end"),
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(test).unwrap_err();
        assert_eq!((error.kind(), speaks), (io::ErrorKind::TimedOut, false), "{error}");
    }

    #[test]
    fn a_name_that_tells_volumes_apart_is_not_too_long() {
        let long = VolumeRecord { name: "ä".repeat(plasmon::wire::MAX_NAME_BYTES / 2), ..record(5, 1, 1) };
        let apart = long.apart();
        assert!(apart.is_valid() && apart.name.ends_with("ä.5"), "{}", apart.name);
    }
}
