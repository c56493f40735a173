//! A log: its root, which says what the log is like, and its segments, which have the transactions.
//!
//! Owns the handles to the roots and to the segments that were used last. Any thread. There are as many roots
//! as copies, and all say the same; a root that is lost is made again, so that none is ever behind.
//!
//! Invariants: the position up to which a log is trimmed only grows, and a segment is freed only after all
//! roots say that it is trimmed. So a segment that is missing and not trimmed is lost, or not made yet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::region::{RegionOptions, Rights};
use plasmon::{Client, ErrorKind, NodeId, Region};

use crate::cleaner::Cleaner;
use crate::error::is_gone;
use crate::layout::{MAGIC, MAX_NAME_BYTES, ROOT_LEN, Shape, root};
use crate::reader::{Reader, Start};
use crate::segment::{Found, Segment, word};
use crate::writer::Writer;
use crate::{Error, Result};

/// Longest time for an operation on a region.
pub(crate) const OPERATION_PATIENCE: Duration = Duration::from_secs(10);
/// Pause before a step is taken again after a failure.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// Log that writers append to and readers follow, on all hosts of a cluster. Clones share their handles.
#[derive(Clone)]
pub struct Log(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) shape: Shape,
    /// Nodes on which copies are made, as long as they are members.
    nodes: Vec<NodeId>,
    roots: Mutex<Vec<Region>>,
    segments: Mutex<HashMap<u64, Arc<Segment>>>,
}

/// Description of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogInfo {
    /// Name of the log.
    pub name: String,
    /// Shape that the log was made with.
    pub shape: Shape,
    /// Oldest position that is not trimmed.
    pub oldest: u64,
    /// Position after all that are reserved.
    pub end: u64,
    /// Nodes on which copies are made, as long as they are members.
    pub nodes: Vec<NodeId>,
    /// Segments, the oldest first.
    pub segments: Vec<SegmentInfo>,
}

/// Description of a segment of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Number of the segment.
    pub number: u64,
    /// Homes of the copies that there are, in the order in which transactions reach them.
    pub homes: Vec<NodeId>,
    /// Number of transactions for which there is a place.
    pub reserved: u64,
    /// Number of reserved transactions of which nothing is decided yet.
    pub open: u64,
    /// Whether the segment takes no more, because its first copy is lost.
    pub closed: bool,
}

impl Log {
    /// Makes a log of a capacity in bytes, with a copy on each of these nodes. Its memory is taken as it
    /// grows, an eighth of the capacity at a time.
    ///
    /// # Errors
    /// `Exists` if there is a log of this name. `Invalid` for other than 1 to 8 nodes, one that is named
    /// twice, and a capacity or a name that no log has. `NotFound` if there is no such node. `Full`.
    pub fn create(client: &Client, name: &str, capacity: u64, nodes: &[NodeId]) -> Result<Self> {
        check_name(name)?;
        let shape = Shape::of(capacity, nodes.len())?;
        if nodes.iter().enumerate().any(|(at, node)| nodes[..at].contains(node)) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a node is named twice: each copy has a node of its own",
            ));
        }
        let make = |(at, node): (usize, &NodeId)| {
            let options = RegionOptions { node: Some(*node), ..RegionOptions::default() };
            let made = client.create_region(&root_name(name, at), ROOT_LEN, &options);
            made.map_err(|error| match error.kind() {
                ErrorKind::Exists => Error::new(
                    ErrorKind::Exists,
                    format!("there is a log '{name}' already, or a part of one"),
                ),
                _ => error.into(),
            })
        };
        let roots = nodes.iter().enumerate().map(make).collect::<Result<Vec<_>>>()?;
        // The first word is written last: a root without it is not whole.
        let bytes = shape.to_root(nodes);
        roots.iter().try_for_each(|region| {
            region.write(8, &bytes[8..])?;
            region.swap(root::MAGIC, MAGIC).map(drop)
        })?;
        let log = Self::of(client, name, shape, nodes.to_vec(), roots);
        log.0.make_segment(0)?;
        Ok(log)
    }

    /// Opens a log of this user or of root.
    ///
    /// # Errors
    /// `NotFound` if there is no such log. `Lost` if all its nodes are gone. `NotAllowed`. `Invalid` if the
    /// regions of this name are no log.
    pub fn open(client: &Client, name: &str) -> Result<Self> {
        check_name(name)?;
        let mut last = None;
        for at in 0..crate::MAX_COPIES {
            let region = match client.map_region(&root_name(name, at), Rights::READ_WRITE, None) {
                Ok(region) => region,
                Err(error) if is_gone(&error) => {
                    // Roots are made in the order of their numbers. What is lost may be followed by others.
                    last =
                        last.filter(|kept: &plasmon::Error| kept.kind() == ErrorKind::Lost).or(Some(error));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let mut bytes = vec![0; region.len().min(ROOT_LEN) as usize];
            region.read(0, &mut bytes)?;
            let found = Shape::from_root(&bytes).map_err(|why| {
                Error::new(
                    ErrorKind::Invalid,
                    format!("region '{}' is no root of a log: {why}", region.name()),
                )
            })?;
            if let Some((shape, nodes)) = found {
                let log = Self::of(client, name, shape, nodes, Vec::new());
                log.0.map_roots()?;
                return Ok(log);
            }
        }
        let lost = last.is_some_and(|error| error.kind() == ErrorKind::Lost);
        Err(match lost {
            true => Error::new(
                ErrorKind::Lost,
                format!("log '{name}' is lost: the nodes of all its copies are gone"),
            ),
            false => {
                Error::new(ErrorKind::NotFound, format!("there is no log '{name}', or it is just being made"))
            }
        })
    }

    fn of(client: &Client, name: &str, shape: Shape, nodes: Vec<NodeId>, roots: Vec<Region>) -> Self {
        let (client, name) = (client.clone(), name.to_owned());
        let (roots, segments) = (Mutex::new(roots), Mutex::default());
        Self(Arc::new(Inner { client, name, shape, nodes, roots, segments }))
    }

    /// Name of the log.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Shape that the log was made with.
    pub fn shape(&self) -> Shape {
        self.0.shape
    }

    /// Writer with a number of its own.
    ///
    /// # Errors
    /// Fails as [`Log::info`] does.
    pub fn writer(&self) -> Result<Writer> {
        Writer::new(Arc::clone(&self.0))
    }

    /// Reader of all transactions from a position on.
    ///
    /// # Errors
    /// Fails as [`Log::info`] does.
    pub fn reader(&self, start: Start) -> Result<Reader> {
        Reader::new(self, start)
    }

    /// Cleaner that voids what dead writers have left, when nothing was decided for so long.
    pub fn cleaner(&self, patience: Duration) -> Cleaner {
        Cleaner::new(Arc::clone(&self.0), patience)
    }

    /// Oldest position that is not trimmed.
    ///
    /// # Errors
    /// Fails as [`Log::info`] does.
    pub fn oldest(&self) -> Result<u64> {
        self.0.root_word(root::TRIMMED)
    }

    /// Position after all that are reserved.
    ///
    /// # Errors
    /// Fails as [`Log::info`] does.
    pub fn end(&self) -> Result<u64> {
        let segment = self.0.last_segment()?;
        Ok(segment.position(segment.reserved()?.min(self.0.shape.entries)))
    }

    /// Gives up all transactions before a position. The memory of a segment returns when all of it is
    /// trimmed. Readers that are behind are told. Returns the oldest position that is left.
    ///
    /// # Errors
    /// `Invalid` for a position beyond the end. Otherwise fails as [`Log::info`] does.
    pub fn trim(&self, position: u64) -> Result<u64> {
        let (inner, end) = (&self.0, self.end()?);
        if position > end {
            let text = format!(
                "log '{}' ends at position {end}, and cannot be trimmed up to {position}",
                self.name()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let before = self.oldest()?;
        if position <= before {
            return Ok(before);
        }
        inner.raise(root::TRIMMED, position)?;
        let (first, number) = inner.shape.place_of(position);
        if let Found::Ready(segment) = inner.find(first)? {
            segment.copies().iter().try_for_each(|copy| raise(copy, word::TRIMMED, number))?;
        }
        for gone in inner.shape.place_of(before).0..first {
            inner.free_segment(gone)?;
        }
        Ok(position)
    }

    /// Description of the log.
    ///
    /// # Errors
    /// `Lost` if all copies of something are gone. `TimedOut` if a node does not answer. `Disconnected`.
    pub fn info(&self) -> Result<LogInfo> {
        let inner = &self.0;
        let oldest = self.oldest()?;
        let mut segments = Vec::new();
        for number in inner.shape.place_of(oldest).0.. {
            let Found::Ready(segment) = inner.find(number)? else { break };
            segments.push(segment.info()?);
        }
        let end = self.end()?;
        let (name, shape, nodes) = (inner.name.clone(), inner.shape, inner.nodes.clone());
        Ok(LogInfo { name, shape, oldest, end, nodes, segments })
    }

    /// Frees the log: all its memory, and its name.
    ///
    /// # Errors
    /// Fails as [`Log::info`] does.
    pub fn remove(self) -> Result<()> {
        let inner = &self.0;
        let first = inner.shape.place_of(self.oldest()?).0;
        let last = inner.root_word(root::LAST)?;
        (first..=last + 1).try_for_each(|number| inner.free_segment(number))?;
        (0..inner.shape.copies as usize).try_for_each(|at| inner.free(&root_name(&inner.name, at)))
    }

    pub(crate) fn share(&self) -> Arc<Inner> {
        Arc::clone(&self.0)
    }
}

impl Inner {
    /// Word that all roots have. The largest counts, since it only grows.
    pub(crate) fn root_word(&self, offset: u64) -> Result<u64> {
        for again in [true, false] {
            let roots = locked(&self.roots).clone();
            let words: Vec<_> = roots.iter().map(|region| read_word(region, offset)).collect();
            let found = words.iter().filter_map(|word| word.as_ref().ok()).max();
            match (found, again) {
                (Some(word), _) => return Ok(*word),
                (None, true) => self.map_roots()?,
                (None, false) => {}
            }
        }
        Err(Error::new(ErrorKind::Lost, format!("all roots of log '{}' are gone", self.name)))
    }

    /// Raises a word in all roots. Lost roots are made again.
    pub(crate) fn raise(&self, offset: u64, value: u64) -> Result<()> {
        let attempt = || {
            let roots = locked(&self.roots).clone();
            let whole = roots.len() as u64 == self.shape.copies;
            let raised = roots.iter().try_for_each(|region| raise(region, offset, value));
            raised.map(|()| whole)
        };
        match attempt() {
            Ok(true) => return Ok(()),
            Err(error) if !is_gone(&error) => return Err(error.into()),
            Ok(false) | Err(_) => self.map_roots()?,
        }
        match attempt()? {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Lost, format!("a root of log '{}' is gone again", self.name))),
        }
    }

    /// Maps all roots. Lost roots are made again, if another root says what they have.
    fn map_roots(&self) -> Result<()> {
        let map = |at| self.client.map_region(&root_name(&self.name, at), Rights::READ_WRITE, None);
        let mapped: Vec<_> = (0..self.shape.copies as usize).map(map).collect();
        let mut whole = Vec::new();
        for region in mapped.iter().flatten() {
            if read_word(region, root::MAGIC)? == MAGIC {
                whole.push(region.clone());
            }
        }
        let Some(model) = whole.first().cloned() else {
            return Err(Error::new(ErrorKind::Lost, format!("all roots of log '{}' are gone", self.name)));
        };
        for (at, mapped) in mapped.into_iter().enumerate() {
            let region = match mapped {
                Ok(region) if whole.iter().any(|other| other.name() == region.name()) => continue,
                Ok(region) => region,
                Err(error) if is_gone(&error) => self.make_root(at, &whole)?,
                Err(error) => return Err(error.into()),
            };
            region.write(8, &self.shape.to_root(&self.nodes)[8..root::TRIMMED as usize])?;
            region.write(root::NODES, &self.shape.to_root(&self.nodes)[root::NODES as usize..])?;
            for offset in [root::TRIMMED, root::LAST] {
                raise(&region, offset, read_word(&model, offset)?)?;
            }
            region.swap(root::MAGIC, MAGIC)?;
            whole.push(region);
        }
        *locked(&self.roots) = whole;
        Ok(())
    }

    fn make_root(&self, at: usize, others: &[Region]) -> Result<Region> {
        let name = root_name(&self.name, at);
        if let Some(region) = self.create_copy(&name, ROOT_LEN, (at, others))? {
            return Ok(region);
        }
        let options = RegionOptions { exist_ok: true, ..RegionOptions::default() };
        Ok(self.client.create_region(&name, ROOT_LEN, &options)?)
    }

    /// Makes the region of a copy beside `others`, or maps it if it is there. `None` if there is no node for
    /// it; a node that leaves the cluster meanwhile is none.
    pub(crate) fn create_copy(
        &self,
        name: &str,
        len: u64,
        (copy, others): (usize, &[Region]),
    ) -> Result<Option<Region>> {
        let due = Instant::now() + OPERATION_PATIENCE;
        loop {
            let Some(node) = self.home_of(copy, others)? else { return Ok(None) };
            let room = Some(OPERATION_PATIENCE);
            let options =
                RegionOptions { node: Some(node), exist_ok: true, room, ..RegionOptions::default() };
            let error = match self.client.create_region(name, len, &options) {
                Ok(region) => return Ok(Some(region)),
                Err(error) => error,
            };
            let leaves = matches!(error.kind(), ErrorKind::Disconnected | ErrorKind::NotFound);
            if !leaves || Instant::now() >= due {
                return Err(error.into());
            }
            thread::sleep(PAUSE);
        }
    }

    /// Node for a new copy: the one of the log, if it is a member, or else one that has no other copy. `None`
    /// where there are too few nodes.
    fn home_of(&self, copy: usize, others: &[Region]) -> Result<Option<NodeId>> {
        let members = self.client.status()?.cluster.members;
        let members: Vec<NodeId> = members.iter().filter_map(|member| member.node.parse().ok()).collect();
        let is_free =
            |node: &NodeId| !self.nodes.contains(node) && others.iter().all(|other| other.home() != *node);
        Ok(match self.nodes[copy] {
            node if members.contains(&node) => Some(node),
            _ => members.into_iter().find(is_free),
        })
    }

    /// Segment of a number, with the copies that are there.
    ///
    /// # Errors
    /// `Trimmed`, and `Lost` if all copies are gone.
    pub(crate) fn find(&self, number: u64) -> Result<Found> {
        if let Some(segment) = locked(&self.segments).get(&number) {
            return Ok(Found::Ready(Arc::clone(segment)));
        }
        let found = Segment::open(self, number)?;
        if let Found::Ready(segment) = &found {
            let mut known = locked(&self.segments);
            if known.len() as u64 > self.shape.segments {
                known.clear();
            }
            known.insert(number, Arc::clone(segment));
        }
        Ok(found)
    }

    /// Segment that was found before, with the copies that are there now.
    pub(crate) fn find_again(&self, before: &Arc<Segment>) -> Result<Arc<Segment>> {
        let number = before.number();
        {
            let mut known = locked(&self.segments);
            if known.get(&number).is_some_and(|segment| Arc::ptr_eq(segment, before)) {
                known.remove(&number);
            }
        }
        match self.find(number)? {
            Found::Ready(segment) => Ok(segment),
            Found::Making | Found::Nothing => Err(self.lost(number)),
        }
    }

    pub(crate) fn lost(&self, number: u64) -> Error {
        Error::new(
            ErrorKind::Lost,
            format!("segment {number} of log '{}' is lost: the nodes of all its copies are gone", self.name),
        )
    }

    /// The last segment that there is.
    pub(crate) fn last_segment(&self) -> Result<Arc<Segment>> {
        let trimmed = self.shape.place_of(self.root_word(root::TRIMMED)?).0;
        let mut number = self.root_word(root::LAST)?.max(trimmed);
        let mut last = match self.find(number)? {
            Found::Ready(segment) => segment,
            Found::Making => self.make_segment(number)?,
            Found::Nothing => return Err(self.lost(number)),
        };
        while let Found::Ready(segment) = self.find(number + 1)? {
            (number, last) = (number + 1, segment);
        }
        Ok(last)
    }

    /// Makes a segment, or what is missing of one, unless it is there.
    ///
    /// # Errors
    /// `Full` if the log has as many segments as its capacity allows.
    pub(crate) fn make_segment(&self, number: u64) -> Result<Arc<Segment>> {
        let oldest = self.root_word(root::TRIMMED)?;
        if number >= self.shape.place_of(oldest).0 + self.shape.segments {
            let capacity = self.shape.data * self.shape.segments;
            let text = format!(
                "log '{}' is full: it has {capacity} bytes from position {oldest} on; trim it, or make a \
                 larger one",
                self.name
            );
            return Err(Error::new(ErrorKind::Full, text));
        }
        let segment = match self.find(number)? {
            Found::Ready(segment) => segment,
            Found::Making | Found::Nothing => {
                Segment::make(self, number)?;
                match self.find(number)? {
                    Found::Ready(segment) => segment,
                    Found::Making | Found::Nothing => return Err(self.lost(number)),
                }
            }
        };
        self.raise(root::LAST, number)?;
        Ok(segment)
    }

    /// Frees all copies of a segment.
    fn free_segment(&self, number: u64) -> Result<()> {
        locked(&self.segments).remove(&number);
        (0..self.shape.copies).try_for_each(|copy| self.free(&self.copy_name(number, copy)))
    }

    /// Frees a region, if it is there.
    fn free(&self, name: &str) -> Result<()> {
        let freed = self.client.map_region(name, Rights::ALL, None).and_then(Region::free);
        match freed {
            Err(error) if !is_gone(&error) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Refuses a position that was trimmed.
    pub(crate) fn check_trimmed(&self, position: u64) -> Result<()> {
        match self.root_word(root::TRIMMED)? {
            oldest if oldest > position => Err(Error::Trimmed { log: self.name.clone(), position, oldest }),
            _ => Ok(()),
        }
    }

    /// Name of the region of a copy of a segment.
    pub(crate) fn copy_name(&self, number: u64, copy: u64) -> String {
        format!("log:{}:{number}:{copy}", self.name)
    }
}

fn root_name(log: &str, at: usize) -> String {
    format!("log:{log}:{at}")
}

fn check_name(name: &str) -> Result<()> {
    if (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.contains(':') {
        return Ok(());
    }
    let text =
        format!("the name of a log has 1 to {MAX_NAME_BYTES} bytes, and no colon, and is not '{name}'");
    Err(Error::new(ErrorKind::Invalid, text))
}

/// Word of a region, read as a whole.
pub(crate) fn read_word(region: &Region, offset: u64) -> plasmon::Result<u64> {
    let mut word = [0; 8];
    region.read(offset, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// Makes a word at least so large.
fn raise(region: &Region, offset: u64, value: u64) -> plasmon::Result<()> {
    let mut found = read_word(region, offset)?;
    while found < value {
        match region.compare_swap(offset, found, value)? {
            before if before == found => return Ok(()),
            other => found = other,
        }
    }
    Ok(())
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
