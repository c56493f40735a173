//! What nodes tell the directory that have followed a later view already: it waits for that view.
//!
//! Engine thread only. Such a node may publish to this one as the keeper of a shard that, by the view that
//! this node follows next, it does not keep yet: an entry made at once would go with that view, and the
//! holder would not tell again. News of one node stay in order, since all of a later view wait. None waits
//! for long: a view may never come, as when the coordinator dies while it tells it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::directory::Directory;
use crate::net::frame::{Envelope, Message};

/// Messages that wait at most: with more, none does.
const MAX_EARLY_MESSAGES: usize = 1024;
/// How long one waits at most.
const EARLY_PATIENCE: Duration = Duration::from_secs(2);

/// Messages of nodes that are ahead, in the order in which they came.
#[derive(Default)]
pub(crate) struct Early(RefCell<VecDeque<(Instant, Envelope)>>);

impl Early {
    /// Forgets what peers said to a former membership of this node: to a new one they say all of it again.
    pub(crate) fn forget(&self) {
        self.0.borrow_mut().clear();
    }
}

impl Directory {
    /// Keeps what is for a later view; gives back what is for now.
    pub(crate) fn hold_early(self: &Rc<Self>, envelope: Envelope) -> Option<Envelope> {
        let news = matches!(
            envelope.message,
            Message::Publish { .. } | Message::Return { .. } | Message::Unpublish { .. }
        );
        if !news || envelope.epoch <= self.cluster.epoch() || self.cluster.fenced() {
            return Some(envelope);
        }
        let early = &self.early.0;
        if early.borrow().len() >= MAX_EARLY_MESSAGES {
            self.take_early(|_| true);
            return Some(envelope);
        }
        early.borrow_mut().push_back((self.kernel.clock.now(), envelope));
        None
    }

    /// Acts on what has waited for the view that was followed now.
    pub(crate) fn follow_early(self: &Rc<Self>) {
        let epoch = self.cluster.epoch();
        self.take_early(|envelope| envelope.epoch <= epoch);
    }

    /// Acts on what has waited long enough; to be called now and then.
    pub(crate) fn tend_early(self: &Rc<Self>) {
        let now = self.kernel.clock.now();
        // What came after it from the same node comes after it.
        if self.early.0.borrow().front().is_some_and(|(since, _)| now >= *since + EARLY_PATIENCE) {
            self.take_early(|_| true);
        }
    }

    /// Takes note of what a node says that it holds or does not hold any more.
    pub(crate) fn note_news(self: &Rc<Self>, envelope: &Envelope) {
        match &envelope.message {
            Message::Publish { holdings } => self.on_publish(envelope, holdings, false),
            Message::Return { holdings } => self.on_publish(envelope, holdings, true),
            Message::Unpublish { how, ids } => self.on_unpublish(envelope.from, *how, ids),
            _ => {}
        }
    }

    fn take_early(self: &Rc<Self>, due: impl Fn(&Envelope) -> bool) {
        let waiting = self.early.0.take();
        let (due, later): (VecDeque<_>, _) = waiting.into_iter().partition(|(_, envelope)| due(envelope));
        self.early.0.replace(later);
        due.into_iter().for_each(|(_, envelope)| self.note_news(&envelope));
    }
}
