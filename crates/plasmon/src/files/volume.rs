//! Volumes: sessions with their open files, and the thread of each session.
//!
//! Owns the table of open files. Any thread. The thread of the session regularly has the threads of the
//! background commit bytes that have waited for their time, so that no file waits for the store of another.
//! Invariant: no lock on the table is held while the home is asked.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::background::Background;
use super::blocks::{Blocks, Buffer};
use super::credit::{Cover, Credits, lacks_room, may_be_done};
use super::failures::Seen;
use super::folders::Folders;
use super::inode::{Inode, State};
use super::names::Entry;
use super::open_folders::OpenFolders;
use super::opens::Closes;
use super::placing::{Placing, Target};
use super::reader::Reads;
use super::session::{Answered, Attached, Session, succeeded, unexpected};
use super::tidy::{Tidying, ragged};
use super::unlocks::Unlocks;
use super::watch::Keep;
use super::writer::LARGE_WRITE_BYTES;
use super::{AttachOptions, Error, Result};
use crate::wire::files::{Actor, Attributes, Errno, FileOperation, FileOutcome, Place, VolumeInfo, Written};
use crate::{Client, NodeId};

/// Time between two looks of the thread of a session at waiting bytes.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Largest number of threads that put blocks. They wait for the node most of the time.
const MAX_PUTTERS: usize = 4;
/// Largest number of threads that commit bytes in the background.
const MAX_COMMITTERS: usize = 8;
/// Largest number of attempts to have an append lie in the map of its file.
const MAX_GATHERINGS: usize = 3;

/// Session of a volume, for any number of threads. Clones share the session, which ends with the last clone.
#[derive(Clone)]
pub struct Volume(
    pub(super) Arc<Shared>,
    #[expect(dead_code, reason = "its drop ends the session")] Arc<End>,
);

/// Guard that ends a session with the last handle of its volume.
struct End(Arc<Shared>);

/// State that the clones of a volume share.
pub(super) struct Shared {
    pub(super) session: Session,
    pub(super) blocks: Arc<Blocks>,
    pub(super) credits: Credits,
    placing: Arc<Placing>,
    /// Threads that put blocks.
    putters: Arc<Background>,
    /// Threads that commit bytes in the background.
    pub(super) committers: Background,
    pub(super) folders: Folders,
    pub(super) reads: Reads,
    pub(super) tidying: Tidying,
    pub(super) inodes: Mutex<HashMap<u64, Arc<Inode>>>,
    pub(super) closes: Closes,
    pub(super) open_folders: OpenFolders,
    pub(super) unlocks: Unlocks,
    /// Whether the session has ended.
    over: Mutex<bool>,
    ended: Condvar,
}

/// Manner in which bytes are written.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteManner {
    /// Whether the file loses its setuid and setgid bits.
    pub drops_privileges: bool,
    /// Whether all bytes are written or none, as those that programs stored through mappings.
    pub whole: bool,
}

/// File that was opened.
#[derive(Debug, Clone)]
pub struct Opened {
    /// Attributes of the file.
    pub entry: Entry,
    /// Whether the open has made the file.
    pub created: bool,
    /// Failures of which the open was told.
    pub seen: Seen,
    /// Whether the open has the right to map the file, so that stores are seen by others.
    pub maps: bool,
}

impl Volume {
    /// Attaches to a volume.
    ///
    /// # Errors
    /// `NotFound` if there is no such volume, unless `options.create` is set. `NotAllowed` if it belongs to
    /// another user. `TimedOut` or `Disconnected` if a node does not answer.
    pub fn attach(client: &Client, name: &str, options: &AttachOptions) -> crate::Result<Self> {
        let shared = Arc::new(Shared {
            session: Session::attach(client, name, options)?,
            blocks: Arc::default(),
            credits: Credits::default(),
            placing: Arc::default(),
            putters: Arc::new(Background::new("plasmon-puts", MAX_PUTTERS)),
            committers: Background::new("plasmon-commits", MAX_COMMITTERS),
            folders: Folders::default(),
            reads: Reads::default(),
            tidying: Tidying::default(),
            inodes: Mutex::default(),
            closes: Closes::default(),
            open_folders: OpenFolders::default(),
            unlocks: Unlocks::default(),
            over: Mutex::new(false),
            ended: Condvar::new(),
        });
        let of = Arc::downgrade(&shared);
        shared.session.set_opens(move || of.upgrade().map(|shared| shared.opens()).unwrap_or_default());
        let of = Arc::downgrade(&shared);
        shared.placing.set_room_maker(move || of.upgrade().is_some_and(|shared| shared.make_room()));
        let volume = Self(Arc::clone(&shared), Arc::new(End(Arc::clone(&shared))));
        let spawned =
            thread::Builder::new().name("plasmon-files".to_owned()).spawn(move || shared.look_after());
        spawned.map_err(|error| {
            let text = format!("cannot start a thread for volume '{name}': {error}");
            crate::Error::new(crate::ErrorKind::Internal, text)
        })?;
        Ok(volume)
    }

    /// Returns the description of the volume when it was attached.
    pub fn info(&self) -> VolumeInfo {
        self.0.session.attached().info.clone()
    }

    /// Returns the node that this session asks.
    pub fn node(&self) -> NodeId {
        self.0.session.attached().client.node()
    }

    /// Whether the session may act for any user.
    pub fn is_trusted(&self) -> bool {
        self.0.session.attached().trusted
    }

    /// Whether the session only reads.
    pub fn is_read_only(&self) -> bool {
        self.0.session.is_read_only()
    }

    /// Returns memory for the payload of a write.
    pub fn buffer(&self) -> Buffer {
        self.0.blocks.buffer(&self.0.session.attached())
    }

    /// Returns memory for the payload of a write without waiting: memory of this process, if no block is
    /// free.
    pub fn buffer_at_hand(&self) -> Buffer {
        self.0.blocks.buffer_at_hand(&self.0.session.attached())
    }

    /// Replaces a buffer that is no block, or one of a lost connection, by a block, unless the node is short
    /// of memory. Does so only if `written`, the length of the last write, is so large that a block would
    /// not have been copied.
    pub fn renew(&self, buffer: &mut Buffer, written: usize) {
        if written >= LARGE_WRITE_BYTES && !self.0.placing.is_short() {
            self.0.blocks.renew(&self.0.session.attached(), buffer);
        }
    }

    /// Opens an inode. The inode stays when its last link goes, until it is [closed](Volume::close).
    ///
    /// # Errors
    /// `Stale` if the inode is gone, and further errors of Linux.
    pub fn open_inode(&self, actor: &Actor, inode: u64, options: &super::OpenOptions) -> Result<Opened> {
        let (truncate, losses) = (options.truncates(), self.0.session.losses());
        let open = self.0.inode(inode);
        let operation = FileOperation::Open {
            inode,
            read: options.reads(),
            write: options.writes(),
            truncate,
            maps: options.maps_file() && open.is_none_or(|open| open.right.may_be_asked(losses)),
        };
        let answered = if truncate {
            self.0.ask_to_cut(actor, inode, operation)?
        } else {
            self.0.ask(actor, operation)?
        };
        self.0.opened(answered, losses)
    }

    /// Makes a file in a folder and opens it, or opens the file that has the name. Without a name the file is
    /// in no folder.
    ///
    /// # Errors
    /// Errors of Linux.
    pub fn create(
        &self,
        actor: &Actor,
        folder: u64,
        name: &[u8],
        mode: u32,
        options: &super::OpenOptions,
    ) -> Result<Opened> {
        let operation = FileOperation::Create {
            folder,
            name: super::names::sent(name)?,
            mode,
            exclusive: options.is_exclusive(),
            maps: options.maps_file(),
        };
        let losses = self.0.session.losses();
        let opened = self.0.opened(self.0.ask(actor, operation)?, losses)?;
        if opened.created || !options.truncates() {
            return Ok(opened);
        }
        // This session may have bytes of the file that wait. They go with a cut of an inode that is known.
        let inode = opened.entry.attributes.inode;
        let cut = self.open_inode(actor, inode, options);
        self.0.close(inode, opened.maps);
        cut
    }

    /// Commits written bytes of an inode, and ends one open of the inode.
    ///
    /// # Errors
    /// The reason why written bytes are not at the home.
    pub fn close(&self, inode: u64, seen: &Seen) -> Result<()> {
        let flushed = self.flush(inode, seen);
        self.0.close(inode, false);
        flushed
    }

    /// Commits bytes that this session has written to a file. Returns when as many nodes keep the bytes as
    /// the folder of the file says.
    ///
    /// # Errors
    /// The reason why written bytes are not at the home, also for earlier bytes, unless this open of the file
    /// was told it.
    pub fn flush(&self, inode: u64, seen: &Seen) -> Result<()> {
        let Some(open) = self.0.inode(inode) else { return Ok(()) };
        let mut state = self.0.lock(&open)?;
        let committed = self.0.commit(inode, &mut state);
        state.failures.tell(seen).map_or(committed, Err)
    }

    /// Writes the first `len` bytes of a buffer to an open file. Returns the number of written bytes, which
    /// is smaller if there is no room for all, unless all are to be written as a whole. The buffer may be
    /// another one afterwards, of undefined content.
    ///
    /// # Errors
    /// `Full` if there is no room for any byte, `OverQuota` if the owner of the file may have no more, and
    /// others of Linux. A write that fails for these reasons has written nothing.
    pub fn write(
        &self,
        inode: u64,
        offset: u64,
        buffer: &mut Buffer,
        len: usize,
        manner: WriteManner,
    ) -> Result<usize> {
        let open = self.0.inode(inode).ok_or_else(|| Error::new(Errno::NotOpen))?;
        let mut state = self.0.lock(&open)?;
        let state = &mut *state;
        self.0.session_of(&open)?;
        if manner.whole {
            open.right.refuse_lost(self.0.session.losses())?;
        }
        // Earlier bytes are committed before these are stored: a write that fails has written nothing.
        self.0.commit_in_time(inode, state)?;
        let (cover, len, is_through) = match self.0.cover(inode, state, len as u64) {
            // Bytes that replace others may need no room, which the home alone knows. Bytes behind the end
            // come with the next write.
            Err(error) if lacks_room(&error) && state.writer.is_empty() && offset < state.size => {
                let inside = len.min((state.size - offset) as usize);
                (None, if manner.whole { len } else { inside }, true)
            }
            Err(error) if lacks_room(&error) && state.writer.is_empty() && !manner.whole => {
                let (cover, part) = self.0.cover_part(inode, state, len as u64, error)?;
                (Some(cover), part as usize, false)
            }
            cover => (cover?, len, false),
        };
        let attached = self.0.session.attached();
        let target = self.0.target(&attached, &state.place, state.wanted());
        let before = state.writer.waiting();
        let written = state.writer.write(&target, offset, buffer, len, manner.drops_privileges);
        if state.writer.waiting() > before {
            state.writer.add_cover(cover);
        }
        if is_through {
            return self.0.commit_through(inode, state, written).map(|()| len);
        }
        written?;
        self.0.begin_commit(inode, &open, state);
        Ok(len)
    }

    /// Puts bytes behind the end of an open file. Returns the offset of these bytes.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn append(&self, inode: u64, bytes: &[u8], drops_privileges: bool) -> Result<u64> {
        let open = self.0.inode(inode).ok_or_else(|| Error::new(Errno::NotOpen))?;
        let mut state = self.0.lock(&open)?;
        self.0.commit_before(inode, &mut state)?;
        let cover = self.0.cover(inode, &mut state, bytes.len() as u64)?;
        let appended = self.0.append(inode, &mut state, bytes, (drops_privileges, cover.as_ref()));
        if let Some(mut cover) = cover
            && appended.as_ref().err().is_none_or(may_be_done)
        {
            cover.spend(bytes.len() as u64);
        }
        appended
    }
}

impl Shared {
    /// Appends bytes to a file of which no bytes wait.
    fn append(
        &self,
        inode: u64,
        state: &mut State,
        bytes: &[u8],
        (drops_privileges, cover): (bool, Option<&Cover>),
    ) -> Result<u64> {
        let (credit, credit_of) = cover.map_or((0, 0), |cover| (cover.bytes(), cover.uid()));
        let append = |written| FileOperation::Append { inode, written, drops_privileges, credit, credit_of };
        let fits = bytes.len() <= crate::wire::files::MAX_INLINE_BYTES;
        for _ in 0..if fits { MAX_GATHERINGS } else { 0 } {
            let written = Written::Bytes(bytes::Bytes::copy_from_slice(bytes));
            let (outcome, _) = self.ask(&Actor::default(), append(written))?;
            if let Some(offset) = appended(outcome, state)? {
                return Ok(offset);
            }
            if !self.gather(inode, state) {
                break;
            }
        }
        let (attached, place) = (self.session.attached(), state.place.clone());
        let target = self.target(&attached, &place, state.wanted());
        let mut sections = vec![target.put_bytes(bytes)?.section(0, 0, bytes.len() as u64)];
        let ragged = ragged(&sections, 0);
        let appending = target.settle(&mut sections).and_then(|()| {
            let (outcome, _) = self.ask(&Actor::default(), append(Written::Sections(sections)))?;
            appended(outcome, state)?.ok_or_else(unexpected)
        });
        self.tidying.note(inode, ragged);
        let appending = appending.map_err(|error| match self.session.attached().session {
            session if session == attached.session => error,
            // Only the former session might name the object.
            _ => Error::because(Errno::Io, "the session began anew, without the bytes that were written"),
        });
        appending.inspect_err(|_| self.blocks.note_left())
    }

    /// Returns the target of the bytes of a file, for a call that is to end at `due`.
    pub(super) fn target<'a>(
        &'a self,
        attached: &'a Arc<Attached>,
        place: &'a Place,
        (copies, due): (u16, Option<Instant>),
    ) -> Target<'a> {
        let Self { blocks, placing, putters: background, .. } = self;
        let due = due.unwrap_or_else(|| Instant::now() + attached.patience);
        Target { blocks, attached, placing, background, place, copies, due }
    }

    /// Has an operation carried out. After the session was lost, files are opened again first.
    pub(super) fn ask(&self, actor: &Actor, operation: FileOperation) -> Result<(FileOutcome, Keep)> {
        let (mut outcome, mut keep) = self.ask_whole(actor, &operation)?;
        if let FileOutcome::Failed(Errno::Full | Errno::OverQuota) = outcome
            && self.free_room()
        {
            (outcome, keep) = self.ask_whole(actor, &operation)?;
        }
        Ok((succeeded(outcome)?, keep))
    }

    /// Wakes the thread of the session, which does its regular work now.
    pub(super) fn wake(&self) {
        self.ended.notify_all();
    }

    /// Acts as [`Shared::ask`], but returns failures that the home tells as outcomes.
    pub(super) fn ask_whole(&self, actor: &Actor, operation: &FileOperation) -> Result<(FileOutcome, Keep)> {
        self.folders.begin(operation);
        let of = self.session_for(operation)?;
        let answered = self.session.ask_of(of, actor, operation.clone());
        self.open_again();
        let Answered { outcome, keep, folders, folders_keep, .. } = answered?;
        if outcome == FileOutcome::Failed(Errno::Stale) {
            // The kernel looks the name up again, and the home is to answer: what is kept has led here.
            self.session.ahead().clear();
            self.folders.clear();
        }
        let current = self.session.told().current();
        self.folders.learn(&current, operation, (&outcome, keep), (&folders, folders_keep));
        Ok((outcome, keep))
    }

    /// Waits until the session ends, for at most `patience`. Returns whether the session has ended.
    pub(super) fn is_over(&self, patience: Duration) -> bool {
        let mut over = self.over.lock();
        if !*over && !patience.is_zero() {
            self.ended.wait_for(&mut over, patience);
        }
        *over
    }

    /// Returns the open file of this inode, if there is one.
    pub(super) fn inode(&self, inode: u64) -> Option<Arc<Inode>> {
        self.inodes.lock().get(&inode).cloned()
    }

    /// Returns all open files with the numbers of their inodes.
    fn open_files(&self) -> Vec<(u64, Arc<Inode>)> {
        self.inodes.lock().iter().map(|(number, inode)| (*number, Arc::clone(inode))).collect()
    }

    /// Stores attributes of an open inode, and then replaces them by what the session knows of the inode.
    pub(super) fn overlay(&self, attributes: &mut Attributes) -> Result<()> {
        if let Some(open) = self.inode(attributes.inode) {
            let mut state = self.lock(&open)?;
            state.learn(attributes);
            state.overlay(attributes);
        }
        Ok(())
    }

    /// Notes an open that was asked of the session which had begun anew `losses` times.
    fn opened(&self, (outcome, keep): (FileOutcome, Keep), losses: u64) -> Result<Opened> {
        let FileOutcome::Opened { mut attributes, created, map, maps } = outcome else {
            return Err(unexpected());
        };
        let mut inodes = self.inodes.lock();
        let open = Arc::clone(inodes.entry(attributes.inode).or_default());
        // The number changes only under the lock of the table.
        open.opens.fetch_add(1, Ordering::Relaxed);
        // Of a session that began anew meanwhile it is not known which one has answered, and opens that lost
        // the right may be left of the one before.
        let maps = maps && losses == self.session.losses() && open.right.may_be_asked(losses);
        if maps {
            open.right.begin(losses);
        }
        drop(inodes);
        let mut state = self.lock(&open).inspect_err(|_| self.close(attributes.inode, maps))?;
        state.learn_map(&attributes, 0, map);
        state.overlay(&mut attributes);
        let seen = state.failures.seen();
        Ok(Opened { entry: Entry { attributes, keep }, created, seen, maps })
    }

    /// Commits waiting bytes of a file, before an operation that has to come after them.
    pub(super) fn settle(&self, inode: u64) -> Result<()> {
        let Some(open) = self.inode(inode) else { return Ok(()) };
        let mut state = self.lock(&open)?;
        self.commit(inode, &mut state)
    }

    /// Has a file cut to no bytes. Waiting bytes of the file are forgotten instead of committed.
    pub(super) fn ask_to_cut(
        &self,
        actor: &Actor,
        inode: u64,
        operation: FileOperation,
    ) -> Result<(FileOutcome, Keep)> {
        let open = self.inode(inode);
        // The lock keeps others from writing or committing while the file is cut.
        let mut state = open.as_ref().map(|open| self.lock(open)).transpose()?;
        let cut = self.ask(actor, operation)?;
        if let Some(state) = &mut state {
            self.give_up(state);
        }
        Ok(cut)
    }

    /// Tells the home the counter below which no object of this session waits for a commit, if there are
    /// objects that will never be committed.
    fn tell_left(&self) {
        // Objects above the waiting ones, and objects that are left later, are told another time.
        let left = self.blocks.left_end().filter(|_| !self.tidying.puts());
        let Some(mut below) = left else { return };
        for (_, inode) in self.open_files() {
            // A file in use may put objects that are not in its writer yet.
            let Some(state) = inode.state.try_lock() else { return };
            below = below.min(state.writer.first_object().unwrap_or(below));
        }
        let Some(below) = self.blocks.left_below(below) else { return };
        if self.session.ask(&Actor::default(), FileOperation::Discard { below }).is_ok() {
            self.blocks.told_left(below);
        }
    }

    /// Does the regular work of the session, until the session ends.
    fn look_after(self: &Arc<Self>) {
        let mut looked = Instant::now();
        while !self.is_over(LOOK_INTERVAL) {
            self.refill();
            if looked.elapsed() >= LOOK_INTERVAL {
                self.look();
                looked = Instant::now();
            }
        }
    }

    /// Has bytes committed that have waited for their time, tells unlocks and closes, and gives idle credit
    /// back.
    fn look(self: &Arc<Self>) {
        self.begin_tidying();
        for (number, inode) in self.open_files() {
            self.commit_if_old(number, &inode);
        }
        self.tell_unlocks();
        self.tell_open_folders();
        self.tell_closes();
        self.tell_left();
        self.give_idle_back();
        self.reads.tell(&self.session.attached());
        if self.placing.look(&self.session.attached()) {
            self.blocks.give_back();
        }
    }
}

/// Returns the offset of appended bytes. `None` if the bytes have no room in the map.
fn appended(outcome: FileOutcome, state: &mut State) -> Result<Option<u64>> {
    match outcome {
        FileOutcome::Appended { offset, attributes } => {
            state.learn(&attributes);
            Ok(Some(offset))
        }
        FileOutcome::NoRoomInline => Ok(None),
        _ => Err(unexpected()),
    }
}

impl Drop for End {
    fn drop(&mut self) {
        *self.0.over.lock() = true;
        self.0.ended.notify_all();
        for (number, inode) in self.0.open_files() {
            let mut state = inode.state.lock();
            state.due = None;
            // A failure is ignored, since no handle of the volume is left.
            let _ = self.0.commit(number, &mut state);
            self.0.give_up(&mut state);
        }
        self.0.session.detach();
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("name", &self.info().name).finish_non_exhaustive()
    }
}
