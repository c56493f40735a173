//! Decisions about attributes of inodes, and about how full the volume is. Owns no state. Any thread.

use plasmon::wire::files::{
    Change as TimeChange, Errno, FileKind, FileOutcome, SetAttributes, Time, VolumeUsage,
};

use super::data::cut;
use super::{Asking, Decided, Decision, Draft, Say};
use crate::files::access::{SET_GROUP, WRITE, without_privileges};
use crate::files::state::{Head, INODE_BYTES};

/// Returns the attributes of an inode.
pub(super) fn get(asking: &Asking<'_>, number: u64) -> Decided {
    asking.inode(number)?;
    Ok(Decision::only(Say::Entry(number)))
}

/// Refuses changes of attributes that the user may not make.
fn ensure_may(asking: &Asking<'_>, number: u64, set: &SetAttributes) -> Result<(), Errno> {
    let (head, who) = (&asking.inode(number)?.head, &asking.who);
    if set.mode.is_some() {
        who.ensure_owns(head)?;
    }
    if set.uid.is_some_and(|uid| uid != head.uid) {
        who.ensure_root()?;
    }
    if let Some(gid) = set.gid.filter(|gid| *gid != head.gid) {
        who.ensure_owns(head)?;
        if !who.is_of(gid) {
            who.ensure_root()?;
        }
    }
    let opened = asking.session.opens.get(&number).is_some_and(|opens| opens.writes);
    if set.size.is_some() && !opened {
        who.ensure_may(head, WRITE)?;
    }
    for change in [set.accessed, set.modified] {
        match change {
            TimeChange::Keep => {}
            TimeChange::Now if who.ensure_owns(head).is_ok() => {}
            TimeChange::Now => who.ensure_may(head, WRITE)?,
            TimeChange::To(time) if time.nanos >= 1_000_000_000 => return Err(Errno::Invalid),
            TimeChange::To(_) => who.ensure_owns(head)?,
        }
    }
    Ok(())
}

fn set_time(time: &mut Time, change: TimeChange, now: Time) {
    match change {
        TimeChange::Keep => {}
        TimeChange::Now => *time = now,
        TimeChange::To(to) => *time = to,
    }
}

/// Sets attributes of an inode.
pub(super) fn set(asking: &Asking<'_>, number: u64, set: &SetAttributes) -> Decided {
    ensure_may(asking, number, set)?;
    let before = asking.inode(number)?.head;
    let mut draft = Draft::new(asking);
    if let Some(size) = set.size {
        if before.kind == FileKind::Folder {
            return Err(Errno::IsFolder);
        }
        cut(&mut draft, number, size)?;
        draft.touch(number)?;
    }
    let (uid, gid) = (set.uid.unwrap_or(before.uid), set.gid.unwrap_or(before.gid));
    if uid != before.uid {
        let used = asking.inode(number)?.map().map_or(0, crate::files::map::Map::used);
        asking.ensure_quota(uid, used)?;
    }
    let head = draft.head(number)?;
    (head.uid, head.gid) = (uid, gid);
    if set.uid.is_some() || set.gid.is_some() || set.drops_privileges {
        head.mode = without_privileges(head);
    }
    if let Some(mode) = set.mode {
        head.mode = mode as u16 & 0o7777;
        strip_group(asking, head);
    }
    set_time(&mut head.accessed, set.accessed, asking.now);
    set_time(&mut head.modified, set.modified, asking.now);
    Ok(draft.decide(Say::Entry(number)))
}

/// Takes the setgid bit from a file if the user is no member of its group. Where the kernel of a host checks
/// permissions, it has done this, since only the kernel knows all groups of the user.
fn strip_group(asking: &Asking<'_>, head: &mut Head) {
    if asking.who.checked
        && asking.who.uid != 0
        && !asking.who.is_of(head.gid)
        && head.kind != FileKind::Folder
    {
        head.mode &= !SET_GROUP;
    }
}

/// Returns how full the volume is. Credit of sessions counts as free, because sessions give back what they do
/// not use.
pub(super) fn usage(asking: &Asking<'_>) -> Decided {
    let (state, limits) = (asking.state, &asking.limits);
    let terms = &state.terms;
    let spare = asking.lingering.spare(state, asking.who.uid);
    let used = state.used.saturating_sub(spare.bytes);
    let room = if terms.capacity > 0 { terms.capacity.saturating_sub(used) } else { u64::MAX };
    let free = limits.free.min(room);
    let capacity = if terms.capacity > 0 { terms.capacity } else { used.saturating_add(free) };
    let inodes = (state.inodes.len() as u64).saturating_sub(spare.inodes);
    let possible = inodes + limits.memory.saturating_sub(state.memory) / INODE_BYTES;
    let most_inodes = if terms.inodes > 0 { terms.inodes.min(possible) } else { possible };
    let by_user = state.used_by.get(&asking.who.uid).copied().unwrap_or_default();
    let by_user = by_user.saturating_sub(spare.of_user);
    let of_quota = if terms.user_quota > 0 { terms.user_quota.saturating_sub(by_user) } else { u64::MAX };
    let available = free.min(of_quota);
    let usage = VolumeUsage { capacity, used, free, available, most_inodes, inodes };
    Ok(Decision::tells(FileOutcome::Usage(usage)))
}
