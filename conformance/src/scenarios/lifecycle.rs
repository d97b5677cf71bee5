//! The life of a transaction: one commit, cancel, reset, and its answers in between.
//!
//! Source: `ReadYourWrites.actor.cpp` (`checkUsedDuringCommit`, `cancel`, `resetRyow`), at API version
//! 410 and later, where a transaction stays committed.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use kv_api::error::{CLIENT_INVALID_OPERATION, TRANSACTION_CANCELLED, USED_DURING_COMMIT};
use kv_api::{KeySelector, MutationType, RangeRequest, Read, TransactionOption};

use crate::expect::{fails, some};
use crate::{Outcome, Space};

pub(crate) async fn a_commit_makes_its_writes_visible(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "1");
    tx.set("b", "1");
    tx.clear("b");
    tx.commit().await?;
    assert_eq!(s.contents().await?, "a=1");
    Ok(())
}

pub(crate) async fn a_transaction_that_is_dropped_leaves_nothing(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "1");
    assert_eq!(tx.get("a").await?, some("1"));
    drop(tx);
    assert_eq!(s.contents().await?, "");
    Ok(())
}

pub(crate) async fn clones_speak_of_the_same_transaction(s: Space) -> Outcome {
    let tx = s.tx();
    let clone = tx.clone();
    tx.set("a", "1");
    assert_eq!(clone.get("a").await?, some("1"));
    clone.set("b", "1");
    drop(clone);
    tx.commit().await?;
    assert_eq!(s.contents().await?, "a=1 b=1");
    Ok(())
}

pub(crate) async fn the_committed_version_of_a_read_only_transaction_is_minus_one(s: Space) -> Outcome {
    let (empty, reader) = (s.tx(), s.tx());
    reader.get("a").await?;
    reader.rows(RangeRequest::keys("a", "b")).await?;
    for tx in [empty, reader] {
        tx.commit().await?;
        assert_eq!(tx.committed_version()?, -1);
    }
    Ok(())
}

pub(crate) async fn the_committed_version_is_where_the_writes_are_seen(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "1");
    tx.commit().await?;
    let version = tx.committed_version()?;
    let reader = s.tx();
    reader.set_read_version(version);
    assert_eq!(reader.get("a").await?, some("1"));
    Ok(())
}

pub(crate) async fn before_the_commit_there_is_no_committed_version(s: Space) -> Outcome {
    let tx = s.tx();
    fails(tx.committed_version(), CLIENT_INVALID_OPERATION);
    tx.set("a", "1");
    fails(tx.committed_version(), CLIENT_INVALID_OPERATION);
    Ok(())
}

pub(crate) async fn a_read_after_the_commit_is_2017(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "1");
    tx.commit().await?;
    fails(tx.get("a").await, USED_DURING_COMMIT);
    fails(tx.peek("a").await, USED_DURING_COMMIT);
    fails(tx.rows(RangeRequest::keys("a", "b")).await, USED_DURING_COMMIT);
    fails(tx.get_key(&KeySelector::first_greater_than("a"), Read::Snapshot).await, USED_DURING_COMMIT);
    Ok(())
}

pub(crate) async fn a_second_commit_is_2017(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "1");
    tx.commit().await?;
    fails(tx.commit().await, USED_DURING_COMMIT);
    assert_eq!(s.contents().await?, "a=1");
    Ok(())
}

pub(crate) async fn a_write_after_the_commit_is_2017_and_goes_nowhere(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "1");
    tx.commit().await?;
    tx.set("b", "1");
    tx.clear("a");
    tx.atomic(MutationType::Add, "c", [1]);
    fails(tx.get("a").await, USED_DURING_COMMIT);
    fails(tx.commit().await, USED_DURING_COMMIT);
    assert_eq!(s.contents().await?, "a=1");
    Ok(())
}

pub(crate) async fn a_read_while_committing_is_2017(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "1");
    let mut commit = pin!(tx.commit());
    let begun = commit.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    fails(tx.get("a").await, USED_DURING_COMMIT);
    // It makes a commit in progress fail. A commit that was done stays done.
    match begun {
        Poll::Ready(outcome) => outcome?,
        Poll::Pending => match commit.await {
            Ok(()) => {}
            outcome => fails(outcome, USED_DURING_COMMIT),
        },
    }
    Ok(())
}

pub(crate) async fn a_committed_transaction_can_be_used_again_after_a_reset(s: Space) -> Outcome {
    let tx = s.tx();
    for value in ["1", "2", "3"] {
        tx.set("a", value);
        tx.commit().await?;
        let version = tx.committed_version()?;
        tx.reset();
        assert!(tx.read_version().await? >= version);
        assert_eq!(tx.get("a").await?, some(value));
        tx.reset();
    }
    Ok(())
}

pub(crate) async fn a_reset_forgets_everything(s: Space) -> Outcome {
    let tx = s.tx();
    tx.get("a").await?;
    tx.set("b", "1");
    tx.write_conflict("c", "d");
    tx.option(TransactionOption::SnapshotRywDisable);
    tx.reset();
    s.put(&[("a", "1")]).await?;
    assert_eq!(tx.get("b").await?, None);
    tx.set("e", "1");
    assert_eq!(tx.peek("e").await?, some("1"));
    tx.commit().await?;
    assert_eq!(s.contents().await?, "a=1 e=1");
    Ok(())
}

pub(crate) async fn a_cancelled_transaction_answers_1025(s: Space) -> Outcome {
    let tx = s.tx();
    tx.get("a").await?;
    tx.set("b", "1");
    tx.cancel();
    fails(tx.get("a").await, TRANSACTION_CANCELLED);
    fails(tx.peek("a").await, TRANSACTION_CANCELLED);
    fails(tx.read_version().await, TRANSACTION_CANCELLED);
    fails(tx.rows(RangeRequest::keys("a", "b")).await, TRANSACTION_CANCELLED);
    fails(tx.get_key(&KeySelector::first_greater_than("a"), Read::Snapshot).await, TRANSACTION_CANCELLED);
    fails(tx.watch("a").await, TRANSACTION_CANCELLED);
    fails(tx.commit().await, TRANSACTION_CANCELLED);
    assert_eq!(s.contents().await?, "");
    Ok(())
}

pub(crate) async fn on_error_of_a_cancelled_transaction_is_1025(s: Space) -> Outcome {
    let tx = s.tx();
    tx.cancel();
    fails(tx.on_error(kv_api::error::NOT_COMMITTED).await, TRANSACTION_CANCELLED);
    fails(tx.get("a").await, TRANSACTION_CANCELLED);
    Ok(())
}

pub(crate) async fn a_cancelled_transaction_can_be_used_again_after_a_reset(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "1");
    tx.cancel();
    tx.reset();
    assert_eq!(tx.get("a").await?, None);
    tx.set("b", "1");
    tx.commit().await?;
    assert_eq!(s.contents().await?, "b=1");
    Ok(())
}

pub(crate) async fn a_cancel_after_the_commit_takes_nothing_back(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "1");
    tx.commit().await?;
    tx.cancel();
    assert_eq!(s.contents().await?, "a=1");
    Ok(())
}

pub(crate) async fn a_failed_commit_is_not_used_again_without_on_error(s: Space) -> Outcome {
    let tx = s.tx();
    tx.get("a").await?;
    s.put(&[("a", "1")]).await?;
    tx.set("b", "1");
    fails(tx.commit().await, kv_api::error::NOT_COMMITTED);
    fails(tx.get("a").await, USED_DURING_COMMIT);
    Ok(())
}
