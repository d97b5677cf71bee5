//! A small random generator whose only state is its seed.

/// The number in an environment variable, or `default`.
pub(crate) fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014): good enough to choose
/// instructions, small enough to trust.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator with this seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Bounds here are far below 2^64, so the bias does not matter.
        if bound == 0 { 0 } else { self.bits() % bound }
    }

    /// True with this probability.
    pub fn chance(&mut self, rate: f64) -> bool {
        ((self.bits() >> 11) as f64) < rate * (1_u64 << 53) as f64
    }

    /// One of them.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}
