//! Tests of what operations do: the corners of POSIX one by one, and random operations against a model.

mod credit;
mod data;
mod locks;
#[cfg(target_env = "gnu")]
mod memory;
mod mirrors;
mod model;
mod names;
mod permissions;

use bytes::Bytes;
use plasmon::wire::files::{
    Actor, Attributes, Errno, FileOperation, FileOutcome, ROOT_INODE, Section, SetAttributes, Source, Time,
    VolumeTerms, file_object,
};
use plasmon::{NodeId, ObjectId};

use super::{Asking, Limits, decide, who};
use crate::files::change::{Begun, Change};
use crate::files::lingering::Lingering;
use crate::files::state::State;

/// Session of root.
pub(super) const ROOTS: Begun = Begun {
    node: NodeId::from_bytes([1; NodeId::LEN]),
    secret: 1,
    uid: 0,
    gid: 0,
    groups: Vec::new(),
    trusted: true,
    checked: false,
    read_only: false,
};
/// Number of the volume in these tests.
const VOLUME: u32 = 9;

/// Volume whose operations are decided and applied.
pub(super) struct Bench {
    pub(super) state: State,
    pub(super) limits: Limits,
    pub(super) now: i64,
    /// Whether other sessions have yet to tell what they have open.
    pub(super) are_untold: bool,
    objects: u64,
    /// Mirrors that are told all changes.
    pub(super) mirrors: Vec<mirrors::Echo>,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::with(VolumeTerms::default())
    }

    pub(super) fn with(terms: VolumeTerms) -> Self {
        let state = State::new(VOLUME, terms, 0, 0, Time::default());
        let limits = Limits { memory: 1 << 30, free: 1 << 40 };
        let mut bench = Self { state, limits, now: 0, are_untold: false, objects: 0, mirrors: Vec::new() };
        assert_eq!(bench.attach(true), 1);
        bench
    }

    /// Makes a session of root. With `checked`, the home checks permissions. Returns the number of the
    /// session.
    pub(super) fn attach(&mut self, checked: bool) -> u32 {
        self.begin(Begun { checked, ..ROOTS })
    }

    /// Makes a session of root, which is trusted or not. Returns the number of the session.
    pub(super) fn attach_as(&mut self, trusted: bool) -> u32 {
        self.begin(Begun { trusted, ..ROOTS })
    }

    pub(super) fn begin(&mut self, begun: Begun) -> u32 {
        self.commit(vec![Change::Begin(begun)]);
        self.state.last_session
    }

    pub(super) fn end(&mut self, session: u32) {
        self.commit(vec![Change::End { session }]);
    }

    /// Applies changes, and tells mirrors.
    pub(super) fn commit(&mut self, changes: Vec<Change>) {
        let mirrors = &mut self.mirrors;
        self.state.carry_out(
            changes,
            |_| false,
            |state, change| {
                mirrors.iter_mut().for_each(|mirror| mirror.note(state, change));
            },
        );
    }

    /// Carries an operation out for a user.
    pub(super) fn act(
        &mut self,
        number: u32,
        actor: &Actor,
        operation: FileOperation,
    ) -> Result<FileOutcome, Errno> {
        self.now += 1;
        let session = &self.state.sessions[&number];
        let asking = Asking {
            state: &self.state,
            number,
            session,
            who: who(session, actor),
            now: Time { seconds: self.now, nanos: 0 },
            limits: self.limits,
            lingering: &Lingering::default(),
            are_untold: self.are_untold,
        };
        let decision = decide(&asking, operation)?;
        self.commit(decision.changes);
        match self.state.tell(decision.say) {
            FileOutcome::Failed(errno) => Err(errno),
            outcome => Ok(outcome),
        }
    }

    /// Carries out an operation of root in the first session.
    pub(super) fn run(&mut self, operation: FileOperation) -> Result<FileOutcome, Errno> {
        self.act(1, &Actor::default(), operation)
    }

    /// Returns the attributes that the answer to an operation has.
    pub(super) fn entry(&mut self, operation: FileOperation) -> Result<Attributes, Errno> {
        Ok(attributes_of(self.run(operation)?))
    }

    pub(super) fn look(&mut self, folder: u64, name: &str) -> Result<Attributes, Errno> {
        self.entry(lookup(folder, name))
    }

    pub(super) fn make_folder(&mut self, folder: u64, name: &str) -> u64 {
        let made = FileOperation::MakeFolder { folder, name: named(name), mode: 0o755 };
        self.entry(made).expect("it can be made").inode
    }

    /// Makes a file and closes it.
    pub(super) fn make_file(&mut self, folder: u64, name: &str) -> u64 {
        let made = FileOperation::MakeNode { folder, name: named(name), mode: 0o644, device: 0 };
        self.entry(made).expect("it can be made").inode
    }

    pub(super) fn open(&mut self, inode: u64) -> Result<FileOutcome, Errno> {
        self.run(FileOperation::Open { inode, read: true, write: true, truncate: false, maps: false })
    }

    pub(super) fn close(&mut self, inode: u64) {
        self.run(FileOperation::Closed { opens: vec![(inode, false)] }).expect("closing does not fail");
    }

    /// Makes a section of a new object of the first session.
    pub(super) fn section(&mut self, offset: u64, len: u64) -> (Section, ObjectId) {
        self.objects += 1;
        let id = file_object(VOLUME, 1, self.objects);
        let node = NodeId::from_bytes([1; NodeId::LEN]);
        let source = Source::Object { id, at: 0, object_len: len, node };
        (Section { offset, len, source }, id)
    }

    /// Returns the names in a folder, in the order of the list, a page of two at a time.
    pub(super) fn names(&mut self, folder: u64) -> Vec<String> {
        let (mut names, mut after) = (Vec::new(), 0);
        loop {
            let list = FileOperation::List { folder, after, upto: None, most: 2 };
            let Ok(FileOutcome::Entries { entries, end, .. }) = self.run(list) else {
                panic!("the folder can be listed");
            };
            for entry in entries {
                assert!(entry.cookie > after, "cookies grow");
                after = entry.cookie;
                names.push(String::from_utf8(entry.name.into()).expect("names of tests are text"));
            }
            if end {
                return names;
            }
        }
    }
}

pub(super) fn named(name: &str) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

pub(super) fn lookup(folder: u64, name: &str) -> FileOperation {
    FileOperation::Lookup { folder, name: named(name) }
}

pub(super) fn rename(folder: u64, name: &str, to_folder: u64, to_name: &str) -> FileOperation {
    FileOperation::Rename {
        folder,
        name: named(name),
        to_folder,
        to_name: named(to_name),
        no_replace: false,
        exchange: false,
        whiteout: false,
    }
}

pub(super) fn unlink(folder: u64, name: &str) -> FileOperation {
    FileOperation::Unlink { folder, name: named(name) }
}

pub(super) fn create(folder: u64, name: &str, exclusive: bool) -> FileOperation {
    FileOperation::Create { folder, name: named(name), mode: 0o644, exclusive, maps: false }
}

pub(super) fn resize(inode: u64, size: u64) -> FileOperation {
    FileOperation::SetAttributes { inode, set: SetAttributes { size: Some(size), ..Default::default() } }
}

pub(super) fn attributes_of(outcome: FileOutcome) -> Attributes {
    match outcome {
        FileOutcome::Entry(attributes)
        | FileOutcome::Opened { attributes, .. }
        | FileOutcome::Map { attributes, .. }
        | FileOutcome::Cloned { attributes, .. }
        | FileOutcome::Appended { attributes, .. } => attributes,
        other => panic!("{other:?} tells no attributes"),
    }
}

/// The root folder.
pub(super) const TOP: u64 = ROOT_INODE;

/// Makes a commit of sections without credit.
fn commit(inode: u64, sections: Vec<Section>) -> FileOperation {
    FileOperation::Commit {
        inode,
        sections,
        modified: None,
        drops_privileges: false,
        credit: 0,
        credit_of: 0,
    }
}
