//! *read-first*, and what it needs: where objects were that this node does not hold any more. Engine thread
//! only.
//!
//! An object that was fetched and let go of is asked for at its holder, without the directory; or, *read
//! first*, its bytes are read from where they were, and behind them the holder's stamp. The stamp is what it
//! was only if the bytes were the object's when they were read: the holder clears it before they leave their
//! place. Then nobody was asked: no message, no lease, no work for the holder's processor where the fabric
//! reads by itself.
//!
//! Nothing here is a truth. An entry that turns out wrong is forgotten, and the directory is asked.

use std::rc::Rc;

use plasmon::NodeId;

use super::failure::Failure;
use super::record::Trace;
use crate::net::frame::Location;
use crate::object::Head;
use crate::object::Stamp;
use crate::transfer::Transfer;

impl Transfer {
    /// Reads an object from where it was.
    ///
    /// # Errors
    /// When it is not there any more, or cannot be read.
    pub(super) async fn read_first(
        self: &Rc<Self>,
        holder: NodeId,
        (head, pieces, stamp): &(Head, Vec<Location>, Stamp),
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        let unknown = || Failure::Holder("its stamps are not known here".into());
        let remote = self.network.remote_stamp(holder, *stamp).ok_or_else(unknown)?;
        let word = self.network.word(remote.on)?;
        trace.answered(holder, "read-first", head.len(), "it was fetched from there before");
        let _slot = self.slot().await;
        let landing = self.landing(head, &trace.target).await?;
        trace.allocated();
        // Behind the last byte: a read that is made later sees what was there later.
        if self.network.reads_in_order(holder, pieces, &remote) {
            self.read_all(holder, pieces, &landing, Some((word.clone(), remote)), trace).await?;
        } else {
            self.read_all(holder, pieces, &landing, None, trace).await?;
            trace.read(self.read_slice(holder, word.clone(), remote).await?);
        }
        let mut value = [0; size_of::<u64>()];
        word.copy_to_slice(&mut value)?;
        if u64::from_ne_bytes(value) != stamp.value {
            return Err(Failure::Holder("it is not where it was".into()));
        }
        trace.moved();
        self.count_rendezvous(head);
        self.land(head.clone(), landing)
    }
}
