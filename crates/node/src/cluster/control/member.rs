//! A node's side of the control connection: join, stay, and join anew when the connection is lost.

use std::io;
use std::time::Duration;

use plasmon::NodeId;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep, timeout};
use tracing::{info, warn};

use super::messages::{FromCoordinator, FromNode, PROTOCOL, Wire, parse_node};
use super::{ControlError, Event, EventSender};
use crate::cluster::members::{Member, View};

/// How long a start waits for the coordinator to come up.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long one attempt at a connection may take.
const CONNECT: Duration = Duration::from_secs(5);

/// A connection on which this node is a member.
struct Membership {
    wire: Wire,
    view: View,
    coordinator: NodeId,
    lease: Duration,
}

/// Joins for the first time, then keeps the membership until `stop`. Views go to the engine.
pub(super) async fn run(
    join: String,
    mut member: Member,
    events: EventSender,
    redirect: watch::Sender<String>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), ControlError> {
    let given_up = Instant::now() + PATIENCE;
    let mut first = true;
    let mut pause = Duration::from_millis(100);
    loop {
        let membership = tokio::select! {
            joined = join_once(&join, &member, &redirect) => joined,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        match membership {
            Ok(mut membership) => {
                first = false;
                pause = Duration::from_millis(100);
                events.send(Event::Joined {
                    incarnation: member.incarnation,
                    view: membership.view.clone(),
                    coordinator: membership.coordinator,
                });
                let end = stay(&mut membership, &events, &mut stop).await;
                let Err(error) = end else {
                    // The coordinator learns it sooner; if this is lost, it learns it from the lease.
                    let _ = timeout(CONNECT, membership.wire.send(&FromNode::Leave)).await;
                    return Ok(());
                };
                warn!(coordinator = join, %error, "lost the coordinator; trying to join again");
                events.send(Event::CoordinatorLost);
                member.incarnation += 1;
            }
            Err(JoinError::Refused(reason)) if first => {
                return Err(ControlError::Refused { join, reason });
            }
            Err(error) if first && Instant::now() > given_up => {
                return Err(ControlError::Unreachable { join, reason: error.to_string() });
            }
            Err(error) => info!(coordinator = join, %error, "cannot join yet"),
        }
        tokio::select! {
            () = sleep(pause) => pause = (pause * 2).min(Duration::from_secs(5)),
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum JoinError {
    #[error("{0}")]
    Connection(#[from] io::Error),
    #[error("the coordinator refused: {0}")]
    Refused(String),
}

/// One attempt, following redirections.
async fn join_once(
    join: &str,
    member: &Member,
    redirect: &watch::Sender<String>,
) -> Result<Membership, JoinError> {
    let mut address = join.to_owned();
    for _ in 0..4 {
        let attempt = async {
            let mut wire = Wire::new(TcpStream::connect(&address).await?);
            wire.send(&FromNode::Join { protocol: PROTOCOL, member: member.clone() }).await?;
            let answer = wire.receive::<FromCoordinator>().await?;
            Ok::<_, io::Error>((wire, answer))
        };
        let (wire, answer) = timeout(CONNECT, attempt)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, format!("{address} does not answer")))??;
        match answer {
            Some(FromCoordinator::Welcome { view, coordinator, lease_ms }) => {
                let coordinator = parse_node(&coordinator)?;
                redirect.send_replace(address);
                let lease = Duration::from_millis(lease_ms.clamp(100, 600_000));
                return Ok(Membership { wire, view, coordinator, lease });
            }
            Some(FromCoordinator::Redirect(to)) => address = to,
            Some(FromCoordinator::Refused(reason)) => return Err(JoinError::Refused(reason)),
            Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "an unexpected answer").into()),
            None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection closed").into()),
        }
    }
    Err(io::Error::other("redirected in a circle").into())
}

/// Passes views on and exchanges heartbeats; ends well only by `stop`.
async fn stay(
    membership: &mut Membership,
    events: &EventSender,
    stop: &mut watch::Receiver<bool>,
) -> io::Result<()> {
    let lease = membership.lease;
    let mut beat = interval(lease / 4);
    let mut heard = Instant::now();
    loop {
        tokio::select! {
            message = membership.wire.receive() => match message? {
                Some(FromCoordinator::View(view)) => {
                    heard = Instant::now();
                    events.send(Event::View(view));
                }
                Some(FromCoordinator::Heartbeat) => heard = Instant::now(),
                Some(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "an unexpected message")),
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection closed")),
            },
            _ = beat.tick() => {
                if heard.elapsed() > lease {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, format!("silent for {lease:?}")));
                }
                timeout(lease, membership.wire.send(&FromNode::Heartbeat)).await??;
            }
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
    }
}
