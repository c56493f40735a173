//! Finding and asking the first keeper of an object, which decides about it. Engine thread only.
//!
//! A keeper answers only if it is the first by its own view and its view is not older than the asker's.
//! Otherwise it answers *busy*, and the asker asks it again, or asks the first keeper of the next view.

use std::rc::Rc;
use std::time::Duration;

use futures::future::{join_all, select};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::deletion::{DELETION_PAUSE, Missing};
use super::finding::lost;
use crate::directory::Directory;
use crate::kernel::random::HashMap;
use crate::net::frame::{Ask, MAX_ENTRIES, ask};
use crate::net::frame::{Envelope, Message};

/// How long a query whether objects exist waits for answers.
const QUERY_PATIENCE: Duration = Duration::from_secs(5);

impl Directory {
    /// Asks the first keepers whether objects exist in the cluster.
    ///
    /// # Errors
    /// `TimedOut` when a keeper does not answer.
    pub(crate) async fn known(self: &Rc<Self>, ids: &[ObjectId], tenant: u32) -> Result<Vec<bool>, Error> {
        self.cluster.ensure_member()?;
        let query = |ids| ask::Query { ids };
        let answers = self.ask_first_keepers(ids, tenant, query, |found| found.known, QUERY_PATIENCE).await?;
        Ok(answers.into_iter().map(|(known, _)| known).collect())
    }

    /// Asks the first keeper of each object, following changes of the keeper. With each answer it returns
    /// whether a keeper that was asked before may have carried out the request as well.
    pub(crate) async fn ask_first_keepers<Q: Ask, T: Copy>(
        self: &Rc<Self>,
        ids: &[ObjectId],
        tenant: u32,
        question: impl Fn(Vec<ObjectId>) -> Q,
        each: impl Fn(Q::Answer) -> Vec<T>,
        patience: Duration,
    ) -> Result<Vec<(T, bool)>, Error> {
        let due = self.kernel.clock.now() + patience;
        let mut answers: Vec<Option<(T, bool)>> = vec![None; ids.len()];
        let mut repeated = vec![false; ids.len()];
        let mut left: Vec<usize> = (0..ids.len()).collect();
        loop {
            let next_view = self.cluster.next_view();
            let asked = self.lots(ids, &left).into_iter().map(|(keeper, lot)| {
                let question = question(lot.iter().map(|at| ids[*at]).collect());
                let patience = due.saturating_duration_since(self.kernel.clock.now());
                async move { (self.network.ask(keeper, tenant, question, patience).await, keeper, lot) }
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
            select(next_view, std::pin::pin!(self.kernel.clock.sleep(DELETION_PAUSE))).await;
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Groups the positions of ids by their first keeper, in lots that fit a frame.
    fn lots(&self, ids: &[ObjectId], which: &[usize]) -> Vec<(NodeId, Vec<usize>)> {
        let mut by_keeper: HashMap<NodeId, Vec<usize>> = HashMap::default();
        for at in which {
            by_keeper.entry(self.cluster.keepers(&ids[*at]).first).or_default().push(*at);
        }
        let split = |(keeper, lot): (NodeId, Vec<usize>)| -> Vec<_> {
            lot.chunks(MAX_ENTRIES).map(|lot| (keeper, lot.to_vec())).collect()
        };
        by_keeper.into_iter().flat_map(split).collect()
    }

    /// Whether this node decides about the objects that another node asks for, by the views of both.
    pub(crate) fn decides_for(&self, asked: &Envelope, ids: &[ObjectId]) -> bool {
        let first = |id: &ObjectId| self.cluster.keepers(id).first == self.kernel.node;
        asked.epoch <= self.cluster.epoch() && !self.cluster.fenced() && ids.iter().all(first)
    }

    pub(crate) fn not_the_keeper(&self) -> Message {
        let text = format!(
            "node {} is not the first keeper of these objects, or does not know yet that it is",
            self.kernel.node
        );
        Message::Refused { error: Error::new(ErrorKind::Busy, text) }
    }

    /// Answers, as their first keeper, whether objects exist. An object that is being created may have been
    /// sealed while its publication is on the way. A keeper that has become one lately asks the second
    /// keeper as well.
    pub(crate) fn on_query(self: &Rc<Self>, asked: Envelope, ids: Vec<ObjectId>) {
        let tenant = asked.tenant;
        if !self.decides_for(&asked, &ids) {
            return self.network.answer(&asked, self.not_the_keeper());
        }
        let (known, doubted): (Vec<_>, Vec<_>) = {
            let mut table = self.table.borrow_mut();
            ids.iter().map(|id| (table.knows(id, tenant), table.doubts(id, tenant))).unzip()
        };
        let now = self.kernel.clock.now();
        let unknown = || (0..ids.len()).filter(|at| !known[*at]);
        // A node that is told that the object does not exist may still see it through clients of a dead
        // daemon.
        let until = unknown().filter_map(|at| self.readable_until(&ids[at], now)).max();
        let unsettled: Vec<_> =
            unknown().filter(|at| doubted[*at] || self.cluster.is_unsettled(&ids[*at], now)).collect();
        let claimed: Vec<_> = unknown().filter_map(|at| Some((at, self.claimer(&ids[at])?))).collect();
        if unsettled.is_empty() && claimed.is_empty() && until.is_none() {
            return self.network.answer(&asked, Message::Found { known });
        }
        let directory = Rc::clone(self);
        self.kernel.spawn(async move {
            let message = match directory.look_closer(&ids, tenant, known, &unsettled, &claimed).await {
                Some(known) => {
                    if let Some(until) = until {
                        directory.kernel.clock.until(until).await;
                    }
                    Message::Found { known }
                }
                None => {
                    let text = "a node that may hold one of these objects does not answer";
                    Message::Refused { error: Error::new(ErrorKind::TimedOut, text) }
                }
            };
            directory.network.answer(&asked, message);
        });
    }

    /// Refuses the fetch of an object that the second keeper knows to be lost, unless a new object of the
    /// id is known. A keeper that has become one lately asks every member first, since the publication of a
    /// new object may be on its way here.
    pub(crate) fn on_missed(self: &Rc<Self>, asked: Envelope, id: ObjectId) {
        let directory = Rc::clone(self);
        self.kernel.spawn(async move {
            let doubted: &[ObjectId] = match directory.cluster.is_unsettled(&id, directory.kernel.clock.now())
            {
                true => &[id],
                false => &[],
            };
            // Without an answer from every member, the asker waits and asks again.
            let nobody = directory
                .held_anywhere(doubted, asked.tenant)
                .await
                .is_some_and(|held| !held.contains(&true));
            if nobody && directory.claimer(&id).is_none() {
                let waited = directory.table.borrow_mut().forget(&id, asked.reply_to, asked.request);
                if waited {
                    directory.network.answer(&asked, Message::Refused { error: lost(id) });
                }
            }
        });
    }

    /// Asks the nodes that create objects whether they have sealed them, and every member about the objects
    /// whose keepers have changed; `None` if one of them does not answer.
    async fn look_closer(
        self: &Rc<Self>,
        ids: &[ObjectId],
        tenant: u32,
        mut known: Vec<bool>,
        unsettled: &[usize],
        claimed: &[(usize, NodeId)],
    ) -> Option<Vec<bool>> {
        let doubted: Vec<_> = unsettled.iter().map(|at| ids[*at]).collect();
        let held = self.held_anywhere(&doubted, tenant).await?;
        unsettled.iter().zip(held).for_each(|(at, held)| known[*at] |= held);
        let sealed =
            claimed.iter().map(|(at, claimer)| self.held_by(vec![*claimer], &ids[*at..=*at], tenant));
        for ((at, _), sealed) in claimed.iter().zip(join_all(sealed).await) {
            known[*at] |= sealed?[0];
        }
        Some(known)
    }

    /// Whether any member holds each of the objects and the user may see it; `None` if a member does not
    /// answer.
    pub(crate) async fn held_anywhere(self: &Rc<Self>, ids: &[ObjectId], tenant: u32) -> Option<Vec<bool>> {
        self.held_by(self.cluster.others(&[]), ids, tenant).await
    }

    /// Whether any of these nodes holds each of the objects. A node that has gone holds none.
    async fn held_by(
        self: &Rc<Self>,
        nodes: Vec<NodeId>,
        ids: &[ObjectId],
        tenant: u32,
    ) -> Option<Vec<bool>> {
        let (until, missing) = (self.kernel.clock.now() + QUERY_PATIENCE, Missing::default());
        let held = self
            .kernel
            .clock
            .bounded(Some(until), self.lives_on(nodes, ids, (tenant, false), &missing))
            .await?;
        Some(ids.iter().map(|id| held.iter().any(|(held, ..)| held == id)).collect())
    }
}
