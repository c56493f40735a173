//! `plasmon explain PATH`: the sections of a file, the objects in which they lie, and where these are.
//!
//! Owns no state. Main thread. Sections and objects are asked for one after the other, so the output about a
//! file that changes meanwhile mixes several versions.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use plasmon::files::{AttachOptions, Attributes, Errno, Section, Source, Volume};
use plasmon::transfer::{Explanation, Location};
use plasmon::{Client, Error, ErrorKind, NodeId, ObjectId, Socket};
use serde_json::{Value, json};

use crate::connecting::connect;
use crate::failure::Failure;
use crate::object_args::Located;
use crate::output::{self, counted, line, size, table};

/// Number of digits of ids in tables.
const SHOWN_DIGITS: usize = 8;

/// File of a volume.
pub(crate) struct Named {
    volume: String,
    path: PathBuf,
    /// Whether the name can only be that of a file. Otherwise nothing is at the path, and the name may be
    /// that of an object.
    pub(crate) is_there: bool,
}

/// Object in which bytes of a file lie.
struct Part {
    /// Size in bytes.
    len: u64,
    /// Node that was the primary when the bytes were committed.
    node: NodeId,
    locations: Vec<Location>,
    came: Explanation,
}

/// File that an argument names, if it names none of the objects.
pub(crate) fn named(args: &Located) -> Option<Named> {
    let text = args.object.name()?;
    if let Some((volume, path)) = text.split_once(":/")
        && !volume.is_empty()
        && !volume.contains('/')
        && !path.starts_with('/')
    {
        return Some(Named { volume: volume.to_owned(), path: Path::new("/").join(path), is_there: true });
    }
    if !text.contains('/') {
        return None;
    }
    // A text that is no path within a mounted volume may be the name of an object.
    let (volume, path) = within_volume(Path::new(text))?;
    // Makes the mount commit bytes that it holds back. A file that this user may not read is told as it is.
    if fs::metadata(text).is_ok_and(|found| found.is_file()) {
        _ = File::open(text).and_then(|file| file.sync_all());
    }
    Some(Named { volume, path, is_there: Path::new(text).exists() })
}

/// Volume within which a path lies, and the path there. `None` for a path outside all mounted volumes. The
/// last parts of the path need not exist.
fn within_volume(path: &Path) -> Option<(String, PathBuf)> {
    let found = |folder: &Path| {
        let rest = path.strip_prefix(folder).ok()?;
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        // A folder that does not exist may lie in one that does.
        let within = plasmon_mount::volume_of(folder).ok()?;
        let whole = |at: PathBuf| if rest.as_os_str().is_empty() { at } else { at.join(rest) };
        Some(within.map(|(volume, at)| (volume, whole(at))))
    };
    path.ancestors().find_map(found)?
}

/// Prints where the bytes of a file lie, and how its objects came to this node.
pub(crate) fn explain(socket: &Socket, as_json: bool, file: &Named) -> Result<(), Failure> {
    let client = connect(socket, "plasmon explain")?;
    let options = AttachOptions { read_only: true, ..AttachOptions::default() };
    let volume = Volume::attach(&client, &file.volume, &options)?;
    let attributes = volume.metadata(&file.path).map_err(|error| failed(&error))?;
    let sections = volume.sections(&file.path).map_err(|error| failed(&error))?;
    let parts = parts(&client, &sections)?;
    if as_json {
        let told = told(file, &attributes, &sections, &parts);
        return output::json(&serde_json::to_string_pretty(&told).expect("plain values"));
    }
    line(&format!(
        "file {} of volume {}: {} in {} of {}; what is written goes to {}, on {}",
        file.path.display(),
        file.volume,
        size(attributes.size),
        counted(sections.len() as u64, "section"),
        counted(parts.len() as u64, "object"),
        attributes.place,
        counted(attributes.copies.into(), "node")
    ))?;
    let rows: Vec<_> = sections.iter().map(|section| row(section, &parts)).collect();
    if rows.is_empty() { Ok(()) } else { table(["OFFSET", "BYTES", "OBJECT", "ON", "CAME HERE"], &rows) }
}

/// Failure of a call on a file.
pub(crate) fn failed(error: &plasmon::files::Error) -> Failure {
    let kind = match error.errno() {
        Errno::NotFound => ErrorKind::NotFound,
        Errno::NoAccess | Errno::NotPermitted => ErrorKind::NotAllowed,
        Errno::Io => ErrorKind::Lost,
        _ => ErrorKind::Invalid,
    };
    Failure::Store(Error::new(kind, error.to_string()))
}

/// Objects of sections, with where they are.
fn parts(client: &Client, sections: &[Section]) -> Result<BTreeMap<ObjectId, Part>, Failure> {
    let mut parts = BTreeMap::new();
    for section in sections {
        let Source::Object { id, object_len, node, .. } = &section.source else { continue };
        if !parts.contains_key(id) {
            let (locations, came) = (client.locations(*id)?, client.explain(*id)?);
            parts.insert(*id, Part { len: *object_len, node: *node, locations, came });
        }
    }
    Ok(parts)
}

fn digits(id: &str) -> String {
    id.chars().take(SHOWN_DIGITS).collect()
}

fn row(section: &Section, parts: &BTreeMap<ObjectId, Part>) -> [String; 5] {
    let (object, on, came) = match &section.source {
        Source::Inline(_) => ("in the map".to_owned(), String::new(), String::new()),
        Source::Object { id, .. } => match parts.get(id) {
            Some(part) => (id.to_string(), on(part), came(part)),
            None => (id.to_string(), String::new(), String::new()),
        },
    };
    [section.offset.to_string(), section.len.to_string(), object, on, came]
}

/// Nodes that hold an object, the primary first.
fn on(part: &Part) -> String {
    let mut locations: Vec<_> = part.locations.iter().collect();
    locations.sort_by_key(|location| location.role != "primary");
    let names = locations.iter().map(|location| format!("{} {}", digits(&location.node), location.role));
    let names = names.collect::<Vec<_>>().join(", ");
    if names.is_empty() { "no node".to_owned() } else { names }
}

/// Says how an object came to this node.
fn came(part: &Part) -> String {
    match (&part.came.fetched, part.came.here.as_str()) {
        (Some(fetched), _) => {
            let from: Vec<_> = fetched.holders.iter().map(|holder| digits(holder)).collect();
            format!("{} from {}", fetched.protocol, from.join(", "))
        }
        (None, "absent") => "it did not".to_owned(),
        (None, _) => "put here".to_owned(),
    }
}

/// The file, its sections and its objects, for programs.
fn told(
    file: &Named,
    attributes: &Attributes,
    sections: &[Section],
    parts: &BTreeMap<ObjectId, Part>,
) -> Value {
    let section = |section: &Section| match &section.source {
        Source::Inline(_) => json!({ "offset": section.offset, "len": section.len, "object": null }),
        Source::Object { id, at, .. } => {
            json!({ "offset": section.offset, "len": section.len, "object": id.to_string(), "at": at })
        }
    };
    let object = |(id, part): (&ObjectId, &Part)| {
        json!({
            "id": id.to_string(),
            "len": part.len,
            "committed_on": part.node.to_string(),
            "locations": part.locations,
            "here": part.came.here,
            "fetched": part.came.fetched,
        })
    };
    json!({
        "volume": file.volume,
        "path": file.path.to_string_lossy(),
        "inode": attributes.inode,
        "size": attributes.size,
        "copies": attributes.copies,
        "place": attributes.place.to_string(),
        "sections": sections.iter().map(section).collect::<Value>(),
        "objects": parts.iter().map(object).collect::<Value>(),
    })
}
