//! Watchers of a volume: sessions that were told something they may keep for a second, and are told when it
//! changes. Owns [`Watchers`], and sends nothing itself. Engine thread only.
//!
//! A *key* stands for the attributes of an inode, or for a name in a folder, whether it is there or not. Two
//! names may share a key, which costs a message. A change is answered when all watchers of its keys have
//! confirmed that they keep nothing of them ([`Waiting`]), or after [`CHANGE_PATIENCE`]. Invariants: memory
//! is bounded; a session keeps only what it watches; a silent session delays others at most once in
//! [`SILENCE_TIME`].

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::Shared;
use plasmon::wire::files::{Attributes, Errno, FileKind, FileOperation, FileOutcome, MAX_FILE_BYTES, Stale};

use self::cuts::Cut;
use super::change::Change;
use super::state::State;
use crate::kernel::random::{HashMap, Keyed};

mod cuts;

/// Time for which a session may keep names and attributes, from when it asked.
pub(super) const VALID_TIME: Duration = Duration::from_secs(1);
/// Time for which something given counts as kept. Longer than [`VALID_TIME`], since kernels round up.
const KEPT_TIME: Duration = Duration::from_millis(1_050);
/// Time for which a change waits for watchers.
const CHANGE_PATIENCE: Duration = Duration::from_millis(50);
/// Time for which a session that did not confirm is not waited for, and is given nothing to keep.
const SILENCE_TIME: Duration = Duration::from_secs(10);
/// Maximum number of sessions that are listed for a key.
const MAX_LISTED: usize = 8;
/// Time for which a key is not given after a change while more sessions watched it than can be listed.
const COOLING_TIME: Duration = Duration::from_secs(10);
/// Number of changes within [`VALID_TIME`] that watchers had to be told, from which a key is not given any
/// more until the changes end.
const BUSY_CHANGES: u32 = 4;
/// Maximum number of keys that are known to be busy.
const MAX_BUSY: usize = 1 << 12;
/// Number of vain waits for a session from which it counts as one that never confirms.
const NEVER: u32 = 3;
/// Maximum number of keys that are given within [`KEPT_TIME`].
const MAX_KEYS: u64 = 1 << 18;
const KEY_BYTES: u64 = 256;

/// Hash of a thing that sessions watch: of an inode, or of a folder and a name.
type Key = u64;

/// The sessions that watch a key.
#[derive(Clone, Copy)]
struct Watch {
    /// Time when nothing is valid any more that sessions were given of the key.
    until: Instant,
    /// Sessions that watch the key. More than [`MAX_LISTED`] are not listed.
    sessions: [u32; MAX_LISTED],
    count: u8,
}

impl Watch {
    fn new(until: Instant) -> Self {
        Self { until, sessions: [0; MAX_LISTED], count: 0 }
    }

    /// Returns the sessions that watch the key. `None` if there are too many.
    fn listed(&self) -> Option<&[u32]> {
        self.sessions.get(..usize::from(self.count))
    }

    fn add(&mut self, session: u32, until: Instant) {
        self.until = self.until.max(until);
        match self.listed() {
            Some(listed) if listed.contains(&session) => {}
            Some(listed) => {
                let at = listed.len();
                if let Some(place) = self.sessions.get_mut(at) {
                    *place = session;
                }
                self.count += 1;
            }
            None => {}
        }
    }
}

/// A key that is changed while others watch it.
struct Busy {
    since: Instant,
    changes: u32,
    /// Time until which sessions are given nothing of the key to keep.
    until: Instant,
}

impl Busy {
    fn is_over(&self, now: Instant) -> bool {
        let end =
            if self.changes < BUSY_CHANGES { self.since + VALID_TIME } else { self.until + COOLING_TIME };
        end <= now
    }
}

/// A future that ends when all sessions have confirmed a message.
type Done = Shared<oneshot::Receiver<()>>;

/// Sessions that were told something, and have not confirmed so far.
struct Telling {
    left: BTreeSet<u32>,
    keys: Vec<Key>,
    /// Session whose operation waits.
    by: u32,
    /// Folders in which the operation changes names.
    folders: Vec<u64>,
    /// Whether the operation cuts a file, so that the sessions which are told have to commit first.
    cuts: bool,
    due: Instant,
    /// Dropped when the last session has confirmed, or is not waited for any more.
    _ends: oneshot::Sender<()>,
    done: Done,
}

/// Events that an operation waits for before it is answered.
#[derive(Clone)]
pub(super) struct Waiting {
    /// Numbers of the messages that are to be confirmed, with the time when each is given up.
    pub(super) confirmed: Vec<(u64, Instant, Done)>,
    /// Time when nothing is valid any more that sessions which are not listed were given.
    pub(super) over: Option<Instant>,
}

impl Waiting {
    /// Returns the latest time at which the wait ends.
    fn end(&self) -> Instant {
        let dues = self.confirmed.iter().map(|(_, due, _)| *due);
        // An operation waits only if there is something to wait for.
        dues.chain(self.over).max().expect("an operation waits for something")
    }
}

/// Messages that follow from a change.
#[derive(Default)]
pub(super) struct News {
    pub(super) number: u64,
    /// The news for each session.
    pub(super) told: BTreeMap<u32, Vec<Stale>>,
}

/// Counts of a volume.
#[derive(Default, Clone, Copy)]
pub(super) struct Counts {
    /// Number of messages to sessions.
    pub(super) told: u64,
    /// Number of messages that were confirmed.
    pub(super) confirmed: u64,
    /// Number of messages that were not confirmed in time.
    pub(super) missed: u64,
}

/// The watchers of a volume.
pub(super) struct Watchers {
    hasher: Keyed,
    /// Keys that were given since the last turn.
    young: HashMap<Key, Watch>,
    /// Keys that were given in the turn before the last.
    old: HashMap<Key, Watch>,
    turned: Instant,
    busy: HashMap<Key, Busy>,
    silent: BTreeMap<u32, Instant>,
    /// Sessions for which a cut has waited in vain, with the time until which no cut waits for them.
    stalled: BTreeMap<u32, Instant>,
    /// Number of vain waits for each session since it last confirmed something.
    unconfirming: BTreeMap<u32, u32>,
    tellings: BTreeMap<u64, Telling>,
    /// Messages that are not confirmed, by key.
    unconfirmed: HashMap<Key, Vec<u64>>,
    last: u64,
    /// Operations that wait, by session and number.
    waiting: BTreeMap<(u32, u64), Waiting>,
    /// Operations that are about to cut files, by session and number.
    cuts: BTreeMap<(u32, u64), Cut>,
    /// Time until which sessions may keep what the home before this one gave them.
    former: Instant,
    pub(super) counts: Counts,
}

impl Watchers {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            hasher: Keyed::default(),
            young: HashMap::default(),
            old: HashMap::default(),
            turned: now,
            busy: HashMap::default(),
            silent: BTreeMap::new(),
            stalled: BTreeMap::new(),
            unconfirming: BTreeMap::new(),
            tellings: BTreeMap::new(),
            unconfirmed: HashMap::default(),
            last: 0,
            waiting: BTreeMap::new(),
            cuts: BTreeMap::new(),
            former: now,
            counts: Counts::default(),
        }
    }

    fn of_inode(&self, inode: u64) -> Key {
        self.hasher.hash_one(inode)
    }

    fn of_name(&self, folder: u64, name: &[u8]) -> Key {
        self.hasher.hash_one((folder, name))
    }

    /// Returns the keys of the names and attributes in an outcome that a kernel keeps. `None` if there are
    /// none.
    fn keys(&self, operation: &FileOperation, outcome: &FileOutcome) -> Option<Vec<Key>> {
        use FileOperation as O;
        let named = match operation {
            O::Lookup { folder, name }
            | O::Create { folder, name, .. }
            | O::MakeFolder { folder, name, .. }
            | O::MakeNode { folder, name, .. }
            | O::MakeSymlink { folder, name, .. }
            | O::Link { folder, name, .. } => Some(self.of_name(*folder, name)),
            O::GetAttributes { .. } | O::SetAttributes { .. } => None,
            O::LookAhead { folder, name, .. } if matches!(outcome, FileOutcome::Failed(Errno::NotFound)) => {
                return Some(vec![self.of_name(*folder, name)]);
            }
            O::List { folder, .. } | O::LookAhead { folder, .. } => {
                let FileOutcome::Entries { entries, .. } = outcome else { return None };
                let keys = entries.iter().flat_map(|entry| {
                    [self.of_name(*folder, &entry.name), self.of_inode(entry.attributes.inode)]
                });
                return Some(keys.collect());
            }
            _ => return None,
        };
        match outcome {
            FileOutcome::Entry(attributes) | FileOutcome::Opened { attributes, .. } => {
                Some(named.into_iter().chain([self.of_inode(attributes.inode)]).collect())
            }
            FileOutcome::Failed(Errno::NotFound) if matches!(operation, O::Lookup { .. }) => {
                Some(named.into_iter().collect())
            }
            _ => None,
        }
    }

    /// Makes a session a watcher of what an outcome tells. Keys may take `memory` bytes. Returns whether the
    /// session may keep it for [`VALID_TIME`].
    pub(super) fn give(
        &mut self,
        now: Instant,
        session: u32,
        operation: &FileOperation,
        outcome: &FileOutcome,
        memory: u64,
    ) -> bool {
        let Some(keys) = self.keys(operation, outcome) else { return false };
        self.give_keys(now, session, keys, memory)
    }

    /// Makes a session a watcher of the attributes of folders, as [`Watchers::give`] does.
    pub(super) fn give_folders(
        &mut self,
        now: Instant,
        session: u32,
        folders: &[Attributes],
        memory: u64,
    ) -> bool {
        let keys = folders.iter().map(|folder| self.of_inode(folder.inode)).collect();
        self.give_keys(now, session, keys, memory)
    }

    fn give_keys(&mut self, now: Instant, session: u32, keys: Vec<Key>, memory: u64) -> bool {
        if now < self.former || self.is_silent(session, now) {
            return false;
        }
        self.turn(now);
        let is_busy = |key: &Key| self.busy.get(key).is_some_and(|busy| now < busy.until);
        let most = MAX_KEYS.min(memory / KEY_BYTES);
        if (self.young.len() + keys.len()) as u64 > most || keys.iter().any(is_busy) {
            return false;
        }
        for key in keys {
            self.young.entry(key).or_insert_with(|| Watch::new(now)).add(session, now + KEPT_TIME);
        }
        true
    }

    /// Forgets what is over, and begins a new turn if it is time.
    pub(super) fn turn(&mut self, now: Instant) {
        if now.saturating_duration_since(self.turned) < KEPT_TIME {
            return;
        }
        self.turned = now;
        self.old = std::mem::take(&mut self.young);
        self.busy.retain(|_, busy| !busy.is_over(now));
        self.waiting.retain(|_, waiting| now < waiting.end());
        self.silent.retain(|_, until| now < *until);
        self.stalled.retain(|_, until| now < *until);
        self.cuts.retain(|_, cut| !cut.is_old(now));
        let late = self.tellings.iter().filter(|(_, telling)| telling.due <= now);
        for number in late.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.give_up(number, now);
        }
    }
}

/// Changes and their confirmations.
impl Watchers {
    /// Makes changes wait until `until`, and gives nothing before, because the former home may have let
    /// sessions keep things. A home that takes over sets this to [`VALID_TIME`] after the last word of the
    /// former home.
    pub(super) fn wait_for_former(&mut self, until: Instant) {
        self.former = until;
    }

    fn key_of(&self, stale: &Stale) -> Key {
        match stale {
            Stale::Attributes { inode }
            | Stale::Bytes { inode, .. }
            | Stale::Waiting { inode }
            | Stale::Mapped { inode } => self.of_inode(*inode),
            Stale::Name { folder, name, .. } => self.of_name(*folder, name),
        }
    }

    /// Takes the sessions other than `by` that watch a key. `Err` with the end of their watch if they are too
    /// many to be listed.
    fn take(&mut self, key: Key, by: u32, now: Instant) -> Result<BTreeSet<u32>, Instant> {
        let (mut taken, mut over) = (BTreeSet::new(), None);
        for watches in [&mut self.young, &mut self.old] {
            let Some(watch) = watches.get_mut(&key).filter(|watch| now < watch.until) else { continue };
            let Some(listed) = watch.listed() else {
                over = over.max(Some(watch.until));
                continue;
            };
            let stays = listed.contains(&by);
            taken.extend(listed.iter().filter(|session| **session != by));
            let until = watch.until;
            *watch = Watch::new(until);
            if stays {
                watch.add(by, until);
            }
        }
        over.map_or(Ok(taken), Err)
    }

    /// Notes that a key was changed, if watchers had to be told or the key is busy already.
    fn note_change(&mut self, key: Key, now: Instant, watched: bool, over: Option<Instant>) {
        if self.busy.len() >= MAX_BUSY && !self.busy.contains_key(&key) {
            return;
        }
        if !watched && over.is_none() {
            // A busy key is not given as long as it is changed.
            if let Some(busy) = self.busy.get_mut(&key).filter(|busy| now < busy.until) {
                busy.until = busy.until.max(now + VALID_TIME);
            }
            return;
        }
        let busy = self.busy.entry(key).or_insert(Busy { since: now, changes: 0, until: now });
        if busy.is_over(now) {
            *busy = Busy { since: now, changes: 0, until: now };
        }
        busy.changes += 1;
        if let Some(over) = over {
            (busy.changes, busy.until) = (BUSY_CHANGES, busy.until.max(over + COOLING_TIME));
        } else if busy.changes >= BUSY_CHANGES {
            busy.until = busy.until.max(now + VALID_TIME);
        }
    }

    /// Notes an operation of a session that makes `stale` untrue. Returns the news for other sessions, and
    /// what the answer waits for. `openers` returns the sessions that have a file open.
    pub(super) fn change(
        &mut self,
        now: Instant,
        (by, operation): (u32, u64),
        stale: Vec<Stale>,
        openers: impl Fn(u64) -> Vec<u32>,
    ) -> (News, Option<Waiting>) {
        self.turn(now);
        let mut told: BTreeMap<u32, Vec<Stale>> = BTreeMap::new();
        let (mut left, mut keys, mut before) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
        let mut over = (now < self.former).then_some(self.former);
        for one in &stale {
            let key = self.key_of(one);
            let (watchers, many) = match self.take(key, by, now) {
                Ok(watchers) => (watchers, None),
                Err(until) => (BTreeSet::new(), Some(until)),
            };
            self.note_change(key, now, !watchers.is_empty(), many);
            over = over.max(many);
            before.extend(self.unconfirmed.get(&key).into_iter().flatten());
            let opened = match one {
                Stale::Bytes { inode, .. } => openers(*inode),
                _ => Vec::new(),
            };
            for session in watchers.iter().copied().chain(opened).filter(|session| *session != by) {
                let told = told.entry(session).or_default();
                if told.last() != Some(one) {
                    told.push(one.clone());
                }
            }
            if !watchers.is_empty() {
                keys.push(key);
                left.extend(watchers);
            }
        }
        let folders = folders(&stale);
        left.retain(|session| {
            let is_held = self.is_held(*session, &folders) || self.is_cutting(*session, &stale);
            !self.is_silent(*session, now) && !is_held
        });
        let mut confirmed: Vec<_> = before.into_iter().filter_map(|number| self.joined(number, by)).collect();
        let mut news = News { number: 0, told };
        if !news.told.is_empty() {
            self.last += 1;
            news.number = self.last;
            self.counts.told += news.told.len() as u64;
        }
        if !left.is_empty() {
            confirmed.push(self.expect(
                news.number,
                Expected { left, keys, by, folders, cuts: false },
                now + CHANGE_PATIENCE,
            ));
        }
        let waiting = (!confirmed.is_empty() || over.is_some()).then_some(Waiting { confirmed, over });
        if let Some(waiting) = &waiting {
            self.waiting.insert((by, operation), waiting.clone());
        }
        (news, waiting)
    }

    /// Returns what an operation waits for that was carried out before and is asked for again.
    pub(super) fn waits(&self, session: u32, operation: u64) -> Option<Waiting> {
        self.waiting.get(&(session, operation)).cloned()
    }

    /// Notes that an operation is answered.
    pub(super) fn answered(&mut self, session: u32, operation: u64) {
        self.waiting.remove(&(session, operation));
    }

    fn is_silent(&self, session: u32, now: Instant) -> bool {
        self.silent.get(&session).is_some_and(|until| now < *until)
    }

    /// Whether an operation of a session waits here that changes names in one of these folders. Its kernel
    /// keeps the folder locked meanwhile, and cannot forget a name in it.
    fn is_held(&self, session: u32, folders: &[u64]) -> bool {
        let holds = |telling: &Telling| telling.folders.iter().any(|folder| folders.contains(folder));
        !folders.is_empty() && self.tellings.values().any(|telling| telling.by == session && holds(telling))
    }

    /// Returns the message that an operation of a session waits for, if other sessions have not confirmed it.
    fn joined(&self, number: u64, by: u32) -> Option<(u64, Instant, Done)> {
        let telling = self.tellings.get(&number)?;
        let others = telling.left.iter().any(|session| *session != by);
        others.then(|| (number, telling.due, telling.done.clone()))
    }

    /// Expects confirmations of a message.
    fn expect(&mut self, number: u64, expected: Expected, due: Instant) -> (u64, Instant, Done) {
        let Expected { left, keys, by, folders, cuts } = expected;
        let (ends, done) = oneshot::channel();
        let done = done.shared();
        for key in &keys {
            self.unconfirmed.entry(*key).or_default().push(number);
        }
        let telling = Telling { left, keys, by, folders, cuts, due, _ends: ends, done: done.clone() };
        self.tellings.insert(number, telling);
        (number, due, done)
    }

    /// Notes that a session keeps nothing more of what a message named.
    pub(super) fn confirm(&mut self, session: u32, number: u64) {
        self.unconfirming.remove(&session);
        let Some(telling) = self.tellings.get_mut(&number) else { return };
        if telling.left.remove(&session) {
            self.counts.confirmed += 1;
        }
        if telling.left.is_empty() {
            self.forget(number);
        }
    }

    /// Stops waiting for the confirmations of a message, and for its silent sessions for [`SILENCE_TIME`]. A
    /// session that did not commit before a cut may have much to commit, so only cuts do not wait for it.
    pub(super) fn give_up(&mut self, number: u64, now: Instant) {
        let Some(telling) = self.forget(number) else { return };
        self.counts.missed += telling.left.len() as u64;
        let until = if telling.cuts { &self.stalled } else { &self.silent };
        let is_new = |session: &&u32| until.get(session).is_none_or(|until| *until <= now);
        for session in telling.left.iter().filter(is_new) {
            *self.unconfirming.entry(*session).or_default() += 1;
        }
        let late = telling.left.iter().map(|session| (*session, now + SILENCE_TIME));
        if telling.cuts { self.stalled.extend(late) } else { self.silent.extend(late) }
    }

    /// Returns the sessions that were waited for in vain [`NEVER`] times since they last confirmed.
    pub(super) fn who_never_confirm(&self) -> Vec<u32> {
        let never = self.unconfirming.iter().filter(|(_, times)| **times >= NEVER);
        never.map(|(session, _)| *session).collect()
    }

    fn forget(&mut self, number: u64) -> Option<Telling> {
        let telling = self.tellings.remove(&number)?;
        for key in &telling.keys {
            if let Some(numbers) = self.unconfirmed.get_mut(key) {
                numbers.retain(|other| *other != number);
                if numbers.is_empty() {
                    self.unconfirmed.remove(key);
                }
            }
        }
        Some(telling)
    }

    /// Forgets a session that has ended.
    pub(super) fn end(&mut self, session: u32) {
        self.silent.remove(&session);
        self.stalled.remove(&session);
        self.unconfirming.remove(&session);
        self.cuts.retain(|(by, _), _| *by != session);
        let numbers: Vec<_> = self.tellings.keys().copied().collect();
        for number in numbers {
            let Some(telling) = self.tellings.get_mut(&number) else { continue };
            if telling.left.remove(&session) && telling.left.is_empty() {
                self.forget(number);
            }
        }
    }
}

/// Sessions that are to confirm a message, and the operation that waits for them.
struct Expected {
    left: BTreeSet<u32>,
    keys: Vec<Key>,
    by: u32,
    folders: Vec<u64>,
    cuts: bool,
}

/// Returns the folders in which names are stale.
fn folders(stale: &[Stale]) -> Vec<u64> {
    let folders = stale.iter().filter_map(|one| match one {
        Stale::Name { folder, .. } => Some(*folder),
        _ => None,
    });
    folders.collect()
}

/// Returns what changes make untrue, given the state before them.
pub(super) fn stale_of(state: &State, changes: &[Change]) -> Vec<Stale> {
    let (mut stale, mut inodes) = (Vec::new(), BTreeMap::<u64, Option<(u64, u64)>>::new());
    for change in changes {
        match change {
            Change::Name { folder, name, inode } => {
                let before = state.entry(*folder, name).map(|entry| entry.inode);
                let is_folder =
                    |inode: u64| state.inode(inode).is_some_and(|inode| inode.head.kind == FileKind::Folder);
                let is_folder = before.into_iter().chain(*inode).any(is_folder);
                stale.push(Stale::Name { folder: *folder, name: name.to_vec().into(), is_folder });
            }
            Change::Head { inode, .. } => _ = inodes.entry(*inode).or_default(),
            Change::Cover { inode, offset, piece, .. } => {
                widen(inodes.entry(*inode).or_default(), *offset, offset.saturating_add(piece.len));
            }
            Change::Punch { inode, start, end } => {
                widen(inodes.entry(*inode).or_default(), *start, *end);
            }
            _ => {}
        }
    }
    stale.extend(inodes.into_iter().map(|(inode, bytes)| match bytes {
        Some((start, end)) => Stale::Bytes { inode, start, end: end.min(MAX_FILE_BYTES) },
        None => Stale::Attributes { inode },
    }));
    stale
}

fn widen(range: &mut Option<(u64, u64)>, start: u64, end: u64) {
    let (first, last) = range.unwrap_or((start, end));
    *range = Some((first.min(start), last.max(end)));
}

#[cfg(test)]
mod tests;
