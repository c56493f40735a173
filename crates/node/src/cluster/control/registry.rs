//! The one list of members, in the node that embeds the coordinator.
//!
//! Control thread. One task per connection talks to a node; the list sits behind a lock that is
//! never held across an await. A node is a member for as long as its connection lives and speaks
//! at least once per lease. Every change makes a new epoch, and every node gets the new view.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use plasmon::NodeId;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{interval, timeout};
use tracing::{info, warn};

use super::admission;
use super::guard::Guard;
use super::messages::{FromCoordinator, FromNode, Wire};
use crate::cluster::members::{Member, View};

/// Epochs that a node may say it has seen; changes of members will never be that many.
const LAST_EPOCH: u64 = 1 << 62;

/// The one list of members.
pub(super) struct Registry {
    node: NodeId,
    lease: Duration,
    view: Mutex<View>,
    changed: watch::Sender<View>,
}

impl Registry {
    /// A cluster of one.
    pub(super) fn new(own: Member, lease: Duration) -> Arc<Self> {
        let node = own.node;
        let view = View { epoch: 1, members: vec![own] };
        let (changed, _) = watch::channel(view.clone());
        Arc::new(Self { node, lease, view: Mutex::new(view), changed })
    }

    /// The view, now and after every change.
    pub(super) fn views(&self) -> watch::Receiver<View> {
        self.changed.subscribe()
    }

    /// Serves the connection of a node until it ends.
    pub(super) async fn serve(self: Arc<Self>, guard: Guard, stream: TcpStream, peer: SocketAddr) {
        let mut wire = match guard.accept(stream).await {
            Ok(wire) => wire,
            Err(turned) => return warn!(%peer, "not let in: {turned}"),
        };
        let member = match timeout(self.lease, self.admit(&mut wire)).await {
            Ok(Ok(member)) => member,
            Ok(Err(error)) => return warn!("{peer} did not join: {error}"),
            Err(_) => return warn!("{peer} connected and did not ask to join"),
        };
        let (node, listen) = (member.node, member.listen.clone());
        info!(%node, listen, "a node joined");
        match self.attend(&mut wire).await {
            Ok(()) => info!(%node, listen, "a node left"),
            Err(error) => warn!(%node, listen, %error, "a node is taken for dead"),
        }
        self.remove(&member);
    }

    /// Answers the request to join.
    async fn admit(&self, wire: &mut Wire) -> io::Result<Member> {
        let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
        let Some(FromNode::Join { protocol, member, epoch }) = wire.receive().await? else {
            return Err(invalid("it sent something else than a request to join".into()));
        };
        if let Err(reason) = self.add(protocol, &member, epoch) {
            wire.send(&FromCoordinator::Refused(reason.clone())).await?;
            return Err(invalid(reason));
        }
        Ok(member)
    }

    /// Enters a member, which has followed views up to an epoch, or says why not.
    fn add(&self, protocol: u32, member: &Member, epoch: u64) -> Result<(), String> {
        let mut view = self.lock();
        admission::check(protocol, member, &view.members)?;
        if member.node == self.node {
            return Err(format!("node {} is the coordinator's own", member.node));
        }
        if epoch > LAST_EPOCH {
            return Err(format!(
                "it says that it followed the cluster to epoch {epoch}, which none can reach"
            ));
        }
        view.members.retain(|other| other.node != member.node);
        view.members.push(member.clone());
        // A coordinator that starts again goes on where the members are.
        view.epoch = view.epoch.max(epoch);
        self.announce(view);
        Ok(())
    }

    /// Sends views and heartbeats and listens for heartbeats, until the node leaves or falls silent.
    async fn attend(&self, wire: &mut Wire) -> io::Result<()> {
        let mut views = self.views();
        let view = views.borrow_and_update().clone();
        let coordinator = self.node.to_string();
        let lease_ms = self.lease.as_millis() as u64;
        wire.send(&FromCoordinator::Welcome { view, coordinator, lease_ms }).await?;
        let mut beat = interval(self.lease / 4);
        let mut heard = tokio::time::Instant::now();
        loop {
            tokio::select! {
                message = wire.receive() => match message? {
                    Some(FromNode::Heartbeat) => heard = tokio::time::Instant::now(),
                    Some(FromNode::Leave) => return Ok(()),
                    Some(FromNode::Join { .. }) => {
                        return Err(io::Error::new(io::ErrorKind::InvalidData, "it asked to join twice"));
                    }
                    None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its connection closed")),
                },
                _ = views.changed() => {
                    let view = views.borrow_and_update().clone();
                    timeout(self.lease, wire.send(&FromCoordinator::View(view))).await??;
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

    /// Takes this incarnation of a node out.
    fn remove(&self, gone: &Member) {
        let mut view = self.lock();
        let before = view.members.len();
        view.members.retain(|member| (member.node, member.incarnation) != (gone.node, gone.incarnation));
        if view.members.len() != before {
            self.announce(view);
        }
    }

    fn announce(&self, mut view: MutexGuard<'_, View>) {
        view.epoch += 1;
        self.changed.send_replace(view.clone());
    }

    fn lock(&self) -> MutexGuard<'_, View> {
        self.view.lock().expect("no holder of this lock panics")
    }
}
