//! Events of the regions to which a client has handles, for Python.
//!
//! Owns the stream of the events ([`feed`](crate::feed)), which ends with the client. Any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plasmon::Result;
use plasmon::region::{RegionEvent, Rights};
use pyo3::prelude::*;

use crate::client::Client;
use crate::error::{raised, signalled};
use crate::feed::{Events, Feed};
use crate::given::given;

/// Row of an event: kind, name and owner of the region (`None` for a gap), new home, user (`None` also for
/// every user), rights, number of missed events.
type Row = (&'static str, Option<String>, Option<u32>, Option<String>, Option<u32>, Option<String>, u64);

/// Native part of `plasmon.RegionEvents`.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct RegionEvents {
    events: Feed<plasmon::RegionEvents>,
    /// Whether the client is closed.
    closing: Arc<AtomicBool>,
}

impl Events for plasmon::RegionEvents {
    type Event = RegionEvent;

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        interrupt: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self::Event>> {
        self.next_within(timeout, Some(interrupt))
    }
}

#[pymethods]
impl RegionEvents {
    #[new]
    fn new(py: Python<'_>, client: &Client) -> PyResult<Self> {
        let events = client.run(py, plasmon::Client::region_events)?;
        let events = Feed::new(events.map_err(|error| raised(py, &error))?)?;
        Ok(Self { events, closing: Arc::clone(&client.closing) })
    }

    /// Waits for the next event. Returns `None` if none comes within `timeout` seconds.
    fn next(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<Option<Row>> {
        let is_closing = || self.closing.load(Ordering::Relaxed);
        if is_closing() {
            self.close();
        }
        let event = self.events.next(py, timeout, &mut || {
            // The wait ends when its socket is closed.
            if is_closing() {
                self.events.close();
            }
            signalled()
        });
        Ok(event?.map(row))
    }

    /// Descriptor of the connection, readable when an event may have come.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.events.fileno(py)
    }

    /// Whether `close` was called, or the client is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.closing.load(Ordering::Relaxed) || self.events.is_closed()
    }

    /// Ends the events, and with them the wait of another thread.
    fn close(&self) {
        self.events.close();
    }
}

fn row(event: RegionEvent) -> Row {
    let letters = |rights: Rights| Some(rights.to_string().replace('-', ""));
    match event {
        RegionEvent::Moved { region, owner, home } => {
            ("moved", Some(region.into()), Some(owner), Some(home.to_string()), None, None, 0)
        }
        RegionEvent::Freed { region, owner } => {
            ("freed", Some(region.into()), Some(owner), None, None, None, 0)
        }
        RegionEvent::Granted { region, owner, user, rights } => {
            ("granted", Some(region.into()), Some(owner), None, user, letters(rights), 0)
        }
        RegionEvent::Revoked { region, owner, user, rights } => {
            ("revoked", Some(region.into()), Some(owner), None, user, letters(rights), 0)
        }
        RegionEvent::Lost { region, owner } => {
            ("lost", Some(region.into()), Some(owner), None, None, None, 0)
        }
        RegionEvent::Gap { missed } => ("gap", None, None, None, None, None, missed),
    }
}
