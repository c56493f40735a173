//! Stopping: a node that is told to stop hands over what it keeps first, if its settings give it time, and
//! says what ends with it.
//!
//! Owns no state: a drain is [`Drain`](super::drain::Drain)'s. Engine thread only. A second signal ends the
//! node at once, and so does the end of the time.

use std::rc::Rc;
use std::time::Duration;

use bytesize::ByteSize;
use plasmon::drain::DrainStep;
use tracing::{info, warn};

use crate::object::Role;
use crate::placement::Placement;

/// The user for whom a node drains itself.
const ROOT: u32 = 0;
/// Interval at which a drain before the end is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Objects and regions that no other node keeps.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sole {
    /// Objects in memory alone, which end with the node.
    objects: u64,
    bytes: u64,
    /// Objects that are on disk, where the next node finds them.
    spilled_objects: u64,
    spilled_bytes: u64,
    regions: u64,
}

impl Placement {
    /// Takes up an order to stop, for the reason `why`. Returns whether the node ends now; otherwise it is
    /// drained first, and ends as [`Placement::is_drained`] says.
    pub(crate) fn stop(self: &Rc<Self>, why: &'static str) -> bool {
        let patience = self.kernel.config.drain_on_stop;
        if patience.is_zero() || self.drain.stops() {
            self.tell_end(why);
            return true;
        }
        if let Err(error) = self.drain_here(DrainStep::Begin, ROOT) {
            warn!("there is no drain before the end: {error}");
            self.tell_end(why);
            return true;
        }
        info!("stopping: {why}; what this node keeps goes to other nodes first, for {patience:?} at most");
        self.drain.expect_no_look();
        let placement = Rc::clone(self);
        self.kernel.spawn(async move { placement.end_in_time(why, patience).await });
        false
    }

    /// Ends the node when its drain has taken too long, or cannot end. A drain that ends well ends the node
    /// itself.
    async fn end_in_time(&self, why: &str, patience: Duration) {
        let due = self.kernel.clock.now() + patience;
        while self.kernel.clock.now() < due && self.is_draining() && !self.drain_status(false).is_stuck() {
            self.kernel.clock.sleep(LOOK_INTERVAL).await;
        }
        warn!("the drain before the end has not moved everything");
        self.tell_end(why);
        self.drain.end();
    }

    /// Logs that the node ends, and what ends with it.
    fn tell_end(&self, why: &str) {
        let sole = self.sole();
        let Sole { objects, bytes, spilled_objects, spilled_bytes, regions } = sole;
        let ends = objects + regions > 0;
        let mut text = format!("stopping: {why}");
        if ends {
            text += "; these end with this node, since no other keeps them: ";
            text += &format!("objects {objects} ({}), regions {regions}", ByteSize(bytes));
        }
        if spilled_objects > 0 {
            text += "; these stay on disk for the next node: ";
            text += &format!("objects {spilled_objects} ({})", ByteSize(spilled_bytes));
        }
        if !ends || self.kernel.config.cache {
            return info!("{text}");
        }
        if self.kernel.config.drain_on_stop.is_zero() && self.ensure_may_drain().is_ok() {
            text += ". `plasmon drain`, or --drain-on-stop, hands all to other nodes before the end";
        }
        warn!("{text}");
    }

    /// Counts what no other node is to keep. Other nodes may have cached replicas of it.
    fn sole(&self) -> Sole {
        let is_alone = self.cluster.others(&[self.kernel.node]).is_empty();
        let mut sole = Sole { regions: self.drain.residents_count(), ..Sole::default() };
        for replica in self.store.objects.borrow().sealed() {
            let is_sole = match replica.role() {
                Role::Primary => is_alone || replica.copies() <= 1,
                Role::Kept => is_alone,
                Role::Cached => false,
            };
            if replica.is_deed() || !is_sole {
                continue;
            }
            let (count, bytes) = match replica.on_disk() {
                Some(_) => (&mut sole.spilled_objects, &mut sole.spilled_bytes),
                None => (&mut sole.objects, &mut sole.bytes),
            };
            *count += 1;
            *bytes += replica.len();
        }
        sole
    }
}
