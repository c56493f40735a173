//! Whether objects exist: asking their first keepers, and answering as a first keeper. Owns no
//! state. Engine thread only.

use std::rc::Rc;
use std::time::Duration;

use futures::future::join_all;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::asking::QUERY_PATIENCE;
use super::finding::lost;
use crate::directory::Directory;
use crate::net::frame::{Envelope, Message, ask};

impl Directory {
    /// Asks the first keepers whether objects exist in the cluster.
    ///
    /// # Errors
    /// `TimedOut` when a keeper does not answer.
    pub(crate) async fn known(self: &Rc<Self>, ids: &[ObjectId], user: u32) -> Result<Vec<bool>, Error> {
        self.known_within(ids, user, QUERY_PATIENCE).await
    }

    async fn known_within(
        &self,
        ids: &[ObjectId],
        user: u32,
        patience: Duration,
    ) -> Result<Vec<bool>, Error> {
        self.cluster.ensure_member()?;
        let query = |ids, _| ask::Query { ids };
        let answers = self.asking.ask_first_keepers(ids, user, query, |found| found.known, patience).await?;
        Ok(answers.into_iter().map(|(known, _)| known).collect())
    }

    /// Asks the first keepers whether objects exist in the cluster, each keeper by one question for
    /// all of its objects. Returns one answer for each id, in order. If a keeper does not answer, only
    /// the answers about its objects are errors.
    pub(crate) async fn known_each(
        &self,
        ids: &[ObjectId],
        user: u32,
        patience: Duration,
    ) -> Vec<Result<bool, Error>> {
        let places: Vec<usize> = (0..ids.len()).collect();
        let lots = self.asking.lots(ids, &places, &vec![false; ids.len()]);
        let asked = lots.iter().map(|(_, lot)| async {
            let ids: Vec<_> = lot.iter().map(|at| ids[*at]).collect();
            self.known_within(&ids, user, patience).await
        });
        let answers = join_all(asked).await;
        let mut each = vec![Ok(false); ids.len()];
        for ((_, lot), answer) in lots.iter().zip(answers) {
            for (nth, at) in lot.iter().enumerate() {
                each[*at] = answer.as_ref().map(|known| known[nth]).map_err(Clone::clone);
            }
        }
        each
    }

    /// Answers, as the first keeper, whether objects exist. The node that creates an object is asked
    /// whether it has sealed the object, because the publication may be on its way. A node that
    /// became the keeper lately asks every member.
    pub(crate) fn on_query(self: &Rc<Self>, asked: Envelope, ids: Vec<ObjectId>) {
        let user = asked.user;
        if !self.asking.decides_for(&asked, &ids) {
            return self.network.answer(&asked, self.asking.not_the_keeper());
        }
        let (known, doubted): (Vec<_>, Vec<_>) = {
            let mut table = self.table.borrow_mut();
            ids.iter().map(|id| (table.knows(id, user), table.doubts(id, user))).unzip()
        };
        let now = self.kernel.clock.now();
        let unknown = || (0..ids.len()).filter(|at| !known[*at]);
        // The asker is told that the object does not exist only when clients of a dead daemon can
        // no longer read the object.
        let until = unknown().filter_map(|at| self.deletion.readable_until(&ids[at], now)).max();
        let unsettled: Vec<_> =
            unknown().filter(|at| doubted[*at] || self.cluster.is_unsettled(&ids[*at], now)).collect();
        let claimed: Vec<_> = unknown().filter_map(|at| Some((at, self.claims.claimer(&ids[at])?))).collect();
        if unsettled.is_empty() && claimed.is_empty() && until.is_none() {
            return self.network.answer(&asked, Message::Found { known });
        }
        let directory = Rc::clone(self);
        self.kernel.spawn(async move {
            let message = match directory.look_closer(&ids, user, known, &unsettled, &claimed).await {
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

    /// Refuses the fetch of an object that the second keeper knows to be lost, unless this node knows of
    /// a new object of the id. A node that became the keeper lately asks every member first, because the
    /// publication of a new object may be on its way.
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
                .asking
                .held_anywhere(doubted, asked.user)
                .await
                .is_some_and(|held| !held.contains(&true));
            if nobody && directory.claims.claimer(&id).is_none() {
                let waited = directory.table.borrow_mut().forget(&id, asked.reply_to, asked.request);
                if waited {
                    directory.network.answer(&asked, Message::Refused { error: lost(id) });
                }
            }
        });
    }

    /// Asks the nodes that create objects whether they have sealed them, and every member about the objects
    /// whose keepers have changed. Returns which objects are known then; `None` if a node does not answer.
    async fn look_closer(
        self: &Rc<Self>,
        ids: &[ObjectId],
        user: u32,
        mut known: Vec<bool>,
        unsettled: &[usize],
        claimed: &[(usize, NodeId)],
    ) -> Option<Vec<bool>> {
        let doubted: Vec<_> = unsettled.iter().map(|at| ids[*at]).collect();
        let held = self.asking.held_anywhere(&doubted, user).await?;
        // One object may have taken the place of another while the members answered.
        let now_known = |id| self.table.borrow_mut().knows(id, user);
        unsettled.iter().zip(held).for_each(|(at, held)| known[*at] |= held || now_known(&ids[*at]));
        let sealed =
            claimed.iter().map(|(at, claimer)| self.asking.held_by(vec![*claimer], &ids[*at..=*at], user));
        for ((at, _), sealed) in claimed.iter().zip(join_all(sealed).await) {
            known[*at] |= sealed?[0];
        }
        Some(known)
    }
}
