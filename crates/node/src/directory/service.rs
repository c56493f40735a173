//! The directory as a service: its frames and its reactions to events. Owns no state. Engine thread only.

use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::status::Status;
use plasmon::wire::{Table, WireError};

use super::Directory;
use super::finding::lost;
use crate::membership::views::Change;
use crate::net::frame::{DIRECTORY_FRAMES, Envelope, MAX_ENTRIES, Message, ask};
use crate::object::DEEDS;
use crate::service::Service;

impl Service for Directory {
    fn name(&self) -> &'static str {
        "directory"
    }

    fn frames(&self) -> RangeInclusive<u8> {
        DIRECTORY_FRAMES
    }

    fn on_frame(self: Rc<Self>, frame: Envelope) -> Result<(), WireError> {
        let from = frame.from;
        match &frame.message {
            Message::Find { id, missed, wish, avoid } => self.on_find(&frame, (*id, *missed), avoid, *wish),
            Message::FindShort { ids } => self.on_find_short(&frame, ids),
            Message::Forget { id } => _ = self.table.borrow_mut().forget(id, frame.reply_to, frame.request),
            Message::Publish { .. } | Message::Return { .. } | Message::Unpublish { .. } | Message::Serve => {
                if let Some(news) = self.hold_early(frame) {
                    self.note_news(&news);
                }
            }
            Message::Delete { lives, asked_us } => {
                self.deletion.on_delete(frame.clone(), lives.clone(), asked_us.map(Duration::from_micros));
            }
            Message::Enlist { lives, turn } => self.deletion.on_enlist(&frame, lives, *turn),
            Message::Bury { lives, successor: Some(successor) } => {
                self.replacement.on_switch(&frame, lives, successor);
            }
            Message::Bury { lives, successor: None } => self.deletion.on_bury(&frame, lives),
            Message::Drop { lives } => self.deletion.on_drop(&frame, lives),
            Message::Hold { ids, withheld } => self.on_hold(frame.clone(), ids.clone(), *withheld),
            Message::Enroll { id } => self.deletion.on_enroll(&frame, *id),
            Message::Query { ids } => self.on_query(frame.clone(), ids.clone()),
            Message::Locate { id } => {
                let mut holders = self.table.borrow_mut().holders(id, frame.user);
                holders.truncate(MAX_ENTRIES);
                let message = match frame.user == DEEDS && self.has_lost(id) {
                    true => Message::Refused { error: lost(*id) },
                    false => Message::Located { holders },
                };
                self.network.answer(&frame, message);
            }
            Message::Replace { holding, from, others, patience_us } => {
                let (others, patience) = (others.clone(), Duration::from_micros(*patience_us));
                self.replacement.on_replace(frame.clone(), *holding, (*from, others), patience);
            }
            Message::Current { id, replaces } => {
                let creator = self.claims.claimer(id);
                self.replacement.on_current(frame.clone(), (*id, *replaces), creator);
            }
            Message::Guard { id, lives, turn, lifts } => {
                let order = ask::Guard { id: *id, lives: lives.clone(), turn: *turn, lifts: *lifts };
                self.guards.on_guard(&frame, &order);
            }
            Message::Claim { id, probe } => self.claims.on_claim(&frame, *id, *probe),
            Message::Unclaim { ids } => self.claims.on_unclaim(from, ids),
            Message::Affirm { ids } => self.claims.on_affirm(from, ids),
            Message::Taken { ids } => self.claims.on_taken(ids),
            // The answer comes too late: nobody waits for it any more.
            _ if frame.is_answer() => {}
            other => return Err(WireError::Opcode(other.opcode())),
        }
        Ok(())
    }

    fn on_change(self: Rc<Self>, change: &Change) {
        match change {
            Change::View(view) => self.on_view(view),
            Change::Records | Change::FormerLives(_) => {}
            Change::Fenced { .. } => self.on_fenced(),
        }
    }

    fn on_tick(self: Rc<Self>, now: Instant) {
        self.tend_directory();
        self.writer.tend(now);
        self.tend_early();
        self.republish_to(&self.network.take_missed());
    }

    fn on_turn_end(self: Rc<Self>) -> bool {
        self.news.tell();
        false
    }

    fn due(&self) -> Option<Duration> {
        self.news.until_due()
    }

    fn report(&self, status: &mut Status) {
        status.cluster.directory_entries = self.table.borrow().len() as u64;
        status.cluster.healing = self.repairs();
        status.cluster.copies.short = self.table.borrow().short() as u64;
        status.cluster.copies.claims = self.claims.count() as u64;
    }
}
