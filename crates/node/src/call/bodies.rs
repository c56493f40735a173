//! The bytes of calls and replies: in a frame, in memory that a client was lent, or in another node's
//! memory. Owns [`Lent`]. Engine thread only.
//!
//! Bytes that no frame carries are written to a window of the other node, if there is one with
//! room, and are read where they lie otherwise.
//!
//! Invariant: memory that another node may read keeps its bytes until that node has said that it is done,
//! even if the call is over. A node that is no member any more says nothing, and may not know yet that it
//! is none: for [`HELD_FOR`] it may still read, and then it has no key.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::channel::oneshot;
use plasmon::service::MAX_DATA_BYTES;
use plasmon::shared::PAYLOAD_LEN;
use plasmon::wire::LentRange;
use plasmon::{Error, ErrorKind, NodeId};

use super::Calls;
use super::frames::{CARRIED_MAX_BYTES, CallFrame};
use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;
use crate::net::frame::{Location, WindowPlace};
use crate::net::network::Network;
use crate::net::sending::describe_segments;
use crate::transfer::{Come, Given, Written, come_plain, in_turns, locate, read_given, whole, write_plain};

/// How long memory is kept for a node that may read it and has gone without saying that it is done.
/// The keys of such a node end sooner.
pub(super) const HELD_FOR: Duration = Duration::from_secs(30);

/// The bytes of a call or a reply.
pub(super) struct Body {
    at: At,
    /// Owner of the bytes, which is dropped when the bytes are needed no more.
    keeps: Option<Rc<dyn Any>>,
}

enum At {
    /// At most [`CARRIED_MAX_BYTES`] bytes.
    Carried(Bytes),
    /// The memory of a client of this node.
    Here(Rc<Given>, u64),
    /// The memory of another node.
    There(There),
}

/// Bytes in the memory of another node.
struct There {
    node: NodeId,
    pieces: Vec<Location>,
    len: u64,
    /// Bytes of the body in a window of this node, if they were written there.
    come: RefCell<Option<Come>>,
}

/// The bytes of a body, or their place, as another node is told.
pub(super) struct Told {
    pub(super) data: Bytes,
    pub(super) pieces: Vec<Location>,
    /// The write to a window of that node. It is kept for as long as that node may need the bytes.
    pub(super) written: Option<Written>,
}

impl Told {
    /// Returns the place of the bytes in the window.
    pub(super) fn place(&self) -> Option<WindowPlace> {
        self.written.as_ref().map(Written::place)
    }
}

/// A reply in another node's memory. This node is told when the reply is not read any more.
struct Elsewhere {
    network: Rc<Network>,
    node: NodeId,
    lent: u64,
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        // A node that has gone need not be told.
        self.network.tell(self.node, CallFrame::Taken { lent: self.lent });
    }
}

impl Body {
    /// Makes a body of bytes that came in a slot or a frame.
    pub(super) fn carried(bytes: Bytes) -> Self {
        Self { at: At::Carried(bytes), keeps: None }
    }

    /// Makes a body of bytes that a peer has sent, or of which it said where they lie. `None` if no peer
    /// sends such a body. `come` looks for that many bytes in a window.
    pub(super) fn sent(
        from: NodeId,
        data: Bytes,
        pieces: Vec<Location>,
        come: impl FnOnce(u64) -> Option<Come>,
    ) -> Option<Self> {
        let at = match whole(&pieces)? {
            0 if data.len() as u64 <= CARRIED_MAX_BYTES => At::Carried(data),
            len if data.is_empty() && len > CARRIED_MAX_BYTES && len <= MAX_DATA_BYTES as u64 => {
                At::There(There { node: from, pieces, len, come: RefCell::new(come(len)) })
            }
            _ => return None,
        };
        Some(Self { at, keeps: None })
    }

    /// Number of bytes.
    pub(super) fn len(&self) -> u64 {
        match &self.at {
            At::Carried(bytes) => bytes.len() as u64,
            At::Here(_, len) => *len,
            At::There(there) => there.len,
        }
    }

    /// Frees the room that the bytes take in a window, because they are needed no more.
    pub(super) fn leave_window(&self) {
        if let At::There(there) = &self.at {
            drop(there.come.take());
        }
    }

    /// Returns the bytes, if they are carried by this body.
    pub(super) fn bytes(&self) -> Option<&Bytes> {
        match &self.at {
            At::Carried(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the bytes, if a slot has room for them.
    pub(super) fn payload(&self) -> Option<&[u8]> {
        self.bytes().map(|bytes| &bytes[..]).filter(|bytes| bytes.len() <= PAYLOAD_LEN)
    }

    /// Has a value dropped when the bytes are needed no more.
    pub(super) fn keep(&mut self, what: Rc<dyn Any>) {
        self.keeps = Some(what);
    }

    /// Whether the bytes lie in a client's memory.
    pub(super) fn is_lent(&self) -> bool {
        matches!(self.at, At::Here(..))
    }
}

/// A reply that another node has not taken, and what was written to a window of that node.
type LentBody = (Rc<Body>, Option<Written>);

/// Replies in the memory of this node's clients that other nodes read, by node and number.
#[derive(Default)]
pub(super) struct Lent(RefCell<HashMap<(NodeId, u64), LentBody>>);

impl Lent {
    /// Notes that a node no longer reads a reply.
    pub(super) fn taken(&self, node: NodeId, lent: u64) {
        let taken = self.0.borrow_mut().remove(&(node, lent));
        if let Some((_, Some(written))) = taken {
            written.release();
        }
    }

    /// Takes out what was lent to nodes that have gone, or to all nodes.
    fn lose(&self, gone: &[NodeId], all: bool) -> Vec<Rc<Body>> {
        let is_gone = |node: &NodeId| all || gone.contains(node);
        self.0.borrow_mut().extract_if(|(node, _), _| is_gone(node)).map(|(_, (body, _))| body).collect()
    }
}

impl Calls {
    /// Makes a body of the bytes that a client sends: the payload of its slot, or `len` bytes in
    /// memory that it was lent.
    ///
    /// # Errors
    /// `Invalid` if the client has no such memory, `TooLarge` for more bytes than a call may have.
    pub(super) fn body_of(
        &self,
        client: ClientKey,
        payload: &[u8],
        (len, memory): (u32, LentRange),
    ) -> Result<Body, Error> {
        if len == 0 {
            return Ok(Body::carried(Bytes::copy_from_slice(payload)));
        }
        let len = u64::from(len);
        if len > MAX_DATA_BYTES as u64 {
            let text = format!("{len} bytes are more than a call or a reply may have: {MAX_DATA_BYTES}");
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        let given = self.requests.give(client, memory, len)?;
        if len > CARRIED_MAX_BYTES {
            return Ok(Body { at: At::Here(given, len), keeps: None });
        }
        let mut bytes = vec![0; len as usize];
        given.read(0, &mut bytes).map_err(inside)?;
        Ok(Body::carried(bytes.into()))
    }

    /// Makes a body of bytes that a peer has sent, or of which it said where they lie. `None` if no
    /// peer sends such a body.
    pub(super) fn sent(
        &self,
        from: NodeId,
        data: Bytes,
        pieces: Vec<Location>,
        written: Option<WindowPlace>,
    ) -> Option<Body> {
        Body::sent(from, data, pieces, |len| come_plain(&self.transfer, from, written, len))
    }

    /// Makes a body of a reply that a peer keeps until it is told that the bytes are not read any more.
    pub(super) fn reply_sent(
        &self,
        (node, lent): (NodeId, u64),
        data: Bytes,
        pieces: Vec<Location>,
        written: Option<WindowPlace>,
    ) -> Option<Body> {
        let network = Rc::clone(&self.network);
        let keeps = (!pieces.is_empty()).then(|| Rc::new(Elsewhere { network, node, lent }) as Rc<dyn Any>);
        Some(Body { keeps, ..self.sent(node, data, pieces, written)? })
    }

    /// Returns what another node is told of a body: its bytes, or where they lie in this node's memory.
    /// Bytes that have room in a window of that node are written there as well.
    ///
    /// # Errors
    /// `Invalid` for memory that is the client's own, which no other node reads.
    pub(super) fn told(&self, body: &Body, to: NodeId) -> Result<Told, Error> {
        let own = || {
            let text = "other hosts cannot read the program's own memory: lend memory of the node for it";
            Error::new(ErrorKind::Invalid, text)
        };
        match &body.at {
            At::Carried(bytes) => Ok(Told { data: bytes.clone(), pieces: Vec::new(), written: None }),
            At::Here(given, len) => {
                let run = given.run().ok_or_else(own)?;
                let pieces = locate(&self.transfer.store, &run);
                describe_segments(&self.network, to, &pieces);
                let written = write_plain(&self.transfer, to, (&run, *len), Rc::clone(given) as Rc<dyn Any>);
                Ok(Told { data: Bytes::new(), pieces, written })
            }
            At::There(_) => Err(Error::new(ErrorKind::Internal, "a body goes from node to node once")),
        }
    }

    /// Lends a reply to another node, until that node has taken it; returns the number of the reply.
    pub(super) fn lend(&self, to: NodeId, body: Body, written: Option<Written>) -> u64 {
        let number = self.draw();
        self.lent.0.borrow_mut().insert((to, number), (Rc::new(body), written));
        number
    }

    /// Keeps the replies that were lent to nodes that have gone, or to all nodes, for as long as
    /// those may read them.
    pub(super) fn lose_lent(&self, gone: &[NodeId], all: bool) {
        for body in self.lent.lose(gone, all) {
            self.hold(body);
        }
    }

    /// Keeps a body for as long as a node may read it that has gone without saying that it is done.
    pub(super) fn hold(&self, body: Rc<Body>) {
        if body.is_lent() {
            let over = self.kernel.clock.sleep(HELD_FOR);
            self.kernel.spawn(async move {
                over.await;
                drop(body);
            });
        }
    }

    /// Brings a body into a client's memory.
    ///
    /// # Errors
    /// `Invalid` if the client has no such memory, `Disconnected` if the bytes cannot be read.
    pub(super) async fn bring(&self, client: ClientKey, body: &Body, into: LentRange) -> Result<(), Error> {
        let given = self.requests.give(client, into, body.len())?;
        match &body.at {
            At::Carried(bytes) => given.write(0, bytes).map_err(inside),
            At::Here(from, len) => {
                in_turns(&self.transfer, *len, |at, chunk| {
                    from.read(at, chunk)?;
                    given.write(at, chunk)
                })
                .await
            }
            At::There(there) => {
                let come = there.come.take();
                if come.is_some_and(|come| come.copy_into(&given).is_ok()) {
                    self.counts.bodies_written.add(1);
                    return Ok(());
                }
                self.counts.bodies_read.add(1);
                let keeps = body.keeps.clone().unwrap_or_else(|| Rc::new(()));
                read_given(&self.transfer, there.node, &there.pieces, &given, keeps).await
            }
        }
    }

    /// Brings bytes that are in a body into a client's memory at once, if there is room. Returns
    /// whether there was.
    ///
    /// # Errors
    /// `Invalid` if the client has no such memory.
    pub(super) fn bring_now(
        &self,
        client: ClientKey,
        body: &Body,
        (room, into): (u32, LentRange),
    ) -> Result<bool, Error> {
        match body.bytes() {
            Some(bytes) if bytes.len() <= room as usize => {
                let given = self.requests.give(client, into, bytes.len() as u64)?;
                given.write(0, bytes).map_err(inside)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// Returns a receiver that ends when a body is needed no more.
pub(super) fn until_dropped(body: &mut Body) -> oneshot::Receiver<()> {
    let (sender, dropped) = oneshot::channel::<()>();
    body.keep(Rc::new(sender));
    dropped
}

/// Makes the error for bounds that were checked before.
fn inside(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_sends_is_short_or_lies_in_its_memory() {
        let node = NodeId::from_bytes([1; 16]);
        let piece = |len| Location { segment: 1, version: 1, offset: 64, len };
        let len = |data: usize, pieces: &[Location]| {
            Body::sent(node, vec![0; data].into(), pieces.to_vec(), |_| None).map(|body| body.len())
        };
        let most = CARRIED_MAX_BYTES as usize;
        assert_eq!([len(0, &[]), len(most, &[])], [Some(0), Some(CARRIED_MAX_BYTES)]);
        assert_eq!(len(0, &[piece(CARRIED_MAX_BYTES), piece(1)]), Some(CARRIED_MAX_BYTES + 1));
        assert_eq!(len(0, &[piece(MAX_DATA_BYTES as u64)]), Some(MAX_DATA_BYTES as u64));
        let wrong = [
            len(most + 1, &[]),
            len(1, &[piece(CARRIED_MAX_BYTES + 1)]),
            len(0, &[piece(CARRIED_MAX_BYTES)]),
            len(0, &[piece(MAX_DATA_BYTES as u64 + 1)]),
            len(0, &[piece(u64::MAX - 32)]),
            len(0, &[piece(u64::MAX / 2), piece(u64::MAX / 2), piece(u64::MAX / 2)]),
        ];
        assert_eq!(wrong, [None; 6]);
    }
}
