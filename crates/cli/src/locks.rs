//! `plasmon locks`: lists the locks and barriers of the cluster.
//!
//! Owns no state. Main thread.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plasmon::Socket;
use plasmon::sync::{LockHolder, LockInfo, LockList, SyncKind};
use serde_json::{Value, json};

use crate::connecting::Within;
use crate::failure::Failure;
use crate::list_args::Patience;
use crate::listing::{complete, short};
use crate::output::{self, age, table};

/// Lists the locks and barriers of the cluster.
pub(crate) fn locks(socket: &Socket, as_json: bool, patience: &Patience) -> Result<(), Failure> {
    let list = LockList::of(&Within::new(Some(patience.timeout)).connect(socket, "plasmon locks")?)?;
    if as_json {
        output::json(&list.locks.iter().map(row_json).collect::<Value>().to_string())?;
    } else {
        let rows: Vec<_> = list.locks.iter().map(row).collect();
        table(["KIND", "OWNER", "HOME", "HELD BY", "SINCE", "WAITING", "NAME"], &rows)?;
    }
    complete(&list.missing)
}

fn row(info: &LockInfo) -> [String; 7] {
    let first = info.holders.first();
    let since = first.or(info.abandoned.as_ref());
    [
        kind(info).to_owned(),
        info.owner.map_or_else(|| "everybody".to_owned(), |owner| owner.to_string()),
        short(&[info.home]),
        first.map_or_else(|| held_by_none(info), |first| held_by(first, info.held)),
        since.map_or_else(String::new, |since| age(Duration::from_millis(since.age_ms))),
        info.waiting.to_string(),
        info.name.clone(),
    ]
}

fn kind(info: &LockInfo) -> &'static str {
    match info.kind {
        SyncKind::Lock if info.shared => "shared",
        SyncKind::Lock => "lock",
        SyncKind::Barrier => "barrier",
    }
}

/// Holders for people: the process of the first, and how many there are besides.
fn held_by(first: &LockHolder, held: u32) -> String {
    if held > 1 { format!("{}, {} more", process(first), held - 1) } else { process(first) }
}

fn process(holder: &LockHolder) -> String {
    format!("pid {} of user {} on {}", holder.pid, holder.uid, short(&[holder.node]))
}

/// Text about a row without holders: the parties that a barrier waits for, or who left a lock. Empty for
/// another lock.
fn held_by_none(info: &LockInfo) -> String {
    match (info.kind, &info.abandoned) {
        (SyncKind::Barrier, _) => format!("{} of {} parties", info.held, info.parties),
        (SyncKind::Lock, Some(by)) => {
            let who = if by.pid == 0 { "a process that is not known".to_owned() } else { process(by) };
            format!("abandoned by {who} at {}", day_and_time(Duration::from_millis(by.age_ms)))
        }
        (SyncKind::Lock, None) => String::new(),
    }
}

/// The day and time of what was so long ago, in the form of RFC 3339.
fn day_and_time(ago: Duration) -> String {
    let since = SystemTime::now().checked_sub(ago).unwrap_or(UNIX_EPOCH).max(UNIX_EPOCH);
    humantime::format_rfc3339_seconds(since).to_string()
}

fn row_json(info: &LockInfo) -> Value {
    json!({
        "name": info.name,
        "kind": match info.kind { SyncKind::Lock => "lock", SyncKind::Barrier => "barrier" },
        "owner": info.owner,
        "home": info.home.to_string(),
        "shared": info.shared,
        "holders": info.holders.iter().map(holder_json).collect::<Vec<_>>(),
        "held": info.held,
        "waiting": info.waiting,
        "parties": info.parties,
        "generation": info.generation,
        "abandoned": info.abandoned.as_ref().map(holder_json),
    })
}

fn holder_json(holder: &LockHolder) -> Value {
    json!({
        "node": holder.node.to_string(),
        "pid": holder.pid,
        "user": holder.uid,
        // A token has up to 128 bits, more than a number of JSON keeps.
        "token": holder.token.to_string(),
        "age_seconds": holder.age_ms as f64 / 1000.0,
    })
}
