//! Inodes that sessions without trust may name. Owns [`Known`]. Engine thread only.
//!
//! The home checks the permissions of a file at each operation that names its inode, and the permissions of
//! the folders above only when a name is looked up. So a session without trust may name only inodes that it
//! was told: by a name in a folder that it may search, or when it makes the inode.
//!
//! Only this home remembers this, and for some inodes only. If mirrors were told, each look at a name would
//! be a change. So a session may also name an inode that it could be told now, by walking from the root and
//! listing each folder. For that it needs the permission to list the folder in which the inode lies, because
//! names in a folder that may only be searched may be secret. The state has the number of one such folder
//! ([`Inode::above`]).
//!
//! Invariants: no bytes of a file are told to a session without trust that may not read it now. Such a
//! session names no inode that it was not told and could not list.
//!
//! [`Inode::above`]: super::state::Inode::above

use std::cell::RefCell;
use std::num::NonZeroUsize;

use lru::LruCache;
use plasmon::wire::files::{Errno, Extended, FileAsked, FileOperation, FileOutcome, ROOT_INODE};

use super::access::{READ, SEARCH, Who};
use super::decide::who;
use super::state::State;
use crate::kernel::random::HashMap;

/// Maximum number of inodes that a session knows beside those that it has open. For others it looks the name
/// up again.
const MAX_KNOWN: NonZeroUsize = NonZeroUsize::new(1 << 13).unwrap();

/// Maximum number of folders above an inode that a session may name without having been told the inode.
const MAX_DEPTH: usize = 256;

/// Inodes that sessions know, by session.
#[derive(Default)]
pub(super) struct Known(RefCell<HashMap<u32, LruCache<u64, ()>>>);

impl Known {
    /// Refuses an operation that names an inode which its session does not know.
    ///
    /// # Errors
    /// `Stale`.
    pub(super) fn ensure_named(&self, state: &State, number: u32, asked: &FileAsked) -> Result<(), Errno> {
        let Some(session) = state.sessions.get(&number).filter(|session| !session.trusted) else {
            return Ok(());
        };
        let who = who(session, &asked.actor);
        let mut known = self.0.borrow_mut();
        let mut known = known.get_mut(&number);
        let mut is_known = |inode: u64| {
            // Of an inode that is gone nothing is told.
            inode == ROOT_INODE
                || state.inode(inode).is_none()
                || session.opens.contains_key(&inode)
                || known.as_mut().is_some_and(|known| known.get(&inode).is_some())
                || may_find(state, &who, inode)
        };
        let named = asked.operation.inodes();
        if named.into_iter().flatten().all(&mut is_known) { Ok(()) } else { Err(Errno::Stale) }
    }

    /// Notes the inodes that an outcome tells a session. Removes from the outcome what the session may not
    /// see.
    pub(super) fn show(
        &self,
        state: &State,
        number: u32,
        asked: &FileAsked,
        mut outcome: FileOutcome,
    ) -> FileOutcome {
        let Some(session) = state.sessions.get(&number).filter(|session| !session.trusted) else {
            return outcome;
        };
        let who = who(session, &asked.actor);
        let may = |inode: u64, wanted| {
            state.inode(inode).is_some_and(|inode| who.ensure_may(&inode.head, wanted).is_ok())
        };
        let mut known = self.0.borrow_mut();
        let known = known.entry(number).or_insert_with(|| LruCache::new(MAX_KNOWN));
        match &mut outcome {
            FileOutcome::Entry(attributes) => _ = known.put(attributes.inode, ()),
            FileOutcome::Opened { attributes, map, .. } => {
                known.put(attributes.inode, ());
                if !map.sections.is_empty() && !may(attributes.inode, READ) {
                    *map = Extended { sections: Vec::new(), next: Some(0) };
                }
            }
            FileOutcome::Entries { entries, .. } => {
                if let FileOperation::List { folder, .. } | FileOperation::LookAhead { folder, .. } =
                    &asked.operation
                    && may(*folder, SEARCH)
                {
                    entries.iter().for_each(|entry| _ = known.put(entry.attributes.inode, ()));
                }
            }
            _ => {}
        }
        outcome
    }

    /// Forgets a session that has ended.
    pub(super) fn forget(&self, session: u32) {
        self.0.borrow_mut().remove(&session);
    }
}

/// Whether a user may find an inode from the root: by searching the folders above it, and by listing the
/// folder in which it lies. A folder itself need not be listed, since a program may have it as its working
/// folder for long.
fn may_find(state: &State, who: &Who<'_>, number: u64) -> bool {
    let Some(inode) = state.inode(number) else { return false };
    let is_folder = inode.folder().is_some();
    if !is_folder && inode.head.links == 0 {
        return false;
    }
    let mut wanted = if is_folder { SEARCH } else { READ | SEARCH };
    let mut at = inode.above;
    for _ in 0..MAX_DEPTH {
        let Some(above) = state.inode(at) else { return false };
        if who.ensure_may(&above.head, wanted).is_err() {
            return false;
        }
        if at == ROOT_INODE {
            return true;
        }
        (at, wanted) = (above.above, SEARCH);
    }
    false
}
