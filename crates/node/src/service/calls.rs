//! Calls by slot, as services see them.
//!
//! Owns no state. Engine thread only. A call is what a client asks for most often: it comes through shared
//! memory, has no descriptors, and its result fits a slot. Calls of a client end in any order.

use std::future::Future;
use std::pin::Pin;

use plasmon::shared::CallResult;
use plasmon::{Error, ErrorKind};

/// Result of a call, or the task that finds it.
#[expect(clippy::large_enum_variant, reason = "it lives for a moment, and a result has the size of a slot")]
pub(crate) enum Return {
    /// The result is there.
    Now(Result<CallResult, Error>),
    /// A task finds the result. The task ends with its session, and when the time-out of the call is over.
    Later {
        /// The task.
        task: Pin<Box<dyn Future<Output = Result<CallResult, Error>>>>,
        /// Kind of error when the time-out is over. `None` if the task looks after its time by itself.
        over: Option<ErrorKind>,
    },
}

impl Return {
    /// Returns the result of a task. When the time-out of the call is over, the call has *timed out*.
    pub(crate) fn later(task: impl Future<Output = Result<CallResult, Error>> + 'static) -> Self {
        Self::Later { task: Box::pin(task), over: Some(ErrorKind::TimedOut) }
    }

    /// Returns the result of a task that may have changed something, or will, when the time-out is over: the
    /// outcome of the call is then *unknown*.
    pub(crate) fn uncertain(task: impl Future<Output = Result<CallResult, Error>> + 'static) -> Self {
        Self::Later { task: Box::pin(task), over: Some(ErrorKind::OutcomeUnknown) }
    }

    /// Returns the result of a task that ends by itself when the time-out is over, or soon after.
    pub(crate) fn in_time(task: impl Future<Output = Result<CallResult, Error>> + 'static) -> Self {
        Self::Later { task: Box::pin(task), over: None }
    }

    /// Returns the refusal of an operation that no service has.
    pub(crate) fn unknown(opcode: u8) -> Self {
        let text = format!("this node knows no call {opcode}: install the same release of client and daemon");
        Self::Now(Err(Error::new(ErrorKind::Invalid, text)))
    }
}
