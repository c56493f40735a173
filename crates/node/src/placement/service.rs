//! Placement as a service: its frames and its reactions to events. Owns no state. Engine thread only.

use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Instant;

use plasmon::status::Status;
use plasmon::wire::{Table, WireError};

use super::Placement;
use crate::net::frame::{Envelope, Message, PLACEMENT_FRAMES};
use crate::service::Service;

impl Service for Placement {
    fn name(&self) -> &'static str {
        "placement"
    }

    fn frames(&self) -> RangeInclusive<u8> {
        PLACEMENT_FRAMES
    }

    fn on_frame(self: Rc<Self>, frame: Envelope) -> Result<(), WireError> {
        match &frame.message {
            Message::Acquire { order } => self.on_order(frame.clone(), *order),
            Message::Migrate { id, to } => self.on_migrate(frame.clone(), *id, *to),
            Message::HandOver { id, life, to, keep, copies } => {
                self.on_hand_over(frame.clone(), (*id, *life), *to, (*keep, *copies));
            }
            Message::Promote { heirs } => heirs.iter().for_each(|heir| self.inherit(heir)),
            Message::Withhold { head, was, pieces } => {
                self.on_withhold(frame.clone(), head.clone(), *was, pieces.clone());
            }
            Message::Known { id, life } => self.on_known(&frame, *id, *life),
            Message::Unveil { id, life, shows } => self.on_unveil(&frame, (*id, *life), *shows),
            Message::Drain { step } => self.on_drain(&frame, *step),
            other => return Err(WireError::Opcode(other.opcode())),
        }
        Ok(())
    }

    fn on_tick(self: Rc<Self>, _: Instant) {
        self.tend_replicas();
        self.tend_expiry();
    }

    fn report(&self, status: &mut Status) {
        self.report_replication(&mut status.cluster.copies);
    }

    fn unfit(&self) -> Option<String> {
        let text = "it is being drained: it takes nothing new, and leaves when other nodes have its objects";
        self.is_draining().then(|| text.into())
    }
}
