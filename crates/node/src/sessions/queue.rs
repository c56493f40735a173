//! Queues of events of which one subscriber, or one feed, is still to be told.
//!
//! Engine thread only. Owns the events of one subscriber. Invariant: a queue keeps at most
//! [`MAX_QUEUED_EVENTS`] events, and tells where others are missing.
//!
//! The objects that exist at the beginning are told one share of the table after the other. Until a share is
//! reached, the events of its objects are left out, because the share then says what became of the objects.

use std::collections::VecDeque;
use std::rc::Rc;
use std::vec::IntoIter;

use plasmon::ObjectId;
use plasmon::wire::{Event, MAX_NAME_BYTES};

use crate::object::{Happening, Table};

/// Maximum number of events kept for a subscriber that is behind with reading.
pub(super) const MAX_QUEUED_EVENTS: usize = 1 << 16;
/// Number of objects after which a look at the table ends with the share that it has reached.
const MAX_LOOKED_AT: usize = 1 << 14;
/// Number of bytes of an encoded event beside its name, and a few more.
pub(super) const EVENT_BYTES: usize = 64;

/// Events of which a subscriber is still to be told.
pub(super) struct Queue {
    user: u32,
    /// The next share of the table to be looked at.
    share: usize,
    /// Objects of the last share that were not told yet.
    existing: IntoIter<ObjectId>,
    happened: VecDeque<Rc<Event>>,
    /// Number of events that were not kept because there was no room.
    missed: u64,
}

impl Queue {
    /// Makes the queue of a subscriber of this user who begins now.
    pub(super) fn new(user: u32) -> Self {
        Self { user, share: 0, existing: Vec::new().into_iter(), happened: VecDeque::new(), missed: 0 }
    }

    /// Whether the subscriber is this user's.
    pub(super) fn is_of(&self, user: u32) -> bool {
        self.user == user
    }

    /// Number of events that are kept.
    pub(super) fn kept(&self) -> usize {
        self.happened.len()
    }

    /// Notes an event. Returns whether the event is kept, and takes room.
    pub(super) fn note(&mut self, one: &Happening, has_room: bool) -> bool {
        // The events of later shares are told with these shares.
        if one.share >= self.share || !one.is_for(self.user) {
            return false;
        }
        // After a missed event, all events are missed until the subscriber has caught up, so that a gap has
        // one place.
        let keeps = has_room && self.missed == 0 && self.happened.len() < MAX_QUEUED_EVENTS;
        match keeps {
            true => self.happened.push_back(Rc::clone(&one.event)),
            false => self.missed += 1,
        }
        keeps
    }

    pub(super) fn is_idle(&self) -> bool {
        self.existing.len() == 0
            && self.share == Table::SHARDS
            && self.happened.is_empty()
            && self.missed == 0
    }

    /// Returns the next events, at most `most`, in at most `bytes` bytes. There may be none although more
    /// follow, because the user sees few of the objects or the objects have gone.
    pub(super) fn next(&mut self, objects: &Table, most: usize, mut bytes: usize) -> Vec<Event> {
        let (mut events, mut looked_at) = (Vec::new(), 0);
        while events.len() < most && bytes >= EVENT_BYTES + MAX_NAME_BYTES {
            if let Some(event) = self.take(objects) {
                let name = match &event {
                    Event::Sealed { name, .. }
                    | Event::Replaced { name, .. }
                    | Event::Deleted { name, .. } => name.len(),
                    Event::Gap { .. } => 0,
                };
                bytes = bytes.saturating_sub(EVENT_BYTES + name);
                events.push(event);
            } else if self.share < Table::SHARDS && looked_at < MAX_LOOKED_AT {
                looked_at += objects.sealed_in(self.share).count();
                let seen = objects.sealed_in(self.share).filter(|one| one.visible_to(self.user));
                self.existing = seen.map(|one| one.id()).collect::<Vec<_>>().into_iter();
                self.share += 1;
            } else {
                break;
            }
        }
        events
    }

    /// Takes the next event that is known without a look at another share of the table.
    fn take(&mut self, objects: &Table) -> Option<Event> {
        let visible = |id| objects.get(&id).filter(|one| one.visible_to(self.user));
        if let Some(replica) = self.existing.by_ref().find_map(visible) {
            return Some(Happening::sealed(replica));
        }
        if self.share < Table::SHARDS {
            return None;
        }
        let event = self.happened.pop_front().map(Rc::unwrap_or_clone);
        let missed = || (self.missed > 0).then(|| Event::Gap { missed: std::mem::take(&mut self.missed) });
        event.or_else(missed)
    }
}
