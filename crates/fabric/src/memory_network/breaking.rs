//! Breaks connections, closes endpoints, kills hosts, and separates and heals pairs of hosts.
//!
//! Owns no state: the functions work on the [`Wires`]. Engine thread only. Invariants: of the operations
//! under way on a broken connection, a prefix of each direction arrives, and every operation that was not
//! reported fails; each side learns of the break at a moment of its own, and operations that the side posts
//! before are lost too. Writes at the end of the prefix, and a part of the next write, land later, because a
//! real processor may take them from the socket of the broken connection after it has served another
//! connection.

use std::time::Duration;

use super::wires::{Due, Flight, Lane, LaneName, LateWrite, PortName, Report, Request, Wires, pair};

impl Wires {
    /// Breaks the connection between two endpoints. `by` is the side that closes the connection, if one does.
    /// This side knows at once, and nothing arrives at it any more.
    pub(super) fn break_connection(&mut self, a: PortName, b: PortName, by: Option<PortName>) {
        self.break_lane((a, b), by);
        if a != b {
            self.break_lane((b, a), by);
        }
    }

    /// Breaks one direction of a connection.
    fn break_lane(&mut self, name: LaneName, by: Option<PortName>) {
        let (near, far) = name;
        let separated = self.is_separated(name);
        if by == Some(far) {
            self.schedule.retain(|_, due| !matches!(due, Due::Land(of, _) if *of == name));
        }
        let Some(lane) = self.lanes.get_mut(&name) else { return };
        if by == Some(near) {
            if !separated && near != far {
                self.deliver_some(name);
            }
            return self.fail_lane(name, libc::ECANCELED, self.now);
        }
        if separated && by.is_some() {
            // The news does not get through either.
            lane.doomed = true;
            return;
        }
        if !separated && by.is_none() {
            self.deliver_some(name);
        }
        let notice = self.now + self.delay();
        self.fail_lane(name, libc::ECONNRESET, notice);
    }

    /// Lets a prefix of the pending operations of a lane arrive, of a length that is drawn. The answers are
    /// lost, and with them the bytes that are read.
    fn deliver_some(&mut self, name: LaneName) {
        let Some(lane) = self.lanes.get_mut(&name) else { return };
        let count = lane.pending.len() as u64;
        if count == 0 {
            return;
        }
        let mut late = Vec::new();
        for _ in 0..self.random.below(count + 1) {
            let lane = self.lanes.get_mut(&name);
            let Some(mut flight) = lane.and_then(|lane| lane.pending.pop_front()) else { return };
            match flight.request {
                Request::Send => {
                    self.land(name, std::mem::take(&mut late));
                    self.deliver(name.1, &mut flight);
                }
                Request::Read { .. } => {}
                Request::Write { .. } => late.extend(LateWrite::of(&flight, flight.len)),
            }
            self.answer_later(name, flight);
        }
        let next = self.lanes.get(&name).and_then(|lane| lane.pending.front());
        if let Some(next) = next.filter(|next| matches!(next.request, Request::Write { .. })) {
            let part = self.random.below(next.len as u64) as usize;
            late.extend(LateWrite::of(next, part).map(|late| LateWrite { immediate: None, ..late }));
        }
        if !late.is_empty() {
            let at =
                self.now + self.delay() + self.random.between(Duration::ZERO, self.faults.late_write_max);
            self.schedule(at, Due::Land(name, late));
        }
    }

    /// Carries out writes that have come by a broken connection, as far as they are allowed.
    pub(super) fn land(&mut self, name: LaneName, writes: Vec<LateWrite>) {
        for LateWrite { address, key, len, immediate, bytes } in writes {
            if len > 0 {
                let Some(to) = self.reach(name.1, key, address, len, |access| access.remote_write) else {
                    return;
                };
                // SAFETY: the bytes are ours, and no more than `len`, which lie within a region that is
                // registered.
                unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            }
            if let Some(immediate) = immediate {
                self.report(name.1, Report::Written { immediate, len });
            }
        }
    }

    /// Carries out all writes that have come by broken connections.
    pub(super) fn land_late_writes(&mut self) {
        let late = self.schedule.iter().filter(|(_, due)| matches!(due, Due::Land(..)));
        let late: Vec<_> = late.map(|(moment, _)| *moment).collect();
        for moment in late {
            if let Some(Due::Land(name, writes)) = self.schedule.remove(&moment) {
                self.land(name, writes);
            }
        }
    }

    /// Fails the operations under way on a lane, at the moment `notice`, and begins another connection.
    pub(super) fn fail_lane(&mut self, name: LaneName, code: i32, notice: Duration) {
        let connection = self.number();
        let Some(lane) = self.lanes.get_mut(&name) else { return };
        // A side that knows of the break makes another connection.
        let known = if notice > self.now { (notice.max(lane.notice.0), code) } else { (Duration::ZERO, 0) };
        let former = std::mem::replace(lane, Lane { connection, notice: known, ..Lane::default() });
        let lost = former.served.into_iter().chain(former.pending).filter(|flight| !flight.reported);
        for Flight { index, .. } in lost {
            match notice > self.now {
                true => self.schedule(notice, Due::Fail(name.0, index, code)),
                false => self.report(name.0, Report::Failed { index, code }),
            }
        }
    }

    /// Closes an endpoint. The buffers of the endpoint are not touched any more, and unreported events are
    /// lost.
    pub(super) fn close(&mut self, port: PortName) {
        let peers: Vec<_> =
            self.lanes.keys().filter(|name| name.0 == port || name.1 == port).copied().collect();
        for (near, far) in peers {
            if near == port || !self.lanes.contains_key(&(far, near)) {
                self.break_connection(near, far, Some(port));
            }
        }
        let ports = &mut self.ports;
        if let Some(endpoint) = ports.remove(&port)
            && let Some(domain) = self.domains.get_mut(&endpoint.domain)
        {
            domain.reports.retain(|(of, _)| *of != port);
        }
        self.lanes.retain(|name, _| name.0 != port);
    }

    /// Kills a host.
    pub(super) fn kill(&mut self, host: u32) {
        let ports: Vec<_> = self.ports.keys().filter(|port| port.host() == host).copied().collect();
        ports.into_iter().for_each(|port| self.close(port));
        for domain in self.domains.values_mut().filter(|domain| domain.host == host) {
            domain.dead = true;
            domain.regions.clear();
            domain.reports.clear();
        }
    }

    /// Returns the lanes between two hosts, in both directions.
    fn between(&self, a: u32, b: u32) -> Vec<LaneName> {
        let names = self.lanes.keys().copied();
        names.filter(|(near, far)| pair(near.host(), far.host()) == pair(a, b)).collect()
    }

    /// Breaks all connections between two hosts.
    pub(super) fn cut(&mut self, a: u32, b: u32) {
        for name in self.between(a, b) {
            self.break_lane(name, None);
        }
    }

    /// Separates two hosts, or joins them again.
    pub(super) fn partition(&mut self, a: u32, b: u32, separated: bool) {
        if separated {
            self.partitions.insert(pair(a, b));
            return;
        }
        self.partitions.remove(&pair(a, b));
        for name in self.between(a, b) {
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            lane.watch = None;
            if lane.doomed {
                let notice = self.now + self.delay();
                self.fail_lane(name, libc::ECONNRESET, notice);
                continue;
            }
            let arrivals = std::mem::take(&mut lane.held_arrivals);
            let answers = std::mem::take(&mut lane.held_answers);
            (0..answers).for_each(|_| self.schedule_answer(name));
            (0..arrivals).for_each(|_| self.schedule_arrival(name));
        }
    }

    /// Begins the patience with a partition that holds operations or answers of a lane back.
    pub(super) fn watch(&mut self, name: LaneName) {
        let Some(patience) = self.faults.patience else { return };
        let watch = self.number();
        let Some(lane) = self.lanes.get_mut(&name).filter(|lane| lane.watch.is_none()) else { return };
        lane.watch = Some(watch);
        self.schedule(self.now + patience, Due::GiveUp(name, watch));
    }

    /// Gives up a connection that a partition has held back for too long.
    pub(super) fn give_up(&mut self, name: LaneName, watch: u64) {
        let Some(lane) = self.lanes.get_mut(&name).filter(|lane| lane.watch == Some(watch)) else { return };
        let known = lane.doomed;
        self.fail_lane(name, libc::ETIMEDOUT, self.now);
        if let Some(back) = self.lanes.get_mut(&(name.1, name.0)).filter(|_| !known && name.0 != name.1) {
            back.doomed = true;
        }
    }
}
