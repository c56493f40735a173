//! Doors for the simulation of large clusters (`make bench-scale`) to what decides what membership and
//! directory cost: shards, what is published again when they move, frames, entries. Only with the feature
//! `simulation`.
//!
//! Nothing is copied or modelled here: whoever knows the ids of nodes and objects gets what nodes would
//! compute and say.

pub use crate::directory::simulation::{
    Frames, Holder, Keeper, Shards, Told, death_len, frames, join_len, rests, view_len,
};
