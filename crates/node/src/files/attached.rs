//! What clients of this node are attached to, and how their operations get to the homes. Engine thread only.
//!
//! An operation goes to the home that the record of the volume names, and is asked again under its number
//! until a home answers. A session ends with the connection of its client. What its sessions have open a node
//! tells a new home, before it asks that for anything else.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use plasmon::shared::CallRequest;
use plasmon::text::printable;
use plasmon::wire::files::{
    Errno, FileAnswer, FileAsked, FileOperation, FileOutcome, FilesCall, VolumeInfo, VolumeTerms, encoded,
};
use plasmon::wire::{MAX_NAME, Reply};
use plasmon::{Error, ErrorKind, NodeId};

use super::Files;
use super::access::is_trusted;
use super::cut::Operation;
use super::frames::{FileFrame, SessionKey, Wish, ask};
use super::homes::no_volume;
use super::record::Whereabouts;
use crate::kernel::ClientKey;
use crate::kernel::random::{HashMap, HashSet};
use crate::service::{Answer, Return};

/// How long a home may take to answer before it is asked again.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// How long a home lets an operation of another node wait for a lock before that asks again.
pub(super) const LOCK_PATIENCE: Duration = Duration::from_secs(4);
/// How long an operation waits for a volume without a home.
const HOMELESS_PATIENCE: Duration = Duration::from_secs(60);
/// Pause before a home is asked again that could not be reached.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// How many leases of a node the sessions of its clients outlast it, so that they can go on elsewhere.
pub(super) const LEASES: u32 = 2;
/// Maximum number of bytes of an operation for another node.
const MAX_SENT: usize = 15 << 10;
/// Maximum number of volumes that a client is attached to.
const MAX_ATTACHED: usize = 64;

/// A volume that a client is attached to.
#[derive(Clone, Copy)]
pub(super) struct Attached {
    pub(super) key: SessionKey,
    pub(super) user: u32,
    pub(super) reach: Reach,
}

/// Which objects of its volume a session reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Those of its user: there are no others.
    Own,
    /// Those of all users.
    All,
    /// The ranges that its home has told it of.
    Granted,
}

impl Reach {
    fn of(info: &VolumeInfo, trusted: bool) -> Self {
        match (info.terms.shared, trusted) {
            (false, _) => Self::Own,
            (true, true) => Self::All,
            (true, false) => Self::Granted,
        }
    }
}

/// What ends when those who watched have confirmed what an operation has changed.
type Confirmed = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// What a home answers, and what the answer waits for.
struct Reached {
    answer: FileAnswer,
    waits: Option<Confirmed>,
}

/// The volumes of one client.
#[derive(Default)]
struct Own {
    volumes: HashMap<u32, Attached>,
    last: u32,
}

/// The volumes that all clients of this node are attached to.
#[derive(Default)]
pub(super) struct AllAttached {
    clients: RefCell<HashMap<ClientKey, Own>>,
}

impl AllAttached {
    pub(super) fn get(&self, client: ClientKey, volume: u32) -> Result<Attached, Error> {
        let clients = self.clients.borrow();
        clients.get(&client).and_then(|own| own.volumes.get(&volume)).copied().ok_or_else(|| {
            let text = format!("this connection is not attached to a volume {volume}: attach first");
            Error::new(ErrorKind::Invalid, text)
        })
    }

    fn open(&self, client: ClientKey, attached: Attached) -> u32 {
        let mut clients = self.clients.borrow_mut();
        let own = clients.entry(client).or_default();
        own.last += 1;
        own.volumes.insert(own.last, attached);
        own.last
    }

    fn is_full(&self, client: ClientKey) -> bool {
        let clients = self.clients.borrow();
        clients.get(&client).is_some_and(|own| own.volumes.len() >= MAX_ATTACHED || own.last == u32::MAX)
    }

    /// All volumes that clients are attached to, each session once.
    pub(super) fn all(&self) -> Vec<Attached> {
        let clients = self.clients.borrow();
        let all = clients.values().flat_map(|own| own.volumes.values().copied());
        let mut all: Vec<_> = all.map(|one| ((one.key.volume, one.key.session), one)).collect();
        all.sort_unstable_by_key(|(session, _)| *session);
        all.dedup_by_key(|(session, _)| *session);
        all.into_iter().map(|(_, one)| one).collect()
    }

    fn close(&self, client: ClientKey, volume: u32) -> Option<Attached> {
        self.clients.borrow_mut().get_mut(&client)?.volumes.remove(&volume)
    }

    /// Takes all that a client is attached to.
    pub(super) fn close_all(&self, client: ClientKey) -> Vec<Attached> {
        let own = self.clients.borrow_mut().remove(&client).unwrap_or_default();
        let mut all: Vec<_> = own.volumes.into_iter().collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, attached)| attached).collect()
    }

    /// The session of this number that a client of this node has.
    pub(super) fn find(&self, volume: u32, session: u32) -> Option<Attached> {
        let clients = self.clients.borrow();
        let mut all = clients.values().flat_map(|own| own.volumes.values());
        all.find(|attached| (attached.key.volume, attached.key.session) == (volume, session)).copied()
    }

    /// Whether a client of this node has a session.
    pub(super) fn has(&self, volume: u32, session: u32) -> bool {
        self.find(volume, session).is_some()
    }

    /// All sessions that clients of this node have, each with its volume.
    pub(super) fn sessions(&self) -> HashSet<(u32, u32)> {
        let clients = self.clients.borrow();
        let all = clients.values().flat_map(|own| own.volumes.values());
        all.map(|attached| (attached.key.volume, attached.key.session)).collect()
    }

    /// Clients that are attached to a volume.
    pub(super) fn clients(&self) -> Vec<ClientKey> {
        let clients = self.clients.borrow();
        clients.iter().filter(|(_, own)| !own.volumes.is_empty()).map(|(client, _)| *client).collect()
    }

    /// Number of sessions.
    pub(super) fn count(&self) -> u64 {
        self.clients.borrow().values().map(|own| own.volumes.len() as u64).sum()
    }
}

/// What a client asks for when it attaches.
pub(super) struct Asked {
    pub(super) name: String,
    pub(super) create: bool,
    pub(super) read_only: bool,
    pub(super) checked: bool,
    pub(super) again: Option<(u32, u64)>,
}

impl Files {
    /// Attaches a client to a volume.
    pub(super) async fn attach(self: Rc<Self>, client: ClientKey, asked: Asked) -> Result<Reply, Error> {
        if self.attached.is_full(client) {
            let text = format!("this connection is attached to {MAX_ATTACHED} volumes already");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let user = self.user(client);
        let trusted = is_trusted(user);
        let (gid, groups) = self.groups(client);
        let wish = Wish {
            gid,
            groups,
            trusted,
            checked: asked.checked || !trusted,
            read_only: asked.read_only,
            again: asked.again,
        };
        let attached = self.attach_at_home(&asked.name, asked.create, user, wish).await?;
        let ask::Attached { key, fresh, info } = attached;
        self.opened.is_known(key.volume, info.home);
        let reach = Reach::of(&info, trusted);
        if self.sessions.session(client).is_none() {
            // It has gone meanwhile.
            self.end_untaken(Attached { key, user, reach }, fresh);
            return Err(Error::new(ErrorKind::Interrupted, "the client has gone"));
        }
        if trusted && !fresh {
            self.opened.await_client(&key);
        }
        let volume = self.attached.open(client, Attached { key, user, reach });
        Ok(Reply::VolumeAttached { volume, session: key.session, secret: key.secret, trusted, fresh, info })
    }

    /// Makes a session at the home of a volume, which is created if it is not there.
    async fn attach_at_home(
        self: &Rc<Self>,
        name: &str,
        create: bool,
        user: u32,
        wish: Wish,
    ) -> Result<ask::Attached, Error> {
        if name.len() > MAX_NAME {
            return Err(no_volume(name));
        }
        if create && self.cluster.volumes.named(name).is_none() {
            match self.homes.create_here(name, user, VolumeTerms::default()).await {
                // Another was first.
                Err(error) if error.kind() == ErrorKind::Exists => {}
                made => _ = made?,
            }
        }
        let attach = async |home| {
            if home == self.kernel.node {
                return self.attach_here(name, home, user, wish.clone()).await;
            }
            let question = ask::Attach { name: name.to_owned(), wish: wish.clone() };
            self.network.ask(home, user, question, PATIENCE).await
        };
        self.homes.with_home(name, attach).await
    }

    /// Makes a session of a node to a volume whose home is this node.
    ///
    /// # Errors
    /// `NotFound`, and `NotAllowed` for another user than the owner.
    pub(super) async fn attach_here(
        &self,
        name: &str,
        node: NodeId,
        user: u32,
        wish: Wish,
    ) -> Result<ask::Attached, Error> {
        let volume = self.homes.ensure_here(name)?;
        if user != volume.owner && !volume.state.borrow().terms.shared {
            let (name, owner) = (printable(name), volume.owner);
            let text = format!(
                "volume '{name}' belongs to user {owner}, and this is a process of user {user}: mount it as \
                 user {owner}, have it shared by `plasmon volume set {name} --shared true`, or use a volume \
                 of your own"
            );
            return Err(Error::new(ErrorKind::NotAllowed, text));
        }
        let (key, fresh) = volume.attach(node, user, wish).await?;
        volume.settled().await?;
        let info: VolumeInfo = volume.info(self.homes.mirrors_of(&volume));
        Ok(ask::Attached { key, fresh, info })
    }

    /// Detaches a client from a volume.
    pub(super) fn detach(self: &Rc<Self>, client: ClientKey, volume: u32) -> Result<Reply, Error> {
        self.attached.get(client, volume)?;
        if let Some(attached) = self.attached.close(client, volume) {
            self.placing.forget(&attached.key);
            self.granted.forget(&attached.key);
            self.following.end_session(&attached.key);
            self.end_session(attached);
        }
        Ok(Reply::Done)
    }

    /// Ends a session at its home, unless a client of this node has it, and deletes what it has put and not
    /// committed.
    pub(super) fn end_session(self: &Rc<Self>, attached: Attached) {
        let Attached { key, user, .. } = attached;
        if self.attached.has(key.volume, key.session) {
            return;
        }
        let files = Rc::clone(self);
        self.kernel.spawn(async move {
            while let Some(home) = files.home_of(key.volume) {
                if home == files.kernel.node {
                    files.end_here(home, &key);
                    break;
                }
                match files.network.ask(home, user, ask::Detach { key }, PATIENCE).await {
                    Ok(ask::Ended) => break,
                    Err(error) if error.kind() == ErrorKind::TimedOut => {}
                    Err(error) if error.kind() == ErrorKind::Disconnected && files.is_served(key.volume) => {
                        files.kernel.clock.sleep(PAUSE).await;
                    }
                    Err(_) => break,
                }
            }
            files.opened.forget(&files.attached.sessions());
            files.sweep_soon();
        });
    }

    /// Ends a session that no client has taken: at once if it is new. One that goes on may be about to be
    /// taken, by a client that has asked again.
    pub(super) fn end_untaken(self: &Rc<Self>, attached: Attached, fresh: bool) {
        if fresh {
            return self.end_session(attached);
        }
        let files = Rc::clone(self);
        self.kernel.spawn(async move {
            files.kernel.clock.sleep(files.kernel.config.lease * LEASES).await;
            files.end_session(attached);
        });
    }

    /// Ends a session of a node, if it still is that node's, of a volume whose home is this node. All members
    /// may have objects of it.
    pub(super) fn end_here(self: &Rc<Self>, node: NodeId, key: &SessionKey) {
        if let Some(volume) = self.volume_of(key.volume).filter(|volume| volume.knows(node, key)) {
            volume.end(key.session);
            self.delete_condemned(&volume);
            self.tell_ended(volume.number);
            self.sweep_soon();
        }
    }

    /// Carries out a client's operation that came by its socket.
    pub(super) fn on_file(self: &Rc<Self>, client: ClientKey, volume: u32, asked: FileAsked) -> Answer {
        let attached = match self.attached.get(client, volume) {
            Ok(attached) => attached,
            Err(error) => return Answer::now(Err(error)),
        };
        if let Some(answer) = self.long.take(client, volume, asked.number) {
            return Answer::now(Ok(Reply::FileDone(answer)));
        }
        match self.at_once(&attached, &asked) {
            Some(Ok(Reached { answer, waits: None })) => {
                Answer::now(Ok(Reply::FileDone(self.count(&attached, &asked, answer))))
            }
            Some(Err(error)) => Answer::now(Err(error)),
            begun => {
                let begun = begun.and_then(Result::ok);
                let done = Rc::clone(self).finish(attached, asked, begun);
                Answer::plain(1, async move { done.await.map(Reply::FileDone) })
            }
        }
    }

    /// Carries out a client's operation that came by a slot.
    pub(super) fn on_files_call(self: &Rc<Self>, client: ClientKey, request: &CallRequest) -> Return {
        let call = FilesCall::decode(request.arguments, &request.payload);
        let Ok(FilesCall { volume, asked }) = call else {
            let text = "the payload of a call is no operation on a file";
            return Return::Now(Err(Error::new(ErrorKind::Invalid, text)));
        };
        let attached = match self.attached.get(client, volume) {
            Ok(attached) => attached,
            Err(error) => return Return::Now(Err(error)),
        };
        let (files, number) = (Rc::clone(self), asked.number);
        match self.at_once(&attached, &asked) {
            Some(Ok(Reached { answer, waits: None })) => {
                let answer = self.count(&attached, &asked, answer);
                Return::Now(Ok(self.long.in_slot(client, volume, number, answer)))
            }
            Some(Err(error)) => Return::Now(Err(error)),
            begun => {
                let begun = begun.and_then(Result::ok);
                let done = Rc::clone(self).finish(attached, asked, begun);
                Return::uncertain(async move { Ok(files.long.in_slot(client, volume, number, done.await?)) })
            }
        }
    }

    /// What a home that is this node answers, unless the operation waits for a lock or the home does not
    /// decide now.
    fn at_once(self: &Rc<Self>, attached: &Attached, asked: &FileAsked) -> Option<Result<Reached, Error>> {
        self.volume_of(attached.key.volume)?;
        if asked.operation == FileOperation::Usage {
            // Other nodes are asked how much room they have.
            return None;
        }
        let follows = self.following.follows(&attached.key);
        let reached = self.run_here(&Operation { key: &attached.key, follows, asked }).transpose()?;
        match reached {
            Err(error) if error.kind() == ErrorKind::Disconnected => None,
            reached => Some(reached),
        }
    }

    /// Finishes an operation that this node may have begun as the home.
    async fn finish(
        self: Rc<Self>,
        attached: Attached,
        asked: FileAsked,
        begun: Option<Reached>,
    ) -> Result<FileAnswer, Error> {
        if let Some(Reached { answer, waits }) = begun {
            let is_told = match waits {
                Some(waits) => waits.await.is_ok(),
                None => true,
            };
            if is_told {
                return Ok(self.count(&attached, &asked, answer));
            }
        }
        self.operate(attached, asked).await
    }

    /// Notes an answer that a client is given.
    fn count(&self, attached: &Attached, asked: &FileAsked, answer: FileAnswer) -> FileAnswer {
        if attached.reach == Reach::Granted {
            self.granted.note(&attached.key, &answer.outcome);
        }
        self.opened.note(&attached.key, &asked.operation, &answer.outcome);
        self.asked.set(self.asked.get() + 1);
        if matches!(answer.outcome, FileOutcome::Failed(_)) {
            self.failed.set(self.failed.get() + 1);
        }
        answer
    }

    /// The home of a volume, as far as this node knows.
    pub(super) fn home_of(&self, volume: u32) -> Option<NodeId> {
        if self.homes.volumes.borrow().contains_key(&volume) {
            return Some(self.kernel.node);
        }
        self.cluster.volumes.get(volume).map(|record| record.home)
    }

    /// Whether a volume has a home, or will have one.
    fn is_served(&self, volume: u32) -> bool {
        let record = self.cluster.volumes.get(volume);
        self.homes.volumes.borrow().contains_key(&volume)
            || record.is_some_and(|record| self.homes.whereabouts(&record) != Whereabouts::Lost)
    }

    /// Carries out an operation on a volume whose home is this node. `None` if it waits for others.
    fn run_here(self: &Rc<Self>, operation: &Operation<'_>) -> Result<Option<Reached>, Error> {
        self.cluster.ensure_member()?;
        let number = operation.key.volume;
        let volume = self.volume_of(number).ok_or_else(|| self.not_here(number))?;
        let before = volume.state.borrow().memory;
        let ran = volume.run(operation, self.limits_of(&volume));
        let after = volume.state.borrow().memory;
        self.taken.set((self.taken.get() + after).saturating_sub(before));
        self.delete_condemned(&volume);
        let (ran, news) = ran?.split();
        self.tell_stale(&volume, news);
        let Some((answer, waiting)) = ran else { return Ok(None) };
        if let FileOperation::Discard { below } = operation.asked.operation {
            self.tell_discarded(operation.key.volume, operation.key.session, below);
        }
        let (session, number) = (operation.key.session, operation.asked.number);
        // What the answer tells of others' changes is on all mirrors as well.
        let index = volume.log.last();
        let is_told = waiting.is_none() && volume.log.is_settled(index);
        let files = Rc::clone(self);
        let waits = (!is_told).then(|| -> Confirmed {
            Box::pin(async move {
                if let Some(waiting) = waiting {
                    files.await_confirmed(Rc::clone(&volume), waiting).await;
                    volume.watchers.borrow_mut().answered(session, number);
                }
                volume.log.settled(index).await
            })
        });
        Ok(Some(Reached { answer, waits }))
    }

    /// The same, when it may wait for others, for a lock at most so long.
    ///
    /// # Errors
    /// As [`Volume::run`](super::volume::Volume::run); `Disconnected` if this node is not the home, `Lost` if
    /// the volume has gone.
    pub(super) async fn operate_here(
        self: &Rc<Self>,
        operation: &Operation<'_>,
        patience: Option<Duration>,
    ) -> Result<FileAnswer, Error> {
        let due = patience.map(|patience| self.kernel.clock.now() + patience);
        if operation.asked.operation == FileOperation::Usage
            && let Some(volume) = self.volume_of(operation.key.volume)
        {
            self.look_for_room(&volume).await;
        }
        loop {
            if let Some(Reached { answer, waits }) = self.run_here(operation)? {
                if let Some(waits) = waits {
                    waits.await?;
                }
                return Ok(answer);
            }
            if !self.await_others(operation, due).await? {
                return Ok(FileAnswer::of(FileOutcome::Failed(Errno::Again)));
            }
        }
    }

    /// Has a home carry out an operation.
    async fn operate(self: &Rc<Self>, attached: Attached, asked: FileAsked) -> Result<FileAnswer, Error> {
        let key = attached.key;
        let waits = matches!(asked.operation, FileOperation::Lock { wait: true, .. });
        let mut homeless_since = None;
        loop {
            let home = self.home_of(key.volume).ok_or_else(|| lost(key.volume))?;
            let error = match self.operate_at(home, &attached, &asked).await {
                // Of a former home this node takes no answer: the new one was told of those before alone.
                Ok(answer) if self.home_of(key.volume) == Some(home) => {
                    let again = answer.outcome == FileOutcome::Failed(Errno::Again);
                    if !(waits && again) {
                        return Ok(self.count(&attached, &asked, answer));
                    }
                    homeless_since = None;
                    continue;
                }
                Ok(_) => continue,
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::TimedOut => {}
                ErrorKind::Disconnected => {
                    let now = self.kernel.clock.now();
                    let since = *homeless_since.get_or_insert(now);
                    if !self.is_served(key.volume) || now >= since + HOMELESS_PATIENCE {
                        return Err(away(home, &error));
                    }
                    self.cluster.ensure_member()?;
                    self.kernel.clock.sleep(PAUSE).await;
                }
                _ => return Err(error),
            }
        }
    }

    /// Has a node carry out an operation as the home.
    async fn operate_at(
        self: &Rc<Self>,
        home: NodeId,
        attached: &Attached,
        asked: &FileAsked,
    ) -> Result<FileAnswer, Error> {
        let Attached { key, user, .. } = *attached;
        if home == self.kernel.node {
            let follows = self.following.follows(&key);
            return self.operate_here(&Operation { key: &key, follows, asked }, None).await;
        }
        if encoded(asked).len() > MAX_SENT {
            return Ok(FileAnswer::of(FileOutcome::Failed(Errno::TooMany)));
        }
        let follows = self.following.follows(&key);
        let question = ask::Operate { key, follows, asked: asked.clone() };
        let ask::Operated { answer } = self.network.ask(home, user, question, PATIENCE).await?;
        Ok(answer)
    }

    /// The error for a volume whose home is another node, or that has gone.
    pub(super) fn not_here(&self, volume: u32) -> Error {
        if self.cluster.volumes.get(volume).is_none() {
            return lost(volume);
        }
        let text = format!("node {} is not the home of volume number {volume}", self.kernel.node);
        Error::new(ErrorKind::Disconnected, text)
    }

    /// Answers another node's frame when an operation of its client was carried out.
    pub(super) async fn operate_for(
        self: &Rc<Self>,
        node: NodeId,
        operation: &Operation<'_>,
    ) -> Result<FileFrame, Error> {
        let key = operation.key;
        let volume = self.volume_of(key.volume).ok_or_else(|| self.not_here(key.volume))?;
        if !volume.knows(node, key) {
            return Err(Error::new(ErrorKind::Fenced, "the session has ended: attach to the volume anew"));
        }
        let answer = self.operate_here(operation, Some(LOCK_PATIENCE)).await?;
        Ok(FileFrame::Operated { answer })
    }
}

/// The error for a volume that has gone.
fn lost(volume: u32) -> Error {
    let text = format!("volume number {volume} was removed");
    Error::new(ErrorKind::Lost, text)
}

/// The error for a home that is no member now.
fn away(home: NodeId, error: &Error) -> Error {
    let text = format!("node {home}, the home of the volume, is not a member now: {}", error.message());
    Error::new(ErrorKind::Disconnected, text)
}
