//! Lists of objects: of this node, and of the whole cluster.
//!
//! Owns no state. Any thread. The list of a cluster is made here: the client asks for the pages of each node
//! one after the other, so that a node has no list in memory, and joins the rows of an object.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use super::connection::Undo;
use super::paging::each_page;
use super::{Client, finish_all};
use crate::wire::{MAX_NAME_BYTES, Request, requests};
use crate::{Error, ErrorKind, Filter, NodeId, ObjectId, ObjectInfo, ObjectState, Result};

/// Maximum number of times that the nodes are asked for a list while objects are replaced.
const MAX_ROUNDS: usize = 3;

/// List of the objects of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterList {
    /// Objects, the oldest first. The row of an object is that of its primary, if that was found. An object
    /// that was replaced is left out as soon as its successor was found.
    pub objects: Vec<ObjectInfo>,
    /// Nodes that hold each object, in the order of `objects`. The first of them is the node of the object's
    /// row.
    pub holders: Vec<Vec<NodeId>>,
    /// Nodes that did not tell all their objects, each with the reason: the list lacks what they alone hold.
    pub missing: Vec<(NodeId, Error)>,
}

impl Client {
    /// Lists the objects on this node that this user may see, the oldest first. Objects that come or go
    /// during the call may be in the list or not.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` if the daemon does not answer.
    pub fn list(&self) -> Result<Vec<ObjectInfo>> {
        self.list_wanted(&Filter::default())
    }

    /// Lists the objects of [`Client::list`] that a filter lets pass.
    ///
    /// # Errors
    /// As [`Client::list`]. `Invalid` if the pattern is too long.
    pub fn list_wanted(&self, filter: &Filter) -> Result<Vec<ObjectInfo>> {
        check(filter)?;
        let request = Request::List { filter: filter.clone() };
        let frames = finish_all(self, self.connection.send(&request, Undo::Nothing)?, self.due_of_answer())?;
        let mut rows = Vec::new();
        for frame in frames {
            rows.extend(self.connection.only::<requests::List>(frame)?.objects);
        }
        rows.sort_unstable_by_key(|row| (Reverse(row.age_ms), row.id));
        Ok(rows)
    }

    /// Lists the sealed objects on all nodes of the cluster that this user may see, the oldest first, each
    /// object once. Objects that come, go or move during the call may be in the list or not. The nodes are
    /// asked again, at most twice, if one of them has dropped an object since that another node replaced, so
    /// that an object is in the list unless it is replaced again each time. A node that does not answer is in
    /// [`ClusterList::missing`].
    ///
    /// # Errors
    /// As [`Client::list_wanted`].
    pub fn list_cluster(&self, filter: &Filter) -> Result<ClusterList> {
        check(filter)?;
        let ask = |node, from| requests::Page { node, filter: filter.clone(), from };
        let mut list = Joined::default();
        for _ in 0..MAX_ROUNDS {
            let (began, mut has_moved) = (Instant::now(), false);
            let missing = each_page(self, ask, |node, page| {
                let ago = page.succeeded_us.map(Duration::from_micros);
                has_moved |= ago.is_some_and(|ago| ago <= began.elapsed());
                list.add(node, page.objects);
                page.next
            })?;
            list.missing = missing;
            if !has_moved {
                break;
            }
        }
        Ok(list.finish())
    }
}

fn check(filter: &Filter) -> Result<()> {
    match filter.pattern.len() {
        ..=MAX_NAME_BYTES => Ok(()),
        len => Err(Error::new(
            ErrorKind::Invalid,
            format!("a pattern has at most {MAX_NAME_BYTES} bytes, as names have, and this one has {len}"),
        )),
    }
}

/// Rows of a list of a cluster, one for each object.
#[derive(Default)]
struct Joined {
    rows: HashMap<ObjectId, (ObjectInfo, Vec<NodeId>)>,
    missing: Vec<(NodeId, Error)>,
}

impl Joined {
    fn add(&mut self, node: NodeId, objects: Vec<ObjectInfo>) {
        for row in objects {
            match self.rows.entry(row.id) {
                Entry::Vacant(new) => _ = new.insert((row, vec![node])),
                Entry::Occupied(mut known) if is_successor(&row, &known.get().0) => {
                    known.insert((row, vec![node]));
                }
                Entry::Occupied(known) if is_successor(&known.get().0, &row) => {}
                Entry::Occupied(known) => {
                    let (best, nodes) = known.into_mut();
                    if !nodes.contains(&node) {
                        nodes.push(node);
                    }
                    if rank(&row) < rank(best) {
                        *best = row;
                        let at = nodes.iter().position(|one| *one == node).expect("just seen");
                        nodes.swap(0, at);
                    }
                }
            }
        }
    }

    fn finish(self) -> ClusterList {
        let mut rows: Vec<_> = self.rows.into_values().collect();
        rows.sort_unstable_by_key(|(row, _)| (Reverse(row.age_ms), row.id));
        let (objects, holders) = rows.into_iter().unzip();
        ClusterList { objects, holders, missing: self.missing }
    }
}

/// Whether the object of a row was made later than that of another row of the same id.
fn is_successor(row: &ObjectInfo, of: &ObjectInfo) -> bool {
    row.version.zip(of.version).is_some_and(|(version, of)| version.is_later(of))
}

/// Rank of a row among those of its object. The row of the primary has the smallest.
fn rank(row: &ObjectInfo) -> u8 {
    match row.state {
        ObjectState::Primary => 0,
        ObjectState::Spilled => 1,
        ObjectState::Kept => 2,
        ObjectState::Cached => 3,
        ObjectState::Unsealed | ObjectState::Doomed => 4,
    }
}
