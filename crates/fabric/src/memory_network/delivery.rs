//! Posts operations, and delivers the events that are due.
//!
//! Owns no state: the functions work on the [`Wires`]. Engine thread only. Invariants: rights and range of an
//! access are checked right before every copy; the bytes of a read are copied only before the read is
//! reported.

use std::ptr;
use std::time::Duration;

use super::EAGER_BYTES;
use super::wires::{Due, Flight, Lane, LaneName, PortName, Report, Request, Wires};
use crate::error::TRUNCATED;

/// Outcome of serving an operation.
enum Served {
    /// The whole operation is done.
    Whole,
    /// The rest of the operation follows at another moment.
    Half,
    /// The far side refuses the access.
    Refused,
}

impl Wires {
    /// Posts an operation of `near` towards `far`.
    ///
    /// # Safety
    /// The `len` bytes at `buffer` stay mapped until the operation is reported or `near` is closed.
    pub(super) unsafe fn post(
        &mut self,
        (near, far): LaneName,
        (index, request): (usize, Request),
        (buffer, len): (*mut u8, usize),
    ) {
        if !self.ports.contains_key(&near) {
            // The host was killed.
            return;
        }
        let number = self.number();
        let (now, name) = (self.now, (near, far));
        let lane = self.lanes.entry(name).or_insert_with(|| Lane { connection: number, ..Lane::default() });
        let (notice, code) = lane.notice;
        if now < notice {
            return self.schedule(notice, Due::Fail(near, index, code));
        }
        let connection = lane.connection;
        let cuts = self.random.hits(self.faults.cut_ppm);
        let may_be_early = match request {
            Request::Send => len <= EAGER_BYTES,
            Request::Write { acknowledged, .. } => !acknowledged,
            Request::Read { .. } => false,
        };
        let early = may_be_early && self.random.hits(self.faults.early_send_ppm);
        if early {
            let at = now + self.random.between(Duration::ZERO, self.faults.delay_max);
            self.schedule(at, Due::Early(name, connection, number));
        }
        let (copied, message, reported) = (0, None, false);
        let flight = Flight { number, index, request, buffer, len, copied, message, reported, cuts };
        if let Some(lane) = self.lanes.get_mut(&name) {
            lane.pending.push_back(flight);
        }
        self.schedule_arrival(name);
    }

    /// Posts a receive buffer.
    ///
    /// # Safety
    /// The `len` bytes at `buffer` stay mapped until the operation is reported or `port` is closed.
    pub(super) unsafe fn post_receive(&mut self, port: PortName, index: usize, buffer: *mut u8, len: usize) {
        let Some(endpoint) = self.ports.get_mut(&port) else { return };
        endpoint.receives.push_back((index, buffer, len));
        if let Some(message) = endpoint.waiting.pop_front() {
            self.receive(port, message.as_ptr(), message.len());
        }
    }

    /// Delivers the events that are due until `now`.
    pub(super) fn advance(&mut self, now: Duration) {
        while let Some(entry) = self.schedule.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((at, _), due) = entry.remove_entry();
            self.now = self.now.max(at);
            match due {
                Due::Arrive(name, connection) => self.arrive(name, connection),
                Due::Answer(name, connection) => self.answer(name, connection),
                Due::Early(name, connection, number) => self.complete_early(name, connection, number),
                Due::Fail(port, index, code) => self.report(port, Report::Failed { index, code }),
                Due::GiveUp(name, watch) => self.give_up(name, watch),
                Due::Land(name, writes) => self.land(name, writes),
            }
        }
        self.now = self.now.max(now);
    }

    /// Serves the oldest pending operation of a lane.
    fn arrive(&mut self, name: LaneName, connection: u64) {
        let separated = self.is_separated(name);
        let Some(lane) = self.lanes.get_mut(&name).filter(|lane| lane.connection == connection) else {
            return;
        };
        if separated {
            lane.held_arrivals += 1;
            return self.watch(name);
        }
        let (near, far) = name;
        if !self.ports.contains_key(&far) {
            let known = self.hosts.contains(&far.host());
            let notice = self.now + self.delay();
            let code = if known { libc::ECONNREFUSED } else { libc::EHOSTUNREACH };
            return self.fail_lane(name, code, notice);
        }
        let Some(mut flight) = lane.pending.pop_front() else { return };
        lane.established = true;
        let cuts = std::mem::take(&mut flight.cuts);
        if cuts && self.random.below(2) == 0 {
            self.put_back(name, flight);
            return self.break_connection(near, far, None);
        }
        match self.serve(name, &mut flight) {
            Served::Whole => {
                self.answer_later(name, flight);
                self.schedule_answer(name);
            }
            Served::Half => {
                self.put_back(name, flight);
                self.schedule_arrival(name);
            }
            Served::Refused => {
                // The far side closes the connection, as tcp does.
                self.answer_later(name, flight);
                return self.break_connection(near, far, Some(far));
            }
        }
        if cuts {
            self.break_connection(near, far, None);
        }
    }

    /// Puts an operation back to the head of its lane.
    fn put_back(&mut self, name: LaneName, flight: Flight) {
        if let Some(lane) = self.lanes.get_mut(&name) {
            lane.pending.push_front(flight);
        }
    }

    /// Puts an operation among those to be answered.
    pub(super) fn answer_later(&mut self, name: LaneName, flight: Flight) {
        if let Some(lane) = self.lanes.get_mut(&name) {
            lane.served.push_back(flight);
        }
    }

    /// Carries out an operation at the far side.
    fn serve(&mut self, name: LaneName, flight: &mut Flight) -> Served {
        let far = name.1;
        let (buffer, len) = (flight.buffer, flight.len);
        match flight.request {
            Request::Send => {
                self.deliver(far, flight);
                Served::Whole
            }
            Request::Read { .. } | Request::Write { immediate: None, .. } if len == 0 => Served::Whole,
            Request::Read { address, key } => {
                let Some(from) = self.reach(far, key, address, len, |access| access.remote_read) else {
                    return Served::Refused;
                };
                let (start, end) = match flight.copied {
                    0 if self.faults.split_reads && len > 1 => {
                        (0, 1 + self.random.below(len as u64 - 1) as usize)
                    }
                    start => (start, len),
                };
                // SAFETY: both ranges were checked: one lies within a region that is registered, the other
                // within the buffer of an operation that is not reported. They may overlap.
                unsafe { ptr::copy(from.add(start), buffer.add(start), end - start) };
                flight.copied = end;
                if end == len && self.random.hits(self.faults.spoiled_read_ppm) {
                    let at = self.random.below(len as u64) as usize;
                    // SAFETY: the byte lies within the buffer of an operation that is not reported.
                    unsafe { *buffer.add(at) ^= 1 << self.random.below(8) };
                }
                if end < len { Served::Half } else { Served::Whole }
            }
            Request::Write { .. } => match self.write(far, flight) {
                true => Served::Whole,
                false => Served::Refused,
            },
        }
    }

    /// Carries out a write at `far`. Returns false if the far side refuses the write.
    fn write(&mut self, far: PortName, flight: &Flight) -> bool {
        let Request::Write { address, key, immediate, .. } = flight.request else { return false };
        let len = flight.len;
        if len > 0 {
            let Some(to) = self.reach(far, key, address, len, |access| access.remote_write) else {
                return false;
            };
            // SAFETY: as for reads, or the bytes are ours.
            unsafe { ptr::copy(flight.bytes(), to, len) };
        }
        if let Some(immediate) = immediate {
            self.report(far, Report::Written { immediate, len });
        }
        true
    }

    /// Brings a message to `far`: into the oldest receive buffer, or among the messages that wait for one.
    pub(super) fn deliver(&mut self, far: PortName, flight: &mut Flight) {
        let message = flight.message.take();
        let Some(endpoint) = self.ports.get_mut(&far) else { return };
        if endpoint.receives.is_empty() {
            // SAFETY: the send is not reported, or else its message was copied before.
            endpoint.waiting.push_back(message.unwrap_or_else(|| unsafe { copy(flight) }));
        } else {
            let from = message.as_deref().map_or(flight.buffer.cast_const(), <[u8]>::as_ptr);
            self.receive(far, from, flight.len);
        }
    }

    /// Fills the oldest receive buffer of `port` with the `len` bytes of a message.
    fn receive(&mut self, port: PortName, from: *const u8, len: usize) {
        let Some(endpoint) = self.ports.get_mut(&port) else { return };
        let Some((index, buffer, capacity)) = endpoint.receives.pop_front() else { return };
        if len > capacity {
            return self.report(port, Report::Failed { index, code: TRUNCATED });
        }
        // SAFETY: the buffer is that of a receive that is not reported, and is long enough; the message is
        // ours or in the buffer of a send that is not reported. A caller may use one memory for both.
        unsafe { ptr::copy(from, buffer, len) };
        self.report(port, Report::Done { index, len });
    }

    /// Reports the oldest served operation of a lane.
    fn answer(&mut self, name: LaneName, connection: u64) {
        let separated = self.is_separated(name);
        let Some(lane) = self.lanes.get_mut(&name).filter(|lane| lane.connection == connection) else {
            return;
        };
        if separated {
            lane.held_answers += 1;
            return self.watch(name);
        }
        if let Some(Flight { index, len, reported: false, .. }) = lane.served.pop_front() {
            self.report(name.0, Report::Done { index, len });
        }
    }

    /// Reports a send whose message has not arrived, and keeps the message.
    fn complete_early(&mut self, name: LaneName, connection: u64, number: u64) {
        let Some(lane) = self.lanes.get_mut(&name).filter(|lane| lane.connection == connection) else {
            return;
        };
        if !lane.established {
            return;
        }
        let Ok(at) = lane.pending.binary_search_by_key(&number, |flight| flight.number) else { return };
        let flight = &mut lane.pending[at];
        // SAFETY: the send is reported only now.
        flight.message = Some(unsafe { copy(flight) });
        flight.reported = true;
        let (index, len) = (flight.index, flight.len);
        self.report(name.0, Report::Done { index, len });
    }
}

/// Copies the message of a send.
///
/// # Safety
/// The send is not reported.
unsafe fn copy(flight: &Flight) -> Box<[u8]> {
    let mut message = Vec::<u8>::with_capacity(flight.len);
    // SAFETY: the caller vouches for the buffer; the vector has room for `len` bytes and all are written.
    unsafe {
        flight.buffer.copy_to_nonoverlapping(message.as_mut_ptr(), flight.len);
        message.set_len(flight.len);
    }
    message.into()
}
