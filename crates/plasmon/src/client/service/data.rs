//! Bytes of calls and replies that no slot has room for, in memory that the daemon lent.
//!
//! Owns the memory of one call. The calling thread. Invariant: memory that the daemon may still read or
//! write, because its call was given up or may be running, is not used again.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use super::{NOWHERE, begin};
use crate::client::calling::Calls;
use crate::client::due::{Due, rest_of};
use crate::client::pieces::{MAX_PIECE_BYTES, Piece, has_no_room};
use crate::client::scratch::buffer_until;
use crate::client::{Client, Scratch};
use crate::service::MAX_DATA_BYTES;
use crate::shared::{CallResult, PAYLOAD_LEN};
use crate::wire::{LentRange, ServiceCall};
use crate::{Error, ErrorKind, Result};

/// Largest number of bytes that come with a call or a reply. More bytes are taken by a further call.
const ROOM_BYTES: usize = 8 << 10;

/// Lent memory of one call.
enum Memory {
    Piece(Piece),
    Scratch(Scratch),
}

impl Memory {
    /// Takes memory, for which the daemon is asked at most until `due`.
    fn new(client: &Client, len: usize, due: Due) -> Result<Self> {
        if len <= MAX_PIECE_BYTES {
            return Piece::of(client, len, due).map(Self::Piece);
        }
        buffer_until(client, len, true, (None, due)).map(Self::Scratch)
    }

    fn range(&self) -> LentRange {
        match self {
            Self::Piece(piece) => piece.range(),
            Self::Scratch(scratch) => LentRange { buffer: scratch.number(), at: 0 },
        }
    }

    /// Notes whether the daemon may read or write the memory. Other memory than a piece is given back in any
    /// case, and the daemon keeps it as long as it needs it.
    fn set_busy(&mut self, busy: bool) {
        if let Self::Piece(piece) = self {
            piece.busy = busy;
        }
    }
}

/// Bytes that are sent: in a slot, or in lent memory.
pub(super) struct Sent {
    memory: Option<Memory>,
    len: usize,
}

impl Sent {
    /// Sends nothing.
    pub(super) fn nothing() -> Self {
        Self { memory: None, len: 0 }
    }

    /// Copies bytes into lent memory, if no slot has room for them. The daemon is asked for memory at most
    /// until `due`.
    pub(super) fn new(client: &Client, data: &[u8], due: Due) -> Result<Self> {
        let len = data.len();
        if len <= PAYLOAD_LEN {
            return Ok(Self { memory: None, len });
        }
        if len > MAX_DATA_BYTES {
            let text = format!("{len} bytes are more than a call or a reply may have: {MAX_DATA_BYTES}");
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        let mut memory = Memory::new(client, len, due)?;
        match &mut memory {
            Memory::Piece(piece) => piece.put(data),
            Memory::Scratch(scratch) => scratch.as_mut_slice()[..len].copy_from_slice(data),
        }
        Ok(Self { memory: Some(memory), len })
    }

    /// Copies bytes into free lent memory, if no slot has room for them. `None` if no memory is free.
    pub(super) fn free(client: &Client, data: &[u8]) -> Result<Option<Self>> {
        let len = data.len();
        if len <= PAYLOAD_LEN {
            return Ok(Some(Self { memory: None, len }));
        }
        let piece = if len <= MAX_PIECE_BYTES { Piece::free(client, len)? } else { None };
        Ok(piece.map(|mut piece| {
            piece.put(data);
            Self { memory: Some(Memory::Piece(piece)), len }
        }))
    }

    /// Sends the first `len` bytes of lent memory.
    pub(super) fn lent(memory: Scratch, len: usize) -> Result<Self> {
        if len > memory.len().min(MAX_DATA_BYTES) {
            let room = memory.len();
            let text =
                format!("{len} bytes are more than the memory or a call may have: {room}, {MAX_DATA_BYTES}");
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        Ok(Self { memory: Some(Memory::Scratch(memory)), len })
    }

    /// Number of bytes in lent memory.
    pub(super) fn len(&self) -> u32 {
        // Data are at most MAX_DATA_BYTES long, which fits 32 bits.
        if self.memory.is_some() { self.len as u32 } else { 0 }
    }

    pub(super) fn range(&self) -> LentRange {
        self.memory.as_ref().map_or(NOWHERE, Memory::range)
    }

    /// Bytes for the slot.
    pub(super) fn payload<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        if self.memory.is_some() { &[] } else { data }
    }

    pub(super) fn set_busy(&mut self, busy: bool) {
        self.memory.iter_mut().for_each(|memory| memory.set_busy(busy));
    }

    /// Notes how the call ended. The daemon may still read the bytes of a call that may still be running.
    pub(super) fn settle<T>(&mut self, ended: &Result<T>) {
        let is_over = |error: &Error| {
            !matches!(
                error.kind(),
                ErrorKind::OutcomeUnknown
                    | ErrorKind::TimedOut
                    | ErrorKind::Interrupted
                    | ErrorKind::Disconnected
            )
        };
        self.set_busy(!ended.as_ref().err().is_none_or(is_over));
    }
}

/// Room for bytes that come with a result. Without room, a further call takes the bytes that come.
#[derive(Default)]
pub(super) struct Room(Option<Piece>);

impl Room {
    /// Takes room, if the daemon has any. The daemon is asked at most until `due`.
    pub(super) fn new(client: &Client, due: Due) -> Result<Self> {
        match Piece::of(client, ROOM_BYTES, due) {
            Err(error) if has_no_room(&error) => Ok(Self::default()),
            piece => Ok(Self(Some(piece?))),
        }
    }

    /// Takes room that is free, as [`Room::new`] does, without asking the daemon for more.
    pub(super) fn free(client: &Client) -> Self {
        Self(Piece::free(client, ROOM_BYTES).ok().flatten())
    }

    pub(super) fn len(&self) -> u32 {
        if self.0.is_some() { ROOM_BYTES as u32 } else { 0 }
    }

    pub(super) fn range(&self) -> LentRange {
        self.0.as_ref().map_or(NOWHERE, Piece::range)
    }

    pub(super) fn set_busy(&mut self, busy: bool) {
        self.0.iter_mut().for_each(|piece| piece.busy = busy);
    }

    /// Bytes that came with a result, `len` of them. `None` if there was no room for the bytes.
    pub(super) fn data(&self, result: &CallResult, len: u64) -> Option<Data> {
        let len = usize::try_from(len).ok()?;
        if len <= PAYLOAD_LEN {
            return (result.payload.len() == len).then(|| Data(Bytes::Own(result.payload.to_vec())));
        }
        let piece = self.0.as_ref().filter(|_| len <= ROOM_BYTES)?;
        let mut bytes = vec![0; len];
        piece.take(&mut bytes);
        Some(Data(Bytes::Own(bytes)))
    }
}

/// Bytes of a call that a server received, or of a reply.
pub struct Data(Bytes);

enum Bytes {
    Own(Vec<u8>),
    /// The first bytes of lent memory.
    Lent(Scratch, usize),
}

impl Data {
    pub(super) fn empty() -> Self {
        Self(Bytes::Own(Vec::new()))
    }

    /// Brings bytes that had no room, by a call that names memory for them.
    pub(super) fn take(
        client: &Client,
        len: u64,
        what: impl FnOnce(LentRange) -> ServiceCall,
        timeout: Duration,
        due: Due,
    ) -> Result<Self> {
        let too_long = || Error::new(ErrorKind::TooLarge, format!("{len} bytes do not fit into memory"));
        let len = usize::try_from(len).map_err(|_| too_long())?;
        let mut memory = Memory::new(client, len, due)?;
        let call = begin(client, what(memory.range()), &[], rest_of(timeout, due), due)?;
        memory.set_busy(true);
        Calls(client).finish(call, due)?.into_result()?;
        memory.set_busy(false);
        Ok(Self(match memory {
            Memory::Piece(piece) => {
                let mut bytes = vec![0; len];
                piece.take(&mut bytes);
                Bytes::Own(bytes)
            }
            Memory::Scratch(scratch) => Bytes::Lent(scratch, len),
        }))
    }

    pub(super) fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Bytes::Own(bytes) => bytes,
            Bytes::Lent(..) => self.to_vec(),
        }
    }
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Own(bytes) => bytes,
            Bytes::Lent(scratch, len) => &scratch.as_slice()[..*len],
        }
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Data").field("len", &self.len()).finish()
    }
}
