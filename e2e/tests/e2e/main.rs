//! What a cluster promises, asked of real daemons.
//!
//! One binary with a module a promise: it links once, and its tests share the machine.

mod baseline;
mod broadcast;
mod chaos;
mod claims;
mod commands;
mod coordinators;
mod copies;
mod death;
mod deploy;
mod doctor;
mod drain;
mod etcd;
mod fetch;
mod garbage;
mod hostile;
mod interrupted;
mod isolation;
mod join;
mod listing;
mod load;
mod mixed;
mod numa;
mod operations;
mod progress;
mod protocols;
mod quota;
mod raw;
mod rdma;
mod rings;
mod rogue;
mod room;
mod scratch;
mod secret;
mod settings;
mod spill;
mod start;
mod stop;
mod support;
mod watch;
