//! The limits of a patch, and its errors.

use std::fmt;

/// Maximum number of steps in a path, and of levels in a merge patch.
pub(super) const MAX_STEPS: usize = 1_000;

/// Maximum number of steps in all paths of a patch. A step takes twenty times as many bytes in memory as in the patch.
pub(super) const MAX_ALL_STEPS: usize = 200_000;

/// Approximate maximum number of bytes that the operations of a patch may touch together.
const MAX_WORK: usize = 500_000_000;

/// Approximate cost in bytes of looking at or moving a member or element.
pub(super) const CHILD_BYTES: usize = 32;

/// Approximate cost of a new member. It stays in memory, with its name twice.
pub(super) const NEW_MEMBER_BYTES: usize = 256;

/// Weight of a byte that is written or compared as text: the copy is kept.
pub(super) const TEXT_WEIGHT: usize = 8;

/// The reason why a patch cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatchError {
    /// It is not a valid patch, for any value.
    Malformed(String),
    /// The value does not fit the patch: a path does not exist, or a test fails.
    Failed(String),
    /// It takes too much work.
    TooMuch,
}

impl fmt::Display for PatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PatchError::Malformed(why) | PatchError::Failed(why) => f.write_str(why),
            PatchError::TooMuch => f.write_str("the patch takes too much work"),
        }
    }
}

impl std::error::Error for PatchError {}

pub(super) type Result<T, E = PatchError> = std::result::Result<T, E>;

pub(super) fn malformed<T>(why: impl Into<String>) -> Result<T> {
    Err(PatchError::Malformed(why.into()))
}

pub(super) fn failed<T>(why: impl Into<String>) -> Result<T> {
    Err(PatchError::Failed(why.into()))
}

/// The work that is left, in bytes.
pub(super) struct Work(usize);

impl Work {
    /// The work that one patch may take.
    pub(super) fn new() -> Work {
        Work(MAX_WORK)
    }

    pub(super) fn spend(&mut self, bytes: usize) -> Result<()> {
        self.0 = self.0.checked_sub(bytes).ok_or(PatchError::TooMuch)?;
        Ok(())
    }
}
