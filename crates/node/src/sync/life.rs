//! The life of a coordinator's node as the home of all locks: what it leaves for the next one. Engine
//! thread only.
//!
//! A coordinator's node that dies leaves guards that are valid for a while. So it keeps a file beside its
//! socket that says until when. The next life grants nothing before. The file is written before a lease
//! that lasts longer is given, for some time ahead, so that it is written rarely.
//!
//! Invariant: the file names a time later than the end of every lease that was given.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plasmon::shared::boot_ns;
use plasmon::sync::MAX_TTL;
use plasmon::{Error, ErrorKind};

use super::lock::{MARGIN, nanos};

/// The time for which the file is written ahead.
const AHEAD: Duration = Duration::from_secs(10);

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Record {
    /// The id that the kernel has drawn for the time since the host was booted.
    boot: String,
    /// Nanoseconds since the boot, until which guards may be valid.
    until_ns: u64,
    /// The number in the tokens that were given.
    epoch: u64,
}

/// What this life leaves for the next one, and what the one before has left.
pub(super) struct Life {
    path: PathBuf,
    boot: String,
    /// Until when guards of the former life may be valid; `None` before the file was read.
    former: Option<(u64, u64)>,
    record: Option<Record>,
}

impl Life {
    /// The life of the node with this socket.
    pub(super) fn of(socket: &Path) -> Self {
        let mut path = socket.as_os_str().to_owned();
        path.push(".locks");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { path: path.into(), boot: boot.trim().to_owned(), former: None, record: None }
    }

    /// Reads what the former life has left.
    fn former(&mut self) -> (u64, u64) {
        if let Some(former) = self.former {
            return former;
        }
        let text = fs::read(&self.path);
        let former = match text.map(|text| serde_json::from_slice::<Record>(&text)) {
            // Nobody was a home here before.
            Err(_) => (0, 0),
            // It cannot name a later time, unless somebody else wrote it.
            Ok(Ok(record)) if record.boot == self.boot => {
                let longest = boot_ns().saturating_add(nanos(2 * MAX_TTL + AHEAD + MARGIN));
                (record.until_ns.min(longest), record.epoch)
            }
            // The host was booted since, or the file cannot be read: no lease is longer than this.
            Ok(Ok(record)) => (nanos(MAX_TTL + MARGIN), record.epoch),
            Ok(Err(_)) => (nanos(MAX_TTL + MARGIN), 0),
        };
        *self.former.insert(former)
    }

    /// Until when guards of the former life may be valid.
    pub(super) fn until(&mut self) -> u64 {
        self.former().0
    }

    /// The number for tokens, which is larger than that of the former life.
    pub(super) fn epoch(&mut self, least: u64) -> u64 {
        let (_, former) = self.former();
        least.max(former.saturating_add(1))
    }

    /// Makes sure that the file names a time after the end of a lease that begins now.
    ///
    /// # Errors
    /// `Internal` if the file cannot be written, so that the lease may not be given.
    pub(super) fn note(&mut self, now: u64, ttl_ns: u64, epoch: u64) -> Result<(), Error> {
        let end = now.saturating_add(ttl_ns).saturating_add(nanos(MARGIN));
        if self.record.as_ref().is_some_and(|record| end <= record.until_ns && record.epoch >= epoch) {
            return Ok(());
        }
        let until_ns = end.saturating_add(nanos(AHEAD)).max(self.until());
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

    fn write(&self, record: &Record) -> io::Result<()> {
        let mut next = self.path.clone().into_os_string();
        next.push(".next");
        fs::write(&next, serde_json::to_vec(record)?)?;
        fs::rename(&next, &self.path)
    }

    /// Removes the file at the end of a life whose guards are all over.
    pub(super) fn end(&mut self) {
        if self.record.take().is_some() {
            // What stays only makes the next life wait.
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
        life.note(now + 9 * SECOND, SECOND, 1).expect("nothing has to be written");
        assert!(!life.path.exists());
        life.note(now + 11 * SECOND, SECOND, 1).expect("it is written");
        assert!(life.path.exists());
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
