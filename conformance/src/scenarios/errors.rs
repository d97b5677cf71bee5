//! Errors: their codes and the three predicates.
//!
//! Source: `fdb_c.cpp`, `fdb_error_predicate`; `error_definitions.h`.

use kv_api::Error;
use kv_api::error::{
    BATCH_TRANSACTION_THROTTLED, CLUSTER_VERSION_CHANGED, COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED, COMMIT_UNKNOWN_RESULT,
    DATABASE_LOCKED, FUTURE_VERSION, GRV_PROXY_MEMORY_LIMIT_EXCEEDED, NOT_COMMITTED, PROCESS_BEHIND,
    PROXY_TAG_THROTTLED, TAG_THROTTLED, TRANSACTION_CANCELLED, TRANSACTION_TIMED_OUT, TRANSACTION_TOO_LARGE,
    TRANSACTION_TOO_OLD, USED_DURING_COMMIT,
};

use crate::{Outcome, Space};

pub(crate) async fn the_errors_that_may_have_committed_are_1021_and_1039(_: Space) -> Outcome {
    let maybe: Vec<i32> = (0..10_000).filter(|&code| Error::new(code).is_maybe_committed()).collect();
    assert_eq!(maybe, [COMMIT_UNKNOWN_RESULT, CLUSTER_VERSION_CHANGED]);
    Ok(())
}

pub(crate) async fn the_errors_that_are_retryable_and_not_committed_are_ten(_: Space) -> Outcome {
    let not: Vec<i32> = (0..10_000).filter(|&code| Error::new(code).is_retryable_not_committed()).collect();
    let mut expected = [
        NOT_COMMITTED,
        TRANSACTION_TOO_OLD,
        FUTURE_VERSION,
        DATABASE_LOCKED,
        GRV_PROXY_MEMORY_LIMIT_EXCEEDED,
        COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED,
        BATCH_TRANSACTION_THROTTLED,
        PROCESS_BEHIND,
        TAG_THROTTLED,
        PROXY_TAG_THROTTLED,
    ];
    expected.sort_unstable();
    assert_eq!(not, expected);
    Ok(())
}

pub(crate) async fn an_error_is_retryable_when_one_of_the_other_two_predicates_holds(_: Space) -> Outcome {
    for error in (0..10_000).map(Error::new) {
        assert_eq!(error.is_retryable(), error.is_maybe_committed() || error.is_retryable_not_committed(), "{error}");
    }
    for code in [TRANSACTION_TIMED_OUT, TRANSACTION_CANCELLED, TRANSACTION_TOO_LARGE, USED_DURING_COMMIT] {
        assert!(!Error::new(code).is_retryable());
    }
    Ok(())
}

pub(crate) async fn an_error_says_its_name_and_its_number(_: Space) -> Outcome {
    assert_eq!(Error::new(NOT_COMMITTED).to_string(), "not_committed (1020)");
    assert_eq!(Error::new(NOT_COMMITTED).code(), 1020);
    Ok(())
}
