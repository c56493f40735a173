//! Lists of objects, for Python: rows of plain values.
//!
//! Owns no state. Any thread.

use std::time::Duration;

use plasmon::{ClusterList, NodeId, ObjectInfo, ObjectState, Rights};

use crate::id::ObjectId;
use crate::replacing::Version;

/// Object of a list: id, name, state, whether it is private, rights of others, data size and metadata size in
/// bytes, pins, age in seconds, and time from creation to seal in seconds.
type Object = (ObjectId, Option<String>, &'static str, bool, Option<&'static str>, u64, u32, u32, f64, u32);
/// Row of a list: the object, what its value is, the nodes that hold it, and its version.
type Row = (Object, Option<String>, Vec<String>, Option<Version>);
/// Rows of a list, and the nodes that did not tell theirs, each with the reason.
pub(crate) type Listed = (Vec<Row>, Vec<(String, String)>);

/// Converts a list.
pub(crate) fn rows(list: ClusterList) -> Listed {
    let missing = list.missing.into_iter().map(|(node, error)| (node.to_string(), error.to_string()));
    let rows = list.objects.into_iter().zip(list.holders).map(|(info, holders)| row(info, &holders));
    (rows.collect(), missing.collect())
}

fn row(info: ObjectInfo, holders: &[NodeId]) -> Row {
    let (kind, version) = (info.kind(), info.version.map(Version));
    let ObjectInfo { id, name, data_len, metadata_len, pins, construction_s, .. } = info;
    let state = match info.state {
        ObjectState::Unsealed => "unsealed",
        ObjectState::Primary => "primary",
        ObjectState::Kept => "kept",
        ObjectState::Cached => "cached",
        ObjectState::Doomed => "doomed",
        ObjectState::Spilled => "spilled",
    };
    let (private, public) = match info.rights {
        Rights::Private => (true, None),
        Rights::Read => (false, Some("r")),
        Rights::ReadWrite => (false, Some("rw")),
    };
    let age = Duration::from_millis(info.age_ms).as_secs_f64();
    let object =
        (ObjectId(id), name, state, private, public, data_len, metadata_len, pins, age, construction_s);
    (object, kind, holders.iter().map(ToString::to_string).collect(), version)
}
