//! Assembly of a request that may take several frames.
//!
//! Owns the ids of one such request until its last frame. Any thread. Invariant: frames of different requests
//! are never joined.

use bytes::Bytes;

use super::{FLAG_MORE, Header, MAX_WAIT_IDS, Request, Table, WireError};
use crate::ObjectId;

/// Assembles requests whose frames arrive one after the other.
#[derive(Debug, Default)]
pub struct Gathering(Option<(u64, Vec<ObjectId>)>);

impl Gathering {
    /// Takes the next frame. Returns the request that the frame completes, if it completes one.
    ///
    /// # Errors
    /// As [`Table::decode_body`]. Also if a frame has flags that its kind may not have, if another request
    /// comes between two frames of one, or if a request names too many objects.
    pub fn take(&mut self, header: &Header, body: Bytes) -> Result<Option<Request>, WireError> {
        let more = match header.flags {
            0 => false,
            FLAG_MORE => true,
            _ => return Err(WireError::Malformed("flags of a request")),
        };
        let request = Request::decode_body(header.opcode, body)?;
        let (timeout_us, count, ids) = match (request, self.0.take()) {
            (request, None) if !more => return Ok(Some(request)),
            (Request::Wait { timeout_us, count, ids }, None) => (timeout_us, count, ids),
            (Request::Wait { timeout_us, count, ids }, Some((number, mut before)))
                if number == header.request && before.len() + ids.len() <= MAX_WAIT_IDS =>
            {
                before.extend(ids);
                (timeout_us, count, before)
            }
            _ => return Err(WireError::Malformed("request in several frames")),
        };
        if more {
            self.0 = Some((header.request, ids));
            return Ok(None);
        }
        Ok(Some(Request::Wait { timeout_us, count, ids }))
    }
}
