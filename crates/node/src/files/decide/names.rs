//! Decisions about names: looking them up, giving them to inodes, removing and listing them. Owns no state.
//! Any thread.

use std::rc::Rc;

use plasmon::wire::files::{Errno, FileKind, FileOutcome, MAX_ENTRY_NAME_BYTES, MAX_LINKS, PLACE_XATTR};

use super::data::Manner;
use super::{Asking, Decided, Decision, Draft, Say};
use crate::files::access::{READ, SEARCH, SET_GROUP, WRITE};
use crate::files::change::{Change, Made};
use crate::files::state::{ENTRY_BYTES, Entry, FOLDER_BYTES, Folder, Head, INODE_BYTES, Inode, Opens};

/// Checks a name.
///
/// # Errors
/// `NotFound` for an empty name, `NameTooLong`, `Invalid` for a name that no entry can have.
pub(super) fn ensure_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        [] => Err(Errno::NotFound),
        _ if name.len() > MAX_ENTRY_NAME_BYTES => Err(Errno::NameTooLong),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Errno::Invalid),
        _ => Ok(()),
    }
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

impl<'a> Asking<'a> {
    /// Returns a folder with its names. A folder that was removed has no names.
    ///
    /// # Errors
    /// `NotFound` if the folder is gone.
    pub(super) fn folder(&self, number: u64) -> Result<(&'a Inode, &'a Folder), Errno> {
        let inode = self.state.inode(number).ok_or(Errno::NotFound)?;
        Ok((inode, inode.folder().ok_or(Errno::NotFolder)?))
    }

    /// Returns the folder in which a new name may be made.
    ///
    /// # Errors
    /// `Exists` if the folder has the name.
    fn place_for(&self, folder: u64, name: &[u8]) -> Result<&'a Inode, Errno> {
        let (inode, names) = self.folder(folder)?;
        ensure_name(name)?;
        if is_dots(name) || names.names.contains_key(name) {
            self.who.ensure_may(&inode.head, SEARCH)?;
            return Err(Errno::Exists);
        }
        self.who.ensure_may(&inode.head, WRITE | SEARCH)?;
        // A removed folder that is still open takes no names.
        if inode.head.links == 0 { Err(Errno::NotFound) } else { Ok(inode) }
    }

    /// Returns the entry of a name that is to be removed, with its inode.
    pub(super) fn taken(&self, folder: u64, name: &[u8]) -> Result<(Entry, &'a Inode), Errno> {
        let (above, names) = self.folder(folder)?;
        ensure_name(name)?;
        if is_dots(name) {
            return Err(Errno::Invalid);
        }
        let Some(entry) = names.names.get(name).copied() else {
            self.who.ensure_may(&above.head, SEARCH)?;
            return Err(Errno::NotFound);
        };
        let inode = self.inode(entry.inode)?;
        self.who.ensure_may_take(&above.head, &inode.head)?;
        Ok((entry, inode))
    }

    /// Returns the attributes of a new inode in a folder.
    pub(super) fn new_head(&self, above: &Head, kind: FileKind, mode: u32) -> Result<Head, Errno> {
        let (terms, count) = (&self.state.terms, self.state.inodes.len() as u64);
        if terms.inodes > 0 && count >= terms.inodes {
            return Err(Errno::Full);
        }
        let tables = if kind == FileKind::Folder { FOLDER_BYTES } else { 0 };
        self.ensure_memory(INODE_BYTES + tables + ENTRY_BYTES)?;
        let inherits = above.mode & SET_GROUP != 0;
        let gid = if inherits { above.gid } else { self.who.gid };
        let mut mode = mode as u16 & 0o7777;
        if inherits && kind == FileKind::Folder {
            mode |= SET_GROUP;
        } else if mode & SET_GROUP != 0 && kind != FileKind::Folder {
            let may = self.who.uid == 0 || self.who.is_of(gid);
            mode = if may { mode } else { mode & !SET_GROUP };
        }
        Ok(Head {
            kind,
            mode,
            copies: above.copies,
            links: if kind == FileKind::Folder { 2 } else { 1 },
            uid: self.who.uid,
            gid,
            device: 0,
            size: 0,
            accessed: self.now,
            modified: self.now,
            changed: self.now,
            version: 1,
        })
    }

    /// Gives a new inode the place of its folder, so that its bytes lie there.
    fn inherit_place(&self, draft: &mut Draft<'_>, folder: u64, inode: u64) -> Result<(), Errno> {
        if let Some(value) = self.inode(folder)?.place_value() {
            self.ensure_memory(INODE_BYTES + 2 * ENTRY_BYTES + (PLACE_XATTR.len() + value.len()) as u64)?;
            let name = PLACE_XATTR.as_bytes().into();
            draft.push(Change::Xattr { inode, name, value: Some(value.into()) });
        }
        Ok(())
    }

    /// Makes an inode with a name.
    fn make(&'a self, folder: u64, name: &[u8], head: Head, made: Made) -> Result<(Draft<'a>, u64), Errno> {
        let mut draft = Draft::new(self);
        let inode = draft.next_inode();
        let is_folder = head.kind == FileKind::Folder;
        let has_bytes = matches!(head.kind, FileKind::File | FileKind::Folder);
        draft.push(Change::Make { head, above: folder, made });
        draft.push(Change::Name { folder, name: name.into(), inode: Some(inode) });
        if has_bytes {
            self.inherit_place(&mut draft, folder, inode)?;
        }
        let above = draft.touch(folder)?;
        if is_folder {
            if above.links >= MAX_LINKS {
                return Err(Errno::TooManyLinks);
            }
            above.links += 1;
        }
        Ok((draft, inode))
    }
}

/// Looks up a name.
pub(super) fn lookup(asking: &Asking<'_>, folder: u64, name: &[u8]) -> Decided {
    let (inode, names) = asking.folder(folder)?;
    asking.who.ensure_may(&inode.head, SEARCH)?;
    ensure_name(name)?;
    let found = match name {
        b"." => folder,
        b".." => inode.above,
        _ => names.names.get(name).ok_or(Errno::NotFound)?.inode,
    };
    Ok(Decision::only(Say::Entry(found)))
}

/// Makes a file and opens it, or opens the file that has the name.
pub(super) fn create(
    asking: &Asking<'_>,
    folder: u64,
    name: &[u8],
    mode: u32,
    exclusive: bool,
    maps: bool,
) -> Decided {
    let session = asking.number;
    if name.is_empty() {
        return create_unnamed(asking, folder, mode, maps);
    }
    let above = match asking.place_for(folder, name) {
        Err(Errno::Exists) if !exclusive && !is_dots(name) => {
            let entry = asking.state.entry(folder, name).ok_or(Errno::NotFound)?;
            let inode = asking.inode(entry.inode)?;
            return match inode.head.kind {
                FileKind::Folder => Err(Errno::IsFolder),
                FileKind::Symlink => Err(Errno::IsLink),
                _ => {
                    let manner = Manner { read: false, write: true, truncate: false, maps };
                    super::data::open(asking, entry.inode, &manner)
                }
            };
        }
        place => place?,
    };
    asking.ensure_opens()?;
    let head = asking.new_head(&above.head, FileKind::File, mode)?;
    let (mut draft, inode) = asking.make(folder, name, head, Made::File)?;
    let opens = Opens { count: 1, writes: true, maps: maps.into() };
    draft.push(Change::Open { inode, session, opens });
    Ok(draft.decide(Say::Opened { inode, created: true, maps }))
}

/// Makes a file without a name.
fn create_unnamed(asking: &Asking<'_>, folder: u64, mode: u32, maps: bool) -> Decided {
    let (above, _) = asking.folder(folder)?;
    asking.who.ensure_may(&above.head, WRITE | SEARCH)?;
    asking.ensure_opens()?;
    let head = Head { links: 0, ..asking.new_head(&above.head, FileKind::File, mode)? };
    let mut draft = Draft::new(asking);
    let inode = draft.next_inode();
    draft.push(Change::Make { head, above: 0, made: Made::File });
    asking.inherit_place(&mut draft, folder, inode)?;
    let opens = Opens { count: 1, writes: true, maps: maps.into() };
    draft.push(Change::Open { inode, session: asking.number, opens });
    Ok(draft.decide(Say::Opened { inode, created: true, maps }))
}

/// Makes a folder.
pub(super) fn make_folder(asking: &Asking<'_>, folder: u64, name: &[u8], mode: u32) -> Decided {
    let above = asking.place_for(folder, name)?;
    let head = asking.new_head(&above.head, FileKind::Folder, mode)?;
    let (draft, inode) = asking.make(folder, name, head, Made::Folder)?;
    Ok(draft.decide(Say::Entry(inode)))
}

/// Makes a file, pipe, socket or device.
pub(super) fn make_node(asking: &Asking<'_>, folder: u64, name: &[u8], mode: u32, device: u32) -> Decided {
    let above = asking.place_for(folder, name)?;
    let kind = FileKind::of_mode(mode).ok_or(Errno::Invalid)?;
    let made = match kind {
        FileKind::File => Made::File,
        FileKind::Folder | FileKind::Symlink => return Err(Errno::NotPermitted),
        FileKind::Character | FileKind::Block => {
            asking.who.ensure_root()?;
            Made::Other
        }
        FileKind::Pipe | FileKind::Socket => Made::Other,
    };
    let device = if matches!(kind, FileKind::Character | FileKind::Block) { device } else { 0 };
    let head = Head { device, ..asking.new_head(&above.head, kind, mode)? };
    let (draft, inode) = asking.make(folder, name, head, made)?;
    Ok(draft.decide(Say::Entry(inode)))
}

/// Makes a symbolic link.
pub(super) fn make_symlink(asking: &Asking<'_>, folder: u64, name: &[u8], target: &[u8]) -> Decided {
    let above = asking.place_for(folder, name)?;
    if target.is_empty() {
        return Err(Errno::NotFound);
    }
    asking.ensure_memory(INODE_BYTES + ENTRY_BYTES + target.len() as u64)?;
    let head = asking.new_head(&above.head, FileKind::Symlink, 0o777)?;
    let (draft, inode) = asking.make(folder, name, head, Made::Target(target.into()))?;
    Ok(draft.decide(Say::Entry(inode)))
}

/// Returns the target of a symbolic link.
pub(super) fn read_link(asking: &Asking<'_>, number: u64) -> Decided {
    match &asking.inode(number)?.body {
        crate::files::state::Body::Target(target) => {
            Ok(Decision::tells(FileOutcome::Bytes(target.to_vec().into())))
        }
        _ => Err(Errno::Invalid),
    }
}

/// Gives an inode another name.
pub(super) fn link(asking: &Asking<'_>, number: u64, folder: u64, name: &[u8]) -> Decided {
    let inode = asking.inode(number)?;
    asking.place_for(folder, name)?;
    asking.ensure_memory(ENTRY_BYTES)?;
    if inode.head.kind == FileKind::Folder {
        return Err(Errno::NotPermitted);
    }
    // An inode without a name gets one only from a session that has the inode open.
    if inode.head.links == 0 && !asking.session.opens.contains_key(&number) {
        return Err(Errno::NotFound);
    }
    if inode.head.links >= MAX_LINKS {
        return Err(Errno::TooManyLinks);
    }
    let mut draft = Draft::new(asking);
    draft.push(Change::Name { folder, name: name.into(), inode: Some(number) });
    if inode.head.links == 0 || inode.above == 0 {
        draft.push(Change::Above { inode: number, above: folder });
    }
    draft.head(number)?.links += 1;
    draft.touch(folder)?;
    Ok(draft.decide(Say::Entry(number)))
}

/// Removes a name of an inode that is no folder.
pub(super) fn unlink(asking: &Asking<'_>, folder: u64, name: &[u8]) -> Decided {
    let (entry, inode) = asking.taken(folder, name)?;
    if inode.head.kind == FileKind::Folder {
        return Err(Errno::IsFolder);
    }
    let mut draft = Draft::new(asking);
    draft.push(Change::Name { folder, name: Rc::from(name), inode: None });
    forget_place(&mut draft, entry.inode, inode, folder);
    draft.touch(folder)?;
    draft.head(entry.inode)?.links -= 1;
    Ok(draft.decide(Say::Outcome(FileOutcome::Done)))
}

/// Notes that the folder of an inode is unknown, if the inode has further names and loses the name in that
/// folder.
pub(super) fn forget_place(draft: &mut Draft<'_>, number: u64, inode: &Inode, folder: u64) {
    if inode.above == folder && inode.head.links > 1 {
        draft.push(Change::Above { inode: number, above: 0 });
    }
}

/// Removes an empty folder.
pub(super) fn remove_folder(asking: &Asking<'_>, folder: u64, name: &[u8]) -> Decided {
    if name == b".." {
        return Err(Errno::NotEmpty);
    }
    let (entry, inode) = asking.taken(folder, name)?;
    let names = inode.folder().ok_or(Errno::NotFolder)?;
    if !names.names.is_empty() {
        return Err(Errno::NotEmpty);
    }
    let mut draft = Draft::new(asking);
    draft.push(Change::Name { folder, name: Rc::from(name), inode: None });
    draft.touch(folder)?.links -= 1;
    draft.head(entry.inode)?.links = 0;
    Ok(draft.decide(Say::Outcome(FileOutcome::Done)))
}

/// Lists the entries of a folder behind a cookie, up to the last one that the folder had when the list began.
/// So the list ends, however many names are made meanwhile. A folder that is gone has no entries.
pub(super) fn list(
    asking: &Asking<'_>,
    folder: u64,
    (after, upto): (u64, Option<u64>),
    most: u32,
) -> Decided {
    let Some(inode) = asking.state.inode(folder) else {
        let none = FileOutcome::Entries { entries: Vec::new(), end: true, above: 0, last: 0 };
        return Ok(Decision::tells(none));
    };
    let names = inode.folder().ok_or(Errno::NotFolder)?;
    asking.who.ensure_may(&inode.head, READ)?;
    let last = upto.unwrap_or(names.last_cookie);
    let (entries, end) = asking.state.entries(folder, (after, last), most).ok_or(Errno::Io)?;
    Ok(Decision::tells(FileOutcome::Entries { entries, end, above: inode.above, last }))
}

/// Looks up a name, and lists the entries behind it.
pub(super) fn look_ahead(asking: &Asking<'_>, folder: u64, name: &[u8], most: u32) -> Decided {
    let (inode, names) = asking.folder(folder)?;
    asking.who.ensure_may(&inode.head, READ | SEARCH)?;
    ensure_name(name)?;
    let first = names.names.get(name).ok_or(Errno::NotFound)?;
    let last = names.last_cookie;
    let (entries, end) = asking.state.entries(folder, (first.cookie - 1, last), most).ok_or(Errno::Io)?;
    Ok(Decision::tells(FileOutcome::Entries { entries, end, above: inode.above, last }))
}

/// Lists inodes without a name behind a number. Only root may: no folder says who may know these inodes.
pub(super) fn list_unnamed(asking: &Asking<'_>, after: u64) -> Decided {
    asking.who.ensure_root()?;
    let (entries, end) = asking.state.unnamed(after);
    Ok(Decision::tells(FileOutcome::Entries { entries, end, above: 0, last: 0 }))
}
