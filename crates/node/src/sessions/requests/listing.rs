//! Listings: a row for every object, a page of the table at a time. Engine thread only.
//!
//! A page is some shares of the table, looked through in one turn; the next comes in a later one, and not
//! before the client has read most of what it was sent. So neither the others' waiting nor the memory it
//! takes grows with the table, but for the rows of one share.
//!
//! The table changes meanwhile. Whatever was there from beginning to end is in the listing, exactly once;
//! what came or went may be or not.

use std::rc::Rc;
use std::time::Duration;

use plasmon::ObjectId;
use plasmon::wire::{MAX_IDS, ObjectInfo, Reply};

use crate::kernel::ClientKey;
use crate::kernel::random::HashSet;
use crate::object::Table;
use crate::sessions::Sessions;

/// Rows of a page, at least: less is answered at once.
const PAGE_ROWS: usize = 4096;
/// Rows in one frame.
const FRAME_ROWS: usize = MAX_IDS / 2;
/// What a listing of several pages weighs, in objects.
const LISTING_WEIGHT: usize = 64;
/// How often is looked whether a client that is behind has read.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A listing under way.
struct Listing {
    client: ClientKey,
    request: u64,
    tenant: u32,
    /// When it began: ages are as of then.
    now: u64,
    /// The next share of the table.
    shard: usize,
    /// Those listed as not sealed yet.
    creating: HashSet<ObjectId>,
}

impl Sessions {
    pub(super) fn list(self: &Rc<Self>, client: ClientKey, request: u64) {
        let tenant = self.client(client, |client| client.uid);
        let now = self.kernel.clock.unix_ms();
        let rows = self.store.objects.borrow().list_others(tenant, &self.store.scan_pins(), now);
        let unsealed = rows.iter().filter(|row| row.state == plasmon::ObjectState::Unsealed);
        let creating = unsealed.map(|row| row.id).collect();
        let mut listing = Listing { client, request, tenant, now, shard: 0, creating };
        listing.page(self, rows);
        if listing.is_done() {
            return;
        }
        let sessions = Rc::clone(self);
        self.wait(client, request, LISTING_WEIGHT, async move {
            while !listing.is_done() {
                let behind = sessions.client(client, |client| client.session.is_behind());
                sessions.kernel.clock.sleep(if behind { LOOK_INTERVAL } else { Duration::ZERO }).await;
                if !sessions.client(client, |client| client.session.is_behind()) {
                    listing.page(&sessions, Vec::new());
                }
            }
        });
    }
}

impl Listing {
    fn is_done(&self) -> bool {
        self.shard == Table::SHARDS
    }

    /// Sends the next page, behind rows that were found already.
    fn page(&mut self, sessions: &Sessions, mut rows: Vec<ObjectInfo>) {
        let fast = sessions.store.scan_pins();
        let objects = sessions.store.objects.borrow();
        while rows.len() < PAGE_ROWS && !self.is_done() {
            let sealed = objects.list_sealed(self.shard, self.tenant, &fast, self.now);
            rows.extend(sealed.filter(|row| !self.creating.contains(&row.id)));
            self.shard += 1;
        }
        let mut rows = rows.into_iter().peekable();
        loop {
            let objects = rows.by_ref().take(FRAME_ROWS).collect();
            let more = rows.peek().is_some();
            let reply = Reply::List { objects, more: more || !self.is_done() };
            sessions.reply(self.client, self.request, &reply);
            if !more {
                return;
            }
        }
    }
}
