//! Chaos: everything breaks, again and again, and the promises of the cluster hold all the time, or as soon
//! as they can.
//!
//! [`deaths`] kills nodes and checks gets, [`pushes`] kills and stops nodes in the middle of pushes,
//! [`outage`] takes the link away in the middle of batches. [`breaks`] has all faults:
//! `make test-chaos SEED=n MINUTES=m`.
//!
//! A run consists of rounds. In a round the workers do what [`schedule`] drew for them (puts, gets,
//! replacements,
//! deletions, waits), on all nodes at once. The main thread makes and repairs the faults that were drawn
//! ([`faults`]). At the end of a round all is repaired and the workers rest. Then [`calm`] compares every
//! object with the [`model`], and checks of every name whether it was a register before the first fault
//! ([`names`]), of every region whether all adds are there ([`regions`]), and of every call whether it was
//! run as often as its caller was told ([`calls`]). Of a lock there is one valid guard at most, at any time
//! ([`locks`]), and nobody passes a barrier alone ([`barriers`]). The seed alone determines what is drawn,
//! but not how the operations interleave: a replay does the same things to the same cluster, and need not
//! fail at the same place.
//!
//! To extend the run: an operation is a variant of [`schedule::Operation`] with a line in its table of
//! weights and an arm in [`worker`]; a fault is a variant of [`schedule::Fault`] with an arm in [`faults`].

mod barriers;
mod breaks;
mod calls;
mod calm;
mod deaths;
mod faults;
mod life;
mod lives;
mod locks;
mod model;
mod names;
mod outage;
mod pushes;
mod regions;
mod replaces;
mod schedule;
mod watcher;
mod worker;
