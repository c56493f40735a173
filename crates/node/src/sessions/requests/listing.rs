//! Listings: a row for every object, a page of the table at a time. Engine thread only.
//!
//! A page is some shares of the table, looked through in one turn. The next page comes in a later turn, and
//! not before the client has read most of what it was sent. So the time that others wait and the memory of
//! a listing do not grow with the table, except for the rows of one share.
//!
//! The table changes during a listing. An object that exists from its beginning to its end is listed
//! exactly once; an object that comes or goes meanwhile may be listed or not.

use std::rc::Rc;
use std::time::Duration;

use plasmon::ObjectId;
use plasmon::wire::{MAX_IDS, ObjectInfo, Reply};

use super::Requests;
use crate::kernel::ClientKey;
use crate::kernel::random::HashSet;
use crate::object::Table;

/// Minimum number of rows of a page; a shorter listing is answered at once.
const PAGE_ROWS: usize = 4096;
/// Number of rows in one frame.
const FRAME_ROWS: usize = MAX_IDS / 2;
/// The weight of a listing of several pages, in objects.
const LISTING_WEIGHT: usize = 64;
/// Interval at which the node checks whether a client that is behind has read its replies.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A listing under way.
struct Listing {
    client: ClientKey,
    request: u64,
    tenant: u32,
    /// When the listing began, in milliseconds since 1970: ages are as of then.
    now: u64,
    /// The next share of the table.
    shard: usize,
    /// Objects that were listed as not sealed yet.
    creating: HashSet<ObjectId>,
}

impl Requests {
    pub(super) fn list(self: &Rc<Self>, client: ClientKey, request: u64) {
        let tenant = self.sessions.client(client, |client| client.uid);
        let now = self.kernel.clock.unix_ms();
        let rows = self.store.objects.borrow().list_others(tenant, &self.store.scan_pins(), now);
        let unsealed = rows.iter().filter(|row| row.state == plasmon::ObjectState::Unsealed);
        let creating = unsealed.map(|row| row.id).collect();
        let mut listing = Listing { client, request, tenant, now, shard: 0, creating };
        listing.page(self, rows);
        if listing.is_done() {
            return;
        }
        let requests = Rc::clone(self);
        self.sessions.wait(client, request, LISTING_WEIGHT, async move {
            while !listing.is_done() {
                let behind = requests.sessions.client(client, |client| client.session.is_behind());
                requests.kernel.clock.sleep(if behind { LOOK_INTERVAL } else { Duration::ZERO }).await;
                if !requests.sessions.client(client, |client| client.session.is_behind()) {
                    listing.page(&requests, Vec::new());
                }
            }
        });
    }
}

impl Listing {
    fn is_done(&self) -> bool {
        self.shard == Table::SHARDS
    }

    /// Sends the next page, after rows that were found already.
    fn page(&mut self, requests: &Requests, mut rows: Vec<ObjectInfo>) {
        let fast = requests.store.scan_pins();
        let objects = requests.store.objects.borrow();
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
            requests.sessions.reply(self.client, self.request, &reply);
            if !more {
                return;
            }
        }
    }
}
