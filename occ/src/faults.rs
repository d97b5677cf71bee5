//! Faults that a test plants, to prove that a suite would notice: this crate as it must not be.
//!
//! Only with the feature `faults`, which no engine switches on. Without it [`planted`] is constant and
//! the branches that ask for it are not compiled in.

/// A way to be wrong.
#[cfg_attr(not(feature = "faults"), allow(unreachable_pub, reason = "public with the feature only"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Commits are not checked against what was written since.
    ConflictRangesDropped,
    /// The first key of a range that was read is not checked.
    RangeConflictOffByOne,
    /// Transactions that commit within the same second get the same versionstamp.
    VersionstampReused,
    /// Commits are acknowledged without a sync.
    MissingSync,
}

#[cfg(feature = "faults")]
pub(crate) fn planted(planted: Option<Fault>, fault: Fault) -> bool {
    planted == Some(fault)
}

#[cfg(not(feature = "faults"))]
pub(crate) const fn planted(_: Option<Fault>, _: Fault) -> bool {
    false
}
