//! A distributed atomic log, made of regions of Plasmon alone.
//!
//! Writers of all hosts append transactions, each of one or more records. Readers of all hosts read them in
//! one order, each transaction as a whole or not at all, and follow as they come. No process serves the log:
//! all of it is operations on regions. One `fetch_add` reserves a place, one write for each copy brings the
//! bytes, and one `compare_swap` of a word commits them. The page of this example (README.md) has the format,
//! what is promised, and why it holds.
//!
//! ```no_run
//! use plasmon_log::{Log, Start};
//! use std::time::Duration;
//!
//! let client = plasmon::Client::connect(plasmon::Socket::find())?;
//! let log = Log::create(&client, "events", 64 << 20, &[client.node()])?;
//! log.writer()?.append(&[&b"one transaction"[..], b"of two records"])?;
//!
//! // In any process of this user, on any host of the cluster:
//! let mut reader = Log::open(&client, "events")?.reader(Start::Oldest)?;
//! for transaction in reader.next_batch(Duration::from_secs(1))? {
//!     println!("{}: {} records", transaction.position, transaction.records.len());
//! }
//! # Ok::<(), plasmon_log::Error>(())
//! ```
#![forbid(unsafe_code)]

mod cleaner;
pub mod command;
mod error;
mod feed;
mod layout;
mod log;
mod reader;
mod segment;
mod writer;

pub use cleaner::{Cleaner, Swept};
pub use error::{Error, Result};
pub use layout::{MAX_COPIES, Shape, Transaction};
pub use log::{Log, LogInfo, SegmentInfo};
pub use reader::{Reader, Start};
pub use writer::{MAX_WINDOW, Writer};
