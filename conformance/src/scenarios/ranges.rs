//! Ranges: order, limits, target sizes, and continuation.
//!
//! Source: `api-c.rst`, `fdb_transaction_get_range`; `ReadYourWrites.actor.cpp`, `getRange`.

use kv_api::error::KEY_OUTSIDE_LEGAL_RANGE;
use kv_api::{KeySelector, RangeRequest, Read, Transaction, TransactionExt};

use crate::expect::{fails, show};
use crate::{Keyspace, Outcome, Space, Tx};

const ROWS: &[(&str, &str)] = &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")];

/// Reads a request in batches, as a caller does. Returns the rows and the sizes of the batches.
async fn whole(tx: &Tx, request: RangeRequest) -> kv_api::Result<(String, Vec<usize>)> {
    let (mut rows, mut sizes) = (Vec::new(), Vec::new());
    let mut next = Some(request);
    while let Some(request) = next {
        let batch = tx.batch(&request, Read::Serializable).await?;
        assert!(!batch.more || !batch.rows.is_empty(), "an empty batch with more: a caller would never end");
        next = request.after(&batch);
        sizes.push(batch.rows.len());
        rows.extend(batch.rows);
    }
    Ok((show(&rows), sizes))
}

pub(crate) async fn rows_come_in_the_order_of_their_keys_bytes(s: Space) -> Outcome {
    let keys: [&[u8]; 7] = [b"a", b"a\0", b"a\0\0", b"a\x01", b"aa", b"a\xff", b"b"];
    s.write(|tx| keys.iter().rev().for_each(|key| tx.set(key, ""))).await?;
    let tx = s.tx();
    let mut rows: Vec<_> = tx.batch(&RangeRequest::keys("a", "c"), Read::Serializable).await?.rows;
    assert_eq!(rows.iter().map(|row| &row.key[..]).collect::<Vec<_>>(), keys);
    rows.reverse();
    assert_eq!(tx.batch(&RangeRequest::keys("a", "c").reverse(), Read::Serializable).await?.rows, rows);
    Ok(())
}

pub(crate) async fn the_begin_belongs_and_the_end_does_not(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    assert_eq!(tx.rows(RangeRequest::keys("b", "d")).await?, "b=2 c=3");
    assert_eq!(tx.rows(RangeRequest::keys("b", "d").reverse()).await?, "c=3 b=2");
    assert_eq!(tx.rows(RangeRequest::keys("b", b"d\0".as_slice())).await?, "b=2 c=3 d=4");
    assert_eq!(tx.rows(RangeRequest::keys(b"b\0".as_slice(), "d")).await?, "c=3");
    Ok(())
}

pub(crate) async fn a_limit_counts_from_the_side_it_is_read_from(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    for (limit, forward, reverse) in [(1, "a=1", "e=5"), (3, "a=1 b=2 c=3", "e=5 d=4 c=3")] {
        assert_eq!(tx.rows(RangeRequest::keys("a", "z").limit(limit)).await?, forward);
        assert_eq!(tx.rows(RangeRequest::keys("a", "z").limit(limit).reverse()).await?, reverse);
    }
    Ok(())
}

pub(crate) async fn a_batch_stopped_by_its_limit_says_more(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    for request in [RangeRequest::keys("a", "z").limit(2), RangeRequest::keys("a", "z").limit(2).reverse()] {
        let batch = tx.batch(&request, Read::Serializable).await?;
        assert_eq!((batch.rows.len(), batch.more), (2, true));
    }
    Ok(())
}

/// `more` is set whenever the limit is reached, without looking further.
pub(crate) async fn a_limit_reached_by_the_last_row_says_more(s: Space) -> Outcome {
    s.put(ROWS).await?;
    for tx in [s.tx(), s.tx()] {
        let batch = tx.batch(&RangeRequest::keys("a", "z").limit(5), Read::Serializable).await?;
        assert_eq!((batch.rows.len(), batch.more), (5, true));
    }
    Ok(())
}

pub(crate) async fn a_range_read_to_its_end_says_no_more(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    for request in [
        RangeRequest::keys("a", "z"),
        RangeRequest::keys("a", "z").reverse(),
        RangeRequest::keys("a", "z").limit(6),
        RangeRequest::keys("x", "z"),
        RangeRequest::keys("x", "z").limit(1),
    ] {
        assert!(!tx.batch(&request, Read::Serializable).await?.more, "{request:?}");
    }
    Ok(())
}

pub(crate) async fn going_on_after_each_batch_reads_every_row_once(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    let forward = "a=1 b=2 c=3 d=4 e=5";
    let reverse = "e=5 d=4 c=3 b=2 a=1";
    for limit in 1..=6 {
        let request = RangeRequest::keys("a", "z").limit(limit);
        let mut rows = Vec::new();
        let mut next = Some(request.clone());
        while let Some(request) = next {
            let batch = tx.batch(&request, Read::Serializable).await?;
            next = RangeRequest::keys("a", "z").after(&batch).map(|rest| rest.limit(limit));
            rows.extend(batch.rows);
        }
        assert_eq!(show(&rows), forward, "by {limit}");
    }
    for target in [1, 10, 11, 30] {
        assert_eq!(whole(&tx, RangeRequest::keys("a", "z").target_bytes(target)).await?.0, forward);
        assert_eq!(whole(&tx, RangeRequest::keys("a", "z").target_bytes(target).reverse()).await?.0, reverse);
    }
    Ok(())
}

pub(crate) async fn the_limit_holds_over_all_batches(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    for limit in 1..=5 {
        let (rows, sizes) = whole(&tx, RangeRequest::keys("a", "z").limit(limit).target_bytes(1)).await?;
        assert_eq!(sizes, vec![1; limit]);
        assert_eq!(rows, show(&tx.batch(&RangeRequest::keys("a", "z").limit(limit), Read::Snapshot).await?.rows));
    }
    Ok(())
}

pub(crate) async fn a_batch_ends_with_the_row_that_reaches_the_target(s: Space) -> Outcome {
    let value = "v".repeat(100);
    s.write(|tx| (0..50).for_each(|n| tx.set(format!("k{n:02}"), &value))).await?;
    let tx = s.tx();
    for request in [RangeRequest::prefix(b"k"), RangeRequest::prefix(b"k").reverse()] {
        let target = 1000;
        let batch = tx.batch(&request.target_bytes(target), Read::Serializable).await?;
        // Engines may count more than a row's key and value.
        let least = target / 200;
        assert!(batch.more && (least..=target / 100).contains(&batch.rows.len()), "{} rows", batch.rows.len());
    }
    Ok(())
}

pub(crate) async fn a_row_larger_than_the_target_comes_all_the_same(s: Space) -> Outcome {
    let value = "v".repeat(10_000);
    s.put(&[("a", &value), ("b", &value)]).await?;
    let tx = s.tx();
    let batch = tx.batch(&RangeRequest::keys("a", "c").target_bytes(1), Read::Serializable).await?;
    assert_eq!((batch.rows.len(), batch.more), (1, true));
    Ok(())
}

pub(crate) async fn an_empty_range_has_no_rows(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    for request in
        [RangeRequest::keys("b", "b"), RangeRequest::keys("x", "z"), RangeRequest::keys(b"b\0".as_slice(), "c")]
    {
        for request in [request.clone(), request.reverse()] {
            let batch = tx.batch(&request, Read::Serializable).await?;
            assert!(batch.rows.is_empty() && !batch.more, "{request:?}");
        }
    }
    Ok(())
}

pub(crate) async fn an_inverted_range_has_no_rows_and_is_no_error(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    let selectors = RangeRequest::selectors(KeySelector::first_greater_than("d"), KeySelector::last_less_than("c"));
    for request in [RangeRequest::keys("d", "b"), selectors] {
        for request in [request.clone(), request.reverse()] {
            let batch = tx.batch(&request, Read::Serializable).await?;
            assert!(batch.rows.is_empty() && !batch.more, "{request:?}");
        }
    }
    tx.set("f", "1");
    tx.commit().await?;
    Ok(())
}

pub(crate) async fn an_inverted_range_adds_no_conflict(s: Space) -> Outcome {
    let reads = async |tx: &Tx| tx.rows(RangeRequest::keys("d", "b")).await.map(drop);
    assert_eq!(s.conflicts(ROWS, "abcde", reads).await?, "");
    Ok(())
}

pub(crate) async fn a_range_with_an_end_above_the_keyspace_is_2004(s: Space) -> Outcome {
    let tx = s.tx();
    let above = RangeRequest::keys(s.key("a"), b"\xff\0".as_slice());
    fails(tx.raw.get_range(&above, Read::Serializable).await, KEY_OUTSIDE_LEGAL_RANGE);
    let above = RangeRequest::keys(b"\xff\xfe".as_slice(), b"\xff".as_slice());
    fails(tx.raw.get_range(&above, Read::Snapshot).await, KEY_OUTSIDE_LEGAL_RANGE);
    Ok(())
}

pub(crate) async fn a_range_may_end_where_the_keyspace_does(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    let rest = RangeRequest::keys(s.key("d"), b"\xff".as_slice()).limit(2);
    let rows = tx.raw.get_range(&rest, Read::Snapshot).await?.rows;
    assert_eq!(rows.iter().map(|row| row.key.clone()).collect::<Vec<_>>(), [s.key("d"), s.key("e")]);
    let everything = RangeRequest::keys(b"".as_slice(), b"\xff".as_slice());
    let rows = tx.raw.get_all(everything, Read::Snapshot).await?;
    assert!(rows.iter().any(|row| row.key == s.key("a")) && rows.is_sorted());
    if s.keyspace() == Keyspace::Own {
        assert_eq!(rows.len(), ROWS.len());
    }
    Ok(())
}

pub(crate) async fn a_prefix_ends_before_the_next_one(s: Space) -> Outcome {
    s.put(&[("p", "1"), ("p/", "2"), ("p/a", "3"), ("p0", "4")]).await?;
    s.write(|tx| tx.set(b"p/\xff\xff", "5")).await?;
    let tx = s.tx();
    assert_eq!(tx.rows(RangeRequest::prefix(b"p/")).await?, r"p/=2 p/a=3 p/\xff\xff=5");
    Ok(())
}

pub(crate) async fn get_all_reads_every_batch(s: Space) -> Outcome {
    let value = "v".repeat(1000);
    s.write(|tx| (0..300).for_each(|n| tx.set(format!("k{n:03}"), &value))).await?;
    let tx = s.tx();
    let request = RangeRequest::keys(s.key("k"), s.key("l"));
    let rows = tx.raw.get_all(request.clone(), Read::Serializable).await?;
    assert_eq!((rows.len(), &rows[299].key), (300, &s.key("k299")));
    let mut reverse = tx.raw.get_all(request.target_bytes(5000).reverse(), Read::Serializable).await?;
    reverse.reverse();
    assert_eq!(reverse, rows);
    Ok(())
}
