//! Random numbers for tests. The same seed gives the same numbers.

/// A seeded generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Any number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 ^ self.0 >> 29).rotate_left(17)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
