//! Operations on names and attributes, by the numbers of inodes.
//!
//! Owns no state. Any thread. Most calls here are one operation of the home. Invariant: attributes of a file
//! include what this session has written, committed or not.

use bytes::Bytes;

use super::session::unexpected;
use super::volume::Shared;
use super::watch::Keep;
use super::{Error, Result, Volume};
use crate::ErrorKind;
use crate::client::find_place;
use crate::wire::files::{
    Actor, Attributes, Errno, FileOperation, FileOutcome, Listed, MAX_SENT_NAME_BYTES, MAX_TARGET_BYTES,
    MAX_XATTR_BYTES, PLACE_XATTR, SetAttributes, VolumeUsage,
};

/// Attributes of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Attributes of the inode.
    pub attributes: Attributes,
    /// Time for which the attributes, and the name that led to them, may be kept without asking again.
    pub keep: Keep,
}

/// Result of looking a name up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looked {
    /// Attributes of the inode. None if there is no such name.
    pub attributes: Option<Attributes>,
    /// Time for which the result may be kept without asking again.
    pub keep: Keep,
}

/// Part of the entries of a folder.
#[derive(Debug, Clone)]
pub struct Page {
    /// Entries, in an order that does not change.
    pub entries: Vec<Listed>,
    /// Whether the page is the last one.
    pub end: bool,
    /// Inode of the folder above. 0 for a folder that was removed.
    pub above: u64,
    /// Largest cookie of the list, with which its further pages are asked for.
    pub last: u64,
    /// Time for which names and attributes may be kept without asking again.
    pub keep: Keep,
}

/// Manner in which an entry is renamed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RenameManner {
    /// Whether the call fails if the new name is taken.
    pub no_replace: bool,
    /// Whether the two names are exchanged.
    pub exchange: bool,
    /// Whether a device of the number 0 takes the old name, by which an overlay notes that a name is gone.
    pub whiteout: bool,
}

/// Returns a name as it is sent. A name that is too long for an operation is too long for a folder as well.
pub(super) fn sent(name: &[u8]) -> Result<Bytes> {
    match name.len() {
        0..=MAX_SENT_NAME_BYTES => Ok(Bytes::copy_from_slice(name)),
        _ => Err(Error::new(Errno::NameTooLong)),
    }
}

/// Returns the error for a text that stands for no place.
fn no_place(error: &crate::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::Invalid => Error::because(Errno::Invalid, error.message()),
        _ => Error::of_client(error),
    }
}

impl Shared {
    /// Returns how full the volume is, including waiting bytes of this session, and how much a user may still
    /// write.
    pub(super) fn usage(&self, actor: &Actor) -> Result<VolumeUsage> {
        self.tell_all_closes();
        // The home does not count bytes that wait for a commit here.
        let waiting = self.credits.promised();
        let FileOutcome::Usage(told) = self.ask(actor, FileOperation::Usage)?.0 else {
            return Err(unexpected());
        };
        let waiting = waiting.min(told.free);
        Ok(VolumeUsage {
            used: told.used + waiting,
            free: told.free - waiting,
            available: told.available.saturating_sub(waiting),
            ..told
        })
    }
}

impl Volume {
    /// Looks up a name in a folder.
    ///
    /// # Errors
    /// `NotFound` if there is no such name, and further errors of Linux.
    pub fn lookup(&self, actor: &Actor, folder: u64, name: &[u8]) -> Result<Entry> {
        self.entry(actor, FileOperation::Lookup { folder, name: sent(name)? })
    }

    /// Looks up a name that may not be in the folder.
    ///
    /// # Errors
    /// As [`Volume::lookup`], but not `NotFound`.
    pub fn look(&self, actor: &Actor, folder: u64, name: &[u8]) -> Result<Looked> {
        if self.knows_folders() {
            if self.0.folders.lacks(&self.current(), folder, name) {
                // The kernel keeps nothing: the home does not know of this answer, and would not revoke it.
                return Ok(Looked { attributes: None, keep: Keep::none() });
            }
            if let Some(looked) = self.look_ahead(actor, folder, name)? {
                return Ok(looked);
            }
        }
        let (outcome, keep) =
            self.0.ask_whole(actor, &FileOperation::Lookup { folder, name: sent(name)? })?;
        match outcome {
            FileOutcome::Failed(Errno::NotFound) => Ok(Looked { attributes: None, keep }),
            FileOutcome::Failed(errno) => Err(errno.into()),
            outcome => {
                self.0.session.ahead().note_found(folder);
                let Entry { attributes, keep } = self.entry_of((outcome, keep))?;
                Ok(Looked { attributes: Some(attributes), keep })
            }
        }
    }

    /// Looks up a name among the entries that came in a page with another name, or asks for a page that
    /// begins with the name. `None` if the name is to be asked for alone.
    fn look_ahead(&self, actor: &Actor, folder: u64, name: &[u8]) -> Result<Option<Looked>> {
        let ahead = self.0.session.ahead();
        let taken = ahead.take(&self.current(), folder, name);
        if let Some((mut attributes, keep)) = taken {
            self.0.overlay(&mut attributes)?;
            return Ok(Some(Looked { attributes: Some(attributes), keep }));
        }
        let Some(wanted) = ahead.plan(folder) else { return Ok(None) };
        let asked = FileOperation::LookAhead { folder, name: sent(name)?, most: wanted.most };
        let (outcome, keep) = self.0.ask_whole(actor, &asked)?;
        let FileOutcome::Entries { entries, .. } = outcome else {
            ahead.note_missing(folder);
            let is_missing = outcome == FileOutcome::Failed(Errno::NotFound);
            return Ok(is_missing.then_some(Looked { attributes: None, keep }));
        };
        let mut attributes = entries.first().ok_or_else(unexpected)?.attributes.clone();
        ahead.fill(folder, wanted, entries, keep);
        self.0.overlay(&mut attributes)?;
        Ok(Some(Looked { attributes: Some(attributes), keep }))
    }

    /// Returns the attributes of an inode.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn attributes(&self, actor: &Actor, inode: u64) -> Result<Entry> {
        if self.knows_folders()
            && let Some((attributes, keep)) = self.0.folders.attributes(&self.current(), inode)
        {
            return Ok(Entry { attributes, keep });
        }
        self.entry(actor, FileOperation::GetAttributes { inode })
    }

    /// Sets attributes of an inode. Bytes that were written before are committed first.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn set_attributes(&self, actor: &Actor, inode: u64, set: &SetAttributes) -> Result<Entry> {
        let operation = FileOperation::SetAttributes { inode, set: set.clone() };
        if set.size == Some(0) {
            return self.entry_of(self.0.ask_to_cut(actor, inode, operation)?);
        }
        self.0.settle(inode)?;
        self.entry(actor, operation)
    }

    /// Makes a folder.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn make_folder(&self, actor: &Actor, folder: u64, name: &[u8], mode: u32) -> Result<Entry> {
        self.entry(actor, FileOperation::MakeFolder { folder, name: sent(name)?, mode })
    }

    /// Makes a file, pipe, socket or device without opening it.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn make_node(
        &self,
        actor: &Actor,
        folder: u64,
        name: &[u8],
        mode: u32,
        device: u32,
    ) -> Result<Entry> {
        self.entry(actor, FileOperation::MakeNode { folder, name: sent(name)?, mode, device })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn make_symlink(&self, actor: &Actor, folder: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        if target.len() > MAX_TARGET_BYTES {
            return Err(Error::new(Errno::NameTooLong));
        }
        let target = Bytes::copy_from_slice(target);
        self.entry(actor, FileOperation::MakeSymlink { folder, name: sent(name)?, target })
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn read_link(&self, actor: &Actor, inode: u64) -> Result<Bytes> {
        self.bytes(actor, FileOperation::ReadLink { inode })
    }

    /// Gives an inode one more name.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn link(&self, actor: &Actor, inode: u64, folder: u64, name: &[u8]) -> Result<Entry> {
        self.entry(actor, FileOperation::Link { inode, folder, name: sent(name)? })
    }

    /// Takes a name from an inode that is no folder.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn unlink(&self, actor: &Actor, folder: u64, name: &[u8]) -> Result<()> {
        self.done(actor, FileOperation::Unlink { folder, name: sent(name)? })
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn remove_folder(&self, actor: &Actor, folder: u64, name: &[u8]) -> Result<()> {
        self.done(actor, FileOperation::RemoveFolder { folder, name: sent(name)? })
    }

    /// Renames an entry of a folder in one step.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn rename_entry(
        &self,
        actor: &Actor,
        (folder, name): (u64, &[u8]),
        (to_folder, to_name): (u64, &[u8]),
        manner: RenameManner,
    ) -> Result<()> {
        let (name, to_name) = (sent(name)?, sent(to_name)?);
        let RenameManner { no_replace, exchange, whiteout } = manner;
        let rename =
            FileOperation::Rename { folder, name, to_folder, to_name, no_replace, exchange, whiteout };
        self.done(actor, rename)
    }

    /// Returns at most `most` entries of a folder behind a cookie, `after`. `.` and `..` are not among them.
    /// `upto` is [`Page::last`] of the first page of the list, or None for the first page: names that are
    /// made meanwhile are not listed, so that the list ends.
    ///
    /// # Errors
    /// As [`Volume::lookup`], but a folder that was removed has no entries.
    pub fn list(
        &self,
        actor: &Actor,
        folder: u64,
        (after, upto): (u64, Option<u64>),
        most: u32,
    ) -> Result<Page> {
        let (outcome, keep) = self.0.ask(actor, FileOperation::List { folder, after, upto, most })?;
        let FileOutcome::Entries { mut entries, end, above, last } = outcome else {
            return Err(unexpected());
        };
        entries.iter_mut().try_for_each(|entry| self.0.overlay(&mut entry.attributes))?;
        Ok(Page { entries, end, above, last, keep })
    }

    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn xattr(&self, actor: &Actor, inode: u64, name: &[u8]) -> Result<Bytes> {
        self.bytes(actor, FileOperation::GetXattr { inode, name: sent(name)? })
    }

    /// Returns the names of extended attributes, each followed by a zero.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn xattrs(&self, actor: &Actor, inode: u64) -> Result<Bytes> {
        self.bytes(actor, FileOperation::ListXattrs { inode })
    }

    /// Sets an extended attribute. With `create` the attribute must not exist, with `replace` it must. The
    /// nodes of [`PLACE_XATTR`] may be named as in [`find_place`].
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn set_xattr(
        &self,
        actor: &Actor,
        inode: u64,
        name: &[u8],
        value: &[u8],
        (create, replace): (bool, bool),
    ) -> Result<()> {
        if value.len() > MAX_XATTR_BYTES {
            return Err(Error::new(Errno::TooMany));
        }
        // The home knows nodes by their ids alone.
        let value = match std::str::from_utf8(value) {
            Ok(place) if name == PLACE_XATTR.as_bytes() => {
                let found = find_place(&self.0.session.attached().client, place.trim());
                Bytes::from(found.map_err(|error| no_place(&error))?.to_string())
            }
            _ => Bytes::copy_from_slice(value),
        };
        self.done(actor, FileOperation::SetXattr { inode, name: sent(name)?, value, create, replace })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn remove_xattr(&self, actor: &Actor, inode: u64, name: &[u8]) -> Result<()> {
        self.done(actor, FileOperation::RemoveXattr { inode, name: sent(name)? })
    }

    /// Returns how full the volume is, and how much a user may still write.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn usage(&self, actor: &Actor) -> Result<VolumeUsage> {
        self.0.usage(actor)
    }

    /// Makes a hole in a file. With `extend` a file that ends before the end of the hole becomes longer.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn punch(&self, actor: &Actor, inode: u64, offset: u64, len: u64, extend: bool) -> Result<()> {
        self.0.settle(inode)?;
        self.entry(actor, FileOperation::Punch { inode, offset, len, extend }).map(drop)
    }

    /// Copies a range of a file to another file, or to another place in the file, without moving bytes.
    /// Returns the number of bytes.
    ///
    /// # Errors
    /// `OtherVolume` if the bytes have to be read and written instead. Otherwise as [`Volume::lookup`].
    pub fn clone_range(
        &self,
        actor: &Actor,
        (source, source_offset): (u64, u64),
        (inode, offset): (u64, u64),
        len: u64,
    ) -> Result<u64> {
        self.0.settle(source)?;
        self.0.settle(inode)?;
        let operation = FileOperation::Clone { source, source_offset, inode, offset, len };
        match self.0.ask(actor, operation)?.0 {
            FileOutcome::Cloned { len, mut attributes } => {
                self.0.overlay(&mut attributes)?;
                Ok(len)
            }
            FileOutcome::NoRoomInline => {
                let text = "so many small parts cannot be copied by reference: read and write the bytes";
                Err(Error::because(Errno::OtherVolume, text))
            }
            _ => Err(unexpected()),
        }
    }

    /// Whether questions about folders may be answered without asking the home.
    fn knows_folders(&self) -> bool {
        self.is_trusted() && self.0.session.keeps()
    }

    pub(super) fn entry(&self, actor: &Actor, operation: FileOperation) -> Result<Entry> {
        self.entry_of(self.0.ask(actor, operation)?)
    }

    pub(super) fn entry_of(&self, (outcome, keep): (FileOutcome, Keep)) -> Result<Entry> {
        let FileOutcome::Entry(mut attributes) = outcome else { return Err(unexpected()) };
        self.0.overlay(&mut attributes)?;
        Ok(Entry { attributes, keep })
    }

    fn done(&self, actor: &Actor, operation: FileOperation) -> Result<()> {
        match self.0.ask(actor, operation)?.0 {
            FileOutcome::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    fn bytes(&self, actor: &Actor, operation: FileOperation) -> Result<Bytes> {
        match self.0.ask(actor, operation)?.0 {
            FileOutcome::Bytes(bytes) => Ok(bytes),
            _ => Err(unexpected()),
        }
    }
}
