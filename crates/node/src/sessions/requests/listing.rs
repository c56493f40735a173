//! Listings: a row for every object, a page of the table at a time. A task owns each listing under way.
//! Engine thread only.
//!
//! A page is some shares of the table, looked through in one turn. The next page comes in a later turn, and
//! not before the client has read most of what it was sent. So neither the time for which others wait nor the
//! memory of a listing grows with the table, except for the rows of one share.
//!
//! The table changes during a listing. An object that exists from its beginning to its end is listed
//! exactly once; an object that comes or goes meanwhile may be listed or not.
//!
//! The client makes the list of the cluster, by asking for the pages of each node. A page of another node
//! comes in a frame between nodes. No node has a whole listing in memory. An object that is replaced
//! meanwhile may come to a node whose page was sent, before the page of the node that drops it. So a page
//! tells when its node last dropped such an object, and the client asks again.

use std::rc::Rc;
use std::time::Duration;

use plasmon::wire::{MAX_IDS, MAX_MEMBERS, ObjectInfo, Reply};
use plasmon::{Error, Filter, NodeId, ObjectId};

use super::Requests;
use crate::kernel::ClientKey;
use crate::kernel::random::HashSet;
use crate::net::frame::{Envelope, FRAME_MAX_BYTES, HEADER_LEN, MAX_ENTRIES, Message, ask};
use crate::object::{Table, Wanted};

/// Minimum number of rows of a page; a shorter listing is answered at once.
const PAGE_ROWS: usize = 4096;
/// Number of rows in one frame.
const FRAME_ROWS: usize = MAX_IDS / 2;
/// The weight of a listing of several pages, in objects.
const LISTING_WEIGHT: usize = 64;
/// Number of objects after which a page of few rows ends.
const PAGE_VISITS: usize = 1 << 14;
/// Time within which another node has to answer with a page.
const PAGE_PATIENCE: Duration = Duration::from_secs(5);
/// Number of bytes of a row beside its name and the beginning of its metadata, and a few more.
const ROW_BYTES: usize = 80;
/// Interval at which the node checks whether a client that is behind has read its replies.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A listing under way.
struct Listing {
    client: ClientKey,
    request: u64,
    /// The objects that are listed.
    wanted: Wanted,
    /// The next share of the table.
    shard: usize,
    /// Objects that were listed as not sealed yet.
    creating: HashSet<ObjectId>,
}

impl Requests {
    pub(super) fn list(self: &Rc<Self>, client: ClientKey, request: u64, filter: &Filter) {
        let wanted = self.wanted(self.sessions.client(client, |client| client.uid), filter);
        let rows = self.store.objects.borrow().list_others(&wanted, &self.store.scan_pins());
        let unsealed = rows.iter().filter(|row| row.state == plasmon::ObjectState::Unsealed);
        let creating = unsealed.map(|row| row.id).collect();
        let mut listing = Listing { client, request, wanted, shard: 0, creating };
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

    /// The nodes of the cluster, this one first.
    pub(super) fn members(&self) -> Vec<NodeId> {
        let mut nodes = vec![self.kernel.node];
        nodes.extend(self.cluster.others(&[self.kernel.node]));
        nodes.truncate(MAX_MEMBERS);
        nodes
    }

    /// Answers a client with a page of a node's objects.
    pub(super) async fn page_for(
        self: Rc<Self>,
        client: ClientKey,
        node: NodeId,
        filter: Filter,
        from: u64,
    ) -> Result<Reply, Error> {
        let user = self.sessions.client(client, |client| client.uid);
        if node == self.kernel.node {
            let (objects, next) = self.page(user, &filter, from, FRAME_ROWS, |_| true);
            return Ok(Reply::Page { objects, next, succeeded_us: self.succeeded_us() });
        }
        let page = ask::List { filter, from };
        let listed = self.network.ask(node, user, page, PAGE_PATIENCE).await?;
        let ask::Listed { objects, next, succeeded_us } = listed;
        Ok(Reply::Page { objects, next, succeeded_us })
    }

    /// Answers another node with a page of this node's objects.
    pub(super) fn on_list(&self, asked: &Envelope, filter: &Filter, from: u64) {
        let mut left = FRAME_MAX_BYTES - HEADER_LEN - ROW_BYTES;
        let fits = |row: &ObjectInfo| {
            let len = ROW_BYTES + row.name.as_ref().map_or(0, String::len) + row.beginning.len();
            let fits = len <= left;
            left = left.saturating_sub(len);
            fits
        };
        let (objects, next) = self.page(asked.user, filter, from, MAX_ENTRIES, fits);
        self.network.answer(asked, Message::Listed { objects, next, succeeded_us: self.succeeded_us() });
    }

    /// Time since this node last dropped an object that another node has replaced.
    fn succeeded_us(&self) -> Option<u64> {
        let now = self.kernel.clock.now();
        let since = |at| now.saturating_duration_since(at).as_micros() as u64;
        self.store.succeeded.get().map(since)
    }

    fn page(
        &self,
        user: u32,
        filter: &Filter,
        from: u64,
        rows: usize,
        fits: impl FnMut(&ObjectInfo) -> bool,
    ) -> (Vec<ObjectInfo>, Option<u64>) {
        let wanted = self.wanted(user, filter);
        self.store.objects.borrow().page(from, &wanted, &self.store.scan_pins(), rows, fits)
    }

    fn wanted(&self, user: u32, filter: &Filter) -> Wanted {
        Wanted { user, filter: filter.prepare(), now: self.kernel.clock.unix_ms() }
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
        let mut visited = 0;
        while rows.len() < PAGE_ROWS && visited < PAGE_VISITS && !self.is_done() {
            visited += objects.sealed_in(self.shard).count();
            let sealed = objects.list_sealed(self.shard, &self.wanted, &fast);
            rows.extend(sealed.into_iter().filter(|row| !self.creating.contains(&row.id)));
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
