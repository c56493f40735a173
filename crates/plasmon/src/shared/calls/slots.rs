//! Slots and their submitted bits, as both sides see them.
//!
//! Owns no state. Any thread. A thread of the client that owns a slot writes payload and request, and then
//! sets the bit of the slot (Release). The engine takes all bits of a word at once (Acquire), so each
//! submission is taken once. Several threads set bits of one word. All these changes are read-modify-writes.
//! So they form one release sequence, and the engine sees every request.
//!
//! The engine writes payload and values of the result, and then the word with the sequence number (Release).
//! The thread waits until this word has the number of its request (Acquire). The thread reads the rest, and
//! then the slot is free. The number tells this result from that of the previous call in the slot.
//!
//! A thread that gives a call up writes the number of its request to a word of the slot, and then sets the
//! given-up bit of the slot (Release). The engine takes given-up bits before submitted bits (Acquire). So
//! the engine has the request of a given-up bit already, or finds the number when it reads the request. The
//! number tells the call from the next call in the slot, which a late bit does not end.
//!
//! Bits and results announce something to the other side, by the rules of [`wakes`](crate::shared::wakes).
//! The thread sleeps on the low half of the result's first word, the sequence number.

use super::entries::{CallRequest, CallResult, WORDS};
use crate::shared::wakes::{Asleep, Attention, Core};
use crate::shared::words::{Ordering, Words};

/// Number of slots of a client.
pub const SLOTS: usize = 256;
/// Number of words of bits, submitted or given up.
pub(super) const BIT_WORDS: usize = SLOTS / 64;

/// Place of the engine's attention to the slots.
pub(super) const ATTENTION: Attention = Attention(192 / 8);
/// Place of the core on which a thread last waited.
pub(super) const CORE: Core = Core(64 / 8);

/// Index of the first word of submitted bits.
const FIRST_BIT_WORD: usize = (4 << 10) / 8;
/// Index of the first word of given-up bits.
const FIRST_GIVEN_UP_WORD: usize = ((4 << 10) + 64) / 8;
/// Index of the first word of the first slot.
const FIRST_SLOT_WORD: usize = (128 << 10) / 8;
/// Number of words of a slot.
const SLOT_WORDS: usize = 512 / 8;
/// Word of a slot at which the result begins.
const RESULT: usize = 64 / 8;
/// Word of a slot that says whether a thread sleeps until the result.
const ASLEEP: usize = 128 / 8;
/// Word of a slot with the number of the request that was given up last.
const GIVEN_UP: usize = ASLEEP + 1;
/// Bit of the word [`GIVEN_UP`] beside the number of a request. A slot that was never given up lacks this
/// bit.
const WAS_GIVEN_UP: u64 = 1 << 32;
/// Word of a slot at which the payload begins.
const PAYLOAD: usize = 192 / 8;

/// Number of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(pub(super) u8);

impl Slot {
    fn first(self) -> usize {
        FIRST_SLOT_WORD + usize::from(self.0) * SLOT_WORDS
    }

    /// Returns the index of the word that changes when the result comes.
    pub(super) fn result_word(self) -> usize {
        self.first() + RESULT
    }

    /// Returns the place of the word that says whether a thread sleeps until the result.
    pub(super) fn asleep(self) -> Asleep {
        Asleep(self.first() + ASLEEP)
    }

    /// Returns the sequence number of the slot's last request.
    pub(super) fn seq(self, words: &Words) -> u32 {
        words.at(self.first()).load(Ordering::Relaxed) as u32
    }

    /// Writes a request and submits it.
    pub(super) fn submit(self, words: &Words, seq: u32, request: &CallRequest) {
        put(words, self.first() + PAYLOAD, request.payload.words());
        put(words, self.first(), request.encode(seq));
        self.set_bit(words, FIRST_BIT_WORD);
    }

    /// Gives up the request with this number, which was submitted.
    pub(super) fn give_up(self, words: &Words, seq: u32) {
        words.at(self.first() + GIVEN_UP).store(WAS_GIVEN_UP | u64::from(seq), Ordering::Relaxed);
        self.set_bit(words, FIRST_GIVEN_UP_WORD);
    }

    /// Whether the request with this number was given up.
    pub(super) fn is_given_up(self, words: &Words, seq: u32) -> bool {
        words.at(self.first() + GIVEN_UP).load(Ordering::Relaxed) == WAS_GIVEN_UP | u64::from(seq)
    }

    fn set_bit(self, words: &Words, first: usize) {
        let (at, bit) = (usize::from(self.0) / 64, 1 << (self.0 % 64));
        words.at(first + at).fetch_or(bit, Ordering::Release);
    }

    /// Copies the request, whose bit was taken. `None` if it is malformed.
    pub(super) fn request(self, words: &Words) -> Option<(u32, CallRequest)> {
        let load = |at| words.at(at).load(Ordering::Relaxed);
        let request = std::array::from_fn::<_, WORDS, _>(|at| load(self.first() + at));
        CallRequest::decode(request, |at| load(self.first() + PAYLOAD + at))
    }

    /// Writes the result of a request.
    pub(super) fn answer(self, words: &Words, seq: u32, result: &CallResult) {
        put(words, self.first() + PAYLOAD, result.payload.words());
        let [first, values @ ..] = result.encode(seq);
        put(words, self.result_word() + 1, values);
        words.at(self.result_word()).store(first, Ordering::Release);
    }

    /// Whether the result of the request with this number has come.
    pub(super) fn is_answered(self, words: &Words, seq: u32) -> bool {
        words.at(self.result_word()).load(Ordering::Acquire) as u32 == seq
    }

    /// Copies the result, which has come.
    pub(super) fn result(self, words: &Words) -> CallResult {
        let load = |at| words.at(at).load(Ordering::Relaxed);
        let result = std::array::from_fn::<_, WORDS, _>(|at| load(self.result_word() + at));
        CallResult::decode(result, |at| load(self.first() + PAYLOAD + at))
    }
}

fn put(words: &Words, first: usize, values: impl IntoIterator<Item = u64>) {
    for (at, value) in values.into_iter().enumerate() {
        words.at(first + at).store(value, Ordering::Relaxed);
    }
}

/// Whether any slot is submitted or given up.
pub(super) fn any_bit(words: &Words) -> bool {
    let is_set = |at| words.at(at).load(Ordering::Relaxed) != 0;
    (0..BIT_WORDS).any(|at| is_set(FIRST_BIT_WORD + at) || is_set(FIRST_GIVEN_UP_WORD + at))
}

/// Takes one word of submitted bits.
pub(super) fn take_submitted(words: &Words, at: usize) -> u64 {
    take(words, FIRST_BIT_WORD + at)
}

/// Takes one word of given-up bits.
pub(super) fn take_given_up(words: &Words, at: usize) -> u64 {
    take(words, FIRST_GIVEN_UP_WORD + at)
}

fn take(words: &Words, at: usize) -> u64 {
    let word = words.at(at);
    // A load is cheap while no client writes; a swap takes the cache line from all other cores.
    if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Acquire) }
}

/// Returns the words of a page set that a model needs, for slots below `slots` with payloads of `payload`
/// words.
#[cfg(all(test, loom))]
pub(super) fn words_of(slots: usize, payload: usize) -> impl Iterator<Item = usize> {
    let of_slot = move |slot: usize| {
        let first = FIRST_SLOT_WORD + slot * SLOT_WORDS;
        let lines = [0..WORDS, RESULT..RESULT + WORDS, ASLEEP..GIVEN_UP + 1, PAYLOAD..PAYLOAD + payload];
        lines.into_iter().flatten().map(move |at| first + at)
    };
    let bits = [FIRST_BIT_WORD, FIRST_GIVEN_UP_WORD].into_iter().flat_map(|first| first..first + BIT_WORDS);
    [ATTENTION.0].into_iter().chain(bits).chain((0..slots).flat_map(of_slot))
}
