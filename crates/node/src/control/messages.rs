//! What a node and the coordinator say to each other: JSON behind a 32-bit big-endian length.

use std::io;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use plasmon::NodeId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use crate::net::members::{Change, Member, View};

/// Version of these messages.
pub(crate) const PROTOCOL: u32 = 4;
/// Longest message.
const MAX_MESSAGE: usize = 4 << 20;
/// Members in a message, at most: some hundred bytes each.
pub(crate) const MEMBERS: usize = 1024;

/// From a node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromNode {
    /// Let me in.
    Join {
        /// [`PROTOCOL`] of the node.
        protocol: u32,
        /// Who I am.
        member: Member,
        /// The last epoch I followed; 0 if I was no member yet.
        #[serde(default)]
        epoch: u64,
    },
    /// I am alive.
    Heartbeat,
    /// I go.
    Leave,
}

/// From the coordinator, or from a node that is asked for it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromCoordinator {
    /// You are in.
    Welcome {
        /// The members, you among them; the first of them, where more follow.
        view: View,
        /// How many more follow, in [`FromCoordinator::More`].
        more: usize,
        /// The node the coordinator is embedded in.
        coordinator: String,
        /// Silence after which either side takes the other for dead.
        lease_ms: u64,
    },
    /// Further members of the view that you are welcome in.
    More(Vec<Member>),
    /// The members changed.
    Changed(Change),
    /// I am alive.
    Heartbeat,
    /// I am not the coordinator: it listens there.
    Redirect(String),
    /// You are not let in.
    Refused(String),
}

/// A control connection, with or without TLS.
pub(crate) struct Wire(Framed<Box<dyn Stream>, LengthDelimitedCodec>);

/// What bytes come and go by.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Wire {
    /// Of what a [`Guard`](super::guard::Guard) has let through.
    pub(crate) fn new(stream: impl Stream + 'static) -> Self {
        let stream: Box<dyn Stream> = Box::new(stream);
        let codec = LengthDelimitedCodec::builder().max_frame_length(MAX_MESSAGE).new_codec();
        Self(Framed::new(stream, codec))
    }

    pub(crate) async fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        self.0.send(Bytes::from(text)).await
    }

    /// The next message; nothing when the other side closed. May be cancelled.
    pub(crate) async fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        match self.0.next().await {
            None => Ok(None),
            Some(frame) => Ok(Some(serde_json::from_slice(&frame?)?)),
        }
    }
}

/// The coordinator's node in a [`FromCoordinator::Welcome`].
pub(crate) fn parse_node(text: &str) -> io::Result<NodeId> {
    text.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
