//! Check whether the answers that clients got about one id fit one atomic register. The check is the search
//! of Wing and Gong, with the memory of Lowe, as in porcupine.
//!
//! Owns no state. Any thread. A register is absent or has a value. A [`Call`] takes effect at one moment
//! between its begin and its end. The calls fit if there are moments that explain all answers
//! ([`violations`]). Invariant: the calls on one id are checked without regard to other ids.
//!
//! An answer that says nothing (a get that timed out) makes no call. A call with an unknown outcome has no
//! end: it takes effect at any time after its begin, or never. A put claims its id before the value is there.
//! Another put may therefore be refused at any moment of a put that ends well. A write may find no value and
//! be a put then, so that it claims its id as well.

mod excerpt;
mod search;
#[cfg(test)]
mod tests;

use std::fmt;

use thiserror::Error;

use search::{Outcome, search};

/// Number of steps after which a search is given up. A step takes about a microsecond and 100 bytes.
const STEPS: usize = 1 << 19;

/// Value of a register. No two puts have the same value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value {
    /// Number of the client that put the value.
    pub writer: u32,
    /// Number of the put among the puts of the writer.
    pub number: u32,
}

/// Call and its answer, or an event of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A put that succeeded.
    Put(Value),
    /// A put that was refused because the id was taken.
    Refused,
    /// A put with an unknown outcome.
    MaybePut(Value),
    /// A write that succeeded: it puts a value whatever was there.
    Wrote(Value),
    /// A write with an unknown outcome.
    MaybeWrote(Value),
    /// A compare-and-set that succeeded: `to` has taken the place of `from`. One that did not succeed has
    /// said what was there instead: it is a get of that value, or a call of contains.
    Swapped {
        /// Value that was there.
        from: Value,
        /// Value that is there from then on.
        to: Value,
    },
    /// A compare-and-set with an unknown outcome.
    MaybeSwapped {
        /// Value that has to be there.
        from: Value,
        /// Value that is there from then on.
        to: Value,
    },
    /// A deletion, and whether it found an object.
    Deleted(bool),
    /// A deletion with an unknown outcome.
    MaybeDeleted,
    /// The end of a value by itself, as its time is over or its owner has gone, if it comes to that. It ends
    /// no other value.
    MaybeEnded(Value),
    /// A get, and the value that it gave.
    Got(Value),
    /// A call of contains, and its answer.
    Contains(bool),
    /// The death of a node: the value of the id may be gone from then on.
    Lost,
    /// The time when others cannot reach a node: the value of the id may be seen or not from then on, until
    /// the value is deleted or replaced by another put. Gets at this node may give a value that others have
    /// replaced by a write.
    CutOff,
}

/// Call of a client on one id. All times are nanoseconds of one monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Node that was called, or that the event happened to.
    pub node: usize,
    /// Client that made the call. Events have none.
    pub client: Option<usize>,
    /// Time before the call, in nanoseconds.
    pub begin: u64,
    /// Time after the call in nanoseconds, if its outcome is known.
    pub end: Option<u64>,
    /// Kind and answer of the call.
    pub action: Action,
}

/// Calls on one id that no register explains, or that the search could not decide about.
#[derive(Debug, Error)]
pub enum Violation {
    /// No order of the calls explains all answers.
    #[error("{kind}:\n{excerpt}")]
    Impossible {
        /// Description of the first call that does not fit.
        kind: &'static str,
        /// Calls around the call that does not fit, for people to read.
        excerpt: String,
    },
    /// The search was given up after too many steps.
    #[error(
        "{calls} calls on one id were not decided within {STEPS} steps: this is no success; let fewer calls \
         overlap, or use new ids more often"
    )]
    Undecided {
        /// Number of the calls on the id.
        calls: usize,
    },
}

/// Finds at most `most` violations among the calls on one id, which was absent before the calls. After each
/// violation, the search goes on as if the outcome of the call that does not fit were unknown.
pub fn violations(told: &[Call], most: usize) -> Vec<Violation> {
    let counts = |call: &&Call| !is_former_of_cut_off(call, told);
    let (mut calls, mut found): (Vec<_>, _) = (told.iter().filter(counts).copied().collect(), Vec::new());
    while found.len() < most {
        match search(&calls, None) {
            Outcome::Fits => break,
            Outcome::Undecided => {
                found.push(Violation::Undecided { calls: calls.len() });
                break;
            }
            Outcome::Stuck(at) => {
                let (kind, excerpt) = (calls[at].action.kind(), excerpt::around(told, &calls, at));
                found.push(Violation::Impossible { kind, excerpt });
                match calls[at].weakened() {
                    Some(weaker) => calls[at] = weaker,
                    None => drop(calls.remove(at)),
                }
            }
        }
    }
    found
}

/// Whether a call is a get at a node that is cut off, of a value that another write may have replaced. The
/// node does not hear of that, and gives what it holds.
fn is_former_of_cut_off(get: &Call, told: &[Call]) -> bool {
    let Action::Got(value) = get.action else { return false };
    let is_before = |call: &Call| get.end.is_none_or(|end| call.begin <= end);
    let replaces = |action: Action| match action {
        Action::Swapped { from, .. } | Action::MaybeSwapped { from, .. } => from == value,
        Action::Wrote(to) | Action::MaybeWrote(to) => to != value,
        _ => false,
    };
    let cuts = |call: &Call| call.action == Action::CutOff && call.node == get.node;
    told.iter().any(|call| cuts(call) && is_before(call))
        && told.iter().any(|call| replaces(call.action) && is_before(call))
}

impl Action {
    /// Whether the action may also have no effect.
    fn is_optional(self) -> bool {
        matches!(
            self,
            Self::MaybePut(_)
                | Self::MaybeWrote(_)
                | Self::MaybeSwapped { .. }
                | Self::MaybeDeleted
                | Self::MaybeEnded(_)
                | Self::Lost
                | Self::CutOff
        )
    }

    /// Whether the action claims its id if no value is there.
    fn claims(self) -> bool {
        matches!(self, Self::Put(_) | Self::MaybePut(_) | Self::Wrote(_) | Self::MaybeWrote(_))
    }

    /// Returns the value that the action leaves, if it takes effect and leaves one.
    pub fn written(self) -> Option<Value> {
        match self {
            Self::Put(value) | Self::MaybePut(value) | Self::Wrote(value) | Self::MaybeWrote(value) => {
                Some(value)
            }
            Self::Swapped { to, .. } | Self::MaybeSwapped { to, .. } => Some(to),
            _ => None,
        }
    }

    /// Returns the value that has to be there for the action.
    fn needed(self) -> Option<Value> {
        match self {
            Self::Got(value) => Some(value),
            Self::Swapped { from, .. } | Self::MaybeSwapped { from, .. } | Self::MaybeEnded(from) => {
                Some(from)
            }
            _ => None,
        }
    }

    /// Returns the description of a call with this action that does not fit.
    fn kind(self) -> &'static str {
        match self {
            Self::Put(_) => "a put ended well although the id was taken",
            Self::Wrote(_) => "a write ended well while the id was claimed",
            Self::Swapped { .. } => "a compare-and-set found what was not there",
            Self::Refused => "a put was refused although the id was free",
            Self::Deleted(true) => "a deletion found what was not there",
            Self::Deleted(false) => "a deletion missed what was there",
            Self::Got(_) => "a get gave what was not there",
            Self::Contains(true) => "contains saw what was not there",
            Self::Contains(false) => "contains missed what was there",
            _ => "nothing was answered",
        }
    }
}

impl Call {
    /// Returns the call with an unknown outcome. `None` for a call that changes nothing.
    fn weakened(self) -> Option<Self> {
        let action = match self.action {
            Action::Put(value) => Action::MaybePut(value),
            Action::Wrote(value) => Action::MaybeWrote(value),
            Action::Swapped { from, to } => Action::MaybeSwapped { from, to },
            Action::Deleted(_) => Action::MaybeDeleted,
            optional if optional.is_optional() => optional,
            _ => return None,
        };
        Some(Self { end: None, action, ..self })
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.writer, self.number)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(value) => write!(f, "put {value}: well"),
            Self::Refused => write!(f, "put: exists"),
            Self::MaybePut(value) => write!(f, "put {value}: unknown outcome"),
            Self::Wrote(value) => write!(f, "write {value}: well"),
            Self::MaybeWrote(value) => write!(f, "write {value}: unknown outcome"),
            Self::Swapped { from, to } => write!(f, "set {from} to {to}: well"),
            Self::MaybeSwapped { from, to } => write!(f, "set {from} to {to}: unknown outcome"),
            Self::Deleted(found) => write!(f, "delete: {}", if *found { "deleted" } else { "absent" }),
            Self::MaybeDeleted => write!(f, "delete: unknown outcome"),
            Self::MaybeEnded(value) => write!(f, "{value} may end"),
            Self::Got(value) => write!(f, "get: {value}"),
            Self::Contains(found) => write!(f, "contains: {found}"),
            Self::Lost => write!(f, "it dies"),
            Self::CutOff => write!(f, "it is cut off"),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.end.map_or_else(|| "...".to_owned(), |end| (end / 1000).to_string());
        write!(f, "{:>10} to {end:>10} us  node {}", self.begin / 1000, self.node)?;
        if let Some(client) = self.client {
            write!(f, ", client {client}")?;
        }
        write!(f, "  {}", self.action)
    }
}
