//! Watches the link of the RDMA device, on a thread of its own: asking a device takes its time, and one that
//! is being removed may keep whoever asks. Nothing is decided by it; it is said, in the log and in `status`.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use tracing::warn;

use super::{Event, EventSender};

/// How often to look.
const PERIOD: Duration = Duration::from_secs(1);

/// Ends the watch when it is dropped.
pub(crate) struct LinkWatch {
    _alive: Arc<()>,
}

impl LinkWatch {
    /// Tells the engine of a device's link now and when it changes. A device that the kernel does not know by
    /// this name is not watched.
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
        thread::sleep(PERIOD);
        now = plasmon_fabric::link(device).unwrap_or_else(|| "GONE".to_owned());
    }
}
