//! The report on the node, made of the parts of all services.
//!
//! Owns the last report. Engine thread only. A report walks the table of objects, so reports are for people
//! and scrapers. Those who ask often get a report that is at most [`REPORT_LIFETIME`] old.

use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::overview::Summary;
use plasmon::status::Status;

use super::Services;

/// Age at which a report is made anew for other nodes and scrapers.
const REPORT_LIFETIME: Duration = Duration::from_millis(250);
/// Greatest number of characters of the reason in [`Services::unfit`]: a summary with it fits a frame.
const MAX_UNFIT_CHARS: usize = 300;

/// The last report, for those who ask often.
pub(super) struct Recent {
    made: Instant,
    status: Rc<Status>,
}

impl Services {
    /// Makes the report.
    pub(crate) fn status(&self) -> Status {
        let mut status = Status { unfit: self.unfit().unwrap_or_default(), ..Status::default() };
        self.each(|service| service.report(&mut status));
        status
    }

    /// Makes the report, as JSON.
    pub(crate) fn status_json(&self) -> String {
        serde_json::to_string(&self.status()).expect("a report of plain values is JSON")
    }

    /// Returns a report that is at most [`REPORT_LIFETIME`] old. However many ask, the table of objects is
    /// walked at most four times a second.
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

    /// Returns a summary of this node: a few numbers.
    pub(crate) fn summary(&self) -> Summary {
        Summary::from(&*self.recent_status())
    }

    /// Returns a summary of this node for another node, as JSON.
    pub(crate) fn summary_json(&self) -> Vec<u8> {
        serde_json::to_vec(&self.summary()).expect("a summary of plain values is JSON")
    }

    /// Reason why this node does not serve as it should; `None` if there is none.
    pub(crate) fn unfit(&self) -> Option<String> {
        let why = self.registered().services.iter().find_map(|service| service.unfit())?;
        Some(why.chars().take(MAX_UNFIT_CHARS).collect())
    }
}
