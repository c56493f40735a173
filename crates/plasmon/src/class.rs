//! Classes of service: which work goes first where several clients want the same network.
//!
//! Owns the class that this thread has chosen for its calls ([`Class::during`]). Any thread.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

thread_local! {
    /// Class that this thread has chosen for calls that it makes now.
    static CHOSEN: Cell<Option<Class>> = const { Cell::new(None) };
}

crate::wire::codes! {
    /// Class of service of a client, or of a call. Work of a higher class leaves a node first. With `plasmon
    /// serve --qos`, a node also keeps low work from taking the network away from high work.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Class: u8 {
        /// Work that somebody waits for.
        1 High,
        /// Work of clients that have not asked for another class.
        #[default]
        2 Normal,
        /// Work that takes what the other classes leave.
        3 Low,
    }
}

impl Class {
    /// Name of the class, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }

    /// Rank of the class: 0 for the highest.
    pub fn rank(self) -> usize {
        usize::from(self as u8) - 1
    }

    /// Runs `act` with this class. The operations on regions and the calls of services that `act` begins on
    /// this thread are of this class, instead of the class of their client. A client that `act` connects on
    /// this thread is of this class for all its work.
    pub fn during<T>(self, act: impl FnOnce() -> T) -> T {
        struct Former(Option<Class>);
        impl Drop for Former {
            fn drop(&mut self) {
                CHOSEN.set(self.0);
            }
        }
        let _former = Former(CHOSEN.replace(Some(self)));
        act()
    }

    /// Class that this thread has chosen, if any.
    pub(crate) fn chosen() -> Option<Self> {
        CHOSEN.get()
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().copied().find(|class| class.name() == text);
        found.ok_or_else(|| format!("'{text}' is no class; classes are high, normal and low"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_chooses_a_class_for_a_while() {
        assert_eq!(Class::chosen(), None);
        Class::High.during(|| {
            assert_eq!(Class::chosen(), Some(Class::High));
            Class::Low.during(|| assert_eq!(Class::chosen(), Some(Class::Low)));
            assert_eq!(Class::chosen(), Some(Class::High));
        });
        assert_eq!(Class::chosen(), None);
    }

    #[test]
    fn classes_have_names() {
        for (rank, class) in Class::ALL.iter().copied().enumerate() {
            assert_eq!((class.name().parse(), class.rank()), (Ok(class), rank));
        }
        assert!("urgent".parse::<Class>().unwrap_err().contains("high, normal and low"));
    }
}
