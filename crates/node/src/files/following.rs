//! Connections that follow sessions. By them clients of this node are told of changes by others. Owns
//! [`Following`]. Engine thread only.
//!
//! A home tells the node of a session what the session must not keep any more, and this node tells the
//! follower. The client's confirmation goes back to the home under the session's own key, so no client
//! confirms for another. Invariants: a session has one follower at most. A follower that does not read is
//! told nothing more, and so confirms nothing.

use std::cell::RefCell;
use std::rc::Rc;

use plasmon::wire::Reply;
use plasmon::wire::files::Stale;
use plasmon::{Error, ErrorKind, NodeId};

use super::Files;
use super::frames::{FileFrame, SessionKey};
use super::volume::Volume;
use super::watch::{News, Waiting};
use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;

/// The connections that follow sessions.
#[derive(Default)]
pub(super) struct Following {
    /// Connection that follows a session, with the number of its request, by volume and session.
    followers: RefCell<HashMap<(u32, u32), (ClientKey, u64)>>,
    /// Volume and session that a connection follows, by connection.
    followed: RefCell<HashMap<ClientKey, (u32, u32)>>,
}

impl Following {
    /// Whether a session has a follower, so that it is told of changes by others.
    pub(super) fn follows(&self, key: &SessionKey) -> bool {
        self.followers.borrow().contains_key(&(key.volume, key.session))
    }

    fn begin(&self, session: (u32, u32), follower: (ClientKey, u64)) {
        self.end(follower.0);
        if let Some((before, _)) = self.followers.borrow_mut().insert(session, follower) {
            self.followed.borrow_mut().remove(&before);
        }
        self.followed.borrow_mut().insert(follower.0, session);
    }

    /// Forgets a connection that has ended.
    pub(super) fn end(&self, client: ClientKey) {
        if let Some(session) = self.followed.borrow_mut().remove(&client) {
            self.followers.borrow_mut().remove(&session);
        }
    }

    /// Forgets the follower of a session that has ended.
    pub(super) fn end_session(&self, key: &SessionKey) {
        if let Some((client, _)) = self.followers.borrow_mut().remove(&(key.volume, key.session)) {
            self.followed.borrow_mut().remove(&client);
        }
    }
}

impl Files {
    /// Lets a connection follow a session that another connection of this node has.
    ///
    /// # Errors
    /// `NotFound` if no client of the same user has this session here.
    pub(super) fn follow(
        &self,
        (client, request): (ClientKey, u64),
        volume: u32,
        session: u32,
        secret: u64,
    ) -> Result<(), Error> {
        let (key, user) = (SessionKey { volume, session, secret }, self.user(client));
        let found = self.attached.find(volume, session);
        if !found.is_some_and(|has| has.key == key && has.user == user) {
            if found.is_some() {
                self.blame(client, volume, "asks to follow a session of a volume that is another's");
            }
            let text = "no client of this user has this session of a volume here: attach first";
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        self.following.begin((volume, session), (client, request));
        let begun = Reply::VolumeStale { number: 0, stale: Vec::new() };
        self.sessions.reply(client, request, &begun);
        Ok(())
    }

    /// Tells sessions of a volume whose home is this node what they must not keep any more.
    pub(super) fn tell_stale(&self, volume: &Volume, news: News) {
        let News { number, told } = news;
        for (session, stale) in told {
            let node = volume.state.borrow().sessions.get(&session).map(|session| session.node);
            match node {
                Some(node) if node == self.kernel.node => {
                    self.on_stale(node, (volume.number, session), number, stale);
                }
                Some(node) => {
                    let frame = FileFrame::Told { volume: volume.number, session, number, stale };
                    self.network.tell(node, frame);
                }
                None => {}
            }
        }
    }

    /// Passes a home's message to the follower of a session.
    pub(super) fn on_stale(&self, home: NodeId, session: (u32, u32), number: u64, stale: Vec<Stale>) {
        let attached = self.attached.find(session.0, session.1);
        let Some(attached) = attached.filter(|_| self.home_of(session.0) == Some(home)) else { return };
        let follower = self.following.followers.borrow().get(&session).copied();
        let Some((client, request)) = follower else {
            // A session without a follower cannot be asked to do anything, so the home need not wait for it.
            if stale.iter().all(|one| matches!(one, Stale::Waiting { .. } | Stale::Mapped { .. })) {
                self.pass_on(home, attached.key, number);
            }
            return;
        };
        // A client that does not read cannot confirm. The home waits for it only for a time.
        if !self.sessions.client(client, |client| client.session.is_behind()) {
            self.sessions.reply(client, request, &Reply::VolumeStale { number, stale });
        }
    }

    /// Passes a client's confirmation on to the home.
    pub(super) fn confirm(&self, client: ClientKey, number: u64) {
        let Some((volume, session)) = self.following.followed.borrow().get(&client).copied() else { return };
        let Some(attached) = self.attached.find(volume, session) else { return };
        if let Some(home) = self.home_of(volume) {
            self.pass_on(home, attached.key, number);
        }
    }

    fn pass_on(&self, home: NodeId, key: SessionKey, number: u64) {
        if home == self.kernel.node {
            self.on_confirmed(home, &key, number);
        } else {
            self.network.tell(home, FileFrame::Confirmed { key, number });
        }
    }

    /// Notes the confirmation of a session that a node has passed on.
    pub(super) fn on_confirmed(&self, node: NodeId, key: &SessionKey, number: u64) {
        if let Some(volume) = self.volume_of(key.volume).filter(|volume| volume.knows(node, key)) {
            volume.watchers.borrow_mut().confirm(key.session, number);
        }
    }

    /// Waits until all watchers have confirmed the changes of an operation, or are not waited for any more.
    pub(super) async fn await_confirmed(self: Rc<Self>, volume: Rc<Volume>, waiting: Waiting) {
        let clock = &self.kernel.clock;
        for (number, due, done) in waiting.confirmed {
            if clock.bounded(Some(due), done).await.is_none() {
                volume.watchers.borrow_mut().give_up(number, clock.now());
            }
        }
        if let Some(over) = waiting.over {
            clock.until(over).await;
        }
    }
}
