//! Watches: armed by the commit, fired by the first change of the value that the transaction saw.
//!
//! Source: `api-c.rst`, `fdb_transaction_watch`; `ReadYourWrites.actor.cpp` (`watch`,
//! `triggerWatches`); the workload `Watches`.

use std::time::Duration;

use kv_api::error::{
    ACCESSED_UNREADABLE, KEY_OUTSIDE_LEGAL_RANGE, NOT_COMMITTED, TOO_MANY_WATCHES, TRANSACTION_CANCELLED,
    WATCHES_DISABLED,
};
use kv_api::{MutationType, Transaction, TransactionOption};

use crate::expect::fails;
use crate::space::within;
use crate::{Outcome, Space};

/// Timeout for a watch that must fire.
const SOON: Duration = Duration::from_secs(20);
/// A watch that has not fired after this time counts as one that does not fire.
const A_WHILE: Duration = Duration::from_millis(50);

pub(crate) async fn a_watch_fires_when_the_value_changes(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    let mut watch = tx.watch("a");
    tx.commit().await?;
    assert_eq!(within(A_WHILE, &mut watch).await, None);
    s.put(&[("a", "2")]).await?;
    assert_eq!(within(SOON, watch).await, Some(Ok(())));
    Ok(())
}

pub(crate) async fn a_watch_fires_when_the_key_appears(s: Space) -> Outcome {
    let tx = s.tx();
    let watch = tx.watch("a");
    tx.commit().await?;
    s.put(&[("a", "")]).await?;
    assert_eq!(within(SOON, watch).await, Some(Ok(())));
    Ok(())
}

pub(crate) async fn a_watch_fires_when_the_key_is_cleared(s: Space) -> Outcome {
    s.put(&[("a", "1"), ("b", "1")]).await?;
    let tx = s.tx();
    let (one, two) = (tx.watch("a"), tx.watch("b"));
    tx.commit().await?;
    s.write(|tx| tx.clear("a")).await?;
    assert_eq!(within(SOON, one).await, Some(Ok(())));
    s.write(|tx| tx.clear_range("b", "c")).await?;
    assert_eq!(within(SOON, two).await, Some(Ok(())));
    Ok(())
}

pub(crate) async fn a_watch_fires_for_atomic_and_stamped_writes(s: Space) -> Outcome {
    let tx = s.tx();
    let (one, two) = (tx.watch("a"), tx.watch("b"));
    tx.commit().await?;
    s.write(|tx| {
        tx.atomic(MutationType::Add, "a", [1]);
        tx.set_stamped_value("b", "", "");
    })
    .await?;
    assert_eq!(within(SOON, one).await, Some(Ok(())));
    assert_eq!(within(SOON, two).await, Some(Ok(())));
    Ok(())
}

pub(crate) async fn a_watch_does_not_fire_for_the_same_value(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    let mut watch = tx.watch("a");
    tx.commit().await?;
    s.put(&[("a", "1")]).await?;
    assert_eq!(within(A_WHILE, &mut watch).await, None);
    s.put(&[("a", "2")]).await?;
    assert_eq!(within(SOON, watch).await, Some(Ok(())));
    Ok(())
}

pub(crate) async fn a_watch_does_not_fire_for_other_keys(s: Space) -> Outcome {
    s.put(&[("b", "1")]).await?;
    let tx = s.tx();
    let mut watch = tx.watch("b");
    tx.commit().await?;
    s.write(|tx| {
        tx.set("a", "1");
        tx.set(b"b\0", "1");
        tx.set("c", "1");
        tx.clear_range("c", "z");
    })
    .await?;
    assert_eq!(within(A_WHILE, &mut watch).await, None);
    Ok(())
}

pub(crate) async fn a_watch_is_not_fired_by_the_own_write_it_saw(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    tx.set("a", "own");
    let mut watch = tx.watch("a");
    tx.commit().await?;
    assert_eq!(within(A_WHILE, &mut watch).await, None);
    s.put(&[("a", "1")]).await?;
    assert_eq!(within(SOON, watch).await, Some(Ok(())));
    Ok(())
}

pub(crate) async fn a_watch_is_fired_by_an_own_write_after_it(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    let watch = tx.watch("a");
    tx.set("a", "own");
    tx.commit().await?;
    assert_eq!(within(SOON, watch).await, Some(Ok(())));
    Ok(())
}

pub(crate) async fn a_watch_fires_for_a_change_between_its_read_and_its_commit(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    tx.read_version().await?;
    let watch = tx.watch("a");
    tx.get("a").await?;
    s.put(&[("a", "2")]).await?;
    tx.commit().await?;
    assert_eq!(within(SOON, watch).await, Some(Ok(())));
    Ok(())
}

pub(crate) async fn all_watches_of_a_key_fire(s: Space) -> Outcome {
    let (one, two) = (s.tx(), s.tx());
    let watches = [one.watch("a"), one.watch("a"), two.watch("a")];
    one.commit().await?;
    two.commit().await?;
    s.put(&[("a", "1")]).await?;
    for watch in watches {
        assert_eq!(within(SOON, watch).await, Some(Ok(())));
    }
    Ok(())
}

pub(crate) async fn a_watch_outlives_its_transaction(s: Space) -> Outcome {
    let dropped = s.tx();
    let one = dropped.watch("a");
    dropped.commit().await?;
    drop(dropped);
    let used_again = s.tx();
    let two = used_again.watch("a");
    used_again.commit().await?;
    used_again.reset();
    used_again.set("b", "1");
    used_again.commit().await?;
    s.put(&[("a", "1")]).await?;
    assert_eq!(within(SOON, one).await, Some(Ok(())));
    assert_eq!(within(SOON, two).await, Some(Ok(())));
    Ok(())
}

pub(crate) async fn a_watch_fails_with_the_error_of_its_commit(s: Space) -> Outcome {
    let tx = s.tx();
    tx.get("b").await?;
    let watch = tx.watch("a");
    s.put(&[("b", "1")]).await?;
    tx.set("c", "1");
    fails(tx.commit().await, NOT_COMMITTED);
    assert_eq!(within(SOON, watch).await, Some(Err(NOT_COMMITTED.into())));
    Ok(())
}

pub(crate) async fn a_watch_of_a_transaction_that_is_reset_or_dropped_is_1025(s: Space) -> Outcome {
    let (one, two) = (s.tx(), s.tx());
    let watches = [one.watch("a"), two.watch("a")];
    one.get("a").await?;
    two.get("a").await?;
    one.reset();
    // A cancel alone does not end a watch whose value has been read: FoundationDB keeps it until the reset.
    two.cancel();
    drop(two);
    for watch in watches {
        assert_eq!(within(SOON, watch).await, Some(Err(TRANSACTION_CANCELLED.into())));
    }
    Ok(())
}

pub(crate) async fn a_watch_reads_its_key_and_conflicts(s: Space) -> Outcome {
    let watches = std::cell::RefCell::new(Vec::new());
    let reads = async |tx: &crate::Tx| {
        watches.borrow_mut().push(tx.watch("b"));
        tx.get("c").await.map(drop)
    };
    assert_eq!(s.conflicts(&[], "abc", reads).await?, "bc");
    Ok(())
}

pub(crate) async fn a_watch_without_read_your_writes_is_1034(s: Space) -> Outcome {
    let tx = s.tx();
    tx.option(TransactionOption::ReadYourWritesDisable);
    fails(tx.watch("a").await, WATCHES_DISABLED);
    Ok(())
}

pub(crate) async fn a_watch_of_a_pending_versionstamp_is_1036_and_the_commit_goes_on(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set_stamped_value("a", "", "");
    fails(tx.watch("a").await, ACCESSED_UNREADABLE);
    tx.commit().await?;
    assert!(s.get("a").await?.is_some());
    Ok(())
}

pub(crate) async fn a_watch_above_the_keyspace_is_2004(s: Space) -> Outcome {
    let tx = s.tx();
    fails(tx.raw.watch(b"\xff/a").await, KEY_OUTSIDE_LEGAL_RANGE);
    Ok(())
}

pub(crate) async fn too_many_watches_are_1032(s: Space) -> Outcome {
    let limit = s.limits().watches;
    let tx = s.tx();
    let mut watches: Vec<_> = (0..limit).map(|n| tx.watch(format!("w/{n}"))).collect();
    // One after the other: an engine may arm them only when their reads are answered.
    tx.get("a").await?;
    for watch in watches.iter_mut().rev().take(1) {
        assert_eq!(within(A_WHILE, watch).await, None);
    }
    assert_eq!(within(SOON, tx.watch("one too many")).await, Some(Err(TOO_MANY_WATCHES.into())));
    Ok(())
}

pub(crate) async fn watches_that_are_gone_make_room(s: Space) -> Outcome {
    let limit = s.limits().watches;
    let tx = s.tx();
    let watches: Vec<_> = (0..limit).map(|n| tx.watch(format!("w/{n}"))).collect();
    tx.get("a").await?;
    tx.reset();
    for watch in watches {
        fails(watch.await, TRANSACTION_CANCELLED);
    }
    let watch = tx.watch("a");
    tx.commit().await?;
    s.put(&[("a", "1")]).await?;
    assert_eq!(within(SOON, watch).await, Some(Ok(())));
    Ok(())
}
