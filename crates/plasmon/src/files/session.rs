//! Session at the home of a volume, which numbers operations and sends unanswered operations again.
//!
//! Owns the connection and the numbers. Any thread. When the node of this host is away, operations wait for
//! the node as long as the patience of the session lasts. Then the session attaches anew and asks again under
//! the former numbers. Invariants: a number stands for one operation; an operation that changes something is
//! done at most once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::lookahead::LookAhead;
use super::watch::{Keep, Told};
use super::{AttachOptions, Error, Result};
use crate::client::Volumes;
use crate::wire::files::{
    Actor, Attributes, Errno, FOLDERS_MS, FileAnswer, FileAsked, FileOperation, FileOutcome, MAX_CLOSED,
    MAX_GROUPS, MAX_INLINE_BYTES, MAX_SECTIONS, VolumeInfo, Written,
};
use crate::wire::{replies, requests};
use crate::{Client, ErrorKind};

/// Time between two attempts while the node or the home is away.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two checks whether a program has given up a call that waits for another call.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Longest wait for one answer, after which the operation is asked again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time that one attempt to connect takes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Session of a volume.
pub(super) struct Session {
    name: String,
    options: AttachOptions,
    attached: RwLock<Arc<Attached>>,
    /// Lock of the thread that attaches anew.
    attaching: Mutex<()>,
    numbers: Mutex<Numbers>,
    /// Changes by others that were told so far.
    told: Told,
    /// Entries that may be looked up next.
    ahead: LookAhead,
    /// Whether the volume has a capacity or quotas, as the home said last.
    limited: AtomicBool,
    /// Function that returns what the session has open.
    opens: OnceLock<TellsOpens>,
}

/// Function that returns the inodes that are open, each with the number of its opens, and of those that have
/// the right to map the file.
type TellsOpens = Box<dyn Fn() -> Vec<(u64, u32, u32)> + Send + Sync>;

/// Session on one connection.
pub(super) struct Attached {
    pub(super) client: Client,
    /// Client of the connection whose calls go on when their program is killed, for bytes of files. These
    /// bytes may be those of other programs as well.
    pub(super) steady: Client,
    /// Number of the attached volume on the connection.
    pub(super) number: u32,
    /// Number of the session.
    pub(super) session: u32,
    secret: u64,
    pub(super) info: VolumeInfo,
    /// Whether the session may act for any user.
    pub(super) trusted: bool,
    /// Number of this connection among the connections of the session.
    pub(super) generation: u64,
    /// Number of times that the session had begun anew, without its opens, locks and credit, when it was
    /// attached by this connection.
    losses: u64,
    /// Longest wait of an operation.
    pub(super) patience: Duration,
}

/// Answer of the home to an operation.
pub(super) struct Answered {
    /// Outcome of the operation, which may be a failure.
    pub(super) outcome: FileOutcome,
    /// Time for which names and attributes of the outcome may be kept.
    pub(super) keep: Keep,
    /// Attributes of folders that the operation has changed, which may be kept as `folders_keep` says.
    pub(super) folders: Vec<Attributes>,
    pub(super) folders_keep: Keep,
    /// Number of times that the session which was answered had begun anew.
    pub(super) losses: u64,
}

/// Numbers of the operations of a session.
struct Numbers {
    next: u64,
    /// Numbers of operations that have no answer yet.
    open: BTreeSet<u64>,
}

impl Numbers {
    /// Takes a number. Returns it with the number below which all operations are answered.
    fn begin(&mut self) -> (u64, u64) {
        let number = self.next;
        self.next += 1;
        self.open.insert(number);
        (number, self.open.first().copied().unwrap_or(number))
    }
}

/// Operation that is asked again under its number until it is answered, as long as the session does not begin
/// anew.
pub(super) struct Lasting {
    asked: FileAsked,
    losses: u64,
}

impl Lasting {
    pub(super) fn operation(&self) -> &FileOperation {
        &self.asked.operation
    }

    /// Returns the number of times that the session of the operation had begun anew.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }
}

impl Session {
    /// Begins a session of the volume of this name.
    pub(super) fn attach(client: &Client, name: &str, options: &AttachOptions) -> crate::Result<Self> {
        let client = client.clone().within(options.patience);
        let told = Volumes::by(&client).attach(question(name, options, None), Some(options.patience))?;
        let attached = Attached::of(client, told, (0, 0), options.patience);
        let limited = AtomicBool::new(attached.info.terms.are_limited());
        Ok(Self {
            name: name.to_owned(),
            options: options.clone(),
            attached: RwLock::new(Arc::new(attached)),
            attaching: Mutex::new(()),
            numbers: Mutex::new(Numbers { next: 1, open: BTreeSet::new() }),
            told: Told::default(),
            ahead: LookAhead::default(),
            limited,
            opens: OnceLock::new(),
        })
    }

    /// Sets the function that returns what the session has open, for a new node or a new home.
    pub(super) fn set_opens(&self, opens: impl Fn() -> Vec<(u64, u32, u32)> + Send + Sync + 'static) {
        let _ = self.opens.set(Box::new(opens));
    }

    /// Returns the session on its present connection.
    pub(super) fn attached(&self) -> Arc<Attached> {
        Arc::clone(&self.attached.read())
    }

    /// Returns the number of times that the session began anew without its opens and locks.
    pub(super) fn losses(&self) -> u64 {
        self.attached.read().losses
    }

    /// Returns the longest time for which an operation waits for a node that is away.
    pub(super) fn patience(&self) -> Duration {
        self.options.patience
    }

    /// Returns the changes by others that were told so far.
    pub(super) fn told(&self) -> &Told {
        &self.told
    }

    /// Returns the entries that may be looked up next.
    pub(super) fn ahead(&self) -> &LookAhead {
        &self.ahead
    }

    /// Whether questions about folders may be answered without the home. A home that checks permissions is
    /// always asked.
    pub(super) fn keeps(&self) -> bool {
        self.options.keeps && !self.options.checked
    }

    /// Whether writes need credit.
    pub(super) fn is_limited(&self) -> bool {
        self.limited.load(Ordering::Relaxed)
    }

    /// Whether the session only reads.
    pub(super) fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Has an operation carried out on behalf of a user.
    pub(super) fn ask(&self, actor: &Actor, operation: FileOperation) -> Result<Answered> {
        self.ask_of(None, actor, operation)
    }

    /// Acts as [`Session::ask`], but only for the session that has begun anew as often as is said, if that
    /// matters.
    ///
    /// # Errors
    /// `Io` if the session has begun anew since.
    pub(super) fn ask_of(
        &self,
        of: Option<u64>,
        actor: &Actor,
        operation: FileOperation,
    ) -> Result<Answered> {
        self.ask_by(of, actor, operation, false)
    }

    /// Acts as [`Session::ask_of`], but goes on when the program is killed, as long as the node is there.
    /// Returns the outcome, and the number of times that the session which was answered had begun anew.
    pub(super) fn ask_steadily(
        &self,
        of: Option<u64>,
        operation: FileOperation,
    ) -> Result<(FileOutcome, u64)> {
        let answered = self.ask_by(of, &Actor::default(), operation, true)?;
        Ok((succeeded(answered.outcome)?, answered.losses))
    }

    fn ask_by(
        &self,
        of: Option<u64>,
        actor: &Actor,
        operation: FileOperation,
        steady: bool,
    ) -> Result<Answered> {
        check(actor, &operation)?;
        let since = self.told.last();
        let (number, answered) = self.numbers.lock().begin();
        let asked = FileAsked { number, answered, actor: actor.clone(), operation };
        self.ahead.note(&asked.operation);
        let result = self.ask_numbered(of, &asked, steady);
        self.ahead.note(&asked.operation);
        // An operation that was given up is never asked again, and its outcome is not needed.
        self.numbers.lock().open.remove(&number);
        let (answer, sent, losses) = result?;
        let FileAnswer { valid_ms, outcome, folders, limited } = answer;
        if let Some(limited) = limited {
            self.limited.store(limited, Ordering::Relaxed);
        }
        let keep = |ms: u32| Told::keep(since, sent, Duration::from_millis(ms.into()));
        Ok(Answered { outcome, keep: keep(valid_ms), folders, folders_keep: keep(FOLDERS_MS), losses })
    }

    /// Takes a number for an operation of the session that has begun anew `losses` times.
    pub(super) fn begin_lasting(&self, losses: u64, operation: FileOperation) -> Lasting {
        let (number, answered) = self.numbers.lock().begin();
        Lasting { asked: FileAsked { number, answered, actor: Actor::default(), operation }, losses }
    }

    /// Has a lasting operation carried out. After an error the operation may be asked again.
    pub(super) fn ask_lasting(&self, lasting: &Lasting) -> Result<()> {
        self.ask_numbered(Some(lasting.losses), &lasting.asked, false).map(drop)
    }

    /// Notes that a lasting operation is not asked any more.
    pub(super) fn end_lasting(&self, lasting: &Lasting) {
        self.numbers.lock().open.remove(&lasting.asked.number);
    }

    /// Locks a mutex that another thread may have locked while that thread waits for the node.
    ///
    /// # Errors
    /// `Interrupted` if the program gives its call up. `Io` if the mutex is still locked at `until`.
    pub(super) fn lock<'a, T>(&self, what: &'a Mutex<T>, until: Instant) -> Result<MutexGuard<'a, T>> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if let Some(locked) = what.try_lock_for(left.min(LOOK_INTERVAL)) {
                return Ok(locked);
            }
            ensure_wanted(&self.attached().client)?;
            if left.is_zero() {
                let text = format!("another call waited {:?} for the node of this host", self.patience());
                return Err(Error::because(Errno::Io, text));
            }
        }
    }

    /// Asks until there is an answer. Returns the answer with the time of the question, and with the number
    /// of times that the session which was answered had begun anew.
    fn ask_numbered(
        &self,
        of: Option<u64>,
        asked: &FileAsked,
        steady: bool,
    ) -> Result<(FileAnswer, Instant, u64)> {
        let (mut until, mut begun) = (None, None::<u64>);
        loop {
            let attached = self.attached();
            if of.is_some_and(|losses| losses != attached.losses) {
                return Err(Error::because(Errno::Io, "the session began anew, without its locks"));
            }
            // A session that begins anew does not know what the former session has done.
            if begun.is_some_and(|session| session != attached.secret) && !may_be_done_twice(&asked.operation)
            {
                let text = "the session began anew, and whether the operation was done before is not known";
                return Err(Error::because(Errno::Io, text));
            }
            let connected = Volumes::by(&attached.client).is_connected();
            let sent = Instant::now();
            let timeout = self.options.patience.min(ANSWER_TIMEOUT);
            let error = match Volumes::by(attached.by(steady)).ask(attached.number, asked.clone(), timeout) {
                Ok(answer) => return Ok((answer, sent, attached.losses)),
                Err(error) => error,
            };
            let until = *until.get_or_insert_with(|| sent + self.options.patience);
            let ended = error.kind() == ErrorKind::Fenced;
            // An operation that was not sent, or was refused, was not done.
            if connected && !ended && error.kind() != ErrorKind::Busy {
                begun.get_or_insert(attached.secret);
            }
            let waits = ended
                || matches!(
                    error.kind(),
                    ErrorKind::Disconnected
                        | ErrorKind::TimedOut
                        | ErrorKind::OutcomeUnknown
                        | ErrorKind::Busy
                );
            if !waits || Instant::now() >= until {
                return Err(Error::of_client(&error));
            }
            ensure_wanted(attached.by(steady))?;
            if Volumes::by(&attached.client).is_connected() && !ended {
                thread::sleep(RETRY_INTERVAL);
            } else {
                self.attach_for(steady, attached.generation, until)?;
            }
        }
    }

    /// Attaches anew for a call. A call that goes on when its program is killed has a thread of its own
    /// attach.
    fn attach_for(&self, steady: bool, lost: u64, until: Instant) -> Result<()> {
        if !steady {
            return self.attach_anew(lost, until);
        }
        thread::scope(|scope| {
            let attaching = thread::Builder::new().spawn_scoped(scope, || self.attach_anew(lost, until));
            match attaching.map(|thread| thread.join()) {
                Ok(Ok(attached)) => attached,
                Ok(Err(_)) => Err(Error::new(Errno::Io)),
                // Without a thread a kill is seen.
                Err(_) => self.attach_anew(lost, until),
            }
        })
    }

    /// Attaches anew after the connection of this generation was lost.
    fn attach_anew(&self, lost: u64, until: Instant) -> Result<()> {
        // Waits here end when the program of the call is killed.
        let _attaching = self.lock(&self.attaching, until)?;
        loop {
            let old = self.attached();
            if old.generation != lost {
                return Ok(());
            }
            let error = match self.attach_once(&old, until) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if error.kind() == ErrorKind::Interrupted || Instant::now() >= until {
                return Err(Error::of_client(&error));
            }
            ensure_wanted(&old.client)?;
            thread::sleep(RETRY_INTERVAL);
        }
    }

    fn attach_once(&self, old: &Attached, until: Instant) -> crate::Result<()> {
        let client = Volumes::by(&old.client).reconnect("files", CONNECT_TIMEOUT)?;
        let again = Some((old.session, old.secret));
        let left = until.saturating_duration_since(Instant::now());
        let told = Volumes::by(&client).attach(question(&self.name, &self.options, again), Some(left))?;
        if told.info.number != old.info.number {
            let text = format!("volume '{}' is another one than before: umount it and mount it", self.name);
            return Err(crate::Error::new(ErrorKind::Lost, text));
        }
        // The home does not trust what other sessions tell.
        if !told.fresh && told.trusted {
            let opens = self.opens.get().map(|opens| opens()).unwrap_or_default();
            // The kill of one program must not end the session of the others.
            let steady = client.clone().interruptible(|| false);
            Volumes::by(&steady).tell_opened(told.volume, &opens)?;
        }
        let losses = old.losses + u64::from(told.fresh);
        *self.attached.write() =
            Arc::new(Attached::of(client, told, (old.generation + 1, losses), old.patience));
        Ok(())
    }

    /// Ends the session at its home.
    pub(super) fn detach(&self) {
        let attached = self.attached();
        // If the node is away, the home ends the session after its time.
        let _ = Volumes::by(&attached.client).detach(attached.number);
    }
}

impl Attached {
    /// Returns the client for a call, `steady` if the call goes on when its program is killed.
    fn by(&self, steady: bool) -> &Client {
        if steady { &self.steady } else { &self.client }
    }

    /// Returns the number by which the home knows that the session belongs to its user.
    pub(super) fn secret(&self) -> u64 {
        self.secret
    }

    fn of(
        client: Client,
        told: replies::VolumeAttached,
        (generation, losses): (u64, u64),
        patience: Duration,
    ) -> Self {
        let replies::VolumeAttached { volume, session, secret, trusted, info, .. } = told;
        let steady = client.clone().interruptible(|| false);
        let number = volume;
        Self { client, steady, number, session, secret, info, trusted, generation, losses, patience }
    }
}

/// Returns an error if the program of this thread has given its call up.
fn ensure_wanted(client: &Client) -> Result<()> {
    if Volumes::by(client).is_interrupted() {
        return Err(Error::because(Errno::Interrupted, "the wait for the node was interrupted"));
    }
    Ok(())
}

/// Returns the outcome, or the error if the outcome is a failure.
pub(super) fn succeeded(outcome: FileOutcome) -> Result<FileOutcome> {
    match outcome {
        FileOutcome::Failed(errno) => Err(errno.into()),
        outcome => Ok(outcome),
    }
}

/// Whether an operation may be asked of a session that began anew, although the former session may have done
/// it. Opens and credit ended with the former session. Locks are asked of one session.
fn may_be_done_twice(operation: &FileOperation) -> bool {
    match operation {
        FileOperation::Open { truncate, .. } => !truncate,
        FileOperation::Reserve { .. } => true,
        other => !other.changes(),
    }
}

/// Refuses an operation with parts that are too long. The node would take the operation for a malformed
/// request, and end the connection.
fn check(actor: &Actor, operation: &FileOperation) -> Result<()> {
    use FileOperation::{Append, Closed, Commit};
    let (many, most, what) = match operation {
        _ if actor.groups.len() > MAX_GROUPS => (actor.groups.len(), MAX_GROUPS, "groups of a user"),
        Commit { sections, .. } => (sections.len(), MAX_SECTIONS, "sections"),
        Append { written: Written::Sections(sections), .. } => (sections.len(), MAX_SECTIONS, "sections"),
        Append { written: Written::Bytes(bytes), .. } => (bytes.len(), MAX_INLINE_BYTES, "bytes"),
        Closed { opens } => (opens.len(), MAX_CLOSED, "closes"),
        _ => return Ok(()),
    };
    if many > most {
        let text = format!("an operation on files has at most {most} {what}, and this has {many}");
        return Err(Error::because(Errno::TooMany, text));
    }
    Ok(())
}

fn question(name: &str, options: &AttachOptions, again: Option<(u32, u64)>) -> requests::AttachVolume {
    requests::AttachVolume {
        name: name.to_owned(),
        create: options.create && again.is_none(),
        read_only: options.read_only,
        checked: options.checked,
        again,
    }
}

/// Returns the error for an outcome of another kind than the operation has.
pub(super) fn unexpected() -> Error {
    Error::because(
        Errno::Io,
        "the home of the volume answered something else: run the same release everywhere",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_for_an_operation_is_refused_here() {
        let closed = |many| FileOperation::Closed { opens: vec![(9, false); many] };
        let of_groups = |many| Actor { uid: 1, gid: 1, groups: vec![7; many] };
        assert_eq!(check(&of_groups(MAX_GROUPS), &closed(MAX_CLOSED)), Ok(()));
        let refused = |actor, operation| check(&actor, &operation).map_err(|error| error.errno());
        assert_eq!(refused(of_groups(MAX_GROUPS + 1), FileOperation::Usage), Err(Errno::TooMany));
        assert_eq!(refused(of_groups(0), closed(MAX_CLOSED + 1)), Err(Errno::TooMany));
        let written = Written::Bytes(vec![0; MAX_INLINE_BYTES + 1].into());
        let append =
            FileOperation::Append { inode: 9, written, drops_privileges: false, credit: 0, credit_of: 0 };
        assert_eq!(refused(of_groups(0), append), Err(Errno::TooMany));
    }

    #[test]
    fn a_change_is_not_done_by_two_sessions() {
        let open =
            |truncate| FileOperation::Open { inode: 9, read: true, write: true, truncate, maps: false };
        assert!(may_be_done_twice(&FileOperation::GetAttributes { inode: 9 }));
        assert!(may_be_done_twice(&open(false)) && !may_be_done_twice(&open(true)));
        assert!(!may_be_done_twice(&FileOperation::Unlink {
            folder: 1,
            name: bytes::Bytes::from_static(b"a")
        }));
    }

    #[test]
    fn what_is_answered_is_below_the_oldest_open_number() {
        let mut numbers = Numbers { next: 1, open: BTreeSet::new() };
        assert_eq!(numbers.begin(), (1, 1));
        assert_eq!(numbers.begin(), (2, 1));
        numbers.open.remove(&1);
        assert_eq!(numbers.begin(), (3, 2));
        numbers.open.remove(&3);
        numbers.open.remove(&2);
        assert_eq!(numbers.begin(), (4, 4));
    }
}
