//! The life of a coordinator's node as the home of all locks, and the record that it leaves for the next
//! life. Owns [`Life`]. Engine thread only.
//!
//! A coordinator's node that dies leaves guards that are valid for a while. So it keeps a file
//! beside its socket that says until when. The next life grants nothing before that time. The file
//! is written before a lease is given that would outlast the time in the file, and for some time
//! ahead, so that it is written about once a second. When no client holds a lock any more, the file
//! says so, and the next life need not wait.
//!
//! The file is there from the moment at which the node begins to decide about locks. So one that is gone
//! although a former life was here, and one that cannot be read, stand for leases of the greatest length:
//! nothing is granted before these are over. A former life shows itself by the socket of a killed node, and
//! by members that join again and name the coordinator's node that they followed.
//!
//! Invariants: the file names a time later than the end of every guard that may be valid. The second line is
//! a digest of the first, so that no other time is read than the one that was written.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use plasmon::sync::MAX_TTL;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};
use tracing::{info, warn};

use super::lock::{MARGIN, nanos};

/// The time for which the file is written ahead. The next life waits for this time longer than leases last.
const AHEAD_TIME: Duration = Duration::from_secs(1);
/// Maximum number of lives that the file names.
const MAX_LIVES: usize = 64;

/// Contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Record {
    /// The kernel's id of the present boot of the host.
    boot: String,
    /// Time until which guards may be valid, in nanoseconds since the boot.
    until_ns: u64,
    /// The number in the upper half of the tokens that were given.
    epoch: u64,
    /// The nodes whose leases are over by that time: the one that wrote the file, and those before it.
    lives: Vec<String>,
    /// Whether the life has ended, and no guard with it. The file lies on the disk then, so that this holds
    /// after a boot of the host as well.
    ended: bool,
}

/// Record that this life leaves for the next one, and what the lives before have left.
pub(super) struct Life {
    path: PathBuf,
    boot: String,
    /// Whether a node that was killed has left its socket beside the file.
    succeeds: bool,
    /// Time until which guards of former lives may be valid; without end before this life has begun.
    until: u64,
    /// The number in the tokens of the former life.
    former_epoch: u64,
    /// The nodes of this life and of the former ones that are known.
    lives: Vec<String>,
    record: Option<Record>,
    /// Time since which no client holds a lock; `None` while one does.
    rests_since: Option<u64>,
}

/// Returns the time at which the longest lease ends that begins at a time.
fn longest(from: u64) -> u64 {
    from.saturating_add(nanos(MAX_TTL + MARGIN))
}

impl Life {
    /// Makes the life of the node with this socket. It `succeeds` a node that was killed if that has left its
    /// socket there.
    pub(super) fn of(socket: &Path, succeeds: bool) -> Self {
        let mut path = socket.as_os_str().to_owned();
        path.push(".locks");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            path: path.into(),
            boot: boot.trim().to_owned(),
            succeeds,
            until: u64::MAX,
            former_epoch: 0,
            lives: Vec::new(),
            record: None,
            rests_since: None,
        }
    }

    /// Begins: reads what the former life has left, and writes that this one decides about locks from now on.
    pub(super) fn begin(&mut self, own: NodeId, now: u64) {
        if self.until != u64::MAX {
            return;
        }
        (self.until, self.former_epoch, self.lives) = self.former(now);
        self.note_lives([own.to_string()]);
        if self.until > now {
            let wait = Duration::from_nanos(self.until - now);
            info!(?wait, "locks are given when the leases are over that a former life may have given");
        }
        let until_ns = self.until.max(now);
        let record = self.next_record(until_ns, self.former_epoch);
        // A file of an ended life must not come back after a crash of the host.
        let synced = self.until == 0;
        match self.write(&record, synced) {
            Ok(()) => self.record = Some(record),
            // No lease is given before the file can be written.
            Err(error) => warn!("cannot write {}: {error}; no lock is given meanwhile", self.path.display()),
        }
    }

    /// Returns the time until which guards of the former life may be valid, the number in its tokens, and the
    /// lives that are known. The time is 0 if that life has ended.
    fn former(&self, now: u64) -> (u64, u64, Vec<String>) {
        let found = fs::read(&self.path);
        let why = match found.map(|bytes| Record::read(&bytes)) {
            Ok(Some(record)) => {
                let until = match record.ended {
                    true => 0,
                    // A file of this program names no later time.
                    false if record.boot == self.boot && !self.boot.is_empty() => {
                        record.until_ns.min(longest(now).saturating_add(nanos(MAX_TTL + AHEAD_TIME)))
                    }
                    // The host was booted since, or the file comes from another host: the time says nothing.
                    false => longest(now),
                };
                return (until, record.epoch, record.lives);
            }
            Ok(None) => "is damaged".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.succeeds => {
                // A folder that does not outlive a boot of the host may have had the file before.
                return (longest(0), 0, Vec::new());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                "is gone, although a node that was killed left its socket there".to_owned()
            }
            Err(error) => format!("cannot be read: {error}"),
        };
        self.warn(&format!("the file of the leases {why}"));
        (longest(now), 0, Vec::new())
    }

    fn warn(&self, why: &str) {
        let (path, wait) = (self.path.display(), MAX_TTL + MARGIN);
        warn!(%path, "{why}; no lock is given for {wait:?}, since clients may hold some until then");
    }

    /// Takes note of the coordinators' nodes that members have followed which join again. Returns whether
    /// guards of an unknown one may be valid.
    pub(super) fn meet(&mut self, nodes: &[NodeId], now: u64) -> bool {
        let mut unknown: Vec<_> = nodes.iter().map(NodeId::to_string).collect();
        unknown.retain(|node| !self.lives.contains(node));
        if unknown.is_empty() {
            return false;
        }
        self.warn(&format!(
            "a member has joined again that followed node {} as the coordinator's, of which there is no file",
            unknown.join(", ")
        ));
        self.note_lives(unknown);
        self.until = self.until.max(longest(now));
        let epoch = self.record.as_ref().map_or(self.former_epoch, |record| record.epoch);
        let before = self.record.take().map_or(0, |record| record.until_ns);
        let record = self.next_record(self.until.max(before), epoch);
        // If the file cannot be written now, it is before the next lease is given.
        if self.write(&record, false).is_ok() {
            self.record = Some(record);
        }
        true
    }

    fn note_lives(&mut self, nodes: impl IntoIterator<Item = String>) {
        self.lives.extend(nodes);
        let surplus = self.lives.len().saturating_sub(MAX_LIVES);
        self.lives.drain(..surplus);
    }

    fn next_record(&self, until_ns: u64, epoch: u64) -> Record {
        Record { boot: self.boot.clone(), until_ns, epoch, lives: self.lives.clone(), ended: false }
    }

    /// Returns the time until which guards of former lives may be valid.
    pub(super) fn until(&self) -> u64 {
        self.until
    }

    /// Returns the number for tokens, which is at least `least` and larger than that of the former life.
    pub(super) fn epoch(&self, least: u64) -> u64 {
        least.max(self.former_epoch.saturating_add(1))
    }

    /// Makes sure that the file names a time after the end of a lease that begins now.
    ///
    /// # Errors
    /// `Internal` if the file cannot be written, so that the lease may not be given.
    pub(super) fn note(&mut self, now: u64, ttl_ns: u64, epoch: u64) -> Result<(), Error> {
        self.rests_since = None;
        let end = now.saturating_add(ttl_ns).saturating_add(nanos(MARGIN));
        if self.record.as_ref().is_some_and(|record| end <= record.until_ns && record.epoch >= epoch) {
            return Ok(());
        }
        let until_ns = end.saturating_add(nanos(AHEAD_TIME)).max(self.until);
        let record = self.next_record(until_ns, epoch);
        self.write(&record, false).map_err(|error| {
            let text = format!(
                "cannot write {}, without which no lock is given: {error}; make room there, or have the \
                 folder writable",
                self.path.display()
            );
            Error::new(ErrorKind::Internal, text)
        })?;
        self.record = Some(record);
        Ok(())
    }

    /// Whether the file makes the next life wait longer than needed if no client holds a lock.
    pub(super) fn leaves_a_wait(&self, now: u64) -> bool {
        let least = now.max(self.until);
        self.record.as_ref().is_some_and(|record| record.until_ns > least)
    }

    /// Takes note of whether a client holds a lock, as the home knows it. Some time after the last
    /// guard, the file says that no client does.
    pub(super) fn rest(&mut self, now: u64, is_held: bool) {
        if is_held {
            self.rests_since = None;
            return;
        }
        let since = *self.rests_since.get_or_insert(now);
        if now.saturating_sub(since) < nanos(AHEAD_TIME) {
            return;
        }
        let Some(record) = self.record.as_ref() else { return };
        let record = self.next_record(now.max(self.until), record.epoch);
        // If the file cannot be written, the next life waits longer than needed.
        if self.write(&record, false).is_ok() {
            self.record = Some(record);
        }
    }

    /// Writes the file, and with `synced` waits until it lies on the disk.
    fn write(&self, record: &Record, synced: bool) -> io::Result<()> {
        let mut next = self.path.clone().into_os_string();
        next.push(".next");
        let mut file = File::create(&next)?;
        file.write_all(&record.written()?)?;
        if synced {
            file.sync_all()?;
        }
        fs::rename(&next, &self.path)?;
        let folder = self.path.parent().filter(|_| synced);
        folder.map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }

    /// Notes the end of a life whose guards are all over, and with them those of the lives before. Does
    /// nothing if this life has not begun.
    pub(super) fn end(&mut self, now: u64) {
        if let Some(record) = self.record.take() {
            let record = Record { until_ns: now, ended: true, ..record };
            // If the file cannot be written, the next life waits longer than needed.
            _ = self.write(&record, true);
        }
    }
}

impl Record {
    /// Returns the bytes of the file.
    fn written(&self) -> io::Result<Vec<u8>> {
        let text = serde_json::to_string(self)?;
        let digest = ObjectId::from_name(&text);
        Ok(format!("{text}\n{digest}\n").into_bytes())
    }

    /// Returns what a file says, unless it is damaged.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (text, digest) = str::from_utf8(bytes).ok()?.strip_suffix('\n')?.split_once('\n')?;
        let is_whole = digest == ObjectId::from_name(text).to_string();
        is_whole.then(|| serde_json::from_str(text).ok())?
    }
}

#[cfg(test)]
mod tests;
