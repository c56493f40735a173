//! A node's life as a member: join, stay, and join anew when the membership is lost, whoever coordinates.
//!
//! Control thread. Views go to the engine in the order of their epochs; between two memberships of this node
//! lies a loss, and the second one is of a higher incarnation.

use std::io;
use std::time::Duration;

use plasmon::NodeId;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::{ControlError, Event, EventSender};
use crate::net::members::{Member, View};

/// How long a start waits for the coordinator to come up.
const COORDINATOR_PATIENCE: Duration = Duration::from_secs(20);
/// How long leaving may take; a coordinator that does not hear of it learns it from the lease.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts to join: at first, and at the longest.
const JOIN_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The one who says who the members are.
pub(crate) trait Coordinator {
    /// Where it is, for people.
    fn place(&self) -> String;

    /// What a start ends with that found nobody there.
    fn unreachable(&self, reason: String) -> ControlError;

    /// Makes this node a member. To be called again after a loss, as a later incarnation.
    async fn join(&mut self, member: &Member) -> Result<Joined, JoinError>;

    /// Stays a member until there is something to tell.
    async fn next(&mut self) -> Result<News, Loss>;

    /// Stops being a member.
    async fn leave(&mut self);
}

/// A membership begins.
pub(crate) struct Joined {
    pub(crate) view: View,
    /// The node that the coordinator is embedded in, if it is in one.
    pub(crate) coordinator: Option<NodeId>,
}

/// What happens while a node is a member.
pub(crate) enum News {
    /// The members changed.
    View(View),
    /// The coordinator answers, or does not; the membership goes on.
    #[cfg_attr(
        not(feature = "etcd"),
        allow(dead_code, reason = "only etcd can be silent while a membership goes on")
    )]
    Answers(bool),
}

/// How a membership ends.
#[derive(Debug)]
pub(crate) enum Loss {
    /// The coordinator is gone. Its node may be dead, and then the others go on without it.
    Coordinator(io::Error),
    /// This node is no member any more, or cannot know whether it is.
    Membership(String),
}

/// Why a node is no member yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    #[error("{0}")]
    Connection(#[from] io::Error),
    #[error("the coordinator refused: {0}")]
    Refused(String),
}

/// Joins for the first time, then keeps the membership until `stop`.
pub(crate) async fn run(
    mut coordinator: impl Coordinator,
    mut member: Member,
    events: EventSender,
    mut stop: watch::Receiver<bool>,
) -> Result<(), ControlError> {
    let given_up = Instant::now() + COORDINATOR_PATIENCE;
    let mut first = true;
    let mut pause = JOIN_PAUSES.0;
    loop {
        let joined = tokio::select! {
            joined = coordinator.join(&member) => joined,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        match joined {
            Ok(Joined { view, coordinator: node }) => {
                first = false;
                pause = JOIN_PAUSES.0;
                let incarnation = member.incarnation;
                events.send(Event::Joined { incarnation, view, coordinator: node });
                let loss = tokio::select! {
                    loss = stay(&mut coordinator, &events) => loss,
                    _ = stop.wait_for(|stop| *stop) => {
                        if timeout(LEAVE_PATIENCE, coordinator.leave()).await.is_err() {
                            info!("the others learn from its lease that this node has gone");
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
                            reason, "no member of the cluster any more; trying to join again"
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
                return Err(coordinator.unreachable(error.to_string()));
            }
            Err(error) => {
                info!(coordinator = coordinator.place(), %error, "cannot join yet");
                // The answer may have been lost, and this one be a member without knowing it.
                member.incarnation += 1;
            }
        }
        tokio::select! {
            () = sleep(pause) => pause = (pause * 2).min(JOIN_PAUSES.1),
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
    }
}

/// Passes on what happens until the membership ends.
async fn stay(coordinator: &mut impl Coordinator, events: &EventSender) -> Loss {
    loop {
        match coordinator.next().await {
            Ok(News::View(view)) => events.send(Event::View(view)),
            Ok(News::Answers(answers)) => events.send(Event::Answers(answers)),
            Err(loss) => return loss,
        }
    }
}
