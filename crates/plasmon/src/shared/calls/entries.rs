//! Requests and results as words of a slot.
//!
//! Owns no state. Any thread. Invariant: a request that a client wrote is checked when it is decoded.
//!
//! | word | of a request | of a result |
//! |---|---|---|
//! | 0, bits 0 to 31 | sequence number | sequence number |
//! | 0, bits 32 to 47 | opcode in the low half, zero in the other | error kind, or 0 |
//! | 0, bits 48 to 63 | length of the payload | length of the payload |
//! | 1 | time-out in microseconds | value |
//! | 2 to 7 | arguments, as the operation says | values, as the operation says |
//!
//! The payload of a result with an error kind is the text of the error.

use std::fmt;
use std::ops::Deref;

use crate::{Class, Error, ErrorKind};

/// Number of words of a request, and of a result.
pub(super) const WORDS: usize = 8;
/// Number of arguments of a request.
pub const ARGUMENTS: usize = 6;
/// Number of values of a result.
pub const VALUES: usize = 7;
/// Largest payload of a request or a result in bytes.
pub const PAYLOAD_LEN: usize = 320;

/// Bytes that travel in a slot beside a request or a result.
#[derive(Clone, Copy)]
pub struct CallPayload {
    len: usize,
    bytes: [u8; PAYLOAD_LEN],
}

impl CallPayload {
    /// Payload of no bytes.
    pub const EMPTY: Self = Self { len: 0, bytes: [0; PAYLOAD_LEN] };

    /// Returns the payload of these bytes. `None` if there are more than [`PAYLOAD_LEN`] bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut payload = Self::EMPTY;
        payload.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        payload.len = bytes.len();
        Some(payload)
    }

    /// Returns the payload of a text, which is cut if it is too long.
    fn of_text(text: &str) -> Self {
        let mut end = text.len().min(PAYLOAD_LEN);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self::new(&text.as_bytes()[..end]).unwrap_or(Self::EMPTY)
    }

    /// Returns the payload of `len` bytes that `word` gives in words, the first word first. `None` if `len`
    /// is more than [`PAYLOAD_LEN`].
    pub(super) fn of_words(len: usize, mut word: impl FnMut(usize) -> u64) -> Option<Self> {
        let mut payload = Self::EMPTY;
        let bytes = payload.bytes.get_mut(..len.next_multiple_of(8))?;
        for (at, bytes) in bytes.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&word(at).to_le_bytes());
        }
        payload.len = len;
        Some(payload)
    }

    /// Returns the words of the payload. Bytes of the last word beyond the end have no meaning.
    pub(super) fn words(&self) -> impl Iterator<Item = u64> {
        let (words, _) = self.bytes[..self.len.next_multiple_of(8)].as_chunks();
        words.iter().map(|word| u64::from_le_bytes(*word))
    }
}

impl Deref for CallPayload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl PartialEq for CallPayload {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for CallPayload {}

impl fmt::Debug for CallPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// Request of a client in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallRequest {
    /// Number of the operation.
    pub opcode: u8,
    /// Class of the operation. `None` for the class of its client.
    pub class: Option<Class>,
    /// Longest time in microseconds from the submission to the result. `u64::MAX` for no limit.
    pub timeout_us: u64,
    /// Arguments of the operation.
    pub arguments: [u64; ARGUMENTS],
    /// Bytes that the operation needs.
    pub payload: CallPayload,
}

impl CallRequest {
    /// Returns the words of the request, without its payload.
    pub(super) fn encode(&self, seq: u32) -> [u64; WORDS] {
        let [a, b, c, d, e, f] = self.arguments;
        let class = self.class.map_or(0, |class| class as u64);
        let len = (self.payload.len as u64) << 48;
        let first = u64::from(seq) | u64::from(self.opcode) << 32 | class << 40 | len;
        [first, self.timeout_us, a, b, c, d, e, f]
    }

    /// Returns the sequence number and the request of these words, with the payload that `word` gives. `None`
    /// if the payload is longer than a slot has room for, or if there is no such class.
    pub(super) fn decode(words: [u64; WORDS], word: impl FnMut(usize) -> u64) -> Option<(u32, Self)> {
        let [first, timeout_us, arguments @ ..] = words;
        let payload = CallPayload::of_words((first >> 48) as usize, word)?;
        let class = match (first >> 40) as u8 {
            0 => None,
            class => Some(Class::from_wire(class)?),
        };
        let opcode = (first >> 32) as u8;
        Some((first as u32, Self { opcode, class, timeout_us, arguments, payload }))
    }
}

/// Result of a call: how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallResult {
    /// Kind of the error, whose text is the payload. `None` if the operation was carried out.
    pub error: Option<ErrorKind>,
    /// Values that the operation returns.
    pub values: [u64; VALUES],
    /// Bytes that the operation returns.
    pub payload: CallPayload,
}

impl CallResult {
    /// Returns the result of an operation that was carried out and returns these values, at most [`VALUES`].
    pub fn of(values: &[u64]) -> Self {
        let mut all = [0; VALUES];
        all.iter_mut().zip(values).for_each(|(to, value)| *to = *value);
        Self { error: None, values: all, payload: CallPayload::EMPTY }
    }

    /// Returns a result with these values and bytes. `None` if there are more than [`PAYLOAD_LEN`] bytes.
    pub fn with(values: &[u64], bytes: &[u8]) -> Option<Self> {
        Some(Self { payload: CallPayload::new(bytes)?, ..Self::of(values) })
    }

    /// Returns the result of an operation that failed. The text of the error is cut to [`PAYLOAD_LEN`] bytes.
    pub fn failed(error: &Error) -> Self {
        let payload = CallPayload::of_text(error.message());
        Self { error: Some(error.kind()), values: [0; VALUES], payload }
    }

    /// Returns the result, or the error that the result tells.
    ///
    /// # Errors
    /// If the operation failed.
    pub fn into_result(self) -> crate::Result<Self> {
        match self.error {
            Some(kind) => Err(Error::new(kind, String::from_utf8_lossy(&self.payload))),
            None => Ok(self),
        }
    }

    /// Returns the words of the result, without its payload.
    pub(super) fn encode(&self, seq: u32) -> [u64; WORDS] {
        let [a, b, c, d, e, f, g] = self.values;
        let error = self.error.map_or(0, |kind| kind as u64);
        let first = u64::from(seq) | error << 32 | (self.payload.len as u64) << 48;
        [first, a, b, c, d, e, f, g]
    }

    /// Returns the result of these words, with the payload that `word` gives.
    pub(super) fn decode(words: [u64; WORDS], word: impl FnMut(usize) -> u64) -> Self {
        let [first, values @ ..] = words;
        let len = ((first >> 48) as usize).min(PAYLOAD_LEN);
        let payload = CallPayload::of_words(len, word).unwrap_or(CallPayload::EMPTY);
        let error = match (first >> 32) as u16 {
            0 => None,
            kind => Some(ErrorKind::from_wire(kind).unwrap_or(ErrorKind::Internal)),
        };
        Self { error, values, payload }
    }
}
