//! Finding of a check: its severity, its reason, and the commands that fix it.
//!
//! Owns no state. Main thread.

use serde_json::{Value, json};

/// Severity of a finding, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// All is well.
    Ok,
    /// The feature works, but could be faster or safer.
    Advice,
    /// The feature does not work, will stop working, or leaves existing hardware unused.
    Problem,
}

impl Severity {
    /// Name of the severity, for people and programs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Advice => "advice",
            Self::Problem => "problem",
        }
    }
}

/// Finding about one subject.
#[derive(Debug)]
pub(super) struct Finding {
    /// Subject of the finding, for programs: lower case and underscores, the same in every version.
    pub(super) topic: &'static str,
    pub(super) severity: Severity,
    pub(super) found: String,
    /// Reason why the finding matters. Empty if all is well.
    pub(super) why: String,
    pub(super) mend: Vec<Step>,
}

/// Command that fixes a problem, with its purpose.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) what: String,
    pub(super) command: String,
}

impl Finding {
    /// Finding that all is well.
    pub(super) fn ok(topic: &'static str, found: impl Into<String>) -> Self {
        Self { topic, severity: Severity::Ok, found: found.into(), why: String::new(), mend: Vec::new() }
    }

    /// Finding that something could be faster or safer.
    pub(super) fn advice(topic: &'static str, found: impl Into<String>, why: impl Into<String>) -> Self {
        Self { severity: Severity::Advice, ..Self::ok(topic, found).because(why) }
    }

    /// Finding that something does not work or will stop working.
    pub(super) fn problem(topic: &'static str, found: impl Into<String>, why: impl Into<String>) -> Self {
        Self { severity: Severity::Problem, ..Self::ok(topic, found).because(why) }
    }

    /// Sets the reason.
    pub(super) fn because(self, why: impl Into<String>) -> Self {
        Self { why: why.into(), ..self }
    }

    /// Adds a command.
    pub(super) fn mend(mut self, what: impl Into<String>, command: impl Into<String>) -> Self {
        self.mend.push(Step { what: what.into(), command: command.into() });
        self
    }

    /// The finding for programs.
    pub(super) fn json(&self) -> Value {
        let step = |step: &Step| json!({ "what": step.what, "command": step.command });
        json!({
            "topic": self.topic,
            "severity": self.severity.name(),
            "found": self.found,
            "why": self.why,
            "mend": self.mend.iter().map(step).collect::<Vec<_>>(),
        })
    }
}
