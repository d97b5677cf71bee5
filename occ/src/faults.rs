//! Faults that tests plant, to prove that a suite finds them.
//!
//! They exist in unit tests and with the feature `faults`, which no engine enables. Otherwise [`planted`] is
//! constant and a [`Hook`] is empty.

use std::borrow::Cow;

use kv_api::Versionstamp;

use crate::KeyRange;

/// A fault.
#[cfg_attr(not(any(test, feature = "faults")), allow(unreachable_pub, reason = "public with the feature only"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Commits are not checked for conflicts.
    ConflictRangesDropped,
    /// The first key of a range that was read is not checked.
    RangeConflictOffByOne,
    /// Transactions that commit within the same second get the same versionstamp.
    VersionstampReused,
    /// Commits are acknowledged without a sync.
    MissingSync,
    /// A batch can be read before it is synced.
    PublishedBeforeSync,
    /// The committer thread is not woken when the lead is offered to it.
    HandOffUnheard,
    /// A watch that is armed while a batch is in progress misses that batch.
    WatchArmedTooLate,
}

#[cfg(any(test, feature = "faults"))]
pub(crate) fn planted(planted: Option<Fault>, fault: Fault) -> bool {
    planted == Some(fault)
}

#[cfg(not(any(test, feature = "faults")))]
pub(crate) const fn planted(_: Option<Fault>, _: Fault) -> bool {
    false
}

/// The ranges of a commit that are checked for changes.
pub(crate) fn checked(fault: Option<Fault>, read: &[KeyRange]) -> Cow<'_, [KeyRange]> {
    if planted(fault, Fault::ConflictRangesDropped) {
        return Cow::Borrowed(&[]);
    }
    if planted(fault, Fault::RangeConflictOffByOne) {
        let rest = |range: &KeyRange| match range.is_point() {
            true => range.clone(),
            false => KeyRange { begin: kv_api::keys::key_after(&range.begin), end: range.end.clone() },
        };
        return read.iter().map(rest).collect();
    }
    Cow::Borrowed(read)
}

/// The versionstamp of the commit at this place in a batch.
pub(crate) fn versionstamp(fault: Option<Fault>, version: i64, order: usize) -> Versionstamp {
    match planted(fault, Fault::VersionstampReused) {
        false => Versionstamp::new(version as u64, order as u16),
        true => Versionstamp::new(version as u64 / 1_000_000, 0),
    }
}

/// A point on a batch's way into the store, where a test may stop the process.
#[cfg_attr(not(any(test, feature = "faults")), allow(unreachable_pub, reason = "public with the feature only"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// The batch is complete and not applied.
    BeforeApply,
    /// The batch is applied and not synced.
    AfterApply,
    /// The batch is synced and not published.
    AfterSync,
}

/// What a test does at each [`Point`] of every batch.
#[derive(Clone, Default)]
pub(crate) struct Hook {
    #[cfg(any(test, feature = "faults"))]
    act: Option<crate::sync::Arc<dyn Fn(Point) + Send + Sync>>,
}

impl Hook {
    #[cfg(any(test, feature = "faults"))]
    pub(crate) fn new(act: impl Fn(Point) + Send + Sync + 'static) -> Self {
        Hook { act: Some(crate::sync::Arc::new(act)) }
    }

    pub(crate) fn reached(&self, point: Point) {
        #[cfg(any(test, feature = "faults"))]
        if let Some(act) = &self.act {
            act(point);
        }
        #[cfg(not(any(test, feature = "faults")))]
        let _ = point;
    }
}
