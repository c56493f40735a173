//! Allocates the pages of segments in the background, so that neither the engine nor the NIC
//! meets a page for the first time while a transfer waits.
//!
//! Owns: one thread, `plasmon-prefault`, and the queue of segments it has yet to populate. The
//! engine and the thread share a mutex, which each holds for bookkeeping only, never during a
//! system call. The engine takes it at recycling, which is rare; progress is read from an atomic.
//!
//! Invariants: the thread holds the reserved range, so it touches no other addresses; what it
//! populates while a segment is being replaced is not counted.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::mapping::Reservation;

/// Bytes populated in one system call: about two milliseconds, the longest a shutdown waits.
const STEP: usize = 4 << 20;

/// The handle of the thread; dropping it stops and joins it.
#[derive(Debug)]
pub(super) struct Prefaulter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    range: Arc<Reservation>,
    segment_size: usize,
    populated: AtomicU64,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    stop: bool,
    queue: VecDeque<usize>,
    segments: Vec<Progress>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// Grows at each replacement, so that the thread sees that its work is void.
    generation: u64,
    /// Bytes populated of the present file.
    populated: u64,
}

impl Prefaulter {
    /// Starts to populate all `count` segments in order.
    pub(super) fn start(
        range: Arc<Reservation>,
        segment_size: usize,
        count: usize,
    ) -> io::Result<Prefaulter> {
        let state =
            State { stop: false, queue: (0..count).collect(), segments: vec![Progress::default(); count] };
        let shared = Arc::new(Shared {
            range,
            segment_size,
            populated: AtomicU64::new(0),
            state: Mutex::new(state),
            wake: Condvar::new(),
        });
        let worker = Arc::clone(&shared);
        let thread = thread::Builder::new().name("plasmon-prefault".into()).spawn(move || worker.run())?;
        Ok(Prefaulter { shared, thread: Some(thread) })
    }

    /// Bytes populated so far.
    pub(super) fn populated(&self) -> u64 {
        self.shared.populated.load(Ordering::Relaxed)
    }

    /// The memory of a segment is gone: what was populated of it no longer counts.
    pub(super) fn forget(&self, segment: usize) {
        let mut state = self.shared.lock();
        state.queue.retain(|queued| *queued != segment);
        let progress = &mut state.segments[segment];
        progress.generation += 1;
        self.shared.populated.fetch_sub(progress.populated, Ordering::Relaxed);
        progress.populated = 0;
    }

    /// A segment has new memory, which somebody is about to use: populate it next.
    pub(super) fn renew(&self, segment: usize) {
        self.forget(segment);
        self.shared.lock().queue.push_front(segment);
        self.shared.wake.notify_one();
    }
}

impl Drop for Prefaulter {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_one();
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the pre-fault thread panicked");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while let Some((segment, generation)) = self.next() {
            if let Err(error) = self.populate(segment, generation) {
                tracing::warn!(
                    %error, segment,
                    "cannot pre-fault the arena (it needs Linux 5.14 and free memory): first writes will be slower"
                );
                return;
            }
        }
    }

    /// Waits for a segment to populate; `None` when it is time to stop.
    fn next(&self) -> Option<(usize, u64)> {
        let waiting = |state: &mut State| state.queue.is_empty() && !state.stop;
        let mut state = self.wake.wait_while(self.lock(), waiting).unwrap_or_else(PoisonError::into_inner);
        if state.stop {
            return None;
        }
        let segment = state.queue.pop_front()?;
        Some((segment, state.segments[segment].generation))
    }

    /// Populates a segment until done, stopped or overtaken by its replacement.
    fn populate(&self, segment: usize, generation: u64) -> io::Result<()> {
        for at in (0..self.segment_size).step_by(STEP) {
            let len = STEP.min(self.segment_size - at);
            let outcome = self.range.populate(segment * self.segment_size + at, len);
            let mut state = self.lock();
            if state.stop || state.segments[segment].generation != generation {
                return Ok(());
            }
            outcome?;
            state.segments[segment].populated += len as u64;
            self.populated.fetch_add(len as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}
