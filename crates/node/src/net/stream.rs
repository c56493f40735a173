//! Streams: the messages between two nodes are counted, and every one of them arrives once, in order.
//!
//! Owns the state of one peer's two streams. Engine thread only. Each node counts the messages that it sends
//! to a peer, from 1 on, and keeps each until the peer says that it has received the message. What a broken
//! connection has lost is sent again: at once when an operation fails or when the peer has a later message,
//! else after [`FIRST_PATIENCE`] and then less and less often. The receiver drops what it has already and
//! puts aside what comes early. So a frame is acted on once, or one of the two nodes ends its membership,
//! which ends the stream.
//!
//! A stream begins with a peer, and has a number that is larger than those of all former ones of its node.
//! Invariants: at most [`WINDOW`] messages are on their way, at most as many are put aside; a number is given
//! to the rooms above once.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

/// Maximum number of messages on their way to a peer.
pub(crate) const WINDOW: usize = 32;
/// Time without an answer after which a message is sent again for the first time.
pub(super) const FIRST_PATIENCE: Duration = Duration::from_millis(200);
/// The longest wait before a message is sent again.
const LAST_PATIENCE: Duration = Duration::from_secs(5);
/// Longest time that an acknowledgement waits for frames that carry it.
const NEWS_PATIENCE: Duration = Duration::from_millis(50);
/// Time for which a message that the peer misses is not sent again after it was last sent again, because the
/// last repetition may still be on its way.
const REPEAT_PAUSE: Duration = Duration::from_millis(10);

/// Messages that a node has sent to a peer. `M` is the data for sending a message again.
pub(super) struct Outgoing<M> {
    /// The number of the stream.
    pub(super) stream: u32,
    /// Messages that the peer may not have received, in order.
    sent: VecDeque<Sent<M>>,
    last: u64,
    patience: Duration,
    /// Time at which the first of the messages is sent again.
    retry_at: Option<Instant>,
    /// Whether something was sent again since the peer last acknowledged a message.
    is_repeating: bool,
    /// Time since which the peer has acknowledged no message, while some are on their way.
    unheard: Option<Instant>,
}

/// A message on its way.
struct Sent<M> {
    number: u64,
    message: M,
    at: Instant,
    times: u32,
    is_lost: bool,
}

impl<M> Outgoing<M> {
    /// Begins a stream.
    pub(super) fn new(stream: u32) -> Self {
        let (sent, patience) = (VecDeque::new(), FIRST_PATIENCE);
        Self { stream, sent, last: 0, patience, retry_at: None, is_repeating: false, unheard: None }
    }

    /// Whether another message may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.sent.len() < WINDOW
    }

    /// Number of the next message.
    pub(super) fn next(&self) -> u64 {
        self.last + 1
    }

    /// Notes that the next message was sent.
    pub(super) fn push(&mut self, message: M, now: Instant) {
        self.last += 1;
        self.sent.push_back(Sent { number: self.last, message, at: now, times: 1, is_lost: false });
        self.retry_at.get_or_insert(now + self.patience);
        self.unheard.get_or_insert(now);
    }

    /// Whether the peer has acknowledged no message for `span`, while some are on their way.
    pub(super) fn is_unheard(&self, span: Duration, now: Instant) -> bool {
        self.unheard.is_some_and(|since| now >= since + span)
    }

    /// Returns the messages on their way, the oldest first.
    pub(super) fn on_their_way(&self) -> impl Iterator<Item = &M> {
        self.sent.iter().map(|sent| &sent.message)
    }

    /// Notes what the peer has received: all messages up to `received`, and not the next `missing` ones,
    /// although it has received a later one.
    pub(super) fn acknowledge(&mut self, received: u64, missing: u16, now: Instant) {
        let before = self.sent.len();
        while self.sent.front().is_some_and(|sent| sent.number <= received) {
            self.sent.pop_front();
        }
        if self.sent.len() < before {
            (self.patience, self.is_repeating) = (FIRST_PATIENCE, false);
            self.retry_at = (!self.sent.is_empty()).then(|| now + self.patience);
            self.unheard = (!self.sent.is_empty()).then_some(now);
        }
        // If messages are missing, a later one was received: so messages get through.
        self.is_repeating &= missing == 0;
        let missing = received.saturating_add(missing.into());
        for sent in self.sent.iter_mut().take_while(|sent| sent.number <= missing) {
            sent.is_lost |= sent.times == 1 || now >= sent.at + REPEAT_PAUSE;
        }
    }

    /// Takes the numbers of the messages that are to be sent again. `fails` says whether a message could not
    /// be sent; `None` if that is not known yet. A message of which it is not known stays with the fabric.
    pub(super) fn take_lost(&mut self, now: Instant, fails: impl Fn(&M) -> Option<bool>) -> Vec<u64> {
        let is_due = self.retry_at.is_some_and(|at| at <= now);
        if is_due {
            self.patience = (2 * self.patience).min(LAST_PATIENCE);
            self.retry_at = Some(now + self.patience);
        }
        let mut again = Vec::new();
        let (mut is_first, mut repeats) = (true, self.is_repeating);
        for sent in &mut self.sent {
            let is_first = std::mem::take(&mut is_first);
            let Some(failed) = fails(&sent.message) else { continue };
            // While nothing gets through, one message is enough to find out when messages get through again.
            let is_lost = (sent.is_lost || failed) && !self.is_repeating;
            if is_lost || (is_first && is_due) {
                (sent.is_lost, sent.at, sent.times) = (false, now, sent.times + 1);
                repeats |= failed || is_due;
                again.push(sent.number);
            }
        }
        self.is_repeating = repeats;
        again
    }

    /// Returns the message of a number, if it is on its way.
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut M> {
        let first = self.sent.front()?.number;
        self.sent.get_mut(number.checked_sub(first)? as usize).map(|sent| &mut sent.message)
    }

    /// Sends everything that failed again at once, because there is another way to the peer.
    pub(super) fn begin_again(&mut self) {
        self.is_repeating = false;
    }

    /// Time at which [`Outgoing::take_lost`] has something to do, if nothing happens before.
    pub(super) fn due(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Forgets all messages.
    pub(super) fn clear(&mut self) {
        self.sent.clear();
        (self.retry_at, self.unheard) = (None, None);
    }
}

/// Messages that were received from a peer.
#[derive(Default)]
pub(super) struct Incoming {
    /// The number of the peer's stream; 0 before the first message.
    pub(super) stream: u32,
    /// Number of the last message that was received after all messages before it.
    pub(super) received: u64,
    early: BTreeMap<u64, Bytes>,
    /// Number of received messages that were not acknowledged yet.
    owed: usize,
    /// Latest time of the next acknowledgement.
    tell_at: Option<Instant>,
}

/// Treatment of a received message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The message is next. It is acted on, and with it the messages put aside that follow it.
    Next,
    /// The message was put aside, or was received before.
    Kept,
    /// The message is of a former stream, or too far ahead.
    Outside,
}

impl Incoming {
    /// Takes note of a counted message.
    pub(super) fn take(&mut self, stream: u32, number: u64, message: &Bytes, now: Instant) -> Place {
        if stream < self.stream {
            return Place::Outside;
        }
        if stream > self.stream {
            *self = Self { stream, ..Self::default() };
        }
        if number > self.received + WINDOW as u64 {
            return Place::Outside;
        }
        self.owed += 1;
        self.tell_at.get_or_insert(now + NEWS_PATIENCE);
        if number == self.received + 1 {
            self.received = number;
            return Place::Next;
        }
        // The peer repeats a received message, or a message before this one was lost.
        self.tell_at = Some(now);
        if number > self.received {
            self.early.entry(number).or_insert_with(|| message.clone());
        }
        Place::Kept
    }

    /// Takes the next message, if it was put aside.
    pub(super) fn take_next(&mut self) -> Option<Bytes> {
        let message = self.early.remove(&(self.received + 1))?;
        self.received += 1;
        Some(message)
    }

    /// Number of messages behind the received ones that have not come, although a later one has.
    pub(super) fn missing(&self) -> u16 {
        self.early.first_key_value().map_or(0, |(number, _)| (number - self.received - 1) as u16)
    }

    /// Notes that an acknowledgement is being sent.
    pub(super) fn told(&mut self) {
        (self.owed, self.tell_at) = (0, None);
    }

    /// Whether an acknowledgement is to be sent by a message of its own.
    pub(super) fn must_tell(&self, now: Instant) -> bool {
        self.owed >= WINDOW / 2 || self.tell_at.is_some_and(|at| at <= now)
    }

    /// Time at which [`Incoming::must_tell`] becomes true, if nothing happens before.
    pub(super) fn due(&self) -> Option<Instant> {
        self.tell_at
    }
}

#[cfg(test)]
mod tests {
    use plasmon::wire::Draw;

    use super::*;

    const ALIVE: fn(&u64) -> Option<bool> = |_| Some(false);

    fn message(number: u64) -> Bytes {
        number.to_le_bytes().to_vec().into()
    }

    /// Receives a message. Returns the numbers of the messages that are acted on.
    fn come(incoming: &mut Incoming, number: u64, now: Instant) -> Vec<u64> {
        match incoming.take(7, number, &message(number), now) {
            Place::Next => {
                let mut all = vec![number];
                while let Some(next) = incoming.take_next() {
                    all.push(u64::from_le_bytes(next[..].try_into().unwrap()));
                }
                all
            }
            _ => Vec::new(),
        }
    }

    #[test]
    fn messages_are_acted_on_in_order_and_once() {
        let (mut incoming, now) = (Incoming::default(), Instant::now());
        assert_eq!(come(&mut incoming, 1, now), [1]);
        assert!(!incoming.must_tell(now), "frames may carry it");
        assert_eq!(come(&mut incoming, 4, now), [0; 0]);
        assert_eq!((incoming.received, incoming.missing(), incoming.must_tell(now)), (1, 2, true));
        incoming.told();
        assert_eq!(come(&mut incoming, 3, now), [0; 0]);
        assert_eq!(come(&mut incoming, 2, now), [2, 3, 4]);
        assert_eq!(incoming.missing(), 0);
        incoming.told();
        assert_eq!(come(&mut incoming, 2, now), [0; 0]);
        assert!(incoming.must_tell(now), "the peer does not know");
    }

    #[test]
    fn what_is_outside_the_window_or_of_a_former_stream_is_left_out() {
        let (mut incoming, now) = (Incoming::default(), Instant::now());
        assert_eq!(incoming.take(5, 1, &message(1), now), Place::Next);
        assert_eq!(incoming.take(5, 2 + WINDOW as u64, &message(1), now), Place::Outside);
        assert_eq!(incoming.take(5, 1 + WINDOW as u64, &message(1), now), Place::Kept);
        assert_eq!(incoming.take(6, 1, &message(1), now), Place::Next);
        assert_eq!(incoming.missing(), 0, "what came early went with its stream");
        assert_eq!(incoming.take(5, 2, &message(1), now), Place::Outside);
    }

    #[test]
    fn a_message_is_sent_again_less_and_less_often() {
        let (mut outgoing, start) = (Outgoing::new(1), Instant::now());
        outgoing.push(1, start);
        outgoing.push(2, start);
        let mut times = Vec::new();
        for millis in 0..60_000 {
            let now = start + Duration::from_millis(millis);
            assert!(outgoing.due() > Some(now) || outgoing.due().is_some_and(|due| due == now));
            let again = outgoing.take_lost(now, ALIVE);
            if !again.is_empty() {
                assert_eq!(again, [1], "one is enough to find out");
                times.push(millis);
            }
        }
        assert_eq!(times[..6], [200, 600, 1400, 3000, 6200, 11_200]);
        let span = Duration::from_secs(60);
        assert!(outgoing.is_unheard(span, start + span) && !outgoing.is_unheard(span, start + span / 2));
        outgoing.acknowledge(1, 0, start + span / 2);
        assert!(!outgoing.is_unheard(span, start + span), "one has come");
        outgoing.acknowledge(2, 0, start);
        assert!(!outgoing.is_unheard(span, start + 10 * span), "all have come");
        assert_eq!(outgoing.due(), None);
    }

    #[test]
    fn what_failed_is_sent_again_at_once_and_then_patiently() {
        let (mut outgoing, start) = (Outgoing::new(1), Instant::now());
        (1..=3).for_each(|message| outgoing.push(message, start));
        // Of the second message nothing is known yet.
        let fails = |message: &u64| (*message != 2).then_some(true);
        let numbers = |outgoing: &mut Outgoing<u64>, now| outgoing.take_lost(now, fails);
        assert_eq!(numbers(&mut outgoing, start), [1, 3]);
        assert_eq!(numbers(&mut outgoing, start), [0; 0]);
        assert_eq!(numbers(&mut outgoing, start + FIRST_PATIENCE), [1]);
        // As soon as one message gets through, the rest are sent again.
        outgoing.acknowledge(1, 0, start + FIRST_PATIENCE);
        assert_eq!(numbers(&mut outgoing, start + FIRST_PATIENCE), [3]);
    }

    #[test]
    fn what_the_peer_misses_is_sent_again_at_once() {
        let (mut outgoing, start) = (Outgoing::new(1), Instant::now());
        (1..=4).for_each(|message| outgoing.push(message, start));
        outgoing.acknowledge(1, 2, start);
        assert_eq!(outgoing.take_lost(start, ALIVE), [2, 3]);
        outgoing.acknowledge(1, 2, start);
        assert!(outgoing.take_lost(start, ALIVE).is_empty(), "they are on their way");
        outgoing.acknowledge(1, 2, start + REPEAT_PAUSE);
        assert_eq!(outgoing.take_lost(start + REPEAT_PAUSE, ALIVE).len(), 2);
    }

    #[test]
    fn everything_arrives_once_whatever_is_lost_or_late() {
        for seed in 0..200 {
            let (mut draw, mut now) = (Draw::new(seed), Instant::now());
            let (mut outgoing, mut incoming) = (Outgoing::new(7), Incoming::default());
            let (mut under_way, mut news, mut arrived) = (Vec::new(), Vec::new(), Vec::new());
            let mut steps = 0;
            while arrived.len() < 500 {
                steps += 1;
                assert!(steps < 1_000_000, "seed {seed}: {} arrived", arrived.len());
                now += Duration::from_millis(draw.below(20) as u64);
                if outgoing.has_room() && outgoing.last < 500 {
                    under_way.push(outgoing.next());
                    outgoing.push(outgoing.next(), now);
                }
                let fails = draw.below(10) == 0;
                under_way.extend(outgoing.take_lost(now, |_| Some(fails)));
                assert!(outgoing.sent.len() <= WINDOW && incoming.early.len() <= WINDOW);
                // A message arrives, in any order; is lost; or arrives a second time.
                match (draw.below(8), under_way.len()) {
                    (_, 0) => {}
                    (0, count) => _ = under_way.swap_remove(draw.below(count)),
                    (fate, count) => {
                        let at = draw.below(count);
                        arrived.extend(come(&mut incoming, under_way[at], now));
                        if fate > 1 {
                            under_way.swap_remove(at);
                        }
                    }
                }
                if incoming.must_tell(now) {
                    incoming.told();
                    news.push((incoming.received, incoming.missing()));
                }
                if !news.is_empty() && draw.below(2) == 0 {
                    let (received, missing) = news.swap_remove(draw.below(news.len()));
                    if draw.below(4) > 0 {
                        outgoing.acknowledge(received, missing, now);
                    }
                }
            }
            assert_eq!(arrived, (1..=500).collect::<Vec<_>>(), "seed {seed}");
        }
    }
}
