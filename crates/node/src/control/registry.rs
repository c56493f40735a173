//! The registry: the one list of members, in the node that embeds the coordinator.
//!
//! Control thread. One task for each connection talks to a node; the list is behind a lock that is never
//! held across an await. A node is a member for as long as its connection lives and carries a message at
//! least once a lease. Every change makes a new epoch, and every node is told the change. A node gets the
//! list of all members only when it joins, or when it is too slow for the remembered changes.
//!
//! The registry has the records of volumes too. They are in memory alone: when the coordinator begins anew,
//! nodes that join again tell the records of the volumes that they have. Such a record does not change for a
//! while, in which nodes may join that know a later one.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use plasmon::NodeId;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, interval, timeout};
use tracing::{info, warn};

use super::admission;
use super::guard::Guard;
use super::messages::{
    FromCoordinator, FromNode, MAX_MEMBERS_A_MESSAGE, MAX_RECORDS_A_MESSAGE, Wire, is_other_protocol,
};
use super::records::{Proposal, Proposed, RecordNews, Records, VolumeRecord};
use crate::kernel::seldom::Seldom;
use crate::net::door::Place;
use crate::net::members::{Change, Member, View};

/// The largest epoch that a node may claim to have seen; changes of members never reach it.
const LAST_EPOCH: u64 = 1 << 62;
/// Number of changes that are remembered for nodes that have not been told yet.
const MAX_REMEMBERED_CHANGES: usize = 256;

/// Minimum time for which a record does not change that was told by a node of a former coordinator.
const MIN_SETTLING_TIME: Duration = Duration::from_secs(10);

/// The one list of members.
pub(crate) struct Registry {
    node: NodeId,
    lease: Duration,
    members: Mutex<Members>,
    changed: watch::Sender<Arc<View>>,
    volumes: Mutex<Volumes>,
    recorded: watch::Sender<Arc<Records>>,
}

/// The records of volumes.
#[derive(Default)]
struct Volumes {
    records: Arc<Records>,
    /// When records were first told by nodes of a former coordinator, by volume.
    told: HashMap<u32, Instant>,
    /// Volumes that were removed: nobody tells of them any more.
    removed: BTreeSet<u32>,
}

struct Members {
    view: Arc<View>,
    /// The last changes, each from the epoch to which the one before it led.
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
        Arc::new(Self { node, lease, members, changed, volumes: Mutex::default(), recorded })
    }

    /// The view, now and after every change.
    pub(crate) fn views(&self) -> watch::Receiver<Arc<View>> {
        self.changed.subscribe()
    }

    /// The records of volumes, now and after every change.
    pub(crate) fn records(&self) -> watch::Receiver<Arc<Records>> {
        self.recorded.subscribe()
    }

    /// Changes a record, if it still is the one before the proposed one.
    pub(crate) fn propose(&self, proposal: &Proposal) -> Proposed {
        let Proposal { ask, record, removes } = proposal;
        let mut volumes = self.volumes.lock().expect("no holder of this lock panics");
        let settles = self.lease.saturating_mul(2).max(MIN_SETTLING_TIME);
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

    /// Enters what a node of a former coordinator knows of the volumes that it has.
    fn restore(&self, records: Vec<VolumeRecord>) {
        let mut volumes = self.volumes.lock().expect("no holder of this lock panics");
        let mut table = Records::clone(&volumes.records);
        for record in records.into_iter().filter(VolumeRecord::is_valid) {
            let volume = record.volume;
            let is_news = match table.get(&record.name) {
                None => !volumes.removed.contains(&volume),
                Some(known) => {
                    known.volume == volume
                        && known.number < record.number
                        && volumes.told.contains_key(&volume)
                }
            };
            if is_news {
                volumes.told.entry(volume).or_insert_with(Instant::now);
                table.follow(RecordNews { name: record.name.clone(), record: Some(record) });
            }
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
                // It may have gone.
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
        if let Err(reason) = self.add(protocol, &member, epoch) {
            wire.send(&FromCoordinator::Refused(reason.clone())).await?;
            return Err(invalid(reason));
        }
        if coordinator.is_some_and(|former| former != self.node.to_string()) {
            self.restore(records);
        }
        Ok(member)
    }

    /// Enters a member that has followed views up to an epoch; the error says why not.
    fn add(&self, protocol: u32, member: &Member, epoch: u64) -> Result<(), String> {
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
        let mut view = View::clone(&members.view);
        view.members.retain(|other| other.node != member.node);
        view.members.push(member.clone());
        // A coordinator that starts again goes on from the members' epoch.
        view.epoch = view.epoch.max(epoch);
        self.announce(&mut members, view);
        Ok(())
    }

    /// Sends views and heartbeats and receives heartbeats, until the node leaves or falls silent.
    async fn attend(&self, wire: &mut Wire) -> io::Result<()> {
        let mut views = self.views();
        let mut told = Arc::clone(&views.borrow_and_update());
        let mut records = self.records();
        let mut told_records = Arc::clone(&records.borrow_and_update());
        self.welcome(wire, &told, &told_records).await?;
        let mut beat = interval(self.lease / 4);
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                message = wire.receive() => match message? {
                    Some(FromNode::Heartbeat) => heard = Instant::now(),
                    Some(FromNode::Propose(proposal)) => {
                        heard = Instant::now();
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
                    if heard.elapsed() > self.lease {
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

    /// The changes that lead from one view to the other: single steps if they are remembered, else one.
    fn changes(&self, told: &View, view: &View) -> Vec<Arc<Change>> {
        let members = self.lock();
        let since = members.changes.iter().skip_while(|change| change.before != told.epoch);
        let steps: Vec<_> = since.take_while(|change| change.epoch <= view.epoch).cloned().collect();
        drop(members);
        match steps.last() {
            Some(last) if last.epoch == view.epoch => steps,
            _ => vec![Arc::new(view.since(told))],
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
