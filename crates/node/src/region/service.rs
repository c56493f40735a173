//! Regions as a service: their frames, their requests and calls, and their reactions to events. Owns no
//! state: it acts on [`Regions`]. Engine thread only.

use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::NodeId;
use plasmon::shared::CallRequest;
use plasmon::status::Status;
use plasmon::wire::{BySlot, OnRegion, Request, Table, WireError};

use super::Regions;
use super::frames::{REGION_FRAMES, RegionFrame};
use super::home::Wanted;
use crate::kernel::ClientKey;
use crate::membership::views::Change;
use crate::net::frame::{Envelope, Frames};
use crate::service::{Answer, Asked, Return, Service};

impl Service for Regions {
    fn name(&self) -> &'static str {
        "regions"
    }

    fn frames(&self) -> RangeInclusive<u8> {
        REGION_FRAMES
    }

    fn requests(&self) -> RangeInclusive<u8> {
        100..=109
    }

    fn calls(&self) -> RangeInclusive<u8> {
        OnRegion::FIRST..=OnRegion::LAST
    }

    fn on_frame(self: Rc<Self>, mut frame: Envelope) -> Result<(), WireError> {
        let message = std::mem::replace(&mut frame.message, crate::net::frame::Message::Done);
        self.act(frame, RegionFrame::from_message(message)?)
    }

    fn on_request(self: Rc<Self>, asked: Asked) -> Result<Answer, WireError> {
        let client = asked.session;
        Ok(match asked.request {
            Request::CreateRegion { name, len, node, public, mappable, ephemeral, exist_ok, room_us } => {
                let room = Duration::from_micros(room_us);
                let wanted = Wanted { name, len, public, mappable, ephemeral, exist_ok, room };
                Answer::later(1, self.create(client, wanted, node))
            }
            Request::MapRegion { name, owner, rights, timeout_us } => {
                Answer::later(1, self.map(client, name, owner, rights, timeout_us))
            }
            Request::UnmapRegion { handle } => {
                let closed = self.handles.close(client, handle, self.sessions.slots(client).as_deref());
                closed.iter().for_each(|at| self.watches.note_closed(client, handle, at));
                Answer::Silent
            }
            Request::FreeRegion { handle, timeout_us } => {
                Answer::plain(1, self.free(client, handle, timeout_us))
            }
            Request::GrantRegion { handle, user, rights } => {
                Answer::plain(1, self.govern(client, handle, user, rights))
            }
            Request::RevokeRegion { handle, user } => {
                Answer::plain(1, self.govern(client, handle, user, plasmon::region::Rights::NONE))
            }
            Request::MoveRegion { handle, node, timeout_us } => {
                Answer::plain(1, self.move_region(client, handle, node, timeout_us))
            }
            Request::SnapshotRegion { handle, object, room_us } => {
                let room = Duration::from_micros(room_us);
                Answer::plain(1, self.snapshot(client, handle, object, room))
            }
            Request::ListRegions { node, from } => Answer::plain(1, self.list(client, node, from)),
            Request::DescribeRegion { handle } => Answer::plain(1, self.describe(client, handle)),
            other => return Err(WireError::Opcode(other.opcode())),
        })
    }

    fn on_call(self: Rc<Self>, client: ClientKey, request: CallRequest) -> Return {
        self.call(client, request)
    }

    fn on_change(self: Rc<Self>, change: &Change) {
        match change {
            // While this node is fenced, another node may get a region of the same name. So each operation
            // has to ask this node.
            Change::Fenced { .. } => self.handles.forbid_all(|client| self.sessions.slots(client)),
            Change::View(view) if view.begins => self.begin_anew(),
            Change::View(_) | Change::Records | Change::FormerLives(_) => {}
        }
    }

    fn on_gone(&self, gone: &[NodeId]) {
        self.arrivals.forget(gone, self.kernel.clock.now());
        if let Some(regions) = self.own.upgrade() {
            regions.lose_mappings(|home| gone.contains(home));
            regions.end_with(gone);
        }
    }

    fn on_session_end(&self, client: ClientKey) {
        if let Some(regions) = self.own.upgrade() {
            regions.end_client(client);
        }
        self.end_watches(client);
    }

    fn on_turn_end(self: Rc<Self>) -> bool {
        self.watches.tell(&self.sessions)
    }

    fn on_tick(self: Rc<Self>, _: Instant) {
        self.arrivals.forget(&[], self.kernel.clock.now());
        self.home.on_tick();
        self.end_all();
    }

    fn report(&self, status: &mut Status) {
        self.home.report(status);
        status.regions.handles = self.handles.count() as u64;
        status.regions.mappings = self.mappings.count() as u64;
    }
}
