//! Regions that all workers use: they add to a counter, read a pattern, move the regions and free them.
//!
//! A region begins with its counter. The second word is its *life*, a number that no other region has, which
//! is written when the pattern behind it is complete. So whoever finds the life knows the pattern, and of
//! which region an add was. An add that was answered was made, one that failed may have been made, and no two
//! of them find the same number before. A region may be lost with its home; then its name gets another life.
//! A snapshot has the bytes of one moment: the pattern of its life, and as many adds as were answered before
//! the snapshot was begun, or more, up to those that were begun before it ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use plasmon::region::{Region, RegionOptions, Rights};
use plasmon::{Client, CreateOptions, Error, ErrorKind, ObjectId};
use plasmon_e2e::wait::patiently;
use plasmon_e2e::{PATIENCE, Pattern};

use super::worker::{DELETION, Worker};

/// Number of regions.
pub(super) const REGIONS: usize = 3;
/// Size in bytes of a region.
const LEN: usize = 200_000;
const COUNTER: u64 = 0;
const LIFE: u64 = 8;
const PATTERN: u64 = 16;
/// Time that an operation may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Time that an operation may take that asks keepers of names and waits for them.
const LONG_LIMIT: Duration = Duration::from_secs(60);

/// Adds to the counter of a region.
#[derive(Debug, Default)]
struct Adds {
    /// Values that the adds which were answered found before.
    found: BTreeSet<u64>,
    /// Number of adds that were begun.
    begun: u64,
}

/// Adds to each life of each region.
#[derive(Default)]
pub(super) struct Regions(Mutex<BTreeMap<u64, Adds>>);

impl Regions {
    fn begin_add(&self, life: u64) {
        self.0.lock().unwrap().entry(life).or_default().begun += 1;
    }

    fn end_add(&self, life: u64, before: u64) {
        let mut lives = self.0.lock().unwrap();
        let adds = lives.get_mut(&life).expect("it was begun");
        assert!(before < adds.begun, "{before} adds were made of {}", adds.begun);
        assert!(adds.found.insert(before), "two adds found {before}: one was lost");
    }

    /// Checks the counter of a life to which nobody adds now.
    fn check(&self, life: u64, value: u64) {
        let (answered, begun) = self.counted(life);
        assert!((answered..=begun).contains(&value), "{value} of {answered} to {begun} adds");
    }

    /// Number of adds to a life that were answered, and that were begun.
    fn counted(&self, life: u64) -> (u64, u64) {
        let lives = self.0.lock().unwrap();
        lives.get(&life).map_or((0, 0), |adds| (adds.found.len() as u64, adds.begun))
    }

    /// Number of adds that were answered, and of lives that had any.
    pub(super) fn adds(&self) -> (usize, usize) {
        let lives = self.0.lock().unwrap();
        (lives.values().map(|adds| adds.found.len()).sum(), lives.len())
    }
}

/// Name of a region.
fn named(number: usize) -> String {
    format!("chaos {number}")
}

fn word(region: &Region, offset: u64) -> Result<u64, Error> {
    let mut word = [0; 8];
    region.read(offset, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// Checks the pattern of a life.
fn check_pattern(region: &Region, life: u64) -> Result<(), Error> {
    let mut found = vec![0; LEN - PATTERN as usize];
    region.read(PATTERN, &mut found)?;
    assert!(found == Pattern(life).bytes(found.len()), "the bytes of {}, life {life}", region.name());
    Ok(())
}

/// The life, and the counter, of the bytes that an object has of a region.
///
/// # Panics
/// When they are of no life, or not those of its pattern.
fn check_snapshot(data: &[u8]) -> (u64, u64) {
    assert_eq!(data.len(), LEN);
    let word = |at: u64| u64::from_le_bytes(data[at as usize..][..8].try_into().expect("8 bytes"));
    let (life, counter) = (word(LIFE), word(COUNTER));
    if life > 0 {
        assert!(data[PATTERN as usize..] == Pattern(life).bytes(LEN - PATTERN as usize), "of life {life}");
    }
    (life, counter)
}

/// Makes a region of a new life.
fn make(client: &Client, name: &str, mappable: bool) -> Result<(), Error> {
    let drawn = u64::from_le_bytes(ObjectId::random().as_bytes()[..8].try_into().expect("8 bytes"));
    let (life, options) = (drawn | 1, RegionOptions { mappable, ..RegionOptions::default() });
    let region = client.create_region(name, LEN as u64, &options)?.with_timeout(LIMIT);
    region.write(PATTERN, &Pattern(life).bytes(LEN - PATTERN as usize))?;
    region.write(LIFE, &life.to_le_bytes())
}

impl Worker {
    /// Makes a call on a region that may fail because of faults, and because others move and free it.
    fn try_region<T>(
        &mut self,
        what: &str,
        limit: Duration,
        call: impl FnOnce(&Client) -> Result<T, Error>,
    ) -> Option<T> {
        let result = self.call(what, limit, call);
        if let Err(error) = &result {
            let fits = [
                ErrorKind::NotFound,
                ErrorKind::Exists,
                ErrorKind::Lost,
                ErrorKind::Freed,
                ErrorKind::Busy,
                ErrorKind::Full,
                ErrorKind::TimedOut,
                ErrorKind::Disconnected,
                ErrorKind::OutcomeUnknown,
            ];
            assert!(fits.contains(&error.kind()), "{what}: {:?}: {error}", error.kind());
        }
        result.ok()
    }

    /// Maps a region, or makes it. Returns it with its life, if it has one already.
    fn region(&mut self, number: usize) -> Option<(Region, u64)> {
        let name = named(number);
        let map = |client: &Client| client.map_region(&name, Rights::ALL, None);
        let Some(region) = self.try_region("map of a region", LONG_LIMIT, map) else {
            let mappable = self.number.is_multiple_of(2);
            self.try_region("creation of a region", LONG_LIMIT, |client| make(client, &name, mappable));
            return None;
        };
        let region = region.with_timeout(LIMIT);
        let life = self.try_region("read of a life", LIMIT, |_| word(&region, LIFE))?;
        (life > 0).then_some((region, life))
    }

    /// Adds to a region.
    pub(super) fn add(&mut self, number: usize) {
        let Some((region, life)) = self.region(number) else { return };
        for _ in 0..5 {
            self.ground.regions.begin_add(life);
            let added = self.try_region("add to a region", LIMIT, |_| region.fetch_add(COUNTER, 1));
            let Some(before) = added else { break };
            self.ground.regions.end_add(life, before);
        }
    }

    /// Reads all of a region.
    pub(super) fn read_region(&mut self, number: usize) {
        if let Some((region, life)) = self.region(number) {
            self.try_region("read of a region", LIMIT, |_| check_pattern(&region, life));
        }
    }

    /// Moves a region to another node.
    pub(super) fn move_region(&mut self, number: usize, to: usize) {
        let called = self.ground.model.called(to);
        if let (Some((region, _)), Some((_, to))) = (self.region(number), called) {
            let to = to.parse().expect("a node's id");
            self.try_region("move of a region", 2 * LIMIT, |_| region.move_to(to, LIMIT));
        }
    }

    /// Makes an object of a region, reads it, and deletes it. It ends by itself if the deletion fails.
    pub(super) fn snapshot_region(&mut self, number: usize) {
        let Some((region, life)) = self.region(number) else { return };
        let region = region.with_timeout(LONG_LIMIT);
        let (answered, _) = self.ground.regions.counted(life);
        let options = CreateOptions { fresh: true, ttl: Some(2 * LIMIT), ..CreateOptions::default() };
        let make = |_: &Client| region.snapshot(ObjectId::random(), &options);
        let Some(id) = self.try_region("snapshot of a region", LONG_LIMIT, make) else { return };
        let get = |client: &Client| client.get(&[id], Some(LIMIT))?.remove(0);
        if let Some(object) = self.try_region("get of a snapshot", LIMIT, get) {
            let (found, counter) = check_snapshot(object.data());
            let (_, begun) = self.ground.regions.counted(life);
            // The region of the name may be another by now, but the handle is of this one.
            assert_eq!(found, life, "the life of a snapshot");
            assert!((answered..=begun).contains(&counter), "{counter} of {answered} to {begun} adds");
        }
        self.try_region("delete of a snapshot", DELETION, |client| client.delete(&[id]));
    }

    /// Frees a region.
    pub(super) fn free_region(&mut self, number: usize) {
        if let Some((region, _)) = self.region(number) {
            self.try_region("release of a region", LONG_LIMIT, |_| region.free());
        }
    }
}

/// Checks every region, to which nobody adds now: a name has one at most, of which all is right.
pub(super) fn look(regions: &Regions, clients: &[Client]) -> usize {
    let mut there = 0;
    for name in (0..REGIONS).map(named) {
        let is_right = patiently(PATIENCE, || {
            let rows = clients[0].regions()?;
            let homes: Vec<_> = rows.iter().filter(|row| row.name == name).map(|row| row.home).collect();
            if homes.len() > 1 {
                return Err(Error::new(ErrorKind::Internal, format!("region '{name}' is on {homes:?}")));
            }
            for client in clients.iter().filter(|_| !homes.is_empty()) {
                let region = client.map_region(&name, Rights::READ, None)?;
                let life = word(&region, LIFE)?;
                if life > 0 {
                    regions.check(life, word(&region, COUNTER)?);
                    check_pattern(&region, life)?;
                }
            }
            Ok(homes.len())
        });
        there += is_right.unwrap_or_else(|error| panic!("region '{name}': {:?}: {error}", error.kind()));
    }
    there
}

/// Frees all regions.
pub(super) fn free_all(client: &Client) {
    for name in (0..REGIONS).map(named) {
        let is_gone = patiently(PATIENCE, || match client.map_region(&name, Rights::ALL, None) {
            Ok(region) => region.free(),
            // Keepers remember a region that was lost for an hour, or until there is one of its name again.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Lost) => {
                client.create_region(&name, LEN as u64, &RegionOptions::default())?.free()
            }
            Err(error) => Err(error),
        });
        is_gone.unwrap_or_else(|error| panic!("region '{name}' is not freed: {:?}: {error}", error.kind()));
    }
}
