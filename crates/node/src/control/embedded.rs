//! The coordinator that is embedded in a cluster's first node, as that node and as the others see it.
//!
//! Owns this node's membership. Control thread. The first node has the [`Registry`] beside it. The others
//! hold a control connection to that node. They are members for as long as the node sends, and take it for
//! lost when it is silent for a lease.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use plasmon::NodeId;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, interval, timeout};

use super::ControlError;
use super::guard::{Guard, Turned};
use super::member::{Coordinator, JoinError, Joined, Loss, News};
use super::messages::{
    BEATS_A_LEASE, FromCoordinator, FromNode, PROTOCOL, Wire, is_other_protocol, parse_node,
};
use super::records::{Proposal, Proposed, Records};
use super::registry::Registry;
use crate::net::members::{Change, Member, View};

/// How long one attempt at a connection may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// The coordinator as seen by the node in which it is embedded.
pub(crate) struct Leading {
    node: NodeId,
    registry: Arc<Registry>,
    views: watch::Receiver<Arc<View>>,
    records: watch::Receiver<Arc<Records>>,
    lives: watch::Receiver<Vec<NodeId>>,
    /// The view that the engine was told last.
    view: View,
    /// The changes that have led to the present view since.
    changes: VecDeque<Arc<Change>>,
    /// The records as they were last told to the engine.
    told: Arc<Records>,
}

impl Leading {
    pub(crate) fn new(node: NodeId, registry: &Arc<Registry>) -> Self {
        let (views, records, lives) = (registry.views(), registry.records(), registry.lives());
        let (registry, view) = (Arc::clone(registry), View { epoch: 0, members: Vec::new() });
        Self { node, registry, views, records, lives, view, changes: VecDeque::new(), told: Arc::default() }
    }
}

impl Coordinator for Leading {
    fn place(&self) -> String {
        "in this node".into()
    }

    fn unreachable(&self, error: JoinError) -> ControlError {
        ControlError::Unreachable { join: self.place(), reason: error.to_string() }
    }

    async fn join(&mut self, _: &Member) -> Result<Joined, JoinError> {
        self.view.clone_from(&self.views.borrow_and_update());
        self.told = Arc::clone(&self.records.borrow_and_update());
        let view = self.view.clone();
        Ok(Joined { view, coordinator: Some(self.node), records: Records::clone(&self.told) })
    }

    async fn next(&mut self) -> Result<News, Loss> {
        let ended = || Loss::Membership("its registry has ended".into());
        loop {
            if let Some(change) = self.changes.pop_front() {
                let skips = change.skips;
                // Each change begins where the one before has led.
                self.view.follow(Change::clone(&change));
                return Ok(News::View { view: self.view.clone(), skips });
            }
            tokio::select! {
                // The engine hears of former lives before it hears of the members that knew them.
                biased;
                changed = self.lives.changed() => {
                    changed.map_err(|_| ended())?;
                    return Ok(News::FormerLives(self.lives.borrow_and_update().clone()));
                }
                changed = self.views.changed() => {
                    changed.map_err(|_| ended())?;
                    let now = Arc::clone(&self.views.borrow_and_update());
                    self.changes.extend(self.registry.changes(&self.view, &now));
                }
                changed = self.records.changed() => {
                    changed.map_err(|_| ended())?;
                    let now = Arc::clone(&self.records.borrow_and_update());
                    let news = now.since(&self.told);
                    self.told = now;
                    return Ok(News::Records(news));
                }
            }
        }
    }

    async fn propose(&mut self, proposal: Proposal) -> Option<Proposed> {
        Some(self.registry.propose(&proposal))
    }

    async fn leave(&mut self) {}
}

/// The coordinator as seen by a node in which it is not embedded.
pub(crate) struct Following {
    guard: Guard,
    join: String,
    /// The address of the coordinator, for nodes that ask this node.
    found: watch::Sender<String>,
    /// The last view that was followed.
    view: View,
    /// The node itself, and the coordinator's node that it followed last.
    nodes: Option<(NodeId, NodeId)>,
    /// The records as they were last followed.
    records: Records,
    membership: Option<Membership>,
}

/// A connection on which this node is a member.
struct Membership {
    wire: Wire,
    lease: Duration,
    beat: Interval,
    heard: Instant,
}

impl Following {
    /// Makes a node that follows the coordinator which the node at `join` is, or knows. `found` gets the
    /// coordinator's address.
    pub(crate) fn new(guard: Guard, join: String, found: watch::Sender<String>) -> Self {
        let view = View { epoch: 0, members: Vec::new() };
        Self { guard, join, found, view, nodes: None, records: Records::default(), membership: None }
    }
}

impl Coordinator for Following {
    fn place(&self) -> String {
        format!("at {}", self.join)
    }

    fn unreachable(&self, error: JoinError) -> ControlError {
        match error {
            JoinError::Headless { asked, coordinator, source } => {
                ControlError::Headless { asked, coordinator, reason: source.to_string() }
            }
            error => ControlError::Unreachable { join: self.join.clone(), reason: error.to_string() },
        }
    }

    /// Makes one attempt to join, following redirections.
    async fn join(&mut self, member: &Member) -> Result<Joined, JoinError> {
        self.membership = None;
        let mut address = self.join.clone();
        // Address of the node that named the present address.
        let mut asked: Option<String> = None;
        for _ in 0..4 {
            let attempt = async {
                let mut wire = self.guard.connect(&address).await?;
                wire.send(&self.request(member)).await?;
                let mut answer =
                    wire.receive::<FromCoordinator>().await.map_err(|error| self.not_understood(error))?;
                let mut records = Records::default();
                if let Some(FromCoordinator::Welcome { view, more, records: count, .. }) = &mut answer {
                    take_more(&mut wire, view, *more).await?;
                    take_records(&mut wire, &mut records, *count).await?;
                }
                Ok::<_, JoinError>((wire, answer, records))
            };
            let attempt = timeout(CONNECT_PATIENCE, attempt).await.unwrap_or_else(|_| {
                let late = format!("no answer within {CONNECT_PATIENCE:?}");
                Err(io::Error::new(io::ErrorKind::TimedOut, late).into())
            });
            let (wire, answer, records) = attempt.map_err(|error| match (error, &asked) {
                (JoinError::Connection(source), Some(asked)) => {
                    JoinError::Headless { asked: asked.clone(), coordinator: address.clone(), source }
                }
                (error, _) => error,
            })?;
            match answer {
                Some(FromCoordinator::Welcome { view, coordinator, lease_ms, .. }) => {
                    let coordinator = parse_node(&coordinator)?;
                    self.found.send_replace(address);
                    self.view.clone_from(&view);
                    self.nodes = Some((member.node, coordinator));
                    self.records.clone_from(&records);
                    let lease = Duration::from_millis(lease_ms.clamp(100, 600_000));
                    let (beat, heard) = (interval(lease / BEATS_A_LEASE), Instant::now());
                    self.membership = Some(Membership { wire, lease, beat, heard });
                    return Ok(Joined { view, coordinator: Some(coordinator), records });
                }
                Some(FromCoordinator::Redirect(to)) => asked = Some(std::mem::replace(&mut address, to)),
                Some(FromCoordinator::Refused(reason)) => return Err(JoinError::Refused(reason)),
                Some(_) => return Err(invalid("an unexpected answer").into()),
                None => return Err(closed().into()),
            }
        }
        Err(io::Error::other("redirected in a circle").into())
    }

    async fn next(&mut self) -> Result<News, Loss> {
        let Some(membership) = &mut self.membership else {
            return Err(Loss::Coordinator(closed()));
        };
        match membership.next_message().await.map_err(Loss::Coordinator)? {
            FromCoordinator::Changed(change) => {
                let skips = change.skips;
                if self.view.follow(change) {
                    return Ok(News::View { view: self.view.clone(), skips });
                }
                let text = "a change of members of another epoch than the last one";
                Err(Loss::Coordinator(invalid(text)))
            }
            FromCoordinator::Records(news) => {
                news.iter().for_each(|news| self.records.follow(news.clone()));
                Ok(News::Records(news))
            }
            FromCoordinator::Proposed(proposed) => Ok(News::Proposed(proposed)),
            _ => Err(Loss::Coordinator(invalid("an unexpected message"))),
        }
    }

    async fn propose(&mut self, proposal: Proposal) -> Option<Proposed> {
        let ask = proposal.ask;
        let Some(Membership { wire, lease, .. }) = &mut self.membership else {
            return Some(Proposed { ask, outcome: Err(closed().to_string()) });
        };
        let sent = timeout(*lease, wire.send(&FromNode::Propose(proposal))).await;
        let error = sent.map_err(io::Error::from).and_then(|sent| sent).err()?;
        Some(Proposed { ask, outcome: Err(error.to_string()) })
    }

    async fn leave(&mut self) {
        if let Some(Membership { wire, .. }) = &mut self.membership {
            // The message tells the coordinator sooner. If the message is lost, the coordinator learns it
            // from the lease.
            let _ = wire.send(&FromNode::Leave).await;
        }
    }
}

impl Membership {
    /// Exchanges heartbeats until another message comes.
    async fn next_message(&mut self) -> io::Result<FromCoordinator> {
        let Self { wire, lease, beat, heard } = self;
        let lease = *lease;
        loop {
            tokio::select! {
                message = wire.receive() => match message? {
                    Some(message) => {
                        *heard = Instant::now();
                        if !matches!(message, FromCoordinator::Heartbeat) {
                            return Ok(message);
                        }
                    }
                    None => return Err(closed()),
                },
                _ = beat.tick() => {
                    if heard.elapsed() > lease {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("silent for {lease:?}")));
                    }
                    timeout(lease, wire.send(&FromNode::Heartbeat)).await??;
                }
            }
        }
    }
}

/// Receives the members that did not fit into the welcome.
async fn take_more(wire: &mut Wire, view: &mut View, mut more: usize) -> io::Result<()> {
    while more > 0 {
        match wire.receive().await? {
            Some(FromCoordinator::More(members)) if (1..=more).contains(&members.len()) => {
                more -= members.len();
                view.members.extend(members);
            }
            Some(_) => return Err(invalid("an unexpected message among the members")),
            None => return Err(closed()),
        }
    }
    Ok(())
}

/// Receives the records that follow a welcome.
async fn take_records(wire: &mut Wire, records: &mut Records, mut count: usize) -> io::Result<()> {
    while count > 0 {
        match wire.receive().await? {
            Some(FromCoordinator::Records(news)) if (1..=count).contains(&news.len()) => {
                count -= news.len();
                news.into_iter().for_each(|news| records.follow(news));
            }
            Some(_) => return Err(invalid("an unexpected message among the records")),
            None => return Err(closed()),
        }
    }
    Ok(())
}

impl Following {
    /// The request to join.
    fn request(&self, member: &Member) -> FromNode {
        FromNode::Join {
            protocol: PROTOCOL,
            member: member.clone(),
            epoch: self.view.epoch,
            coordinator: self.nodes.map(|(_, coordinator)| coordinator.to_string()),
            records: self.nodes.map_or_else(Vec::new, |(own, _)| self.records.of(own)),
        }
    }

    /// The error for an answer that does not decode: its sender is not a node, or speaks TLS.
    fn not_understood(&self, error: io::Error) -> JoinError {
        match (error.kind(), self.guard.secret()) {
            (_, None) if is_other_protocol(&error) => JoinError::Refused(
                "the node that listens there uses a secret, and this one does not: give this node the \
                 cluster's secret with --secret-file (unless the process there is no node of Plasmon)"
                    .into(),
            ),
            (io::ErrorKind::InvalidData, None) => JoinError::Refused(format!(
                "the process that listens there is not a node without a secret ({error}); if the cluster \
                 has one, give it with --secret-file"
            )),
            _ => error.into(),
        }
    }
}

impl From<Turned> for JoinError {
    fn from(turned: Turned) -> Self {
        match turned {
            Turned::Broken(error) => error.into(),
            Turned::Away(reason) => Self::Refused(reason),
        }
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the connection closed")
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
