//! Transfers as a service: their frames and their reactions to events. Owns no state. Engine thread only.

use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Instant;

use plasmon::NodeId;
use plasmon::status::Status;
use plasmon::wire::{Table, WireError};

use super::Transfer;
use crate::net::frame::{Envelope, Message, TRANSFER_FRAMES};
use crate::service::Service;

impl Service for Transfer {
    fn name(&self) -> &'static str {
        "transfer"
    }

    fn frames(&self) -> RangeInclusive<u8> {
        TRANSFER_FRAMES
    }

    fn on_frame(self: Rc<Self>, frame: Envelope) -> Result<(), WireError> {
        let from = frame.from;
        match &frame.message {
            Message::Fetch { id, wish, others, .. } => self.serve(&frame, *id, *wish, others),
            Message::FetchShort { ids } => self.serve_short(&frame, ids),
            Message::Short { request, objects, missing } => self.on_short(from, *request, objects, missing),
            Message::Renew { lease } => self.leases.renew(&frame, *lease),
            Message::Release { requests } => {
                self.leases.release(from, requests);
                self.pushes.release(from, requests);
            }
            Message::Ready { request } => self.stream(from, *request),
            Message::Part { request, at, bytes } => self.take_part(from, *request, *at, bytes),
            Message::Passed { request, bytes, state } => self.feeds.report(from, *request, *bytes, *state),
            Message::Lend { len } => self.on_lend(&frame, *len),
            Message::Probe { of, len, pushed } => self.on_probe(&frame, *of, (*len, *pushed)),
            // The asker has given up, so the holder need not keep anything for this node.
            Message::Pushed { .. } => self.decline(&frame),
            message if message.comes_with_a_lease() => self.decline(&frame),
            // The answer comes too late: nobody waits for it any more.
            _ if frame.is_answer() => {}
            other => return Err(WireError::Opcode(other.opcode())),
        }
        Ok(())
    }

    fn on_gone(&self, gone: &[NodeId]) {
        self.feeds.abandon(gone);
        self.pushes.forget(gone);
    }

    fn on_tick(self: Rc<Self>, now: Instant) {
        self.expire(now);
        self.tend_relays();
    }

    fn report(&self, status: &mut Status) {
        let frames_dropped = status.transfer.frames_dropped;
        status.transfer = self.status();
        status.transfer.frames_dropped += frames_dropped;
    }
}
