//! Puts of full blocks, beside the writer that has filled them.
//!
//! Owns the blocks on their way to become objects. Any thread: a thread of the background puts a block; the
//! writer, which has its file locked, asks for the outcome. A put takes round trips to this host's node, by
//! which the node also begins to bring the object to its place. Invariants: a put is over when the node was
//! told where its object is to lie; a put that was cancelled makes no object afterwards.

use std::collections::VecDeque;
use std::mem::replace;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::blocks::{Block, Stored};
use super::placing::{Goal, Target};
use super::{Error, Result};
use crate::ObjectId;
use crate::wire::files::Errno;

/// Largest number of blocks of one file that are on their way.
const MAX_PUTTING: usize = 8;

/// Block on its way to become an object.
pub(super) struct Put {
    stored: Stored,
    /// Time when the put is given up if no thread has begun it, because the node did not answer earlier puts.
    due: Instant,
    stage: Mutex<Stage>,
    ended: Condvar,
}

enum Stage {
    /// No thread has taken the block yet.
    Waits(Block),
    Runs,
    Over(Result<()>),
}

impl Put {
    pub(super) fn new(stored: Stored, block: Block, due: Instant) -> Self {
        Self { stored, due, stage: Mutex::new(Stage::Waits(block)), ended: Condvar::new() }
    }

    /// Puts the block, unless the put was cancelled.
    pub(super) fn run(&self, goal: &Goal) {
        let mut stage = self.stage.lock();
        let mut block = match replace(&mut *stage, Stage::Runs) {
            Stage::Waits(block) => block,
            over => return *stage = over,
        };
        drop(stage);
        let mut ending = Ending { put: self, outcome: Err(Error::new(Errno::Io)) };
        let put = match Instant::now() < self.due {
            true => goal.target().put_block(&self.stored, &mut block),
            false => Err(Error::because(Errno::Io, "the node of this host did not take the bytes in time")),
        };
        let is_there = put.is_ok();
        // The node may have taken the block already, so the put cannot be repeated.
        ending.outcome = put.map_err(|error| Error::because(Errno::Io, error.to_string()));
        drop(ending);
        if is_there {
            // The block of the put is used up, and another write may need a block.
            goal.refill();
        }
    }

    /// Whether the object is there.
    fn is_there(&self) -> bool {
        matches!(&*self.stage.lock(), Stage::Over(Ok(())))
    }

    /// Waits for the outcome.
    fn wait(&self) -> Result<()> {
        let mut stage = self.stage.lock();
        loop {
            if let Stage::Over(outcome) = &*stage {
                return outcome.clone();
            }
            self.ended.wait(&mut stage);
        }
    }

    /// Cancels the put: no object is made from now on.
    fn cancel(&self) {
        let mut stage = self.stage.lock();
        if matches!(&*stage, Stage::Waits(_)) {
            // The outcome is not asked for any more.
            *stage = Stage::Over(Ok(()));
        }
        while !matches!(&*stage, Stage::Over(_)) {
            self.ended.wait(&mut stage);
        }
    }
}

/// Guard that ends a put, also by a panic, so that the writer does not wait for ever.
struct Ending<'a> {
    put: &'a Put,
    outcome: Result<()>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let outcome = replace(&mut self.outcome, Ok(()));
        *self.put.stage.lock() = Stage::Over(outcome);
        self.put.ended.notify_all();
    }
}

/// Puts of one file in their order.
#[derive(Default)]
pub(super) struct Puts(VecDeque<Arc<Put>>);

impl Puts {
    /// Waits until one more block may be on its way.
    ///
    /// # Errors
    /// The reason why an earlier block of the file has not become an object.
    pub(super) fn make_room(&mut self) -> Result<()> {
        self.forget_those_there();
        while self.0.len() >= MAX_PUTTING {
            self.wait_for_first()?;
        }
        Ok(())
    }

    /// Begins to make an object of a block.
    pub(super) fn begin(&mut self, target: &Target<'_>, block: Block, len: usize) -> Stored {
        let put = target.begin_put(block, len);
        let stored = put.stored;
        self.0.push_back(put);
        stored
    }

    /// Waits until all blocks have become objects.
    ///
    /// # Errors
    /// The reason why a block has not become an object.
    pub(super) fn wait(&mut self) -> Result<()> {
        while !self.0.is_empty() {
            self.wait_for_first()?;
        }
        Ok(())
    }

    /// Returns the first object that may not be there yet.
    pub(super) fn first_open(&mut self) -> Option<ObjectId> {
        self.forget_those_there();
        self.0.front().map(|put| put.stored.id())
    }

    /// Cancels all puts: no object is made from now on.
    pub(super) fn cancel(&mut self) {
        self.0.drain(..).for_each(|put| put.cancel());
    }

    fn forget_those_there(&mut self) {
        while self.0.front().is_some_and(|put| put.is_there()) {
            self.0.pop_front();
        }
    }

    /// Waits for the first put. A put that has failed stays first, so that no later bytes are committed.
    fn wait_for_first(&mut self) -> Result<()> {
        if let Some(first) = self.0.front() {
            first.wait()?;
            self.0.pop_front();
        }
        Ok(())
    }
}
