//! The life of a coordinator's node as the home of all locks, and the record that it leaves for the next
//! life. Owns [`Life`]. Engine thread only.
//!
//! A coordinator's node that dies leaves guards that are valid for a while. So it keeps a file
//! beside its socket that says until when. The next life grants nothing before that time. The file
//! is written before a lease is given that would outlast the time in the file, and for some time
//! ahead, so that it is written about once a second. When no client holds a lock any more, the file
//! says so, and the next life need not wait.
//!
//! Invariant: the file names a time later than the end of every guard that may be valid.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plasmon::shared::boot_ns;
use plasmon::sync::MAX_TTL;
use plasmon::{Error, ErrorKind};

use super::lock::{MARGIN, nanos};

/// The time for which the file is written ahead. The next life waits for this time longer than leases last.
const AHEAD_TIME: Duration = Duration::from_secs(1);

/// Contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Record {
    /// The kernel's id of the present boot of the host.
    boot: String,
    /// Time until which guards may be valid, in nanoseconds since the boot.
    until_ns: u64,
    /// The number in the upper half of the tokens that were given.
    epoch: u64,
}

/// Record that this life leaves for the next one, and the record of the life before.
pub(super) struct Life {
    path: PathBuf,
    boot: String,
    /// Time until which guards of the former life may be valid, and the number in its tokens;
    /// `None` before the file was read.
    former: Option<(u64, u64)>,
    record: Option<Record>,
    /// Time since which no client holds a lock; `None` while one does.
    rests_since: Option<u64>,
}

impl Life {
    /// Makes the life of the node with this socket.
    pub(super) fn of(socket: &Path) -> Self {
        let mut path = socket.as_os_str().to_owned();
        path.push(".locks");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            path: path.into(),
            boot: boot.trim().to_owned(),
            former: None,
            record: None,
            rests_since: None,
        }
    }

    /// Returns the time and the number that the former life has left.
    fn former(&mut self) -> (u64, u64) {
        if let Some(former) = self.former {
            return former;
        }
        let text = fs::read(&self.path);
        let former = match text.map(|text| serde_json::from_slice::<Record>(&text)) {
            // No life was a home here before.
            Err(_) => (0, 0),
            // A file of this program names no later time than `longest`.
            Ok(Ok(record)) if record.boot == self.boot => {
                let longest = boot_ns().saturating_add(nanos(2 * MAX_TTL + AHEAD_TIME + MARGIN));
                (record.until_ns.min(longest), record.epoch)
            }
            // The host was booted since, or the file cannot be read. No lease is longer than `MAX_TTL`.
            Ok(Ok(record)) => (nanos(MAX_TTL + MARGIN), record.epoch),
            Ok(Err(_)) => (nanos(MAX_TTL + MARGIN), 0),
        };
        *self.former.insert(former)
    }

    /// Returns the time until which guards of the former life may be valid.
    pub(super) fn until(&mut self) -> u64 {
        self.former().0
    }

    /// Returns the number for tokens, which is at least `least` and larger than that of the former life.
    pub(super) fn epoch(&mut self, least: u64) -> u64 {
        let (_, former) = self.former();
        least.max(former.saturating_add(1))
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
        let until_ns = end.saturating_add(nanos(AHEAD_TIME)).max(self.until());
        let record = Record { boot: self.boot.clone(), until_ns, epoch };
        self.write(&record).map_err(|error| {
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
    pub(super) fn leaves_a_wait(&mut self, now: u64) -> bool {
        let least = now.max(self.until());
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
        let until_ns = now.max(self.until());
        let Some(record) = self.record.as_ref() else { return };
        let record = Record { boot: self.boot.clone(), until_ns, epoch: record.epoch };
        // If the file cannot be written, the next life waits longer than needed.
        if self.write(&record).is_ok() {
            self.record = Some(record);
        }
    }

    fn write(&self, record: &Record) -> io::Result<()> {
        let mut next = self.path.clone().into_os_string();
        next.push(".next");
        fs::write(&next, serde_json::to_vec(record)?)?;
        fs::rename(&next, &self.path)
    }

    /// Removes the file at the end of a life whose guards are all over.
    pub(super) fn end(&mut self) {
        if self.record.take().is_some() {
            // A file that stays only makes the next life wait.
            _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_next_life_waits_until_the_leases_of_the_former_are_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("plasmon.sock");
        let mut first = Life::of(&socket);
        assert_eq!((first.until(), first.epoch(7)), (0, 7), "nobody was here");
        let now = boot_ns();
        first.note(now, 10 * SECOND, 7).expect("it is written");
        let mut next = Life::of(&socket);
        assert!(next.until() >= now + 11 * SECOND);
        assert_eq!(next.epoch(3), 8);
        let until = next.until();
        next.note(now, SECOND, 8).expect("it is written");
        assert!(Life::of(&socket).until() >= until, "the life before it may have guards still");
        next.end();
        assert_eq!(Life::of(&socket).until(), 0);
    }

    #[test]
    fn the_file_is_written_ahead() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut life = Life::of(&folder.path().join("plasmon.sock"));
        let now = boot_ns();
        life.note(now, SECOND, 1).expect("it is written");
        fs::remove_file(&life.path).expect("it is there");
        life.note(now + SECOND / 2, SECOND, 1).expect("nothing has to be written");
        assert!(!life.path.exists());
        life.note(now + 2 * SECOND, SECOND, 1).expect("it is written");
        assert!(life.path.exists());
    }

    #[test]
    fn the_next_life_of_a_home_that_rested_waits_for_nothing_and_mints_larger_tokens() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("plasmon.sock");
        let now = boot_ns();
        let mut first = Life::of(&socket);
        first.note(now, 60 * SECOND, 7).expect("it is written");
        first.rest(now + SECOND / 10, false);
        assert!(Life::of(&socket).until() > now + 60 * SECOND, "it has not rested for long");
        first.note(now + SECOND, 60 * SECOND, 7).expect("it is written");
        first.rest(now + 2 * SECOND, false);
        assert!(Life::of(&socket).until() > now + 60 * SECOND, "a lease was given meanwhile");
        first.rest(now + 3 * SECOND, true);
        first.rest(now + 4 * SECOND, false);
        assert!(Life::of(&socket).until() > now + 60 * SECOND, "somebody held a lock a moment ago");
        first.rest(now + 5 * SECOND, false);
        assert!(!first.leaves_a_wait(now + 5 * SECOND));
        let mut next = Life::of(&socket);
        assert_eq!((next.until(), next.epoch(1)), (now + 5 * SECOND, 8));
        first.note(now + 6 * SECOND, 60 * SECOND, 7).expect("it is written");
        assert!(Life::of(&socket).until() > now + 64 * SECOND);
    }

    #[test]
    fn a_life_that_rests_leaves_what_the_one_before_it_has_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("plasmon.sock");
        let now = boot_ns();
        Life::of(&socket).note(now, 50 * SECOND, 7).expect("it is written");
        let mut second = Life::of(&socket);
        second.note(now + SECOND, 60 * SECOND, 8).expect("it is written");
        (0..4).for_each(|second_s| second.rest(now + (second_s + 2) * SECOND, false));
        assert_eq!(Life::of(&socket).until(), now + 52 * SECOND);
    }

    #[test]
    fn a_file_that_says_nothing_is_waited_out_from_the_boot() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("plasmon.sock");
        fs::write(Life::of(&socket).path, b"{").expect("it is written");
        assert_eq!(Life::of(&socket).until(), 61 * SECOND);
        let other = Record { boot: "another".into(), until_ns: u64::MAX, epoch: 9 };
        Life::of(&socket).write(&other).expect("it is written");
        let mut life = Life::of(&socket);
        assert_eq!((life.until(), life.epoch(1)), (61 * SECOND, 10));
    }
}
