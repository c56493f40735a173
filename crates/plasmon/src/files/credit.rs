//! Credit: room of the volume, and of the quotas of users, for bytes that this session accepts.
//!
//! Owns the credit of this session, and the part that is promised to writes that are not committed. Any
//! thread. A write to a volume with limits is promised credit, so that its commit has room whatever others
//! do. The home gives more than a write needs; credit that is not used soon goes back to the home.
//! Invariants: no more credit is promised than the home gave; without limits no credit is asked for.

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

/// Time for which credit is certain, counted from the question. A home lets credit lapse after 15 s at the
/// earliest; the rest of this time is for the commit of promised bytes.
const CERTAIN_TIME: Duration = Duration::from_secs(10);
/// Time after which credit that no write was promised goes back to the home.
const IDLE_TIME: Duration = Duration::from_secs(1);
/// Longest wait for other sessions to give back credit that they do not use.
const ROOM_PATIENCE: Duration = Duration::from_secs(2);
/// Smallest part of a write for which the home is asked after it has refused a larger part.
const MIN_PART_BYTES: u64 = 4 << 10;
/// Time in which a close comes from the kernel.
const CLOSE_INTERVAL: Duration = Duration::from_millis(20);
/// Time between two questions whether other sessions have given credit back.
const ASK_INTERVAL: Duration = Duration::from_millis(50);

/// Credit of a session. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Credits {
    pool: Arc<Mutex<Pool>>,
    /// Read-locked while the home is asked for credit, until the credit is in the pool; write-locked while
    /// credit goes back. So no credit is under way to this session while some goes back.
    asking: Arc<RwLock<()>>,
}

#[derive(Default)]
struct Pool {
    /// Number of times that the session began anew. Its credit went with it.
    losses: u64,
    /// Credit for the files of a user.
    users: HashMap<u32, Held>,
    /// File for whose owner more credit is wanted, since little is left.
    low: Option<u64>,
    /// Number of times that credit went back, so that there may be room for a write that was refused.
    returns: u64,
}

/// Credit for the files of a user.
struct Held {
    bytes: u64,
    /// Number of bytes of the credit that writes were promised.
    promised: u64,
    /// Number of bytes that the home gave last beyond the promised ones. 0 once more was asked for.
    given: u64,
    /// Time when the last credit was asked for, by [`now`].
    at: Duration,
}

impl Held {
    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.at)
    }

    /// Whether the home may have let the credit lapse, because this host stood still.
    fn is_doubtful(&self, now: Duration) -> bool {
        self.age(now) >= CERTAIN_TIME
    }

    fn spare(&self) -> u64 {
        self.bytes.saturating_sub(self.promised)
    }
}

/// Credit that was promised to writes. When the value is dropped, credit that was not spent is free again.
pub(super) struct Cover {
    credits: Credits,
    losses: u64,
    uid: u32,
    bytes: u64,
}

impl Credits {
    /// Promises present credit to a write to a file. Returns also whether more credit is to be asked for.
    /// `None` if there is too little, if the session has begun anew more often than `losses` says, or if the
    /// home may have let the credit lapse.
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
            // More credit is asked for only once.
            held.given = 0;
            pool.low = Some(inode);
        }
        drop(pool);
        Some((Cover { credits: self.clone(), losses, uid, bytes: len }, is_low))
    }

    /// Adds credit for which the home was asked at the time `at`, and promises a part of it. `None` if the
    /// credit has gone, because the session has begun anew since.
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

    /// Takes out credit that no write was promised and that is at least `age` old. Returns users and bytes.
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

    /// Returns the number of times that credit went back to the home.
    fn returns(&self) -> u64 {
        self.pool.lock().returns
    }

    /// Returns the number of bytes that writes were promised.
    pub(super) fn promised(&self) -> u64 {
        self.pool.lock().users.values().map(|held| held.promised).sum()
    }
}

impl Pool {
    /// Forgets all credit if the session has begun anew. Returns whether `losses` is the present number of
    /// times that it began anew. A thread may come late with an older number.
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
    /// Returns the number of bytes that are promised.
    pub(super) fn bytes(&self) -> u64 {
        if self.credits.pool.lock().losses == self.losses { self.bytes } else { 0 }
    }

    /// Returns the user for whose files the credit was given.
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// Whether both are credit of the same session for files of the same user.
    fn is_like(&self, other: &Self) -> bool {
        (self.uid, self.losses) == (other.uid, other.losses)
    }

    /// Adds the credit of another write, which is for files of the same user.
    pub(super) fn join(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Notes that a commit has used up credit.
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

/// Returns the time since the host was started, including the time in which the host slept.
fn now() -> Duration {
    Duration::from_nanos(boot_ns())
}

/// Whether an operation failed because there is no room in the volume, or in the quota of a user.
pub(super) fn lacks_room(error: &Error) -> bool {
    matches!(error.errno(), Errno::Full | Errno::OverQuota)
}

/// Whether an operation that failed may have been carried out, and have used up its credit.
pub(super) fn may_be_done(error: &Error) -> bool {
    matches!(error.errno(), Errno::Io | Errno::Interrupted)
}

impl Shared {
    /// Takes credit for a write of `len` bytes to a file, whose lock the caller has. `None` if the volume
    /// has no limits.
    ///
    /// # Errors
    /// `Full` or `OverQuota` if there is no room for `len` bytes; the reason why waiting bytes of the file
    /// cannot be committed.
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
                    // Waiting bytes were accepted before, and use the remaining credit first.
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

    /// Asks the home for credit for a write. Waits while other sessions hold credit that they may give back.
    fn reserve_patiently(&self, inode: u64, state: &mut State, len: u64) -> Result<Cover> {
        match self.reserve(inode, state, len, false) {
            Err(error) if lacks_room(&error) => {}
            reserved => return reserved,
        }
        // Waiting bytes count fully, also where they replace bytes of the file; their commit may free credit.
        self.commit_before(inode, state)?;
        if !self.free_room() {
            // The close of a removed file may still be on its way from the kernel.
            thread::sleep(CLOSE_INTERVAL);
            self.free_room();
        }
        let begun = Instant::now();
        loop {
            let returns = self.credits.returns();
            let is_patient = begun.elapsed() < ROOM_PATIENCE;
            match self.reserve(inode, state, len, is_patient) {
                Err(error) if error.errno() == Errno::Again => thread::sleep(ASK_INTERVAL),
                // This session was given some ahead of need meanwhile, or another thread of it gave some
                // back.
                Err(error) if is_patient && lacks_room(&error) => {
                    if !self.free_room() && self.credits.returns() == returns {
                        return Err(error);
                    }
                }
                reserved => return reserved,
            }
        }
    }

    /// Takes credit for the beginning of a write that was refused, for as many bytes as there is room for.
    /// Returns the number of bytes. No bytes of the file wait.
    ///
    /// # Errors
    /// The reason why the whole was refused, if there is no room at all.
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
                // Other sessions hold some of the free room.
                Err(error) if lacks_room(&error) => {
                    part = if part / 2 < MIN_PART_BYTES { 0 } else { part / 2 };
                }
                reserved => return Ok((reserved?, part)),
            }
        }
        Err(refused)
    }

    /// Asks the home for credit, and promises a write its part of this credit.
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
                    // If this host stood still meanwhile, credit is asked for anew.
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

    /// Asks the home for more credit for a user of whose credit little is left.
    pub(super) fn refill(&self) {
        let (_asking, asked) = (self.credits.asking.read(), now());
        let Some(inode) = self.credits.pool.lock().low.take() else { return };
        let reserve = FileOperation::Reserve { inode, bytes: 0, patient: false };
        // An error is ignored here: a write that needs credit asks itself, and gets the error.
        if let Ok(answered) = self.session.ask(&Actor::default(), reserve)
            && let FileOutcome::Reserved { uid, bytes } = answered.outcome
            && bytes > 0
        {
            drop(self.credits.add(uid, (bytes, 0), answered.losses, asked));
        }
    }

    /// Gives back credit that no write was promised and that is at least `age` old. Returns whether there was
    /// some. Waits for credit that is on its way to this session or back.
    pub(super) fn give_back(&self, age: Duration) -> bool {
        let _asking = self.credits.asking.write();
        let spare = self.credits.take_spare(age, self.session.losses(), now());
        for (uid, bytes) in &spare {
            let back = FileOperation::GiveBack { uid: *uid, bytes: *bytes };
            // If the home is not reached, the credit lapses there.
            let _ = self.session.ask(&Actor::default(), back);
            self.credits.pool.lock().returns += 1;
        }
        !spare.is_empty()
    }

    /// Frees room that this session holds in vain: of files that are closed, and of credit that no write was
    /// promised. Returns whether there was some.
    pub(super) fn free_room(&self) -> bool {
        let told = self.tell_all_closes();
        let gave = self.session.is_limited() && self.give_back(Duration::ZERO);
        told || gave
    }

    /// Frees room for a write for which a node has no memory. Returns whether objects are being deleted.
    pub(super) fn make_room(&self) -> bool {
        self.free_room();
        self.session.ask_steadily(None, FileOperation::MakeRoom).is_ok()
    }

    /// Gives back credit that has been idle for [`IDLE_TIME`].
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
