//! All randomness of this process, from one number, and no time but the simulated one.
//!
//! Random numbers, UUIDs, hash seeds and tokio's own choices all begin at getrandom(2). This binary answers that call itself, so
//! a seed decides them too, in code of others as much as in ours, without `--cfg tokio_unstable` (which would make everybody
//! build everything twice, and leaves hash seeds to chance). What is seeded once per thread is first used after [`seed`],
//! because a simulation has a thread of its own; what is seeded once per process (tokio counts its runtimes) asks for a process
//! per simulation.
//!
//! The machine's clock is let in nowhere: h2 forgets streams that it reset by `std::time::Instant`, so that a trace would depend on how
//! busy the machine is. Tokio's clock is paused and only counts on from what it read first.

#![allow(unsafe_code, reason = "only exported symbols take the place of libc's getrandom and clock_gettime")]

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static STATE: AtomicU64 = AtomicU64::new(0);

/// Whether this process simulates; others of this program measure how long that takes.
static SIMULATES: AtomicBool = AtomicBool::new(false);

/// Everything that is drawn from now on follows from `seed`, and every clock stands still.
pub fn seed(seed: u64) {
    STATE.store(mix(seed), Ordering::SeqCst);
    SIMULATES.store(true, Ordering::SeqCst);
}

/// The next 64 bits (SplitMix64).
fn next() -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    mix(STATE.fetch_add(GOLDEN, Ordering::SeqCst).wrapping_add(GOLDEN))
}

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// As getrandom(2), but that the bytes follow from [`seed`].
///
/// # Safety
/// `buffer` must be valid for `length` bytes, as libc's asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, _: c_uint) -> isize {
    if length == 0 {
        return 0;
    }
    // SAFETY: the caller vouches for the buffer.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&next().to_le_bytes()[..chunk.len()]);
    }
    isize::try_from(length).unwrap_or(isize::MAX)
}

/// As clock_gettime(2); after [`seed`] it is always the same time.
///
/// # Safety
/// `time` must be valid to be written, as libc's asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    /// Far enough from 0 for whoever subtracts from it.
    const ALWAYS: libc::timespec = libc::timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    if SIMULATES.load(Ordering::SeqCst) {
        // SAFETY: the caller vouches for it.
        unsafe { time.write(ALWAYS) };
        return 0;
    }
    // SAFETY: the same call with the same arguments; the answer is 0 or -1.
    let answer = unsafe { libc::syscall(libc::SYS_clock_gettime, c_long::from(clock), time) };
    c_int::try_from(answer).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant, SystemTime};

    /// Else a trace would depend on how busy the machine is.
    #[test]
    fn no_clock_goes_on_in_a_simulation() {
        seed(1);
        let (instant, time) = (Instant::now(), SystemTime::now());
        // Without a simulation both would go on meanwhile.
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!((Instant::now(), SystemTime::now()), (instant, time));
    }
}
