//! The twelve atomic operations.

/// A change to a key that the store applies at the commit version. The transaction does not read the key, so it has no
/// read conflict.
///
/// The discriminants are FoundationDB's numbers (`fdb.options`, scope `MutationType`). "The operand" is the
/// parameter, "the value" is what the key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum MutationType {
    /// Adds two little-endian integers. The value is extended with zeros or truncated to the
    /// operand's length; the sum wraps. An absent key counts as zero.
    Add = 2,
    /// Bitwise and. The value is extended or truncated to the operand's length. On an absent key
    /// the operand is stored.
    BitAnd = 6,
    /// Bitwise or. The value is extended or truncated to the operand's length.
    BitOr = 7,
    /// Bitwise exclusive or. The value is extended or truncated to the operand's length.
    BitXor = 8,
    /// Appends the operand, unless the result would pass the limit on values: then nothing changes.
    AppendIfFits = 9,
    /// The greater of two little-endian unsigned integers. The value is extended or truncated to the operand's
    /// length. An absent key counts as zero.
    Max = 12,
    /// The lesser of two little-endian unsigned integers. The value is extended or truncated to the operand's
    /// length. On an absent key the operand is stored.
    Min = 13,
    /// Replaces ten bytes of the given key by the transaction's versionstamp and sets the resulting key. The last
    /// four bytes are the little-endian offset of those ten bytes, and are removed.
    SetVersionstampedKey = 14,
    /// Replaces ten bytes of the operand by the transaction's versionstamp and sets the key to the result. The
    /// operand's last four bytes are the little-endian offset of those ten bytes, and are removed.
    SetVersionstampedValue = 15,
    /// The lesser in byte order. On an absent key the operand is stored.
    ByteMin = 16,
    /// The greater in byte order. On an absent key the operand is stored.
    ByteMax = 17,
    /// Clears the key if its value equals the operand.
    CompareAndClear = 20,
}

impl MutationType {
    /// All twelve, in the order of their numbers.
    pub const ALL: [MutationType; 12] = [
        MutationType::Add,
        MutationType::BitAnd,
        MutationType::BitOr,
        MutationType::BitXor,
        MutationType::AppendIfFits,
        MutationType::Max,
        MutationType::Min,
        MutationType::SetVersionstampedKey,
        MutationType::SetVersionstampedValue,
        MutationType::ByteMin,
        MutationType::ByteMax,
        MutationType::CompareAndClear,
    ];

    /// FoundationDB's number for this operation.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The operation with this number, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mutation| mutation.code() == code)
    }

    /// Whether the key or the value gets the transaction's versionstamp.
    pub const fn is_versionstamped(self) -> bool {
        matches!(self, MutationType::SetVersionstampedKey | MutationType::SetVersionstampedValue)
    }
}
