//! The names of services that this node keeps, as their *home*. Owns [`Names`]. Engine thread only.
//!
//! A name is unique in the cluster as that of a region is: its home has a deed of it, an object
//! without bytes under the id of the name, which no user sees. The home knows the owner, the
//! functions, and the nodes that have servers.
//!
//! Invariants: all nodes of a name have one owner and the same functions. A name without nodes ends. A
//! name whose deed has gone is not kept here.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::service::{ServiceInfo, service_id};
use plasmon::text::printable;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::frames::{MAX_NODES, ask};
use crate::directory::Directory;
use crate::kernel::Kernel;
use crate::kernel::random::HashMap;
use crate::membership::Cluster;
use crate::object::{DEEDS, Replica};
use crate::placement::Placement;
use crate::store::Store;

/// Maximum number of names that a node keeps.
const MAX_NAMES: usize = 1 << 16;
/// Number of bytes of rows from which on a page of a list ends.
const PAGE_BYTES: usize = 4 << 10;

/// A name that this node keeps.
struct Name {
    name: String,
    owner: u32,
    functions: Vec<String>,
    deed: Rc<Replica>,
    since: Instant,
    nodes: RefCell<Vec<NodeId>>,
    /// Whether the deed is being deleted.
    ends: Cell<bool>,
}

/// The names that this node keeps.
pub(super) struct Names {
    kernel: Rc<Kernel>,
    store: Rc<Store>,
    cluster: Rc<Cluster>,
    directory: Rc<Directory>,
    placement: Rc<Placement>,
    kept: RefCell<HashMap<ObjectId, Rc<Name>>>,
}

/// Refuses a service that belongs to another user than the asker expects.
///
/// # Errors
/// `NotAllowed`, with advice.
fn ensure_owner(name: &str, owner: u32, expected: Option<u32>, user: u32) -> Result<(), Error> {
    if expected.map_or(owner == user || owner == 0, |expected| owner == expected) {
        return Ok(());
    }
    let name = printable(name);
    let text = format!(
        "service '{name}' belongs to user {owner}: name its owner to use it all the same (`--owner {owner}`, \
         in Python owner={owner})"
    );
    Err(Error::new(ErrorKind::NotAllowed, text))
}

/// Makes the error for a name that is not kept here.
pub(super) fn not_kept(node: NodeId) -> Error {
    Error::new(ErrorKind::NotFound, format!("node {node} does not keep the name of this service any more"))
}

impl Names {
    pub(super) fn new(placement: &Rc<Placement>) -> Self {
        Self {
            kernel: Rc::clone(&placement.kernel),
            store: Rc::clone(&placement.store),
            cluster: Rc::clone(&placement.cluster),
            directory: Rc::clone(&placement.directory),
            placement: Rc::clone(placement),
            kept: RefCell::default(),
        }
    }

    fn find(&self, id: &ObjectId) -> Option<Rc<Name>> {
        let name = self.kept.borrow().get(id).cloned()?;
        (!name.ends.get() && self.store.objects.borrow().has(&name.deed)).then_some(name)
    }

    /// Whether this node keeps a name.
    pub(super) fn keeps(&self, id: &ObjectId) -> bool {
        self.find(id).is_some()
    }

    /// Refuses to answer for names while this node may not know them: while it is no member, or has
    /// just become a member again.
    fn ensure_serves(&self) -> Result<(), Error> {
        self.cluster.ensure_member()?;
        if !self.cluster.withholds() {
            return Ok(());
        }
        let text =
            format!("node {} has just become a member again, and knows its names soon", self.kernel.node);
        Err(Error::new(ErrorKind::Disconnected, text))
    }

    /// Takes a name that no node has, and becomes its home.
    ///
    /// # Errors
    /// `Exists` if the name is taken, or being taken; `Full` if this node keeps too many names;
    /// `Disconnected` if this node takes nothing new.
    pub(super) async fn take(&self, name: &str, owner: u32, functions: &[String]) -> Result<(), Error> {
        let id = service_id(name);
        self.placement.ensure_stays()?;
        self.ensure_serves()?;
        if self.kept.borrow().len() >= MAX_NAMES {
            let text = format!("node {} keeps {MAX_NAMES} names of services already", self.kernel.node);
            return Err(Error::new(ErrorKind::Full, text));
        }
        let exists = || Error::new(ErrorKind::Exists, format!("service '{}' exists", printable(name)));
        if self.directory.known_here(&id, DEEDS) == Some(true) {
            return Err(exists());
        }
        let claims = &self.directory.claims;
        let claim = claims.claim(id, DEEDS, Duration::ZERO).await?;
        let claim = claims.ascertain(claim, DEEDS, Duration::ZERO).await?;
        // From here to the entry of the name no other task runs.
        self.ensure_serves()?;
        if self.store.objects.borrow().conflict(&id).is_some() {
            return Err(exists());
        }
        let deed = self.store.seal_deed(id, self.kernel.lives.draw())?;
        claim.fulfil();
        let name = Name {
            name: name.to_owned(),
            owner,
            functions: functions.to_vec(),
            deed,
            since: self.kernel.clock.now(),
            nodes: RefCell::new(vec![self.kernel.node]),
            ends: Cell::new(false),
        };
        self.kept.borrow_mut().insert(id, Rc::new(name));
        Ok(())
    }

    /// Notes that a node has servers of a name.
    ///
    /// # Errors
    /// `NotFound` if the name is not kept here, `NotAllowed` if it belongs to another user,
    /// `Invalid` if it has other functions.
    pub(super) fn join(
        &self,
        node: NodeId,
        id: &ObjectId,
        owner: u32,
        functions: &[String],
    ) -> Result<(), Error> {
        self.ensure_serves()?;
        let name = self.find(id).ok_or_else(|| not_kept(self.kernel.node))?;
        if name.owner != owner {
            let (name, owner) = (printable(&name.name), name.owner);
            let text = format!("service '{name}' belongs to user {owner}: serve under another name");
            return Err(Error::new(ErrorKind::NotAllowed, text));
        }
        ensure_same(&name.name, &name.functions, functions)?;
        let mut nodes = name.nodes.borrow_mut();
        if !nodes.contains(&node) {
            nodes.push(node);
        }
        Ok(())
    }

    /// Notes that nodes no longer have servers of a name. A name without nodes ends.
    pub(super) fn part(&self, nodes: &[NodeId], id: &ObjectId) {
        let Some(name) = self.find(id) else { return };
        name.nodes.borrow_mut().retain(|node| !nodes.contains(node));
        if name.nodes.borrow().is_empty() {
            self.end(*id, &name);
        }
    }

    /// Forgets the nodes that are no members any more.
    pub(super) fn follow_members(&self) {
        let kept = self.kept.borrow();
        let nodes = kept.values().flat_map(|name| name.nodes.borrow().clone());
        let gone: Vec<_> = nodes.filter(|node| !self.cluster.is_member(*node)).collect();
        let ids: Vec<_> = kept.keys().copied().collect();
        drop(kept);
        if !gone.is_empty() {
            ids.iter().for_each(|id| self.part(&gone, id));
        }
    }

    /// Gives a name up. Others may take it when its deed is deleted.
    fn end(&self, id: ObjectId, name: &Rc<Name>) {
        name.ends.set(true);
        let (deletion, name) = (Rc::clone(&self.directory.deletion), Rc::clone(name));
        self.kernel.spawn(async move {
            let ended = deletion.delete_all(&[id], &[name.deed.life], DEEDS).await;
            // If the keeper does not answer, the deed is deleted at the next tick.
            name.ends.set(ended.is_ok());
        });
    }

    /// Returns the nodes and functions of a name, for a user.
    ///
    /// # Errors
    /// `NotFound` if the name is not kept here, `NotAllowed` if the name belongs to another user
    /// than expected.
    pub(super) fn sought(&self, id: &ObjectId, owner: Option<u32>, user: u32) -> Result<ask::Sought, Error> {
        self.ensure_serves()?;
        let name = self.find(id).ok_or_else(|| not_kept(self.kernel.node))?;
        ensure_owner(&name.name, name.owner, owner, user)?;
        let nodes = name.nodes.borrow().iter().take(MAX_NODES).copied().collect();
        Ok(ask::Sought { owner: name.owner, functions: name.functions.clone(), nodes })
    }

    /// Forgets the names whose deeds have gone, and ends the names that have no servers.
    pub(super) fn tidy(&self) {
        let has = |name: &Rc<Name>| self.store.objects.borrow().has(&name.deed);
        self.kept.borrow_mut().retain(|_, name| has(name));
        let is_left = |name: &Name| name.nodes.borrow().is_empty() && !name.ends.get();
        let kept = self.kept.borrow();
        let left: Vec<_> = kept.iter().filter(|(_, name)| is_left(name)).map(|(id, _)| *id).collect();
        drop(kept);
        left.iter().for_each(|id| self.part(&[], id));
    }

    /// Returns a page of the names that a user may know. These are all names, because services are no secret.
    pub(super) fn page(&self, from: u64) -> (Vec<ServiceInfo>, Option<u64>) {
        let mut ids: Vec<_> = self.kept.borrow().keys().copied().collect();
        ids.sort_unstable();
        let (mut rows, mut bytes) = (Vec::new(), 0);
        for (at, id) in ids.iter().enumerate().skip(usize::try_from(from).unwrap_or(usize::MAX)) {
            if bytes > PAGE_BYTES {
                return (rows, Some(at as u64));
            }
            let Some(name) = self.find(id) else { continue };
            bytes += name.name.len() + name.functions.iter().map(|one| one.len() + 4).sum::<usize>() + 64;
            rows.push(ServiceInfo {
                name: name.name.clone(),
                home: self.kernel.node,
                owner: name.owner,
                functions: name.functions.clone(),
                nodes: name.nodes.borrow().len() as u32,
                age_ms: self.kernel.clock.now().duration_since(name.since).as_millis() as u64,
            });
        }
        (rows, None)
    }

    /// Number of names.
    pub(super) fn count(&self) -> usize {
        self.kept.borrow().len()
    }
}

/// Refuses servers of a name that have other functions than its present servers.
///
/// # Errors
/// `Invalid`, with the difference.
pub(super) fn ensure_same(name: &str, there: &[String], here: &[String]) -> Result<(), Error> {
    if there == here {
        return Ok(());
    }
    let name = printable(name);
    let differ = (0..there.len().max(here.len())).find(|at| there.get(*at) != here.get(*at)).unwrap_or(0);
    let told = |list: &[String]| match list.get(differ) {
        Some(function) => format!("'{}'", printable(function)),
        None => "nothing".to_owned(),
    };
    let text = format!(
        "service '{name}' is served with other functions already: function {differ} there is {}, here it is \
         {}; serve the same functions in the same order, or under another name",
        told(there),
        told(here)
    );
    Err(Error::new(ErrorKind::Invalid, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn functions_that_differ_are_named() {
        assert_eq!(ensure_same("a", &list(&["f", "g"]), &list(&["f", "g"])), Ok(()));
        let told = |there: &[&str], here: &[&str]| {
            let error = ensure_same("a", &list(there), &list(here)).expect_err("they differ");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            error.message().to_owned()
        };
        let other = told(&["f", "g"], &["f", "h"]);
        assert!(other.contains("function 1 there is 'g', here it is 'h'"), "{other}");
        let more = told(&["f"], &["f", "g"]);
        assert!(more.contains("function 1 there is nothing, here it is 'g'"), "{more}");
    }

    #[test]
    fn a_service_is_its_users_or_roots_unless_another_is_expected() {
        let may = |owner, expected, user| ensure_owner("a", owner, expected, user).is_ok();
        assert!(may(7, None, 7) && may(0, None, 7) && may(8, Some(8), 7));
        assert!(!may(8, None, 7) && !may(7, Some(8), 7) && !may(0, Some(7), 7));
    }
}
