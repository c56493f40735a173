//! Coordination by etcd: a key for each member, with a lease that ends when the node does.
//!
//! Owns this node's membership: its lease, and the session with a server. Control thread. Below the prefix,
//! `members/<node id>` has the node's [`record`], and `volumes/<id>` that of a volume ([`volumes`]).
//!
//! A node is a member from the transaction that wrote its key until the key is gone. That transaction
//! succeeds only if the node was compared with all members. The node deletes the key when it stops; etcd
//! deletes the key when the lease is over. Every node watches the keys, so all nodes follow the same views;
//! their epoch is etcd's revision ([`roster`]).
//!
//! A node counts its lease from before it asked for the lease, and ends its membership by itself when that
//! time is over ([`Validity`]): before etcd can have told the others.

mod record;
mod roster;
mod server;
mod volumes;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, Event, GetOptions, KeyValue, LeaseKeepAliveResponse, PutOptions, Txn, TxnOp,
    TxnOpResponse, TxnResponse, WatchResponse,
};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use self::roster::Roster;
use self::server::{Asked, Failure, Session};
use self::volumes::Volumes;
use super::guard::Guard;
use super::member::{Coordinator, JoinError, Joined, Loss, News};
use super::messages::PROTOCOL;
use super::records::{Proposal, Proposed, VolumeRecord};
use super::validity::Validity;
use super::{ControlError, admission};
use crate::config::EtcdConfig;
use crate::net::members::{Incarnation, Member};

#[cfg(feature = "fuzzing")]
pub(super) use self::record::{decode, encode};

/// How long a server may take to answer while this node is not a member: no membership can end meanwhile.
const SERVER_PATIENCE: Duration = Duration::from_secs(2);
/// The pause after a server failed, before the next is asked.
const SERVER_PAUSE: Duration = Duration::from_millis(100);
/// Number of attempts to join that other nodes may outrun until this node gives up joining for now.
const MAX_JOIN_ATTEMPTS: u32 = 64;

/// The coordinator that is an etcd cluster.
pub(super) struct Etcd {
    config: EtcdConfig,
    guard: Guard,
    /// The length of the lease that was asked for.
    wanted: Duration,
    validity: Arc<Validity>,
    /// The number of the server that is asked next.
    turn: usize,
    membership: Option<Membership>,
    /// Number of servers that failed in a row.
    failed: usize,
    /// Whether the log has said that the lease has another length than was asked for.
    said: bool,
    /// News of which the engine was not told yet.
    waiting: VecDeque<News>,
}

/// This node's membership in etcd.
struct Membership {
    node: plasmon::NodeId,
    incarnation: Incarnation,
    key: String,
    record: Vec<u8>,
    lease: i64,
    /// The length of the lease that etcd granted.
    ttl: Duration,
    /// Time at which the lease ends, if it is not prolonged.
    until: Instant,
    roster: Roster,
    /// The prefix of the keys of members.
    members_prefix: String,
    volumes: Volumes,
    /// Whether etcd cannot tell what has changed since the last seen revision.
    is_behind: bool,
    session: Option<Session>,
    /// The server of the session, or of the last one.
    endpoint: String,
}

/// The next event on a session.
enum Happened {
    Prolonged(Option<LeaseKeepAliveResponse>),
    Watched(Option<WatchResponse>),
    Beat,
    Over,
    Failed(String),
}

impl Etcd {
    pub(super) fn new(config: EtcdConfig, guard: Guard, lease: Duration, validity: Arc<Validity>) -> Self {
        Self {
            config,
            guard,
            wanted: lease,
            validity,
            turn: 0,
            membership: None,
            failed: 0,
            said: false,
            waiting: VecDeque::new(),
        }
    }

    fn prefix(&self) -> String {
        format!("{}/members/", self.config.prefix)
    }

    /// The prefix of the records of volumes.
    fn volumes_prefix(&self) -> String {
        format!("{}/volumes/", self.config.prefix)
    }

    /// The prefix of all keys.
    fn whole_prefix(&self) -> String {
        format!("{}/", self.config.prefix)
    }

    /// Returns the server to ask now, and makes the one after it the next.
    fn next_endpoint(&mut self) -> String {
        let endpoint = self.config.endpoints[self.turn % self.config.endpoints.len()].clone();
        self.turn += 1;
        endpoint
    }

    /// Asks for a lease. Returns its number, and the length that etcd granted.
    async fn grant(&mut self, client: &mut Client, endpoint: &str) -> Result<(i64, Duration), JoinError> {
        let seconds = self.wanted.as_secs_f64().ceil().max(1.0) as i64;
        let granted = client_answer(endpoint, client.lease_grant(seconds, None)).await?;
        let ttl = Duration::from_secs(granted.ttl().max(1).unsigned_abs());
        if ttl != self.wanted && !std::mem::replace(&mut self.said, true) {
            warn!(
                "--lease asks for {:?}, and the lease is {ttl:?}: etcd counts whole seconds, and gives no \
                 shorter one than one and a half of its election time-outs",
                self.wanted
            );
        }
        Ok((granted.id(), ttl))
    }

    /// Ends a lease, by a server that is known to answer or else by the next one.
    async fn revoke(&mut self, lease: i64, known: Option<(Client, String)>) -> Result<(), JoinError> {
        let (mut client, endpoint) = match known {
            Some(known) => known,
            None => {
                let endpoint = self.next_endpoint();
                (server::connect(&self.config, &endpoint, SERVER_PATIENCE).await?, endpoint)
            }
        };
        // A lease that does not exist has ended: the answer to an earlier request may have been lost.
        let revoked = async { client.lease_revoke(lease).await.map(drop).or_else(server::absent) };
        Ok(server::within(&endpoint, SERVER_PATIENCE, revoked).await?)
    }

    /// Writes the record, at a moment when this node can be a member beside all others.
    async fn enter(
        &self,
        client: &mut Client,
        endpoint: &str,
        member: &Member,
        key: &str,
        record: &[u8],
        lease: i64,
    ) -> Result<(Roster, Volumes), JoinError> {
        let prefix = self.prefix();
        for _ in 0..MAX_JOIN_ATTEMPTS {
            let everything = Some(GetOptions::new().with_prefix());
            let read = client_answer(endpoint, client.get(prefix.as_str(), everything)).await?;
            let revision = revision_of(read.header())?;
            compare_with_all(member, read.kvs(), &self.guard)?;
            let unchanged =
                Compare::mod_revision(prefix.as_str(), CompareOp::Less, revision + 1).with_prefix();
            let join = self.write_if(unchanged, key, record, lease);
            let joined = client_answer(endpoint, client.txn(join)).await?;
            if joined.succeeded() {
                return self.tables_of(&joined);
            }
            // Many nodes may join at once, and should not all try again at the same moment.
            sleep(Duration::from_millis(u64::from(random_byte() % 32))).await;
        }
        Err(io::Error::other(format!(
            "other nodes joined at the same moment {MAX_JOIN_ATTEMPTS} times in a row"
        ))
        .into())
    }

    /// The tables after a transaction of [`Etcd::write_if`].
    fn tables_of(&self, written: &TxnResponse) -> Result<(Roster, Volumes), JoinError> {
        let revision = revision_of(written.header())?;
        let answers = written.op_responses();
        let mut reads = answers.iter().filter_map(|answer| match answer {
            TxnOpResponse::Get(read) => Some(read),
            _ => None,
        });
        let (Some(members), Some(volumes)) = (reads.next(), reads.next()) else {
            return Err(io::Error::other("etcd's answer to a transaction is incomplete").into());
        };
        let volumes = Volumes::new(volumes.kvs(), self.volumes_prefix(), self.guard.clone());
        Ok((Roster::new(members.kvs(), revision, self.guard.clone()), volumes))
    }

    /// The transaction that writes this node's record and reads all records, if a condition holds.
    fn write_if(&self, condition: Compare, key: &str, record: &[u8], lease: i64) -> Txn {
        let put = TxnOp::put(key, record, Some(PutOptions::new().with_lease(lease)));
        let read = |prefix: String| TxnOp::get(prefix, Some(GetOptions::new().with_prefix()));
        let reads = [read(self.prefix()), read(self.volumes_prefix())];
        Txn::new().when([condition]).and_then([[put].as_slice(), &reads].concat())
    }

    /// Opens a session with the next server, for as long as the lease lasts.
    async fn resume(&mut self) -> Result<(), Failure> {
        let endpoint = self.next_endpoint();
        let prefix = self.whole_prefix();
        let Some(membership) = &mut self.membership else { return Err(Failure::LeaseOver) };
        let asked = Asked::now();
        let patience = membership.patience();
        let client = server::connect(&self.config, &endpoint, patience)
            .await
            .map_err(|error| Failure::Server(error.to_string()))?;
        let (lease, since) = (membership.lease, membership.roster.next());
        let period = membership.period();
        let session = server::open(client, &endpoint, lease, &prefix, since, patience, period).await?;
        membership.session = Some(session);
        membership.endpoint = endpoint;
        if membership.prolong(asked, &self.validity) { Ok(()) } else { Err(Failure::LeaseOver) }
    }

    /// Waits for the next event on the session.
    async fn happening(&mut self) -> Option<Happened> {
        let membership = self.membership.as_mut()?;
        let until = membership.until;
        let session = membership.session.as_mut()?;
        Some(tokio::select! {
            () = sleep_until(until) => Happened::Over,
            answer = session.answers.message() => match answer {
                Ok(answer) => Happened::Prolonged(answer),
                Err(error) => Happened::Failed(error.to_string()),
            },
            news = session.watch.message() => match news {
                Ok(news) => Happened::Watched(news),
                Err(error) => Happened::Failed(error.to_string()),
            },
            _ = session.beat.tick() => Happened::Beat,
        })
    }

    /// Acts on an event; returns news for the engine, if there are any.
    async fn act(&mut self, happened: Happened) -> Result<Option<News>, Loss> {
        let Some(membership) = &mut self.membership else { return Err(over()) };
        match happened {
            Happened::Over => Err(over()),
            Happened::Failed(reason) => Ok(membership.drop_session(&reason)),
            Happened::Prolonged(None) | Happened::Watched(None) => {
                Ok(membership.drop_session("it closed the connection"))
            }
            Happened::Prolonged(Some(answer)) => {
                if answer.ttl() <= 0 {
                    return Err(Loss::Membership("etcd says that its lease is over".into()));
                }
                let asked = membership.session.as_mut().and_then(|session| session.asked.take());
                match asked.is_none_or(|asked| membership.prolong(asked, &self.validity)) {
                    true => Ok(None),
                    false => Err(over()),
                }
            }
            Happened::Beat => Ok(membership.beat().await),
            Happened::Watched(Some(news)) if news.canceled() && news.compact_revision() > 0 => {
                membership.is_behind = true;
                Ok(None)
            }
            Happened::Watched(Some(news)) if news.canceled() => {
                Ok(membership.drop_session(&format!("it ended the watch: {}", news.cancel_reason())))
            }
            Happened::Watched(Some(news)) => {
                self.waiting.extend(membership.follow(&news)?);
                Ok(self.waiting.pop_front())
            }
        }
    }

    /// Reads all records, because etcd cannot tell the changes since the last seen revision any more. First
    /// the node writes its record again: that makes a revision which is the last change for all nodes.
    async fn catch_up(&mut self) -> Result<Option<News>, Loss> {
        let Some(membership) = &self.membership else { return Err(over()) };
        let Membership { key, record, lease, endpoint, .. } = membership;
        let still = Compare::lease(key.as_str(), CompareOp::Equal, *lease);
        let write = self.write_if(still, key, record, *lease);
        let (patience, endpoint) = (membership.patience(), endpoint.clone());
        let Some(session) = &membership.session else { return Ok(None) };
        let mut client = session.client.clone();
        let written = server::within(&endpoint, patience, client.txn(write)).await;
        let tables = match written {
            Ok(written) if !written.succeeded() => {
                return Err(Loss::Membership("its record in etcd is gone".into()));
            }
            Ok(written) => self.tables_of(&written),
            Err(error) => Err(error.into()),
        };
        let Some(membership) = &mut self.membership else { return Err(over()) };
        match tables {
            Ok((roster, volumes)) => {
                let news = volumes.records().since(membership.volumes.records());
                membership.roster = roster;
                membership.volumes = volumes;
                membership.is_behind = false;
                // The watch has ended; the next session goes on from this revision.
                membership.session = None;
                self.waiting.push_back(News::Records(news));
                Ok(Some(News::View { view: membership.roster.view(), skips: true }))
            }
            Err(error) => Ok(membership.drop_session(&error.to_string())),
        }
    }
}

impl Etcd {
    /// Changes the record of a volume. Returns the record after that, or why etcd was not asked.
    async fn change(&self, proposal: &Proposal) -> Result<Option<VolumeRecord>, String> {
        let membership = self.membership.as_ref().ok_or("this node is not a member")?;
        let volumes = &membership.volumes;
        let Some(change) = volumes.change(proposal) else {
            let known = volumes.records().get(&proposal.record.name);
            return Ok(known.map(|known| VolumeRecord::clone(known)));
        };
        let session = membership.session.as_ref().ok_or("etcd does not answer at the moment")?;
        let (mut client, patience) = (session.client.clone(), membership.patience());
        let changed = server::within(&membership.endpoint, patience, client.txn(change)).await;
        let changed = changed.map_err(|error| error.to_string())?;
        let read = changed.op_responses().into_iter().find_map(|answer| match answer {
            TxnOpResponse::Get(read) => Some(read),
            _ => None,
        });
        let read = read.ok_or("etcd's answer to a transaction is incomplete")?;
        Ok(volumes.read(read.kvs()))
    }
}

impl Membership {
    /// How long a server may take until another is tried.
    fn patience(&self) -> Duration {
        (self.ttl / 4).min(SERVER_PATIENCE)
    }

    /// How often this node asks to prolong the lease.
    fn period(&self) -> Duration {
        self.ttl / 5
    }

    /// Prolongs the lease, counted from `asked`; `false` if the lease was over before.
    fn prolong(&mut self, asked: Asked, validity: &Validity) -> bool {
        self.until = self.until.max(asked.at + self.ttl);
        validity.prolong(asked.end(self.ttl))
    }

    /// Asks to prolong the lease, unless the server does not answer.
    async fn beat(&mut self) -> Option<News> {
        let patience = self.patience();
        let session = self.session.as_mut()?;
        match session.asked {
            Some(asked) if asked.at.elapsed() >= patience => {
                return self.drop_session(&format!("it is silent for {patience:?}"));
            }
            Some(_) => return None,
            None => {}
        }
        session.asked = Some(Asked::now());
        match session.keeper.keep_alive().await {
            Ok(()) => None,
            Err(error) => self.drop_session(&error.to_string()),
        }
    }

    /// Ends the session with a server. The next session uses another server.
    fn drop_session(&mut self, reason: &str) -> Option<News> {
        info!("the session with etcd at {} has ended: {reason}", self.endpoint);
        self.session = None;
        None
    }

    /// Follows the events of the watch, each revision by itself: a server that a node has turned to tells all
    /// that happened meanwhile at once, and the node follows the same views as the others all the same.
    fn follow(&mut self, news: &WatchResponse) -> Result<Vec<News>, Loss> {
        let revision = |event: &Event| event.kv().map_or(0, KeyValue::mod_revision);
        let mut all = Vec::new();
        for events in news.events().chunk_by(|one, next| revision(one) == revision(next)) {
            let (mut changed, mut records) = (false, Vec::new());
            for event in events {
                changed |= self.roster.apply(event, self.members_prefix.as_bytes());
                records.extend(self.volumes.apply(event));
            }
            self.roster.saw(revision(&events[0]));
            all.extend(changed.then(|| News::View { view: self.roster.view(), skips: false }));
            all.extend((!records.is_empty()).then_some(News::Records(records)));
        }
        // A response without events says how far the watch has come; with events, the last event does.
        if let Some(header) = news.header().filter(|_| news.events().is_empty() && !news.created()) {
            self.roster.saw(header.revision());
        }
        if !self.roster.has(self.node, self.incarnation) {
            return Err(Loss::Membership("its record in etcd is gone".into()));
        }
        Ok(all)
    }
}

impl Coordinator for Etcd {
    fn place(&self) -> String {
        format!("at {}", self.config.place())
    }

    fn unreachable(&self, error: JoinError) -> ControlError {
        ControlError::Etcd { place: self.config.place(), reason: error.to_string() }
    }

    async fn join(&mut self, member: &Member) -> Result<Joined, JoinError> {
        self.membership = None;
        self.validity.end();
        let endpoint = self.next_endpoint();
        let mut client = server::connect(&self.config, &endpoint, SERVER_PATIENCE).await?;
        let asked = Instant::now();
        let (lease, ttl) = self.grant(&mut client, &endpoint).await?;
        let key = format!("{}{}", self.prefix(), member.node);
        let record = record::encode(member, &key, self.guard.secret());
        let entered = self.enter(&mut client, &endpoint, member, &key, &record, lease).await;
        let (roster, volumes) = match entered {
            Ok(tables) => tables,
            Err(error) => {
                // If this fails, the lease ends by itself.
                let _ = server::within(&endpoint, SERVER_PATIENCE, client.lease_revoke(lease)).await;
                return Err(error);
            }
        };
        let (view, records) = (roster.view(), volumes.records().clone());
        let mut membership = Membership {
            node: member.node,
            incarnation: member.incarnation,
            key,
            record,
            lease,
            ttl,
            until: asked + ttl,
            roster,
            members_prefix: self.prefix(),
            volumes,
            is_behind: false,
            session: None,
            endpoint: endpoint.clone(),
        };
        // Joining may have taken most of the lease. Opening a session begins with prolonging it.
        let asked = Asked::now();
        let (since, period) = (membership.roster.next(), membership.period());
        let patience = membership.patience();
        let prefix = self.whole_prefix();
        membership.session =
            Some(server::open(client, &endpoint, lease, &prefix, since, patience, period).await?);
        membership.until = asked.at + ttl;
        self.validity.begin(asked.end(ttl));
        self.membership = Some(membership);
        self.failed = 0;
        self.waiting.clear();
        Ok(Joined { view, coordinator: None, records })
    }

    async fn next(&mut self) -> Result<News, Loss> {
        loop {
            if let Some(news) = self.waiting.pop_front() {
                return Ok(news);
            }
            if self.membership.as_ref().is_some_and(|one| one.is_behind && one.session.is_some()) {
                match self.catch_up().await {
                    Ok(Some(news)) => return Ok(news),
                    Ok(None) => {}
                    Err(loss) => {
                        self.validity.end();
                        return Err(loss);
                    }
                }
            }
            if let Some(happened) = self.happening().await {
                match self.act(happened).await {
                    Ok(Some(news)) => return Ok(news),
                    Ok(None) => continue,
                    Err(loss) => {
                        self.validity.end();
                        return Err(loss);
                    }
                }
            }
            let Some(until) = self.membership.as_ref().map(|membership| membership.until) else {
                return Err(over());
            };
            let resumed = tokio::select! {
                resumed = self.resume() => resumed,
                () = sleep_until(until) => Err(Failure::LeaseOver),
            };
            let servers = self.config.endpoints.len();
            match resumed {
                Ok(()) => {
                    if std::mem::take(&mut self.failed) >= servers {
                        info!("etcd answers again");
                        return Ok(News::Answers(true));
                    }
                }
                Err(Failure::LeaseOver) => {
                    self.validity.end();
                    return Err(over());
                }
                Err(Failure::Server(reason)) => {
                    self.failed += 1;
                    // The log mentions each server once, since the attempts go on for a while.
                    if self.failed <= servers {
                        info!("{reason}")
                    } else {
                        debug!("{reason}")
                    }
                    if self.failed == servers {
                        warn!("no etcd server answers: this node stays a member until its lease is over");
                        self.waiting.push_back(News::Answers(false));
                    }
                    sleep(SERVER_PAUSE.min(until.saturating_duration_since(Instant::now()))).await;
                }
            }
        }
    }

    async fn propose(&mut self, proposal: Proposal) -> Option<Proposed> {
        Some(Proposed { ask: proposal.ask, outcome: self.change(&proposal).await })
    }

    async fn leave(&mut self) {
        self.validity.end();
        let Some(Membership { lease, session, endpoint, until, .. }) = self.membership.take() else { return };
        let mut known = session.map(|session| (session.client, endpoint));
        // Otherwise, the others learn it from the lease. The attempts go on for as long as the caller waits.
        while Instant::now() < until {
            match self.revoke(lease, known.take()).await {
                Ok(()) => return,
                Err(error) => debug!("cannot leave yet: {error}"),
            }
            sleep(SERVER_PAUSE).await;
        }
    }
}

fn over() -> Loss {
    Loss::Membership("it could not reach etcd for a whole lease".into())
}

/// Awaits an answer of etcd while this node joins; the error says why the node cannot join.
async fn client_answer<T>(
    endpoint: &str,
    request: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, JoinError> {
    let mut refusal = None;
    let answer = server::within(endpoint, SERVER_PATIENCE, async {
        request.await.inspect_err(|error| refusal = server::refused(error))
    });
    let answer = answer.await;
    answer.map_err(|error| refusal.unwrap_or_else(|| error.into()))
}

/// Checks that this node can be a member beside the nodes of `records`.
fn compare_with_all(member: &Member, records: &[KeyValue], guard: &Guard) -> Result<(), JoinError> {
    let others = records.iter().map(|record| {
        let key = String::from_utf8_lossy(record.key());
        record::decode(record.value(), &key, guard.secret())
            .map_err(|reason| format!("there is a key {key} in etcd: {reason}"))
    });
    let others = others.collect::<Result<Vec<_>, _>>();
    others.and_then(|others| admission::check(PROTOCOL, member, &others)).map_err(JoinError::Refused)
}

fn revision_of(header: Option<&etcd_client::ResponseHeader>) -> io::Result<i64> {
    header.map(|header| header.revision()).ok_or_else(|| io::Error::other("etcd answered without a revision"))
}

fn random_byte() -> u8 {
    let mut byte = [0];
    getrandom::fill(&mut byte).expect("the operating system gives random bytes");
    byte[0]
}
