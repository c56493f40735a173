//! The gate towards one peer: which reads may begin, and which messages may be sent. A pure state machine on
//! the time and the events that it is told.
//!
//! With *separate*, each class has a greatest number of reads and messages under way. With *priority*, low
//! work is limited while high work is busy ([`policy`](super::policy)). Invariants: the reads of a class
//! begin in their order; apart from these rules, no class waits for another.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use plasmon::Class;

use super::bucket::Bucket;
use super::policy::{Policy, Way};
use crate::config::Qos as Mode;

/// Number of reads of each class under way at a time with *separate*, the highest class first.
const READS: [usize; 3] = [6, 2, 2];
/// Number of messages of each class under way at a time with *separate*.
const MESSAGES: [usize; 3] = [20, 6, 6];
/// Number of reads of low class under way while they are limited. A message of a higher class may have to
/// wait for their bytes.
const LIMITED_READS: usize = 4;
/// Longest time until a limit is looked at again: high work may have become idle.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The work with one peer that is under way or waits, and the limits of low work.
#[derive(Debug, Default)]
pub(super) struct Gate {
    pub(super) policy: Policy,
    /// The limits of low work, to this node and from this node.
    buckets: [Bucket; 2],
    /// Number of reads under way, by class.
    reads: [usize; 3],
    waiting: [VecDeque<Waiting>; 3],
    /// Whether a task will look at the gate when waiting reads may begin.
    pub(super) is_watched: bool,
    /// Whether a task measures round trips.
    pub(super) is_probed: bool,
}

/// A read that waits.
#[derive(Debug)]
struct Waiting {
    bytes: u64,
    go: oneshot::Sender<()>,
}

/// Why something has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// The work waits until other work of its class is over.
    Turn,
    /// The work waits until this time.
    Until(Instant),
}

impl Gate {
    /// Begins a read, if it may begin now, and returns `None`. Otherwise returns a receiver that ends when
    /// the read has begun.
    pub(super) fn read(
        &mut self,
        mode: Mode,
        class: Class,
        bytes: u64,
        now: Instant,
    ) -> Option<oneshot::Receiver<()>> {
        let is_next = self.waiting[class.rank()].iter().all(|waiting| waiting.go.is_canceled());
        if is_next && self.may_read(mode, class, now).is_ok() {
            self.begin(class, bytes, now);
            return None;
        }
        let (go, gone) = oneshot::channel();
        self.waiting[class.rank()].push_back(Waiting { bytes, go });
        Some(gone)
    }

    fn begin(&mut self, class: Class, bytes: u64, now: Instant) {
        self.reads[class.rank()] += 1;
        self.policy.rate.begin(now);
        if class == Class::Low && self.policy.limit(Way::In, now).is_some() {
            self.buckets[Way::In as usize].take(bytes);
        }
    }

    /// Notes that a read is over, and how many bytes it has brought.
    pub(super) fn end(&mut self, class: Class, bytes: u64, now: Instant) {
        let reads = &mut self.reads[class.rank()];
        *reads = reads.saturating_sub(1);
        let is_limited = self.policy.limit(Way::In, now).is_some();
        self.policy.rate.end(bytes, is_limited, now);
    }

    fn may_read(&mut self, mode: Mode, class: Class, now: Instant) -> Result<(), Wait> {
        let under_way = self.reads[class.rank()];
        match mode {
            Mode::Off => Ok(()),
            Mode::Separate if under_way >= READS[class.rank()] => Err(Wait::Turn),
            Mode::Separate => Ok(()),
            Mode::Priority => self.may_go(class, Way::In, under_way, now),
        }
    }

    /// Whether low work may go by the policy.
    fn may_go(&mut self, class: Class, way: Way, under_way: usize, now: Instant) -> Result<(), Wait> {
        if class != Class::Low {
            return Ok(());
        }
        let bucket = &mut self.buckets[way as usize];
        let Some(limit) = self.policy.limit(way, now) else {
            bucket.reset();
            return Ok(());
        };
        if way == Way::In && under_way >= LIMITED_READS {
            return Err(Wait::Until(now + LOOK_AGAIN));
        }
        bucket.ready(limit, now).map_or(Ok(()), |due| Err(Wait::Until(due.min(now + LOOK_AGAIN))))
    }

    /// Begins the reads that may begin now. Returns when to look again, if time alone lets others begin.
    pub(super) fn go_on(&mut self, mode: Mode, now: Instant) -> Option<Instant> {
        let mut due: Option<Instant> = None;
        for class in Class::ALL.iter().copied() {
            while let Some(bytes) = self.next(class) {
                match self.may_read(mode, class, now) {
                    Ok(()) => {
                        let waiting = self.waiting[class.rank()].pop_front();
                        if waiting.is_some_and(|waiting| waiting.go.send(()).is_ok()) {
                            self.begin(class, bytes, now);
                        }
                    }
                    Err(Wait::Turn) => break,
                    Err(Wait::Until(at)) => {
                        due = Some(due.map_or(at, |due| due.min(at)));
                        break;
                    }
                }
            }
        }
        due
    }

    /// Length in bytes of the next read of a class for which a task still waits.
    fn next(&mut self, class: Class) -> Option<u64> {
        let waiting = &mut self.waiting[class.rank()];
        while waiting.front().is_some_and(|first| first.go.is_canceled()) {
            waiting.pop_front();
        }
        waiting.front().map(|first| first.bytes)
    }

    /// Whether a message of a class may be sent, while `under_way` messages of the class are under way.
    pub(super) fn may_send(
        &mut self,
        mode: Mode,
        class: Class,
        under_way: usize,
        now: Instant,
    ) -> Result<(), Wait> {
        match mode {
            Mode::Off => Ok(()),
            Mode::Separate if under_way >= MESSAGES[class.rank()] => Err(Wait::Turn),
            Mode::Separate => Ok(()),
            Mode::Priority => self.may_go(class, Way::Out, under_way, now),
        }
    }

    /// Notes that a message of low class is sent.
    pub(super) fn sent_low(&mut self, bytes: u64, now: Instant) {
        if self.policy.limit(Way::Out, now).is_some() {
            self.buckets[Way::Out as usize].take(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: f64 = 125e6;
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn separate_classes_have_reads_of_their_own() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        let mut begun = [0; 3];
        let mut waits = Vec::new();
        for class in Class::ALL.iter().copied().rev() {
            for _ in 0..10 {
                match gate.read(Mode::Separate, class, 1, now) {
                    None => begun[class.rank()] += 1,
                    Some(wait) => waits.push((class, wait)),
                }
            }
        }
        assert_eq!(begun, [6, 2, 2]);
        gate.end(Class::Low, 1, now);
        assert_eq!(gate.go_on(Mode::Separate, now), None);
        let gone: Vec<_> = waits.iter_mut().map(|(class, wait)| (*class, wait.try_recv())).collect();
        let told = gone.iter().filter(|(_, told)| *told == Ok(Some(()))).map(|(class, _)| *class);
        assert_eq!(told.collect::<Vec<_>>(), [Class::Low], "one of the class that has room");
        assert_eq!(gone[0].1, Ok(Some(())), "the first of them");
    }

    #[test]
    fn nothing_waits_while_high_work_is_idle() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        gate.policy.rate.told(RATE, now);
        for _ in 0..1000 {
            assert!(gate.read(Mode::Priority, Class::Low, 1 << 20, now).is_none());
        }
    }

    /// Low work reads chunks while high work uses a share of the rate; returns the bytes a second of low
    /// work.
    fn low_beside_high(share: f64) -> f64 {
        let (mut gate, begin) = (Gate::default(), Instant::now());
        gate.policy.rate.told(RATE, begin);
        let (mut now, mut low, mut waits) = (begin, 0, VecDeque::new());
        let mut under_way = VecDeque::new();
        while now < begin + Duration::from_secs(2) {
            gate.policy.high(now);
            gate.policy.moved(Way::In, (share * RATE / 10_000.0) as u64, now);
            while let Some((class, bytes)) = under_way.pop_front() {
                gate.end(class, bytes, now);
                low += bytes;
            }
            gate.go_on(Mode::Priority, now);
            waits.retain_mut(|wait: &mut oneshot::Receiver<()>| {
                let is_gone = wait.try_recv() == Ok(Some(()));
                under_way.extend(is_gone.then_some((Class::Low, 12_500)));
                !is_gone
            });
            while waits.len() < 8 {
                match gate.read(Mode::Priority, Class::Low, 12_500, now) {
                    None => under_way.push_back((Class::Low, 12_500)),
                    Some(wait) => waits.push_back(wait),
                }
                if under_way.len() > 100 {
                    break;
                }
            }
            assert!(gate.reads[Class::Low.rank()] <= LIMITED_READS || now < begin + 50 * MS);
            now += MS / 10;
        }
        low as f64 / 2.0
    }

    #[test]
    fn low_work_has_its_share_in_bytes() {
        for (high, expected) in [(0.5, 0.485), (0.9, 0.097), (1.0, 0.02)] {
            let low = low_beside_high(high) / RATE;
            assert!((low - expected).abs() < 0.05 * expected + 0.01, "{low} beside {high}");
        }
    }

    #[test]
    fn a_read_that_nobody_wants_any_more_takes_no_turn() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        let read = |gate: &mut Gate| gate.read(Mode::Separate, Class::Low, 1, now);
        assert!(read(&mut gate).is_none() && read(&mut gate).is_none());
        let (first, second) = (read(&mut gate), read(&mut gate));
        drop(first);
        gate.end(Class::Low, 1, now);
        gate.go_on(Mode::Separate, now);
        assert_eq!(second.expect("it waits").try_recv(), Ok(Some(())));
        assert_eq!(gate.reads[Class::Low.rank()], 2);
    }

    #[test]
    fn messages_of_low_class_wait_for_the_rate() {
        let (mut gate, mut now) = (Gate::default(), Instant::now());
        let may = |gate: &mut Gate, class, now| gate.may_send(Mode::Priority, class, 0, now);
        gate.policy.rate.told(RATE, now);
        assert_eq!(may(&mut gate, Class::Low, now), Ok(()));
        gate.policy.high(now);
        for _ in 0..20 {
            gate.sent_low(16 << 10, now);
        }
        assert_eq!(may(&mut gate, Class::Normal, now), Ok(()));
        let Err(Wait::Until(due)) = may(&mut gate, Class::Low, now) else { panic!("it was to wait") };
        assert!(due > now && due <= now + LOOK_AGAIN);
        now += 20 * MS;
        assert_eq!(may(&mut gate, Class::Low, now), Ok(()));
        assert_eq!(gate.may_send(Mode::Separate, Class::Low, 6, now), Err(Wait::Turn));
    }
}
