//! New volumes: which node becomes the home. Owns no state. Engine thread only.
//!
//! If the client names no node, the node that was asked becomes the home, if it may. Otherwise this node asks
//! the others, those with the most free memory first and the coordinator's node last, because only its return
//! mends its death. Invariant: no node becomes a home that is a cache, was started with `--no-files`, is
//! being drained or has no memory for names.

use std::cmp::Reverse;
use std::rc::Rc;

use futures::future::join_all;
use plasmon::text::printable;
use plasmon::wire::Reply;
use plasmon::wire::files::{VolumeInfo, VolumeTerms};
use plasmon::{Error, ErrorKind, NodeId};

use super::Files;
use super::frames::ask;
use super::homes::ANSWER_PATIENCE;
use super::state::VOLUME_BYTES;
use crate::kernel::ClientKey;

impl Files {
    /// Creates a volume for a client, on the node that the client names, if any.
    pub(super) async fn create(
        self: Rc<Self>,
        client: ClientKey,
        name: String,
        home: Option<NodeId>,
        terms: VolumeTerms,
    ) -> Result<Reply, Error> {
        let user = self.user(client);
        let info = match home {
            None => create_somewhere(&self, &name, user, terms).await?,
            Some(home) if home == self.kernel.node => create_here(&self, &name, user, terms).await?,
            Some(home) => create_at(&self, home, &name, user, terms).await?,
        };
        Ok(Reply::Volume(info))
    }
}

/// Creates a volume on this node, or on another node if this one may not be its home.
///
/// # Errors
/// `NotAllowed` if no node may be the home, `Full` if a node may be and has no memory, `Disconnected` if a
/// node may be and does not answer. Otherwise as [`create_here`].
pub(super) async fn create_somewhere(
    files: &Files,
    name: &str,
    user: u32,
    terms: VolumeTerms,
) -> Result<VolumeInfo, Error> {
    files.cluster.ensure_member()?;
    let Err(own) = files.homes.ensure_keeps().and_then(|()| ensure_memory_for_one(files)) else {
        return files.homes.create_here(name, user, terms).await;
    };
    let others = files.cluster.others(&[files.kernel.node]);
    let rooms = join_all(others.iter().map(|node| files.placing.room_of(*node, user))).await;
    let mut is_silent = rooms.iter().any(Option::is_none);
    let mut full = Some(own).filter(|error| error.kind() == ErrorKind::Full);
    let told = others.into_iter().zip(rooms).filter_map(|(node, room)| Some((node, room?)));
    let mut keeping: Vec<_> = told.filter(|(_, room)| !room.is_never()).collect();
    let is_coordinator = |node| files.cluster.coordinator.get() == Some(node);
    keeping.sort_by_key(|(node, room)| (is_coordinator(*node), Reverse(room.free), *node));
    for (node, _) in keeping {
        let made = create_at(files, node, name, user, terms.clone()).await;
        match made.as_ref().map_err(Error::kind) {
            Err(ErrorKind::NotAllowed) => {}
            Err(ErrorKind::Full) => full = made.err(),
            Err(ErrorKind::Disconnected | ErrorKind::TimedOut) => is_silent = true,
            _ => return made,
        }
    }
    Err(full.unwrap_or_else(|| no_home(name, is_silent)))
}

/// Creates a volume on another node.
async fn create_at(
    files: &Files,
    home: NodeId,
    name: &str,
    user: u32,
    terms: VolumeTerms,
) -> Result<VolumeInfo, Error> {
    let create = ask::Create { name: name.to_owned(), terms };
    let ask::Described { info } = files.network.ask(home, user, create, ANSWER_PATIENCE).await?;
    Ok(info)
}

/// Makes this node the home of a new volume.
///
/// # Errors
/// `Full` if there is no memory for the names of another volume. Otherwise as
/// [`Homes::create_here`](super::homes::Homes::create_here).
pub(super) async fn create_here(
    files: &Files,
    name: &str,
    user: u32,
    terms: VolumeTerms,
) -> Result<VolumeInfo, Error> {
    ensure_memory_for_one(files)?;
    files.homes.create_here(name, user, terms).await
}

/// Refuses another volume if there is no memory for a file in it.
fn ensure_memory_for_one(files: &Files) -> Result<(), Error> {
    let (taken, most) = (files.homes.memory(), files.limits.get().memory);
    if taken.saturating_add(VOLUME_BYTES) <= most {
        return Ok(());
    }
    let text = format!(
        "node {} has no memory for the names of one more volume, {taken} of {most} bytes are taken: \
         start it with more --files-memory, or choose another home",
        files.kernel.node
    );
    Err(Error::new(ErrorKind::Full, text))
}

/// Makes the error for a volume that no node can be the home of, as far as nodes answer.
fn no_home(name: &str, is_silent: bool) -> Error {
    let name = printable(name);
    if is_silent {
        let text = format!(
            "volume '{name}' has no home yet: this node keeps no names of files, and others do not answer; \
             try again"
        );
        return Error::new(ErrorKind::Disconnected, text);
    }
    let text = format!(
        "volume '{name}' can have no home: no node of the cluster keeps names of files, since all are \
         caches, were started with --no-files or are being drained; start a node without these options"
    );
    Error::new(ErrorKind::NotAllowed, text)
}
