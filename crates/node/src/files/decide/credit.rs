//! Credit: room of the volume, and of the quotas of users, that sessions hold for bytes that they accept.
//! Owns no state. Any thread.
//!
//! Invariant: when credit is given, the bytes of files and all credit together are not more than the terms
//! permit. So a commit that credit covers has room, whatever other sessions do.

use plasmon::wire::files::{Errno, FileOutcome, MAX_FILE_BYTES, MAX_RESERVED_BYTES};

use super::{Asking, Decided, Decision, Say};
use crate::files::change::Change;
use crate::files::map::Map;
use crate::files::state::CREDIT_BYTES;

/// Part of the free room that a session is given ahead of its need, as a divisor.
const AHEAD_PART: u64 = 8;
/// Maximum number of files without a name that are looked at for room that may come.
const MAX_NAMELESS: usize = 1 << 10;

/// Bytes that are neither in files nor in credit: of the volume, and of a user's quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    of_volume: u64,
    of_user: u64,
}

impl Room {
    fn bytes(self) -> u64 {
        self.of_volume.min(self.of_user)
    }

    /// Refuses more bytes than the room has.
    fn ensure(self, more: u64) -> Result<(), Errno> {
        if more > self.of_volume {
            return Err(Errno::Full);
        }
        if more > self.of_user { Err(Errno::OverQuota) } else { Ok(()) }
    }
}

/// Credit that an operation uses up: at most `bytes`, for the files of the user `of`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Covers {
    pub(super) of: u32,
    pub(super) bytes: u64,
}

impl Asking<'_> {
    /// Returns the room for bytes of a user's files.
    fn room(&self, uid: u32) -> Room {
        let (state, terms) = (self.state, &self.state.terms);
        let of = |bytes: Option<&u64>| bytes.copied().unwrap_or_default();
        // A limit holds also without terms, so that the bytes of all files can be counted.
        let capacity = if terms.capacity > 0 { terms.capacity.min(MAX_FILE_BYTES) } else { MAX_FILE_BYTES };
        let by_user = of(state.used_by.get(&uid)).saturating_add(of(state.credit_of.get(&uid)));
        Room {
            of_volume: capacity.saturating_sub(state.used.saturating_add(state.credit)),
            of_user: if terms.user_quota > 0 { terms.user_quota.saturating_sub(by_user) } else { u64::MAX },
        }
    }

    /// Refuses more bytes of a user's files than the volume or the user's quota has room for.
    pub(super) fn ensure_room(&self, uid: u32, more: u64) -> Result<(), Errno> {
        self.room(uid).ensure(more)
    }

    /// Refuses more bytes of a user's files than the user's quota has room for.
    pub(super) fn ensure_quota(&self, uid: u32, more: u64) -> Result<(), Errno> {
        Room { of_volume: u64::MAX, ..self.room(uid) }.ensure(more)
    }

    /// Uses up credit of the session for `more` bytes that come to a file of `owner`. Bytes that the credit
    /// does not cover need room. Returns the change of the credit, if there is one.
    ///
    /// The file may have got another owner since the credit was given. A session that is not trusted may have
    /// credit for files of other users that it may write. It must not exceed the owner's quota with that
    /// credit.
    pub(super) fn use_credit(&self, owner: u32, credit: Covers, more: u64) -> Result<Option<Change>, Errno> {
        let had = self.session.credit.get(&credit.of).copied().unwrap_or_default();
        let used = credit.bytes.min(had);
        let uncovered = more.saturating_sub(used);
        self.ensure_room(owner, uncovered)?;
        if credit.of != owner && !self.session.trusted {
            self.ensure_quota(owner, more)?;
        }
        let left = Change::Credit { session: self.number, uid: credit.of, bytes: had - used };
        Ok((used > 0).then_some(left))
    }

    /// Returns the room for bytes of a user's files if all other sessions gave back their credit, and told
    /// that they have closed the files that have no name.
    fn room_at_best(&self, uid: u32) -> Room {
        let (state, now) = (self.state, self.room(uid));
        let is_others =
            |inode: &&u64| state.opens.contains_key(inode) && !self.session.opens.contains_key(inode);
        let looked_at = state.unlinked.iter().take(MAX_NAMELESS);
        let (mut closing, mut closing_of_user) = (0_u64, 0_u64);
        for inode in looked_at.filter(is_others).filter_map(|inode| state.inode(*inode)) {
            let bytes = inode.map().map_or(0, Map::used);
            closing += bytes;
            closing_of_user += if inode.head.uid == uid { bytes } else { 0 };
        }
        let own = self.session.credit.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        let own_of_user = self.session.credit.get(&uid).copied().unwrap_or_default();
        let of_user = state.credit_of.get(&uid).copied().unwrap_or_default().saturating_sub(own_of_user);
        Room {
            of_volume: now.of_volume.saturating_add(state.credit.saturating_sub(own)).saturating_add(closing),
            of_user: now.of_user.saturating_add(of_user).saturating_add(closing_of_user),
        }
    }
}

/// Gives a session credit to write a file.
pub(super) fn reserve(asking: &Asking<'_>, number: u64, bytes: u64, patient: bool) -> Decided {
    asking.ensure_may_write(number)?;
    if bytes > MAX_RESERVED_BYTES {
        return Err(Errno::TooLarge);
    }
    let uid = asking.inode(number)?.head.uid;
    let room = asking.room(uid);
    if let Err(errno) = room.ensure(bytes) {
        let may_come = patient && asking.room_at_best(uid).ensure(bytes).is_ok();
        return Err(if may_come { Errno::Again } else { errno });
    }
    let bytes = bytes + ((room.bytes() - bytes) / AHEAD_PART).min(MAX_RESERVED_BYTES);
    let had = asking.session.credit.get(&uid).copied();
    if had.is_none() {
        asking.ensure_memory(CREDIT_BYTES)?;
    }
    let changes = if bytes > 0 {
        vec![Change::Credit { session: asking.number, uid, bytes: had.unwrap_or_default() + bytes }]
    } else {
        Vec::new()
    };
    Ok(Decision { changes, say: Say::Outcome(FileOutcome::Reserved { uid, bytes }) })
}

/// Tells whether room comes from objects that no file has any more. What lingered has gone before.
pub(super) fn make_room(asking: &Asking<'_>) -> Decided {
    if asking.state.condemned.is_empty() {
        return Err(Errno::NotFound);
    }
    Ok(Decision::tells(FileOutcome::Done))
}

/// Takes back credit that a session gives up.
pub(super) fn give_back(asking: &Asking<'_>, uid: u32, bytes: u64) -> Decision {
    let change = |had: &u64| {
        let session = asking.number;
        Change::Credit { session, uid, bytes: had.saturating_sub(bytes) }
    };
    let changes = asking.session.credit.get(&uid).map(change).into_iter().collect();
    Decision { changes, say: Say::Outcome(FileOutcome::Done) }
}
