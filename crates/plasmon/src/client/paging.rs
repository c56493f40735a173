//! Lists that all nodes of the cluster tell page by page.
//!
//! Owns no state. The calling thread.

use super::connection::{Ticket, Undo, unexpected};
use super::{Client, Question};
use crate::wire::{replies, requests};
use crate::{Error, ErrorKind, NodeId, Result};

/// Number of nodes that are asked at the same time.
const MAX_NODES_ASKED: usize = 64;

/// Nodes that did not tell all their rows, each with the reason.
pub(super) type Missing = Vec<(NodeId, Error)>;

/// Asks all nodes for all pages of a list. Returns the rows in no order, and the nodes that did not answer.
pub(super) fn pages<Q: Question, Row>(
    client: &Client,
    question: impl Fn(NodeId, u64) -> Q,
    rows: impl Fn(Q::Answer) -> (Vec<Row>, Option<u64>),
) -> Result<(Vec<Row>, Missing)> {
    let mut all = Vec::new();
    let missing = each_page(client, question, |_, page| {
        let (page, next) = rows(page);
        all.extend(page);
        next
    })?;
    Ok((all, missing))
}

/// Asks all nodes for all pages of a list, and gives each page to `take`, which returns where the next page
/// of that node begins. Returns the nodes that did not answer.
pub(super) fn each_page<Q: Question>(
    client: &Client,
    question: impl Fn(NodeId, u64) -> Q,
    mut take: impl FnMut(NodeId, Q::Answer) -> Option<u64>,
) -> Result<Missing> {
    let replies::Members(nodes) = client.ask(requests::Members, Undo::Nothing)?;
    let mut missing = Vec::new();
    let mut waiting = nodes.into_iter();
    let mut asked: Vec<(NodeId, u64)> =
        waiting.by_ref().take(MAX_NODES_ASKED).map(|node| (node, 0)).collect();
    while !asked.is_empty() {
        let ask = |&(node, from): &(NodeId, u64)| {
            client.connection.send(&question(node, from).into(), Undo::Nothing)
        };
        let tickets = asked.iter().map(ask).collect::<Result<Vec<Ticket<'_>>>>()?;
        let mut further = Vec::new();
        // The nodes answer at the same time, so that several silent ones take no longer than one.
        let due = client.due_of_answer();
        for ((node, from), ticket) in asked.into_iter().zip(tickets) {
            match client.answer_to::<Q>(ticket, due) {
                Ok(page) => {
                    let next = take(node, page);
                    // A page that begins where the last one did would never end.
                    if next.is_some_and(|next| next <= from) {
                        return Err(client.connection.fail(unexpected("a list without an end")));
                    }
                    further.extend(next.map(|from| (node, from)));
                }
                // An interrupt ends the whole listing, and so does a failure of this node.
                Err(error) if error.kind() == ErrorKind::Interrupted || node == client.node => {
                    return Err(error);
                }
                Err(error) => missing.push((node, error)),
            }
        }
        let free = MAX_NODES_ASKED - further.len();
        further.extend(waiting.by_ref().take(free).map(|node| (node, 0)));
        asked = further;
    }
    Ok(missing)
}
