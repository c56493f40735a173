//! A session at the home of a volume: it numbers operations, and sends again what was not answered.
//!
//! Owns the connection and the numbers. Any thread. When the node of this host is away, operations wait for
//! it, as long as the patience of the session lasts: the session attaches anew and asks again under the same
//! numbers. Invariants: a number stands for one operation; an operation that changes something is done at
//! most once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::watch::{Keep, Told};
use super::{AttachOptions, Error, Result};
use crate::client::Volumes;
use crate::wire::files::{
    Actor, Attributes, Errno, FOLDERS_MS, FileAnswer, FileAsked, FileOperation, FileOutcome, MAX_CLOSED,
    MAX_GROUPS, MAX_INLINE, MAX_SECTIONS, VolumeInfo, Written,
};
use crate::wire::{replies, requests};
use crate::{Client, ErrorKind};

/// Time between two attempts while the node or the home is away.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for one answer, after which the operation is asked again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time that one attempt to connect takes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Session of a volume.
pub(super) struct Session {
    name: String,
    options: AttachOptions,
    attached: RwLock<Arc<Attached>>,
    /// Attempts to attach anew are made by one thread at a time.
    attaching: Mutex<()>,
    numbers: Mutex<Numbers>,
    /// What others have changed.
    told: Told,
    /// Whether the volume has a capacity or quotas, as the home said last.
    limited: AtomicBool,
    /// Tells what the session has open.
    opens: OnceLock<TellsOpens>,
}

/// Gives the inodes that are open, each with the number of its opens.
type TellsOpens = Box<dyn Fn() -> Vec<(u64, u32)> + Send + Sync>;

/// Session on one connection.
pub(super) struct Attached {
    pub(super) client: Client,
    /// The same client, whose calls go on when their program is killed: for bytes of files, which may be
    /// those of other programs as well.
    pub(super) steady: Client,
    /// Number of the attached volume on the connection.
    pub(super) number: u32,
    /// Number of the session.
    pub(super) session: u32,
    secret: u64,
    pub(super) info: VolumeInfo,
    /// Whether the session may act for any user.
    pub(super) trusted: bool,
    /// Number of this connection among those of the session.
    pub(super) generation: u64,
    /// Number of times that the session had begun anew, without its opens, locks and credit, when it was
    /// attached by this connection.
    losses: u64,
}

/// What the home has answered.
pub(super) struct Answered {
    /// Outcome of the operation, which may be a failure.
    pub(super) outcome: FileOutcome,
    /// How long names and attributes in it may be kept.
    pub(super) keep: Keep,
    /// Folders that it has changed, and how long their attributes may be kept.
    pub(super) folders: Vec<Attributes>,
    pub(super) folders_keep: Keep,
    /// Number of times that the session had begun anew which was answered.
    pub(super) losses: u64,
}

/// Numbers of operations.
struct Numbers {
    next: u64,
    /// Numbers of operations that have no answer yet.
    open: BTreeSet<u64>,
}

impl Numbers {
    /// Takes a number. Returns it with the number below which all are answered.
    fn begin(&mut self) -> (u64, u64) {
        let number = self.next;
        self.next += 1;
        self.open.insert(number);
        (number, self.open.first().copied().unwrap_or(number))
    }
}

impl Session {
    /// Begins a session of the volume of this name.
    pub(super) fn attach(client: &Client, name: &str, options: &AttachOptions) -> crate::Result<Self> {
        let told = Volumes::by(client).attach(question(name, options, None), Some(options.patience))?;
        let attached = Attached::of(client.clone(), told, 0, 0);
        let limited = AtomicBool::new(attached.info.terms.are_limited());
        Ok(Self {
            name: name.to_owned(),
            options: options.clone(),
            attached: RwLock::new(Arc::new(attached)),
            attaching: Mutex::new(()),
            numbers: Mutex::new(Numbers { next: 1, open: BTreeSet::new() }),
            told: Told::default(),
            limited,
            opens: OnceLock::new(),
        })
    }

    /// Sets who tells a new node, and a new home, what the session has open.
    pub(super) fn set_opens(&self, opens: impl Fn() -> Vec<(u64, u32)> + Send + Sync + 'static) {
        let _ = self.opens.set(Box::new(opens));
    }

    /// The session on its present connection.
    pub(super) fn attached(&self) -> Arc<Attached> {
        Arc::clone(&self.attached.read())
    }

    /// Number of times that the session began anew without its opens and locks.
    pub(super) fn losses(&self) -> u64 {
        self.attached.read().losses
    }

    /// Time that an operation waits for a node that is away.
    pub(super) fn patience(&self) -> Duration {
        self.options.patience
    }

    /// What others have changed.
    pub(super) fn told(&self) -> &Told {
        &self.told
    }

    /// Whether folders may be told of without asking. Where the home looks at permissions, it is asked.
    pub(super) fn keeps(&self) -> bool {
        self.options.keeps && !self.options.checked
    }

    /// Whether what is written needs credit.
    pub(super) fn is_limited(&self) -> bool {
        self.limited.load(Ordering::Relaxed)
    }

    /// Whether the session only reads.
    pub(super) fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Has an operation carried out on behalf of a user.
    pub(super) fn ask(&self, actor: &Actor, operation: FileOperation) -> Result<Answered> {
        self.ask_by(actor, operation, |attached| &attached.client)
    }

    /// As [`Session::ask`], but goes on when the program is killed, as long as the node is there. Returns the
    /// outcome with the number of times that the session had begun anew which was answered.
    pub(super) fn ask_steadily(&self, operation: FileOperation) -> Result<(FileOutcome, u64)> {
        let answered = self.ask_by(&Actor::default(), operation, |attached| &attached.steady)?;
        Ok((succeeded(answered.outcome)?, answered.losses))
    }

    fn ask_by(
        &self,
        actor: &Actor,
        operation: FileOperation,
        client: fn(&Attached) -> &Client,
    ) -> Result<Answered> {
        check(actor, &operation)?;
        let since = self.told.last();
        let (number, answered) = self.numbers.lock().begin();
        let asked = FileAsked { number, answered, actor: actor.clone(), operation };
        let result = self.ask_numbered(&asked, client);
        // An operation that was given up is never asked again, so nobody needs its outcome.
        self.numbers.lock().open.remove(&number);
        let (answer, sent, losses) = result?;
        let FileAnswer { valid_ms, outcome, folders, limited } = answer;
        if let Some(limited) = limited {
            self.limited.store(limited, Ordering::Relaxed);
        }
        let keep = |ms: u32| Told::keep(since, sent, Duration::from_millis(ms.into()));
        Ok(Answered { outcome, keep: keep(valid_ms), folders, folders_keep: keep(FOLDERS_MS), losses })
    }

    /// Asks until there is an answer. Returns it with the time of the question, and with the number of times
    /// that the session had begun anew which was answered.
    fn ask_numbered(
        &self,
        asked: &FileAsked,
        client: fn(&Attached) -> &Client,
    ) -> Result<(FileAnswer, Instant, u64)> {
        let (mut until, mut begun) = (None, None::<u64>);
        loop {
            let attached = self.attached();
            // A session that begins anew does not know what the one before it has done.
            if begun.is_some_and(|session| session != attached.secret) && !may_be_done_twice(&asked.operation)
            {
                let text = "the session began anew, and whether the operation was done before is not known";
                return Err(Error::because(Errno::Io, text));
            }
            let connected = Volumes::by(&attached.client).is_connected();
            let sent = Instant::now();
            let timeout = self.options.patience.min(ANSWER_TIMEOUT);
            let error = match Volumes::by(client(&attached)).ask(attached.number, asked.clone(), timeout) {
                Ok(answer) => return Ok((answer, sent, attached.losses)),
                Err(error) => error,
            };
            let until = *until.get_or_insert_with(|| sent + self.options.patience);
            let ended = error.kind() == ErrorKind::Fenced;
            // What was sent to nobody, or refused, was not done.
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
            if Volumes::by(&attached.client).is_connected() && !ended {
                thread::sleep(RETRY_INTERVAL);
            } else {
                self.attach_anew(attached.generation, until)?;
            }
        }
    }

    /// Attaches anew after the connection of this generation was lost.
    fn attach_anew(&self, lost: u64, until: Instant) -> Result<()> {
        let _attaching = self.attaching.lock();
        loop {
            let old = self.attached();
            if old.generation != lost {
                return Ok(());
            }
            let error = match self.attach_once(&old) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if error.kind() == ErrorKind::Interrupted || Instant::now() >= until {
                return Err(Error::of_client(&error));
            }
            thread::sleep(RETRY_INTERVAL);
        }
    }

    fn attach_once(&self, old: &Attached) -> crate::Result<()> {
        let client = Volumes::by(&old.client).reconnect("files", CONNECT_TIMEOUT)?;
        let again = Some((old.session, old.secret));
        let told = Volumes::by(&client).attach(question(&self.name, &self.options, again), None)?;
        if told.info.number != old.info.number {
            let text = format!("volume '{}' is another one than before: umount it and mount it", self.name);
            return Err(crate::Error::new(ErrorKind::Lost, text));
        }
        // The home takes no word of whoever is not trusted.
        if !told.fresh && told.trusted {
            let opens = self.opens.get().map(|opens| opens()).unwrap_or_default();
            // A program that is killed does not end the session of the others.
            let steady = client.clone().interruptible(|| false);
            Volumes::by(&steady).tell_opened(told.volume, &opens)?;
        }
        let losses = old.losses + u64::from(told.fresh);
        *self.attached.write() = Arc::new(Attached::of(client, told, old.generation + 1, losses));
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
    /// Number by which the home knows that the session is its user's.
    pub(super) fn secret(&self) -> u64 {
        self.secret
    }

    fn of(client: Client, told: replies::VolumeAttached, generation: u64, losses: u64) -> Self {
        let replies::VolumeAttached { volume, session, secret, trusted, info, .. } = told;
        let steady = client.clone().interruptible(|| false);
        Self { client, steady, number: volume, session, secret, info, trusted, generation, losses }
    }
}

/// The outcome, unless it is a failure.
pub(super) fn succeeded(outcome: FileOutcome) -> Result<FileOutcome> {
    match outcome {
        FileOutcome::Failed(errno) => Err(errno.into()),
        outcome => Ok(outcome),
    }
}

/// Whether an operation may be asked of a session that began anew, though the one before may have done it.
/// Opens, locks and credit are the session's, so that they went with it.
fn may_be_done_twice(operation: &FileOperation) -> bool {
    match operation {
        FileOperation::Open { truncate, .. } => !truncate,
        FileOperation::Lock { .. } | FileOperation::Reserve { .. } => true,
        other => !other.changes(),
    }
}

/// Refuses what is longer than an operation can be: the node would take it for a malformed request, and end
/// the connection.
fn check(actor: &Actor, operation: &FileOperation) -> Result<()> {
    use FileOperation::{Append, Closed, Commit, Tidy};
    let (many, most, what) = match operation {
        _ if actor.groups.len() > MAX_GROUPS => (actor.groups.len(), MAX_GROUPS, "groups of a user"),
        Commit { sections, .. } | Tidy { sections, .. } => (sections.len(), MAX_SECTIONS, "sections"),
        Append { written: Written::Sections(sections), .. } => (sections.len(), MAX_SECTIONS, "sections"),
        Append { written: Written::Bytes(bytes), .. } => (bytes.len(), MAX_INLINE, "bytes"),
        Closed { inodes } => (inodes.len(), MAX_CLOSED, "inodes"),
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

/// Error of an outcome of another kind than the operation has.
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
        let closed = |many| FileOperation::Closed { inodes: vec![9; many] };
        let of_groups = |many| Actor { uid: 1, gid: 1, groups: vec![7; many] };
        assert_eq!(check(&of_groups(MAX_GROUPS), &closed(MAX_CLOSED)), Ok(()));
        let refused = |actor, operation| check(&actor, &operation).map_err(|error| error.errno());
        assert_eq!(refused(of_groups(MAX_GROUPS + 1), FileOperation::Usage), Err(Errno::TooMany));
        assert_eq!(refused(of_groups(0), closed(MAX_CLOSED + 1)), Err(Errno::TooMany));
        let written = Written::Bytes(vec![0; MAX_INLINE + 1].into());
        let append =
            FileOperation::Append { inode: 9, written, drops_privileges: false, credit: 0, credit_of: 0 };
        assert_eq!(refused(of_groups(0), append), Err(Errno::TooMany));
    }

    #[test]
    fn a_change_is_not_done_by_two_sessions() {
        let open = |truncate| FileOperation::Open { inode: 9, read: true, write: true, truncate };
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
