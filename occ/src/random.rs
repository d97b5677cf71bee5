//! A small, seeded source of randomness (SplitMix64): for the jitter of pauses, and for tests.

use std::sync::atomic::{AtomicU64, Ordering};

/// A generator of pseudorandom numbers. Shared by reference.
#[derive(Debug)]
pub struct Random(AtomicU64);

impl Random {
    /// The generator with this seed.
    pub fn new(seed: u64) -> Self {
        Random(AtomicU64::new(seed))
    }

    /// The next 64 bits.
    pub fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to, not including, 1.
    pub fn fraction(&self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
