//! Operations of this node's clients: how they get to the homes, and how homes carry them out. Owns no state.
//! Engine thread only.
//!
//! An operation goes to the home that the record of the volume names. It is asked again under its number
//! until a home answers. [`Opened`](super::opens::Opened) counts its opens and closes. Invariant: an
//! operation that was counted is not asked of a home again, since a new home was told its opens.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use plasmon::shared::CallRequest;
use plasmon::wire::files::{Errno, FileAnswer, FileAsked, FileOperation, FileOutcome, FilesCall, encoded};
use plasmon::wire::{BySlot, Reply};
use plasmon::{Error, ErrorKind, NodeId};

use super::Files;
use super::attached::{Attached, HOME_PATIENCE, HOME_PAUSE, Reach};
use super::cut::Operation;
use super::frames::{FileFrame, ask};
use crate::kernel::ClientKey;
use crate::service::{Answer, Return};

/// Time for which a home lets an operation of another node wait for a lock before that node asks again.
const LOCK_PATIENCE: Duration = Duration::from_secs(4);
/// Time for which an operation waits for a volume without a home.
const HOMELESS_PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of bytes of an operation that is sent to another node.
const MAX_SENT_BYTES: usize = 15 << 10;

/// Wait until all watchers have confirmed the changes of an operation, and mirrors have them.
type Confirmed = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// Answer of a home, and the wait before the answer may be given.
struct Reached {
    answer: FileAnswer,
    waits: Option<Confirmed>,
}

impl Files {
    fn attached_to(&self, client: ClientKey, volume: u32) -> Result<Attached, Error> {
        self.attached.get(client, volume).inspect_err(|_| {
            // A client may still name volumes that it was attached to before.
            if self.attached.was_never(client, volume) {
                self.blame(client, volume, "asks for an operation on a volume that it is not attached to");
            }
        })
    }

    /// Carries out a client's operation that came by its socket.
    pub(super) fn on_file(self: &Rc<Self>, client: ClientKey, volume: u32, asked: FileAsked) -> Answer {
        let attached = match self.attached_to(client, volume) {
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
        let call = FilesCall::decode(request.opcode, request.arguments, &request.payload);
        let Some(FilesCall::OnFile { volume, asked }) = call else {
            let text = "the payload of a call is no operation on a file";
            return Return::Now(Err(Error::new(ErrorKind::Invalid, text)));
        };
        let attached = match self.attached_to(client, volume) {
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

    /// Returns the answer that this node can give at once: as the home, or to an operation that it has
    /// counted. `None` if the operation waits for other sessions or nodes, or this node does not decide now.
    fn at_once(self: &Rc<Self>, attached: &Attached, asked: &FileAsked) -> Option<Result<Reached, Error>> {
        if let Some(answer) = self.opened.again(&attached.key, asked) {
            return Some(Ok(Reached { answer, waits: None }));
        }
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

    /// Finishes an operation. `begun` is the answer of this node as the home, which may have to wait.
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

    /// Counts an answer that a client is given.
    fn count(&self, attached: &Attached, asked: &FileAsked, answer: FileAnswer) -> FileAnswer {
        if attached.reach == Reach::Granted {
            self.granted.note(&attached.key, &answer.outcome);
        }
        self.opened.note(attached, asked, &answer.outcome);
        self.kinds.note(&asked.operation, &answer.outcome);
        if matches!(answer.outcome, FileOutcome::Failed(_)) {
            self.failed.set(self.failed.get() + 1);
        }
        answer
    }

    /// Carries out an operation on a volume whose home is this node. `None` if the operation waits for other
    /// sessions.
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
        // The answer may show changes of others. All mirrors have them before it is given.
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

    /// Carries out an operation on a volume whose home is this node. Waits for other sessions, and for a lock
    /// at most `patience`.
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

    /// Asks homes to carry out an operation until one answers.
    async fn operate(self: &Rc<Self>, attached: Attached, asked: FileAsked) -> Result<FileAnswer, Error> {
        let key = attached.key;
        let waits = matches!(asked.operation, FileOperation::Lock { wait: true, .. });
        let mut homeless_since = None;
        loop {
            // Another task that asks for the same operation may have been answered.
            if let Some(answer) = self.opened.again(&key, &asked) {
                return Ok(answer);
            }
            let Some(home) = self.home_of(key.volume) else {
                self.homes.await_record(key.volume).await?;
                continue;
            };
            let error = match self.operate_at(home, &attached, &asked).await {
                // An answer of a former home does not count, because the new home was told only operations
                // that were answered before.
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
                    self.kernel.clock.sleep(HOME_PAUSE).await;
                }
                _ => return Err(error),
            }
        }
    }

    /// Asks a node to carry out an operation as the home.
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
        if encoded(asked).len() > MAX_SENT_BYTES {
            return Ok(FileAnswer::of(FileOutcome::Failed(Errno::TooMany)));
        }
        let follows = self.following.follows(&key);
        let question = ask::Operate { key, follows, asked: asked.clone() };
        let ask::Operated { answer } = self.network.ask(home, user, question, HOME_PATIENCE).await?;
        Ok(answer)
    }

    /// Carries out an operation of another node's client, and returns the answer to its frame.
    pub(super) async fn operate_for(
        self: &Rc<Self>,
        node: NodeId,
        user: u32,
        operation: &Operation<'_>,
    ) -> Result<FileFrame, Error> {
        let key = operation.key;
        let volume = self.volume_of(key.volume).ok_or_else(|| self.not_here(key.volume))?;
        if !volume.knows(node, key) {
            volume.blame_stranger(&volume.state.borrow(), (node, user), key);
            return Err(Error::new(ErrorKind::Fenced, "the session has ended: attach to the volume anew"));
        }
        let answer = self.operate_here(operation, Some(LOCK_PATIENCE)).await?;
        Ok(FileFrame::Operated { answer })
    }
}

/// Makes the error for a home that is no member now.
fn away(home: NodeId, error: &Error) -> Error {
    let text = format!("node {home}, the home of the volume, is not a member now: {}", error.message());
    Error::new(ErrorKind::Disconnected, text)
}
