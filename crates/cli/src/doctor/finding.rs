//! What a check found: how bad it is, why it matters, and what mends it.

use serde_json::{Value, json};

/// How bad it is, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// As it should be.
    Ok,
    /// It works, and could be faster or safer.
    Advice,
    /// It does not work, will stop working, or leaves hardware unused that is there.
    Problem,
}

impl Severity {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Advice => "advice",
            Self::Problem => "problem",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug)]
pub(super) struct Finding {
    /// What it is about, for programs: lower case and underscores, the same in every version.
    pub(super) topic: &'static str,
    pub(super) severity: Severity,
    pub(super) found: String,
    /// Why it matters; empty when all is well and there is nothing to explain.
    pub(super) why: String,
    pub(super) mend: Vec<Step>,
}

/// A command to type, and what for.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) what: String,
    pub(super) command: String,
}

impl Finding {
    pub(super) fn ok(topic: &'static str, found: impl Into<String>) -> Self {
        Self { topic, severity: Severity::Ok, found: found.into(), why: String::new(), mend: Vec::new() }
    }

    pub(super) fn advice(topic: &'static str, found: impl Into<String>, why: impl Into<String>) -> Self {
        Self { severity: Severity::Advice, ..Self::ok(topic, found).because(why) }
    }

    pub(super) fn problem(topic: &'static str, found: impl Into<String>, why: impl Into<String>) -> Self {
        Self { severity: Severity::Problem, ..Self::ok(topic, found).because(why) }
    }

    pub(super) fn because(self, why: impl Into<String>) -> Self {
        Self { why: why.into(), ..self }
    }

    /// Adds a command.
    pub(super) fn mend(mut self, what: impl Into<String>, command: impl Into<String>) -> Self {
        self.mend.push(Step { what: what.into(), command: command.into() });
        self
    }

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
