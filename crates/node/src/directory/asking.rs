//! Questions to the first keeper of an object, which decides about the object, and to members about what
//! they hold. Owns no state. Engine thread only.
//!
//! A keeper answers only if it is the first by its own view and this view is not older than the
//! asker's. Otherwise the keeper answers *busy*, and the asker asks again: this keeper, or the
//! first keeper of the next view.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{join_all, select};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::table::Table;
use crate::kernel::Kernel;
use crate::kernel::random::HashMap;
use crate::membership::Cluster;
use crate::net::frame::{Ask, Envelope, Life, MAX_ENTRIES, Message, ask};
use crate::net::network::Network;

/// How long one request waits for an answer before the node is asked again.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// The pause before a node is asked again.
const ASK_PAUSE: Duration = Duration::from_millis(5);
/// How long a question to members whether they hold objects waits for answers.
pub(super) const QUERY_PATIENCE: Duration = Duration::from_secs(5);

/// Nodes that have not answered yet.
pub(super) type Missing = Rc<RefCell<BTreeSet<NodeId>>>;

/// Access to the nodes that decide about objects, and to those that hold them.
pub(super) struct Asking {
    pub(super) kernel: Rc<Kernel>,
    pub(super) network: Rc<Network>,
    pub(super) cluster: Rc<Cluster>,
    pub(super) table: Rc<RefCell<Table>>,
}

impl Asking {
    /// Asks the first keeper of each object, following changes of the keeper. Returns with each answer
    /// whether a keeper that was asked before may have carried out the request as well. A `question` that
    /// is asked again says how long ago the first one was asked.
    pub(super) async fn ask_first_keepers<Q: Ask, T: Copy>(
        &self,
        ids: &[ObjectId],
        user: u32,
        question: impl Fn(Vec<ObjectId>, Option<Duration>) -> Q,
        each: impl Fn(Q::Answer) -> Vec<T>,
        patience: Duration,
    ) -> Result<Vec<(T, bool)>, Error> {
        let begun = self.kernel.clock.now();
        let due = begun + patience;
        let mut answers: Vec<Option<(T, bool)>> = vec![None; ids.len()];
        let mut repeated = vec![false; ids.len()];
        let mut left: Vec<usize> = (0..ids.len()).collect();
        loop {
            let next_view = self.cluster.next_view();
            let asked = self.lots(ids, &left, &repeated).into_iter().map(|(keeper, lot)| {
                let now = self.kernel.clock.now();
                let ago = repeated[lot[0]].then(|| now - begun);
                let question = question(lot.iter().map(|at| ids[*at]).collect(), ago);
                let patience = due.saturating_duration_since(now);
                async move { (self.network.ask(keeper, user, question, patience).await, keeper, lot) }
            });
            let mut trouble = None;
            for (answer, keeper, lot) in join_all(asked).await {
                match answer {
                    Ok(answer) => {
                        let each = each(answer);
                        if each.len() != lot.len() {
                            let text = format!("node {keeper} answered for {} of {}", each.len(), lot.len());
                            return Err(Error::new(ErrorKind::Internal, text));
                        }
                        for (at, one) in lot.iter().zip(each) {
                            answers[*at] = Some((one, repeated[*at]));
                        }
                    }
                    // The node is not the first keeper, or does not know yet that it is.
                    Err(error) if error.kind() == ErrorKind::Busy => trouble = Some((keeper, error)),
                    Err(error) if matches!(error.kind(), ErrorKind::Disconnected | ErrorKind::TimedOut) => {
                        lot.iter().for_each(|at| repeated[*at] = true);
                        trouble = Some((keeper, error));
                    }
                    Err(error) => return Err(error),
                }
            }
            left.retain(|at| answers[*at].is_none());
            let Some((keeper, error)) = trouble else { break };
            if self.kernel.clock.now() >= due {
                let text = format!("node {keeper}, which decides about it, does not answer: {error}");
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
            self.cluster.ensure_member()?;
            select(next_view, std::pin::pin!(self.kernel.clock.sleep(ASK_PAUSE))).await;
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Groups the objects at the positions `which` by their first keeper, and by whether they are asked
    /// for again. Returns the positions in lots that fit a frame.
    pub(super) fn lots(
        &self,
        ids: &[ObjectId],
        which: &[usize],
        repeated: &[bool],
    ) -> Vec<(NodeId, Vec<usize>)> {
        let mut by_keeper: HashMap<(NodeId, bool), Vec<usize>> = HashMap::default();
        for at in which {
            let first = self.cluster.keepers(&ids[*at]).first;
            by_keeper.entry((first, repeated[*at])).or_default().push(*at);
        }
        let split = |((keeper, _), lot): ((NodeId, bool), Vec<usize>)| -> Vec<_> {
            lot.chunks(MAX_ENTRIES).map(|lot| (keeper, lot.to_vec())).collect()
        };
        by_keeper.into_iter().flat_map(split).collect()
    }

    /// Whether this node decides about the objects that another node asks for, by the views of both.
    pub(super) fn decides_for(&self, asked: &Envelope, ids: &[ObjectId]) -> bool {
        let first = |id: &ObjectId| self.cluster.keepers(id).first == self.kernel.node;
        asked.epoch <= self.cluster.epoch() && !self.cluster.fenced() && ids.iter().all(first)
    }

    /// Returns the answer to a node that asked this node to decide, although this node does not.
    pub(super) fn not_the_keeper(&self) -> Message {
        let text = format!(
            "node {} is not the first keeper of these objects, or does not know yet that it is",
            self.kernel.node
        );
        Message::Refused { error: Error::new(ErrorKind::Busy, text) }
    }

    /// Returns the lives of objects that these nodes hold and that a user may see. With `withheld`
    /// the lives include those that a node has brought back and gives nobody yet. Waits for each
    /// node until it answers or has gone.
    pub(super) async fn lives_on(
        &self,
        nodes: Vec<NodeId>,
        ids: &[ObjectId],
        (user, withheld): (u32, bool),
        missing: &Missing,
    ) -> Vec<(ObjectId, Life, NodeId)> {
        if ids.is_empty() {
            return Vec::new();
        }
        let hold = ask::Hold { ids: ids.to_vec(), withheld };
        let asked = nodes.iter().map(|node| self.ask_until_gone(*node, user, hold.clone(), missing));
        let mut found = Vec::new();
        for (node, held) in nodes.iter().zip(join_all(asked).await) {
            let lives = ids.iter().zip(held.map_or_else(Vec::new, |held| held.lives));
            found.extend(lives.filter_map(|(id, life)| Some((*id, life?, *node))));
        }
        found
    }

    /// Asks a node repeatedly until it answers or is not a member any more; `None` in the second case.
    pub(super) async fn ask_until_gone<Q: Ask + Clone>(
        &self,
        node: NodeId,
        user: u32,
        question: Q,
        missing: &Missing,
    ) -> Option<Q::Answer> {
        missing.borrow_mut().insert(node);
        let mut pause = ASK_PAUSE;
        let answer = loop {
            if !self.cluster.is_member(node) {
                break None;
            }
            let next_view = self.cluster.next_view();
            match self.network.ask(node, user, question.clone(), ANSWER_PATIENCE).await {
                Ok(answer) => break Some(answer),
                Err(_) => _ = select(next_view, std::pin::pin!(self.kernel.clock.sleep(pause))).await,
            }
            pause = (2 * pause).min(ANSWER_PATIENCE);
        };
        missing.borrow_mut().remove(&node);
        answer
    }

    /// Returns for each object whether any member holds the object and the user may see it; `None`
    /// if a member does not answer in time.
    pub(super) async fn held_anywhere(&self, ids: &[ObjectId], user: u32) -> Option<Vec<bool>> {
        self.held_by(self.cluster.others(&[]), ids, user).await
    }

    /// Returns for each object whether any of these nodes holds the object and the user may see it;
    /// `None` if one of the nodes does not answer in time. A node that has gone holds no object.
    pub(super) async fn held_by(&self, nodes: Vec<NodeId>, ids: &[ObjectId], user: u32) -> Option<Vec<bool>> {
        let (until, missing) = (self.kernel.clock.now() + QUERY_PATIENCE, Missing::default());
        let held = self
            .kernel
            .clock
            .bounded(Some(until), self.lives_on(nodes, ids, (user, false), &missing))
            .await?;
        // A node may hold a replaced life that it has not dropped yet.
        let table = self.table.borrow();
        let counts = |(id, life, _): &&(ObjectId, Life, NodeId)| !table.is_buried(id, life.life);
        let held: Vec<_> = held.iter().filter(counts).collect();
        Some(ids.iter().map(|id| held.iter().any(|(held, ..)| held == id)).collect())
    }
}
