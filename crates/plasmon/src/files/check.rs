//! Check of a volume: whether the bytes of all files are there, and on as many nodes as was promised.
//!
//! Owns no state. The calling thread. Files are walked by their names, then open files without a name by
//! their numbers. The directory is asked where each object is, the nodes which objects they have that no
//! file has, and the home whether its sums are right. Files may change meanwhile, so a missing object is
//! looked for again before it is told.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::thread;
use std::time::Duration;

use super::session::unexpected;
use super::{Error, Result, Volume};
use crate::client::Volumes;
use crate::wire::files::{
    Attributes, Errno, FileKind, FileOperation, FileOutcome, Kept, Listed, MAX_SETTLED, NodeCheck,
    ROOT_INODE, Section, Source,
};
use crate::{NodeId, ObjectId};

/// Pause before an object that seems to be lost is looked for again.
const PAUSE: Duration = Duration::from_millis(200);
/// Number of entries of folders that are asked for at a time.
const LISTED_AT_ONCE: u32 = 512;

/// Trouble with bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// No node has the bytes.
    Lost,
    /// Fewer nodes keep the bytes than was promised.
    Short {
        /// Number of nodes that keep the bytes.
        kept: u16,
        /// Number of nodes that are to keep the bytes.
        copies: u16,
    },
}

/// Range of a file with which something is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Path of the file in the volume. Empty if the file is open and has no name.
    pub path: Vec<u8>,
    /// Number of the file's inode.
    pub inode: u64,
    /// Offset of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub len: u64,
    /// Object in which the bytes lie, or lay.
    pub object: ObjectId,
    /// Trouble with the bytes of the range.
    pub trouble: Trouble,
    /// Whether the trouble was mended.
    pub mended: bool,
}

/// Numbers that a check finds, without the single findings.
#[derive(Debug, Clone, Default)]
pub struct Checked {
    /// Number of files that were checked.
    pub files: u64,
    /// Number of checked files that are open and have no name.
    pub unnamed: u64,
    /// Number of folders that were checked.
    pub folders: u64,
    /// Number of objects in which the bytes of files lie.
    pub objects: u64,
    /// Number of bytes of files that no node has.
    pub lost_bytes: u64,
    /// Number of files and folders that this session may not look at. All files without a name count as one;
    /// only root and the node's own user are told of such files.
    pub skipped: u64,
    /// Replicas and objects of the volume on each node.
    pub nodes: BTreeMap<NodeId, NodeCheck>,
    /// Nodes that did not answer, each with the reason.
    pub missing: Vec<(NodeId, crate::Error)>,
}

/// Walk over all files of a volume.
struct Walk<'a, F> {
    volume: &'a Volume,
    repair: bool,
    found: F,
    checked: Checked,
    /// Files with several names that were looked at.
    seen: HashSet<u64>,
}

impl Volume {
    /// Checks all files of the volume, and calls `found` with each range with which something is wrong. With
    /// `repair` further copies are made where there are too few, and objects are deleted that no file has.
    ///
    /// # Errors
    /// The reason why names or maps cannot be read.
    pub fn check(&self, repair: bool, found: impl FnMut(&Finding)) -> Result<Checked> {
        let (checked, seen) = (Checked::default(), HashSet::new());
        let mut walk = Walk { volume: self, repair, found, checked, seen };
        walk.walk()?;
        walk.walk_unnamed()?;
        let mut checked = walk.checked;
        let attached = self.0.session.attached();
        let nodes = Volumes::by(&attached.client).check(attached.number, repair);
        (checked.nodes, checked.missing) = nodes.map_err(|error| Error::of_client(&error))?;
        Ok(checked)
    }

    /// Returns open inodes without a name behind a number, and whether these are the last.
    fn list_unnamed(&self, after: u64) -> Result<(Vec<Listed>, bool)> {
        let (outcome, _) = self.0.ask(&self.actor(), FileOperation::ListUnnamed { after })?;
        let FileOutcome::Entries { entries, end, .. } = outcome else { return Err(unexpected()) };
        Ok((entries, end))
    }

    /// Returns the sections of a file, by the number of its inode.
    pub(super) fn sections_of(&self, inode: u64) -> Result<Vec<Section>> {
        let (mut sections, mut end) = (Vec::<Section>::new(), 0);
        loop {
            let (outcome, _) = self.0.ask(&self.actor(), FileOperation::Map { inode, from: end })?;
            let FileOutcome::Map { map, .. } = outcome else { return Err(unexpected()) };
            // The first section of a page may be the last one of the page before.
            let known = sections.last().map_or(0, |last| last.offset.saturating_add(last.len));
            sections.extend(map.sections.into_iter().filter(|section| section.offset >= known));
            match map.next {
                None => return Ok(sections),
                Some(next) if next > end => end = next,
                Some(_) => return Err(unexpected()),
            }
        }
    }
}

impl<F: FnMut(&Finding)> Walk<'_, F> {
    fn walk(&mut self) -> Result<()> {
        let mut folders = vec![(ROOT_INODE, Vec::new())];
        while let Some((folder, path)) = folders.pop() {
            self.checked.folders += 1;
            let (mut after, mut upto) = (0, None);
            loop {
                let listed = self.volume.list(&self.volume.actor(), folder, (after, upto), LISTED_AT_ONCE);
                let Some(page) = self.unless_hidden(listed)? else { break };
                upto = Some(page.last);
                for entry in &page.entries {
                    after = entry.cookie;
                    let mut path = path.clone();
                    path.push(b'/');
                    path.extend_from_slice(&entry.name);
                    match entry.attributes.kind {
                        FileKind::Folder => folders.push((entry.attributes.inode, path)),
                        FileKind::File => self.look_at(&entry.attributes, &path)?,
                        _ => {}
                    }
                }
                if page.end || page.entries.is_empty() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn walk_unnamed(&mut self) -> Result<()> {
        let mut after = 0;
        loop {
            let listed = self.volume.list_unnamed(after);
            let Some((entries, end)) = self.unless_hidden(listed)? else { return Ok(()) };
            for entry in &entries {
                after = entry.cookie;
                if entry.attributes.kind == FileKind::File {
                    self.checked.unnamed += 1;
                    self.look_at(&entry.attributes, &[])?;
                }
            }
            if end || entries.is_empty() {
                return Ok(());
            }
        }
    }

    /// Returns the result of a question. `None` if this session may not see the inode, or if the inode has
    /// gone meanwhile.
    fn unless_hidden<T>(&mut self, asked: Result<T>) -> Result<Option<T>> {
        match asked {
            Err(error) if matches!(error.errno(), Errno::NoAccess | Errno::NotPermitted) => {
                self.checked.skipped += 1;
                Ok(None)
            }
            Err(error) if matches!(error.errno(), Errno::NotFound | Errno::Stale) => Ok(None),
            asked => asked.map(Some),
        }
    }

    fn look_at(&mut self, file: &Attributes, path: &[u8]) -> Result<()> {
        self.checked.files += 1;
        if file.used == 0 || (file.links > 1 && !self.seen.insert(file.inode)) {
            return Ok(());
        }
        let sections = self.volume.sections_of(file.inode);
        let Some(mut sections) = self.unless_hidden(sections)? else { return Ok(()) };
        let mut kept = self.kept(&sections, 0)?;
        let is_wrong = |kept: &BTreeMap<_, Kept>| kept.values().any(|one| one.kept < file.copies);
        if is_wrong(&kept) {
            // The file may have got other objects before the first ones were looked for.
            thread::sleep(PAUSE);
            let again = self.volume.sections_of(file.inode);
            let Some(again) = self.unless_hidden(again)? else { return Ok(()) };
            sections = again;
            kept = self.kept(&sections, 0)?;
        }
        self.checked.objects += kept.len() as u64;
        if !is_wrong(&kept) {
            return Ok(());
        }
        let mended = if self.repair { self.kept(&sections, file.copies)? } else { BTreeMap::new() };
        for section in &sections {
            let Some(object) = object_of(section) else { continue };
            let Some(found) = kept.get(&object).filter(|found| found.kept < file.copies) else { continue };
            let is_lost = found.kept == 0 && found.cached == 0;
            let trouble = match is_lost {
                true => Trouble::Lost,
                false => Trouble::Short { kept: found.kept, copies: file.copies },
            };
            if is_lost {
                self.checked.lost_bytes += section.len;
            }
            let mended = mended.get(&object).is_some_and(|found| found.kept >= file.copies);
            let (path, inode) = (path.to_vec(), file.inode);
            let (offset, len) = (section.offset, section.len);
            (self.found)(&Finding { path, inode, offset, len, object, trouble, mended });
        }
        Ok(())
    }

    /// Returns the number of nodes that keep each object of some sections. If fewer than `copies` nodes keep
    /// an object, further nodes are made to keep it.
    fn kept(&self, sections: &[Section], copies: u16) -> Result<BTreeMap<ObjectId, Kept>> {
        let ids: BTreeSet<_> = sections.iter().filter_map(object_of).collect();
        let ids: Vec<_> = ids.into_iter().collect();
        let attached = self.volume.0.session.attached();
        let mut all = BTreeMap::new();
        for ids in ids.chunks(MAX_SETTLED) {
            let found = Volumes::by(&attached.client).look_after(attached.number, ids, copies);
            all.extend(ids.iter().copied().zip(found.map_err(|error| Error::of_client(&error))?));
        }
        Ok(all)
    }
}

fn object_of(section: &Section) -> Option<ObjectId> {
    match &section.source {
        Source::Object { id, .. } => Some(*id),
        Source::Inline(_) => None,
    }
}
