//! Tests of random operations on names and bytes, against a simple model: paths and their bytes.

use std::collections::BTreeMap;

use plasmon::wire::Draw;
use plasmon::wire::files::{Errno, FileKind, FileOperation, FileOutcome, Section, Source};

use super::mirrors::{Echo, compare as compare_mirror};
use super::*;
use crate::files::map::Place;

/// Number of random runs.
const SEEDS: u64 = 60;
/// Number of operations in each random run.
const STEPS: usize = 300;
/// Maximum length of files of the model.
const MAX_LEN: usize = 200;

/// Node of the model that a path stands for. Files with the same number are links of one inode.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Folder,
    File(u64),
}

/// The model: paths without the slash in front, and the bytes of files.
#[derive(Default)]
struct Model {
    paths: BTreeMap<String, Node>,
    bytes: BTreeMap<u64, Vec<u8>>,
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

impl Model {
    fn is_folder(&self, path: &str) -> bool {
        path.is_empty() || self.paths.get(path) == Some(&Node::Folder)
    }

    fn has_children(&self, path: &str) -> bool {
        let prefix = format!("{path}/");
        self.paths.keys().any(|other| other.starts_with(&prefix))
    }

    fn make(&mut self, path: &str, node: Node) -> Result<(), Errno> {
        if self.paths.contains_key(path) {
            return Err(Errno::Exists);
        }
        self.paths.insert(path.to_owned(), node);
        Ok(())
    }

    fn unlink(&mut self, path: &str) -> Result<(), Errno> {
        match self.paths.get(path) {
            None => Err(Errno::NotFound),
            Some(Node::Folder) => Err(Errno::IsFolder),
            Some(Node::File(_)) => {
                self.paths.remove(path);
                Ok(())
            }
        }
    }

    fn remove_folder(&mut self, path: &str) -> Result<(), Errno> {
        match self.paths.get(path) {
            None => Err(Errno::NotFound),
            Some(Node::File(_)) => Err(Errno::NotFolder),
            Some(Node::Folder) if self.has_children(path) => Err(Errno::NotEmpty),
            Some(Node::Folder) => {
                self.paths.remove(path);
                Ok(())
            }
        }
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), Errno> {
        let node = self.paths.get(from).cloned().ok_or(Errno::NotFound)?;
        if node == Node::Folder && (split(to).0 == from || split(to).0.starts_with(&format!("{from}/"))) {
            return Err(Errno::Invalid);
        }
        if self.paths.get(to) == Some(&node) && (from == to || node != Node::Folder) {
            return Ok(());
        }
        match (self.paths.get(to), &node) {
            (Some(Node::Folder), Node::File(_)) => return Err(Errno::IsFolder),
            (Some(Node::Folder), _) if self.has_children(to) => return Err(Errno::NotEmpty),
            (Some(Node::File(_)), Node::Folder) => return Err(Errno::NotFolder),
            _ => {}
        }
        let inner = format!("{from}/");
        let moved: Vec<_> =
            self.paths.keys().filter(|path| *path == from || path.starts_with(&inner)).cloned().collect();
        self.paths.remove(to);
        for path in moved {
            let node = self.paths.remove(&path).expect("it was found");
            self.paths.insert(format!("{to}{}", &path[from.len()..]), node);
        }
        Ok(())
    }
}

/// Returns the inode of a path, if it exists.
fn find(bench: &mut Bench, path: &str) -> Option<u64> {
    let mut at = TOP;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = bench.look(at, name).ok()?.inode;
    }
    Some(at)
}

/// Returns the bytes of a file. Each byte of an object is the object's number.
fn bytes_of(bench: &Bench, inode: u64) -> Vec<u8> {
    let inode = bench.state.inode(inode).expect("it is there");
    let mut bytes = vec![0; inode.head.size as usize];
    for (offset, piece) in inode.map().expect("it is a file").within(0..u64::MAX) {
        for at in 0..piece.len {
            bytes[(offset + at) as usize] = match &piece.place {
                Place::Inline(bytes) => bytes[at as usize],
                Place::Object(id, _) => plasmon::wire::files::parts_of(id).expect("it is of a file").2 as u8,
            };
        }
    }
    bytes
}

/// Draws a path of at most two levels, with one of few names, in a folder of the model.
fn draw_path(draw: &mut Draw, model: &Model) -> String {
    let folders: Vec<_> = model.paths.keys().filter(|path| model.is_folder(path)).cloned().collect();
    let folder = if draw.below(3) == 0 || folders.is_empty() {
        String::new()
    } else {
        format!("{}/", folders[draw.below(folders.len())])
    };
    format!("{folder}{}", draw.one(&["a", "b", "c", "d"]))
}

/// Makes a change of names in volume and model. Returns the outcome in each.
fn change_names(
    bench: &mut Bench,
    model: &mut Model,
    draw: &mut Draw,
) -> (String, Result<(), Errno>, Result<(), Errno>) {
    let path = draw_path(draw, model);
    let (above, name) = split(&path);
    let folder = find(bench, above).expect("the folder is in both");
    match draw.below(6) {
        0 => {
            let made = FileOperation::MakeFolder { folder, name: named(name), mode: 0o755 };
            (format!("mkdir {path}"), bench.run(made).map(drop), model.make(&path, Node::Folder))
        }
        1 | 2 => {
            let made = FileOperation::MakeNode { folder, name: named(name), mode: 0o644, device: 0 };
            let made = bench.entry(made);
            let number = made.as_ref().map_or(0, |attributes| attributes.inode);
            let expected = model.make(&path, Node::File(number));
            if expected.is_ok() {
                model.bytes.insert(number, Vec::new());
            }
            (format!("make {path}"), made.map(drop), expected)
        }
        3 => (format!("unlink {path}"), bench.run(unlink(folder, name)).map(drop), model.unlink(&path)),
        4 => {
            let removed = bench.run(FileOperation::RemoveFolder { folder, name: named(name) });
            (format!("rmdir {path}"), removed.map(drop), model.remove_folder(&path))
        }
        _ => {
            let to = draw_path(draw, model);
            let (to_above, to_name) = split(&to);
            let to_folder = find(bench, to_above).expect("the folder is in both");
            let renamed = bench.run(rename(folder, name, to_folder, to_name));
            (format!("rename {path} to {to}"), renamed.map(drop), model.rename(&path, &to))
        }
    }
}

/// Makes a change of the bytes of a file in volume and model.
fn change_bytes(bench: &mut Bench, model: &mut Model, draw: &mut Draw) {
    let files = model.paths.values().filter_map(|node| match node {
        Node::File(inode) => Some(*inode),
        Node::Folder => None,
    });
    let files: Vec<_> = files.collect();
    if files.is_empty() {
        return;
    }
    let inode = files[draw.below(files.len())];
    let bytes = model.bytes.get_mut(&inode).expect("every file has bytes");
    let offset = draw.below(MAX_LEN - 1);
    let len = 1 + draw.below(MAX_LEN - offset - 1);
    let reach = |bytes: &mut Vec<u8>, end: usize| bytes.resize(bytes.len().max(end), 0);
    let operation = match draw.below(5) {
        0 => {
            bytes.resize(offset, 0);
            resize(inode, offset as u64)
        }
        1 => {
            let end = bytes.len().min(offset + len);
            if offset < end {
                bytes[offset..end].fill(0);
            }
            FileOperation::Punch { inode, offset: offset as u64, len: len as u64, extend: false }
        }
        2 => {
            let (section, id) = bench.section(offset as u64, len as u64);
            let byte = plasmon::wire::files::parts_of(&id).expect("it is of a file").2 as u8;
            reach(bytes, offset + len);
            bytes[offset..offset + len].fill(byte);
            FileOperation::Commit {
                inode,
                sections: vec![section],
                modified: None,
                drops_privileges: false,
                credit: 0,
                credit_of: 0,
            }
        }
        3 => {
            let source = files[draw.below(files.len())];
            let from = model.bytes[&source].clone();
            let (start, end) = (offset.min(from.len()), (offset + len).min(from.len()));
            if source == inode || start == end {
                return;
            }
            let bytes = model.bytes.get_mut(&inode).expect("every file has bytes");
            reach(bytes, end - start);
            bytes[..end - start].copy_from_slice(&from[start..end]);
            FileOperation::Clone { source, source_offset: start as u64, inode, offset: 0, len: len as u64 }
        }
        _ => {
            let byte = draw.below(256) as u8;
            reach(bytes, offset + len);
            bytes[offset..offset + len].fill(byte);
            let source = Source::Inline(vec![byte; len].into());
            let sections = vec![Section { offset: offset as u64, len: len as u64, source }];
            commit(inode, sections)
        }
    };
    let outcome = bench.run(operation);
    assert!(!matches!(outcome, Err(_) | Ok(FileOutcome::NoRoomInline)), "{outcome:?}");
}

/// Compares a folder, with all below it, with the model. Returns the number of inodes that were seen.
fn compare(bench: &mut Bench, model: &Model, path: &str, folder: u64) -> usize {
    let mut names = bench.names(folder);
    names.sort_unstable();
    let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
    let inner = model.paths.keys().filter_map(|other| other.strip_prefix(&prefix));
    let expected: Vec<_> = inner.filter(|rest| !rest.is_empty() && !rest.contains('/')).collect();
    assert_eq!(names, expected, "in {path}");
    let folders = names.iter().filter(|name| model.is_folder(&format!("{prefix}{name}"))).count();
    assert_eq!(bench.look(folder, ".").unwrap().links as usize, 2 + folders);
    let mut seen = 1;
    for name in names {
        let path = format!("{prefix}{name}");
        let attributes = bench.look(folder, &name).unwrap();
        match &model.paths[&path] {
            Node::Folder => {
                assert_eq!(attributes.kind, FileKind::Folder);
                assert_eq!(bench.look(attributes.inode, "..").unwrap().inode, folder);
                seen += compare(bench, model, &path, attributes.inode);
            }
            Node::File(inode) => {
                assert_eq!((attributes.inode, attributes.links), (*inode, 1));
                assert_eq!(bytes_of(bench, *inode), model.bytes[inode], "of {path}");
                seen += 1;
            }
        }
    }
    seen
}

/// Checks that derived parts of the state follow from the rest.
fn check_derived(state: &State) {
    let maps: Vec<_> = state.inodes.values().filter_map(|inode| inode.map()).collect();
    assert_eq!(state.used, maps.iter().map(|map| map.used()).sum::<u64>());
    assert_eq!(state.inline, maps.iter().map(|map| map.inline()).sum::<u64>());
    assert_eq!(state.used, state.used_by.values().sum::<u64>());
    let mut references = BTreeMap::<ObjectId, u64>::new();
    for (_, piece) in maps.iter().flat_map(|map| map.within(0..u64::MAX)) {
        if let Place::Object(id, _) = piece.place {
            *references.entry(id).or_default() += 1;
        }
    }
    let counted = state.objects.iter().map(|(id, object)| (*id, object.references)).collect();
    assert_eq!(references, counted);
    assert!(state.condemned.iter().all(|id| !state.objects.contains_key(id)));
}

/// Checks that each inode with links has a name in the folder in which it is known to lie.
pub(super) fn check_above(state: &State) {
    for (number, inode) in &state.inodes {
        let folder = state.inode(inode.above).and_then(|above| above.folder());
        let has_it = folder.is_some_and(|folder| folder.names.values().any(|entry| entry.inode == *number));
        let may_be_anywhere = inode.above == 0 && inode.folder().is_none() && inode.head.links > 0;
        assert!(*number == TOP || inode.head.links == 0 || has_it || may_be_anywhere, "{number}: {inode:?}");
    }
}

#[test]
fn a_volume_does_what_a_model_does() {
    for seed in 0..SEEDS {
        let (mut bench, mut model, mut draw) = (Bench::new(), Model::default(), Draw::new(seed));
        for step in 0..STEPS {
            if draw.below(2) == 0 {
                let (what, done, expected) = change_names(&mut bench, &mut model, &mut draw);
                assert_eq!(done, expected, "seed {seed}, step {step}: {what}");
            } else {
                change_bytes(&mut bench, &mut model, &mut draw);
            }
            check_derived(&bench.state);
            check_above(&bench.state);
            assert!(bench.state.inodes.values().all(|inode| inode.above > 0), "no file has several names");
            if draw.below(60) == 0 && bench.mirrors.len() < 2 {
                bench.mirrors.push(Echo::join(&bench.state));
            }
            for mirror in &mut bench.mirrors {
                mirror.follow(&bench.state, false);
                if mirror.has_joined() && draw.below(10) == 0 {
                    compare_mirror(&bench.state, &mirror.state);
                    check_derived(&mirror.state);
                    check_above(&mirror.state);
                }
            }
        }
        bench.mirrors.iter_mut().for_each(|mirror| mirror.follow(&bench.state, true));
        bench.mirrors.iter().for_each(|mirror| compare_mirror(&bench.state, &mirror.state));
        let seen = compare(&mut bench, &model, "", TOP);
        assert_eq!(bench.state.inodes.len(), seen, "seed {seed}: nothing else is left");
    }
}
