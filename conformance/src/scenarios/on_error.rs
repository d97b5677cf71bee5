//! `on_error`, which alone decides about retries.
//!
//! Source: `NativeAPI.actor.cpp` and `ReadYourWrites.actor.cpp` (`onError`), at API version 630 and
//! later; `fdb.options` for what persists.

use std::time::{Duration, Instant};

use kv_api::TransactionOption::{self, MaxRetryDelay, RetryLimit, SizeLimit, Timeout};
use kv_api::error::{
    CLUSTER_VERSION_CHANGED, COMMIT_UNKNOWN_RESULT, FUTURE_VERSION, KEY_OUTSIDE_LEGAL_RANGE, NOT_COMMITTED,
    OPERATION_FAILED, TRANSACTION_CANCELLED, TRANSACTION_TIMED_OUT, TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD,
};
use kv_api::{Error, Transaction};

use crate::expect::{fails, some};
use crate::{Outcome, Space};

pub(crate) async fn a_retryable_error_makes_the_transaction_ready_again(s: Space) -> Outcome {
    for error in (0..3000).map(Error::new).filter(Error::is_retryable) {
        // Only a client that has loaded several versions of itself raises and retries this error
        // (`MultiVersionTransaction::onError`). Any other client never meets it, and returns it.
        if error.code() == CLUSTER_VERSION_CHANGED {
            continue;
        }
        let tx = s.tx();
        tx.option(MaxRetryDelay(Duration::ZERO));
        tx.set("a", "forgotten");
        tx.on_error(error.clone()).await?;
        assert_eq!(tx.get("a").await?, None, "after {error}");
        tx.commit().await?;
        assert_eq!(s.contents().await?, "", "after {error}");
    }
    Ok(())
}

pub(crate) async fn an_error_that_is_not_retryable_is_given_back(s: Space) -> Outcome {
    for code in
        [TRANSACTION_CANCELLED, TRANSACTION_TIMED_OUT, TRANSACTION_TOO_LARGE, KEY_OUTSIDE_LEGAL_RANGE, OPERATION_FAILED]
    {
        fails(s.tx().on_error(code).await, code);
    }
    Ok(())
}

pub(crate) async fn a_transaction_whose_error_was_given_back_is_cancelled(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "1");
    fails(tx.on_error(TRANSACTION_TOO_LARGE).await, TRANSACTION_TOO_LARGE);
    fails(tx.get("a").await, TRANSACTION_CANCELLED);
    fails(tx.commit().await, TRANSACTION_CANCELLED);
    tx.reset();
    assert_eq!(tx.get("a").await?, None);
    Ok(())
}

pub(crate) async fn on_error_takes_a_new_read_version(s: Space) -> Outcome {
    let tx = s.tx();
    assert_eq!(tx.get("a").await?, None);
    s.put(&[("a", "1")]).await?;
    tx.set("b", "1");
    let refused = tx.commit().await;
    fails(refused.clone(), NOT_COMMITTED);
    tx.on_error(NOT_COMMITTED).await?;
    assert_eq!(tx.get("a").await?, some("1"));
    tx.set("b", "2");
    tx.commit().await?;
    assert_eq!(s.contents().await?, "a=1 b=2");
    Ok(())
}

pub(crate) async fn on_error_forgets_conflict_ranges_and_wrong_writes(s: Space) -> Outcome {
    let tx = s.tx();
    tx.get("a").await?;
    tx.write_conflict("c", "d");
    tx.raw.set(b"\xff", b"");
    tx.on_error(FUTURE_VERSION).await?;
    s.put(&[("a", "1")]).await?;
    let reader = s.tx();
    reader.get("c").await?;
    tx.set("b", "1");
    tx.commit().await?;
    reader.set("d", "1");
    reader.commit().await?;
    Ok(())
}

pub(crate) async fn the_retry_limit_counts_retries_and_gives_the_error_back(s: Space) -> Outcome {
    for limit in 0..4 {
        let tx = s.tx();
        tx.option(RetryLimit(Some(limit)));
        for _ in 0..limit {
            tx.on_error(NOT_COMMITTED).await?;
        }
        fails(tx.on_error(NOT_COMMITTED).await, NOT_COMMITTED);
    }
    Ok(())
}

pub(crate) async fn the_error_beyond_the_retry_limit_is_the_last_one(s: Space) -> Outcome {
    let tx = s.tx();
    tx.option(RetryLimit(Some(1)));
    tx.on_error(NOT_COMMITTED).await?;
    fails(tx.on_error(TRANSACTION_TOO_OLD).await, TRANSACTION_TOO_OLD);
    Ok(())
}

pub(crate) async fn without_a_retry_limit_there_is_none(s: Space) -> Outcome {
    let tx = s.tx();
    tx.option(MaxRetryDelay(Duration::ZERO));
    tx.option(RetryLimit(Some(1)));
    tx.option(RetryLimit(None));
    for _ in 0..50 {
        tx.on_error(NOT_COMMITTED).await?;
    }
    Ok(())
}

pub(crate) async fn a_reset_starts_the_count_of_retries_anew(s: Space) -> Outcome {
    let tx = s.tx();
    tx.option(RetryLimit(Some(1)));
    tx.on_error(NOT_COMMITTED).await?;
    tx.reset();
    tx.option(RetryLimit(Some(1)));
    tx.on_error(NOT_COMMITTED).await?;
    fails(tx.on_error(NOT_COMMITTED).await, NOT_COMMITTED);
    Ok(())
}

pub(crate) async fn a_reset_forgets_the_retry_limit(s: Space) -> Outcome {
    let tx = s.tx();
    tx.option(RetryLimit(Some(0)));
    tx.reset();
    tx.on_error(NOT_COMMITTED).await?;
    Ok(())
}

pub(crate) async fn options_that_do_not_persist_are_forgotten_by_on_error(s: Space) -> Outcome {
    let tx = s.tx();
    tx.option(SizeLimit(100));
    tx.option(TransactionOption::SnapshotRywDisable);
    tx.on_error(NOT_COMMITTED).await?;
    tx.set("a", "v".repeat(1000));
    assert!(tx.peek("a").await?.is_some(), "snapshot reads see own writes again");
    tx.commit().await?;
    Ok(())
}

pub(crate) async fn the_longest_retry_delay_bounds_the_pause(s: Space) -> Outcome {
    let tx = s.tx();
    tx.option(MaxRetryDelay(Duration::from_millis(1)));
    let begun = Instant::now();
    for _ in 0..30 {
        tx.on_error(NOT_COMMITTED).await?;
    }
    assert!(begun.elapsed() < Duration::from_secs(3), "30 retries took {:?}", begun.elapsed());
    Ok(())
}

pub(crate) async fn a_transaction_that_timed_out_is_1031_everywhere(s: Space) -> Outcome {
    let tx = s.tx();
    tx.option(Timeout(Duration::from_millis(100)));
    tx.set("a", "1");
    s.pass(Duration::from_millis(200)).await;
    fails(tx.get("a").await, TRANSACTION_TIMED_OUT);
    fails(tx.commit().await, TRANSACTION_TIMED_OUT);
    fails(tx.on_error(NOT_COMMITTED).await, TRANSACTION_TIMED_OUT);
    assert_eq!(s.contents().await?, "");
    Ok(())
}

pub(crate) async fn a_timeout_counts_from_the_beginning_over_all_retries(s: Space) -> Outcome {
    let tx = s.tx();
    tx.option(Timeout(Duration::from_millis(1000)));
    s.pass(Duration::from_millis(700)).await;
    tx.on_error(NOT_COMMITTED).await?;
    s.pass(Duration::from_millis(700)).await;
    fails(tx.get("a").await, TRANSACTION_TIMED_OUT);
    Ok(())
}

pub(crate) async fn a_timeout_of_zero_is_none(s: Space) -> Outcome {
    let tx = s.tx();
    tx.option(Timeout(Duration::from_millis(100)));
    tx.option(Timeout(Duration::ZERO));
    s.pass(Duration::from_millis(200)).await;
    tx.get("a").await?;
    Ok(())
}

pub(crate) async fn a_reset_forgets_the_timeout_and_begins_anew(s: Space) -> Outcome {
    let tx = s.tx();
    tx.option(Timeout(Duration::from_millis(100)));
    s.pass(Duration::from_millis(200)).await;
    fails(tx.get("a").await, TRANSACTION_TIMED_OUT);
    tx.reset();
    tx.get("a").await?;
    tx.option(Timeout(Duration::from_secs(60)));
    tx.get("a").await?;
    Ok(())
}

pub(crate) async fn on_error_after_an_unknown_result_runs_again(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "1");
    tx.commit().await?;
    tx.on_error(COMMIT_UNKNOWN_RESULT).await?;
    assert_eq!(tx.get("a").await?, some("1"));
    tx.set("b", "1");
    tx.commit().await?;
    Ok(())
}
