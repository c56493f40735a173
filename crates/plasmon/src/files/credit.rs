//! Credit: room of the volume, and of the quotas of users, for what this session accepts.
//!
//! Owns how much of it this session has, and how much it has promised to writes that are not committed. Any
//! thread. A write of a volume that has limits is promised credit, so that its commit has room whatever
//! others do. The home gives more than a write needs; what is not used soon goes back to it. Invariants: what
//! is promised is no more than the home gave; a volume without limits is never asked for credit.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::inode::State;
use super::session::unexpected;
use super::volume::Shared;
use super::{Error, Result};
use crate::shared::boot_ns;
use crate::wire::files::{Actor, Errno, FileOperation, FileOutcome, MAX_RESERVED_BYTES};

/// Time for which credit is certain from when it was asked for. A home lets credit lapse after 15 s at the
/// earliest; the rest is for the commit of what was promised.
const CERTAIN_TIME: Duration = Duration::from_secs(10);
/// Time after which credit goes back to the home that no write was promised.
const IDLE_TIME: Duration = Duration::from_secs(1);
/// Longest wait for other sessions to give back what they do not use.
const ROOM_PATIENCE: Duration = Duration::from_secs(2);
/// Smallest part of a write for which a home that has refused a larger one is asked.
const MIN_PART_BYTES: u64 = 4 << 10;
/// Time between two questions whether they have.
const ASK_INTERVAL: Duration = Duration::from_millis(50);

/// Credit of a session. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Credits {
    pool: Arc<Mutex<Pool>>,
    /// Read while the home is asked for credit, until what it gave is in the pool; written while credit goes
    /// back. So none is under way for whoever gives back.
    asking: Arc<RwLock<()>>,
}

#[derive(Default)]
struct Pool {
    /// Number of times that the session began anew. Its credit went with it.
    losses: u64,
    /// Credit for the files of a user.
    users: HashMap<u32, Held>,
    /// File for whose owner more is wanted, since little is left.
    low: Option<u64>,
    /// Number of times that credit went back, so that there may be room for a write that was refused.
    returns: u64,
}

/// Credit for the files of a user.
struct Held {
    bytes: u64,
    /// Bytes of these that writes were promised.
    promised: u64,
    /// Bytes that were given last.
    given: u64,
    /// When these were asked for, by [`now`].
    at: Duration,
}

impl Held {
    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.at)
    }

    /// Whether the home may have let the credit lapse: this host stood still.
    fn is_doubtful(&self, now: Duration) -> bool {
        self.age(now) >= CERTAIN_TIME
    }

    fn spare(&self) -> u64 {
        self.bytes.saturating_sub(self.promised)
    }
}

/// Credit that was promised to writes. What is not spent is promised no more when this is dropped.
pub(super) struct Cover {
    credits: Credits,
    losses: u64,
    uid: u32,
    bytes: u64,
}

impl Credits {
    /// Promises credit that is there to a write to a file. Returns whether more is wanted with it. None if
    /// the session has begun anew more often than `losses` says, and where the home may have let the credit
    /// lapse.
    fn take(&self, (inode, uid): (u64, u32), len: u64, losses: u64, now: Duration) -> Option<(Cover, bool)> {
        let mut pool = self.pool.lock();
        if !pool.follow(losses) {
            return None;
        }
        let held = pool.users.get_mut(&uid)?;
        if held.spare() < len || held.is_doubtful(now) {
            return None;
        }
        held.promised += len;
        let is_low = held.spare() < held.given / 2;
        if is_low {
            // It is asked for once.
            held.given = 0;
            pool.low = Some(inode);
        }
        drop(pool);
        Some((Cover { credits: self.clone(), losses, uid, bytes: len }, is_low))
    }

    /// Adds credit that the home gave when it was asked `at` that time, and promises a part of it. None if
    /// the credit has gone: the session has begun anew since it was given.
    fn add(&self, uid: u32, (bytes, promised): (u64, u64), losses: u64, at: Duration) -> Option<Cover> {
        let mut pool = self.pool.lock();
        if !pool.follow(losses) {
            return None;
        }
        let none = Held { bytes: 0, promised: 0, given: 0, at };
        let held = pool.users.entry(uid).or_insert(none);
        if held.is_doubtful(at) {
            // The home lets the doubtful rest lapse if others need it.
            held.bytes = held.promised;
        }
        held.bytes += bytes;
        held.promised += promised;
        (held.given, held.at) = (bytes.saturating_sub(promised), at);
        drop(pool);
        Some(Cover { credits: self.clone(), losses, uid, bytes: promised })
    }

    /// Takes out what no write was promised, and was given so long ago, by users.
    fn take_spare(&self, age: Duration, losses: u64, now: Duration) -> Vec<(u32, u64)> {
        let mut pool = self.pool.lock();
        pool.follow(losses);
        let mut spare = Vec::new();
        for (uid, held) in pool.users.iter_mut().filter(|(_, held)| held.age(now) >= age) {
            let bytes = held.spare();
            if bytes > 0 {
                held.bytes -= bytes;
                held.given = 0;
                spare.push((*uid, bytes));
            }
        }
        pool.users.retain(|_, held| held.bytes > 0 || held.promised > 0);
        spare
    }

    /// Whether the home may have let the credit for a user's files lapse.
    fn is_doubtful(&self, uid: u32, now: Duration) -> bool {
        self.pool.lock().users.get(&uid).is_some_and(|held| held.is_doubtful(now))
    }

    /// Number of times that credit went back to the home.
    fn returns(&self) -> u64 {
        self.pool.lock().returns
    }

    /// Number of bytes that writes were promised.
    pub(super) fn promised(&self) -> u64 {
        self.pool.lock().users.values().map(|held| held.promised).sum()
    }
}

impl Pool {
    /// Forgets the credit of a session that began anew. Returns whether credit of the session that had begun
    /// anew so often is still there. Threads may come late with what they knew before.
    fn follow(&mut self, losses: u64) -> bool {
        if self.losses < losses {
            self.losses = losses;
            self.users.clear();
            self.low = None;
        }
        self.losses == losses
    }
}

impl Cover {
    /// Number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        if self.credits.pool.lock().losses == self.losses { self.bytes } else { 0 }
    }

    /// The user for whose files it was given.
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// Whether both are credit of the same session for files of the same user.
    fn is_like(&self, other: &Self) -> bool {
        (self.uid, self.losses) == (other.uid, other.losses)
    }

    /// Takes the credit of another write in. It is for files of the same user.
    pub(super) fn join(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Notes that a commit has used some of it up.
    pub(super) fn spend(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let mut pool = self.credits.pool.lock();
        if pool.losses == self.losses
            && let Some(held) = pool.users.get_mut(&self.uid)
        {
            held.promised = held.promised.saturating_sub(bytes);
            held.bytes = held.bytes.saturating_sub(bytes);
        }
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        let mut pool = self.credits.pool.lock();
        if pool.losses == self.losses
            && let Some(held) = pool.users.get_mut(&self.uid)
        {
            held.promised = held.promised.saturating_sub(self.bytes);
        }
    }
}

/// Time since the host was started, also while it slept.
fn now() -> Duration {
    Duration::from_nanos(boot_ns())
}

/// Whether an operation failed since there is no room in the volume, or in the quota of a user.
pub(super) fn lacks_room(error: &Error) -> bool {
    matches!(error.errno(), Errno::Full | Errno::OverQuota)
}

/// Whether an operation that failed may have used up its credit all the same.
pub(super) fn may_be_done(error: &Error) -> bool {
    matches!(error.errno(), Errno::Io | Errno::Interrupted)
}

impl Shared {
    /// Takes credit for a write to a file, whose lock the caller has. None if the volume has no limits.
    ///
    /// # Errors
    /// `Full` or `OverQuota` if there is no room for so many bytes; and why what waits of the file cannot be
    /// committed.
    pub(super) fn cover(&self, inode: u64, state: &mut State, len: u64) -> Result<Option<Cover>> {
        if len == 0 || len > MAX_RESERVED_BYTES || !self.session.is_limited() {
            return Ok(None);
        }
        let cover = match self.credits.take((inode, state.uid), len, self.session.losses(), now()) {
            Some((cover, is_low)) => {
                if is_low {
                    self.wake();
                }
                cover
            }
            None => {
                if self.credits.is_doubtful(state.uid, now()) {
                    // Bytes that were accepted before have a right to the credit that is left.
                    self.commit_before(inode, state)?;
                    self.give_back(CERTAIN_TIME);
                }
                self.reserve_patiently(inode, state, len)?
            }
        };
        if state.writer.cover().is_some_and(|before| !before.is_like(&cover)) {
            self.commit_before(inode, state)?;
        }
        Ok(Some(cover))
    }

    /// Asks the home for credit for a write. Waits while other sessions hold some that they may not use.
    fn reserve_patiently(&self, inode: u64, state: &mut State, len: u64) -> Result<Cover> {
        match self.reserve(inode, state, len, false) {
            Err(error) if lacks_room(&error) => {}
            reserved => return reserved,
        }
        // Bytes that wait count as a whole, also where they lie over bytes that the file has.
        self.commit_before(inode, state)?;
        self.give_back(Duration::ZERO);
        let begun = Instant::now();
        loop {
            let returns = self.credits.returns();
            let is_patient = begun.elapsed() < ROOM_PATIENCE;
            match self.reserve(inode, state, len, is_patient) {
                Err(error) if error.errno() == Errno::Again => thread::sleep(ASK_INTERVAL),
                // This session was given some ahead of need meanwhile, or another thread of it gave some
                // back.
                Err(error) if is_patient && lacks_room(&error) => {
                    self.give_back(Duration::ZERO);
                    if self.credits.returns() == returns {
                        return Err(error);
                    }
                }
                reserved => return reserved,
            }
        }
    }

    /// Takes credit for the beginning of a write that was refused, for as many bytes as there is room for.
    /// Returns their number. Nothing of the file waits.
    ///
    /// # Errors
    /// Why the whole was refused, if there is no room at all.
    pub(super) fn cover_part(
        &self,
        inode: u64,
        state: &mut State,
        len: u64,
        refused: Error,
    ) -> Result<(Cover, u64)> {
        let owner = Actor { uid: state.uid, ..Actor::default() };
        let mut part = self.usage(&owner)?.available.min(len.saturating_sub(1));
        while part > 0 {
            match self.reserve(inode, state, part, false) {
                // Other sessions hold some of what is free.
                Err(error) if lacks_room(&error) => {
                    part = if part / 2 < MIN_PART_BYTES { 0 } else { part / 2 };
                }
                reserved => return Ok((reserved?, part)),
            }
        }
        Err(refused)
    }

    /// Asks the home for credit, of which a write is promised its part.
    fn reserve(&self, inode: u64, state: &mut State, bytes: u64, patient: bool) -> Result<Cover> {
        let (mut before, begun) = (self.session.losses(), Instant::now());
        loop {
            let (_asking, asked) = (self.credits.asking.read(), now());
            let answered = self.session.ask_steadily(None, FileOperation::Reserve { inode, bytes, patient });
            self.open_again();
            let losses = self.session.losses();
            match answered {
                Ok((FileOutcome::Reserved { uid, bytes: given }, given_to)) => {
                    state.uid = uid;
                    // If this host stood still meanwhile, it is asked for anew.
                    let is_certain = now().saturating_sub(asked) < CERTAIN_TIME;
                    let promised = if is_certain { bytes } else { 0 };
                    let cover = self.credits.add(uid, (given, promised), given_to, asked);
                    if let Some(cover) = cover.filter(|_| is_certain) {
                        return Ok(cover);
                    }
                    if begun.elapsed() >= 2 * CERTAIN_TIME {
                        let text = "the home of the volume answers so late that room may have lapsed before";
                        return Err(Error::because(Errno::Io, text));
                    }
                }
                Ok(_) => return Err(unexpected()),
                // The session began anew, and had not opened the file yet.
                Err(_) if losses != before => before = losses,
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks for more credit where little is left.
    pub(super) fn refill(&self) {
        let (_asking, asked) = (self.credits.asking.read(), now());
        let Some(inode) = self.credits.pool.lock().low.take() else { return };
        let reserve = FileOperation::Reserve { inode, bytes: 0, patient: false };
        // Whoever writes asks, too, and is told what is wrong.
        if let Ok(answered) = self.session.ask(&Actor::default(), reserve)
            && let FileOutcome::Reserved { uid, bytes } = answered.outcome
            && bytes > 0
        {
            drop(self.credits.add(uid, (bytes, 0), answered.losses, asked));
        }
    }

    /// Gives credit back that no write was promised, and that was given so long ago. Returns whether there
    /// was some. What is under way to this session, or back from it, is waited for.
    pub(super) fn give_back(&self, age: Duration) -> bool {
        let _asking = self.credits.asking.write();
        let spare = self.credits.take_spare(age, self.session.losses(), now());
        for (uid, bytes) in &spare {
            let back = FileOperation::GiveBack { uid: *uid, bytes: *bytes };
            // Credit of which the home is not told lapses there.
            let _ = self.session.ask(&Actor::default(), back);
            self.credits.pool.lock().returns += 1;
        }
        !spare.is_empty()
    }

    /// Gives back what has been idle for its time.
    pub(super) fn give_idle_back(&self) {
        self.give_back(IDLE_TIME);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    #[test]
    fn no_more_is_promised_than_was_given() {
        let credits = Credits::default();
        assert!(credits.take((1, 7), 1, 0, NOW).is_none());
        let mut first = credits.add(7, (100, 10), 0, NOW).expect("it is current");
        let (second, is_low) = credits.take((1, 7), 60, 0, NOW).expect("90 are left");
        assert!(is_low, "30 of 90 are left");
        assert!(credits.take((1, 7), 31, 0, NOW).is_none());
        assert!(credits.take((1, 8), 1, 0, NOW).is_none(), "it is another user's");
        assert_eq!(credits.promised(), 70);
        first.join(second);
        first.spend(50);
        assert_eq!((credits.promised(), first.bytes()), (20, 20));
        drop(first);
        assert_eq!(credits.promised(), 0);
        assert_eq!(credits.take_spare(IDLE_TIME, 0, NOW), [], "it was just given");
        assert_eq!(credits.take_spare(Duration::ZERO, 0, NOW), [(7, 50)]);
        assert!(credits.take((1, 7), 1, 0, NOW).is_none());
    }

    #[test]
    fn what_is_promised_is_not_given_back() {
        let credits = Credits::default();
        let cover = credits.add(7, (100, 10), 0, NOW).expect("it is current");
        assert_eq!(credits.take_spare(Duration::ZERO, 0, NOW), [(7, 90)]);
        assert_eq!(credits.take_spare(Duration::ZERO, 0, NOW), []);
        assert_eq!(cover.bytes(), 10);
    }

    #[test]
    fn credit_goes_with_its_session() {
        let credits = Credits::default();
        let mut before = credits.add(7, (100, 10), 0, NOW).expect("it is current");
        let after = credits.add(7, (50, 20), 1, NOW).expect("it is current");
        assert_eq!((before.bytes(), after.bytes(), credits.promised()), (0, 20, 20));
        before.spend(10);
        drop(before);
        assert_eq!(credits.promised(), 20);
        assert!(credits.take((1, 7), 31, 1, NOW).is_none() && credits.take((1, 7), 30, 1, NOW).is_some());
    }

    #[test]
    fn who_comes_late_changes_nothing_of_the_session_that_began_anew() {
        let credits = Credits::default();
        let cover = credits.add(7, (100, 10), 2, NOW).expect("it is current");
        assert!(credits.take((1, 7), 1, 1, NOW).is_none(), "the thread knows of the session before");
        assert!(credits.add(7, (50, 5), 1, NOW).is_none(), "that credit has gone");
        assert_eq!((cover.bytes(), credits.promised()), (10, 10));
        assert_eq!(credits.take_spare(Duration::ZERO, 3, NOW), [], "another session has none to give back");
    }

    #[test]
    fn a_host_that_stood_still_promises_nothing_of_what_it_had() {
        let credits = Credits::default();
        let cover = credits.add(7, (100, 10), 0, NOW).expect("it is current");
        let before = NOW + CERTAIN_TIME - Duration::from_millis(1);
        assert!(credits.take((1, 7), 1, 0, before).is_some());
        assert!(credits.take((1, 7), 1, 0, NOW + CERTAIN_TIME).is_none(), "it may have lapsed");
        assert_eq!(cover.bytes(), 10, "what was accepted is committed with what is left of it");
        let more = credits.add(7, (20, 5), 0, NOW + CERTAIN_TIME).expect("it is current");
        assert!(
            credits.take((1, 7), 16, 0, NOW + CERTAIN_TIME).is_none(),
            "the credit before is not counted"
        );
        assert!(credits.take((1, 7), 15, 0, NOW + CERTAIN_TIME).is_some());
        drop((cover, more));
    }

    #[test]
    fn what_may_have_lapsed_is_given_back() {
        let credits = Credits::default();
        let cover = credits.add(7, (100, 10), 0, NOW).expect("it is current");
        assert_eq!(credits.take_spare(IDLE_TIME, 0, NOW + CERTAIN_TIME), [(7, 90)]);
        assert_eq!((cover.bytes(), credits.promised()), (10, 10));
    }
}
