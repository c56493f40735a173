//! `plasmon region events`: prints what happens to regions.
//!
//! Owns no state. Main thread. The command has a handle without rights to each region that it watches.

use plasmon::region::{Region, RegionEvent, Rights};
use plasmon::{Client, ErrorKind, Socket};
use serde_json::{Value, json};

use crate::connecting::connect;
use crate::failure::Failure;
use crate::listing::complete;
use crate::output;
use crate::region_args::Events;

/// Name of the command in the node's list of clients.
const NAME: &str = "plasmon region events";

/// Prints events until standard output is closed, the daemon ends, or a signal comes.
pub(crate) fn events(socket: &Socket, as_json: bool, args: &Events) -> Result<(), Failure> {
    let client = connect(socket, NAME)?;
    let events = client.region_events()?;
    let _regions = mapped(&client, args)?;
    for event in events {
        let event = event?;
        let text = if as_json { describe_json(&event).to_string() } else { describe(&event) };
        if !output::stream(&text, as_json)? {
            break;
        }
    }
    Ok(())
}

/// Maps the regions that were named, or else all that this user may see.
fn mapped(client: &Client, args: &Events) -> Result<Vec<Region>, Failure> {
    let map = |owner, name: &str| client.map_region_of(owner, name, Rights::NONE, None);
    if !args.names.is_empty() {
        return Ok(args.names.iter().map(|name| map(args.owner, name)).collect::<Result<_, _>>()?);
    }
    let list = client.list_regions()?;
    complete(&list.missing)?;
    let mut regions = Vec::new();
    for info in list.regions.iter().filter(|info| args.owner.is_none_or(|owner| owner == info.owner)) {
        match map(Some(info.owner), &info.name) {
            Ok(region) => regions.push(region),
            // The region has gone since it was listed.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Lost) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(regions)
}

fn describe(event: &RegionEvent) -> String {
    let user = |user: &Option<u32>| user.map_or_else(|| "everyone".to_owned(), |user| format!("user {user}"));
    match event {
        RegionEvent::Moved { region, home, .. } => format!("moved    {region}  to node {home}"),
        RegionEvent::Freed { region, .. } => format!("freed    {region}"),
        RegionEvent::Granted { region, user: to, rights, .. } => {
            format!("granted  {region}  {} has {rights}", user(to))
        }
        RegionEvent::Revoked { region, user: from, rights, .. } => {
            format!("revoked  {region}  {} has {rights}", user(from))
        }
        RegionEvent::Lost { region, .. } => format!("lost     {region}  its home has left the cluster"),
        RegionEvent::Gap { missed: 0 } => {
            "gap      changes of rights may be missing: a region moved, or its home was out of reach"
                .to_owned()
        }
        RegionEvent::Gap { missed } => {
            format!("gap      {missed} events are missing: they came faster than they were read")
        }
    }
}

/// Letters of rights for programs. Empty if there is no right.
pub(crate) fn letters(rights: Rights) -> String {
    rights.to_string().replace('-', "")
}

/// User for programs: a number, or null for every user.
pub(crate) fn user_json(user: Option<u32>) -> Value {
    user.into()
}

fn describe_json(event: &RegionEvent) -> Value {
    match event {
        RegionEvent::Moved { region, owner, home } => {
            json!({ "event": "moved", "region": region, "owner": owner, "home": home.to_string() })
        }
        RegionEvent::Freed { region, owner } => json!({ "event": "freed", "region": region, "owner": owner }),
        RegionEvent::Granted { region, owner, user, rights } => {
            let (user, rights) = (user_json(*user), letters(*rights));
            json!({ "event": "granted", "region": region, "owner": owner, "user": user, "rights": rights })
        }
        RegionEvent::Revoked { region, owner, user, rights } => {
            let (user, rights) = (user_json(*user), letters(*rights));
            json!({ "event": "revoked", "region": region, "owner": owner, "user": user, "rights": rights })
        }
        RegionEvent::Lost { region, owner } => json!({ "event": "lost", "region": region, "owner": owner }),
        RegionEvent::Gap { missed } => json!({ "event": "gap", "missed": missed }),
    }
}

#[cfg(test)]
mod tests {
    use plasmon::NodeId;

    use super::*;

    #[test]
    fn events_are_told_in_words_and_in_json() {
        let (region, owner, home) = (|| "x".into(), 7, NodeId::from_bytes([7; 16]));
        let (user, rights) = (Some(8), Rights::READ_WRITE);
        let cases = [
            (RegionEvent::Moved { region: region(), owner, home }, "moved"),
            (RegionEvent::Freed { region: region(), owner }, "freed"),
            (RegionEvent::Granted { region: region(), owner, user, rights }, "granted"),
            (RegionEvent::Revoked { region: region(), owner, user: None, rights: Rights::NONE }, "revoked"),
            (RegionEvent::Lost { region: region(), owner }, "lost"),
            (RegionEvent::Gap { missed: 7 }, "gap"),
            (RegionEvent::Gap { missed: 0 }, "gap"),
        ];
        for (event, word) in &cases {
            let (text, row) = (describe(event), describe_json(event));
            assert!(text.starts_with(word), "{text}");
            assert_eq!(row["event"], *word);
            assert!(*word == "gap" || (row["region"] == "x" && row["owner"] == 7), "{row}");
        }
        assert!(describe(&cases[0].0).ends_with(&home.to_string()));
        assert!(describe(&cases[2].0).ends_with("user 8 has rw"));
        assert!(describe(&cases[3].0).ends_with("everyone has -"));
        let [granted, revoked] = [2, 3].map(|at: usize| describe_json(&cases[at].0));
        assert_eq!((&granted["user"], &granted["rights"]), (&json!(8), &json!("rw")));
        assert_eq!((&revoked["user"], &revoked["rights"]), (&Value::Null, &json!("")));
    }
}
