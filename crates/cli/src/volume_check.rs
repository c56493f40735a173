//! `plasmon volume check`: whether the bytes of all files of a volume are there.
//!
//! Owns no state. Main thread.

use std::collections::BTreeMap;

use plasmon::files::{AttachOptions, Checked, Finding, NodeCheck, Trouble, Volume};
use plasmon::text::printable;
use plasmon::{Client, Error, ErrorKind, NodeId};
use serde_json::{Value, json};

use crate::explain_file::failed;
use crate::failure::Failure;
use crate::listing::complete;
use crate::output::{self, counted, line, size};

/// Ranges with which something is wrong.
#[derive(Default)]
struct Found {
    lost: Vec<Finding>,
    short: Vec<Finding>,
}

impl Found {
    /// Notes a finding. A finding that begins where the last one ended, with the same trouble, lengthens the
    /// last one.
    fn add(&mut self, finding: &Finding) {
        let list = if finding.trouble == Trouble::Lost { &mut self.lost } else { &mut self.short };
        match list.last_mut() {
            Some(last)
                if last.inode == finding.inode
                    && last.path == finding.path
                    && last.offset + last.len == finding.offset
                    && (last.trouble, last.mended) == (finding.trouble, finding.mended) =>
            {
                last.len += finding.len;
            }
            _ => list.push(finding.clone()),
        }
    }
}

/// Checks the files of a volume, and fails if bytes are lost.
pub(crate) fn check(client: &Client, as_json: bool, name: &str, repair: bool) -> Result<(), Failure> {
    let options = AttachOptions { read_only: true, checked: false, ..AttachOptions::default() };
    let volume = Volume::attach(client, name, &options)?;
    let mut found = Found::default();
    let checked = volume.check(repair, |finding| found.add(finding)).map_err(|error| failed(&error))?;
    if as_json {
        output::json(&told(name, &checked, &found).to_string())?;
    } else {
        tell(&checked, &found, repair)?;
    }
    if !found.lost.is_empty() {
        let text = format!(
            "{} of files of volume '{}' are lost: every node that had them is gone",
            size(checked.lost_bytes),
            printable(name)
        );
        return Err(Failure::Store(Error::new(ErrorKind::Lost, text)));
    }
    complete(&checked.missing)
}

/// Prints what was found, for people.
fn tell(checked: &Checked, found: &Found, repair: bool) -> Result<(), Failure> {
    for finding in &found.lost {
        line(&format!("lost   {}", range(finding)))?;
    }
    for finding in &found.short {
        let Trouble::Short { kept, copies } = finding.trouble else { continue };
        let now = if finding.mended { ", now kept by all" } else { "" };
        line(&format!(
            "short  {}: kept by {kept} of {}{now}",
            range(finding),
            counted(copies.into(), "node")
        ))?;
    }
    let left: NodeCheck = checked.nodes.values().fold(NodeCheck::default(), |sum, node| NodeCheck {
        left: sum.left + node.left,
        left_bytes: sum.left_bytes + node.left_bytes,
        ..sum
    });
    line(&format!(
        "{} and {} with {}; {} lost, {} on too few nodes",
        counted(checked.files, "file"),
        counted(checked.folders, "folder"),
        counted(checked.objects, "object"),
        counted(found.lost.len() as u64, "range"),
        counted(found.short.iter().filter(|finding| !finding.mended).count() as u64, "range")
    ))?;
    if left.left > 0 {
        let done = if repair { "deleted" } else { "--repair deletes them" };
        line(&format!(
            "{} of {} that no file has: {done}",
            counted(left.left, "replica"),
            size(left.left_bytes)
        ))?;
    }
    for usage in checked.nodes.values().filter_map(|node| node.usage).filter(|usage| !usage.is_right()) {
        line(&format!(
            "the home counts {} and the files have {}; wrong are the sums of {} and the references of {}",
            size(usage.used),
            size(usage.counted),
            counted(usage.wrong_users, "user"),
            counted(usage.wrong_objects, "object")
        ))?;
    }
    if checked.skipped > 0 {
        line(&format!("{} not looked at: this user may not", counted(checked.skipped, "file or folder")))?;
    }
    Ok(())
}

/// Range of a file, for people.
fn range(finding: &Finding) -> String {
    let path = String::from_utf8_lossy(&finding.path);
    let file = match finding.path.is_empty() {
        true => format!("inode {} (no name)", finding.inode),
        false => printable(&path).to_string(),
    };
    format!("{file} {}..{}", finding.offset, finding.offset + finding.len)
}

/// Result of the check, for programs.
fn told(name: &str, checked: &Checked, found: &Found) -> Value {
    let row = |finding: &Finding| {
        let mut row = json!({
            "path": (!finding.path.is_empty()).then(|| String::from_utf8_lossy(&finding.path)),
            "inode": finding.inode,
            "offset": finding.offset,
            "len": finding.len,
            "object": finding.object.to_string(),
        });
        if let Trouble::Short { kept, copies } = finding.trouble {
            row["kept"] = kept.into();
            row["copies"] = copies.into();
            row["mended"] = finding.mended.into();
        }
        row
    };
    json!({
        "name": name,
        "files": checked.files,
        "unnamed": checked.unnamed,
        "folders": checked.folders,
        "objects": checked.objects,
        "skipped": checked.skipped,
        "lost_bytes": checked.lost_bytes,
        "lost": found.lost.iter().map(row).collect::<Value>(),
        "short": found.short.iter().map(row).collect::<Value>(),
        "nodes": nodes(&checked.nodes),
        "missing": checked.missing.iter().map(|(node, _)| node.to_string()).collect::<Value>(),
    })
}

fn nodes(nodes: &BTreeMap<NodeId, NodeCheck>) -> Value {
    let row = |(node, checked): (&NodeId, &NodeCheck)| {
        let usage = checked.usage.map(|usage| {
            json!({
                "used": usage.used,
                "counted": usage.counted,
                "wrong_users": usage.wrong_users,
                "wrong_objects": usage.wrong_objects,
            })
        });
        json!({
            "node": node.to_string(),
            "replicas": checked.replicas,
            "bytes": checked.bytes,
            "left": checked.left,
            "left_bytes": checked.left_bytes,
            "usage": usage,
        })
    };
    nodes.iter().map(row).collect()
}
