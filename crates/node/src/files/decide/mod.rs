//! Deciding: what an operation changes, and what its session is told. Owns no state, and only reads that of
//! the volume. Any thread.
//!
//! Invariants: an operation that fails changes nothing. What is told of inodes is read after the changes were
//! applied ([`Say`]).

mod attributes;
mod credit;
mod data;
mod locks;
mod names;
mod rename;
#[cfg(test)]
mod tests;
mod xattrs;

use std::collections::BTreeMap;

use plasmon::wire::files::{
    Actor, Errno, Extended, FileOperation, FileOutcome, Listed, PAGE_BYTES, Section, Source, Time, encoded,
};

use self::credit::Covers;
pub(super) use self::data::{FEW_OPENS, MAX_OPENS};
use super::access::Who;
use super::change::Change;
use super::lingering::Lingering;
use super::map::{Map, Piece, Place};
use super::state::{Body, FileSession, Head, Inode, State};

/// Limits of a volume beside its terms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Number of bytes of memory that the state may take.
    pub(super) memory: u64,
    /// Number of further bytes for which nodes have room, whatever the terms permit.
    pub(super) free: u64,
}

/// An operation, with the user and the session that ask for it, and the time.
pub(super) struct Asking<'a> {
    pub(super) state: &'a State,
    pub(super) number: u32,
    pub(super) session: &'a FileSession,
    pub(super) who: Who<'a>,
    pub(super) now: Time,
    pub(super) limits: Limits,
    pub(super) lingering: &'a Lingering,
    /// Whether other sessions have yet to tell this new home what they have open.
    pub(super) are_untold: bool,
}

/// Answer to an operation. It is completed after the changes were applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Say {
    Outcome(FileOutcome),
    /// The attributes of an inode.
    Entry(u64),
    Opened {
        inode: u64,
        created: bool,
        /// Whether the open has the right to map the file.
        maps: bool,
    },
    Map {
        inode: u64,
        from: u64,
    },
    Appended {
        inode: u64,
        offset: u64,
    },
    Cloned {
        inode: u64,
        len: u64,
    },
}

/// Changes of an operation, with its answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) changes: Vec<Change>,
    pub(super) say: Say,
}

impl Decision {
    /// Makes a decision that changes nothing.
    fn only(say: Say) -> Self {
        Self { changes: Vec::new(), say }
    }

    fn tells(outcome: FileOutcome) -> Self {
        Self::only(Say::Outcome(outcome))
    }
}

/// Decision, or the reason why nothing is done.
pub(super) type Decided = Result<Decision, Errno>;

/// Changes that are being put together, with the attributes that inodes will have.
struct Draft<'a> {
    asking: &'a Asking<'a>,
    heads: BTreeMap<u64, Head>,
    changes: Vec<Change>,
}

impl<'a> Draft<'a> {
    fn new(asking: &'a Asking<'a>) -> Self {
        Self { asking, heads: BTreeMap::new(), changes: Vec::new() }
    }

    /// Returns the attributes that an inode will have, to change them. Version and time of change are new.
    fn head(&mut self, number: u64) -> Result<&mut Head, Errno> {
        let before = self.asking.inode(number)?.head;
        let now = self.asking.now;
        Ok(self.heads.entry(number).or_insert(Head { version: before.version + 1, changed: now, ..before }))
    }

    /// Returns the attributes that an inode will have, to change them, after a change of its contents.
    fn touch(&mut self, number: u64) -> Result<&mut Head, Errno> {
        let now = self.asking.now;
        let head = self.head(number)?;
        head.modified = now;
        Ok(head)
    }

    fn push(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Returns the number of the inode that the first change [`Change::Make`] makes.
    fn next_inode(&self) -> u64 {
        self.asking.state.last_inode + 1
    }

    fn decide(mut self, say: Say) -> Decision {
        let heads = self.heads.into_iter().map(|(inode, head)| Change::Head { inode, head });
        self.changes.extend(heads);
        Decision { changes: self.changes, say }
    }
}

impl<'a> Asking<'a> {
    /// Returns an inode that exists. Numbers are never used again, so one that is not there was removed.
    fn inode(&self, number: u64) -> Result<&'a Inode, Errno> {
        self.state.inode(number).ok_or(Errno::Stale)
    }

    /// Returns a file with its map.
    fn file(&self, number: u64) -> Result<(&'a Inode, &'a Map), Errno> {
        let inode = self.inode(number)?;
        match &inode.body {
            Body::File(map) => Ok((inode, map)),
            Body::Folder(_) => Err(Errno::IsFolder),
            Body::Target(_) | Body::Nothing => Err(Errno::Invalid),
        }
    }

    /// Refuses changes if the session is read-only.
    fn ensure_writes(&self) -> Result<(), Errno> {
        if self.session.read_only { Err(Errno::ReadOnly) } else { Ok(()) }
    }

    /// Refuses changes that need more memory for names, attributes and maps than there is.
    fn ensure_memory(&self, more: u64) -> Result<(), Errno> {
        let fits = self.state.memory.saturating_add(more) <= self.limits.memory;
        if fits { Ok(()) } else { Err(Errno::Full) }
    }
}

/// Decides about an operation.
pub(super) fn decide(asking: &Asking<'_>, operation: FileOperation) -> Decided {
    use FileOperation as O;
    let only_reads = match &operation {
        O::Open { write, truncate, .. } => !write && !truncate,
        O::Closed { .. } | O::Lock { .. } | O::Discard { .. } => true,
        other => !other.changes(),
    };
    if !only_reads {
        asking.ensure_writes()?;
    }
    match operation {
        O::Lookup { folder, name } => names::lookup(asking, folder, &name),
        O::GetAttributes { inode } => attributes::get(asking, inode),
        O::SetAttributes { inode, set } => attributes::set(asking, inode, &set),
        O::Create { folder, name, mode, exclusive, maps } => {
            names::create(asking, folder, &name, mode, exclusive, maps)
        }
        O::MakeFolder { folder, name, mode } => names::make_folder(asking, folder, &name, mode),
        O::MakeNode { folder, name, mode, device } => names::make_node(asking, folder, &name, mode, device),
        O::MakeSymlink { folder, name, target } => names::make_symlink(asking, folder, &name, &target),
        O::ReadLink { inode } => names::read_link(asking, inode),
        O::Link { inode, folder, name } => names::link(asking, inode, folder, &name),
        O::Unlink { folder, name } => names::unlink(asking, folder, &name),
        O::RemoveFolder { folder, name } => names::remove_folder(asking, folder, &name),
        O::Rename { folder, name, to_folder, to_name, no_replace, exchange, whiteout } => {
            let move_ = rename::Move { from: (folder, &name), to: (to_folder, &to_name), whiteout };
            rename::rename(asking, &move_, no_replace, exchange)
        }
        O::LookAhead { folder, name, most } => names::look_ahead(asking, folder, &name, most),
        O::List { folder, after, upto, most } => names::list(asking, folder, (after, upto), most),
        O::ListUnnamed { after } => names::list_unnamed(asking, after),
        O::Open { inode, read, write, truncate, maps } => {
            data::open(asking, inode, &data::Manner { read, write, truncate, maps })
        }
        O::Closed { opens } => data::close(asking, opens),
        O::Discard { below } => Ok(data::discard(asking, below)),
        O::Map { inode, from } => data::map(asking, inode, from),
        O::Commit { inode, sections, modified, drops_privileges, credit, credit_of } => {
            let credit = Covers { of: credit_of, bytes: credit };
            let put = data::Put { sections: &sections, modified, drops_privileges, credit };
            data::commit(asking, inode, &put)
        }
        O::Append { inode, written, drops_privileges, credit, credit_of } => {
            let credit = Covers { of: credit_of, bytes: credit };
            data::append(asking, inode, written, drops_privileges, credit)
        }
        O::Clone { source, source_offset, inode, offset, len } => {
            data::clone(asking, (source, source_offset), (inode, offset), len)
        }
        O::Punch { inode, offset, len, extend } => data::punch(asking, inode, offset, len, extend),
        O::GetXattr { inode, name } => xattrs::get(asking, inode, &name),
        O::SetXattr { inode, name, value, create, replace } => {
            xattrs::set(asking, inode, &name, &value, (create, replace))
        }
        O::ListXattrs { inode } => xattrs::list(asking, inode),
        O::RemoveXattr { inode, name } => xattrs::remove(asking, inode, &name),
        O::Lock { inode, range, .. } => locks::lock(asking, inode, range),
        O::TestLock { inode, range } => locks::test(asking, inode, range),
        O::Usage => attributes::usage(asking),
        O::Reserve { inode, bytes, patient } => credit::reserve(asking, inode, bytes, patient),
        O::GiveBack { uid, bytes } => Ok(credit::give_back(asking, uid, bytes)),
        O::MakeRoom => credit::make_room(asking),
        O::Tidy { inode, replaces, section } => data::tidy(asking, inode, replaces, &section),
    }
}

/// Returns who acts: the user that a trusted session names, else the user of the session.
pub(super) fn who<'a>(session: &'a FileSession, actor: &'a Actor) -> Who<'a> {
    if session.trusted {
        Who { uid: actor.uid, gid: actor.gid, groups: &actor.groups, checked: session.checked }
    } else {
        Who { uid: session.uid, gid: session.gid, groups: &session.groups, checked: true }
    }
}

impl State {
    /// Returns the outcome of an operation, read from the state.
    pub(super) fn tell(&self, say: Say) -> FileOutcome {
        let outcome = match say {
            Say::Outcome(outcome) => Some(outcome),
            Say::Entry(inode) => self.attributes(inode).map(FileOutcome::Entry),
            Say::Opened { inode, created, maps } => self.attributes(inode).map(|attributes| {
                let opened = |map| FileOutcome::Opened { attributes, created, map, maps };
                self.page_of(inode, 0).map_or(FileOutcome::Failed(Errno::Io), opened)
            }),
            Say::Map { inode, from } => self.attributes(inode).map(|attributes| {
                let told = |map| FileOutcome::Map { attributes, map };
                self.page_of(inode, from).map_or(FileOutcome::Failed(Errno::Io), told)
            }),
            Say::Appended { inode, offset } => {
                self.attributes(inode).map(|attributes| FileOutcome::Appended { offset, attributes })
            }
            Say::Cloned { inode, len } => {
                self.attributes(inode).map(|attributes| FileOutcome::Cloned { len, attributes })
            }
        };
        outcome.unwrap_or(FileOutcome::Failed(Errno::Stale))
    }

    /// Returns the sections of a file from an offset that fit a page. `None` if a section refers to an object
    /// that is not known.
    fn page_of(&self, number: u64, from: u64) -> Option<Extended> {
        let mut page = Extended { sections: Vec::new(), next: None };
        let Some(map) = self.inode(number).and_then(Inode::map) else { return Some(page) };
        let mut bytes = 0;
        for (offset, piece) in map.within(from..u64::MAX) {
            if bytes >= PAGE_BYTES || page.sections.len() == plasmon::wire::files::MAX_SECTIONS {
                page.next = Some(offset);
                break;
            }
            let section = Section { offset, len: piece.len, source: self.source(piece)? };
            bytes += encoded(&section).len();
            page.sections.push(section);
        }
        Some(page)
    }

    fn source(&self, piece: &Piece) -> Option<Source> {
        Some(match &piece.place {
            Place::Inline(bytes) => Source::Inline(bytes.to_vec().into()),
            Place::Object(id, at) => {
                let object = self.objects.get(id)?;
                Source::Object { id: *id, at: *at, object_len: object.len, node: object.node }
            }
        })
    }

    /// Returns the entries of a folder behind a cookie and up to another one that fit a page, and whether
    /// they are the last.
    fn entries(&self, folder: u64, (after, upto): (u64, u64), most: u32) -> Option<(Vec<Listed>, bool)> {
        let names = self.inode(folder)?.folder()?;
        let most = (most.max(1) as usize).min(plasmon::wire::files::MAX_LISTED);
        let (mut page, mut bytes) = (Vec::new(), 0);
        let behind = names.order.range(after.saturating_add(1)..);
        for (cookie, name) in behind.take_while(|(cookie, _)| **cookie <= upto) {
            if bytes >= PAGE_BYTES || page.len() == most {
                return Some((page, false));
            }
            let inode = names.names.get(name)?.inode;
            let attributes = self.attributes(inode)?;
            let listed = Listed { name: name.to_vec().into(), cookie: *cookie, attributes };
            bytes += encoded(&listed).len();
            page.push(listed);
        }
        Some((page, true))
    }

    /// Returns the open inodes without a name behind a number that fit a page, and whether they are the last.
    fn unnamed(&self, after: u64) -> (Vec<Listed>, bool) {
        let (mut page, mut bytes) = (Vec::new(), 0);
        for number in self.unlinked.range(after.saturating_add(1)..) {
            if !self.opens.contains_key(number) {
                continue;
            }
            if bytes >= PAGE_BYTES || page.len() == plasmon::wire::files::MAX_LISTED {
                return (page, false);
            }
            let Some(attributes) = self.attributes(*number) else { continue };
            let listed = Listed { name: bytes::Bytes::new(), cookie: *number, attributes };
            bytes += encoded(&listed).len();
            page.push(listed);
        }
        (page, true)
    }
}
