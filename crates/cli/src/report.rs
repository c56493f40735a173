//! `plasmon ls` and `plasmon clients`.

use std::time::Duration;

use plasmon::status::ConnectionStatus;
use plasmon::{ObjectInfo, ObjectState, Rights, Socket};
use serde_json::json;

use crate::connecting::connect;
use crate::failure::Failure;
use crate::output::{self, age, line, size, table};

fn state(state: ObjectState) -> &'static str {
    match state {
        ObjectState::Unsealed => "unsealed",
        ObjectState::Primary => "primary",
        ObjectState::Kept => "kept",
        ObjectState::Cached => "cached",
        ObjectState::Doomed => "deleted",
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

pub(crate) fn ls(socket: &Socket, as_json: bool) -> Result<(), Failure> {
    let objects = connect(socket, "plasmon ls")?.list()?;
    if as_json {
        let row = |object: &ObjectInfo| {
            json!({
                "id": object.id.to_string(),
                "name": object.name,
                "bytes": object.data_len,
                "metadata_bytes": object.metadata_len,
                "state": state(object.state),
                "private": object.rights.is_private(),
                "public": public(object.rights),
                "pins": object.pins,
                "age_seconds": object.age_ms as f64 / 1000.0,
            })
        };
        output::json(&objects.iter().map(row).collect::<serde_json::Value>().to_string())?;
        return Ok(());
    }
    let rows: Vec<_> = objects
        .iter()
        .map(|object| {
            [
                object.id.to_string(),
                size(object.data_len),
                state(object.state).to_owned() + rights(object.rights),
                object.pins.to_string(),
                age(Duration::from_millis(object.age_ms)),
                object.name.clone().unwrap_or_default(),
            ]
        })
        .collect();
    table(["ID", "SIZE", "STATE", "PINS", "AGE", "NAME"], &rows)?;
    Ok(())
}

pub(crate) fn clients(socket: &Socket, as_json: bool) -> Result<(), Failure> {
    let status = connect(socket, "plasmon clients")?.status()?;
    if as_json {
        let row = |client: &ConnectionStatus| {
            json!({
                "name": client.name,
                "pid": client.pid,
                "uid": client.uid,
                "pins": client.pins,
                "bytes": client.bytes,
                "quota": Some(client.quota).filter(|quota| *quota > 0),
            })
        };
        return output::json(&status.connections.iter().map(row).collect::<serde_json::Value>().to_string());
    }
    let rows: Vec<_> = status
        .connections
        .iter()
        .map(|client| {
            [
                client.pid.to_string(),
                client.uid.to_string(),
                client.pins.to_string(),
                size(client.bytes),
                if client.quota > 0 { size(client.quota) } else { "-".to_owned() },
                client.name.clone(),
            ]
        })
        .collect();
    table(["PID", "USER", "PINS", "CREATED", "QUOTA", "NAME"], &rows)?;
    let more = status.clients.saturating_sub(rows.len() as u64);
    if more > 0 { line(&format!("and {more} more")) } else { Ok(()) }
}
