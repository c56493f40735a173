//! The part of the report about the members. Engine thread only.

use plasmon::status::{ClusterStatus, MemberStatus};

use super::Cluster;

impl Cluster {
    /// Reports the cluster as this node sees it; other rooms enter more.
    pub(crate) fn cluster_status(&self) -> ClusterStatus {
        let view = self.view();
        let members = view.members.iter().map(|member| {
            let (on, why) = self.network.reached_by(member.node);
            MemberStatus {
                node: member.node.to_string(),
                incarnation: member.incarnation,
                listen: member.listen.clone(),
                this: member.node == self.kernel.node,
                connected: member.node == self.kernel.node || self.network.connected(member.node),
                cut_off: self.network.is_cut_off(member.node),
                provider: self.network.domain(on).provider().name().to_owned(),
                reason: why.unwrap_or_default(),
            }
        });
        ClusterStatus {
            epoch: view.epoch,
            coordinator: match (&*self.coordinator_at.borrow(), &self.kernel.config.join) {
                // The node that was named for joining may be another one.
                (Some(at), Some(_)) => at.clone(),
                _ => self.kernel.config.coordinator(),
            },
            coordinator_kind: if self.kernel.config.etcd.is_some() { "etcd" } else { "embedded" }.into(),
            coordinator_endpoints: match (&self.kernel.config.etcd, &self.kernel.config.join) {
                (Some(etcd), _) => etcd.endpoints.clone(),
                (None, Some(join)) => vec![join.clone()],
                (None, None) => vec![self.kernel.listen.clone()],
            },
            coordinator_connected: self.connected(),
            coordinator_losses: self.losses(),
            fenced: self.fenced(),
            fencings: self.fencings(),
            members: members.collect(),
            ..ClusterStatus::default()
        }
    }
}
