//! Decisions about extended attributes. Attributes of Plasmon itself say how the bytes of files below a
//! folder are kept. Owns no state. Any thread.

use plasmon::wire::files::{Errno, FileOutcome, MAX_ENTRY_NAME_BYTES, MAX_XATTR_BYTES, PLACE_XATTR, Place};

use super::{Asking, Decided, Decision, Draft, Say};
use crate::files::access::{READ, WRITE};
use crate::files::change::Change;
use crate::files::state::{ENTRY_BYTES, Inode};

/// Maximum number of bytes of all names and values of an inode, so that a list of them fits a frame.
const MAX_ALL_BYTES: usize = 64 << 10;
/// Maximum number of bytes of all names of an inode.
const MAX_NAMES_BYTES: usize = 8 << 10;
/// Name of the attribute with the number of nodes that keep the bytes of a file.
const COPIES_NAME: &[u8] = b"user.plasmon.copies";
/// Prefix of the names of attributes that have a meaning for Plasmon.
const OWN_PREFIX: &[u8] = b"user.plasmon.";

/// Checks the name of an attribute.
fn ensure_name(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.len() > MAX_ENTRY_NAME_BYTES || name.contains(&0) {
        return Err(Errno::OutOfRange);
    }
    let spaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let is_known = spaces.iter().any(|space| name.len() > space.len() && name.starts_with(space));
    if is_known { Ok(()) } else { Err(Errno::NotSupported) }
}

/// Returns the inode, if the user may read or write this attribute of it.
fn permitted<'a>(asking: &Asking<'a>, number: u64, name: &[u8], wanted: u16) -> Result<&'a Inode, Errno> {
    let inode = asking.inode(number)?;
    ensure_name(name)?;
    if name.starts_with(b"user.") {
        asking.who.ensure_may(&inode.head, wanted)?;
    } else if wanted == WRITE || name.starts_with(b"trusted.") {
        asking.who.ensure_root()?;
    }
    Ok(inode)
}

/// Returns the value of an attribute.
pub(super) fn get(asking: &Asking<'_>, number: u64, name: &[u8]) -> Decided {
    let inode = permitted(asking, number, name, READ)?;
    if name == COPIES_NAME {
        let copies = asking.state.attributes(number).ok_or(Errno::Stale)?.copies;
        return Ok(Decision::tells(FileOutcome::Bytes(copies.to_string().into())));
    }
    if name == PLACE_XATTR.as_bytes() {
        let place = asking.state.attributes(number).ok_or(Errno::Stale)?.place;
        return Ok(Decision::tells(FileOutcome::Bytes(place.to_string().into())));
    }
    let value = inode.xattrs.as_ref().and_then(|xattrs| xattrs.get(name)).ok_or(Errno::NoXattr)?;
    Ok(Decision::tells(FileOutcome::Bytes(value.to_vec().into())))
}

/// Returns the names of all attributes of an inode.
pub(super) fn list(asking: &Asking<'_>, number: u64) -> Decided {
    let inode = asking.inode(number)?;
    let xattrs = inode.xattrs.iter().flat_map(|xattrs| xattrs.iter());
    let names: Vec<u8> = xattrs.flat_map(|(name, _)| name.iter().copied().chain([0])).collect();
    Ok(Decision::tells(FileOutcome::Bytes(names.into())))
}

/// Sets an attribute.
pub(super) fn set(
    asking: &Asking<'_>,
    number: u64,
    name: &[u8],
    value: &[u8],
    (create, replace): (bool, bool),
) -> Decided {
    let inode = permitted(asking, number, name, WRITE)?;
    if name.starts_with(OWN_PREFIX) {
        return set_own(asking, number, name, Some(value));
    }
    if value.len() > MAX_XATTR_BYTES {
        return Err(Errno::TooMany);
    }
    let there = inode.xattrs.as_ref().and_then(|xattrs| xattrs.get(name));
    if create && there.is_some() {
        return Err(Errno::Exists);
    }
    if replace && there.is_none() {
        return Err(Errno::NoXattr);
    }
    let others = inode.xattrs.iter().flat_map(|xattrs| xattrs.iter()).filter(|(other, _)| other[..] != *name);
    let (names, values) =
        others.fold((0, 0), |(names, values), (name, value)| (names + name.len() + 1, values + value.len()));
    let names = names + name.len() + 1;
    if names > MAX_NAMES_BYTES || names + values + value.len() > MAX_ALL_BYTES {
        return Err(Errno::Full);
    }
    asking.ensure_memory(ENTRY_BYTES + (name.len() + value.len()) as u64)?;
    let mut draft = Draft::new(asking);
    draft.head(number)?;
    draft.push(Change::Xattr { inode: number, name: name.into(), value: Some(value.into()) });
    Ok(draft.decide(Say::Outcome(FileOutcome::Done)))
}

/// Removes an attribute.
pub(super) fn remove(asking: &Asking<'_>, number: u64, name: &[u8]) -> Decided {
    let inode = permitted(asking, number, name, WRITE)?;
    if name.starts_with(OWN_PREFIX) {
        return set_own(asking, number, name, None);
    }
    if inode.xattrs.as_ref().and_then(|xattrs| xattrs.get(name)).is_none() {
        return Err(Errno::NoXattr);
    }
    let mut draft = Draft::new(asking);
    draft.head(number)?;
    draft.push(Change::Xattr { inode: number, name: name.into(), value: None });
    Ok(draft.decide(Say::Outcome(FileOutcome::Done)))
}

/// Sets or removes an attribute that has a meaning for Plasmon. Inodes that are made below a folder inherit
/// it.
fn set_own(asking: &Asking<'_>, number: u64, name: &[u8], value: Option<&[u8]>) -> Decided {
    if name == PLACE_XATTR.as_bytes() {
        return set_place(asking, number, value);
    }
    if name != COPIES_NAME {
        return Err(Errno::NotSupported);
    }
    let copies = match value {
        None => 0,
        Some(value) => {
            let text = std::str::from_utf8(value).ok().map(str::trim);
            text.and_then(|text| text.parse().ok()).filter(|copies| *copies > 0).ok_or(Errno::Invalid)?
        }
    };
    let mut draft = Draft::new(asking);
    draft.head(number)?.copies = copies;
    Ok(draft.decide(Say::Outcome(FileOutcome::Done)))
}

/// Sets where bytes are to lie that are written from now on.
fn set_place(asking: &Asking<'_>, number: u64, value: Option<&[u8]>) -> Decided {
    let value: Option<Box<[u8]>> = match value {
        None => None,
        Some(value) => {
            let place = std::str::from_utf8(value).ok().and_then(|text| text.parse::<Place>().ok());
            Some(place.ok_or(Errno::Invalid)?.to_string().into_bytes().into())
        }
    };
    let more = ENTRY_BYTES + PLACE_XATTR.len() as u64 + value.as_ref().map_or(0, |value| value.len() as u64);
    asking.ensure_memory(more)?;
    let mut draft = Draft::new(asking);
    draft.head(number)?;
    draft.push(Change::Xattr { inode: number, name: PLACE_XATTR.as_bytes().into(), value });
    Ok(draft.decide(Say::Outcome(FileOutcome::Done)))
}
