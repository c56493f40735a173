//! Everything breaks, again and again: what the cluster promises holds all the while, or as soon as it can.
//!
//! [`deaths`] kills nodes and looks at gets. [`breaks`] has the whole: `make test-chaos SEED=n MINUTES=m`.
//!
//! A run is made of rounds. In a round workers do what [`schedule`] drew for them: puts, gets, deletions,
//! waits, on all nodes at once; the main thread breaks and mends what it drew for the cluster ([`faults`]).
//! At the end of a round all is mended, the workers rest, and [`calm`] asks of every object what the
//! [`model`] knows of it, and of every name whether it was a register before anything broke ([`names`]).
//! What is drawn depends on the seed alone; when what happens beside what does not, so that a replay does the
//! same things to the same cluster and need not fail at the same place.
//!
//! What to look at beyond this run: an operation is a variant of [`schedule::Operation`] with a line in its
//! table of weights and an arm in [`worker`]; a fault is a variant of [`schedule::Fault`] with an arm in
//! [`faults`].

mod breaks;
mod calm;
mod deaths;
mod faults;
mod life;
mod model;
mod names;
mod schedule;
mod watcher;
mod worker;
