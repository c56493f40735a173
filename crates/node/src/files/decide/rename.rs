//! Decisions about renaming: to a free name, over another inode, or in exchange with it. Owns no state. Any
//! thread.

use std::rc::Rc;

use plasmon::wire::files::{Errno, FileKind, FileOutcome, MAX_LINKS};

use super::names::{ensure_name, forget_place};
use super::{Asking, Decided, Decision, Draft, Say};
use crate::files::access::{SEARCH, WRITE};
use crate::files::change::{Change, Made};
use crate::files::state::{Entry, Inode};

/// The old and the new name of a rename, each with its folder.
pub(super) struct Move<'a> {
    pub(super) from: (u64, &'a [u8]),
    pub(super) to: (u64, &'a [u8]),
    /// Whether a device of the number 0 takes the old name.
    pub(super) whiteout: bool,
}

/// Whether `folder` is `top` itself or lies below it.
fn is_below(asking: &Asking<'_>, folder: u64, top: u64) -> Result<bool, Errno> {
    let mut at = folder;
    loop {
        if at == top {
            return Ok(true);
        }
        let (inode, _) = asking.folder(at)?;
        if inode.above == at {
            return Ok(false);
        }
        at = inode.above;
    }
}

/// Gives an inode another name.
pub(super) fn rename(asking: &Asking<'_>, move_: &Move<'_>, no_replace: bool, exchange: bool) -> Decided {
    let ((folder, name), (to_folder, to_name)) = (move_.from, move_.to);
    if exchange && (no_replace || move_.whiteout) {
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
        // The entry `..` of a folder that moves changes, so the user has to be able to write the folder.
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

/// Moves an inode to a name. An inode that had the name loses it.
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
            None => {
                forget_place(&mut draft, target.inode, replaced, to_folder);
                draft.head(target.inode)?.links -= 1;
            }
        }
    }
    let left = if move_.whiteout { Some(make_whiteout(&mut draft, folder)?) } else { None };
    draft.push(Change::Name { folder, name: Rc::from(name), inode: left });
    draft.push(Change::Name { folder: to_folder, name: Rc::from(to_name), inode: Some(entry.inode) });
    settle(&mut draft, move_, entry.inode, inode)?;
    draft.touch(folder)?;
    draft.touch(to_folder)?;
    draft.head(entry.inode)?;
    Ok(draft.decide(Say::Outcome(FileOutcome::Done)))
}

/// Makes the device by which an overlay notes that a name is gone. It stands for no device, so everybody may
/// make it. Returns its inode.
fn make_whiteout(draft: &mut Draft<'_>, folder: u64) -> Result<u64, Errno> {
    let (above, _) = draft.asking.folder(folder)?;
    let head = draft.asking.new_head(&above.head, FileKind::Character, 0)?;
    let inode = draft.next_inode();
    draft.push(Change::Make { head, above: folder, made: Made::Other });
    Ok(inode)
}

/// Notes the new folder of an inode that was moved. If the inode is a folder itself, its link moves from the
/// former folder to the new one.
fn settle(draft: &mut Draft<'_>, move_: &Move<'_>, moved: u64, inode: &Inode) -> Result<(), Errno> {
    let (from, to) = (move_.from.0, move_.to.0);
    if from == to {
        return Ok(());
    }
    let is_folder = inode.head.kind == FileKind::Folder;
    // The known folder of a file may be one in which it has another name.
    if is_folder || inode.above == from || inode.above == 0 {
        draft.push(Change::Above { inode: moved, above: to });
    }
    if !is_folder {
        return Ok(());
    }
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
    let back = Move { from: move_.to, to: move_.from, whiteout: false };
    settle(&mut draft, move_, entry.inode, inode)?;
    settle(&mut draft, &back, target.inode, other)?;
    draft.touch(folder)?;
    draft.touch(to_folder)?;
    draft.head(entry.inode)?;
    draft.head(target.inode)?;
    Ok(draft.decide(Say::Outcome(FileOutcome::Done)))
}
