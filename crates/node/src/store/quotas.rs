//! Quotas: the bytes that users and clients may fill, and have filled. Engine thread only.
//!
//! Owns [`Quotas`]. Every object that was created on this node counts from its creation until its
//! deletion, in memory or on disk. The object counts against its user, and against its client while this
//! client is connected. A region counts against its user.

use std::cmp::Reverse;

use bytesize::ByteSize;
use plasmon::{Error, ErrorKind};

use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;
use crate::object::{Head, Replica};

/// The stand-in for a client, for what counts against a user alone: a region, or an object that a
/// former daemon left on disk.
pub(crate) const NOBODY: ClientKey = ClientKey::MAX;
/// Maximum number of users, of clients and of holders of pins that an error names.
const MAX_NAMED: usize = 3;

/// Accounts in bytes.
#[derive(Default)]
pub(crate) struct Quotas {
    users: HashMap<u32, Account>,
    clients: HashMap<ClientKey, Account>,
    user_limit: Option<u64>,
    client_limit: Option<u64>,
}

#[derive(Default)]
struct Account {
    bytes: u64,
    /// Number of those bytes for which there is no memory yet, or which were not written yet.
    pending: u64,
    /// The limit that the client has set itself.
    limit: Option<u64>,
}

impl Quotas {
    pub(crate) fn new(user_limit: Option<u64>, client_limit: Option<u64>) -> Self {
        Self { user_limit, client_limit, ..Self::default() }
    }

    /// Counts bytes that are about to be taken, to do `what`. The bytes are pending until [`Quotas::taken`].
    pub(crate) fn take(
        &mut self,
        what: impl Fn() -> String,
        user: u32,
        client: ClientKey,
        len: u64,
    ) -> Result<(), Error> {
        let account = (client != NOBODY).then(|| self.clients.entry(client).or_default());
        let of_all = self.users.entry(user).or_default();
        let (bytes, own) = account.as_ref().map_or((0, None), |account| (account.bytes, account.limit));
        let client_limit = self.client_limit.filter(|_| client != NOBODY);
        let limits = [
            (of_all.bytes, self.user_limit, Some(user), "--user-quota"),
            (bytes, client_limit, None, "--client-quota"),
            (bytes, own, None, "the quota it has set itself"),
        ];
        for (used, limit, of_user, which) in limits {
            if let Some(limit) = limit
                && used.saturating_add(len) > limit
            {
                let who = of_user.map_or_else(|| "this client".into(), |user| format!("user {user}"));
                return Err(over(&what(), len, used, limit, &who, which));
            }
        }
        for account in account.into_iter().chain([of_all]) {
            account.bytes += len;
            account.pending += len;
        }
        Ok(())
    }

    /// Notes that pending bytes are taken now.
    pub(crate) fn taken(&mut self, user: u32, client: ClientKey, len: u64) {
        for account in self.users.get_mut(&user).into_iter().chain(self.clients.get_mut(&client)) {
            account.pending = account.pending.saturating_sub(len);
        }
    }

    /// Counts bytes of a user that are on this node already.
    pub(crate) fn count(&mut self, user: u32, len: u64) {
        self.users.entry(user).or_default().bytes += len;
    }

    /// Subtracts an object that is gone or was never finished.
    pub(crate) fn forget(&mut self, head: &Head, client: ClientKey) {
        self.subtract(head.user, client, head.len());
    }

    /// Subtracts a replica that is gone from this node, or that is no longer this node's primary.
    pub(crate) fn give_back(&mut self, replica: &Replica) {
        if let Some(creator) = replica.creator.take() {
            let seen = replica.snapshot();
            self.subtract(seen.uid, creator, seen.total_len());
        }
    }

    /// Subtracts bytes from the accounts of a user and a client.
    pub(crate) fn subtract(&mut self, user: u32, client: ClientKey, len: u64) {
        for account in self.users.get_mut(&user).into_iter().chain(self.clients.get_mut(&client)) {
            account.bytes = account.bytes.saturating_sub(len);
        }
    }

    /// Sets the limit that a client wishes for itself; `None` removes it.
    pub(crate) fn limit_client(&mut self, client: ClientKey, limit: Option<u64>) {
        self.clients.entry(client).or_default().limit = limit;
    }

    /// Closes the account of a client that has gone.
    pub(crate) fn close(&mut self, client: ClientKey) {
        self.clients.remove(&client);
    }

    /// Number of bytes that a user's objects take.
    #[cfg(test)]
    pub(crate) fn of_user(&self, user: u32) -> u64 {
        self.users.get(&user).map_or(0, |account| account.bytes)
    }

    /// Number of bytes that a client's objects take, and the smaller of its two limits.
    pub(crate) fn of_client(&self, client: ClientKey) -> (u64, Option<u64>) {
        let account = self.clients.get(&client);
        let own = account.and_then(|account| account.limit);
        (account.map_or(0, |account| account.bytes), own.into_iter().chain(self.client_limit).min())
    }

    /// Returns the users whose objects take most, with the number of their bytes that are not pending.
    pub(crate) fn largest_users(&self) -> Vec<(u32, u64)> {
        largest(self.users.iter().map(|(user, account)| (*user, account.there())))
    }

    /// Returns the clients whose objects take most, with the number of their bytes that are not pending.
    pub(crate) fn largest_clients(&self) -> Vec<(ClientKey, u64)> {
        largest(self.clients.iter().map(|(client, account)| (*client, account.there())))
    }
}

impl Account {
    fn there(&self) -> u64 {
        self.bytes.saturating_sub(self.pending)
    }
}

/// Returns the accounts with the most bytes, the largest first, at most [`MAX_NAMED`].
pub(super) fn largest<K>(accounts: impl Iterator<Item = (K, u64)>) -> Vec<(K, u64)> {
    let mut accounts: Vec<_> = accounts.filter(|(_, bytes)| *bytes > 0).collect();
    accounts.sort_by_key(|(_, bytes)| Reverse(*bytes));
    accounts.truncate(MAX_NAMED);
    accounts
}

fn over(what: &str, len: u64, used: u64, limit: u64, who: &str, which: &str) -> Error {
    let size = |bytes| ByteSize::b(bytes).display().iec();
    Error::new(
        ErrorKind::Full,
        format!(
            "cannot {what}: its {} and the {} that objects of {who} take already are over the limit of {} \
             ({which}); delete some of them first",
            size(len),
            size(used),
            size(limit)
        ),
    )
}
