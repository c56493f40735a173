//! `plasmon explain`, `locations` and `prefetch`: where objects are, and how they came.
//!
//! Owns no state. Main thread.

use plasmon::transfer::{Fetched, Location};
use plasmon::{Error, ErrorKind, ObjectId, Socket};

use crate::connecting::connect;
use crate::explain_file;
use crate::failure::Failure;
use crate::object_args::{Located, Prefetch};
use crate::output::{json, line, size, table};

/// Prints how an object came to this node, or where the bytes of a file lie.
pub(crate) fn explain(socket: &Socket, as_json: bool, args: &Located) -> Result<(), Failure> {
    let file = explain_file::named(args);
    if let Some(file) = file.as_ref().filter(|file| file.is_there) {
        return explain_file::explain(socket, as_json, file);
    }
    let client = connect(socket, "plasmon explain")?;
    let id = args.object.id(&client, &args.whose);
    let explanation = client.explain(id).map_err(args.object.named(id))?;
    let seen =
        explanation.here != "absent" || explanation.arriving.is_some() || explanation.fetched.is_some();
    let elsewhere = if seen { Vec::new() } else { client.locations(id).map_err(args.object.named(id))? };
    if !seen && elsewhere.is_empty() {
        // A path in a mounted folder that names no object either is that of a file that does not exist.
        return match file {
            Some(file) => explain_file::explain(socket, as_json, &file),
            None => Err(unknown(args, id)),
        };
    }
    if as_json {
        return json(&serde_json::to_string_pretty(&explanation).expect("plain values"));
    }
    let here = match explanation.here.as_str() {
        "primary" => "this node has its primary replica",
        "kept" => "this node has a kept replica",
        "cached" => "this node has a cached replica",
        _ => "this node has no replica",
    };
    line(&format!("object {}: {here}", explanation.id))?;
    if let Some(version) = &explanation.version {
        line(&format!("version   {version}"))?;
    }
    for Location { node, role } in &elsewhere {
        line(&format!("elsewhere node {node} has a {role} replica"))?;
    }
    if let Some(arriving) = &explanation.arriving {
        line(&format!(
            "arriving  {} of {} from {}, by {} over {}, for {:.1} s",
            size(arriving.arrived_bytes),
            size(arriving.bytes),
            arriving.holders.join(", "),
            arriving.protocol,
            arriving.provider,
            arriving.us / 1e6
        ))?;
    }
    match explanation.fetched {
        Some(fetched) => print(&fetched),
        None if explanation.arriving.is_some() => Ok(()),
        None => line(
            "this node has not fetched it, or does not remember: it remembers the last 4,096 \
                      fetches",
        ),
    }
}

/// Failure for an object that no node is known to hold.
fn unknown(args: &Located, id: ObjectId) -> Failure {
    let private = if args.whose.private { "" } else { ", --private is missing" };
    let text = format!(
        "no node is known to hold object {id}: nobody has put it{private}, it was deleted, or every node \
         that held it is gone"
    );
    args.object.named(id)(Error::new(ErrorKind::NotFound, text)).into()
}

fn print(fetched: &Fetched) -> Result<(), Failure> {
    let Fetched { protocol, provider, why, .. } = fetched;
    line(&format!("fetched   {} from {}", size(fetched.bytes), fetched.holders.join(", ")))?;
    line(&format!("by        {protocol} over {provider}: {why}"))?;
    if !fetched.provider_why.is_empty() {
        line(&format!("slower    than it could be: {}", fetched.provider_why))?;
    }
    line(match fetched.into.as_str() {
        "given" => "into      memory that a client gave for it, and nowhere else",
        _ => "into      a replica; a client that wants it in memory of its own copies it from there",
    })?;
    line(&format!(
        "copied    {} by the CPU of this node; {} registrations of memory, {} one-sided reads",
        size(fetched.copied_bytes),
        fetched.registrations,
        fetched.reads
    ))?;
    if fetched.failures > 0 {
        line(&format!("failures  {} holders failed before", fetched.failures))?;
    }
    let phase = |name: &str, us: f64| [name.to_owned(), format!("{us:.1}")];
    table(
        ["PHASE", "US"],
        &[
            phase("lookup", fetched.lookup_us),
            phase("allocate", fetched.allocate_us),
            phase("move", fetched.move_us),
            phase("seal", fetched.seal_us),
            phase("all", fetched.total_us),
        ],
    )
}

/// Prints the nodes that hold an object, with the roles of their replicas.
pub(crate) fn locations(socket: &Socket, as_json: bool, args: &Located) -> Result<(), Failure> {
    let client = connect(socket, "plasmon locations")?;
    let id = args.object.id(&client, &args.whose);
    let locations = client.locations(id).map_err(args.object.named(id))?;
    if as_json {
        return json(&serde_json::to_string_pretty(&locations).expect("plain values"));
    }
    if locations.is_empty() {
        return Err(unknown(args, id));
    }
    let rows: Vec<_> = locations.into_iter().map(|one| [one.node, one.role]).collect();
    table(["NODE", "ROLE"], &rows)
}

/// Makes the node bring objects here, and does not wait for them.
pub(crate) fn prefetch(socket: &Socket, args: &Prefetch) -> Result<(), Failure> {
    let client = connect(socket, "plasmon prefetch")?;
    let ids: Vec<ObjectId> = args.objects.iter().map(|object| object.id(&client, &args.whose)).collect();
    Ok(client.prefetch(&ids, args.timeout)?)
}
