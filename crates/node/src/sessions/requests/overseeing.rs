//! The overview of the cluster: every other node is asked, and a node that does not answer is reported. Owns
//! no state. Engine thread only.

use std::rc::Rc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use plasmon::overview::{NodeOverview, Overview, Summary};
use plasmon::wire::Reply;
use plasmon::{Error, ErrorKind, NodeId};

use super::Requests;
use crate::net::frame::ask;
use crate::net::members::Member;

/// Time within which a node has to answer.
const REPORT_PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of nodes that are asked at a time.
const MAX_NODES_ASKED: usize = 256;
/// Maximum number of nodes of an overview: as many as fit a reply.
const MAX_NODES: usize = 1000;

impl Requests {
    /// Asks all members for their summaries.
    pub(super) async fn overview(self: Rc<Self>) -> Result<Reply, Error> {
        let status = self.cluster.cluster_status();
        let mut members = self.cluster.view().members;
        members.sort_by(|one, other| {
            (one.node != self.kernel.node, &one.listen).cmp(&(other.node != self.kernel.node, &other.listen))
        });
        let left_out = members.len().saturating_sub(MAX_NODES) as u64;
        members.truncate(MAX_NODES);
        let nodes = stream::iter(members)
            .map(|member| self.look_at(member))
            .buffered(MAX_NODES_ASKED)
            .collect()
            .await;
        let overview = Overview {
            epoch: status.epoch,
            coordinator: status.coordinator,
            coordinator_connected: status.coordinator_connected,
            nodes,
            left_out,
        };
        Ok(Reply::Report { json: serde_json::to_string(&overview).expect("plain values") })
    }

    async fn look_at(self: &Rc<Self>, member: Member) -> NodeOverview {
        let answer = if member.node == self.kernel.node {
            Ok(self.services.summary())
        } else {
            self.summary_of(member.node).await
        };
        let (summary, failure) = match answer {
            Ok(summary) => (Some(summary), String::new()),
            Err(error) => (None, error.message().to_owned()),
        };
        NodeOverview {
            node: member.node.to_string(),
            listen: member.listen,
            this: member.node == self.kernel.node,
            summary,
            failure,
        }
    }

    async fn summary_of(self: &Rc<Self>, node: NodeId) -> Result<Summary, Error> {
        let ask::Reported { json } = self.network.ask(node, 0, ask::Report, REPORT_PATIENCE).await?;
        serde_json::from_slice(&json).map_err(|error| {
            let text = format!("node {node} sent an invalid report: {error}; see its release");
            Error::new(ErrorKind::Internal, text)
        })
    }
}
