//! Sessions with etcd servers, one at a time.
//!
//! Owns a session. Control thread. The servers are interchangeable: a session that fails or falls silent is
//! opened anew with the next server, and the lease and the revision go on. No function waits longer than its
//! caller allows.

use std::error::Error as _;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, Error, Identity, LeaseKeepAliveStream, LeaseKeeper, TlsOptions,
    WatchOptions, WatchStream,
};
use plasmon::shared::boot_ns;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};

use crate::config::EtcdConfig;
use crate::control::member::JoinError;

/// The time of a question, by the clock of timers and by the clock that goes on while the host sleeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) at: Instant,
    pub(super) boot_ns: u64,
}

impl Asked {
    /// The present moment.
    pub(super) fn now() -> Self {
        // The clocks are read in this order, so that a sleep between them shortens the time that is counted
        // from here.
        let boot_ns = boot_ns();
        Self { at: Instant::now(), boot_ns }
    }

    /// Returns the end of a lease that is counted from this time, in nanoseconds since the host was booted.
    pub(super) fn end(&self, lease: Duration) -> u64 {
        self.boot_ns.saturating_add(u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A connection with a lease that is kept alive and a watch.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) keeper: LeaseKeeper,
    pub(super) answers: LeaseKeepAliveStream,
    pub(super) watch: WatchStream,
    /// The interval at which to prolong the lease.
    pub(super) beat: Interval,
    /// Time since which the node awaits the answer to a request for more time; `None` if it awaits none.
    pub(super) asked: Option<Asked>,
}

/// Why there is no session.
pub(super) enum Failure {
    /// This server or its answer is faulty; another server may work.
    Server(String),
    /// The lease has ended.
    LeaseOver,
}

impl From<Failure> for JoinError {
    fn from(failure: Failure) -> Self {
        let text = match failure {
            Failure::Server(reason) => reason,
            Failure::LeaseOver => "its lease was over before it was a member".into(),
        };
        Self::Connection(io::Error::other(text))
    }
}

/// Connects to one server.
pub(super) async fn connect(
    config: &EtcdConfig,
    endpoint: &str,
    patience: Duration,
) -> Result<Client, JoinError> {
    let mut options = ConnectOptions::new()
        // A server that has lost the others must not be believed.
        .with_require_leader(true)
        .with_connect_timeout(patience)
        .with_tcp_keepalive(Duration::from_secs(30));
    let mut scheme = "http";
    if let Some(ca) = &config.ca {
        scheme = "https";
        let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca)?));
        if let Some((certificate, key)) = &config.identity {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        options = options.with_tls(tls);
    }
    if let Some((user, file)) = &config.user {
        let password = read(file)?;
        let password = String::from_utf8_lossy(&password);
        options = options.with_user(user, password.trim_end_matches(['\r', '\n']));
    }
    let url = format!("{scheme}://{endpoint}");
    let connected = timeout(patience, Client::connect([url], Some(options))).await;
    match connected.map_err(|_| silent(endpoint, patience))? {
        Ok(client) => Ok(client),
        Err(error) => Err(refused(&error).unwrap_or_else(|| failed(endpoint, &error).into())),
    }
}

/// Opens a session with a server: it keeps the lease alive, and watches for changes since a revision.
pub(super) async fn open(
    mut client: Client,
    endpoint: &str,
    lease: i64,
    prefix: &str,
    since: i64,
    patience: Duration,
    period: Duration,
) -> Result<Session, Failure> {
    let alive = timeout(patience, client.lease_keep_alive(lease)).await;
    let (keeper, answers) =
        match alive.map_err(|_| Failure::Server(silent(endpoint, patience).to_string()))? {
            Ok(kept) => kept,
            Err(Error::LeaseKeepAliveError(_)) => return Err(Failure::LeaseOver),
            Err(error) => return Err(Failure::Server(failed(endpoint, &error).to_string())),
        };
    let options = WatchOptions::new().with_prefix().with_start_revision(since).with_progress_notify();
    let watch = within(endpoint, patience, client.watch(prefix, Some(options)))
        .await
        .map_err(|error| Failure::Server(error.to_string()))?;
    let mut beat = interval(period);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat.reset();
    Ok(Session { client, keeper, answers, watch, beat, asked: None })
}

/// Awaits the answer to a request for at most `patience`.
pub(super) async fn within<T>(
    endpoint: &str,
    patience: Duration,
    request: impl Future<Output = Result<T, Error>>,
) -> io::Result<T> {
    match timeout(patience, request).await {
        Ok(answer) => answer.map_err(|error| failed(endpoint, &error)),
        Err(_) => Err(silent(endpoint, patience)),
    }
}

/// Turns the error that something to be ended does not exist into success.
pub(super) fn absent(error: Error) -> Result<(), Error> {
    match &error {
        Error::GRpcStatus(status) if i32::from(status.code()) == 5 => Ok(()),
        _ => Err(error),
    }
}

/// The error for a user without permission, if `error` says that: no other server would decide otherwise.
pub(super) fn refused(error: &Error) -> Option<JoinError> {
    let Error::GRpcStatus(status) = error else { return None };
    // The codes are gRPC's invalid argument, permission denied and unauthenticated.
    let denied = matches!(i32::from(status.code()), 3 | 7 | 16);
    denied.then(|| {
        JoinError::Refused(format!(
            "{}; --etcd-user and --etcd-password-file say who this node is",
            status.message()
        ))
    })
}

fn failed(endpoint: &str, error: &Error) -> io::Error {
    let (mut reason, mut cause): (_, Option<&dyn std::error::Error>) = match error {
        Error::GRpcStatus(status) => (status.message().to_owned(), status.source()),
        Error::TransportError(error) => (error.to_string(), error.source()),
        other => (other.to_string(), None),
    };
    // The innermost reason is the most specific: refused, no route, an unknown issuer.
    while let Some(inner) = cause {
        reason = inner.to_string();
        cause = inner.source();
    }
    io::Error::other(format!("etcd at {endpoint}: {reason}"))
}

fn silent(endpoint: &str, patience: Duration) -> io::Error {
    let text = format!("etcd at {endpoint} does not answer within {patience:?}, or has no leader");
    io::Error::new(io::ErrorKind::TimedOut, text)
}

fn read(path: &Path) -> Result<Vec<u8>, JoinError> {
    fs::read(path).map_err(|error| JoinError::Refused(format!("cannot read {}: {error}", path.display())))
}
