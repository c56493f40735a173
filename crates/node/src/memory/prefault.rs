//! Pre-faulting: allocates the pages of segments in the background, so that neither the engine nor the NIC
//! touches a page for the first time while a transfer waits; huge pages, where the kernel gives them.
//!
//! This module owns one thread, `plasmon-prefault`, and the queue of segments that it has yet to populate.
//! The engine and the thread share a mutex, which each holds for bookkeeping only, never during a system
//! call. The engine takes it at recycling, which is rare; progress is read from an atomic.
//!
//! Where memory is bound to a NUMA node, pages are made there for as long as it has room, and bytes on
//! other nodes are counted.
//!
//! Invariants: the thread holds the reserved range, so it touches no other addresses; bytes that it
//! populates while a segment is being replaced are not counted.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::mapping::Reservation;
use super::policy::Insistence;
use super::system::{self, HUGE_PAGE_BYTES, PageKind};

/// Number of bytes populated in one system call, which takes about two milliseconds, the longest that a
/// shutdown waits.
const STEP_BYTES: usize = 4 << 20;

/// The handle of the thread; dropping it stops and joins the thread.
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
    collapsed: AtomicU64,
    elsewhere: AtomicU64,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    stop: bool,
    queue: VecDeque<usize>,
    segments: Vec<Progress>,
}

/// The kind of pages from which a segment is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Making {
    /// Huge pages of the host's pool.
    Pool,
    /// Base pages, which the kernel is asked to make huge.
    Transparent,
    /// Base pages.
    Base,
}

impl Making {
    pub(super) fn of(pages: PageKind, transparent: bool) -> Self {
        match pages {
            PageKind::Huge => Self::Pool,
            PageKind::Base if transparent => Self::Transparent,
            PageKind::Base => Self::Base,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Progress {
    making: Making,
    /// A number that grows at each replacement, by which the thread sees that its work is void.
    generation: u64,
    /// Number of bytes populated of the present file.
    populated: u64,
    /// Number of populated bytes that are in huge pages because this thread asked for them.
    collapsed: u64,
    /// Number of populated bytes that are not on the intended NUMA node.
    elsewhere: u64,
}

impl Prefaulter {
    /// Starts to populate all `count` segments in order.
    pub(super) fn start(
        range: Arc<Reservation>,
        segment_size: usize,
        count: usize,
        making: Making,
    ) -> io::Result<Prefaulter> {
        let fresh = Progress { making, generation: 0, populated: 0, collapsed: 0, elsewhere: 0 };
        let segments = vec![fresh; count];
        let state = State { stop: false, queue: (0..count).collect(), segments };
        let shared = Arc::new(Shared {
            range,
            segment_size,
            populated: AtomicU64::new(0),
            collapsed: AtomicU64::new(0),
            elsewhere: AtomicU64::new(0),
            state: Mutex::new(state),
            wake: Condvar::new(),
        });
        let worker = Arc::clone(&shared);
        let thread = thread::Builder::new().name("plasmon-prefault".into()).spawn(move || worker.run())?;
        Ok(Prefaulter { shared, thread: Some(thread) })
    }

    /// Number of bytes populated so far.
    pub(super) fn populated(&self) -> u64 {
        self.shared.populated.load(Ordering::Relaxed)
    }

    /// Number of populated bytes in huge pages that this thread asked for.
    pub(super) fn collapsed(&self) -> u64 {
        self.shared.collapsed.load(Ordering::Relaxed)
    }

    /// Number of populated bytes that are not on the intended NUMA node.
    pub(super) fn elsewhere(&self) -> u64 {
        self.shared.elsewhere.load(Ordering::Relaxed)
    }

    /// Notes that a segment's memory is gone, so that its populated bytes no longer count.
    pub(super) fn forget(&self, segment: usize) {
        let mut state = self.shared.lock();
        state.queue.retain(|queued| *queued != segment);
        let progress = &mut state.segments[segment];
        progress.generation += 1;
        self.shared.populated.fetch_sub(progress.populated, Ordering::Relaxed);
        self.shared.collapsed.fetch_sub(progress.collapsed, Ordering::Relaxed);
        self.shared.elsewhere.fetch_sub(progress.elsewhere, Ordering::Relaxed);
        (progress.populated, progress.collapsed, progress.elsewhere) = (0, 0, 0);
    }

    /// Has a segment with new memory populated next, since a client is about to use it.
    pub(super) fn renew(&self, segment: usize, making: Making) {
        self.forget(segment);
        let mut state = self.shared.lock();
        state.segments[segment].making = making;
        state.queue.push_front(segment);
        drop(state);
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
        let mut refused = None;
        while let Some((segment, progress)) = self.next() {
            if let Err(error) = self.populate(segment, progress, &mut refused) {
                tracing::warn!(
                    %error, segment,
                    "cannot pre-fault the arena (it needs Linux 5.14 and free memory): first writes will be \
                     slower"
                );
                return;
            }
            if self.lock().queue.is_empty() {
                self.say(refused.take());
            }
        }
    }

    /// Logs the kinds of pages, when all memory is there. `refused` is the reason why some are base pages.
    fn say(&self, refused: Option<io::Error>) {
        let (populated, huge) =
            (self.populated.load(Ordering::Relaxed), self.collapsed.load(Ordering::Relaxed));
        if let (Some(node), far @ 1..) = (self.range.near(), self.elsewhere.load(Ordering::Relaxed)) {
            tracing::warn!(
                node,
                elsewhere = far,
                "the memory node has too little free memory: a part of the arena lies on others, where it \
                 is slower to reach; lower --memory, or free memory there before the start"
            );
        }
        match refused {
            None => tracing::debug!(populated, huge, "all memory of the arena is there"),
            Some(error) => tracing::warn!(
                populated, huge, %error,
                "the kernel gave fewer huge pages than were asked for: first writes and reads of what is in \
                 base pages are slower; `plasmon doctor` says how to get them"
            ),
        }
    }

    /// Waits for a segment to populate; `None` when the thread is to stop.
    fn next(&self) -> Option<(usize, Progress)> {
        let waiting = |state: &mut State| state.queue.is_empty() && !state.stop;
        let mut state = self.wake.wait_while(self.lock(), waiting).unwrap_or_else(PoisonError::into_inner);
        if state.stop {
            return None;
        }
        let segment = state.queue.pop_front()?;
        Some((segment, state.segments[segment]))
    }

    /// Populates a segment until it is done, the thread is to stop, or the segment is replaced.
    fn populate(
        &self,
        segment: usize,
        Progress { generation, making, .. }: Progress,
        refused: &mut Option<io::Error>,
    ) -> io::Result<()> {
        for at in (0..self.segment_size).step_by(STEP_BYTES) {
            let len = STEP_BYTES.min(self.segment_size - at);
            let place = segment * self.segment_size + at;
            let outcome = self.step_near(place, len, making, refused);
            // Pages whose memory node cannot be found out are taken to be on the intended node.
            let far =
                self.range.near().map_or(Ok(0), |node| self.range.elsewhere(place, len, node)).unwrap_or(0);
            let mut state = self.lock();
            if state.stop || state.segments[segment].generation != generation {
                return Ok(());
            }
            let collapsed = outcome?;
            state.segments[segment].populated += len as u64;
            state.segments[segment].collapsed += collapsed;
            state.segments[segment].elsewhere += far;
            self.populated.fetch_add(len as u64, Ordering::Relaxed);
            self.collapsed.fetch_add(collapsed, Ordering::Relaxed);
            self.elsewhere.fetch_add(far, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Populates one step, on the range's node alone while that has room to spare: a kernel that may take
    /// memory from no other node ends processes when there is none.
    fn step_near(
        &self,
        at: usize,
        len: usize,
        making: Making,
        refused: &mut Option<io::Error>,
    ) -> io::Result<u64> {
        // The pool has pages for the whole arena, though perhaps on other nodes, so the node is not
        // insisted on.
        let near = self.range.near().filter(|_| making != Making::Pool);
        let insists = near.filter(|node| {
            system::has_room(*node, len as u64)
                && self.range.keep_near(at, len, *node, Insistence::Bound).is_ok()
        });
        let outcome = self.step(at, len, making, refused);
        if let Some(node) = insists {
            self.range.keep_near(at, len, node, Insistence::Preferred)?;
        }
        outcome
    }

    /// Populates one step. Returns the number of its bytes that are in huge pages now, and notes why others
    /// are not.
    fn step(
        &self,
        at: usize,
        len: usize,
        making: Making,
        refused: &mut Option<io::Error>,
    ) -> io::Result<u64> {
        let mut collapsed = 0;
        if making == Making::Transparent {
            let page = HUGE_PAGE_BYTES as usize;
            for page_at in (at.next_multiple_of(page)..).step_by(page).take_while(|it| it + page <= at + len)
            {
                match self.range.collapse(page_at) {
                    Ok(()) => collapsed += HUGE_PAGE_BYTES,
                    Err(error) => *refused = Some(error),
                }
            }
        }
        if collapsed < len as u64 {
            self.range.populate(at, len)?;
        }
        Ok(collapsed)
    }
}
