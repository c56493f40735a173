//! Leases of a client: a word for each lease, which says until when the lease is valid.
//!
//! Owns the words of one client. The engine thread writes; any thread of the client reads, by a read-only
//! mapping. A word is the time until which the lease is valid, in nanoseconds of `CLOCK_BOOTTIME`, which goes
//! on while the host sleeps. The word is 0 if the lease has ended. Invariant: a lease ends when its time is
//! over, even if the engine stands still.

use std::io;
use std::os::fd::OwnedFd;

use super::words::{Ordering, Words};

/// Number of words of the leases of a client.
pub const LEASES: usize = 1 << 16;

/// Returns the time since the host was booted in nanoseconds, including the time in which the host slept.
pub fn boot_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// Engine's end of the leases of a client.
pub struct EngineLeases(Words);

impl EngineLeases {
    /// Makes leases that have all ended. Returns the leases with the descriptor for the client.
    ///
    /// # Errors
    /// If the system has no memory or no descriptors.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (words, file) = Words::for_readers("plasmon-leases", LEASES * size_of::<u64>())?;
        Ok((Self(words), file))
    }

    /// Sets the time until which a lease is valid. 0 ends the lease.
    pub fn set(&self, word: u32, until_ns: u64) {
        self.0.at(word as usize).store(until_ns, Ordering::Release);
    }
}

/// Client's end of its leases.
pub struct ClientLeases(Words);

impl ClientLeases {
    /// Maps the leases that the daemon gave.
    ///
    /// # Errors
    /// If the memory has another size than a daemon's, or cannot be mapped.
    pub fn open(file: &OwnedFd) -> io::Result<Self> {
        let words = Words::open(file, false)?;
        if words.len() != LEASES * size_of::<u64>() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "leases of a wrong size"));
        }
        Ok(Self(words))
    }

    /// Returns the time until which a lease is valid unless it is prolonged. 0 if the lease has ended, or if
    /// there is no such lease.
    pub fn until_ns(&self, word: u32) -> u64 {
        let word = word as usize;
        if word < LEASES { self.0.at(word).load(Ordering::Acquire) } else { 0 }
    }

    /// Whether a lease is valid.
    pub fn is_valid(&self, word: u32) -> bool {
        let until = self.until_ns(word);
        until > 0 && boot_ns() < until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_valid_until_its_time() {
        let (engine, file) = EngineLeases::new().expect("memory");
        let client = ClientLeases::open(&file).expect("a client maps it");
        assert!(!client.is_valid(7));
        engine.set(7, boot_ns() + 3_600_000_000_000);
        assert!(client.is_valid(7) && !client.is_valid(8));
        engine.set(7, boot_ns() - 1);
        assert!(!client.is_valid(7) && client.until_ns(7) > 0);
        engine.set(7, 0);
        assert_eq!(client.until_ns(7), 0);
        assert!(!client.is_valid(LEASES as u32), "there is no such word");
    }

    #[test]
    fn other_memory_is_refused() {
        let (_words, file) = Words::for_readers("short", 4096).expect("memory");
        assert!(ClientLeases::open(&file).is_err());
    }
}
