//! Versionstamps: the values that the commit writes, and the keys that cannot be read before it.
//!
//! Source: `Atomic.h`, `WriteMap.cpp` (`addUnmodifiedAndUnreadableRange`), `CommitProxyServer`, the
//! workloads `VersionStamp` and `Unreadable`.

use kv_api::error::{
    ACCESSED_UNREADABLE, CLIENT_INVALID_OPERATION, NO_COMMIT_VERSION, NOT_COMMITTED, TRANSACTION_CANCELLED,
};
use kv_api::{KeySelector, KeyValue, MutationType, RangeRequest, Read, TransactionOption, Versionstamp};

use crate::expect::{fails, some};
use crate::space::stamped_operand;
use crate::{Outcome, Space};

fn prefixed_range(prefix: &str) -> RangeRequest {
    RangeRequest::prefix(prefix.as_bytes())
}

async fn log(s: &Space) -> kv_api::Result<Vec<KeyValue>> {
    Ok(s.tx().batch(&prefixed_range("log/"), Read::Snapshot).await?.rows)
}

pub(crate) async fn a_stamped_key_holds_the_stamp_of_its_transaction(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set_stamped_key("log/", "/end", "value");
    let stamp = tx.versionstamp();
    tx.commit().await?;
    let stamp = stamp.await?;
    let rows = log(&s).await?;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].key, [b"log/".as_slice(), stamp.as_bytes(), b"/end"].concat());
    assert_eq!(rows[0].value, b"value".as_slice());
    Ok(())
}

pub(crate) async fn a_stamped_value_holds_the_stamp_of_its_transaction(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set_stamped_value("a", "<", ">");
    tx.set_stamped_value("b", "", "");
    let stamp = tx.versionstamp();
    tx.commit().await?;
    let stamp = stamp.await?;
    assert_eq!(s.get("a").await?, some([b"<".as_slice(), stamp.as_bytes(), b">"].concat()));
    assert_eq!(s.get("b").await?, some(stamp.as_bytes()));
    Ok(())
}

pub(crate) async fn the_first_eight_bytes_of_the_stamp_are_the_commit_version(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set_stamped_value("a", "", "");
    let stamp = tx.versionstamp();
    tx.commit().await?;
    assert_eq!(stamp.await?.version(), tx.committed_version()?.unsigned_abs());
    Ok(())
}

pub(crate) async fn all_stamps_of_a_transaction_are_the_same(s: Space) -> Outcome {
    s.write(|tx| {
        tx.set_stamped_key("log/", "/1", "");
        tx.set_stamped_key("log/", "/2", "");
        tx.set_stamped_value("a", "", "");
    })
    .await?;
    let stamp = s.get("a").await?.unwrap_or_default();
    let rows = log(&s).await?;
    assert_eq!(rows[0].key, [b"log/".as_slice(), &stamp, b"/1"].concat());
    assert_eq!(rows[1].key, [b"log/".as_slice(), &stamp, b"/2"].concat());
    Ok(())
}

pub(crate) async fn stamped_keys_sort_in_the_order_of_the_commits(s: Space) -> Outcome {
    for round in 0..20 {
        s.write(|tx| tx.set_stamped_key("log/", "", format!("{round:02}"))).await?;
    }
    let rows = log(&s).await?;
    assert_eq!(rows.len(), 20);
    assert!(rows.is_sorted_by(|a, b| a.key < b.key && a.value < b.value));
    Ok(())
}

pub(crate) async fn no_two_transactions_share_a_stamp(s: Space) -> Outcome {
    let stamps = s.threads(4, |s, thread| async move {
        let mut stamps = Vec::new();
        for round in 0..25 {
            let tx = s.tx();
            tx.set_stamped_key("log/", "", format!("{thread}/{round}"));
            let stamp = tx.versionstamp();
            tx.commit().await?;
            stamps.push(stamp.await?);
        }
        assert!(stamps.is_sorted_by(|a, b| a < b), "stamps of one thread rise");
        Ok(stamps)
    })?;
    let mut stamps: Vec<Versionstamp> = stamps.into_iter().flatten().collect();
    stamps.sort();
    stamps.dedup();
    assert_eq!(stamps.len(), 100);
    let keys: Vec<_> = log(&s).await?.into_iter().map(|row| row.key.slice(4..)).collect();
    assert_eq!(keys, stamps.iter().map(|stamp| bytes::Bytes::copy_from_slice(stamp.as_bytes())).collect::<Vec<_>>());
    Ok(())
}

pub(crate) async fn the_stamp_can_be_asked_for_without_a_stamped_write(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "1");
    let stamp = tx.versionstamp();
    tx.commit().await?;
    assert_eq!(stamp.await?.version(), tx.committed_version()?.unsigned_abs());
    Ok(())
}

pub(crate) async fn the_stamp_of_a_read_only_transaction_is_2021(s: Space) -> Outcome {
    let tx = s.tx();
    tx.get("a").await?;
    let stamp = tx.versionstamp();
    tx.commit().await?;
    fails(stamp.await, NO_COMMIT_VERSION);
    Ok(())
}

/// The error is not documented. It must fail, and must not wait forever.
pub(crate) async fn the_stamp_of_a_refused_transaction_fails(s: Space) -> Outcome {
    let tx = s.tx();
    tx.get("a").await?;
    tx.set("b", "1");
    let stamp = tx.versionstamp();
    s.put(&[("a", "1")]).await?;
    fails(tx.commit().await, NOT_COMMITTED);
    assert!(stamp.await.is_err());
    Ok(())
}

pub(crate) async fn the_stamp_of_a_cancelled_transaction_is_1025(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("b", "1");
    let stamp = tx.versionstamp();
    tx.cancel();
    fails(stamp.await, TRANSACTION_CANCELLED);
    Ok(())
}

pub(crate) async fn the_offset_may_be_anywhere_that_the_stamp_fits(s: Space) -> Outcome {
    let tx = s.tx();
    // The stamp overwrites ten bytes at the offset, whatever they are.
    let operand = [b"ab0123456789cd".as_slice(), &2_u32.to_le_bytes()].concat();
    tx.atomic(MutationType::SetVersionstampedValue, "a", &operand);
    let stamp = tx.versionstamp();
    tx.commit().await?;
    let expected = [b"ab".as_slice(), stamp.await?.as_bytes(), b"cd"].concat();
    assert_eq!(s.get("a").await?, some(expected));
    Ok(())
}

pub(crate) async fn a_stamped_value_without_room_for_the_stamp_is_2000(s: Space) -> Outcome {
    for operand in [
        b"".as_slice(),
        b"123",
        b"\0\0\0\0",
        b"123456789\0\0\0\0",
        b"1234567890\x01\0\0\0",
        b"1234567890\xff\xff\xff\xff",
        b"1234567890\0\0\0\x80",
    ] {
        let tx = s.tx();
        tx.atomic(MutationType::SetVersionstampedValue, "a", operand);
        fails(tx.commit().await, CLIENT_INVALID_OPERATION);
    }
    assert_eq!(s.contents().await?, "");
    Ok(())
}

pub(crate) async fn a_stamped_key_without_room_for_the_stamp_is_2000(s: Space) -> Outcome {
    let base = s.key("");
    for (room, offset) in [(0, 0_u32), (9, 0), (10, 1), (10, u32::MAX), (10, i32::MAX as u32)] {
        let tx = s.tx();
        let offset = offset.saturating_add(base.len() as u32);
        let key = [&base, vec![b'.'; room].as_slice(), &offset.to_le_bytes()].concat();
        tx.raw_stamped_key(&key, "value");
        fails(tx.commit().await, CLIENT_INVALID_OPERATION);
    }
    assert_eq!(s.contents().await?, "");
    Ok(())
}

pub(crate) async fn read_of_a_pending_versionstamp_is_1036(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    for read in [Read::Serializable, Read::Snapshot] {
        let tx = s.tx();
        tx.set_stamped_value("a", "", "");
        let value = if read == Read::Snapshot { tx.peek("a") } else { tx.get("a") };
        fails(value.await, ACCESSED_UNREADABLE);
    }
    Ok(())
}

pub(crate) async fn a_range_over_a_pending_stamped_value_is_1036(s: Space) -> Outcome {
    s.put(&[("a", "1"), ("c", "1")]).await?;
    for request in [RangeRequest::keys("a", "d"), RangeRequest::keys("a", "d").reverse()] {
        let tx = s.tx();
        tx.set_stamped_value("b", "", "");
        fails(tx.batch(&request, Read::Serializable).await, ACCESSED_UNREADABLE);
    }
    Ok(())
}

pub(crate) async fn a_selector_onto_a_pending_stamped_value_is_1036(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set_stamped_value("b", "", "");
    fails(tx.get_key(&KeySelector::first_greater_or_equal("a"), Read::Serializable).await, ACCESSED_UNREADABLE);
    Ok(())
}

pub(crate) async fn reads_beside_a_pending_versionstamp_work(s: Space) -> Outcome {
    s.put(&[("a", "1"), ("b", "1"), ("c", "1")]).await?;
    let tx = s.tx();
    tx.set_stamped_value("b", "", "");
    assert_eq!((tx.get("a").await?, tx.get("c").await?), (some("1"), some("1")));
    assert_eq!(tx.rows(RangeRequest::keys("a", "b")).await?, "a=1");
    assert_eq!(tx.rows(RangeRequest::keys("c", "d")).await?, "c=1");
    tx.commit().await?;
    Ok(())
}

pub(crate) async fn where_a_stamped_key_may_come_to_lie_is_1036(s: Space) -> Outcome {
    for request in [prefixed_range("log/"), prefixed_range("log/").reverse()] {
        let tx = s.tx();
        tx.set_stamped_key("log/", "", "");
        fails(tx.batch(&request, Read::Serializable).await, ACCESSED_UNREADABLE);
    }
    let tx = s.tx();
    tx.set_stamped_key("log/", "", "");
    let stamp = Versionstamp::new(1 << 62, 0);
    fails(tx.get([b"log/".as_slice(), stamp.as_bytes()].concat()).await, ACCESSED_UNREADABLE);
    Ok(())
}

pub(crate) async fn reads_beside_a_pending_stamped_key_work(s: Space) -> Outcome {
    s.put(&[("lof", "1"), ("log", "1"), ("log0", "1")]).await?;
    let tx = s.tx();
    tx.set_stamped_key("log/", "", "");
    assert_eq!((tx.get("log").await?, tx.get("log0").await?), (some("1"), some("1")));
    assert_eq!(tx.rows(RangeRequest::keys("lof", "log/")).await?, "lof=1 log=1");
    assert_eq!(tx.rows(RangeRequest::keys("log0", "log1")).await?, "log0=1");
    Ok(())
}

/// No stamp can be below the read version once that is known, so lower keys stay readable.
pub(crate) async fn stamped_keys_below_the_read_version_stay_readable(s: Space) -> Outcome {
    s.write(|tx| tx.set_stamped_key("log/", "", "old")).await?;
    let old = log(&s).await?.remove(0).key;
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    tx.read_version().await?;
    tx.set_stamped_key("log/", "", "new");
    assert_eq!(tx.get(&old).await?, some("old"));
    let first = tx.batch(&prefixed_range("log/").limit(1), Read::Serializable).await?;
    assert_eq!((first.rows.len(), &first.rows[0].key), (1, &old));
    Ok(())
}

/// Reads are part of the transaction: a failed read fails the commit too.
pub(crate) async fn a_commit_after_a_read_of_a_pending_versionstamp_is_1036(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set_stamped_value("a", "", "");
    fails(tx.get("a").await, ACCESSED_UNREADABLE);
    fails(tx.commit().await, ACCESSED_UNREADABLE);
    assert_eq!(s.contents().await?, "");
    Ok(())
}

pub(crate) async fn setting_over_a_pending_versionstamp_stays_unreadable(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set_stamped_value("a", "", "");
    tx.set("a", "plain");
    fails(tx.get("a").await, ACCESSED_UNREADABLE);
    let tx = s.tx();
    tx.set_stamped_value("a", "", "");
    tx.set("a", "plain");
    tx.commit().await?;
    assert_eq!(s.get("a").await?, some("plain"));
    Ok(())
}

pub(crate) async fn clearing_a_pending_versionstamp_makes_it_readable(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set_stamped_value("a", "", "");
    tx.set_stamped_value("b", "", "");
    tx.clear("a");
    tx.clear_range("b", "c");
    assert_eq!((tx.get("a").await?, tx.get("b").await?), (None, None));
    tx.set("a", "plain");
    assert_eq!(tx.get("a").await?, some("plain"));
    tx.commit().await?;
    assert_eq!(s.contents().await?, "a=plain");
    Ok(())
}

pub(crate) async fn a_stamped_value_over_an_own_set_takes_its_place(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "plain");
    tx.set_stamped_value("a", "", "!");
    fails(tx.get("a").await, ACCESSED_UNREADABLE);
    let tx = s.tx();
    tx.set("a", "plain");
    tx.set_stamped_value("a", "", "!");
    let stamp = tx.versionstamp();
    tx.commit().await?;
    assert_eq!(s.get("a").await?, some([stamp.await?.as_bytes().as_slice(), b"!"].concat()));
    Ok(())
}

/// "These reads will view versionstamp operations as if they were set operations that did not fill in
/// the versionstamp" (`fdb.options`, `bypass_unreadable`).
pub(crate) async fn bypass_unreadable_reads_the_operand_of_a_pending_stamped_value(s: Space) -> Outcome {
    s.put(&[("a", "stored")]).await?;
    let tx = s.tx();
    tx.option(TransactionOption::BypassUnreadable);
    tx.set_stamped_value("a", "<", ">");
    assert_eq!(tx.get("a").await?, some(stamped_operand("<", ">")));
    tx.commit().await?;
    assert_eq!(s.get("a").await?.map(|value| value.len()), Some(12));
    Ok(())
}

pub(crate) async fn a_stamped_key_conflicts_with_a_read_of_where_it_came_to_lie(s: Space) -> Outcome {
    let reader = s.tx();
    reader.rows(prefixed_range("log/")).await?;
    let elsewhere = s.tx();
    elsewhere.rows(prefixed_range("other/")).await?;
    s.write(|tx| tx.set_stamped_key("log/", "", "")).await?;
    reader.set("a", "1");
    fails(reader.commit().await, NOT_COMMITTED);
    elsewhere.set("a", "1");
    elsewhere.commit().await?;
    Ok(())
}

pub(crate) async fn stamped_writes_never_conflict_with_each_other(s: Space) -> Outcome {
    let (one, two) = (s.tx(), s.tx());
    for tx in [&one, &two] {
        tx.read_version().await?;
        tx.set_stamped_key("log/", "", "");
        tx.set_stamped_value("last", "", "");
    }
    one.commit().await?;
    two.commit().await?;
    let rows = log(&s).await?;
    assert_eq!(rows.len(), 2);
    assert_eq!(s.get("last").await?, Some(rows[1].key.slice(4..)));
    Ok(())
}
