//! Comparing a replica of this node with the digest of its seal, to find out where an object was damaged
//! that other nodes do not take. Owns no state. Engine thread only.

use std::rc::Rc;
use std::time::Duration;

use plasmon::{Error, ErrorKind};

use super::comparing::{Comparison, TURN_BYTES};
use crate::kernel::Kernel;
use crate::object::{Pin, Replica};
use crate::store::Store;

/// Compares a replica of this node with the digest of its seal, if it has one.
///
/// # Errors
/// `Damaged` if the bytes have another digest, or if they cannot be read back from disk because they are
/// damaged there. Other errors say nothing of the bytes.
pub(crate) async fn check(kernel: &Kernel, store: &Rc<Store>, replica: &Rc<Replica>) -> Result<(), Error> {
    store.bring_back(replica).await?;
    // An object that left memory meanwhile is checked another time.
    let Some(pin) = Pin::new(replica) else { return Ok(()) };
    let (id, sealed, len) = (pin.id(), pin.head().digest, pin.head().len());
    if sealed == 0 {
        return Ok(());
    }
    let comparison = Comparison::begin();
    while comparison.at() < len {
        let (at, some) = (comparison.at(), TURN_BYTES.min(len - comparison.at()));
        let looked = comparison.came(at, some, |at, into| pin.run().read(at, into));
        looked.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        kernel.clock.sleep(Duration::ZERO).await;
    }
    match comparison.found() {
        found if found == sealed => Ok(()),
        found => {
            let text = format!(
                "object {id} is damaged: its bytes on node {} have the digest {found:016x}, and \
                 {sealed:016x} was told when it was sealed",
                kernel.node
            );
            Err(Error::new(ErrorKind::Damaged, text).about(id))
        }
    }
}
