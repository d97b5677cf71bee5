//! Conversions between the types of the trait and those of the `foundationdb` crate.

use std::time::Duration;

use foundationdb::options::{
    ConflictRangeType, MutationType as NativeMutation, StreamingMode, TransactionOption as Native,
};
use foundationdb::{FdbError, KeySelector as NativeSelector, RangeOption};
use kv_api::{ConflictRange, Direction, Error, KeySelector, MutationType, RangeRequest, TransactionOption};

/// The client's error code, with the client's text if `kv_api` has no name for the code.
pub(crate) fn kv_error(error: FdbError) -> Error {
    let converted = Error::new(error.code());
    if converted.name() == "unknown_error" { converted.with_context(error.message()) } else { converted }
}

pub(crate) fn selector(selector: &KeySelector) -> NativeSelector<'_> {
    NativeSelector::new(selector.key.as_ref().into(), selector.or_equal, selector.offset)
}

/// A row limit or a target size applies as given. Without either, the client chooses its large batch (80 KB).
pub(crate) fn range(request: &RangeRequest) -> RangeOption<'_> {
    let bounded = request.limit > 0 || request.target_bytes > 0;
    RangeOption {
        limit: (request.limit > 0).then(|| native_count(request.limit)),
        target_bytes: native_count(request.target_bytes),
        mode: if bounded { StreamingMode::Exact } else { StreamingMode::WantAll },
        reverse: request.direction == Direction::Reverse,
        ..RangeOption::from((selector(&request.begin), selector(&request.end)))
    }
}

/// The client counts in 32 bits.
fn native_count(count: usize) -> usize {
    count.min(i32::MAX as usize)
}

pub(crate) fn mutation(mutation: MutationType) -> NativeMutation {
    match mutation {
        MutationType::Add => NativeMutation::Add,
        MutationType::BitAnd => NativeMutation::BitAnd,
        MutationType::BitOr => NativeMutation::BitOr,
        MutationType::BitXor => NativeMutation::BitXor,
        MutationType::AppendIfFits => NativeMutation::AppendIfFits,
        MutationType::Max => NativeMutation::Max,
        MutationType::Min => NativeMutation::Min,
        MutationType::SetVersionstampedKey => NativeMutation::SetVersionstampedKey,
        MutationType::SetVersionstampedValue => NativeMutation::SetVersionstampedValue,
        MutationType::ByteMin => NativeMutation::ByteMin,
        MutationType::ByteMax => NativeMutation::ByteMax,
        MutationType::CompareAndClear => NativeMutation::CompareAndClear,
    }
}

pub(crate) fn conflict_range(side: ConflictRange) -> ConflictRangeType {
    match side {
        ConflictRange::Read => ConflictRangeType::Read,
        ConflictRange::Write => ConflictRangeType::Write,
    }
}

/// The client takes 32-bit milliseconds.
pub(crate) fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

/// `None` for an option that this engine does not know.
pub(crate) fn option(option: TransactionOption) -> Option<Native> {
    Some(match option {
        // Zero switches the client's timeout off, so a shorter positive one becomes one millisecond.
        TransactionOption::Timeout(after) if after.is_zero() => Native::Timeout(0),
        TransactionOption::Timeout(after) => Native::Timeout(milliseconds(after).max(1)),
        TransactionOption::RetryLimit(None) => Native::RetryLimit(-1),
        TransactionOption::RetryLimit(Some(times)) => Native::RetryLimit(i32::try_from(times).unwrap_or(i32::MAX)),
        TransactionOption::MaxRetryDelay(delay) => Native::MaxRetryDelay(milliseconds(delay)),
        TransactionOption::SizeLimit(bytes) => Native::SizeLimit(i32::try_from(bytes).unwrap_or(i32::MAX)),
        TransactionOption::NextWriteNoWriteConflictRange => Native::NextWriteNoWriteConflictRange,
        TransactionOption::SnapshotRywEnable => Native::SnapshotRywEnable,
        TransactionOption::SnapshotRywDisable => Native::SnapshotRywDisable,
        TransactionOption::ReadYourWritesDisable => Native::ReadYourWritesDisable,
        TransactionOption::BypassUnreadable => Native::BypassUnreadable,
        TransactionOption::CausalReadRisky => Native::CausalReadRisky,
        TransactionOption::PriorityBatch => Native::PriorityBatch,
        TransactionOption::Tag(tag) => Native::Tag(tag.as_str().to_owned()),
        TransactionOption::BypassStorageQuota => Native::BypassStorageQuota,
        TransactionOption::ReadSystemKeys => Native::ReadSystemKeys,
        _ => return None,
    })
}
