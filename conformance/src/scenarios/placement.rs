//! Estimated sizes and split points.
//!
//! Source: `api-c.rst`, `fdb_transaction_get_estimated_range_size_bytes` and
//! `fdb_transaction_get_range_split_points`. FoundationDB samples: rows as large as these are always
//! in the sample.

use kv_api::error::KEY_OUTSIDE_LEGAL_RANGE;
use kv_api::{RangeRequest, Transaction};

use crate::expect::fails;
use crate::{Outcome, Space};

const ROW: usize = 100_000;

async fn fill(s: &Space, rows: usize) -> kv_api::Result<()> {
    let value = vec![b'v'; ROW.min(s.limits().value_bytes)];
    s.write(|tx| (0..rows).for_each(|n| tx.set(format!("k{n:02}"), &value))).await?;
    // An estimate has no version. Reading the rows first makes sure that the storage servers have them.
    let read = s.tx().rows(RangeRequest::keys("k", "l")).await?;
    assert!(read.len() > rows * value.len());
    Ok(())
}

pub(crate) async fn the_estimated_size_of_a_range_is_about_its_size(s: Space) -> Outcome {
    fill(&s, 20).await?;
    let tx = s.tx();
    let size = tx.raw.get_estimated_range_size(&s.key("k"), &s.key("l")).await?;
    let actual = 20 * ROW as u64;
    assert!((actual / 2..actual * 2).contains(&size), "{size} for {actual}");
    Ok(())
}

pub(crate) async fn the_estimated_size_of_a_part_is_no_more_than_that_of_the_whole(s: Space) -> Outcome {
    fill(&s, 20).await?;
    let tx = s.tx();
    let whole = tx.raw.get_estimated_range_size(&s.key("k"), &s.key("l")).await?;
    let part = tx.raw.get_estimated_range_size(&s.key("k05"), &s.key("k10")).await?;
    assert!(0 < part && part < whole, "{part} of {whole}");
    Ok(())
}

pub(crate) async fn an_empty_range_is_about_nothing(s: Space) -> Outcome {
    fill(&s, 5).await?;
    let tx = s.tx();
    let size = tx.raw.get_estimated_range_size(&s.key("a"), &s.key("b")).await?;
    assert!(size < ROW as u64, "{size}");
    Ok(())
}

pub(crate) async fn split_points_rise_from_begin_to_end(s: Space) -> Outcome {
    fill(&s, 20).await?;
    let tx = s.tx();
    for chunk in [2 * ROW as u64, 5 * ROW as u64, 1000 * ROW as u64] {
        let points = tx.raw.get_range_split_points(&s.key("k"), &s.key("l"), chunk).await?;
        assert_eq!((points.first(), points.last()), (Some(&s.key("k")), Some(&s.key("l"))));
        assert!(points.is_sorted_by(|a, b| a < b), "{points:?}");
    }
    Ok(())
}

pub(crate) async fn split_points_cut_a_large_range_and_leave_a_small_one_whole(s: Space) -> Outcome {
    fill(&s, 20).await?;
    let tx = s.tx();
    let cut = tx.raw.get_range_split_points(&s.key("k"), &s.key("l"), 5 * ROW as u64).await?;
    assert!((3..=12).contains(&cut.len()), "{} points", cut.len());
    let whole = tx.raw.get_range_split_points(&s.key("k"), &s.key("l"), 1000 * ROW as u64).await?;
    assert_eq!(whole.len(), 2);
    Ok(())
}

pub(crate) async fn split_points_beyond_the_keyspace_are_2004(s: Space) -> Outcome {
    let tx = s.tx();
    fails(tx.raw.get_range_split_points(&s.key("k"), b"\xff\0", 1000).await, KEY_OUTSIDE_LEGAL_RANGE);
    Ok(())
}

pub(crate) async fn estimates_add_no_conflict(s: Space) -> Outcome {
    let tx = s.tx();
    tx.read_version().await?;
    tx.raw.get_estimated_range_size(&s.key("a"), &s.key("z")).await?;
    tx.raw.get_range_split_points(&s.key("a"), &s.key("z"), 1000).await?;
    s.put(&[("b", "1")]).await?;
    tx.set("c", "1");
    tx.commit().await?;
    Ok(())
}
