//! A node's life as a member: join, stay, and join anew when the membership is lost, whatever the
//! coordinator.
//!
//! Owns the present membership. Control thread. Views go to the engine in the order of their epochs, each of
//! them, or with the word that some were left out: nodes conclude from the views what others remember.
//! Between two memberships of this node lies a loss, and the second one has a higher incarnation.

use std::io;
use std::time::Duration;

use futures::channel::mpsc::UnboundedReceiver;
use futures::{FutureExt, StreamExt};
use plasmon::NodeId;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::records::{Proposal, Proposed, RecordNews, Records};
use super::{ControlError, Event, EventSender};
use crate::net::members::{Member, View};

/// Time for which the start of a node waits for the coordinator to come up.
const COORDINATOR_PATIENCE: Duration = Duration::from_secs(20);
/// Longest time that leaving may take. A coordinator that is not told learns it from the lease.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
/// The first and the longest pause between two attempts to join.
const JOIN_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A coordinator, which decides who the members are.
pub(crate) trait Coordinator {
    /// The place of the coordinator, for people.
    fn place(&self) -> String;

    /// The error of a start that did not reach the coordinator.
    fn unreachable(&self, error: JoinError) -> ControlError;

    /// Makes this node a member. It is called again after a loss, with a later incarnation.
    async fn join(&mut self, member: &Member) -> Result<Joined, JoinError>;

    /// Waits as a member until there is an event for the engine. The wait may be given up at any point, and
    /// goes on with the next call.
    async fn next(&mut self) -> Result<News, Loss>;

    /// Has the record of a volume changed, if the record still is the one before the proposed one. The answer
    /// is returned, or comes as news.
    async fn propose(&mut self, proposal: Proposal) -> Option<Proposed>;

    /// Ends this node's membership.
    async fn leave(&mut self);
}

/// The start of a membership.
pub(crate) struct Joined {
    pub(crate) view: View,
    /// The node in which the coordinator is embedded, if it is embedded.
    pub(crate) coordinator: Option<NodeId>,
    /// The records of all volumes.
    pub(crate) records: Records,
}

/// An event while a node is a member.
pub(crate) enum News {
    /// The members changed.
    View {
        view: View,
        /// Whether there were views between this one and the last, which the coordinator cannot tell.
        skips: bool,
    },
    /// Records of volumes changed.
    Records(Vec<RecordNews>),
    /// Members join that have followed these coordinators' nodes before this one.
    FormerLives(Vec<NodeId>),
    /// The answer to a proposal.
    Proposed(Proposed),
    /// The coordinator has begun or ceased to answer; the membership goes on.
    #[cfg_attr(
        not(feature = "etcd"),
        allow(dead_code, reason = "only etcd can be silent while a membership goes on")
    )]
    Answers(bool),
}

/// How a membership ends.
#[derive(Debug)]
pub(crate) enum Loss {
    /// The coordinator is gone. If its node is dead, the others go on without it.
    Coordinator(io::Error),
    /// This node is not a member any more, or cannot know whether it is.
    Membership(String),
}

/// Why a node is not a member yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    #[error("{0}")]
    Connection(#[from] io::Error),
    #[error("the coordinator refused: {0}")]
    Refused(String),
    /// A node answers, and the coordinator that it names does not.
    #[error(
        "the node at {asked} answers, but its cluster's coordinator at {coordinator} does not ({source})"
    )]
    Headless { asked: String, coordinator: String, source: io::Error },
}

/// Connections of a member to its engine.
pub(crate) struct Outside {
    /// The channel to the engine, for news.
    pub(crate) events: EventSender,
    /// Changes of records that the engine asks for.
    pub(crate) proposals: UnboundedReceiver<Proposal>,
    /// Whether the node is to leave.
    pub(crate) stop: watch::Receiver<bool>,
}

/// Joins for the first time, then keeps the membership until `stop`.
pub(crate) async fn run(
    mut coordinator: impl Coordinator,
    mut member: Member,
    outside: Outside,
) -> Result<(), ControlError> {
    let Outside { events, mut proposals, mut stop } = outside;
    let given_up = Instant::now() + COORDINATOR_PATIENCE;
    let mut first = true;
    let mut pause = JOIN_PAUSES.0;
    loop {
        let joined = tokio::select! {
            joined = coordinator.join(&member) => joined,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        match joined {
            Ok(Joined { view, coordinator: node, records }) => {
                first = false;
                pause = JOIN_PAUSES.0;
                let incarnation = member.incarnation;
                // The engine takes proposals from before for given up.
                while let Some(Some(_)) = proposals.next().now_or_never() {}
                events.send(Event::Joined { incarnation, view, coordinator: node, records });
                let loss = tokio::select! {
                    loss = stay(&mut coordinator, &events, &mut proposals) => loss,
                    _ = stop.wait_for(|stop| *stop) => {
                        if timeout(LEAVE_PATIENCE, coordinator.leave()).await.is_err() {
                            info!("the other members learn from the lease that this node has left");
                        }
                        return Ok(());
                    }
                };
                let place = coordinator.place();
                events.send(match loss {
                    Loss::Coordinator(error) => {
                        warn!(coordinator = place, %error, "lost the coordinator; trying to join again");
                        Event::CoordinatorLost
                    }
                    Loss::Membership(reason) => {
                        warn!(
                            coordinator = place,
                            reason, "this node is not a member of the cluster any more; trying to join again"
                        );
                        Event::Expelled
                    }
                });
                member.incarnation += 1;
            }
            Err(JoinError::Refused(reason)) if first => {
                return Err(ControlError::Refused { join: coordinator.place(), reason });
            }
            Err(error) if first && Instant::now() > given_up => {
                return Err(coordinator.unreachable(error));
            }
            Err(error) => {
                warn!(coordinator = coordinator.place(), %error, "cannot join yet; trying again");
                // The answer may have been lost, and this incarnation may be a member without knowing it.
                member.incarnation += 1;
            }
        }
        tokio::select! {
            () = sleep(pause) => pause = (pause * 2).min(JOIN_PAUSES.1),
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
    }
}

/// Passes on events and proposals until the membership ends.
async fn stay(
    coordinator: &mut impl Coordinator,
    events: &EventSender,
    proposals: &mut UnboundedReceiver<Proposal>,
) -> Loss {
    loop {
        let news = tokio::select! {
            news = coordinator.next() => news,
            Some(proposal) = proposals.next() => {
                if let Some(proposed) = coordinator.propose(proposal).await {
                    events.send(Event::Proposed(proposed));
                }
                continue;
            }
        };
        match news {
            Ok(News::View { view, skips }) => events.send(Event::View { view, skips }),
            Ok(News::Records(news)) => events.send(Event::Records(news)),
            Ok(News::FormerLives(lives)) => events.send(Event::FormerLives(lives)),
            Ok(News::Proposed(proposed)) => events.send(Event::Proposed(proposed)),
            Ok(News::Answers(answers)) => events.send(Event::Answers(answers)),
            Err(loss) => return loss,
        }
    }
}
