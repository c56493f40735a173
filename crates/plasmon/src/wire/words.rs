//! Fields in the words of a slot: where the fields of a call or a result lie, and how they are read.
//!
//! Owns no state. Any thread. Fields lie one behind the other as in a struct of C: each at a multiple of its
//! length, numbers little-endian. [`InWord`] begins at a word that it names, [`Payload`] is the payload.
//! Invariant: a call or a result whose fields leave a byte that is not 0 unread is refused. So words that are
//! decoded and encoded again are the same.

use std::borrow::Cow;
use std::mem;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::draw::Draw;
use super::fields::{Types, Wire};
use super::files::decoded;
use crate::NodeId;
use crate::shared::{ARGUMENTS, VALUES};

/// Length of a word in bytes.
const WORD_BYTES: usize = 8;

/// Words and payload that are written.
#[derive(Debug, Default)]
pub struct Packing {
    words: [u64; VALUES],
    /// Offset in bytes at which the next field may begin.
    at: usize,
    payload: BytesMut,
}

impl Packing {
    /// Returns arguments and payload of a call. The payload is empty if it is not a field.
    pub(super) fn arguments(self) -> ([u64; ARGUMENTS], BytesMut) {
        let mut arguments = [0; ARGUMENTS];
        arguments.copy_from_slice(&self.words[..ARGUMENTS]);
        (arguments, self.payload)
    }

    /// Returns values and payload of a result. The payload is empty if it is not a field.
    pub(super) fn values(self) -> ([u64; VALUES], BytesMut) {
        (self.words, self.payload)
    }

    /// Writes a number of `len` bytes.
    fn put(&mut self, number: u64, len: usize) {
        self.at = self.at.next_multiple_of(len);
        self.words[self.at / WORD_BYTES] |= number << (self.at % WORD_BYTES * 8);
        self.at += len;
    }
}

/// Words and payload that are read.
#[derive(Debug)]
pub struct Unpacking<'a> {
    /// Words, in which bytes that were read are 0.
    words: [u64; VALUES],
    /// Offset in bytes at which the next field may begin.
    at: usize,
    /// Payload. Empty once it was read.
    payload: &'a [u8],
}

impl<'a> Unpacking<'a> {
    pub(super) fn of_arguments(arguments: [u64; ARGUMENTS], payload: &'a [u8]) -> Self {
        let mut words = [0; VALUES];
        words[..ARGUMENTS].copy_from_slice(&arguments);
        Self::of_values(words, payload)
    }

    pub(super) fn of_values(words: [u64; VALUES], payload: &'a [u8]) -> Self {
        Self { words, at: 0, payload }
    }

    /// Leaves the payload to the caller, who takes it as bytes.
    #[doc(hidden)]
    pub fn leave_payload(&mut self) {
        self.payload = &[];
    }

    /// Returns the value that was read, if nothing is left over.
    pub(super) fn finish<T>(self, read: T) -> Option<T> {
        (self.words == [0; VALUES] && self.payload.is_empty()).then_some(read)
    }

    /// Reads a number of `len` bytes.
    fn take(&mut self, len: usize) -> u64 {
        self.at = self.at.next_multiple_of(len);
        let (word, shift) = (&mut self.words[self.at / WORD_BYTES], self.at % WORD_BYTES * 8);
        let mask = u64::MAX >> ((WORD_BYTES - len) * 8) << shift;
        let number = (*word & mask) >> shift;
        *word &= !mask;
        self.at += len;
        number
    }
}

/// Encoding in words of a field of type `T`. `Self` is `T`, or the name of another encoding.
pub trait Argument<T = Self> {
    /// Length in bytes. A field begins at a multiple of its length, or at a word if it is longer than a word.
    const LEN: usize;

    /// Returns the name of the field's type in the documentation, and enters the parts into `types`.
    fn shape(types: &mut Types) -> Cow<'static, str>;

    /// Writes a value.
    fn pack(value: &T, out: &mut Packing);

    /// Reads a value. `None` if it is out of range.
    fn unpack(from: &mut Unpacking) -> Option<T>;

    /// Draws any value that can be written.
    fn draw(draw: &mut Draw) -> T;

    /// Returns the place of the field for the documentation: the offset of its first byte. `at` is the offset
    /// at which the field may begin, and afterwards that of the next field.
    fn place(at: &mut usize) -> String {
        let begins = at.next_multiple_of(Self::LEN.min(WORD_BYTES));
        *at = begins + Self::LEN;
        begins.to_string()
    }
}

macro_rules! integers {
    ($($type:ident),*) => {$(
        impl Argument for $type {
            const LEN: usize = size_of::<$type>();

            fn shape(types: &mut Types) -> Cow<'static, str> {
                <Self as Wire>::shape(types)
            }

            fn pack(value: &Self, out: &mut Packing) {
                out.put((*value).into(), Self::LEN);
            }

            fn unpack(from: &mut Unpacking) -> Option<Self> {
                Some(from.take(Self::LEN) as Self)
            }

            fn draw(draw: &mut Draw) -> Self {
                <Self as Wire>::draw(draw)
            }
        }
    )*};
}

integers!(u8, u16, u32, u64);

impl Argument for bool {
    const LEN: usize = 1;

    fn shape(types: &mut Types) -> Cow<'static, str> {
        <Self as Wire>::shape(types)
    }

    fn pack(value: &Self, out: &mut Packing) {
        out.put((*value).into(), Self::LEN);
    }

    fn unpack(from: &mut Unpacking) -> Option<Self> {
        match from.take(Self::LEN) {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn draw(draw: &mut Draw) -> Self {
        <Self as Wire>::draw(draw)
    }
}

impl Argument for NodeId {
    const LEN: usize = Self::LEN;

    fn shape(types: &mut Types) -> Cow<'static, str> {
        <Self as Wire>::shape(types)
    }

    fn pack(value: &Self, out: &mut Packing) {
        let (words, _) = value.as_bytes().as_chunks();
        words.iter().for_each(|word| out.put(u64::from_le_bytes(*word), WORD_BYTES));
    }

    fn unpack(from: &mut Unpacking) -> Option<Self> {
        let mut bytes = [0; Self::LEN];
        let (words, _) = bytes.as_chunks_mut();
        words.iter_mut().for_each(|word| *word = from.take(WORD_BYTES).to_le_bytes());
        Some(Self::from_bytes(bytes))
    }

    fn draw(draw: &mut Draw) -> Self {
        <Self as Wire>::draw(draw)
    }
}

/// Place in lent memory of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LentRange {
    /// Number of the memory on this connection.
    pub buffer: u64,
    /// Offset of the first byte.
    pub at: u64,
}

impl Argument for LentRange {
    const LEN: usize = 2 * WORD_BYTES;

    fn shape(types: &mut Types) -> Cow<'static, str> {
        types.enter("LentRange", |_| "0 buffer: u64, 8 at: u64".into())
    }

    fn pack(value: &Self, out: &mut Packing) {
        u64::pack(&value.buffer, out);
        u64::pack(&value.at, out);
    }

    fn unpack(from: &mut Unpacking) -> Option<Self> {
        Some(Self { buffer: u64::unpack(from)?, at: u64::unpack(from)? })
    }

    fn draw(draw: &mut Draw) -> Self {
        Self { buffer: <u64 as Argument>::draw(draw), at: <u64 as Argument>::draw(draw) }
    }
}

/// Number that is not 0.
#[derive(Debug)]
pub struct NotZero;

impl Argument<u64> for NotZero {
    const LEN: usize = WORD_BYTES;

    fn shape(_: &mut Types) -> Cow<'static, str> {
        "u64, not 0".into()
    }

    fn pack(value: &u64, out: &mut Packing) {
        u64::pack(value, out);
    }

    fn unpack(from: &mut Unpacking) -> Option<u64> {
        u64::unpack(from).filter(|number| *number != 0)
    }

    fn draw(draw: &mut Draw) -> u64 {
        draw.number().max(1)
    }
}

/// Time as its number of nanoseconds; `u64::MAX` for any longer time.
#[derive(Debug)]
pub struct Nanoseconds;

impl Argument<Duration> for Nanoseconds {
    const LEN: usize = WORD_BYTES;

    fn shape(_: &mut Types) -> Cow<'static, str> {
        "u64, in ns".into()
    }

    fn pack(value: &Duration, out: &mut Packing) {
        u64::pack(&value.as_nanos().try_into().unwrap_or(u64::MAX), out);
    }

    fn unpack(from: &mut Unpacking) -> Option<Duration> {
        u64::unpack(from).map(Duration::from_nanos)
    }

    fn draw(draw: &mut Draw) -> Duration {
        Duration::from_nanos(draw.number())
    }
}

/// Field that begins at the word `NUMBER`, however far the fields before it reach.
#[derive(Debug)]
pub struct InWord<const NUMBER: usize>;

impl<T: Argument, const NUMBER: usize> Argument<T> for InWord<NUMBER> {
    const LEN: usize = T::LEN;

    fn shape(types: &mut Types) -> Cow<'static, str> {
        T::shape(types)
    }

    fn pack(value: &T, out: &mut Packing) {
        out.at = NUMBER * WORD_BYTES;
        T::pack(value, out);
    }

    fn unpack(from: &mut Unpacking) -> Option<T> {
        from.at = NUMBER * WORD_BYTES;
        T::unpack(from)
    }

    fn draw(draw: &mut Draw) -> T {
        T::draw(draw)
    }

    fn place(at: &mut usize) -> String {
        *at = NUMBER * WORD_BYTES;
        T::place(at)
    }
}

/// Field that is the whole payload, encoded as in a frame.
#[derive(Debug)]
pub struct Payload;

impl<T: Wire> Argument<T> for Payload {
    const LEN: usize = 0;

    fn shape(types: &mut Types) -> Cow<'static, str> {
        T::shape(types)
    }

    fn pack(value: &T, out: &mut Packing) {
        T::put(value, &mut out.payload);
    }

    fn unpack(from: &mut Unpacking) -> Option<T> {
        decoded(Bytes::copy_from_slice(mem::take(&mut from.payload)), "payload").ok()
    }

    fn draw(draw: &mut Draw) -> T {
        T::draw(draw)
    }

    fn place(_: &mut usize) -> String {
        "payload".into()
    }
}
