//! Volumes: sessions with the files that they have open, and the thread that looks after what waits.
//!
//! Owns the table of open files. Any thread. The thread that looks has the threads of the background commit
//! what has waited for its time, so that no file waits for the store of another one. Invariant: no lock on
//! the table is held while the home is asked.

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

/// Time between two looks at what waits.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Largest number of threads that put blocks. They wait for the node most of the time.
const MAX_PUTTERS: usize = 4;
/// Largest number of threads that commit what is being written.
const MAX_COMMITTERS: usize = 8;
/// Number of attempts to have an append lie in the map of its file.
const MAX_GATHERINGS: usize = 3;

/// Session of a volume, for any number of threads. Clones share it; it ends with the last of them.
#[derive(Clone)]
pub struct Volume(
    pub(super) Arc<Shared>,
    #[expect(dead_code, reason = "its drop ends the session")] Arc<End>,
);

/// End of a session, with the last handle of its volume.
struct End(Arc<Shared>);

/// State that the clones of a volume share.
pub(super) struct Shared {
    pub(super) session: Session,
    pub(super) blocks: Arc<Blocks>,
    pub(super) credits: Credits,
    placing: Arc<Placing>,
    /// Threads that put blocks.
    putters: Arc<Background>,
    /// Threads that commit what is being written.
    pub(super) committers: Background,
    pub(super) folders: Folders,
    pub(super) reads: Reads,
    pub(super) tidying: Tidying,
    pub(super) inodes: Mutex<HashMap<u64, Arc<Inode>>>,
    pub(super) closes: Closes,
    pub(super) unlocks: Unlocks,
    /// Whether the session has ended.
    over: Mutex<bool>,
    ended: Condvar,
}

/// How bytes are written.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteManner {
    /// Whether the file loses its setuid and setgid bits.
    pub drops_privileges: bool,
    /// Whether all bytes are written or none.
    pub whole: bool,
}

/// File that was opened.
#[derive(Debug, Clone)]
pub struct Opened {
    /// Attributes of the file.
    pub entry: Entry,
    /// Whether the open has made it.
    pub created: bool,
    /// Failures of which it was told.
    pub seen: Seen,
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
            unlocks: Unlocks::default(),
            over: Mutex::new(false),
            ended: Condvar::new(),
        });
        let of = Arc::downgrade(&shared);
        shared.session.set_opens(move || of.upgrade().map(|shared| shared.opens()).unwrap_or_default());
        let volume = Self(Arc::clone(&shared), Arc::new(End(Arc::clone(&shared))));
        let spawned =
            thread::Builder::new().name("plasmon-files".to_owned()).spawn(move || shared.look_after());
        spawned.map_err(|error| {
            let text = format!("cannot start a thread for volume '{name}': {error}");
            crate::Error::new(crate::ErrorKind::Internal, text)
        })?;
        Ok(volume)
    }

    /// Description of the volume when it was attached.
    pub fn info(&self) -> VolumeInfo {
        self.0.session.attached().info.clone()
    }

    /// Node that this session asks.
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

    /// Memory for the payload of a write.
    pub fn buffer(&self) -> Buffer {
        self.0.blocks.buffer(&self.0.session.attached())
    }

    /// Memory for the payload of a write that is there at once: memory of this process, if no block is free.
    pub fn buffer_at_hand(&self) -> Buffer {
        self.0.blocks.buffer_at_hand(&self.0.session.attached())
    }

    /// Makes a buffer a block that is none, or one of a lost connection, after a write of so many bytes that
    /// a block would not have been copied, unless the node is short of memory.
    pub fn renew(&self, buffer: &mut Buffer, written: usize) {
        if written >= LARGE_WRITE_BYTES && !self.0.placing.is_short() {
            self.0.blocks.renew(&self.0.session.attached(), buffer);
        }
    }

    /// Opens an inode. It stays when its last link goes, until it is [closed](Volume::close).
    ///
    /// # Errors
    /// `Stale` if it is gone, and others of Linux.
    pub fn open_inode(&self, actor: &Actor, inode: u64, options: &super::OpenOptions) -> Result<Opened> {
        let truncate = options.truncates();
        let operation =
            FileOperation::Open { inode, read: options.reads(), write: options.writes(), truncate };
        self.0.opened(if truncate {
            self.0.ask_to_cut(actor, inode, operation)?
        } else {
            self.0.ask(actor, operation)?
        })
    }

    /// Makes a file in a folder and opens it, or opens the file that has the name. Without a name the file is
    /// in no folder.
    ///
    /// # Errors
    /// Those of Linux.
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
            truncate: options.truncates(),
        };
        self.0.opened(self.0.ask(actor, operation)?)
    }

    /// Ends one open of an inode. What was written is committed.
    ///
    /// # Errors
    /// Why something that was written is not at the home.
    pub fn close(&self, inode: u64, seen: &Seen) -> Result<()> {
        let flushed = self.flush(inode, seen);
        self.0.close(inode);
        flushed
    }

    /// Commits what was written to a file, here, and returns when as many nodes keep it as its folder says.
    ///
    /// # Errors
    /// Why something is not at the home, also of bytes that were written before, unless this open of the file
    /// was told.
    pub fn flush(&self, inode: u64, seen: &Seen) -> Result<()> {
        let Some(open) = self.0.inode(inode) else { return Ok(()) };
        let mut state = self.0.lock(&open)?;
        let committed = self.0.commit(inode, &mut state);
        state.failures.tell(seen).map_or(committed, Err)
    }

    /// Writes the first `len` bytes of a buffer to a file that is open. Returns how many it has written:
    /// fewer behind the end of the file if there is no room for all, unless it is to be written as a whole.
    /// The buffer may be another one after that, of undefined content.
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
        // Before the bytes are taken in: a write that fails has written nothing.
        self.0.commit_in_time(inode, state)?;
        let (cover, len, is_through) = match self.0.cover(inode, state, len as u64) {
            // Bytes that come to lie over others may need no room. The home alone knows. Those
            // behind the end come with the next write.
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

    /// Puts bytes behind the end of a file that is open, wherever that is. Returns their offset.
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
    /// Appends bytes to a file of which nothing waits.
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
            // The session that may name the object is over.
            _ => Error::because(Errno::Io, "the session began anew, without the bytes that were written"),
        });
        appending.inspect_err(|_| self.blocks.note_left())
    }

    /// Where a file with this place, and this number of copies, has its bytes put, for a call that is to end.
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
            && self.session.is_limited()
            && self.give_back(Duration::ZERO)
        {
            (outcome, keep) = self.ask_whole(actor, &operation)?;
        }
        Ok((succeeded(outcome)?, keep))
    }

    /// Has what is to be done from time to time done now.
    pub(super) fn wake(&self) {
        self.ended.notify_all();
    }

    /// As [`Shared::ask`], with failures that the home tells among the outcomes.
    pub(super) fn ask_whole(&self, actor: &Actor, operation: &FileOperation) -> Result<(FileOutcome, Keep)> {
        self.folders.begin(operation);
        let of = self.session_for(operation)?;
        let answered = self.session.ask_of(of, actor, operation.clone());
        self.open_again();
        let Answered { outcome, keep, folders, folders_keep, .. } = answered?;
        let current = self.session.told().current();
        self.folders.learn(&current, operation, (&outcome, keep), (&folders, folders_keep));
        Ok((outcome, keep))
    }

    /// Waits until the session ends, at most so long. Returns whether it has.
    pub(super) fn is_over(&self, patience: Duration) -> bool {
        let mut over = self.over.lock();
        if !*over && !patience.is_zero() {
            self.ended.wait_for(&mut over, patience);
        }
        *over
    }

    /// File that is open.
    pub(super) fn inode(&self, inode: u64) -> Option<Arc<Inode>> {
        self.inodes.lock().get(&inode).cloned()
    }

    /// All files that are open, with their numbers.
    fn open_files(&self) -> Vec<(u64, Arc<Inode>)> {
        self.inodes.lock().iter().map(|(number, inode)| (*number, Arc::clone(inode))).collect()
    }

    /// Puts what is known of an inode over its attributes, and takes these in.
    pub(super) fn overlay(&self, attributes: &mut Attributes) -> Result<()> {
        if let Some(open) = self.inode(attributes.inode) {
            let mut state = self.lock(&open)?;
            state.learn(attributes);
            state.overlay(attributes);
        }
        Ok(())
    }

    fn opened(&self, (outcome, keep): (FileOutcome, Keep)) -> Result<Opened> {
        let FileOutcome::Opened { mut attributes, created, map } = outcome else { return Err(unexpected()) };
        let mut inodes = self.inodes.lock();
        let open = Arc::clone(inodes.entry(attributes.inode).or_default());
        // The number changes under the lock of the table alone.
        open.opens.fetch_add(1, Ordering::Relaxed);
        drop(inodes);
        let mut state = self.lock(&open).inspect_err(|_| self.close(attributes.inode))?;
        state.learn_map(&attributes, 0, map);
        state.overlay(&mut attributes);
        let seen = state.failures.seen();
        Ok(Opened { entry: Entry { attributes, keep }, created, seen })
    }

    /// Commits what waits of a file, before something that has to come after it.
    pub(super) fn settle(&self, inode: u64) -> Result<()> {
        let Some(open) = self.inode(inode) else { return Ok(()) };
        let mut state = self.lock(&open)?;
        self.commit(inode, &mut state)
    }

    /// Has a file cut to no bytes. What waits of it is forgotten then instead of committed.
    pub(super) fn ask_to_cut(
        &self,
        actor: &Actor,
        inode: u64,
        operation: FileOperation,
    ) -> Result<(FileOutcome, Keep)> {
        let open = self.inode(inode);
        // Nothing is written or committed between the cut and the end of what came before it.
        let mut state = open.as_ref().map(|open| self.lock(open)).transpose()?;
        let cut = self.ask(actor, operation)?;
        if let Some(state) = &mut state {
            self.give_up(state);
        }
        Ok(cut)
    }

    /// Tells the home below which counter no object of this session waits for a commit, if some were left
    /// that nothing commits any more.
    fn tell_left(&self) {
        // Those above what waits now are told when it was committed, and those that are left from here on.
        let left = self.blocks.left_end().filter(|_| !self.tidying.puts());
        let Some(mut below) = left else { return };
        for (_, inode) in self.open_files() {
            // A file that is in use may put objects that no writer has yet.
            let Some(state) = inode.state.try_lock() else { return };
            below = below.min(state.writer.first_object().unwrap_or(below));
        }
        let Some(below) = self.blocks.left_below(below) else { return };
        if self.session.ask(&Actor::default(), FileOperation::Discard { below }).is_ok() {
            self.blocks.told_left(below);
        }
    }

    /// Has what waits committed in time, until the session ends.
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

    /// Has what has waited for its time committed, tells unlocks and closes, and gives idle credit back.
    fn look(self: &Arc<Self>) {
        self.begin_tidying();
        for (number, inode) in self.open_files() {
            self.commit_if_old(number, &inode);
        }
        self.tell_unlocks();
        self.tell_closes();
        self.tell_left();
        self.give_idle_back();
        self.reads.tell(&self.session.attached());
        if self.placing.look(&self.session.attached()) {
            self.blocks.give_back();
        }
    }
}

/// Offset of bytes that were appended. `None` if they have no room in the map.
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
            // Nobody is left whom a failure could be told.
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
