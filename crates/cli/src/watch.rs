//! `plasmon wait` and `plasmon subscribe`: waits for objects, and prints the events of objects.
//!
//! Owns no state. Main thread.

use plasmon::{Event, NodeId, ObjectId, Socket};
use serde_json::{Value, json};

use crate::connecting::{Within, connect};
use crate::failure::Failure;
use crate::names::Which;
use crate::object_args::Wait;
use crate::output::{self, Progress, line, size};

/// Waits for objects, and prints those that are here.
pub(crate) fn wait(socket: &Socket, as_json: bool, args: &Wait) -> Result<(), Failure> {
    let objects = args.objects.len();
    let count = args.count.unwrap_or(objects);
    if count > objects {
        return Err(Failure::CountOf { count, objects });
    }
    let within = Within::new(Some(args.timeout));
    let client = within.connect(socket, "plasmon wait")?;
    let ids: Vec<ObjectId> = args.objects.iter().map(|object| object.id(&client, &args.whose)).collect();
    let waiting = Progress::waiting(
        &format!("waiting for {count} of {} objects", ids.len()),
        as_json || args.quiet.quiet,
    );
    let mut look = || {
        waiting.show();
        false
    };
    let here = client.wait(&ids, count, within.left(), Some(&mut look))?;
    drop(waiting);
    let found = args.objects.iter().zip(&here);
    if as_json {
        let row = |((object, here), id): ((&Which, &bool), &ObjectId)| {
            let id = id.to_string();
            json!({ "object": object.text, "id": id, "here": here })
        };
        output::json(&found.zip(&ids).map(row).collect::<Value>().to_string())?;
    } else {
        for (object, _) in found.filter(|(_, here)| **here) {
            line(&object.text)?;
        }
    }
    let came = here.iter().filter(|here| **here).count();
    if came < count { Err(Failure::TooFew { came, count }) } else { Ok(()) }
}

/// Prints events until standard output is closed, the daemon ends, or a signal comes.
pub(crate) fn subscribe(socket: &Socket, as_json: bool, cluster: bool) -> Result<(), Failure> {
    const NAME: &str = "plasmon subscribe";
    let client = connect(socket, NAME)?;
    let mut events = if cluster { client.subscribe_cluster(NAME)? } else { client.subscribe(NAME)? };
    loop {
        let Some((node, event)) = events.next(None, None)? else { continue };
        let text = match as_json {
            true => describe_json(node, &event).to_string(),
            false if cluster => format!("{node}  {}", describe(&event)),
            false => describe(&event),
        };
        if !output::stream(&text, as_json)? {
            return Ok(());
        }
    }
}

fn describe(event: &Event) -> String {
    match event {
        Event::Sealed { id, name, data_len, .. } => {
            format!("sealed   {id}  {:>10}  {name}", size(*data_len)).trim_end().to_owned()
        }
        Event::Replaced { id, name, data_len, .. } => {
            format!("replaced {id}  {:>10}  {name}", size(*data_len)).trim_end().to_owned()
        }
        Event::Deleted { id, name } => format!("deleted  {id}  {:>10}  {name}", "").trim_end().to_owned(),
        Event::Gap { missed: 0 } => {
            "gap      events may be missing: the node is out of reach, or what it has follows".to_owned()
        }
        Event::Gap { missed } => {
            format!("gap      {missed} events are missing: they came faster than they were read")
        }
    }
}

fn describe_json(node: NodeId, event: &Event) -> Value {
    let mut row = match event {
        Event::Sealed { id, name, data_len, metadata_len }
        | Event::Replaced { id, name, data_len, metadata_len } => {
            let word = if matches!(event, Event::Sealed { .. }) { "sealed" } else { "replaced" };
            let (id, name) = (id.to_string(), named(name));
            json!({
                "event": word, "id": id, "name": name, "bytes": data_len, "metadata_bytes": metadata_len,
            })
        }
        Event::Deleted { id, name } => {
            json!({ "event": "deleted", "id": id.to_string(), "name": named(name) })
        }
        Event::Gap { missed } => json!({ "event": "gap", "missed": missed }),
    };
    row["node"] = node.to_string().into();
    row
}

/// Name of an object, if it has one.
fn named(name: &str) -> Option<&str> {
    Some(name).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_told_in_words_and_in_json() {
        let (node, id) = (NodeId::from_bytes([7; 16]), ObjectId::from_name("x"));
        let cases = [
            (Event::Sealed { id, name: "x".into(), data_len: 2048, metadata_len: 3 }, "sealed"),
            (Event::Replaced { id, name: "x".into(), data_len: 2048, metadata_len: 3 }, "replaced"),
            (Event::Deleted { id, name: "".into() }, "deleted"),
            (Event::Gap { missed: 7 }, "gap"),
            (Event::Gap { missed: 0 }, "gap"),
        ];
        for (event, word) in cases {
            assert!(describe(&event).starts_with(word), "{event:?}");
            assert_eq!(describe_json(node, &event)["event"], word);
        }
        let sealed =
            describe_json(node, &Event::Sealed { id, name: "x".into(), data_len: 2048, metadata_len: 3 });
        assert_eq!((&sealed["id"], &sealed["bytes"]), (&json!(id.to_string()), &json!(2048)));
        assert_eq!((&sealed["name"], &sealed["node"]), (&json!("x"), &json!(node.to_string())));
    }
}
