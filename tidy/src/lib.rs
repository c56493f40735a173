//! Rules for the source of this repository, each a function from the tree to what breaks it.
//!
//! [`Source`] is what git lists, read once. Each rule looks at it and returns [`Finding`]s. [`Exceptions`] is
//! the list of what still breaks a rule; it lies in `tidy/exceptions` and may only shrink. `tests/tidy.rs`
//! runs the rules on the tree, and each module's own tests run its rule on text made for it.

mod dependencies;
mod exceptions;
mod floors;
mod links;
mod methods;
mod python;
mod rooms;
mod shape;
mod source;
mod tokens;
mod waits;
mod width;

pub use dependencies::unused_dependencies;
pub use exceptions::{Exceptions, Verdict};
pub use floors::imports;
pub use links::links;
pub use methods::many_methods;
pub use rooms::rooms;
pub use shape::{long_files, long_functions, unopened_modules};
pub use source::{Kind, Source, Text};
pub use waits::{asserted_times, fixed_sleeps};
pub use width::wide_lines;

/// One place that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path of the file, from the root of the repository.
    pub path: String,
    /// Number of the line, from 1.
    pub line: usize,
    /// Name of what breaks the rule, for the list of exceptions: a line's number changes too often. Empty
    /// where the file says enough.
    pub item: String,
    /// Advice: the trouble there and what to do.
    pub advice: String,
}

/// One rule: its name, which is also the name of its list; the function that looks for what breaks it; and
/// the number of exceptions on its list.
pub type Rule = (&'static str, fn(&Source) -> Vec<Finding>, usize);

/// Every rule there is. The numbers of exceptions only get smaller.
pub const RULES: [Rule; 11] = [
    ("long-files", long_files, 0),
    ("long-functions", long_functions, 0),
    ("many-methods", many_methods, 0),
    ("unopened-modules", unopened_modules, 0),
    ("wide-lines", wide_lines, 0),
    ("imports", imports, 0),
    ("unused-dependencies", unused_dependencies, 0),
    ("fixed-sleeps", fixed_sleeps, 0),
    ("asserted-times", asserted_times, 0),
    ("links", links, 0),
    ("rooms", rooms, 0),
];
