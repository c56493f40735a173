//! The messages between a node and the coordinator: JSON behind a 32-bit big-endian length. A connection owns
//! its stream; nothing else has state. Control thread.

use std::io;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use plasmon::NodeId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_util::codec::{Framed, LengthDelimitedCodec, LengthDelimitedCodecError};

use super::records::{Proposal, Proposed, RecordNews, VolumeRecord};
use crate::net::frame::VERSION;
use crate::net::members::{Change, Member, View};

/// Version of the messages between a node and the coordinator.
const MESSAGES: u32 = 7;
/// Version of the cluster protocol: that of these messages, and of the frames that members exchange. So a
/// node whose frames the members would drop is refused when it joins ([`written`] tells both).
pub(crate) const PROTOCOL: u32 = MESSAGES * FRAMES_A_VERSION + VERSION as u32;
/// Number of versions of frames that a version of the messages may have.
const FRAMES_A_VERSION: u32 = 1000;
/// Maximum length of a message in bytes.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Number of heartbeats in a lease that a member and the coordinator send each other.
pub(crate) const BEATS_A_LEASE: u32 = 4;
/// Maximum number of members in a message; each takes some hundred bytes.
pub(crate) const MAX_MEMBERS_A_MESSAGE: usize = 1024;
/// Maximum number of records of volumes in a message; each takes some hundred bytes.
pub(crate) const MAX_RECORDS_A_MESSAGE: usize = 1024;

/// Writes a version of the cluster protocol for people. Versions up to 5 did not tell the version of frames.
pub(crate) fn written(protocol: u32) -> String {
    match (protocol / FRAMES_A_VERSION, protocol % FRAMES_A_VERSION) {
        (0, old) => old.to_string(),
        (messages, frames) => format!("{messages}.{frames}"),
    }
}

/// A fatal alert of TLS 1.2 and 1.3 that says *access denied*. An end that speaks TLS shows it as that.
const NO_TLS_HERE: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// Whether received bytes do not even begin with the length of a message, as the bytes of TLS do not.
pub(crate) fn is_other_protocol(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<LengthDelimitedCodecError>())
}

/// A message from a node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromNode {
    /// The node asks to become a member.
    Join {
        /// The node's [`PROTOCOL`].
        protocol: u32,
        /// The node itself.
        member: Member,
        /// The last epoch that the node followed; 0 if it was not a member yet.
        #[serde(default)]
        epoch: u64,
        /// The coordinator's node that the node followed last; none if it was not a member yet.
        #[serde(default)]
        coordinator: Option<String>,
        /// The records of the volumes that the node has, as it last followed them.
        #[serde(default)]
        records: Vec<VolumeRecord>,
    },
    /// The node is alive.
    Heartbeat,
    /// The node leaves.
    Leave,
    /// The node asks for a change of the record of a volume.
    Propose(Proposal),
}

/// A message from the coordinator, or from a node that another takes for the coordinator.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromCoordinator {
    /// The node is a member.
    Welcome {
        /// The members, the new one among them. If more follow, these are only the first.
        view: View,
        /// Number of members that follow in [`FromCoordinator::More`].
        more: usize,
        /// The node in which the coordinator is embedded.
        coordinator: String,
        /// The time of silence in milliseconds after which either side takes the other for dead.
        lease_ms: u64,
        /// Number of records of volumes that follow in [`FromCoordinator::Records`], behind the members.
        #[serde(default)]
        records: usize,
    },
    /// Further members of the view of a welcome.
    More(Vec<Member>),
    /// The members changed.
    Changed(Change),
    /// The coordinator is alive.
    Heartbeat,
    /// The sender is not the coordinator, which listens at this address.
    Redirect(String),
    /// The node is not admitted, for this reason.
    Refused(String),
    /// Records of volumes that have changed, or all of them after a welcome.
    Records(Vec<RecordNews>),
    /// The answer to a proposal.
    Proposed(Proposed),
}

/// A control connection, with or without TLS.
pub(crate) struct Wire(Framed<Box<dyn Stream>, LengthDelimitedCodec>);

/// A stream of bytes in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Wire {
    /// Makes a connection of a stream that a [`Guard`](super::guard::Guard) has admitted.
    pub(crate) fn new(stream: impl Stream + 'static) -> Self {
        let stream: Box<dyn Stream> = Box::new(stream);
        let codec = LengthDelimitedCodec::builder().max_frame_length(MAX_MESSAGE_BYTES).new_codec();
        Self(Framed::new(stream, codec))
    }

    pub(crate) async fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        self.0.send(Bytes::from(text)).await
    }

    /// Answers a connection that turned out to be TLS, although this node does not speak TLS, with an alert
    /// of TLS.
    pub(crate) async fn turn_tls_away(&mut self) -> io::Result<()> {
        let stream = self.0.get_mut();
        stream.write_all(&NO_TLS_HERE).await?;
        stream.shutdown().await
    }

    /// Receives the next message; `None` when the other side has closed. It may be cancelled.
    pub(crate) async fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        match self.0.next().await {
            None => Ok(None),
            Some(frame) => Ok(Some(serde_json::from_slice(&frame?)?)),
        }
    }
}

/// Parses the coordinator's node of a [`FromCoordinator::Welcome`].
pub(crate) fn parse_node(text: &str) -> io::Result<NodeId> {
    text.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The rogue of the end-to-end tests writes frames by hand, with these versions. If the versions are old,
    /// its members are refused, and each of its tests fails for a reason that it does not name.
    #[test]
    fn the_rogue_of_the_tests_speaks_these_versions() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/tests/e2e/rogue/frames.rs");
        let rogue = std::fs::read_to_string(path).expect("the frames of the rogue");
        for line in [format!("const VERSION: u8 = {VERSION};"), format!("const MESSAGES: u32 = {MESSAGES};")]
        {
            assert!(rogue.contains(&line), "e2e/tests/e2e/rogue/frames.rs has no line '{line}'");
        }
    }
}
