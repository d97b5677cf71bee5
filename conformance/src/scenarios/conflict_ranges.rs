//! Conflict ranges of reads, of writes, and added by hand.
//!
//! Each scenario tests which of a few keys, written by another transaction, make a transaction fail.
//! Source: `ReadYourWrites.actor.cpp` (`addConflictRange`, `updateConflictMap`), `WriteMap.cpp`.

use kv_api::{KeySelector, MutationType, RangeRequest, Read, TransactionOption};

use crate::{Keyspace, Outcome, Space, Tx};

const ROWS: &[(&str, &str)] = &[("b", "1"), ("c", "1"), ("d", "1"), ("e", "1")];

pub(crate) async fn a_get_conflicts_over_its_key_alone(s: Space) -> Outcome {
    assert_eq!(s.conflicts(ROWS, "abcde", async |tx| tx.get("c").await.map(drop)).await?, "c");
    assert_eq!(s.conflicts(&[], "abc", async |tx| tx.get("b").await.map(drop)).await?, "b");
    Ok(())
}

pub(crate) async fn a_range_read_to_its_end_conflicts_over_all_of_it(s: Space) -> Outcome {
    for request in [RangeRequest::keys("b", "g"), RangeRequest::keys("b", "g").reverse()] {
        let reads = async |tx: &Tx| tx.rows(request.clone()).await.map(drop);
        assert_eq!(s.conflicts(ROWS, "abcdefgh", reads).await?, "bcdef");
    }
    Ok(())
}

pub(crate) async fn an_empty_range_conflicts_over_all_of_it(s: Space) -> Outcome {
    for request in [RangeRequest::keys("b", "d"), RangeRequest::keys("b", "d").reverse()] {
        let reads = async |tx: &Tx| tx.rows(request.clone()).await.map(drop);
        assert_eq!(s.conflicts(&[], "abcde", reads).await?, "bc");
    }
    Ok(())
}

pub(crate) async fn stopped_range_conflicts_only_over_what_it_returned(s: Space) -> Outcome {
    let reads = async |tx: &Tx| {
        let batch = tx.batch(&RangeRequest::keys("a", "z").limit(2), Read::Serializable).await?;
        assert!(batch.more && batch.rows.len() == 2);
        Ok(())
    };
    assert_eq!(s.conflicts(ROWS, "abcdef", reads).await?, "abc");
    Ok(())
}

pub(crate) async fn stopped_reverse_range_conflicts_only_over_what_it_returned(s: Space) -> Outcome {
    let reads = async |tx: &Tx| tx.rows(RangeRequest::keys("a", "g").reverse().limit(2)).await.map(drop);
    assert_eq!(s.conflicts(ROWS, "abcdefg", reads).await?, "def");
    Ok(())
}

pub(crate) async fn a_range_stopped_at_its_own_begin_conflicts_over_that_key(s: Space) -> Outcome {
    let reads = async |tx: &Tx| tx.rows(RangeRequest::keys("b", "z").limit(1)).await.map(drop);
    assert_eq!(s.conflicts(ROWS, "abcd", reads).await?, "b");
    let reads = async |tx: &Tx| tx.rows(RangeRequest::keys("a", b"e\0".as_slice()).reverse().limit(1)).await.map(drop);
    assert_eq!(s.conflicts(ROWS, "cdef", reads).await?, "e");
    Ok(())
}

pub(crate) async fn a_range_stopped_by_bytes_conflicts_only_over_what_it_returned(s: Space) -> Outcome {
    let value = "v".repeat(1000);
    let rows: Vec<(&str, &str)> = ["b", "c", "d", "e"].into_iter().map(|key| (key, value.as_str())).collect();
    let reads = async |tx: &Tx| {
        let batch = tx.batch(&RangeRequest::keys("a", "z").target_bytes(1), Read::Serializable).await?;
        assert!(batch.more && batch.rows.len() == 1, "{} rows", batch.rows.len());
        Ok(())
    };
    assert_eq!(s.conflicts(&rows, "abcdef", reads).await?, "ab");
    Ok(())
}

/// When the last row reaches the limit, the engine does not know that the range has ended there.
pub(crate) async fn a_limit_reached_by_the_last_row_leaves_the_rest_free(s: Space) -> Outcome {
    let reads = async |tx: &Tx| tx.rows(RangeRequest::keys("a", "z").limit(4)).await.map(drop);
    assert_eq!(s.conflicts(ROWS, "aefg", reads).await?, "ae");
    Ok(())
}

pub(crate) async fn a_range_read_in_batches_conflicts_over_all_of_them(s: Space) -> Outcome {
    let reads = async |tx: &Tx| {
        let request = RangeRequest::keys("a", "z").limit(2);
        let first = tx.batch(&request, Read::Serializable).await?;
        let rest = RangeRequest::keys("a", "z").after(&first).map(|rest| rest.limit(1));
        tx.batch(&rest.unwrap_or(request), Read::Serializable).await.map(drop)
    };
    assert_eq!(s.conflicts(ROWS, "abcdef", reads).await?, "abcd");
    Ok(())
}

pub(crate) async fn a_key_selector_conflicts_over_the_way_to_the_key_it_found(s: Space) -> Outcome {
    let rows = &[("b", "1"), ("d", "1"), ("f", "1")];
    for (selector, conflicts) in [
        (KeySelector::first_greater_or_equal("c"), "cd"),
        (KeySelector::first_greater_or_equal("d"), "d"),
        (KeySelector::first_greater_than("b"), "cd"),
        (KeySelector::last_less_or_equal("d"), "d"),
        (KeySelector::last_less_or_equal("c"), "bc"),
        (KeySelector::last_less_than("d"), "bc"),
        (KeySelector::first_greater_or_equal("c").plus(1), "cdef"),
        (KeySelector::last_less_than("g").plus(-1), "def"),
    ] {
        let reads = async |tx: &Tx| tx.get_key(&selector, Read::Serializable).await.map(drop);
        assert_eq!(s.conflicts(rows, "abcdefg", reads).await?, conflicts, "{selector:?}");
    }
    Ok(())
}

pub(crate) async fn a_range_that_begins_before_its_key_conflicts_from_its_first_row(s: Space) -> Outcome {
    let rows = &[("b", "1"), ("d", "1"), ("f", "1")];
    let request =
        RangeRequest::selectors(KeySelector::last_less_or_equal("c"), KeySelector::first_greater_or_equal("e"));
    let reads = async |tx: &Tx| {
        assert_eq!(tx.rows(request.clone()).await?, "b=1 d=1");
        Ok(())
    };
    assert_eq!(s.conflicts(rows, "abcdefg", reads).await?, "bcd");
    Ok(())
}

/// Its end was resolved by reaching the end of the keyspace, so a key beyond its last row would be one of its
/// rows.
pub(crate) async fn a_stopped_reverse_range_conflicts_up_to_the_end_that_it_came_from(s: Space) -> Outcome {
    if s.keyspace() == Keyspace::Shared {
        // In a shared keyspace the keys of others determine the end.
        return Ok(());
    }
    let end = KeySelector::first_greater_or_equal("b").plus(9);
    let request = RangeRequest::selectors(KeySelector::first_greater_or_equal("a"), end).reverse().limit(1);
    let reads = async |tx: &Tx| {
        assert_eq!(tx.rows(request.clone()).await?, "c=1");
        Ok(())
    };
    assert_eq!(s.conflicts(&[("b", "1"), ("c", "1")], "abcd", reads).await?, "bcd");
    Ok(())
}

pub(crate) async fn a_set_conflicts_with_reads_of_its_key_alone(s: Space) -> Outcome {
    let writes = async |tx: &Tx| {
        tx.set("b", "2");
        Ok(())
    };
    assert_eq!(s.conflicts_of_writes(ROWS, "abcd", writes).await?, "b");
    Ok(())
}

pub(crate) async fn a_range_clear_conflicts_over_keys_that_do_not_exist(s: Space) -> Outcome {
    let writes = async |tx: &Tx| {
        tx.clear_range("b", "g");
        Ok(())
    };
    assert_eq!(s.conflicts_of_writes(&[("c", "1")], "abcdefgh", writes).await?, "bcdef");
    Ok(())
}

pub(crate) async fn a_clear_of_an_absent_key_conflicts_with_reads_of_it(s: Space) -> Outcome {
    let writes = async |tx: &Tx| {
        tx.clear("b");
        Ok(())
    };
    assert_eq!(s.conflicts_of_writes(&[], "abc", writes).await?, "b");
    Ok(())
}

pub(crate) async fn every_atomic_operation_conflicts_with_reads_of_its_key(s: Space) -> Outcome {
    for mutation in MutationType::ALL.into_iter().filter(|mutation| !mutation.is_versionstamped()) {
        let writes = async |tx: &Tx| {
            tx.atomic(mutation, "b", "1");
            Ok(())
        };
        assert_eq!(s.conflicts_of_writes(ROWS, "abc", writes).await?, "b", "{mutation:?}");
    }
    Ok(())
}

pub(crate) async fn a_read_range_by_hand_conflicts_like_a_read(s: Space) -> Outcome {
    let reads = async |tx: &Tx| {
        tx.read_conflict("b", "d");
        Ok(())
    };
    assert_eq!(s.conflicts(ROWS, "abcde", reads).await?, "bc");
    Ok(())
}

pub(crate) async fn a_write_range_by_hand_conflicts_like_a_write(s: Space) -> Outcome {
    let writes = async |tx: &Tx| {
        tx.write_conflict("b", "d");
        Ok(())
    };
    assert_eq!(s.conflicts_of_writes(ROWS, "abcde", writes).await?, "bc");
    assert_eq!(s.contents().await?, "b=1 c=1 d=1 e=1 ~own=");
    Ok(())
}

pub(crate) async fn a_write_range_by_hand_alone_gets_a_commit_version(s: Space) -> Outcome {
    let tx = s.tx();
    tx.write_conflict("a", "b");
    tx.commit().await?;
    assert!(tx.committed_version()? > 0);
    Ok(())
}

pub(crate) async fn a_read_range_by_hand_alone_is_read_only(s: Space) -> Outcome {
    let tx = s.tx();
    tx.read_version().await?;
    tx.read_conflict("a", "b");
    s.put(&[("a", "1")]).await?;
    tx.commit().await?;
    assert_eq!(tx.committed_version()?, -1);
    Ok(())
}

pub(crate) async fn an_empty_range_by_hand_conflicts_with_nothing(s: Space) -> Outcome {
    let reads = async |tx: &Tx| {
        tx.read_conflict("b", "b");
        tx.write_conflict("b", "b");
        Ok(())
    };
    assert_eq!(s.conflicts(ROWS, "abc", reads).await?, "");
    Ok(())
}

/// Own writes are taken out of a range added by hand, as out of a read.
pub(crate) async fn a_read_range_by_hand_leaves_out_own_writes_made_before_it(s: Space) -> Outcome {
    let reads = async |tx: &Tx| {
        tx.set("c", "own");
        tx.read_conflict("b", "e");
        Ok(())
    };
    assert_eq!(s.conflicts(ROWS, "abcde", reads).await?, "bd");
    Ok(())
}

pub(crate) async fn a_read_range_by_hand_keeps_what_is_written_after_it(s: Space) -> Outcome {
    let reads = async |tx: &Tx| {
        tx.read_conflict("b", "e");
        tx.set("c", "own");
        Ok(())
    };
    assert_eq!(s.conflicts(ROWS, "abcde", reads).await?, "bcd");
    Ok(())
}

pub(crate) async fn the_next_write_without_conflict_range_conflicts_with_no_one(s: Space) -> Outcome {
    let writes = async |tx: &Tx| {
        tx.option(TransactionOption::NextWriteNoWriteConflictRange);
        tx.set("b", "2");
        Ok(())
    };
    assert_eq!(s.conflicts_of_writes(ROWS, "abc", writes).await?, "");
    assert_eq!(s.get("b").await?, crate::expect::some("2"));
    Ok(())
}

pub(crate) async fn only_the_next_write_is_without_conflict_range(s: Space) -> Outcome {
    let writes = async |tx: &Tx| {
        tx.option(TransactionOption::NextWriteNoWriteConflictRange);
        tx.set("b", "2");
        tx.set("c", "2");
        Ok(())
    };
    assert_eq!(s.conflicts_of_writes(ROWS, "abcd", writes).await?, "c");
    Ok(())
}

pub(crate) async fn clears_and_atomic_operations_take_the_option_too(s: Space) -> Outcome {
    let writes = async |tx: &Tx| {
        tx.option(TransactionOption::NextWriteNoWriteConflictRange);
        tx.clear("b");
        tx.option(TransactionOption::NextWriteNoWriteConflictRange);
        tx.clear_range("c", "e");
        tx.option(TransactionOption::NextWriteNoWriteConflictRange);
        tx.atomic(MutationType::Add, "f", [1]);
        Ok(())
    };
    assert_eq!(s.conflicts_of_writes(ROWS, "abcdefg", writes).await?, "");
    Ok(())
}

pub(crate) async fn a_write_without_conflict_range_keeps_the_range_of_an_earlier_write(s: Space) -> Outcome {
    let writes = async |tx: &Tx| {
        tx.set("b", "2");
        tx.option(TransactionOption::NextWriteNoWriteConflictRange);
        tx.set("b", "3");
        Ok(())
    };
    assert_eq!(s.conflicts_of_writes(ROWS, "abc", writes).await?, "b");
    Ok(())
}
