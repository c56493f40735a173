//! The report on the node, made of the parts of all services.
//!
//! Engine thread only; it walks the table, so it is for people and scrapers. Whoever asks often is given a
//! report that is a moment old.

use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::overview::Summary;
use plasmon::status::Status;

use super::Services;

/// How old a report may be that others and scrapers get.
const REPORT_LIFETIME: Duration = Duration::from_millis(250);
/// Characters of what is wrong, so that a summary fits a frame.
const MAX_UNFIT_CHARS: usize = 300;

/// The last report made for those who ask often.
pub(super) struct Recent {
    made: Instant,
    status: Rc<Status>,
}

impl Services {
    /// The report, made now.
    pub(crate) fn status(&self) -> Status {
        let mut status = Status { unfit: self.unfit().unwrap_or_default(), ..Status::default() };
        self.each(|service| service.report(&mut status));
        status
    }

    /// The report as JSON.
    pub(crate) fn status_json(&self) -> String {
        serde_json::to_string(&self.status()).expect("a report of plain values is JSON")
    }

    /// A report that is at most a moment old: however many ask, the table is walked a few times a second.
    pub(crate) fn recent_status(&self) -> Rc<Status> {
        let now = self.kernel.clock.now();
        if let Some(recent) = &*self.recent.borrow()
            && now.duration_since(recent.made) < REPORT_LIFETIME
        {
            return Rc::clone(&recent.status);
        }
        let status = Rc::new(self.status());
        self.recent.replace(Some(Recent { made: now, status: Rc::clone(&status) }));
        status
    }

    /// This node in a few numbers.
    pub(crate) fn summary(&self) -> Summary {
        Summary::from(&*self.recent_status())
    }

    /// This node in a few numbers, for another node.
    pub(crate) fn summary_json(&self) -> Vec<u8> {
        serde_json::to_vec(&self.summary()).expect("a summary of plain values is JSON")
    }

    /// Why this node does not serve as it should; nothing if it does.
    pub(crate) fn unfit(&self) -> Option<String> {
        let why = self.registered().services.iter().find_map(|service| service.unfit())?;
        Some(why.chars().take(MAX_UNFIT_CHARS).collect())
    }
}
