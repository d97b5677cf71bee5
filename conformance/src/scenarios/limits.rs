//! Limits: sizes, the end of the keyspace, and the approximate size.
//!
//! Source: `known-limitations.rst`, `ReadYourWrites.actor.cpp`, `NativeAPI.actor.cpp`
//! (`commitMutations`), `fdb.options`.

use kv_api::error::{
    INVALID_OPTION_VALUE, INVERTED_RANGE, KEY_OUTSIDE_LEGAL_RANGE, KEY_TOO_LARGE, TRANSACTION_TOO_LARGE,
    VALUE_TOO_LARGE,
};
use kv_api::{ConflictRange, MutationType, RangeRequest, Read, Transaction, TransactionOption};

use crate::expect::{fails, some};
use crate::{Outcome, Space, Tx};

/// Expects that `write` is invalid: the next read and the commit fail, whatever else is written, until a reset;
/// and nothing of it is stored.
async fn is_refused(s: &Space, code: i32, write: impl Fn(&Tx)) -> Outcome {
    let tx = s.tx();
    tx.set("before", "1");
    write(&tx);
    tx.set("after", "1");
    fails(tx.get("a").await, code);
    fails(tx.batch(&RangeRequest::keys("a", "b"), Read::Snapshot).await, code);
    fails(tx.commit().await, code);
    let tx = s.tx();
    tx.set("before", "1");
    write(&tx);
    fails(tx.commit().await, code);
    tx.reset();
    tx.set("a", "1");
    tx.commit().await?;
    s.write(|tx| tx.clear("a")).await?;
    assert_eq!(s.contents().await?, "");
    Ok(())
}

pub(crate) async fn the_longest_key_is_written_and_read(s: Space) -> Outcome {
    let key = vec![b'k'; s.limits().key_bytes];
    s.write(|tx| tx.set(&key, "1")).await?;
    let tx = s.tx();
    assert_eq!(tx.get(&key).await?, some("1"));
    assert_eq!(tx.batch(&RangeRequest::keys("a", "z"), Read::Serializable).await?.rows[0].key, key);
    tx.atomic(MutationType::AppendIfFits, &key, "2");
    tx.commit().await?;
    s.write(|tx| tx.clear(&key)).await?;
    assert_eq!(s.contents().await?, "");
    Ok(())
}

pub(crate) async fn a_set_of_a_key_over_the_limit_is_2102(s: Space) -> Outcome {
    let key = vec![b'k'; s.limits().key_bytes + 1];
    is_refused(&s, KEY_TOO_LARGE, |tx| tx.set(&key, "1")).await
}

pub(crate) async fn an_atomic_operation_on_a_key_over_the_limit_is_2102(s: Space) -> Outcome {
    let key = vec![b'k'; s.limits().key_bytes + 1];
    is_refused(&s, KEY_TOO_LARGE, |tx| tx.atomic(MutationType::Add, &key, "1")).await
}

/// The offset at the end counts, although it is not stored.
pub(crate) async fn a_stamped_key_counts_with_its_offset(s: Space) -> Outcome {
    let limit = s.limits().key_bytes;
    s.write(|tx| tx.set_stamped_key("k", vec![b'k'; limit - 15], "1")).await?;
    assert_eq!(s.tx().batch(&RangeRequest::keys("k", "l"), Read::Snapshot).await?.rows[0].key.len(), limit - 4);
    s.write(|tx| tx.clear_range("k", "l")).await?;
    is_refused(&s, KEY_TOO_LARGE, |tx| tx.set_stamped_key("k", vec![b'k'; limit - 14], "1")).await
}

pub(crate) async fn the_longest_value_is_written_and_read(s: Space) -> Outcome {
    let value = vec![b'v'; s.limits().value_bytes];
    s.write(|tx| tx.set("a", &value)).await?;
    assert_eq!(s.get("a").await?, some(&value));
    Ok(())
}

pub(crate) async fn a_value_over_the_limit_is_2103(s: Space) -> Outcome {
    let value = vec![b'v'; s.limits().value_bytes + 1];
    is_refused(&s, VALUE_TOO_LARGE, |tx| tx.set("k", &value)).await
}

pub(crate) async fn an_operand_over_the_limit_is_2103(s: Space) -> Outcome {
    let value = vec![b'v'; s.limits().value_bytes + 1];
    is_refused(&s, VALUE_TOO_LARGE, |tx| tx.atomic(MutationType::ByteMax, "k", &value)).await
}

pub(crate) async fn a_read_of_a_key_over_the_limit_finds_nothing(s: Space) -> Outcome {
    let key = vec![b'k'; s.limits().key_bytes + 1000];
    let tx = s.tx();
    assert_eq!(tx.get(&key).await?, None);
    assert_eq!(tx.peek(&key).await?, None);
    Ok(())
}

pub(crate) async fn a_clear_of_a_key_over_the_limit_does_nothing(s: Space) -> Outcome {
    let key = vec![b'k'; s.limits().key_bytes + 1000];
    s.put(&[("a", "1")]).await?;
    s.write(|tx| tx.clear(&key)).await?;
    assert_eq!(s.contents().await?, "a=1");
    Ok(())
}

pub(crate) async fn a_range_clear_may_end_in_keys_over_the_limit(s: Space) -> Outcome {
    let limit = s.limits().key_bytes;
    s.put(&[("j", "1"), ("l", "1"), ("n", "1")]).await?;
    s.write(|tx| tx.clear_range(vec![b'k'; limit + 1000], vec![b'm'; limit + 1000])).await?;
    assert_eq!(s.contents().await?, "j=1 n=1");
    Ok(())
}

pub(crate) async fn a_write_at_or_above_the_end_of_the_keyspace_is_2004(s: Space) -> Outcome {
    // From `\xff\xff` on, FoundationDB has special keys with error codes of their own.
    for key in [b"\xff".as_slice(), b"\xff\xfe", b"\xff/a"] {
        is_refused(&s, KEY_OUTSIDE_LEGAL_RANGE, |tx| tx.raw.set(key, b"1")).await?;
        is_refused(&s, KEY_OUTSIDE_LEGAL_RANGE, |tx| tx.raw.clear(key)).await?;
        is_refused(&s, KEY_OUTSIDE_LEGAL_RANGE, |tx| tx.raw.atomic_op(MutationType::Add, key, b"1")).await?;
    }
    Ok(())
}

pub(crate) async fn a_range_write_beyond_the_end_of_the_keyspace_is_2004(s: Space) -> Outcome {
    is_refused(&s, KEY_OUTSIDE_LEGAL_RANGE, |tx| tx.raw.clear_range(&s.key("x"), b"\xff\0")).await?;
    for side in [ConflictRange::Read, ConflictRange::Write] {
        is_refused(&s, KEY_OUTSIDE_LEGAL_RANGE, |tx| tx.raw.add_conflict_range(&s.key("x"), b"\xff\0", side)).await?;
    }
    Ok(())
}

pub(crate) async fn a_range_write_may_end_where_the_keyspace_does(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    tx.raw.add_conflict_range(b"\xff", b"\xff", ConflictRange::Write);
    // A range in which no other client writes.
    tx.raw.add_conflict_range(b"\xfe\xff\xff", b"\xff", ConflictRange::Read);
    tx.raw.clear_range(b"\xff", b"\xff");
    tx.set("b", "1");
    tx.commit().await?;
    assert_eq!(s.contents().await?, "a=1 b=1");
    Ok(())
}

pub(crate) async fn a_read_at_or_above_the_end_of_the_keyspace_is_2004(s: Space) -> Outcome {
    for key in [b"\xff".as_slice(), b"\xff/a"] {
        let tx = s.tx();
        fails(tx.raw.get(key, Read::Serializable).await, KEY_OUTSIDE_LEGAL_RANGE);
        fails(tx.raw.get(key, Read::Snapshot).await, KEY_OUTSIDE_LEGAL_RANGE);
    }
    Ok(())
}

pub(crate) async fn a_refused_read_leaves_the_transaction_usable(s: Space) -> Outcome {
    let tx = s.tx();
    fails(tx.raw.get(b"\xff", Read::Serializable).await, KEY_OUTSIDE_LEGAL_RANGE);
    assert_eq!(tx.get("a").await?, None);
    tx.set("a", "1");
    tx.commit().await?;
    Ok(())
}

pub(crate) async fn an_inverted_range_clear_is_2005(s: Space) -> Outcome {
    is_refused(&s, INVERTED_RANGE, |tx| tx.clear_range("b", "a")).await
}

pub(crate) async fn an_inverted_conflict_range_is_2005(s: Space) -> Outcome {
    is_refused(&s, INVERTED_RANGE, |tx| tx.read_conflict("b", "a")).await?;
    is_refused(&s, INVERTED_RANGE, |tx| tx.write_conflict("b", "a")).await
}

pub(crate) async fn an_empty_range_clear_does_nothing(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    tx.clear_range("a", "a");
    tx.commit().await?;
    assert_eq!(tx.committed_version()?, -1);
    assert_eq!(s.contents().await?, "a=1");
    Ok(())
}

/// The first error stays.
pub(crate) async fn the_first_of_several_wrong_writes_is_the_error(s: Space) -> Outcome {
    let value = vec![b'v'; s.limits().value_bytes + 1];
    is_refused(&s, INVERTED_RANGE, |tx| {
        tx.clear_range("b", "a");
        tx.set("a", &value);
        tx.raw.set(b"\xff", b"1");
    })
    .await
}

pub(crate) async fn a_transaction_over_the_limit_is_2101(s: Space) -> Outcome {
    let limits = s.limits();
    let value = vec![b'v'; limits.value_bytes];
    let tx = s.tx();
    for n in 0..=limits.transaction_bytes / limits.value_bytes {
        tx.set(format!("k{n}"), &value);
    }
    fails(tx.commit().await, TRANSACTION_TOO_LARGE);
    assert_eq!(s.contents().await?, "");
    Ok(())
}

pub(crate) async fn a_transaction_near_the_limit_commits(s: Space) -> Outcome {
    let limits = s.limits();
    let value = vec![b'v'; limits.value_bytes];
    let count = limits.transaction_bytes / limits.value_bytes * 9 / 10;
    s.write(|tx| (0..count).for_each(|n| tx.set(format!("k{n:03}"), &value))).await?;
    let rows = s.tx().batch(&RangeRequest::keys("k", "l").limit(1).reverse(), Read::Snapshot).await?.rows;
    assert_eq!(rows[0].key, format!("k{:03}", count - 1));
    Ok(())
}

pub(crate) async fn conflict_ranges_count_towards_the_limit(s: Space) -> Outcome {
    let limits = s.limits();
    let long = |n: usize| format!("{n:05}{}", "k".repeat(limits.key_bytes - 100));
    let tx = s.tx();
    for n in 0..limits.transaction_bytes / (limits.key_bytes - 100) / 2 + 10 {
        tx.read_conflict(long(2 * n), long(2 * n + 1));
    }
    tx.set("a", "1");
    fails(tx.commit().await, TRANSACTION_TOO_LARGE);
    Ok(())
}

/// Small rows count more than their bytes.
pub(crate) async fn each_write_counts_with_its_conflict_range(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "");
    let one = tx.size().await?;
    let key = s.key("a").len() as u64;
    // The key in the mutation, and twice in its conflict range.
    assert!(one > 3 * key, "{one} bytes for a key of {key}");
    tx.option(TransactionOption::NextWriteNoWriteConflictRange);
    tx.set("b", "");
    assert!(tx.size().await? - one < one, "without conflict range it counts less");
    Ok(())
}

pub(crate) async fn the_size_so_far_can_be_asked_for(s: Space) -> Outcome {
    let tx = s.tx();
    assert_eq!(tx.size().await?, 0);
    tx.set("a", vec![b'v'; 1000]);
    let set = tx.size().await?;
    assert!((1000..1500).contains(&set), "{set}");
    tx.clear_range("b", "c");
    let cleared = tx.size().await?;
    assert!(cleared > set);
    tx.atomic(MutationType::Add, "n", [1]);
    let added = tx.size().await?;
    assert!(added > cleared);
    tx.get("x").await?;
    let read = tx.size().await?;
    assert!(read > added, "a read conflict range counts");
    tx.peek("y").await?;
    assert_eq!(tx.size().await?, read, "a snapshot read has none");
    tx.write_conflict("p", "q");
    assert!(tx.size().await? > read);
    tx.reset();
    assert_eq!(tx.size().await?, 0);
    Ok(())
}

pub(crate) async fn a_size_limit_of_ones_own_is_2101(s: Space) -> Outcome {
    for (bytes, refused) in [(100, false), (2000, true)] {
        let tx = s.tx();
        tx.option(TransactionOption::SizeLimit(1000));
        tx.set("a", vec![b'v'; bytes]);
        let outcome = tx.commit().await;
        if refused { fails(outcome, TRANSACTION_TOO_LARGE) } else { outcome? }
    }
    assert_eq!(s.get("a").await?.map(|value| value.len()), Some(100));
    Ok(())
}

pub(crate) async fn a_size_limit_out_of_range_is_2006(s: Space) -> Outcome {
    for limit in [0, 31, s.limits().transaction_bytes + 1] {
        let tx = s.tx();
        tx.option(TransactionOption::SizeLimit(limit));
        fails(tx.get("a").await, INVALID_OPTION_VALUE);
    }
    for limit in [32, s.limits().transaction_bytes] {
        let tx = s.tx();
        tx.option(TransactionOption::SizeLimit(limit));
        tx.get("a").await?;
    }
    Ok(())
}

pub(crate) async fn a_read_only_transaction_is_never_too_large(s: Space) -> Outcome {
    let tx = s.tx();
    tx.option(TransactionOption::SizeLimit(32));
    for n in 0..100 {
        tx.get(format!("k{n}")).await?;
    }
    tx.commit().await?;
    Ok(())
}

pub(crate) async fn the_empty_key_and_the_empty_value_are_like_any_other(s: Space) -> Outcome {
    // The empty key of the subspace: the empty key itself may belong to others.
    s.put(&[("", "")]).await?;
    assert_eq!(s.get("").await?, some(""));
    assert_eq!(s.contents().await?, "=");
    s.write(|tx| tx.clear("")).await?;
    assert_eq!(s.get("").await?, None);
    Ok(())
}
