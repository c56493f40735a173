//! `plasmon wait` and `plasmon subscribe`.

use std::io::{self, Write};
use std::path::Path;

use plasmon::{Client, Event, ObjectId};
use serde_json::{Value, json};

use crate::args::{Wait, Which};
use crate::failure::Failure;
use crate::output::{Progress, line, size, tolerant};

pub(crate) fn wait(socket: &Path, as_json: bool, args: &Wait) -> Result<(), Failure> {
    let ids: Vec<ObjectId> = args.objects.iter().map(|object| object.id).collect();
    let count = args.count.unwrap_or(ids.len());
    if count > ids.len() {
        return Err(Failure::CountOf { count, objects: ids.len() });
    }
    let client = Client::connect_as(socket, "plasmon wait")?;
    let waiting = Progress::waiting(
        &format!("waiting for {count} of {} objects", ids.len()),
        as_json || args.quiet.quiet,
    );
    let mut look = || {
        waiting.show();
        false
    };
    let here = client.wait(&ids, count, Some(args.timeout), Some(&mut look))?;
    drop(waiting);
    let found = args.objects.iter().zip(&here);
    if as_json {
        let row = |(object, here): (&Which, &bool)| {
            let id = object.id.to_string();
            json!({ "object": object.text, "id": id, "here": here })
        };
        line(&found.map(row).collect::<Value>().to_string())?;
    } else {
        for (object, _) in found.filter(|(_, here)| **here) {
            line(&object.text)?;
        }
    }
    let came = here.iter().filter(|here| **here).count();
    if came < count { Err(Failure::TooFew { came, count }) } else { Ok(()) }
}

/// Ends when nobody reads any more, with the daemon, or by a signal.
pub(crate) fn subscribe(socket: &Path, as_json: bool) -> Result<(), Failure> {
    const NAME: &str = "plasmon subscribe";
    let mut events = Client::connect_as(socket, NAME)?.subscribe(NAME)?;
    loop {
        let Some(event) = events.next(None, None)? else { continue };
        let text = if as_json { describe_json(&event).to_string() } else { describe(&event) };
        let written = writeln!(io::stdout(), "{text}");
        if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            return Ok(());
        }
        tolerant(written)?;
    }
}

fn describe(event: &Event) -> String {
    match event {
        Event::Sealed { id, data_len, .. } => format!("sealed   {id}  {}", size(*data_len)),
        Event::Deleted { id } => format!("deleted  {id}"),
        Event::Gap { missed } => {
            format!("gap      {missed} events are missing: they came faster than they were read")
        }
    }
}

fn describe_json(event: &Event) -> Value {
    match event {
        Event::Sealed { id, data_len, metadata_len } => {
            let id = id.to_string();
            json!({ "event": "sealed", "id": id, "bytes": data_len, "metadata_bytes": metadata_len })
        }
        Event::Deleted { id } => json!({ "event": "deleted", "id": id.to_string() }),
        Event::Gap { missed } => json!({ "event": "gap", "missed": missed }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_told_in_words_and_in_json() {
        let id = ObjectId::from_name("x");
        let cases = [
            (Event::Sealed { id, data_len: 2048, metadata_len: 3 }, "sealed"),
            (Event::Deleted { id }, "deleted"),
            (Event::Gap { missed: 7 }, "gap"),
        ];
        for (event, word) in cases {
            assert!(describe(&event).starts_with(word), "{event:?}");
            assert_eq!(describe_json(&event)["event"], word);
        }
        let sealed = describe_json(&Event::Sealed { id, data_len: 2048, metadata_len: 3 });
        assert_eq!((&sealed["id"], &sealed["bytes"]), (&json!(id.to_string()), &json!(2048)));
    }
}
