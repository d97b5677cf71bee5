//! Strict serializability: the anomalies it excludes, and the transactions that do not conflict.
//!
//! Source: `developer-guide.rst`, "Conflict ranges" and "How FoundationDB detects conflicts".

use kv_api::error::NOT_COMMITTED;
use kv_api::{MutationType, RangeRequest};

use crate::expect::{fails, some};
use crate::serializability::{Recorder, Workload, fresh_seed, must_be_serial, times};
use crate::{Outcome, Space};

pub(crate) async fn uncommitted_writes_are_seen_by_no_one_else(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    tx.set("a", "2");
    tx.set("b", "2");
    assert_eq!(tx.get("a").await?, some("2"));
    assert_eq!(s.contents().await?, "a=1");
    tx.commit().await?;
    assert_eq!(s.contents().await?, "a=2 b=2");
    Ok(())
}

pub(crate) async fn a_transaction_reads_one_version_throughout(s: Space) -> Outcome {
    s.put(&[("x", "0"), ("y", "0")]).await?;
    let tx = s.tx();
    assert_eq!(tx.get("x").await?, some("0"));
    s.put(&[("x", "1"), ("y", "1")]).await?;
    assert_eq!(tx.get("y").await?, some("0"), "read skew");
    Ok(())
}

pub(crate) async fn the_first_committer_wins_and_the_second_is_refused(s: Space) -> Outcome {
    let (one, two) = (s.tx(), s.tx());
    one.get("a").await?;
    two.get("a").await?;
    one.set("a", "one");
    two.set("a", "two");
    two.commit().await?;
    fails(one.commit().await, NOT_COMMITTED);
    assert_eq!(s.get("a").await?, some("two"), "a lost update");
    Ok(())
}

pub(crate) async fn write_skew_is_refused(s: Space) -> Outcome {
    s.put(&[("alice", "on call"), ("bob", "on call")]).await?;
    let (one, two) = (s.tx(), s.tx());
    for tx in [&one, &two] {
        assert_eq!(tx.rows(RangeRequest::keys("a", "z")).await?, "alice=on call bob=on call");
    }
    one.clear("alice");
    two.clear("bob");
    one.commit().await?;
    fails(two.commit().await, NOT_COMMITTED);
    assert_eq!(s.contents().await?, "bob=on call");
    Ok(())
}

pub(crate) async fn a_phantom_is_refused(s: Space) -> Outcome {
    s.put(&[("room/1", "")]).await?;
    let tx = s.tx();
    assert_eq!(tx.rows(RangeRequest::prefix(b"room/")).await?, "room/1=");
    s.put(&[("room/2", "")]).await?;
    tx.set("count", "1");
    fails(tx.commit().await, NOT_COMMITTED);
    Ok(())
}

pub(crate) async fn an_absent_key_that_was_read_conflicts_when_it_appears(s: Space) -> Outcome {
    let tx = s.tx();
    assert_eq!(tx.get("a").await?, None);
    s.put(&[("a", "1")]).await?;
    tx.set("b", "1");
    fails(tx.commit().await, NOT_COMMITTED);
    Ok(())
}

pub(crate) async fn a_key_that_was_read_conflicts_when_it_is_cleared(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    tx.get("a").await?;
    s.write(|tx| tx.clear("a")).await?;
    tx.set("b", "1");
    fails(tx.commit().await, NOT_COMMITTED);
    Ok(())
}

pub(crate) async fn a_write_of_the_same_value_conflicts_all_the_same(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    tx.get("a").await?;
    s.put(&[("a", "1")]).await?;
    tx.set("b", "1");
    fails(tx.commit().await, NOT_COMMITTED);
    Ok(())
}

pub(crate) async fn a_change_that_was_undone_conflicts_all_the_same(s: Space) -> Outcome {
    let tx = s.tx();
    tx.get("a").await?;
    s.put(&[("a", "1")]).await?;
    s.write(|tx| tx.clear("a")).await?;
    tx.set("b", "1");
    fails(tx.commit().await, NOT_COMMITTED);
    Ok(())
}

pub(crate) async fn a_commit_before_the_read_version_does_not_conflict(s: Space) -> Outcome {
    let tx = s.tx();
    s.put(&[("a", "1")]).await?;
    assert_eq!(tx.get("a").await?, some("1"));
    tx.set("a", "2");
    tx.commit().await?;
    assert_eq!(s.get("a").await?, some("2"));
    Ok(())
}

pub(crate) async fn blind_writes_never_conflict(s: Space) -> Outcome {
    let (one, two) = (s.tx(), s.tx());
    for (tx, value) in [(&one, "one"), (&two, "two")] {
        tx.read_version().await?;
        tx.set("a", value);
        tx.clear_range("b", "c");
        tx.atomic(MutationType::Add, "d", [1]);
    }
    one.commit().await?;
    two.commit().await?;
    assert_eq!(s.contents().await?, r"a=two d=\x02");
    Ok(())
}

pub(crate) async fn a_read_only_transaction_never_conflicts(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    tx.get("a").await?;
    s.put(&[("a", "2")]).await?;
    assert_eq!(tx.get("a").await?, some("1"));
    tx.commit().await?;
    Ok(())
}

pub(crate) async fn transactions_on_different_keys_do_not_conflict(s: Space) -> Outcome {
    let (one, two) = (s.tx(), s.tx());
    for (tx, key) in [(&one, "a"), (&two, "b")] {
        tx.get(key).await?;
        tx.set(key, "1");
    }
    one.commit().await?;
    two.commit().await?;
    assert_eq!(s.contents().await?, "a=1 b=1");
    Ok(())
}

pub(crate) async fn a_key_and_its_extension_are_different_keys(s: Space) -> Outcome {
    let tx = s.tx();
    tx.get("a").await?;
    s.write(|tx| {
        tx.set(b"a\0", "1");
        tx.set("ab", "1");
    })
    .await?;
    tx.set("b", "1");
    tx.commit().await?;
    Ok(())
}

pub(crate) async fn a_refused_transaction_leaves_nothing_behind(s: Space) -> Outcome {
    s.put(&[("kept", "1")]).await?;
    let tx = s.tx();
    tx.get("a").await?;
    tx.set("b", "1");
    tx.clear("kept");
    tx.atomic(MutationType::Add, "n", [1]);
    tx.set_stamped_key("log/", "", "1");
    s.put(&[("a", "1")]).await?;
    fails(tx.commit().await, NOT_COMMITTED);
    assert_eq!(s.contents().await?, "a=1 kept=1");
    Ok(())
}

pub(crate) async fn a_refused_transaction_makes_no_one_else_conflict(s: Space) -> Outcome {
    let reader = s.tx();
    reader.get("b").await?;
    let refused = s.tx();
    refused.get("a").await?;
    refused.set("b", "1");
    s.put(&[("a", "1")]).await?;
    fails(refused.commit().await, NOT_COMMITTED);
    reader.set("c", "1");
    reader.commit().await?;
    Ok(())
}

pub(crate) async fn a_read_of_an_own_write_range_conflicts_with_others_all_the_same(s: Space) -> Outcome {
    // Reading "b" beside the own write of "a" conflicts like any other read.
    let tx = s.tx();
    tx.read_version().await?;
    tx.set("a", "1");
    tx.rows(RangeRequest::keys("a", "c")).await?;
    s.put(&[("b", "1")]).await?;
    fails(tx.commit().await, NOT_COMMITTED);
    Ok(())
}

pub(crate) async fn a_large_transaction_is_all_there_or_not_at_all(s: Space) -> Outcome {
    let writer = s.clone();
    let rows = s.threads(2, move |_, number| {
        let s = writer.clone();
        async move {
            if number == 0 {
                for round in 0..30 {
                    s.write(|tx| (0..50).for_each(|key| tx.set(format!("k{key:02}"), format!("{round}")))).await?;
                }
                return Ok(());
            }
            for _ in 0..60 {
                let rows = s.tx().batch(&RangeRequest::keys("k", "l"), kv_api::Read::Serializable).await?.rows;
                assert!(rows.is_empty() || rows.len() == 50, "{} rows of 50", rows.len());
                assert!(rows.windows(2).all(|pair| pair[0].value == pair[1].value), "rows of two commits");
            }
            Ok(())
        }
    })?;
    assert_eq!(rows.len(), 2);
    Ok(())
}

pub(crate) async fn counting_on_many_threads_loses_nothing(s: Space) -> Outcome {
    s.put(&[("n", "0")]).await?;
    s.threads(4, |s, _| async move {
        for _ in 0..25 {
            let tx = s.tx();
            loop {
                let attempt = async {
                    let value = tx.get("n").await?.unwrap_or_default();
                    let count: u32 = std::str::from_utf8(&value).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
                    tx.set("n", (count + 1).to_string());
                    tx.commit().await
                };
                match attempt.await {
                    Ok(()) => break,
                    Err(error) => tx.on_error(error).await?,
                }
            }
        }
        Ok(())
    })?;
    assert_eq!(s.get("n").await?, some("100"));
    Ok(())
}

pub(crate) async fn the_sum_is_kept_by_transfers_on_many_threads(s: Space) -> Outcome {
    s.write(|tx| (0..5).for_each(|account| tx.set(format!("account/{account}"), "100"))).await?;
    let balance = |value: Option<bytes::Bytes>| -> i64 {
        value.and_then(|value| std::str::from_utf8(&value).ok()?.parse().ok()).unwrap_or(i64::MIN)
    };
    s.threads(4, |s, thread| async move {
        for round in 0..20_usize {
            let (from, to) = ((thread + round) % 5, (thread * 3 + round * 2 + 1) % 5);
            let (from, to) = (format!("account/{from}"), format!("account/{to}"));
            if from == to {
                continue;
            }
            let tx = s.tx();
            loop {
                let attempt = async {
                    let (a, b) = (tx.get(&from), tx.get(&to));
                    tx.set(&from, (balance(a.await?) - 7).to_string());
                    tx.set(&to, (balance(b.await?) + 7).to_string());
                    tx.commit().await
                };
                match attempt.await {
                    Ok(()) => break,
                    Err(error) => tx.on_error(error).await?,
                }
            }
            let rows = s.tx().batch(&RangeRequest::prefix(b"account/"), kv_api::Read::Serializable).await?.rows;
            let sum: i64 = rows.into_iter().map(|row| balance(Some(row.value))).sum();
            assert_eq!(sum, 500);
        }
        Ok(())
    })?;
    Ok(())
}

/// Threads append to lists and read them; the history must have a serial order. Few keys give many conflicts, many
/// keys give long cycles.
pub(crate) async fn histories_of_real_threads_have_a_serial_order(s: Space) -> Outcome {
    let seed = fresh_seed();
    for (keys, operations) in [(2, 4), (6, 5), (30, 8)] {
        let workload = Workload { seed, keys, operations, transactions: 60 * times(), ..Workload::default() };
        let (recorder, prefix) = (Recorder::default(), s.key(format!("lists of {keys}/")));
        recorder.run(s.database(), &prefix, workload)?;
        must_be_serial(&recorder.finish(s.database(), &prefix).await?, workload);
    }
    Ok(())
}
