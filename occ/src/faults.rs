//! Faults that a test plants, to prove that a suite would notice: this crate as it must not be.
//!
//! Only with the feature `faults`, which no engine switches on. Without it [`planted`] is constant, a
//! [`Hook`] is nothing, and what asks for them is not compiled in.

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

/// A place on a batch's way into the store, where a test may stop the process.
#[cfg_attr(not(feature = "faults"), allow(unreachable_pub, reason = "public with the feature only"))]
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
    #[cfg(feature = "faults")]
    act: Option<std::sync::Arc<dyn Fn(Point) + Send + Sync>>,
}

impl Hook {
    #[cfg(feature = "faults")]
    pub(crate) fn new(act: impl Fn(Point) + Send + Sync + 'static) -> Self {
        Hook { act: Some(std::sync::Arc::new(act)) }
    }

    pub(crate) fn reached(&self, point: Point) {
        #[cfg(feature = "faults")]
        if let Some(act) = &self.act {
            act(point);
        }
        #[cfg(not(feature = "faults"))]
        let _ = point;
    }
}
