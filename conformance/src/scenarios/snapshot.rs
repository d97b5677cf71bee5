//! Snapshot reads: chosen for each read, without conflicts, and with own writes.
//!
//! Source: `developer-guide.rst`, "Snapshot reads"; `fdb.options`, `snapshot_ryw_enable`.

use kv_api::error::NOT_COMMITTED;
use kv_api::{KeySelector, MutationType, RangeRequest, Read, TransactionOption};

use crate::expect::{fails, some};
use crate::{Outcome, Space};

pub(crate) async fn a_snapshot_get_adds_no_conflict(s: Space) -> Outcome {
    let conflicts = s.conflicts(&[("a", "1")], "a", async |tx| tx.peek("a").await.map(drop)).await?;
    assert_eq!(conflicts, "");
    Ok(())
}

pub(crate) async fn a_snapshot_range_adds_no_conflict(s: Space) -> Outcome {
    for request in [RangeRequest::keys("a", "d"), RangeRequest::keys("a", "d").reverse().limit(1)] {
        let reads = async |tx: &crate::Tx| tx.batch(&request, Read::Snapshot).await.map(drop);
        assert_eq!(s.conflicts(&[("a", "1"), ("b", "1")], "abc", reads).await?, "");
    }
    Ok(())
}

pub(crate) async fn a_snapshot_key_selector_adds_no_conflict(s: Space) -> Outcome {
    let reads = async |tx: &crate::Tx| {
        tx.get_key(&KeySelector::first_greater_or_equal("a"), Read::Snapshot).await?;
        tx.get_key(&KeySelector::last_less_than("d"), Read::Snapshot).await.map(drop)
    };
    assert_eq!(s.conflicts(&[("b", "1")], "abcd", reads).await?, "");
    Ok(())
}

pub(crate) async fn snapshot_is_chosen_for_each_read(s: Space) -> Outcome {
    let reads = async |tx: &crate::Tx| {
        tx.peek("a").await?;
        tx.get("b").await?;
        tx.peek("c").await.map(drop)
    };
    assert_eq!(s.conflicts(&[("a", "1"), ("b", "1"), ("c", "1")], "abc", reads).await?, "b");
    Ok(())
}

pub(crate) async fn a_serializable_read_after_a_snapshot_read_of_the_same_key_conflicts(s: Space) -> Outcome {
    let reads = async |tx: &crate::Tx| {
        tx.peek("a").await?;
        tx.get("a").await.map(drop)
    };
    assert_eq!(s.conflicts(&[("a", "1")], "a", reads).await?, "a");
    Ok(())
}

pub(crate) async fn a_snapshot_read_sees_the_same_version_as_the_others(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    tx.get("b").await?;
    s.put(&[("a", "2")]).await?;
    assert_eq!(tx.peek("a").await?, some("1"));
    Ok(())
}

pub(crate) async fn a_snapshot_read_sees_the_own_writes(s: Space) -> Outcome {
    s.put(&[("a", "1"), ("b", "1"), ("n", "\u{1}")]).await?;
    let tx = s.tx();
    tx.set("a", "own");
    tx.clear("b");
    tx.atomic(MutationType::Add, "n", [1]);
    assert_eq!((tx.peek("a").await?, tx.peek("b").await?, tx.peek("n").await?), (some("own"), None, some([2])));
    assert_eq!(tx.rows_by(RangeRequest::keys("a", "c"), Read::Snapshot).await?, "a=own");
    assert_eq!(&tx.get_key(&KeySelector::first_greater_than("a"), Read::Snapshot).await?[..], b"n");
    Ok(())
}

pub(crate) async fn snapshot_ryw_disable_hides_the_own_writes_from_snapshot_reads(s: Space) -> Outcome {
    s.put(&[("a", "1"), ("b", "1")]).await?;
    let tx = s.tx();
    tx.option(TransactionOption::SnapshotRywDisable);
    tx.set("a", "own");
    tx.clear("b");
    tx.set("c", "own");
    assert_eq!((tx.peek("a").await?, tx.peek("b").await?, tx.peek("c").await?), (some("1"), some("1"), None));
    assert_eq!(tx.rows_by(RangeRequest::keys("a", "z"), Read::Snapshot).await?, "a=1 b=1");
    assert_eq!(&tx.get_key(&KeySelector::last_less_than("z"), Read::Snapshot).await?[..], b"b");
    Ok(())
}

pub(crate) async fn snapshot_ryw_disable_leaves_serializable_reads_alone(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    tx.option(TransactionOption::SnapshotRywDisable);
    tx.set("a", "own");
    assert_eq!(tx.get("a").await?, some("own"));
    assert_eq!(tx.rows(RangeRequest::keys("a", "z")).await?, "a=own");
    Ok(())
}

/// The two options increment and decrement a counter. They are not a switch.
pub(crate) async fn snapshot_ryw_disabled_twice_needs_enabling_twice(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "own");
    tx.option(TransactionOption::SnapshotRywDisable);
    tx.option(TransactionOption::SnapshotRywDisable);
    assert_eq!(tx.peek("a").await?, None);
    tx.option(TransactionOption::SnapshotRywEnable);
    assert_eq!(tx.peek("a").await?, None);
    tx.option(TransactionOption::SnapshotRywEnable);
    assert_eq!(tx.peek("a").await?, some("own"));
    Ok(())
}

pub(crate) async fn snapshot_reads_allow_the_write_skew_they_are_asked_for(s: Space) -> Outcome {
    s.put(&[("x", "1"), ("y", "1")]).await?;
    let (one, two) = (s.tx(), s.tx());
    for tx in [&one, &two] {
        assert_eq!((tx.peek("x").await?, tx.peek("y").await?), (some("1"), some("1")));
    }
    one.set("x", "0");
    two.set("y", "0");
    one.commit().await?;
    two.commit().await?;
    assert_eq!(s.contents().await?, "x=0 y=0");
    Ok(())
}

pub(crate) async fn a_conflict_range_by_hand_makes_a_snapshot_read_serializable(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    tx.peek("a").await?;
    tx.read_conflict("a", b"a\0");
    s.put(&[("a", "2")]).await?;
    tx.set("b", "1");
    fails(tx.commit().await, NOT_COMMITTED);
    Ok(())
}
