//! `plasmon locks`: lists the locks and barriers of the cluster.
//!
//! Owns no state. Main thread.

use std::time::Duration;

use plasmon::Socket;
use plasmon::sync::{LockHolder, LockInfo, LockList, SyncKind};
use serde_json::{Value, json};

use crate::connecting::Within;
use crate::failure::Failure;
use crate::listing::{complete, short};
use crate::output::{self, age, table};

/// Lists the locks and barriers of the cluster.
pub(crate) fn locks(socket: &Socket, as_json: bool) -> Result<(), Failure> {
    let list = LockList::of(&Within::new(None).connect(socket, "plasmon locks")?)?;
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
    [
        kind(info).to_owned(),
        info.owner.map_or_else(|| "everybody".to_owned(), |owner| owner.to_string()),
        short(&[info.home]),
        first.map_or_else(|| parties(info), |first| held_by(first, info.held)),
        first.map_or_else(String::new, |first| age(Duration::from_millis(first.age_ms))),
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
    let process = format!("pid {} of user {} on {}", first.pid, first.uid, short(&[first.node]));
    if held > 1 { format!("{process}, {} more", held - 1) } else { process }
}

/// Text about the parties that a barrier waits for. Empty for a lock that nobody holds.
fn parties(info: &LockInfo) -> String {
    match info.kind {
        SyncKind::Lock => String::new(),
        SyncKind::Barrier => format!("{} of {} parties", info.held, info.parties),
    }
}

fn row_json(info: &LockInfo) -> Value {
    let holders = info.holders.iter().map(|holder| {
        json!({
            "node": holder.node.to_string(),
            "pid": holder.pid,
            "user": holder.uid,
            // A token has up to 128 bits, more than a number of JSON keeps.
            "token": holder.token.to_string(),
            "age_seconds": holder.age_ms as f64 / 1000.0,
        })
    });
    json!({
        "name": info.name,
        "kind": match info.kind { SyncKind::Lock => "lock", SyncKind::Barrier => "barrier" },
        "owner": info.owner,
        "home": info.home.to_string(),
        "shared": info.shared,
        "holders": holders.collect::<Vec<_>>(),
        "held": info.held,
        "waiting": info.waiting,
        "parties": info.parties,
        "generation": info.generation,
    })
}
