//! Measuring the best protocol parameters towards a peer, on the real peer and the real fabric. Owns no
//! state: a measurement lives as long as its call. Engine thread only.
//!
//! The peer lends memory that belongs to no object, under a lease. For small sizes, bytes inside a
//! message are compared with a write to this node's window, and with a message, its answer and a read.
//! For a large size, chunks and windows are compared in turns, so that other load affects all of them
//! alike. The results are medians of some rounds. A measurement takes a second or two.

use std::rc::Rc;
use std::time::Duration;

use plasmon::transfer::{Calibration, LargePoint, SmallPoint};
use plasmon::{Error, ErrorKind, NodeId, ObjectId, Rights};

use super::comparing::Wanted;
use super::failure::Failure;
use super::landing::Target;
use super::lease::{LEASE_MS, Lease};
use super::pieces::{locate, whole};
use super::reading::Here;
use super::record::Arrived;
use super::rooms::{MAX_MESSAGES_BYTES, ONE_MESSAGE_BYTES};
use super::tuning::Plan;
use crate::memory::{Domain, Writer, Zone};
use crate::net::calls::Call;
use crate::net::frame::ask;
use crate::net::frame::{Envelope, Location, Message};
use crate::object::Head;
use crate::transfer::Transfer;

/// The zone of the memory that a peer is lent.
const ZONE: Zone = Zone { domain: Domain::Shared, writer: Writer::Engine };
const KIB: u64 = 1 << 10;
/// The small sizes in bytes, up to the longest that comes in messages.
const SMALL_BYTES: [u64; 13] = [
    64,
    256,
    KIB,
    KIB * 2,
    KIB * 4,
    KIB * 8,
    KIB * 15,
    KIB * 24,
    KIB * 32,
    KIB * 48,
    KIB * 64,
    KIB * 128,
    KIB * 256,
];
/// The smallest size in bytes that is measured with a write.
const PUSH_LEAST_BYTES: u64 = 2 * KIB;
/// Number of rounds for each small size.
const SMALL_ROUNDS: usize = 41;
/// The lengths of chunks that are compared, in bytes.
const CHUNKS_BYTES: [u64; 4] = [256 << 10, 512 << 10, 1 << 20, 4 << 20];
/// The windows that are compared, in reads.
const WINDOWS_READS: [u32; 4] = [1, 2, 4, 8];
/// Number of rounds for each chunk and window.
const LARGE_ROUNDS: usize = 5;
/// Length in bytes of the large object. It is shorter on a slow network, down to [`LARGE_LEAST_BYTES`].
const LARGE_BYTES: u64 = 32 << 20;
/// Minimum length in bytes of the large object.
const LARGE_LEAST_BYTES: u64 = 8 << 20;
/// How long one read of the large object may take, so that a measurement stays short.
const LARGE_READ_TIME: Duration = Duration::from_millis(100);
/// How long the peer may take to lend memory.
const PEER_PATIENCE: Duration = Duration::from_secs(5);

impl Transfer {
    /// Sends a peer that measures `len` bytes of the memory that it was lent.
    pub(crate) fn on_probe(&self, asked: &Envelope, of: u64, (len, pushed): (u64, bool)) {
        let lent = self.leases.granted.borrow().get(&(asked.from, of)).and_then(|it| it.kept.run());
        let head = scratch(len);
        let message = match lent {
            Some(lent) if len <= lent.len().min(MAX_MESSAGES_BYTES.into()) => {
                // The memory stays mapped, even if the lease ends.
                let written = pushed && !self.pushes.has(asked);
                let written = written
                    .then(|| self.push(asked, &head, (&lent, Rc::new(())), Default::default))
                    .flatten();
                written.unwrap_or_else(|| self.in_messages(asked, head, &lent))
            }
            _ => {
                let text = "not served: this memory was not lent to it";
                Message::Refused { error: Error::new(ErrorKind::Invalid, text) }
            }
        };
        self.network.answer(asked, message);
    }

    /// Lends memory to a peer that measures.
    pub(crate) fn on_lend(self: &Rc<Self>, asked: &Envelope, len: u64) {
        let (transfer, asked) = (Rc::clone(self), asked.clone());
        self.kernel.spawn(async move {
            let message = match transfer.store.room(ZONE, len.min(LARGE_BYTES), Duration::ZERO).await {
                Ok(extent) => {
                    let pieces = locate(&transfer.store, &extent);
                    let head = scratch(extent.len());
                    transfer.leases.lend(&asked, extent);
                    Message::Offer { head, lease_ms: LEASE_MS, pieces, stamp: None, others: Vec::new() }
                }
                Err(error) => Message::Refused { error },
            };
            transfer.network.answer(&asked, message);
        });
    }

    /// Measures towards a peer, and puts the best parameters in force.
    ///
    /// # Errors
    /// When the peer or this node has no memory for the measurement, or when the peer leaves.
    pub(crate) async fn calibrate(self: &Rc<Self>, peer: NodeId) -> Result<Calibration, Error> {
        let failed = |failure: Failure| match failure {
            Failure::Here(error) => error,
            failure @ (Failure::Ended | Failure::Damaged { .. }) => {
                Error::new(ErrorKind::Internal, failure.to_string())
            }
            Failure::Holder(text) => {
                Error::new(ErrorKind::Disconnected, format!("node {peer} cannot be measured: {text}"))
            }
        };
        let measured = self.measure(peer).await.map_err(failed)?;
        self.tuner.keep(measured.clone());
        Ok(measured)
    }

    async fn measure(self: &Rc<Self>, peer: NodeId) -> Result<Calibration, Failure> {
        let landing = self.landing(&scratch(LARGE_BYTES), &Target::Replica, &Wanted::default()).await?;
        let asked_at = self.kernel.clock.now();
        let mut call = Call::open(&self.network, Some(peer));
        if !call.send(peer, 0, Message::Lend { len: LARGE_BYTES }) {
            return Err(Failure::Holder("it is not a member of the cluster".into()));
        }
        let answer = self.kernel.clock.bounded(Some(asked_at + PEER_PATIENCE), call.answer()).await.flatten();
        let (request, pieces, lease_ms) = match answer {
            Some(Envelope { request, message: Message::Offer { pieces, lease_ms, .. }, .. }) => {
                (request, pieces, lease_ms)
            }
            Some(Envelope { message: Message::Refused { error }, .. }) => {
                return Err(Failure::Holder(error.message().to_owned()));
            }
            _ => return Err(Failure::Holder(format!("it lent no memory within {PEER_PATIENCE:?}"))),
        };
        if whole(&pieces) != Some(LARGE_BYTES) {
            return Err(Failure::Holder("it lent another amount of memory than was asked for".into()));
        }
        let lease = Lease::new(&self.leases, peer, request, lease_ms, asked_at);
        let here = Here { landing: &landing, arrived: &Arrived::default() };
        let measurement = Measurement { transfer: self, lease: &lease, pieces: &pieces, here };
        let measuring = async { Ok((measurement.small().await?, measurement.large().await?)) };
        let (small, large) = lease.during(measuring).await?;
        let (eager_max, push_max) = limits(&small);
        let on = self.network.fabric_to(peer);
        let best = large.iter().min_by(|a, b| a.us.total_cmp(&b.us)).copied().unwrap_or_default();
        Ok(Calibration {
            provider: self.network.domain(on).provider().name().to_owned(),
            host: self.tuner.host_of(peer),
            at_ms: self.kernel.clock.unix_ms(),
            eager_max,
            push_max,
            chunk: best.chunk,
            window: best.window,
            small,
            large,
        })
    }
}

/// A measurement under way, in memory of a peer that is lent under a lease.
struct Measurement<'a> {
    transfer: &'a Transfer,
    lease: &'a Lease,
    pieces: &'a [Location],
    here: Here<'a>,
}

impl Measurement<'_> {
    async fn small(&self) -> Result<Vec<SmallPoint>, Failure> {
        let Self { transfer, lease, .. } = self;
        let pushes = transfer.push_max() > 0 && transfer.may_push(lease.holder);
        if pushes {
            transfer.network.open_window(lease.holder);
        }
        let mut points = Vec::new();
        for bytes in SMALL_BYTES {
            let (mut eager, mut push, mut read) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..SMALL_ROUNDS {
                let began = self.transfer.kernel.clock.now();
                self.bring(bytes, false).await?;
                eager.push(self.micros_since(began));
                let began = self.transfer.kernel.clock.now();
                if pushes && bytes >= PUSH_LEAST_BYTES && self.bring(bytes, true).await? {
                    push.push(self.micros_since(began));
                }
                let began = self.transfer.kernel.clock.now();
                // A read of an object begins with such a message and its answer.
                let renew = ask::Renew { lease: lease.request };
                let answer = transfer.network.ask(lease.holder, 0, renew, PEER_PATIENCE).await;
                answer.map_err(|error| Failure::Holder(error.message().to_owned()))?;
                let plan = Plan { chunk: bytes, window: 1 };
                self.read(bytes, plan).await?;
                read.push(self.micros_since(began));
            }
            let [eager_us, push_us, read_us] = [&mut eager, &mut push, &mut read].map(|times| median(times));
            points.push(SmallPoint { bytes, eager_us, push_us, read_us });
        }
        Ok(points)
    }

    /// Fetches `bytes` of the lent bytes, in messages or by a write, and copies them. Returns
    /// whether they came by a write.
    async fn bring(&self, bytes: u64, pushed: bool) -> Result<bool, Failure> {
        let Self { transfer, lease, here, .. } = self;
        let mut call = Call::open(&transfer.network, Some(lease.holder));
        let room = transfer.rooms.make(call.request(), MAX_MESSAGES_BYTES);
        transfer.directory.news.release_now(lease.holder);
        call.send(lease.holder, 0, Message::Probe { of: lease.request, len: bytes, pushed });
        let due = transfer.kernel.clock.now() + PEER_PATIENCE;
        let answer = transfer.kernel.clock.bounded(Some(due), call.answer()).await.flatten();
        let mut pieces = room.pieces_of(lease.holder);
        match answer.map(|answer| answer.message) {
            Some(Message::Eager { bytes, .. }) => pieces.push(bytes),
            Some(answer @ Message::Pushed { .. }) => {
                let written = transfer.pushed(lease.holder, call.request(), &answer)?;
                return written.copy_to(here.landing).map(|()| true);
            }
            Some(Message::Refused { error }) => return Err(Failure::Holder(error.message().to_owned())),
            _ => return Err(Failure::Holder("it did not send what it had lent".into())),
        }
        let mut at = 0;
        for piece in pieces {
            here.landing.write(at, &piece).map_err(|error| Failure::Holder(error.to_string()))?;
            at += piece.len() as u64;
        }
        if at == bytes { Ok(false) } else { Err(Failure::Holder("it sent another length".into())) }
    }

    async fn large(&self) -> Result<Vec<LargePoint>, Failure> {
        let plans =
            CHUNKS_BYTES.into_iter().flat_map(|chunk| WINDOWS_READS.map(|window| Plan { chunk, window }));
        let plans: Vec<_> = plans.collect();
        let began = self.transfer.kernel.clock.now();
        self.read(LARGE_LEAST_BYTES, Plan { chunk: 512 << 10, window: 4 }).await?;
        let rate =
            LARGE_LEAST_BYTES as f64 / (self.transfer.kernel.clock.now() - began).as_secs_f64().max(1e-6);
        let len = ((rate * LARGE_READ_TIME.as_secs_f64()) as u64).clamp(LARGE_LEAST_BYTES, LARGE_BYTES);
        let mut times = vec![Vec::new(); plans.len()];
        for _ in 0..LARGE_ROUNDS {
            for (plan, times) in plans.iter().zip(&mut times) {
                let began = self.transfer.kernel.clock.now();
                self.read(len, *plan).await?;
                times.push(self.micros_since(began));
            }
        }
        let point = |(plan, times): (&Plan, &mut Vec<f64>)| LargePoint {
            bytes: len,
            chunk: plan.chunk,
            window: plan.window,
            us: median(times),
        };
        Ok(plans.iter().zip(&mut times).map(point).collect())
    }

    /// Reads `bytes` of the lent bytes.
    async fn read(&self, bytes: u64, plan: Plan) -> Result<(), Failure> {
        let Self { transfer, lease, pieces, here } = *self;
        transfer.read_part(lease.holder, pieces, here, bytes, None, plan).await.map(drop)
    }

    fn micros_since(&self, began: std::time::Instant) -> f64 {
        (self.transfer.kernel.clock.now() - began).as_nanos() as f64 / 1e3
    }
}

/// Makes a head that stands for an object in a probe.
fn scratch(len: u64) -> Head {
    Head {
        id: ObjectId::from_bytes([0; ObjectId::LEN]),
        name: "".into(),
        life: 0,
        user: 0,
        rights: Rights::default(),
        data_len: len,
        metadata_len: 0,
        digest: 0,
        copies: 0,
        expires: 0,
        owned: false,
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Returns two sizes: the size up to which objects come in messages rather than by a read, and the size
/// up to which objects that do not fit one message come by a write instead. Of all sizes, these lose
/// least over all measured points, compared with the best way for each point. So a single disturbed point
/// decides nothing. A size beyond all measured ones means no limit.
fn limits(points: &[SmallPoint]) -> (u32, u32) {
    let all: Vec<_> = points.iter().map(|point| [point.eager_us, point.read_us]).collect();
    let messages = limit(&all);
    let long = points.partition_point(|point| point.bytes < ONE_MESSAGE_BYTES.into() || point.push_us <= 0.0);
    let without = |(at, point): (usize, &SmallPoint)| {
        let other = if at < messages { point.eager_us } else { point.read_us };
        [point.push_us, other]
    };
    let some: Vec<_> = points.iter().enumerate().skip(long).map(without).collect();
    let written = match limit(&some) {
        0 => 0,
        some => long + some,
    };
    let size = |count: usize| match count {
        0 => 0,
        all if all == points.len() => u32::MAX,
        some => points[some - 1].bytes as u32,
    };
    (size(messages), size(written))
}

/// Returns the number of points up to which the first of two ways is to be taken, by the times of both ways.
fn limit(points: &[[f64; 2]]) -> usize {
    let lost = |limit: usize| -> f64 {
        let lost = |(at, [first, other]): (usize, &[f64; 2])| {
            let taken = if at < limit { first } else { other };
            taken / first.min(*other)
        };
        points.iter().enumerate().map(lost).sum()
    };
    (0..=points.len()).rev().min_by(|one, other| lost(*one).total_cmp(&lost(*other))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_lies_where_least_is_lost() {
        let point = |bytes, eager_us, read_us| SmallPoint { bytes, eager_us, push_us: 0.0, read_us };
        assert_eq!(limits(&[point(64, 1.0, 2.0), point(128, 3.0, 4.0)]), (u32::MAX, 0));
        assert_eq!(limits(&[point(64, 1.0, 2.0), point(128, 5.0, 4.0), point(256, 9.0, 5.0)]), (64, 0));
        // Something has disturbed the first point.
        assert_eq!(limits(&[point(64, 3.0, 2.0), point(128, 1.0, 2.0), point(256, 9.0, 5.0)]), (128, 0));
        assert_eq!(limits(&[point(64, 3.0, 2.0), point(128, 3.0, 2.0)]), (0, 0));
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn writes_bring_what_fits_no_message_and_comes_later_otherwise() {
        let point =
            |kib, eager_us, push_us, read_us| SmallPoint { bytes: kib * KIB, eager_us, push_us, read_us };
        let short = [point(1, 1.0, 0.0, 3.0), point(8, 2.0, 1.5, 3.0)];
        let long = [point(24, 3.0, 2.5, 3.5), point(64, 9.0, 4.0, 5.0), point(128, 9.0, 5.0, 6.0)];
        let longest = point(256, 30.0, 9.0, 7.0);
        let all = [short[0], short[1], long[0], long[1], long[2], longest];
        assert_eq!(limits(&all), (24 << 10, 128 << 10));
        assert_eq!(limits(&all[..5]), (24 << 10, u32::MAX));
        assert_eq!(limits(&[short[0], short[1], longest]), (8 << 10, 0));
    }
}
