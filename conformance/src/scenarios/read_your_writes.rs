//! Read your writes: which own writes a read sees, and which such reads conflict.
//!
//! Source: `ReadYourWrites.actor.cpp`, `RYWIterator.cpp`, `WriteMap.cpp`; the workload
//! `RyowCorrectness`.

use kv_api::error::CLIENT_INVALID_OPERATION;
use kv_api::{KeySelector, MutationType, RangeRequest, Read, TransactionOption};

use crate::expect::{fails, some};
use crate::{Outcome, Space, Tx};

const ROWS: &[(&str, &str)] = &[("b", "1"), ("d", "1"), ("f", "1"), ("h", "1")];

pub(crate) async fn a_get_sees_the_own_set(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "1");
    assert_eq!(tx.get("a").await?, some("1"));
    tx.set("a", "2");
    assert_eq!(tx.get("a").await?, some("2"));
    tx.set("a", "");
    assert_eq!(tx.get("a").await?, some(""));
    Ok(())
}

pub(crate) async fn a_get_sees_the_own_clear(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    tx.clear("b");
    tx.clear_range("c", "g");
    assert_eq!((tx.get("b").await?, tx.get("d").await?, tx.get("f").await?), (None, None, None));
    assert_eq!(tx.get("h").await?, some("1"));
    Ok(())
}

pub(crate) async fn a_set_after_a_clear_and_a_clear_after_a_set_are_seen_in_order(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    tx.clear_range("a", "z");
    tx.set("d", "2");
    tx.set("e", "2");
    tx.clear("e");
    assert_eq!(tx.rows(RangeRequest::keys("a", "z")).await?, "d=2");
    tx.commit().await?;
    assert_eq!(s.contents().await?, "d=2");
    Ok(())
}

pub(crate) async fn ranges_see_sets_and_clears_in_both_directions(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    tx.set("a", "own");
    tx.set("d", "own");
    tx.set("e", "own");
    tx.clear("f");
    let all = RangeRequest::keys("a", "z");
    assert_eq!(tx.rows(all.clone()).await?, "a=own b=1 d=own e=own h=1");
    assert_eq!(tx.rows(all.clone().reverse()).await?, "h=1 e=own d=own b=1 a=own");
    assert_eq!(tx.rows(all.clone().limit(3)).await?, "a=own b=1 d=own");
    assert_eq!(tx.rows(all.reverse().limit(3)).await?, "h=1 e=own d=own");
    assert_eq!(tx.rows(RangeRequest::keys("b", "e")).await?, "b=1 d=own");
    Ok(())
}

pub(crate) async fn ranges_skip_over_a_cleared_range(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    tx.clear_range("c", "g");
    let all = RangeRequest::keys("a", "z");
    assert_eq!(tx.rows(all.clone()).await?, "b=1 h=1");
    assert_eq!(tx.rows(all.clone().reverse()).await?, "h=1 b=1");
    assert_eq!(tx.rows(all.limit(2)).await?, "b=1 h=1");
    Ok(())
}

pub(crate) async fn a_range_clear_ends_before_its_end(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    tx.clear_range("b", "f");
    assert_eq!(tx.rows(RangeRequest::keys("a", "z")).await?, "f=1 h=1");
    tx.commit().await?;
    assert_eq!(s.contents().await?, "f=1 h=1");
    Ok(())
}

pub(crate) async fn selectors_count_over_own_writes(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    tx.set("c", "own");
    tx.clear("d");
    tx.clear_range("g", "z");
    tx.set("x", "own");
    for (selector, key) in [
        (KeySelector::first_greater_than("b"), "c"),
        (KeySelector::first_greater_than("b").plus(1), "f"),
        (KeySelector::first_greater_than("b").plus(2), "x"),
        (KeySelector::last_less_than("x"), "f"),
        (KeySelector::last_less_than("x").plus(-1), "c"),
        (KeySelector::last_less_or_equal("d"), "c"),
        (KeySelector::first_greater_or_equal("d"), "f"),
    ] {
        let found = tx.get_key(&selector, Read::Serializable).await?;
        assert_eq!(found, key.as_bytes(), "{selector:?}");
    }
    Ok(())
}

pub(crate) async fn reads_see_own_atomic_operations_on_stored_values(s: Space) -> Outcome {
    s.put(&[("n", "\u{5}"), ("t", "ab")]).await?;
    let tx = s.tx();
    tx.atomic(MutationType::Add, "n", [3]);
    tx.atomic(MutationType::Add, "n", [1]);
    tx.atomic(MutationType::AppendIfFits, "t", "c");
    tx.atomic(MutationType::Max, "new", [7]);
    assert_eq!((tx.get("n").await?, tx.get("t").await?, tx.get("new").await?), (some([9]), some("abc"), some([7])));
    assert_eq!(tx.rows(RangeRequest::keys("a", "z")).await?, r"n=\t new=\x07 t=abc");
    assert_eq!(tx.rows(RangeRequest::keys("a", "z").reverse()).await?, r"t=abc new=\x07 n=\t");
    Ok(())
}

pub(crate) async fn atomic_operations_apply_over_own_sets_and_clears(s: Space) -> Outcome {
    s.put(&[("a", "\u{5}"), ("b", "\u{5}"), ("c", "\u{5}")]).await?;
    let tx = s.tx();
    tx.set("a", [1]);
    tx.atomic(MutationType::Add, "a", [1]);
    tx.clear("b");
    tx.atomic(MutationType::Add, "b", [1]);
    tx.clear_range("c", "d");
    tx.atomic(MutationType::BitAnd, "c", [6]);
    assert_eq!((tx.get("a").await?, tx.get("b").await?, tx.get("c").await?), (some([2]), some([1]), some([6])));
    tx.commit().await?;
    assert_eq!(s.contents().await?, r"a=\x02 b=\x01 c=\x06");
    Ok(())
}

pub(crate) async fn a_key_that_compare_and_clear_removed_is_absent_to_every_read(s: Space) -> Outcome {
    s.put(ROWS).await?;
    let tx = s.tx();
    tx.atomic(MutationType::CompareAndClear, "d", "1");
    tx.atomic(MutationType::CompareAndClear, "f", "other");
    assert_eq!(tx.get("d").await?, None);
    assert_eq!(tx.rows(RangeRequest::keys("a", "z")).await?, "b=1 f=1 h=1");
    assert_eq!(tx.rows(RangeRequest::keys("a", "z").reverse()).await?, "h=1 f=1 b=1");
    Ok(())
}

pub(crate) async fn mixed_atomic_operations_on_one_key_apply_in_order(s: Space) -> Outcome {
    s.write(|tx| tx.set("n", [0b0101])).await?;
    let tx = s.tx();
    tx.atomic(MutationType::Add, "n", [1]);
    tx.atomic(MutationType::BitOr, "n", [0b1000]);
    tx.atomic(MutationType::BitXor, "n", [0b0010]);
    tx.atomic(MutationType::AppendIfFits, "n", [0xff]);
    tx.atomic(MutationType::Add, "n", [1, 1]);
    let expected = some([0b1101, 0x00]);
    assert_eq!(tx.get("n").await?, expected);
    tx.commit().await?;
    assert_eq!(s.get("n").await?, expected);
    Ok(())
}

pub(crate) async fn a_read_of_a_key_set_before_adds_no_conflict(s: Space) -> Outcome {
    let reads = async |tx: &Tx| {
        tx.set("b", "own");
        tx.get("b").await.map(drop)
    };
    assert_eq!(s.conflicts(ROWS, "ab", reads).await?, "");
    Ok(())
}

pub(crate) async fn a_read_of_a_key_cleared_before_adds_no_conflict(s: Space) -> Outcome {
    let reads = async |tx: &Tx| {
        tx.clear("b");
        tx.clear_range("d", "g");
        tx.get("b").await?;
        tx.get("d").await?;
        tx.get("e").await.map(drop)
    };
    assert_eq!(s.conflicts(ROWS, "abcdefgh", reads).await?, "");
    Ok(())
}

/// The value below an atomic operation was read from the store, so the read conflicts; over an own set it was not.
pub(crate) async fn a_read_of_an_own_atomic_operation_conflicts_where_it_read_the_store(s: Space) -> Outcome {
    let reads = async |tx: &Tx| {
        tx.atomic(MutationType::Add, "b", [1]);
        tx.set("d", [1]);
        tx.atomic(MutationType::Add, "d", [1]);
        tx.clear("f");
        tx.atomic(MutationType::Add, "f", [1]);
        for key in ["b", "d", "f"] {
            tx.get(key).await?;
        }
        Ok(())
    };
    assert_eq!(s.conflicts(ROWS, "bdf", reads).await?, "b");
    Ok(())
}

pub(crate) async fn a_range_over_own_writes_conflicts_between_them(s: Space) -> Outcome {
    let reads = async |tx: &Tx| {
        tx.set("d", "own");
        tx.clear_range("f", "h");
        tx.rows(RangeRequest::keys("b", "j")).await.map(drop)
    };
    assert_eq!(s.conflicts(ROWS, "abcdefghij", reads).await?, "bcehi");
    Ok(())
}

pub(crate) async fn a_set_after_the_read_does_not_take_its_conflict_back(s: Space) -> Outcome {
    let reads = async |tx: &Tx| {
        tx.get("b").await?;
        tx.set("b", "own");
        Ok(())
    };
    assert_eq!(s.conflicts(ROWS, "b", reads).await?, "b");
    Ok(())
}

pub(crate) async fn with_read_your_writes_disabled_no_read_sees_own_writes(s: Space) -> Outcome {
    s.put(&[("a", "1"), ("b", "1")]).await?;
    let tx = s.tx();
    tx.option(TransactionOption::ReadYourWritesDisable);
    tx.set("a", "own");
    tx.clear("b");
    tx.set("c", "own");
    assert_eq!((tx.get("a").await?, tx.get("b").await?, tx.get("c").await?), (some("1"), some("1"), None));
    assert_eq!((tx.peek("a").await?, tx.peek("c").await?), (some("1"), None));
    assert_eq!(tx.rows(RangeRequest::keys("a", "z")).await?, "a=1 b=1");
    tx.commit().await?;
    assert_eq!(s.contents().await?, "a=own c=own");
    Ok(())
}

pub(crate) async fn with_read_your_writes_disabled_reads_conflict_over_own_writes_too(s: Space) -> Outcome {
    let reads = async |tx: &Tx| {
        tx.option(TransactionOption::ReadYourWritesDisable);
        tx.set("b", "own");
        tx.get("b").await.map(drop)
    };
    assert_eq!(s.conflicts(ROWS, "ab", reads).await?, "b");
    Ok(())
}

pub(crate) async fn read_your_writes_is_disabled_before_the_first_write_or_2000(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "1");
    tx.option(TransactionOption::ReadYourWritesDisable);
    fails(tx.get("a").await, CLIENT_INVALID_OPERATION);
    Ok(())
}

pub(crate) async fn read_your_writes_is_disabled_before_the_first_read_or_2000(s: Space) -> Outcome {
    let tx = s.tx();
    tx.get("a").await?;
    tx.option(TransactionOption::ReadYourWritesDisable);
    fails(tx.get("a").await, CLIENT_INVALID_OPERATION);
    Ok(())
}

pub(crate) async fn many_own_writes_among_many_rows_merge_in_order(s: Space) -> Outcome {
    s.write(|tx| (0..100).filter(|n| n % 2 == 0).for_each(|n| tx.set(format!("k{n:02}"), "stored"))).await?;
    let tx = s.tx();
    let mut expected = Vec::new();
    for n in 0..100 {
        let key = format!("k{n:02}");
        match n % 5 {
            0 => tx.set(&key, "own"),
            1 => tx.clear(&key),
            _ => {}
        }
        match (n % 5, n % 2) {
            (0, _) => expected.push(format!("{key}=own")),
            (1, _) | (_, 1) => {}
            _ => expected.push(format!("{key}=stored")),
        }
    }
    assert_eq!(tx.rows(RangeRequest::keys("k", "l").limit(1000)).await?, expected.join(" "));
    expected.reverse();
    assert_eq!(tx.rows(RangeRequest::keys("k", "l").limit(1000).reverse()).await?, expected.join(" "));
    Ok(())
}
