//! Timed operations on regions.
//!
//! Owns the handles that it works with. Runs on the worker's only thread, except for the thread that
//! [`Wake`] starts, which ends with it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::region::{Pending, RegionOptions, Rights};
use plasmon::{Client, NodeId, Region};
use plasmon_bench::Result;
use plasmon_bench::content::{is_at, value};
use plasmon_bench::memory::Places;
use plasmon_bench::protocol::{Call, Numbers};

use crate::regions::{BLOCK, Bytes};

/// Time after which a word is changed for which a call waits: everybody sleeps by then.
const ASLEEP: Duration = Duration::from_millis(1);
/// Longest time for a wake-up and for a move.
const WAKE_PATIENCE: Duration = Duration::from_secs(20);
/// Value that `fill` writes.
const FILLED: u8 = 0xA5;

/// Kind of a small operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Add,
}

/// Offsets of places, for units of `batch` operations each.
fn offsets(places: Places, batch: usize) -> Vec<u64> {
    let count = places.count().next_multiple_of(batch);
    (0..count).map(|index| places.range(index).start as u64).collect()
}

/// Operations one after the other: `batch` in a call, so that the clock costs little.
pub(crate) struct Access {
    region: Region,
    kind: Kind,
    bytes: Bytes,
    offsets: Vec<u64>,
    batch: usize,
    /// Value of the word before all adds, and number of adds.
    before: u64,
    adds: u64,
}

impl Access {
    pub(crate) fn new(
        region: Region,
        kind: Kind,
        bytes: Bytes,
        places: Places,
        batch: usize,
    ) -> Result<Self> {
        let before = if kind == Kind::Add { region.fetch_add(0, 0)? } else { 0 };
        Ok(Self { region, kind, bytes, offsets: offsets(places, batch), batch, before, adds: 0 })
    }

    /// Last place of a unit.
    fn last(&self, index: usize) -> u64 {
        self.offsets[(index + 1) * self.batch - 1]
    }
}

impl Call for Access {
    fn units(&self) -> usize {
        self.offsets.len() / self.batch
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, index: usize) -> Result<()> {
        let Self { region, kind, bytes, offsets, batch, adds, .. } = self;
        let offsets = &offsets[index * *batch..][..*batch];
        let bytes = bytes.as_mut_slice();
        match kind {
            Kind::Read => offsets.iter().try_for_each(|offset| region.read(*offset, bytes))?,
            Kind::Write => offsets.iter().try_for_each(|offset| region.write(*offset, bytes))?,
            Kind::Add => {
                offsets.iter().try_for_each(|_| region.fetch_add(0, 1).map(drop))?;
                *adds += *batch as u64;
            }
        }
        Ok(())
    }

    fn check(&mut self, index: usize) -> Result<()> {
        let place = self.last(index);
        match self.kind {
            Kind::Read if !is_at(place as usize, self.bytes.as_mut_slice()) => {
                Err("other bytes were read than are there".into())
            }
            Kind::Write => {
                let wanted = self.bytes.as_mut_slice();
                let mut found = vec![0; wanted.len()];
                self.region.read(place, &mut found)?;
                if found != wanted {
                    return Err("other bytes are there than were written".into());
                }
                Ok(())
            }
            Kind::Add if self.region.fetch_add(0, 0)?.wrapping_sub(self.before) != self.adds => {
                Err("not every add was counted once".into())
            }
            _ => Ok(()),
        }
    }
}

/// Operations in flight: a call begins `batch` of them, and waits for all.
pub(crate) struct Begun {
    region: Region,
    kind: Kind,
    offsets: Vec<u64>,
    batch: usize,
    size: usize,
    last: Vec<u8>,
}

impl Begun {
    pub(crate) fn new(region: Region, kind: Kind, places: Places, batch: usize) -> Self {
        let size = places.range(0).len();
        Self { region, kind, offsets: offsets(places, batch), batch, size, last: Vec::new() }
    }
}

impl Call for Begun {
    fn units(&self) -> usize {
        self.offsets.len() / self.batch
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, index: usize) -> Result<()> {
        let offsets = &self.offsets[index * self.batch..][..self.batch];
        if self.kind == Kind::Read {
            let begin = |offset: &u64| self.region.begin_read(*offset, self.size);
            let begun = offsets.iter().map(begin).collect::<plasmon::Result<Vec<Pending<_>>>>()?;
            for read in begun {
                self.last = read.wait()?;
            }
        } else {
            let begin = |_: &u64| self.region.begin_fetch_add(0, 1);
            let begun = offsets.iter().map(begin).collect::<plasmon::Result<Vec<Pending<_>>>>()?;
            for add in begun {
                add.wait()?;
            }
        }
        Ok(())
    }

    fn check(&mut self, index: usize) -> Result<()> {
        let place = self.offsets[(index + 1) * self.batch - 1] as usize;
        if self.kind == Kind::Read && !is_at(place, &self.last) {
            return Err("other bytes were read than are there".into());
        }
        Ok(())
    }
}

/// Wait for a word that a thread changes at the region's home: from the change to the end of the wait.
pub(crate) struct Wake {
    region: Region,
    wanted: Sender<u64>,
    changed: Receiver<plasmon::Result<Instant>>,
    /// Value of the word.
    value: u64,
    took: Duration,
}

impl Wake {
    pub(crate) fn new(there: Region, region: Region) -> Result<Self> {
        let (wanted, wanting) = channel::<u64>();
        let (telling, changed) = channel();
        let value = there.fetch_add(0, 0)?;
        thread::spawn(move || {
            for value in wanting {
                thread::sleep(ASLEEP);
                let begin = Instant::now();
                let done = there.swap(0, value).and_then(|_| there.notify(0)).map(|()| begin);
                if telling.send(done).is_err() {
                    break;
                }
            }
        });
        Ok(Self { region, wanted, changed, value, took: Duration::ZERO })
    }
}

impl Call for Wake {
    fn units(&self) -> usize {
        1
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, _index: usize) -> Result<()> {
        let next = self.value.wrapping_add(1);
        self.wanted.send(next)?;
        let found = self.region.wait(0, self.value, WAKE_PATIENCE)?;
        let end = Instant::now();
        self.took = end.saturating_duration_since(self.changed.recv()??);
        self.value = found;
        if found != next {
            return Err(format!("the word is {found} and not {next}").into());
        }
        Ok(())
    }

    fn took(&self) -> Option<Duration> {
        Some(self.took)
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        Ok(())
    }
}

/// Change of a whole region: a fill, or a copy of another region.
pub(crate) struct Bulk {
    region: Region,
    source: Option<Region>,
}

impl Bulk {
    pub(crate) fn new(region: Region, source: Option<Region>) -> Self {
        Self { region, source }
    }
}

impl Call for Bulk {
    fn units(&self) -> usize {
        1
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, _index: usize) -> Result<()> {
        let all = 0..self.region.len();
        match &self.source {
            Some(source) => self.region.copy_from(0, source, all)?,
            None => self.region.fill(all, FILLED)?,
        }
        Ok(())
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        let is_right = ends(&self.region)?.into_iter().all(|(start, bytes)| match &self.source {
            Some(_) => is_at(start, &bytes),
            None => bytes.iter().all(|byte| *byte == FILLED),
        });
        if is_right { Ok(()) } else { Err("other bytes are there than were filled in or copied".into()) }
    }
}

/// First and last bytes of a region, with their offsets.
fn ends(region: &Region) -> Result<[(usize, Vec<u8>); 2]> {
    let len = BLOCK.min(region.len() as usize);
    let read = |start: usize| -> Result<(usize, Vec<u8>)> {
        let mut bytes = vec![0; len];
        region.read(start as u64, &mut bytes)?;
        Ok((start, bytes))
    };
    Ok([read(0)?, read(region.len() as usize - len)?])
}

/// Move of a region from one of two nodes to the other.
pub(crate) struct Move {
    region: Region,
    nodes: [NodeId; 2],
}

impl Move {
    pub(crate) fn new(region: Region, nodes: [NodeId; 2]) -> Self {
        Self { region, nodes }
    }
}

impl Call for Move {
    fn units(&self) -> usize {
        1
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, _index: usize) -> Result<()> {
        let [one, other] = self.nodes;
        let target = if self.region.home() == one { other } else { one };
        Ok(self.region.move_to(target, WAKE_PATIENCE)?)
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        if !ends(&self.region)?.iter().all(|(start, bytes)| is_at(*start, bytes)) {
            return Err("a region that was moved has other bytes than before".into());
        }
        Ok(())
    }
}

/// Calls on many regions by their names: one is made, or mapped, by each call.
pub(crate) struct Named<'a> {
    client: &'a Client,
    names: Vec<String>,
    /// Size of the regions to be made, and whether they may be mapped; `None` to map them.
    made: Option<(u64, bool)>,
    handles: Vec<Region>,
    /// Vector that gets the handles at the end, if they are to stay.
    held: Option<&'a mut Vec<Region>>,
}

impl<'a> Named<'a> {
    pub(crate) fn make(
        client: &'a Client,
        mappable: bool,
        owner: u64,
        numbers: Numbers,
        size: usize,
    ) -> Self {
        Self { made: Some((size as u64, mappable)), ..Self::map(client, owner, numbers, None) }
    }

    /// Name of a region.
    pub(crate) fn name(owner: u64, number: u64) -> String {
        format!("{owner}/{number}")
    }

    pub(crate) fn map(
        client: &'a Client,
        owner: u64,
        numbers: Numbers,
        held: Option<&'a mut Vec<Region>>,
    ) -> Self {
        let names = numbers.iter().map(|number| Self::name(owner, number)).collect();
        Self { client, names, made: None, handles: Vec::new(), held }
    }
}

impl Call for Named<'_> {
    fn units(&self) -> usize {
        self.names.len()
    }

    fn once(&self) -> bool {
        true
    }

    fn call(&mut self, index: usize) -> Result<()> {
        let name = &self.names[index];
        let region = match self.made {
            Some((size, mappable)) => {
                let options = RegionOptions { mappable, ..Default::default() };
                self.client.create_region(name, size, &options)?
            }
            None => self.client.map_region(name, Rights::READ_WRITE, None)?,
        };
        self.handles.push(region);
        Ok(())
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        if let Some(held) = &mut self.held {
            held.append(&mut self.handles);
        }
        Ok(())
    }
}

/// Reads of one region after the other, of those that are held.
pub(crate) struct Held<'a> {
    regions: &'a [Region],
    bytes: Vec<u8>,
}

impl<'a> Held<'a> {
    pub(crate) fn new(regions: &'a [Region], size: usize) -> Result<Self> {
        if regions.is_empty() {
            return Err("no region is held".into());
        }
        Ok(Self { regions, bytes: value(size) })
    }
}

impl Call for Held<'_> {
    fn units(&self) -> usize {
        self.regions.len()
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, index: usize) -> Result<()> {
        Ok(self.regions[index].read(0, &mut self.bytes)?)
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        if self.bytes.iter().any(|byte| *byte != 0) {
            return Err("a region that nobody wrote to is not zeroed".into());
        }
        Ok(())
    }
}

/// Clients that connect to the node of this host, one by each call, and map one region. They stay.
pub(crate) struct Crowd<'a> {
    socket: &'a str,
    name: String,
    count: usize,
    held: &'a mut Vec<Region>,
}

impl<'a> Crowd<'a> {
    pub(crate) fn new(socket: &'a str, owner: u64, numbers: Numbers, held: &'a mut Vec<Region>) -> Self {
        Self { socket, name: Named::name(owner, 0), count: numbers.count(), held }
    }
}

impl Call for Crowd<'_> {
    fn units(&self) -> usize {
        self.count
    }

    fn once(&self) -> bool {
        true
    }

    fn call(&mut self, _index: usize) -> Result<()> {
        let region = Client::connect(self.socket)?.map_region(&self.name, Rights::READ_WRITE, None)?;
        self.held.push(region);
        Ok(())
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        Ok(())
    }
}

/// Reads or writes of zeros at places all over a region, however large that is: `batch` in a call.
pub(crate) struct Over {
    region: Region,
    kind: Kind,
    offsets: Vec<u64>,
    batch: usize,
    bytes: Vec<u8>,
}

impl Over {
    /// Size in bytes of a line of the processor's caches.
    const LINE: u64 = 64;

    pub(crate) fn new(region: Region, kind: Kind, size: usize, places: usize, batch: usize) -> Self {
        let room = region.len().saturating_sub(size as u64 + Self::LINE * Self::LINE);
        let step = room / places.max(1) as u64 / Self::LINE * Self::LINE;
        // Places at equal distances would share few lines of the caches.
        let offset = |place: u64| place * step + place % Self::LINE * Self::LINE;
        let count = places.next_multiple_of(batch) as u64;
        let offsets = (0..count).map(|index| offset(index % places.max(1) as u64)).collect();
        Self { region, kind, offsets, batch, bytes: vec![0; size] }
    }
}

impl Call for Over {
    fn units(&self) -> usize {
        self.offsets.len() / self.batch
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, index: usize) -> Result<()> {
        let Self { region, kind, bytes, .. } = self;
        for offset in &self.offsets[index * self.batch..][..self.batch] {
            match kind {
                Kind::Read => region.read(*offset, bytes)?,
                _ => region.write(*offset, bytes)?,
            }
        }
        Ok(())
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        if self.bytes.iter().any(|byte| *byte != 0) {
            return Err("a region of zeros has other bytes".into());
        }
        Ok(())
    }
}
