//! Messages to the directory from nodes that follow a later view: they are held back until this
//! node follows it.
//!
//! Owns [`Early`]. Engine thread only. A node with a later view may publish to this node as the keeper of
//! a shard that this node does not keep yet. An entry made at once would be dropped with a view in
//! between, and the holder would not publish it again. All that nodes say of their objects in later views is
//! held back, so that the messages of one node stay in order. Their number has no limit: members are trusted
//! to say of each object what has changed, and no more.
//!
//! Without its coordinator this node follows no later view, until it is a member anew and is told everything
//! again. Then messages are held back for [`EARLY_PATIENCE`] only: the coordinator may have died while it
//! distributed the later view, and may be away for long.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::NodeId;

use crate::directory::Directory;
use crate::net::frame::{Envelope, Message};

/// Maximum time for which a message is held back while this node has no coordinator. This node may be a
/// member anew without knowing it yet, and what is said to the new member is not said again.
const EARLY_PATIENCE: Duration = Duration::from_secs(2);

/// Messages of nodes that follow a later view, in the order in which they came.
#[derive(Default)]
pub(crate) struct Early(RefCell<VecDeque<(Instant, Envelope)>>);

impl Early {
    /// Forgets what peers said in views before `epoch`, in which the membership of this node begins.
    /// Peers say all of it again to a new membership. A peer that followed the view of `epoch`
    /// before this node has said it again already.
    pub(crate) fn forget_before(&self, epoch: u64) {
        self.0.borrow_mut().retain(|(_, envelope)| envelope.epoch >= epoch);
    }

    /// Forgets what nodes said that are no members any more, or as another incarnation.
    pub(crate) fn forget_from(&self, gone: &[NodeId]) {
        self.0.borrow_mut().retain(|(_, envelope)| !gone.contains(&envelope.from));
    }
}

impl Directory {
    /// Holds back a message of a later view; returns any other message.
    pub(crate) fn hold_early(self: &Rc<Self>, envelope: Envelope) -> Option<Envelope> {
        if envelope.epoch <= self.cluster.epoch() || self.cluster.fenced() {
            return Some(envelope);
        }
        self.early.0.borrow_mut().push_back((self.kernel.clock.now(), envelope));
        None
    }

    /// Acts on the messages that waited for the view that is followed now.
    pub(crate) fn follow_early(self: &Rc<Self>) {
        let epoch = self.cluster.epoch();
        self.take_early(|envelope| envelope.epoch <= epoch);
    }

    /// Acts on the messages that were held back long enough; called regularly.
    pub(crate) fn tend_early(self: &Rc<Self>) {
        if self.cluster.awaits_views() {
            return;
        }
        let now = self.kernel.clock.now();
        // The messages that were held back later go with the first, so that those of one node stay in order.
        if self.early.0.borrow().front().is_some_and(|(since, _)| now >= *since + EARLY_PATIENCE) {
            self.take_early(|_| true);
        }
    }

    /// Takes note of what a node says of its objects.
    pub(crate) fn note_news(self: &Rc<Self>, envelope: &Envelope) {
        match &envelope.message {
            Message::Publish { holdings } => self.on_publish(envelope, holdings, false),
            Message::Return { holdings } => self.on_publish(envelope, holdings, true),
            Message::Unpublish { how, ids } => self.on_unpublish(envelope.from, *how, ids),
            Message::Serve => self.table.borrow_mut().note_serving(envelope.from),
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

#[cfg(test)]
mod tests {
    use plasmon::wire::{Draw, Wire};

    use super::*;
    use crate::net::frame::MessageHeader;

    #[test]
    fn what_peers_said_to_the_new_membership_is_kept() {
        let early = Early::default();
        let news = |epoch| {
            let message = Message::Publish { holdings: Vec::new() };
            let (mut draw, sender) = (Draw::new(1), MessageHeader::draw(&mut Draw::new(1)));
            Envelope { epoch, ..Envelope::draw(&mut draw, &sender, message) }
        };
        let now = Instant::now();
        early.0.borrow_mut().extend([8, 11, 10, 12].map(|epoch| (now, news(epoch))));
        // A node that was taken for dead in view 10 is a member again in view 11. Some peers
        // followed view 11 before this node.
        early.forget_before(11);
        let kept: Vec<_> = early.0.borrow().iter().map(|(_, envelope)| envelope.epoch).collect();
        assert_eq!(kept, [11, 12]);
    }
}
