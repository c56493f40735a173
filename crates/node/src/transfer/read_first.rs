//! *read-first*, and the remembered places of objects that this node no longer holds. Owns no
//! state. Engine thread only.
//!
//! An object that was fetched and evicted is asked for at its former holder, without the directory. Or
//! its bytes are *read first*, from where they were, and behind them the holder's stamp. The holder
//! clears the stamp before the bytes leave their place. So an unchanged stamp means that the bytes were
//! the object's when they were read. Such a read takes no message, no lease, and no work of the holder's
//! processor where the fabric reads by itself.
//!
//! A remembered place may be out of date. A place that turns out to be wrong is forgotten, and the
//! directory is asked.

use std::rc::Rc;

use plasmon::{NodeId, UsedProtocol};

use super::failure::Failure;
use super::record::Trace;
use crate::directory::arrivals::Lies;
use crate::transfer::Transfer;

impl Transfer {
    /// Reads an object from the place where it was.
    ///
    /// # Errors
    /// When the object is no longer there, or cannot be read.
    pub(super) async fn read_first(
        self: &Rc<Self>,
        holder: NodeId,
        (head, pieces, stamp): &Lies,
        why: &'static str,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        let unknown = || Failure::Holder("its stamps are not known here".into());
        let remote = self.network.remote_stamp(holder, *stamp).ok_or_else(unknown)?;
        let word = self.network.block(remote.on, size_of::<u64>())?;
        trace.answered(holder, UsedProtocol::ReadFirst, head.len(), why);
        let _slot = self.slots.take(holder).await;
        let landing = self.landing(head, &trace.target, &trace.wanted).await?;
        trace.allocated();
        // The stamp is read behind the last byte: a later read sees a later state.
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
        self.records.count_rendezvous(head);
        self.land(head.clone(), landing, &trace.wanted).await
    }
}
