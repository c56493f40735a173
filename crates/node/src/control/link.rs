//! Watches the link of the RDMA device. Owns the thread `plasmon-link`, because asking a device takes time,
//! and a device that is being removed may block. The state is only reported, in the log and in `status`:
//! nothing is decided by it.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use tracing::warn;

use super::{Event, EventSender};

/// Interval between two looks at the link.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The handle of the watch, which ends the watch when it is dropped.
pub(crate) struct LinkWatch {
    _alive: Arc<()>,
}

impl LinkWatch {
    /// Starts to send the state of a device's link to the engine, now and when it changes. `None` if the
    /// kernel knows no device of this name.
    pub(crate) fn start(device: &str, events: EventSender) -> Option<Self> {
        let first = plasmon_fabric::link(device)?;
        let alive = Arc::new(());
        let (device, watched) = (device.to_owned(), Arc::downgrade(&alive));
        let watching = thread::Builder::new()
            .name("plasmon-link".to_owned())
            .spawn(move || watch(&device, first, &events, &watched));
        if let Err(error) = watching {
            warn!("the link of the RDMA device is not watched: {error}");
        }
        Some(Self { _alive: alive })
    }
}

fn watch(device: &str, first: String, events: &EventSender, alive: &Weak<()>) {
    let mut known = None;
    let mut now = first;
    while alive.strong_count() > 0 {
        if known.as_ref() != Some(&now) {
            events.send(Event::Link { device: device.to_owned(), state: now.clone() });
            known = Some(now);
        }
        thread::sleep(LOOK_INTERVAL);
        now = plasmon_fabric::link(device).unwrap_or_else(|| "GONE".to_owned());
    }
}
