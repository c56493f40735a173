//! The volume of the chaos that has a capacity and a quota, both of which programs reach all the time.
//!
//! Owns what programs know of their files there. Each program has a few files of one of two owners, which
//! together want more room than there is. What a write accepted has to be there; what it refused has left the
//! file as it was. In the end the home counts what the files have, and all room can be used again: no credit
//! has leaked, and none was given twice.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, fchown};
use std::path::{Path, PathBuf};

use plasmon_e2e::{Chance, Cluster, Pattern, eventually, until};
use rustix::fs::statvfs;

use super::{checked, info};
use crate::commands::json;
use crate::files::Mounted;
use crate::support::MIB;

pub(super) const NAME: &str = "limited";
pub(super) const ENOSPC: i32 = 28;
pub(super) const EDQUOT: i32 = 122;

const CAPACITY: usize = 4 * MIB;
const QUOTA: usize = 3 * MIB;
/// Users that files belong to.
const OWNERS: [u32; 2] = [1000, 1001];
/// Number of files of a program.
const FILES: usize = 4;
/// Longest file in bytes.
const LONGEST: usize = 3 * MIB;
/// Size of a write in bytes.
const PIECE: usize = 100_000;
/// Numbers of bytes that a call wants to write.
const LENGTHS: [usize; 5] = [50, 3_000, 90_000, 700_000, 2 * MIB];

pub(super) fn create(cluster: &Cluster, home: usize) {
    let (capacity, quota) = (CAPACITY.to_string(), QUOTA.to_string());
    let limits = ["--copies", "2", "--capacity", &capacity, "--user-quota", &quota];
    json(cluster, home, &[&["volume", "create", NAME], &limits[..]].concat());
}

/// Files of a program, with what they are known to have. After an error that is not for want of room a file
/// may have anything, until it is written anew.
pub(super) struct Limited {
    root: PathBuf,
    number: usize,
    files: BTreeMap<String, Vec<u8>>,
    /// Number of writes that were refused for want of room.
    refused: usize,
}

impl Limited {
    pub(super) fn new(root: &Path, number: usize) -> Self {
        Self { root: root.to_owned(), number, files: BTreeMap::new(), refused: 0 }
    }

    /// Does something with one of the files.
    pub(super) fn work(&mut self, chance: &mut Chance) -> io::Result<()> {
        let name = format!("{}-{}", self.number, chance.below(FILES));
        let known = self.files.remove(&name);
        let path = self.root.join(&name);
        let is_known = known.is_some();
        let left = match (chance.below(6), known) {
            (0, _) => match fs::remove_file(path) {
                // A file of which nothing is known may not be there.
                Err(error) if is_known || error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => return Ok(()),
            },
            (1, Some(mut bytes)) => {
                bytes.truncate(chance.below(LONGEST));
                let file = File::options().write(true).open(path)?;
                file.set_len(bytes.len() as u64)?;
                file.sync_all()?;
                bytes
            }
            // Over bytes that are there, and behind them.
            (2..5, Some(bytes)) if bytes.len() < LONGEST => {
                let file = File::options().write(true).open(path)?;
                let at = chance.below(bytes.len() + 1);
                self.write(&file, bytes, at, chance)?
            }
            _ => {
                let file = File::create(path)?;
                fchown(&file, Some(OWNERS[self.number % OWNERS.len()]), None)?;
                self.write(&file, Vec::new(), 0, chance)?
            }
        };
        self.files.insert(name, left);
        Ok(())
    }

    /// Writes to a file that has these bytes, until a write is refused. Gives what the file has then.
    fn write(
        &mut self,
        file: &File,
        mut bytes: Vec<u8>,
        at: usize,
        chance: &mut Chance,
    ) -> io::Result<Vec<u8>> {
        let data = Pattern(chance.word()).bytes(*chance.pick(&LENGTHS));
        let mut done = 0;
        while done < data.len() {
            let piece = &data[done..(done + PIECE).min(data.len())];
            match file.write_at(piece, (at + done) as u64) {
                Ok(len) => done += len,
                Err(error) if matches!(error.raw_os_error(), Some(ENOSPC | EDQUOT)) => {
                    self.refused += 1;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        file.sync_all()?;
        bytes.resize(bytes.len().max(at + done), 0);
        bytes[at..at + done].copy_from_slice(&data[..done]);
        Ok(bytes)
    }

    /// Compares all files that are known, by a mount.
    pub(super) fn check(&self, root: &Path) {
        for (name, bytes) in &self.files {
            let read = fs::read(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(read == *bytes, "{name} has {} other bytes than {}", read.len(), bytes.len());
        }
    }
}

/// Looks at what the home counts, when the volume is whole and at rest.
pub(super) fn look(cluster: &Cluster) {
    let usage = until("the home adds up", || {
        let (told, _) = checked(cluster, NAME)?;
        told.nodes.values().find_map(|node| node.usage)
    });
    assert!(usage.is_right() && usage.used <= CAPACITY as u64, "{usage:?}");
}

/// Bytes that files are said to have: by `df` on a mount.
fn used(mounted: &Mounted) -> u64 {
    let told = statvfs(mounted.root()).expect("statvfs");
    assert_eq!(told.f_blocks * told.f_frsize, CAPACITY as u64);
    (told.f_blocks - told.f_bfree) * told.f_frsize
}

/// Looks at what is counted, removes all files and writes until all room is used.
pub(super) fn look_at_all<'a>(
    cluster: &Cluster,
    mounts: &[Mounted; 3],
    programs: impl Iterator<Item = &'a Limited>,
) {
    let refused: usize = programs.map(|program| program.refused).sum();
    eprintln!("chaos on mounts: {refused} writes were refused for want of room");
    assert!(refused > 0, "the limits were not tried");
    let names: Vec<_> = fs::read_dir(mounts[0].root()).expect("list").map(|one| one.expect("list")).collect();
    let have = |mounted: &Mounted| -> u64 {
        let sizes = names.iter().map(|one| fs::metadata(mounted.root().join(one.file_name())));
        sizes.map(|told| told.expect("stat").blocks() * 512).sum()
    };
    for mounted in mounts {
        // Used bytes and the lengths of files are both in blocks, of different sizes.
        let (used, have) = (used(mounted), have(mounted));
        assert!(used.abs_diff(have) < 4096 * (names.len() as u64 + 1), "{used} are used, files have {have}");
    }
    look(cluster);
    names.iter().for_each(|one| fs::remove_file(one.path()).expect("unlink"));
    let empty = || info(cluster, NAME).is_some_and(|info| info.used == 0);
    eventually("no file has anything", empty);
    let fill = |mounted: &Mounted, owner: u32| {
        let file = File::create(mounted.root().join(owner.to_string())).expect("create");
        fchown(&file, Some(owner), None).expect("chown");
        let mut accepted = 0;
        loop {
            match file.write_at(&[7; MIB], accepted as u64) {
                Ok(len) => accepted += len,
                Err(error) => return (accepted, error.raw_os_error().expect("a number")),
            }
        }
    };
    let all =
        |at: usize, what| until("all room is free", || (fill(&mounts[at], OWNERS[at]) == what).then_some(()));
    all(0, (QUOTA, EDQUOT));
    all(1, (CAPACITY - QUOTA, ENOSPC));
    eventually("what was not used is given back", || {
        (0..mounts.len()).all(|node| cluster.status(node).files.credit == 0)
    });
    OWNERS.iter().for_each(|owner| fs::remove_file(mounts[2].path(&owner.to_string())).expect("unlink"));
    eventually("no file has anything", empty);
}
