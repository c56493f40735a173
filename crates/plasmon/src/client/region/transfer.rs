//! Bytes of a region that no slot has room for: through memory that the daemon lent, in chunks.
//!
//! Owns the chunks under way. The calling thread. Two chunks are under way at a time: while the daemon reads
//! or writes one, this thread copies the other. Memory of the caller that the daemon knows needs no copy and
//! no chunks. If the daemon has no memory to lend, the bytes travel by slots, which is slow.

use std::collections::VecDeque;

use super::Region;
use crate::Result;
use crate::client::calling::{Call, Calls};
use crate::client::due::{Due, due, rest_of};
use crate::client::pieces::{MAX_PIECE_BYTES, Piece, has_no_room};
use crate::shared::{CallResult, PAYLOAD_LEN};
use crate::wire::{LentRange, Operation, RegionCall};

/// Number of chunks that are under way at a time.
const CHUNKS_UNDER_WAY: usize = 2;

/// Call under way that moves bytes between a region and a piece of lent memory.
pub(super) struct Chunk {
    call: Call,
    what: RegionCall,
    piece: Piece,
}

impl Chunk {
    /// Whether the result has come.
    pub(super) fn has_come(&self) -> bool {
        self.call.has_come()
    }
}

impl Region {
    /// Reads bytes into memory of the caller.
    pub(super) fn receive(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let due = due(Some(self.timeout));
        if let Some((buffer, at)) = self.client.connection.scratch_of(into) {
            let (len, memory) = (into.len() as u64, LentRange { buffer, at });
            let moved = self.move_whole(RegionCall::ReadTo { offset, len, memory }, due);
            // The daemon or the network card wrote the bytes without the compiler's knowledge.
            std::hint::black_box(&mut *into);
            return moved;
        }
        let mut under_way: VecDeque<(Chunk, &mut [u8])> = VecDeque::new();
        let mut at = offset;
        for bytes in into.chunks_mut(MAX_PIECE_BYTES) {
            if under_way.len() == CHUNKS_UNDER_WAY
                && let Some((chunk, place)) = under_way.pop_front()
            {
                self.finish(chunk, due)?.take(place);
            }
            let len = bytes.len();
            match Piece::of(&self.client, len, due) {
                Ok(piece) => under_way.push_back((self.begin_reading(at, len, piece, due)?, bytes)),
                Err(error) if has_no_room(&error) => self.read_by_slots(at, bytes, due)?,
                Err(error) => return Err(error),
            }
            at += len as u64;
        }
        under_way.into_iter().try_for_each(|(chunk, place)| {
            self.finish(chunk, due)?.take(place);
            Ok(())
        })
    }

    /// Writes bytes of memory of the caller.
    pub(super) fn send(&self, offset: u64, data: &[u8]) -> Result<()> {
        let due = due(Some(self.timeout));
        if let Some((buffer, at)) = self.client.connection.scratch_of(data) {
            let (len, memory) = (data.len() as u64, LentRange { buffer, at });
            return self.move_whole(RegionCall::WriteFrom { offset, len, memory }, due);
        }
        let mut under_way = VecDeque::new();
        let mut at = offset;
        for bytes in data.chunks(MAX_PIECE_BYTES) {
            if under_way.len() == CHUNKS_UNDER_WAY
                && let Some(chunk) = under_way.pop_front()
            {
                self.finish(chunk, due)?;
            }
            match Piece::of(&self.client, bytes.len(), due) {
                Ok(piece) => under_way.push_back(self.begin_writing(at, bytes, piece, due)?),
                Err(error) if has_no_room(&error) => self.write_by_slots(at, bytes, due)?,
                Err(error) => return Err(error),
            }
            at += bytes.len() as u64;
        }
        under_way.into_iter().try_for_each(|chunk| self.finish(chunk, due).map(drop))
    }

    /// Begins to read `len` bytes into a piece.
    pub(super) fn begin_reading(&self, offset: u64, len: usize, mut piece: Piece, due: Due) -> Result<Chunk> {
        let what = RegionCall::ReadTo { offset, len: len as u64, memory: piece.range() };
        let call = self.begin(what, &[], self.left(due), due)?;
        piece.busy = true;
        Ok(Chunk { call, what, piece })
    }

    /// Begins to write bytes, of which the piece gets a copy.
    pub(super) fn begin_writing(
        &self,
        offset: u64,
        bytes: &[u8],
        mut piece: Piece,
        due: Due,
    ) -> Result<Chunk> {
        piece.put(bytes);
        let what = RegionCall::WriteFrom { offset, len: bytes.len() as u64, memory: piece.range() };
        let call = self.begin(what, &[], self.left(due), due)?;
        piece.busy = true;
        Ok(Chunk { call, what, piece })
    }

    /// Waits for a chunk. Returns its piece, which has the bytes that were read.
    pub(super) fn finish(&self, chunk: Chunk, due: Due) -> Result<Piece> {
        let Chunk { call, what, mut piece } = chunk;
        let answered = Calls(&self.client).finish(call, due);
        piece.busy = answered.is_err();
        self.settle(what, answered)?;
        Ok(piece)
    }

    /// Moves all bytes by one call, between the region and memory of the caller that the daemon knows.
    fn move_whole(&self, what: RegionCall, due: Due) -> Result<()> {
        let call = self.begin(what, &[], self.timeout, due)?;
        self.settle(what, Calls(&self.client).finish(call, due)).map(drop)
    }

    fn read_by_slots(&self, mut offset: u64, into: &mut [u8], due: Due) -> Result<()> {
        for bytes in into.chunks_mut(PAYLOAD_LEN) {
            let len = bytes.len();
            let read = RegionCall::On(Operation::Read { offset, len: len as u64 });
            let result: CallResult = self.carry_out(read, &[], (self.left(due), due))?;
            bytes.copy_from_slice(self.bytes_of(&result, len)?);
            offset += len as u64;
        }
        Ok(())
    }

    fn write_by_slots(&self, mut offset: u64, data: &[u8], due: Due) -> Result<()> {
        for bytes in data.chunks(PAYLOAD_LEN) {
            let write = RegionCall::On(Operation::Write { offset });
            self.carry_out(write, bytes, (self.left(due), due))?;
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    /// Time-out of a call that is part of an operation that ends at `due`.
    fn left(&self, due: Due) -> std::time::Duration {
        rest_of(self.timeout, due)
    }
}
