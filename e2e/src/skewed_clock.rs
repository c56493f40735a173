//! A clock that jumps, for a daemon that does not know: a library to be preloaded, whose `clock_gettime` adds
//! offsets from a file.
//!
//! Owns the mapping of the file. Any thread of the daemon. Invariant: the mapping is never undone. The file,
//! named by `PLASMON_E2E_CLOCK`, holds two 64-bit numbers of nanoseconds in this machine's byte order: the
//! first says how far the monotonic clocks are ahead, the second how far the time of day is. The test that
//! runs the daemon may write them at any time. Time-outs in the kernel do not change with the file, as they
//! do not change when a machine was suspended.

use std::env;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

/// Environment variable that names the file.
const FILE: &str = "PLASMON_E2E_CLOCK";
/// Nanoseconds of a second.
const SECOND_NS: i64 = 1_000_000_000;

/// Mapped offsets of the monotonic clocks and of the time of day, in nanoseconds.
struct Offsets(NonNull<[AtomicI64; 2]>);

// SAFETY: it points to atomics that are never unmapped.
unsafe impl Send for Offsets {}
// SAFETY: it points to atomics that are never unmapped.
unsafe impl Sync for Offsets {}

/// Offsets of the clocks. Returns `None` if there is no file.
fn offsets() -> Option<&'static [AtomicI64; 2]> {
    static OFFSETS: OnceLock<Option<Offsets>> = OnceLock::new();
    let offsets = OFFSETS.get_or_init(|| {
        let file = File::open(env::var_os(FILE)?).ok()?;
        let len = size_of::<[AtomicI64; 2]>();
        // SAFETY: a new mapping; a file that is too short would end the daemon by SIGBUS, and the test with
        // it.
        let mapped =
            unsafe { libc::mmap(null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        (mapped != libc::MAP_FAILED).then(|| NonNull::new(mapped.cast())).flatten().map(Offsets)
    });
    // SAFETY: mapped above, aligned to a page, and there for good.
    offsets.as_ref().map(|offsets| unsafe { offsets.0.as_ref() })
}

/// Reads a clock as the C library's function does, and adds the clock's offset.
///
/// # Safety
/// `time` is valid for writes, as for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    // SAFETY: the caller's promise.
    let done = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as libc::c_int;
    let which = match clock {
        libc::CLOCK_MONOTONIC
        | libc::CLOCK_MONOTONIC_RAW
        | libc::CLOCK_MONOTONIC_COARSE
        | libc::CLOCK_BOOTTIME => 0,
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => 1,
        _ => return done,
    };
    if done == 0
        && let Some(offsets) = offsets()
    {
        // SAFETY: it was just written.
        let time = unsafe { &mut *time };
        let ahead = offsets[which].load(Ordering::Relaxed);
        let nanoseconds = time.tv_nsec + ahead % SECOND_NS;
        time.tv_sec += ahead / SECOND_NS + nanoseconds.div_euclid(SECOND_NS);
        time.tv_nsec = nanoseconds.rem_euclid(SECOND_NS);
    }
    done
}
