//! Subscription to the objects of a node, or of all nodes, for Python.
//!
//! Owns the stream of its events ([`feed`](crate::feed)). Any thread.

use std::time::Duration;

use plasmon::{Event, NodeId, Result};
use pyo3::prelude::*;

use crate::error::signalled;
use crate::feed::{Events, Feed};
use crate::given::given;
use crate::id::ObjectId;

/// Row of an event: kind, id (`None` for a gap), data size and metadata size in bytes, number of missed
/// events, name, node.
type Row = (&'static str, Option<ObjectId>, u64, u32, u64, Option<String>, String);

/// Subscription to the objects of a node.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct Subscription(Feed<plasmon::Subscription>);

impl Events for plasmon::Subscription {
    type Event = (NodeId, Event);

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        interrupt: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self::Event>> {
        self.next(timeout, Some(interrupt))
    }
}

impl Subscription {
    pub(crate) fn new(stream: plasmon::Subscription) -> std::io::Result<Self> {
        Feed::new(stream).map(Self)
    }
}

#[pymethods]
impl Subscription {
    /// Waits for the next event. Returns `None` if none comes within `timeout` seconds.
    fn next(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<Option<Row>> {
        Ok(self.0.next(py, timeout, &mut signalled)?.map(row))
    }

    /// Descriptor of the connection, readable when an event may have come.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.0.fileno(py)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Ends the subscription, and with it the wait of another thread.
    fn close(&self) {
        self.0.close();
    }
}

fn row((node, event): (NodeId, Event)) -> Row {
    let node = node.to_string();
    match event {
        Event::Sealed { id, name, data_len, metadata_len } => {
            ("sealed", Some(ObjectId(id)), data_len, metadata_len, 0, named(name), node)
        }
        Event::Replaced { id, name, data_len, metadata_len } => {
            ("replaced", Some(ObjectId(id)), data_len, metadata_len, 0, named(name), node)
        }
        Event::Deleted { id, name } => ("deleted", Some(ObjectId(id)), 0, 0, 0, named(name), node),
        Event::Gap { missed } => ("gap", None, 0, 0, missed, None, node),
    }
}

fn named(name: Box<str>) -> Option<String> {
    Some(String::from(name)).filter(|name| !name.is_empty())
}
