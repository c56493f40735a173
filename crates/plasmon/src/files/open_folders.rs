//! Folders that are open, so that they stay when they are removed.
//!
//! Owns the table of open folders. Any thread. Most folders are closed as soon as they are listed, so an open
//! asks nobody: the thread of the session opens at the home what stays open. A removed folder is kept there
//! for longer than that takes. Invariants: the home is told as many closes of folders as opens; no lock on
//! the table is held while the home is asked.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::Volume;
use super::credit::may_be_done;
use super::volume::Shared;
use crate::wire::files::{Actor, FileOperation, FileOutcome};

/// Folders that programs have open, by the numbers of their inodes.
#[derive(Default)]
pub(super) struct OpenFolders(Mutex<HashMap<u64, Open>>);

struct Open {
    count: u32,
    at_home: AtHome,
}

/// State of an open folder at the home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtHome {
    /// The home is to be asked.
    Unknown,
    Open,
    /// The home does not open the folder for this session.
    Refused,
}

impl OpenFolders {
    fn begin(&self, folder: u64) {
        let mut open = self.0.lock();
        open.entry(folder).or_insert(Open { count: 0, at_home: AtHome::Unknown }).count += 1;
    }

    /// Ends an open. Returns whether the home is to be told that the folder is closed.
    fn end(&self, folder: u64) -> bool {
        let mut all = self.0.lock();
        let Some(open) = all.get_mut(&folder) else { return false };
        open.count -= 1;
        open.count == 0 && all.remove(&folder).is_some_and(|open| open.at_home == AtHome::Open)
    }

    /// Returns the folders that are to be opened at the home.
    fn unknown(&self) -> Vec<u64> {
        let all = self.0.lock();
        all.iter().filter(|(_, open)| open.at_home == AtHome::Unknown).map(|(folder, _)| *folder).collect()
    }

    /// Notes what came of opening a folder at the home. Returns whether the folder is still open.
    fn told(&self, folder: u64, at_home: AtHome) -> bool {
        self.0.lock().get_mut(&folder).map(|open| open.at_home = at_home).is_some()
    }

    /// Returns the folders that are open at the home.
    pub(super) fn at_home(&self) -> Vec<u64> {
        let all = self.0.lock();
        all.iter().filter(|(_, open)| open.at_home == AtHome::Open).map(|(folder, _)| *folder).collect()
    }

    /// Has all folders opened anew, since the session began anew.
    pub(super) fn begin_again(&self) {
        self.0.lock().values_mut().for_each(|open| open.at_home = AtHome::Unknown);
    }
}

impl Volume {
    /// Opens a folder. The folder stays when it is removed, without names, until it is
    /// [closed](Volume::close_folder).
    pub fn open_folder(&self, folder: u64) {
        self.0.open_folders.begin(folder);
    }

    /// Ends one open of a folder.
    pub fn close_folder(&self, folder: u64) {
        if self.0.open_folders.end(folder) {
            self.0.closes.note(folder);
        }
    }
}

impl Shared {
    /// Opens at the home the folders that stay open.
    pub(super) fn tell_open_folders(&self) {
        for inode in self.open_folders.unknown() {
            let losses = self.session.losses();
            let open = FileOperation::Open { inode, read: true, write: false, truncate: false, maps: false };
            let opened = self.session.ask_of(Some(losses), &Actor::default(), open);
            let at_home = match opened.map(|answered| answered.outcome) {
                Ok(FileOutcome::Opened { .. }) => AtHome::Open,
                Ok(_) => AtHome::Refused,
                Err(error) if may_be_done(&error) => return,
                Err(_) => AtHome::Refused,
            };
            let is_open = self.open_folders.told(inode, at_home);
            if self.session.losses() != losses {
                return self.open_folders.begin_again();
            }
            if !is_open && at_home == AtHome::Open {
                self.closes.note(inode);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_is_told_a_close_of_what_it_has_opened() {
        let folders = OpenFolders::default();
        folders.begin(7);
        folders.begin(7);
        folders.begin(8);
        let mut unknown = folders.unknown();
        unknown.sort_unstable();
        assert_eq!(unknown, [7, 8]);
        assert!(!folders.end(8), "the home has not heard of it");
        assert!(folders.told(7, AtHome::Open) && !folders.told(8, AtHome::Open));
        assert_eq!((folders.unknown(), folders.at_home()), (vec![], vec![7]));
        assert!(!folders.end(7) && folders.end(7) && !folders.end(7));
        folders.begin(7);
        assert!(folders.told(7, AtHome::Refused) && folders.at_home().is_empty());
        folders.begin_again();
        assert_eq!(folders.unknown(), [7]);
    }
}
