//! Frames of requests: how many there are, and what travels with them.

use bytes::BytesMut;

use super::{FLAG_MORE, MAX_IDS, Request, Table, put_frame};

impl Request {
    /// Appends the request to `out`: one frame, or several for a wait for many objects.
    pub fn encode(&self, request: u64, out: &mut BytesMut) {
        match self {
            Self::Wait { timeout_us, count, ids } if ids.len() > MAX_IDS => {
                let mut parts = ids.chunks(MAX_IDS).peekable();
                while let Some(ids) = parts.next() {
                    let part = Self::Wait { timeout_us: *timeout_us, count: *count, ids: ids.to_vec() };
                    let flags = if parts.peek().is_some() { FLAG_MORE } else { 0 };
                    put_frame(&part, flags, request, 0, out);
                }
            }
            _ => put_frame(self, 0, request, self.descriptors(), out),
        }
    }

    /// How many descriptors travel with the frame.
    pub fn descriptors(&self) -> usize {
        usize::from(matches!(self, Self::Adopt { .. }))
    }

    /// Whether the request is answered.
    pub fn is_answered(&self) -> bool {
        self.row().is_none_or(|row| !row.answers.is_empty())
    }
}
