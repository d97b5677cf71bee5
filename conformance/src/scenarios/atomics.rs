//! The atomic operations, as tables: stored value, operand, result.
//!
//! Each row is tested three ways: committed blindly over a stored value, read back in the transaction over a
//! stored value, and over a value that the transaction itself set or cleared.
//!
//! Source: `Atomic.h`, with `MinV2` and `AndV2`, as `ReadYourWrites.actor.cpp` chooses them.

use kv_api::MutationType::{
    self, Add, AppendIfFits, BitAnd, BitOr, BitXor, ByteMax, ByteMin, CompareAndClear, Max, Min,
};
use kv_api::error::NOT_COMMITTED;

use crate::expect::{fails, some};
use crate::{Outcome, Space};

type Case = (Option<&'static [u8]>, &'static [u8], Option<&'static [u8]>);

async fn table(s: &Space, mutation: MutationType, rows: &[Case]) -> Outcome {
    for &(stored, operand, result) in rows {
        let row = format!("{mutation:?} of {operand:?} on {stored:?}");
        let result = result.map(bytes::Bytes::from_static);
        s.write(|tx| match stored {
            Some(value) => tx.set("k", value),
            None => tx.clear("k"),
        })
        .await?;

        let tx = s.tx();
        tx.atomic(mutation, "k", operand);
        assert_eq!(tx.get("k").await?, result, "read back: {row}");
        assert_eq!(tx.peek("k").await?, result, "read back as a snapshot: {row}");

        let tx = s.tx();
        match stored {
            Some(value) => tx.set("own", value),
            None => tx.clear("own"),
        }
        tx.atomic(mutation, "own", operand);
        assert_eq!(tx.get("own").await?, result, "over an own write: {row}");
        tx.commit().await?;
        assert_eq!(s.get("own").await?, result, "over an own write, committed: {row}");

        s.write(|tx| tx.atomic(mutation, "k", operand)).await?;
        assert_eq!(s.get("k").await?, result, "committed: {row}");
    }
    Ok(())
}

pub(crate) async fn add_is_little_endian_and_carries(s: Space) -> Outcome {
    table(
        &s,
        Add,
        &[
            (Some(&[1]), &[2], Some(&[3])),
            (Some(&[0xff, 0]), &[1, 0], Some(&[0, 1])),
            (Some(&[0xff, 0xff, 0]), &[1, 0, 0], Some(&[0, 0, 1])),
            (Some(&[1, 0, 0, 0, 0, 0, 0, 0]), &[0xff; 8], Some(&[0; 8])),
        ],
    )
    .await
}

pub(crate) async fn add_wraps(s: Space) -> Outcome {
    table(&s, Add, &[(Some(&[0xff]), &[1], Some(&[0])), (Some(&[0xff, 0xff]), &[2, 0], Some(&[1, 0]))]).await
}

pub(crate) async fn add_extends_or_truncates_to_the_operand(s: Space) -> Outcome {
    table(
        &s,
        Add,
        &[
            (Some(&[0xff]), &[1, 0, 0], Some(&[0, 1, 0])),
            (Some(&[1, 2, 3]), &[1], Some(&[2])),
            (Some(&[0xff, 7]), &[1], Some(&[0])),
        ],
    )
    .await
}

pub(crate) async fn add_on_nothing_stores_the_operand(s: Space) -> Outcome {
    table(&s, Add, &[(None, &[1, 2], Some(&[1, 2])), (Some(&[]), &[1, 2], Some(&[1, 2])), (None, &[], Some(&[]))]).await
}

pub(crate) async fn add_of_an_empty_operand_leaves_an_empty_value(s: Space) -> Outcome {
    table(&s, Add, &[(Some(&[1, 2]), &[], Some(&[]))]).await
}

pub(crate) async fn bit_and_pads_with_zeros_and_truncates(s: Space) -> Outcome {
    table(
        &s,
        BitAnd,
        &[
            (Some(&[0b1100]), &[0b1010], Some(&[0b1000])),
            (Some(&[0xff]), &[0xff, 0xff], Some(&[0xff, 0])),
            (Some(&[0xff, 0xff]), &[0x0f], Some(&[0x0f])),
            (Some(&[1, 2]), &[], Some(&[])),
        ],
    )
    .await
}

/// Version 2 of the operation: an absent key takes the operand, an empty value does not.
pub(crate) async fn bit_and_tells_an_absent_key_from_an_empty_value(s: Space) -> Outcome {
    table(&s, BitAnd, &[(None, &[5, 6], Some(&[5, 6])), (Some(&[]), &[5, 6], Some(&[0, 0]))]).await
}

pub(crate) async fn bit_or_keeps_the_operand_beyond_the_value(s: Space) -> Outcome {
    table(
        &s,
        BitOr,
        &[
            (Some(&[0b1100]), &[0b1010], Some(&[0b1110])),
            (Some(&[0x01]), &[0x10, 0x20], Some(&[0x11, 0x20])),
            (Some(&[0x01, 0xff]), &[0x10], Some(&[0x11])),
            (None, &[5, 6], Some(&[5, 6])),
            (Some(&[]), &[5], Some(&[5])),
            (Some(&[1]), &[], Some(&[])),
        ],
    )
    .await
}

pub(crate) async fn bit_xor_keeps_the_operand_beyond_the_value(s: Space) -> Outcome {
    table(
        &s,
        BitXor,
        &[
            (Some(&[0b1100]), &[0b1010], Some(&[0b0110])),
            (Some(&[0x01]), &[0x01, 0x20], Some(&[0x00, 0x20])),
            (Some(&[0x01, 0xff]), &[0x10], Some(&[0x11])),
            (None, &[5, 6], Some(&[5, 6])),
            (Some(&[]), &[5], Some(&[5])),
            (Some(&[1]), &[], Some(&[])),
        ],
    )
    .await
}

pub(crate) async fn append_if_fits_appends(s: Space) -> Outcome {
    table(
        &s,
        AppendIfFits,
        &[
            (Some(b"ab"), b"cd", Some(b"abcd")),
            (None, b"cd", Some(b"cd")),
            (Some(b""), b"cd", Some(b"cd")),
            (Some(b"ab"), b"", Some(b"ab")),
            (None, b"", Some(b"")),
        ],
    )
    .await
}

pub(crate) async fn append_that_does_not_fit_changes_nothing(s: Space) -> Outcome {
    let limit = s.limits().value_bytes;
    let long = vec![b'v'; limit - 1];
    s.write(|tx| tx.set("k", &long)).await?;
    s.write(|tx| tx.atomic(AppendIfFits, "k", "ab")).await?;
    assert_eq!(s.get("k").await?.map(|value| value.len()), Some(limit - 1));
    s.write(|tx| tx.atomic(AppendIfFits, "k", "a")).await?;
    assert_eq!(s.get("k").await?.map(|value| value.len()), Some(limit));
    let tx = s.tx();
    tx.atomic(AppendIfFits, "k", "a");
    assert_eq!(tx.get("k").await?.map(|value| value.len()), Some(limit));
    Ok(())
}

pub(crate) async fn max_compares_little_endian_numbers(s: Space) -> Outcome {
    table(
        &s,
        Max,
        &[
            (Some(&[1, 2]), &[2, 1], Some(&[1, 2])),
            (Some(&[2, 1]), &[1, 2], Some(&[1, 2])),
            (Some(&[3]), &[3], Some(&[3])),
            (None, &[5], Some(&[5])),
            (None, &[0], Some(&[0])),
            (Some(&[]), &[5], Some(&[5])),
            (Some(&[1]), &[], Some(&[])),
        ],
    )
    .await
}

pub(crate) async fn max_extends_or_truncates_to_the_operand(s: Space) -> Outcome {
    table(
        &s,
        Max,
        &[
            (Some(&[9]), &[1, 0], Some(&[9, 0])),
            (Some(&[9]), &[1, 1], Some(&[1, 1])),
            (Some(&[9, 9]), &[1], Some(&[9])),
            (Some(&[1, 9]), &[2], Some(&[2])),
        ],
    )
    .await
}

pub(crate) async fn min_compares_little_endian_numbers(s: Space) -> Outcome {
    table(
        &s,
        Min,
        &[
            (Some(&[1, 2]), &[2, 1], Some(&[2, 1])),
            (Some(&[2, 1]), &[1, 2], Some(&[2, 1])),
            (Some(&[3]), &[3], Some(&[3])),
            (Some(&[1]), &[], Some(&[])),
        ],
    )
    .await
}

pub(crate) async fn min_extends_or_truncates_to_the_operand(s: Space) -> Outcome {
    table(
        &s,
        Min,
        &[
            (Some(&[9]), &[1, 1], Some(&[9, 0])),
            (Some(&[9]), &[1, 0], Some(&[1, 0])),
            (Some(&[1, 9]), &[2], Some(&[1])),
            (Some(&[9, 9]), &[2], Some(&[2])),
        ],
    )
    .await
}

/// Version 2 of the operation: an absent key takes the operand, an empty value counts as zero.
pub(crate) async fn min_tells_an_absent_key_from_an_empty_value(s: Space) -> Outcome {
    table(&s, Min, &[(None, &[5, 6], Some(&[5, 6])), (Some(&[]), &[5, 6], Some(&[0, 0]))]).await
}

pub(crate) async fn byte_min_takes_the_lesser_in_byte_order(s: Space) -> Outcome {
    table(
        &s,
        ByteMin,
        &[
            (Some(b"abc"), b"abd", Some(b"abc")),
            (Some(b"b"), b"abd", Some(b"abd")),
            (Some(b"ab"), b"abc", Some(b"ab")),
            (Some(b""), b"a", Some(b"")),
            (Some(b"a"), b"", Some(b"")),
            (None, b"z", Some(b"z")),
        ],
    )
    .await
}

pub(crate) async fn byte_max_takes_the_greater_in_byte_order(s: Space) -> Outcome {
    table(
        &s,
        ByteMax,
        &[
            (Some(b"abc"), b"abd", Some(b"abd")),
            (Some(b"b"), b"abd", Some(b"b")),
            (Some(b"ab"), b"abc", Some(b"abc")),
            (Some(b"a"), b"", Some(b"a")),
            (Some(b""), b"a", Some(b"a")),
            (None, b"", Some(b"")),
        ],
    )
    .await
}

pub(crate) async fn compare_and_clear_clears_an_equal_value_only(s: Space) -> Outcome {
    table(
        &s,
        CompareAndClear,
        &[
            (Some(b"abc"), b"abc", None),
            (Some(b"abc"), b"abd", Some(b"abc")),
            (Some(b"abc"), b"ab", Some(b"abc")),
            (Some(b""), b"", None),
            (Some(b"a"), b"", Some(b"a")),
            (None, b"a", None),
            (None, b"", None),
        ],
    )
    .await
}

pub(crate) async fn operands_of_different_lengths_on_one_key_apply_in_order(s: Space) -> Outcome {
    let operations = |tx: &crate::Tx| {
        tx.atomic(Add, "k", [1, 0, 0]);
        tx.atomic(Add, "k", [1, 0]);
        tx.atomic(Add, "k", [0xff, 0xff, 0]);
        tx.atomic(Add, "k", [1, 0, 1]);
    };
    // Over ff ff ff: 000000, 0100, 000001, 010002. Over an absent key: 010000, 0200, 010001, 020002.
    for (stored, expected) in [(Some([0xff; 3]), some([1, 0, 2])), (None, some([2, 0, 2]))] {
        s.write(|tx| match stored {
            Some(value) => tx.set("k", value),
            None => tx.clear("k"),
        })
        .await?;
        let tx = s.tx();
        operations(&tx);
        assert_eq!(tx.get("k").await?, expected);
        s.write(operations).await?;
        assert_eq!(s.get("k").await?, expected);
    }
    Ok(())
}

pub(crate) async fn concurrent_adds_all_count(s: Space) -> Outcome {
    s.threads(4, |s, _| async move {
        for _ in 0..25 {
            s.write(|tx| tx.atomic(Add, "n", 1_u32.to_le_bytes())).await?;
        }
        Ok(())
    })?;
    assert_eq!(s.get("n").await?, some(100_u32.to_le_bytes()));
    Ok(())
}

pub(crate) async fn an_atomic_operation_applies_at_the_commit_version(s: Space) -> Outcome {
    s.write(|tx| tx.set("n", [1])).await?;
    let tx = s.tx();
    tx.read_version().await?;
    tx.atomic(Add, "n", [1]);
    s.write(|tx| tx.set("n", [10])).await?;
    tx.commit().await?;
    assert_eq!(s.get("n").await?, some([11]));
    Ok(())
}

pub(crate) async fn an_atomic_operation_that_was_read_conflicts_at_the_commit(s: Space) -> Outcome {
    let tx = s.tx();
    tx.read_version().await?;
    tx.atomic(Add, "n", [1]);
    tx.get("n").await?;
    s.write(|tx| tx.set("n", [10])).await?;
    fails(tx.commit().await, NOT_COMMITTED);
    assert_eq!(s.get("n").await?, some([10]));
    Ok(())
}

pub(crate) async fn the_numbers_of_the_operations_are_those_of_foundationdb(_: Space) -> Outcome {
    let codes = MutationType::ALL.map(MutationType::code);
    assert_eq!(codes, [2, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 20]);
    for code in 0..=u8::MAX {
        assert_eq!(MutationType::from_code(code).map(MutationType::code), codes.contains(&code).then_some(code));
    }
    Ok(())
}
