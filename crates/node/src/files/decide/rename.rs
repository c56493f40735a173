//! Renaming, over another inode or in exchange with it.

use std::rc::Rc;

use plasmon::wire::files::{Errno, FileKind, FileOutcome, MAX_LINKS};

use super::names::ensure_name;
use super::{Asking, Decided, Decision, Draft, Say};
use crate::files::access::{SEARCH, WRITE};
use crate::files::change::Change;
use crate::files::state::{Entry, Inode};

/// Which name becomes which: a folder and a name in it.
pub(super) struct Move<'a> {
    pub(super) from: (u64, &'a [u8]),
    pub(super) to: (u64, &'a [u8]),
}

/// Whether a folder is another one or lies below it.
fn is_below(asking: &Asking<'_>, folder: u64, top: u64) -> Result<bool, Errno> {
    let mut at = folder;
    loop {
        if at == top {
            return Ok(true);
        }
        let (_, names) = asking.folder(at)?;
        if names.above == at {
            return Ok(false);
        }
        at = names.above;
    }
}

/// Gives an inode another name.
pub(super) fn rename(asking: &Asking<'_>, move_: &Move<'_>, no_replace: bool, exchange: bool) -> Decided {
    let ((folder, name), (to_folder, to_name)) = (move_.from, move_.to);
    if no_replace && exchange {
        return Err(Errno::Invalid);
    }
    let (to_above, to_names) = asking.folder(to_folder)?;
    let (entry, inode) = asking.taken(folder, name)?;
    ensure_name(to_name)?;
    if matches!(to_name, b"." | b"..") {
        return Err(if no_replace { Errno::Exists } else { Errno::Invalid });
    }
    asking.who.ensure_may(&to_above.head, WRITE | SEARCH)?;
    if to_above.head.links == 0 {
        return Err(Errno::NotFound);
    }
    let target = to_names.names.get(to_name).copied();
    let is_folder = inode.head.kind == FileKind::Folder;
    if is_folder && is_below(asking, to_folder, entry.inode)? {
        return Err(Errno::Invalid);
    }
    if is_folder && folder != to_folder {
        // Its `..` becomes another.
        asking.who.ensure_may(&inode.head, WRITE)?;
    }
    match target {
        Some(_) if no_replace => Err(Errno::Exists),
        None if exchange => Err(Errno::NotFound),
        Some(target) if target.inode == entry.inode => Ok(Decision::tells(FileOutcome::Done)),
        Some(target) if exchange => swap(asking, move_, (entry, inode), target),
        target => replace(asking, move_, (entry, inode), target),
    }
}

/// Moves an inode to a name, and lets go of what had that.
fn replace(
    asking: &Asking<'_>,
    move_: &Move<'_>,
    (entry, inode): (Entry, &Inode),
    target: Option<Entry>,
) -> Decided {
    let ((folder, name), (to_folder, to_name)) = (move_.from, move_.to);
    let is_folder = inode.head.kind == FileKind::Folder;
    let mut draft = Draft::new(asking);
    if let Some(target) = target {
        let (_, replaced) = asking.taken(to_folder, to_name)?;
        match replaced.folder() {
            Some(_) if !is_folder => return Err(Errno::IsFolder),
            Some(names) if !names.names.is_empty() => return Err(Errno::NotEmpty),
            None if is_folder => return Err(Errno::NotFolder),
            Some(_) => {
                draft.head(target.inode)?.links = 0;
                draft.head(to_folder)?.links -= 1;
            }
            None => draft.head(target.inode)?.links -= 1,
        }
    }
    draft.push(Change::Name { folder, name: Rc::from(name), inode: None });
    draft.push(Change::Name { folder: to_folder, name: Rc::from(to_name), inode: Some(entry.inode) });
    settle(&mut draft, move_, entry.inode, is_folder)?;
    draft.touch(folder)?;
    draft.touch(to_folder)?;
    draft.head(entry.inode)?;
    Ok(draft.decide(Say::Outcome(FileOutcome::Done)))
}

/// Moves the link that a folder has to the one above it.
fn settle(draft: &mut Draft<'_>, move_: &Move<'_>, moved: u64, is_folder: bool) -> Result<(), Errno> {
    let (from, to) = (move_.from.0, move_.to.0);
    if !is_folder || from == to {
        return Ok(());
    }
    draft.push(Change::Above { folder: moved, above: to });
    draft.head(from)?.links -= 1;
    let above = draft.head(to)?;
    if above.links >= MAX_LINKS {
        return Err(Errno::TooManyLinks);
    }
    above.links += 1;
    Ok(())
}

/// Exchanges two names.
fn swap(asking: &Asking<'_>, move_: &Move<'_>, (entry, inode): (Entry, &Inode), target: Entry) -> Decided {
    let ((folder, name), (to_folder, to_name)) = (move_.from, move_.to);
    let (_, other) = asking.taken(to_folder, to_name)?;
    let other_is_folder = other.head.kind == FileKind::Folder;
    if other_is_folder && is_below(asking, folder, target.inode)? {
        return Err(Errno::Invalid);
    }
    let mut draft = Draft::new(asking);
    draft.push(Change::Name { folder, name: Rc::from(name), inode: Some(target.inode) });
    draft.push(Change::Name { folder: to_folder, name: Rc::from(to_name), inode: Some(entry.inode) });
    let back = Move { from: move_.to, to: move_.from };
    settle(&mut draft, move_, entry.inode, inode.head.kind == FileKind::Folder)?;
    settle(&mut draft, &back, target.inode, other_is_folder)?;
    draft.touch(folder)?;
    draft.touch(to_folder)?;
    draft.head(entry.inode)?;
    draft.head(target.inode)?;
    Ok(draft.decide(Say::Outcome(FileOutcome::Done)))
}
