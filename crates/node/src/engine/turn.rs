//! A turn of the engine, whoever drives it: frames in, events, tasks, then out what has gathered. Owns no
//! state but the buffers of a turn. Engine thread only.
//!
//! [`Node`](super::Node) drives turns by the machine's clock, its sockets and its fabrics. A simulation
//! drives the same turns of several nodes by a clock and a network of its own.
//!
//! The network, the store and the membership lie below [`crate::service`], so they are no services: a turn
//! calls them by name, in an order that the services rely on.

use std::rc::Rc;
use std::time::Duration;

use plasmon_fabric::{Event as FabricEvent, FabricError};
use tracing::info;

use super::Core;
use crate::control::Event;
use crate::kernel::clock::rounded;
use crate::memory::Heap;
use crate::net::frame::Envelope;

/// Interval at which the node does the work that depends on time.
const TICK: Duration = Duration::from_secs(1);

/// Buffers for events and frames of a turn. They are kept, so that a turn allocates nothing.
#[derive(Default)]
pub(crate) struct Inbox {
    events: Vec<FabricEvent>,
    frames: Vec<Envelope>,
}

impl Core {
    /// Begins a turn: acts on what the time has changed, and on the frames that have come. With `is_quiet`,
    /// the fabric is not asked for more. Returns the number of things that happened.
    ///
    /// # Errors
    /// When a fabric is broken.
    pub(crate) fn begin_turn(&self, inbox: &mut Inbox, is_quiet: bool) -> Result<usize, FabricError> {
        let now = self.kernel.clock.now();
        self.follow(self.cluster.on_time());
        let mut work = 0;
        if !is_quiet {
            work += self.network.poll(now, &mut inbox.events, &mut inbox.frames)?;
        }
        let cut_off = self.network.take_cut_off();
        if !cut_off.is_empty() {
            // This looks through all open calls, of which there may be very many.
            self.network.abandon(&cut_off);
        }
        self.services.on_gone(&cut_off);
        for (immediate, len) in self.network.take_remote_writes() {
            self.services.on_remote_write(immediate, len);
        }
        inbox.frames.drain(..).for_each(|frame| self.dispatch(frame));
        let own = self.network.take_loopback();
        work += own.len();
        own.into_iter().for_each(|frame| self.dispatch(frame));
        Ok(work)
    }

    /// Acts on news of the control thread.
    pub(crate) fn on_event(&self, event: Event) {
        match event {
            Event::Asked(question) => super::overview::answer_monitor(&self.services, question),
            event => self.follow(self.cluster.on_event(event)),
        }
    }

    /// Ends a turn: sends what has gathered. Returns the number of things that happened.
    pub(crate) fn end_turn(&self) -> usize {
        if self.store.objects.borrow().limbo_grew() {
            self.store.reap();
        }
        let more = self.services.on_turn_end();
        let tended = self.store.objects.borrow_mut().shared.tend();
        self.network.end_turn();
        usize::from(more) + usize::from(tended)
    }

    /// Whether there is more to act on at once, beside what tasks, events and the fabrics bring.
    pub(crate) fn has_more(&self) -> bool {
        self.network.talks_to_itself() || self.network.has_cut_off()
    }

    /// The longest time until the next turn, if nothing happens before.
    pub(crate) fn due(&self) -> Option<Duration> {
        let limits = [self.kernel.clock.next(), self.services.due(), self.network.sleep_limit()];
        limits.into_iter().flatten().min()
    }

    /// Does the work that depends on time, for as long as the node lives.
    pub(crate) async fn tick(self: Rc<Self>) {
        let mut heap = Heap::new();
        loop {
            self.kernel.clock.sleep(TICK).await;
            let now = self.kernel.clock.now();
            self.services.on_tick(now);
            self.network.look_after_peers();
            self.cluster.rekeying.go_on(&self.network, &self.store.arena.borrow());
            self.store.reap();
            let mut objects = self.store.objects.borrow_mut();
            objects.prune();
            objects.shared.live(self.cluster.table_life());
            drop(objects);
            if !self.network.asks() {
                self.cluster.forget_watchers();
            }
            if let Some((bytes, took)) = heap.tend() {
                let took = rounded(took);
                info!("{bytes} bytes that nobody uses any more went back to the system, in {took:?}");
            }
        }
    }
}
