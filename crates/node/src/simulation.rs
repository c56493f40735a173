//! Access for the simulation of large clusters (`make bench-scale`) to the code that determines the cost of
//! membership and directory: shards, publications after shards have moved, frames, entries. Owns no state.
//! Any thread.
//!
//! No feature of Cargo selects this module, because the benchmarks would then have a build of this crate for
//! themselves. The linker leaves the module out of the daemon, which uses nothing of it.
//!
//! The module copies and models nothing: given the ids of nodes and objects, the simulation runs the code of
//! a node.

pub use crate::directory::simulation::{
    Frames, Holder, Keeper, Shards, Told, death_len, frames, join_len, rests, view_len,
};
