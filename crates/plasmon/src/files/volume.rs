//! Volumes: sessions with the files that they have open, and the thread that commits what waits.
//!
//! Owns the table of open files and the closes that the home was not told of. Any thread. Closes are told in
//! batches, since nobody waits for them. Invariants: the home is told as many closes as it was told opens;
//! no lock on the table is held while the home is asked.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
use super::placing::{Placing, Target};
use super::reader::Reads;
use super::session::{Answered, Attached, Session, succeeded, unexpected};
use super::watch::Keep;
use super::{AttachOptions, Error, Result};
use crate::wire::files::{
    Actor, Attributes, Errno, FileOperation, FileOutcome, MAX_CLOSED, Place, VolumeInfo, Written,
};
use crate::{Client, NodeId};

/// Time between two looks at what waits.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Largest number of threads that put blocks. They wait for the node most of the time.
const MAX_PUTTERS: usize = 4;
/// Largest number of threads that commit what is being written.
const MAX_COMMITTERS: usize = 8;
/// Number of closes that wait at most.
const MAX_WAITING_CLOSES: usize = 256;

/// Session of a volume, for any number of threads. Clones share it; it ends with the last of them.
#[derive(Clone)]
pub struct Volume(
    pub(super) Arc<Shared>,
    #[expect(dead_code, reason = "its drop ends the session")] Arc<End>,
);

/// End of a session, with the last handle of its volume.
struct End(Arc<Shared>);

/// What the clones share.
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
    inodes: Mutex<HashMap<u64, Arc<Inode>>>,
    /// Closes that the home was not told of. The lock may be taken with that of the table of files.
    closed: Mutex<Vec<u64>>,
    /// Held by who tells the home of closes.
    telling: Mutex<()>,
    /// Losses of the session after which its files were opened again.
    reopened: AtomicU64,
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
            inodes: Mutex::default(),
            closed: Mutex::default(),
            telling: Mutex::default(),
            reopened: AtomicU64::new(0),
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

    /// What the volume was when it was attached.
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
        let mut state = open.state.lock();
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
        let mut state = open.state.lock();
        let state = &mut *state;
        // Before the bytes are taken in: a write that fails has written nothing.
        self.0.commit_in_time(inode, state)?;
        let (cover, len, is_through) = match self.0.cover(inode, state, len as u64) {
            // Bytes that come to lie over others may need no room. The home alone knows.
            Err(error) if lacks_room(&error) && state.writer.is_empty() && offset < state.size => {
                (None, len, true)
            }
            Err(error) if lacks_room(&error) && state.writer.is_empty() && !manner.whole => {
                let (cover, part) = self.0.cover_part(inode, state, len as u64, error)?;
                (Some(cover), part as usize, false)
            }
            cover => (cover?, len, false),
        };
        let attached = self.0.session.attached();
        let target = self.0.target(&attached, &state.place, state.copies);
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
        let mut state = open.state.lock();
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
        if bytes.len() <= crate::wire::files::MAX_INLINE {
            let written = Written::Bytes(bytes::Bytes::copy_from_slice(bytes));
            let (outcome, _) = self.ask(&Actor::default(), append(written))?;
            if let Some(offset) = appended(outcome, state)? {
                return Ok(offset);
            }
        }
        let (attached, place) = (self.session.attached(), state.place.clone());
        let target = self.target(&attached, &place, state.copies);
        let mut sections = vec![target.put_bytes(bytes)?.section(0, 0, bytes.len() as u64)];
        let appending = target.settle(&mut sections).and_then(|()| {
            let (outcome, _) = self.ask(&Actor::default(), append(Written::Sections(sections)))?;
            appended(outcome, state)?.ok_or_else(unexpected)
        });
        appending.inspect_err(|_| self.blocks.note_left())
    }

    /// Where a file with this place, and this number of copies, has its bytes put.
    pub(super) fn target<'a>(
        &'a self,
        attached: &'a Arc<Attached>,
        place: &'a Place,
        copies: u16,
    ) -> Target<'a> {
        let Self { blocks, placing, putters: background, .. } = self;
        Target { blocks, attached, placing, background, place, copies }
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
        let answered = self.session.ask(actor, operation.clone());
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

    /// Puts what is known of an inode over its attributes, and takes these in.
    pub(super) fn overlay(&self, attributes: &mut Attributes) {
        if let Some(open) = self.inode(attributes.inode) {
            let mut state = open.state.lock();
            state.learn(attributes);
            state.overlay(attributes);
        }
    }

    fn opened(&self, (outcome, keep): (FileOutcome, Keep)) -> Result<Opened> {
        let FileOutcome::Opened { mut attributes, created, map } = outcome else { return Err(unexpected()) };
        let mut inodes = self.inodes.lock();
        let open = Arc::clone(inodes.entry(attributes.inode).or_default());
        // The number changes under the lock of the table alone.
        open.opens.fetch_add(1, Ordering::Relaxed);
        drop(inodes);
        let mut state = open.state.lock();
        state.learn_map(&attributes, 0, map);
        state.overlay(&mut attributes);
        let seen = state.failures.seen();
        Ok(Opened { entry: Entry { attributes, keep }, created, seen })
    }

    pub(super) fn close(&self, inode: u64) {
        let mut inodes = self.inodes.lock();
        let Some(open) = inodes.get(&inode).cloned() else { return };
        let is_last = open.opens.fetch_sub(1, Ordering::Relaxed) == 1;
        if is_last {
            inodes.remove(&inode);
        }
        let mut closed = self.closed.lock();
        closed.push(inode);
        let full = closed.len() >= MAX_WAITING_CLOSES;
        drop((inodes, closed));
        if is_last {
            // What could not be committed goes with the last open: nobody commits it later.
            self.give_up(&mut open.state.lock());
        }
        if full {
            self.tell_closes();
        }
    }

    /// Commits what waits of a file, before something that has to come after it.
    pub(super) fn settle(&self, inode: u64) -> Result<()> {
        let Some(open) = self.inode(inode) else { return Ok(()) };
        let mut state = open.state.lock();
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
        let mut state = open.as_ref().map(|open| open.state.lock());
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
        let Some(mut below) = self.blocks.left_end() else { return };
        let open: Vec<Arc<Inode>> = self.inodes.lock().values().cloned().collect();
        for inode in open {
            // A file that is in use may put objects that no writer has yet.
            let Some(state) = inode.state.try_lock() else { return };
            below = below.min(state.writer.first_object().unwrap_or(below));
        }
        let Some(below) = self.blocks.left_below(below) else { return };
        if self.session.ask(&Actor::default(), FileOperation::Discard { below }).is_ok() {
            self.blocks.told_left(below);
        }
    }

    /// Tells the home of closes that it was not told of, unless another thread does.
    fn tell_closes(&self) {
        self.open_again();
        let Some(_telling) = self.telling.try_lock() else { return };
        loop {
            let losses = self.session.losses();
            let inodes: Vec<u64> = self.closed.lock().iter().take(MAX_CLOSED).copied().collect();
            let told = inodes.len();
            if told == 0 {
                return;
            }
            // If the home cannot be asked, the closes go with the session.
            let _ = self.session.ask(&Actor::default(), FileOperation::Closed { inodes });
            if self.session.losses() != losses {
                // They have gone with the session of before.
                return;
            }
            self.closed.lock().drain(..told);
        }
    }

    /// What the session has open at its home, as far as is known: inodes with the numbers of their opens,
    /// and with those of closes that the home may not know of.
    fn opens(&self) -> Vec<(u64, u32)> {
        let inodes = self.inodes.lock();
        let open = |(number, inode): (&u64, &Arc<Inode>)| (*number, inode.opens.load(Ordering::Relaxed));
        let mut opens: BTreeMap<u64, u32> = inodes.iter().map(open).collect();
        self.closed.lock().iter().for_each(|inode| *opens.entry(*inode).or_default() += 1);
        opens.into_iter().collect()
    }

    /// Opens the files again after the session began anew, as often as they are open here.
    pub(super) fn open_again(&self) {
        if self.reopened.load(Ordering::Acquire) == self.session.losses() {
            return;
        }
        // Nobody tells of closes meanwhile: those of before are of no open any more, and others come after
        // the opens.
        let _telling = self.telling.lock();
        let losses = self.session.losses();
        if self.reopened.load(Ordering::Acquire) == losses {
            return;
        }
        self.folders.clear();
        let opens = |inode: &Arc<Inode>| inode.opens.load(Ordering::Relaxed);
        let open: Vec<(u64, u32)> = {
            let inodes = self.inodes.lock();
            self.closed.lock().clear();
            inodes.iter().map(|(number, inode)| (*number, opens(inode))).collect()
        };
        for (inode, opens) in open {
            (0..opens).for_each(|_| self.open_once_more(inode));
        }
        self.reopened.store(losses, Ordering::Release);
    }

    /// Opens a file again: for writing, if this session may.
    fn open_once_more(&self, inode: u64) {
        let open = |write| {
            let operation = FileOperation::Open { inode, read: true, write, truncate: false };
            self.session.ask_steadily(operation)
        };
        let may_write = !self.session.is_read_only();
        let refused = |error: &Error| !may_be_done(error);
        if !may_write || open(true).is_err_and(|error| refused(&error)) {
            // A file that went with its last link meanwhile stays gone: its users see an error.
            let _ = open(false);
        }
    }

    /// Commits in time what waits, until the session ends.
    fn look_after(&self) {
        let mut looked = Instant::now();
        while !self.is_over(LOOK_INTERVAL) {
            self.refill();
            if looked.elapsed() >= LOOK_INTERVAL {
                self.look();
                looked = Instant::now();
            }
        }
    }

    /// Commits what has waited for its time, tells closes, and gives idle credit back.
    fn look(&self) {
        self.tell_closes();
        self.tell_left();
        self.give_idle_back();
        self.reads.tell(&self.session.attached());
        if self.placing.look(&self.session.attached()) {
            self.blocks.give_back();
        }
        let open: Vec<(u64, Arc<Inode>)> =
            self.inodes.lock().iter().map(|(number, inode)| (*number, Arc::clone(inode))).collect();
        for (number, inode) in open {
            // Whoever has it locked is using it: there is a next time.
            let Some(mut state) = inode.state.try_lock() else { continue };
            if state.writer.is_old() {
                // What failed is told by the next sync or close.
                let _ = self.commit(number, &mut state);
            }
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
        let open: Vec<(u64, Arc<Inode>)> = self.0.inodes.lock().drain().collect();
        for (number, inode) in open {
            let mut state = inode.state.lock();
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
