//! `plasmon clients`: lists the clients of the node.
//!
//! Owns no state. Main thread.

use plasmon::Socket;
use plasmon::status::ConnectionStatus;
use serde_json::json;

use crate::connecting::connect;
use crate::failure::Failure;
use crate::output::{self, line, size, table};

/// Lists the clients of the node.
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
