//! Files as a service: their frames, their requests and calls by slot, and their reactions to events. Owns no
//! state: it acts on [`Files`]. Engine thread only.

use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Instant;

use plasmon::shared::CallRequest;
use plasmon::status::{FilesStatus, Status};
use plasmon::wire::files::{FileReads, FilesCall, Peeking, Settling};
use plasmon::wire::{BySlot, Request, Table, WireError};
use plasmon::{Error, NodeId};

use super::Files;
use super::attached::{Asked as Attaching, Attached, Reach};
use super::cut::Operation;
use super::decide::Limits;
use super::frames::{FILE_FRAMES, FileFrame};
use super::inherited::Part;
use super::making::create_here;
use super::peek::Wish;
use super::volume::Volume;
use crate::kernel::ClientKey;
use crate::membership::views::Change;
use crate::net::frame::{Envelope, Frames, Message};
use crate::service::{Answer, Asked, Return, Service};
use crate::sessions::client::Client;

impl Service for Files {
    fn name(&self) -> &'static str {
        "files"
    }

    fn frames(&self) -> RangeInclusive<u8> {
        FILE_FRAMES
    }

    fn requests(&self) -> RangeInclusive<u8> {
        150..=169
    }

    fn calls(&self) -> RangeInclusive<u8> {
        FilesCall::FIRST..=FilesCall::LAST
    }

    fn on_frame(self: Rc<Self>, mut frame: Envelope) -> Result<(), WireError> {
        if !frame.answers && frame.reply_to != frame.from {
            return Err(WireError::Malformed("frame about files: its answer is for another node"));
        }
        let message = std::mem::replace(&mut frame.message, Message::Done);
        let from = frame.from;
        match FileFrame::from_message(message)? {
            FileFrame::Changes { at, sent, part, last, changes } => {
                self.homes.on_changes(from, at, sent, (part, last), changes)?
            }
            FileFrame::Beat { at, sent } => self.homes.on_beat(from, at, sent),
            FileFrame::Applied { at, sent, is_there } => {
                if let Some(volume) = self.volume_of(at.volume) {
                    volume.log.confirm(from, &at, sent, is_there);
                }
            }
            FileFrame::LetGo { volume } => {
                if let Some(volume) = self.volume_of(volume) {
                    volume.log.let_go(from);
                }
            }
            // This node may have objects of the session.
            FileFrame::SessionEnded { .. } => self.sweep_soon(),
            FileFrame::Told { volume, session, number, stale } => {
                self.on_stale(from, (volume, session), number, stale);
            }
            FileFrame::Confirmed { key, number } => self.on_confirmed(from, &key, number),
            FileFrame::Condemned { ids } => self.let_condemned_go(&ids),
            FileFrame::Discarded { volume, session, below } => self.sweep_below(volume, session, below),
            other => self.act(frame, other),
        }
        Ok(())
    }

    fn on_request(self: Rc<Self>, asked: Asked) -> Result<Answer, WireError> {
        let client = asked.session;
        Ok(match asked.request {
            Request::AttachVolume { name, create, read_only, checked, again } => {
                let asked = Attaching { name, create, read_only, checked, again };
                Answer::plain(1, self.attach(client, asked))
            }
            Request::OnFile { volume, asked } => self.on_file(client, volume, asked),
            Request::WatchVolume { volume, session, secret } => {
                match self.follow((client, asked.number), volume, session, secret) {
                    Ok(()) => Answer::Silent,
                    Err(error) => Answer::now(Err(error)),
                }
            }
            Request::ConfirmStale { number } => {
                self.confirm(client, number);
                Answer::Silent
            }
            Request::TellOpened { volume, opens, more } => {
                Answer::now(self.on_opened(client, volume, opens, more))
            }
            Request::DetachVolume { volume } => Answer::now(self.detach(client, volume)),
            Request::Settle(Settling { volume, ids, place, copies }) => {
                Answer::plain(1, self.settle(client, volume, ids, (place, copies)))
            }
            Request::CountReads(reads) => {
                self.count_reads(client, &reads);
                Answer::Silent
            }
            Request::LookAfter { volume, ids, copies } => {
                Answer::plain(1, self.look_after(client, volume, ids, copies))
            }
            Request::CheckVolume { volume, node, sweep } => {
                Answer::plain(1, self.check(client, volume, node, sweep))
            }
            Request::Peek(Peeking { volume, id, node, at, len }) => {
                Answer::plain(1, self.peek(client, volume, Wish { id, node, at, len }))
            }
            Request::BeginSettling(Settling { volume, ids, place, copies }) => {
                self.begin_settling(client, volume, &ids, (place, copies));
                Answer::Silent
            }
            Request::CreateVolume { name, home, terms } => {
                Answer::plain(1, self.create(client, name, home, terms))
            }
            Request::ListVolumes { node, from } => Answer::plain(1, self.list(client, node, from)),
            Request::SetVolume { name, change } => Answer::plain(1, self.set(client, name, change)),
            Request::RemoveVolume { name, lost } => Answer::plain(1, self.remove(client, name, lost)),
            other => return Err(WireError::Opcode(other.opcode())),
        })
    }

    fn on_call(self: Rc<Self>, client: ClientKey, request: CallRequest) -> Return {
        self.on_files_call(client, &request)
    }

    fn on_gone(&self, gone: &[NodeId]) {
        for volume in self.homes.volumes.borrow().values() {
            volume.log.lose(gone);
        }
    }

    fn on_change(self: Rc<Self>, change: &Change) {
        if let Change::View(view) = change
            && view.begins
        {
            self.placing.begin_anew();
        }
        // A node that is no member follows no records.
        if !matches!(change, Change::Fenced { .. }) {
            self.follow_records();
        }
    }

    fn on_turn_end(self: Rc<Self>) -> bool {
        self.homes.flush_logs();
        false
    }

    fn on_session_end(&self, client: ClientKey) {
        let Some(files) = self.own.upgrade() else { return };
        self.following.end(client);
        self.long.end(client);
        for attached in self.attached.close_all(client) {
            self.placing.forget(&attached.key);
            self.granted.forget(&attached.key);
            self.following.end_session(&attached.key);
            files.end_session(attached);
        }
    }

    fn on_tick(self: Rc<Self>, now: Instant) {
        self.follow_records();
        if self.placement.is_draining() {
            self.homes.let_mirrors_go();
        }
        self.count_memory();
        let free = self.store.arena.borrow_mut().usage().free;
        self.limits.set(Limits { free, ..self.limits.get() });
        let volumes: Vec<_> = self.homes.volumes.borrow().values().cloned().collect();
        for volume in &volumes {
            volume.watchers.borrow_mut().turn(now);
            volume.lapse(now);
            volume.blame_silent();
            if self.cluster.fenced() {
                // This node is cut off, so it does not know which nodes are away.
                volume.forget_orphans();
            } else if volume.end_orphans(
                |node| self.cluster.is_member(node),
                now,
                self.homes.end_of_orphans(),
            ) {
                self.tell_ended(volume.number);
                self.sweep_soon();
            }
            self.delete_condemned(volume);
        }
    }

    fn report(&self, status: &mut Status) {
        let volumes = self.homes.volumes.borrow();
        let sum = |of: fn(&Volume) -> u64| volumes.values().map(|volume| of(volume)).sum();
        let (blocks, block_bytes) = self.blocks();
        let tally = self.homes.tally();
        status.files = FilesStatus {
            volumes: volumes.len() as u64,
            inodes: sum(|volume| volume.counts().1),
            bytes: sum(|volume| volume.counts().0),
            memory: sum(|volume| volume.state.borrow().memory),
            memory_limit: self.limits.get().memory,
            sessions: sum(|volume| volume.state.borrow().sessions.len() as u64),
            credit: sum(|volume| volume.state.borrow().credit),
            credit_lapsed: tally.lapsed,
            decided: tally.decided,
            mirrors: self.homes.mirrors.borrow().len() as u64,
            batches: tally.batches,
            batch_bytes: tally.batch_bytes,
            batches_applied: self.homes.applied.get(),
            unconfirmed: sum(|volume| volume.log.waiting()),
            condemned: sum(|volume| volume.state.borrow().condemned.len() as u64),
            deleted: self.sweeping.deleted.get(),
            attached: self.attached.count(),
            blocks,
            block_bytes,
            reads_here: self.reads[0].get(),
            reads_brought: self.reads[1].get(),
            asked: self.kinds.counts().all(),
            kinds: self.kinds.counts(),
            written_bytes: self.kinds.written_bytes(),
            read_bytes: self.reads[2].get(),
            failed: self.failed.get(),
            told: tally.told,
            confirmed: tally.confirmed,
            missed: tally.missed,
            ranges_asked: self.peeking.asked.get(),
            ranges_read: self.peeking.read.get(),
            ranges_given: self.peeking.given.get(),
            ..self.placing.report()
        };
    }
}

impl Files {
    /// Counts how reads of a client were served.
    fn count_reads(&self, client: ClientKey, reads: &FileReads) {
        if self.attached.get(client, reads.volume).is_ok() {
            for (count, more) in self.reads.iter().zip([reads.here, reads.brought, reads.bytes]) {
                count.set(count.get().saturating_add(more));
            }
        }
    }

    /// Returns number and bytes of the blocks that clients with volumes have borrowed.
    fn blocks(&self) -> (u64, u64) {
        let of = |client| self.sessions.client(client, Client::lent_bytes);
        let add = |sum: (u64, u64), one: (u64, u64)| (sum.0 + one.0, sum.1 + one.1);
        self.attached.clients().into_iter().map(of).fold((0, 0), add)
    }

    /// Acts on a member's frame. The message of the envelope was taken out, and is `frame`.
    fn act(self: &Rc<Self>, asked: Envelope, frame: FileFrame) {
        let (from, user) = (asked.from, asked.user);
        if asked.answers {
            // No task waits for the answer any more, so the session that it brings ends.
            if let FileFrame::Attached { key, fresh, .. } = frame {
                self.end_untaken(Attached { key, user, reach: Reach::Own }, fresh);
            }
            return;
        }
        let files = Rc::clone(self);
        self.kernel.spawn(async move {
            let answer = files.answer_to(from, user, frame).await;
            match answer {
                Ok(Some(answer)) => files.network.answer(&asked, answer),
                Ok(None) => {}
                Err(error) => files.network.answer(&asked, Message::Refused { error }),
            }
        });
    }

    /// Returns the answer to a node's frame. `None` if the frame is an answer itself.
    async fn answer_to(
        self: &Rc<Self>,
        from: NodeId,
        user: u32,
        frame: FileFrame,
    ) -> Result<Option<FileFrame>, Error> {
        Ok(Some(match frame {
            FileFrame::Operate { key, follows, asked } => {
                self.operate_for(from, user, &Operation { key: &key, follows, asked: &asked }).await?
            }
            FileFrame::Attach { name, wish } => self.attach_here(&name, from, user, wish).await?.into(),
            FileFrame::Detach { key } => {
                self.end_here(from, &key);
                FileFrame::Ended
            }
            FileFrame::Create { name, terms } => {
                FileFrame::Described { info: create_here(self, &name, user, terms).await? }
            }
            FileFrame::Set { name, change } => {
                FileFrame::Described { info: self.homes.set_here(&name, user, change).await? }
            }
            FileFrame::Remove { name } => {
                self.remove_here(&name, user).await?;
                FileFrame::Ended
            }
            FileFrame::List { from } => {
                let (volumes, next) = self.homes.page(from);
                FileFrame::Listed { volumes, next }
            }
            FileFrame::Sweep { volume, ids } => {
                let mut left = Vec::new();
                if let Some(volume) = self.volume_of(volume) {
                    volume.settled().await?;
                    left = volume.swept(ids);
                }
                FileFrame::Swept { ids: left }
            }
            FileFrame::Join { volume, number, created } => {
                self.homes.join_here(from, volume, number, created).await?;
                FileFrame::Ended
            }
            FileFrame::TellOpens { key, telling, part, opens, more } => {
                self.on_opens(from, &key, Part { telling, number: part, opens, more }).await?;
                FileFrame::Ended
            }
            FileFrame::Pull { order, lying } => {
                self.placing.take_pulled(order, user, lying).await?;
                FileFrame::HasRoom { room: self.placing.room_here() }
            }
            FileFrame::Peek { id, at, len } => self.give_range(from, user, id, at, len).await?,
            FileFrame::Check { volume, sweep } => {
                FileFrame::Checked { checked: self.check_here(volume, sweep).await? }
            }
            FileFrame::AskRoom => FileFrame::HasRoom { room: self.placing.room_here() },
            FileFrame::Operated { .. }
            | FileFrame::Attached { .. }
            | FileFrame::Ended
            | FileFrame::Described { .. }
            | FileFrame::Listed { .. }
            | FileFrame::SessionEnded { .. }
            | FileFrame::Told { .. }
            | FileFrame::Confirmed { .. }
            | FileFrame::Condemned { .. }
            | FileFrame::Discarded { .. }
            | FileFrame::Checked { .. }
            | FileFrame::Changes { .. }
            | FileFrame::Beat { .. }
            | FileFrame::Applied { .. }
            | FileFrame::LetGo { .. }
            | FileFrame::HasRoom { .. }
            | FileFrame::Peeked { .. }
            | FileFrame::Swept { .. } => return Ok(None),
        }))
    }
}
