//! All randomness of this process, from one number.
//!
//! Random numbers, UUIDs, hash seeds and tokio's own choices all begin at getrandom(2). This binary answers that call itself, so
//! a seed decides them too, in code of others as much as in ours, without `--cfg tokio_unstable` (which would make everybody
//! build everything twice, and leaves hash seeds to chance). What is seeded once per thread is first used after [`seed`],
//! because a simulation has a thread of its own; what is seeded once per process (tokio counts its runtimes) asks for a process
//! per simulation.

#![allow(unsafe_code, reason = "only an exported symbol takes the place of libc's getrandom")]

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

static STATE: AtomicU64 = AtomicU64::new(0);

/// Everything that is drawn from now on follows from `seed`.
pub fn seed(seed: u64) {
    STATE.store(mix(seed), Ordering::SeqCst);
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
