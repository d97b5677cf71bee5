//! Faults that a test plants, to prove that a suite would notice: this crate as it must not be.
//!
//! Only with the feature `faults`, which no engine switches on, and in unit tests. Without it [`planted`] is constant, a
//! [`Hook`] is nothing, and what asks for them is not compiled in.

/// A way to be wrong.
#[cfg_attr(not(any(test, feature = "faults")), allow(unreachable_pub, reason = "public with the feature only"))]
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
    /// A batch can be read before it is synced.
    PublishedBeforeSync,
    /// The committer thread is not woken when it is given the lead.
    HandOffUnheard,
    /// A watch that is armed while a batch is on its way does not hear of that batch.
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

/// A place on a batch's way into the store, where a test may stop the process.
#[cfg_attr(not(any(test, feature = "faults")), allow(unreachable_pub, reason = "public with the feature only"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// The batch is made; the store has not heard of it.
    BeforeApply,
    /// The store has applied the batch, and has not been asked to sync it.
    AfterApply,
    /// The batch is synced; nobody has heard of it.
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
