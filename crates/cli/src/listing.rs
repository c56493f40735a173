//! `plasmon ls` and `plasmon rm`: the objects of a node or of the cluster, and their deletion.
//!
//! Owns no state. Main thread. Invariant: a list that lacks the objects of some nodes is a failure that names
//! these nodes.

use std::collections::HashSet;
use std::time::Duration;

use plasmon::{
    Client, ClusterList, DeleteOutcome, Error, Filter, NodeId, ObjectId, ObjectInfo, ObjectState, Rights,
    Socket, not_allowed,
};
use serde_json::{Value, json};

use crate::connecting::connect;
use crate::failure::Failure;
use crate::list_args::{Ls, Rm};
use crate::names::Which;
use crate::output::{self, Progress, age, counted, line, size, table};

/// Number of objects that are deleted by one request.
const STEP_OBJECTS: usize = 1024;
/// Number of digits of a node's id that are shown to people.
const SHOWN_DIGITS: usize = 8;

fn state(state: ObjectState) -> &'static str {
    match state {
        ObjectState::Unsealed => "unsealed",
        ObjectState::Primary => "primary",
        ObjectState::Kept => "kept",
        ObjectState::Cached => "cached",
        ObjectState::Doomed => "doomed",
        ObjectState::Spilled => "spilled",
    }
}

/// Rights of other users, as `plasmon put --public` takes them. `None` for a private object.
fn public(rights: Rights) -> Option<&'static str> {
    match rights {
        Rights::Read => Some("r"),
        Rights::ReadWrite => Some("rw"),
        Rights::Private => None,
    }
}

/// Note on the rights of other users, which follows the state. Empty for the default.
fn rights(rights: Rights) -> &'static str {
    match rights {
        Rights::Read => "",
        Rights::ReadWrite => ", rw",
        Rights::Private => ", private",
    }
}

/// Lists the objects of the node or of the cluster.
pub(crate) fn ls(socket: &Socket, as_json: bool, args: &Ls) -> Result<(), Failure> {
    let client = connect(socket, "plasmon ls")?;
    let filter = Filter { pattern: args.pattern.clone().unwrap_or_default(), unnamed: args.unnamed };
    let list = if args.cluster {
        client.list_cluster(&filter)?
    } else {
        ClusterList { objects: client.list_wanted(&filter)?, ..ClusterList::default() }
    };
    let holders = |at: usize| list.holders.get(at).map_or(&[][..], Vec::as_slice);
    let numbered = list.objects.iter().enumerate();
    if as_json {
        let row = |(at, object): (usize, &ObjectInfo)| row_json(object, holders(at));
        output::json(&numbered.map(row).collect::<Value>().to_string())?;
    } else if args.cluster {
        let row = |(at, object): (usize, &ObjectInfo)| {
            let [id, size, state, pins, age, kind, name] = row(object);
            [id, size, state, short(holders(at)), pins, age, kind, name]
        };
        let rows: Vec<_> = numbered.map(row).collect();
        table(["ID", "SIZE", "STATE", "NODES", "PINS", "AGE", "KIND", "NAME"], &rows)?;
    } else {
        let rows: Vec<_> = list.objects.iter().map(row).collect();
        table(["ID", "SIZE", "STATE", "PINS", "AGE", "KIND", "NAME"], &rows)?;
    }
    complete(&list.missing)
}

fn row(object: &ObjectInfo) -> [String; 7] {
    [
        object.id.to_string(),
        size(object.data_len),
        state(object.state).to_owned() + rights(object.rights),
        object.pins.to_string(),
        age(Duration::from_millis(object.age_ms)),
        object.kind().unwrap_or_else(|| "-".into()),
        object.name.clone().unwrap_or_default(),
    ]
}

fn row_json(object: &ObjectInfo, holders: &[NodeId]) -> Value {
    let mut row = json!({
        "id": object.id.to_string(),
        "name": object.name,
        "bytes": object.data_len,
        "metadata_bytes": object.metadata_len,
        "state": state(object.state),
        "kind": object.kind(),
        "private": object.rights.is_private(),
        "public": public(object.rights),
        "pins": object.pins,
        "age_seconds": object.age_ms as f64 / 1000.0,
        "version": object.version.map(|version| version.to_string()),
    });
    if !holders.is_empty() {
        row["nodes"] = holders.iter().map(NodeId::to_string).collect();
    }
    row
}

/// The first of the nodes that hold an object, and how many more there are.
pub(crate) fn short(holders: &[NodeId]) -> String {
    let Some((first, more)) = holders.split_first() else { return String::new() };
    let first: String = first.to_string().chars().take(SHOWN_DIGITS).collect();
    if more.is_empty() { first } else { format!("{first} +{}", more.len()) }
}

/// Fails if a list lacks what some nodes hold, and names those nodes.
pub(crate) fn complete(missing: &[(NodeId, Error)]) -> Result<(), Failure> {
    let why: Vec<_> = missing.iter().map(|(node, error)| format!("node {node}: {error}")).collect();
    if why.is_empty() { Ok(()) } else { Err(Failure::Incomplete(why.join("; "))) }
}

/// Deletes objects: those that were named, or those that patterns and ages stand for.
pub(crate) fn rm(socket: &Socket, as_json: bool, args: &Rm) -> Result<(), Failure> {
    let client = connect(socket, "plasmon rm")?;
    let many = args.objects.iter().any(|object| Filter::is_pattern(&object.text));
    if many || args.unnamed || args.older.is_some() || args.dry_run {
        return rm_found(&client, as_json, args);
    }
    let ids: Vec<ObjectId> = args.objects.iter().map(|object| object.id(&client, &args.whose)).collect();
    let named = args.objects.iter().zip(ids).map(|(object, id)| (object.text.clone(), id)).collect();
    let told = delete(&client, &Progress::waiting("deleting", true), named, as_json)?;
    told.print(as_json)
}

/// Deletes the objects of the cluster that patterns or ages stand for.
fn rm_found(client: &Client, as_json: bool, args: &Rm) -> Result<(), Failure> {
    let progress = Progress::waiting("looking for objects", as_json || args.quiet.quiet);
    let mut list = ClusterList::default();
    let every = Which::nothing();
    let wanted = if args.unnamed { std::slice::from_ref(&every) } else { &args.objects };
    for one in wanted {
        let pattern = Filter { pattern: one.text.clone(), unnamed: args.unnamed };
        let found = client.list_cluster(&pattern)?;
        list.objects.extend(found.objects);
        list.missing.extend(found.missing);
        progress.show();
    }
    let mut seen = HashSet::new();
    list.objects.retain(|object| {
        // A private object and another object may have the same name. An id stands for one object.
        let by_id = |which: &Which| which.text == object.id.to_string();
        let own = object.name.is_none() || object.rights.is_private() == args.whose.private;
        let old = args.older.is_none_or(|older| Duration::from_millis(object.age_ms) >= older);
        old && (own || args.objects.iter().any(by_id)) && seen.insert(object.id)
    });
    let bytes: u64 = list.objects.iter().map(|object| object.data_len).sum();
    if args.dry_run {
        let rows: Vec<_> = list.objects.iter().map(row).collect();
        if as_json {
            let rows: Value = list.objects.iter().map(|object| row_json(object, &[])).collect();
            output::json(&rows.to_string())?;
        } else {
            table(["ID", "SIZE", "STATE", "PINS", "AGE", "KIND", "NAME"], &rows)?;
            line(&format!("{}, {}, would be deleted", counted(rows.len() as u64, "object"), size(bytes)))?;
        }
        return complete(&list.missing);
    }
    let text = |object: &ObjectInfo| object.name.clone().unwrap_or_else(|| object.id.to_string());
    let named = list.objects.iter().map(|object| (text(object), object.id)).collect();
    let mut told = delete(client, &progress, named, true)?;
    drop(progress);
    if !as_json {
        line(&format!("{} deleted", counted(told.deleted as u64, "object")))?;
    }
    // An object that was to be deleted and has gone by itself meanwhile is no failure.
    told.absent.clear();
    told.print(as_json)?;
    complete(&list.missing)
}

/// Outcome of deletions.
#[derive(Default)]
struct Told {
    rows: Vec<Value>,
    deleted: usize,
    absent: Vec<String>,
    refused: Vec<String>,
}

impl Told {
    /// Prints the outcomes for programs, and fails if something was not there or not deleted.
    fn print(self, as_json: bool) -> Result<(), Failure> {
        if as_json {
            output::json(&Value::from(self.rows).to_string())?;
        }
        match (self.refused.is_empty(), self.absent.is_empty()) {
            (false, _) => Err(Failure::Refused(self.refused.join("; "))),
            (true, false) => Err(Failure::Absent(self.absent.join(", "))),
            (true, true) => Ok(()),
        }
    }
}

/// Deletes objects, each with the text that names it in the output. `quiet` does not print pinned objects.
fn delete(
    client: &Client,
    progress: &Progress,
    objects: Vec<(String, ObjectId)>,
    quiet: bool,
) -> Result<Told, Failure> {
    let mut told = Told::default();
    for some in objects.chunks(STEP_OBJECTS) {
        progress.say(&format!("{} of {} objects deleted", told.deleted, objects.len()));
        progress.show();
        let ids: Vec<_> = some.iter().map(|(_, id)| *id).collect();
        for ((text, id), outcome) in some.iter().zip(client.delete(&ids)?) {
            let word = match outcome {
                DeleteOutcome::Absent => "absent",
                DeleteOutcome::Deleted => "deleted",
                DeleteOutcome::Deferred => "deferred",
                DeleteOutcome::NotAllowed { .. } => "not allowed",
            };
            told.rows.push(json!({ "object": text, "id": id.to_string(), "outcome": word }));
            match outcome {
                DeleteOutcome::Absent => told.absent.push(text.clone()),
                DeleteOutcome::NotAllowed { creator } => {
                    told.refused.push(format!("{text}: {}", not_allowed(*id, creator, client.user())));
                }
                DeleteOutcome::Deferred if !quiet => {
                    line(&format!("{text} is pinned: its memory is freed with its last pin"))?;
                }
                _ => {}
            }
            told.deleted += usize::from(matches!(outcome, DeleteOutcome::Deleted | DeleteOutcome::Deferred));
        }
    }
    Ok(told)
}
