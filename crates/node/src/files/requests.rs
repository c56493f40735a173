//! Requests about volumes that exist: nodes of clients pass them on to homes. Owns no state. Engine thread
//! only.

use std::rc::Rc;

use plasmon::wire::Reply;
use plasmon::wire::files::VolumeChange;
use plasmon::{Error, NodeId};

use super::Files;
use super::frames::ask;
use super::homes::ANSWER_PATIENCE;
use crate::kernel::ClientKey;

impl Files {
    /// Changes the terms of a volume.
    pub(super) async fn set(
        self: Rc<Self>,
        client: ClientKey,
        name: String,
        change: VolumeChange,
    ) -> Result<Reply, Error> {
        let user = self.user(client);
        let set = async |home| {
            if home == self.kernel.node {
                return self.homes.set_here(&name, user, change.clone()).await;
            }
            let question = ask::Set { name: name.clone(), change: change.clone() };
            let ask::Described { info } = self.network.ask(home, user, question, ANSWER_PATIENCE).await?;
            Ok(info)
        };
        let info = self.homes.with_home(&name, set).await?;
        Ok(Reply::Volume(info))
    }

    /// Removes a volume, or the record of a volume that is lost.
    pub(super) async fn remove(
        self: Rc<Self>,
        client: ClientKey,
        name: String,
        lost: bool,
    ) -> Result<Reply, Error> {
        let user = self.user(client);
        if lost {
            self.homes.remove_lost(&name, user).await?;
            return Ok(Reply::Done);
        }
        let remove = async |home| {
            let record = self.cluster.volumes.named(&name);
            if home == self.kernel.node {
                self.remove_here(&name, user).await?;
            } else {
                let question = ask::Remove { name: name.clone() };
                let ask::Ended = self.network.ask(home, user, question, ANSWER_PATIENCE).await?;
            }
            if let Some(record) = record {
                self.homes.await_removal(record.volume).await;
            }
            Ok(())
        };
        self.homes.with_home(&name, remove).await?;
        Ok(Reply::Done)
    }

    /// Lists the volumes whose home is a node.
    pub(super) async fn list(
        self: Rc<Self>,
        client: ClientKey,
        node: NodeId,
        from: u64,
    ) -> Result<Reply, Error> {
        let (volumes, next) = if node == self.kernel.node {
            self.homes.page(from)
        } else {
            let user = self.user(client);
            let ask::Listed { volumes, next } =
                self.network.ask(node, user, ask::List { from }, ANSWER_PATIENCE).await?;
            (volumes, next)
        };
        Ok(Reply::Volumes { volumes, next })
    }

    /// Removes a volume whose home is this node, with all its files.
    ///
    /// # Errors
    /// As [`Homes::remove_here`](super::homes::Homes::remove_here).
    pub(super) async fn remove_here(self: &Rc<Self>, name: &str, user: u32) -> Result<(), Error> {
        let volume = self.homes.remove_here(name, user).await?;
        self.sweep_all(&volume);
        Ok(())
    }
}
