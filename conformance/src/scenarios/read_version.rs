//! Read versions: fetched at the first read, readable, settable, and valid within the window only.
//!
//! Source: `NativeAPI.actor.cpp` (`setVersion`, `getReadVersion`), `api-c.rst`.

use kv_api::RangeRequest;
use kv_api::error::{FUTURE_VERSION, READ_VERSION_ALREADY_SET, TRANSACTION_TOO_OLD, VERSION_INVALID};

use crate::expect::{fails, some};
use crate::{Outcome, Space};

pub(crate) async fn the_read_version_is_fetched_at_the_first_read_not_at_the_beginning(s: Space) -> Outcome {
    let tx = s.tx();
    s.put(&[("a", "1")]).await?;
    assert_eq!(tx.get("a").await?, some("1"));
    Ok(())
}

pub(crate) async fn the_first_read_fixes_the_read_version(s: Space) -> Outcome {
    s.put(&[("a", "1"), ("b", "1")]).await?;
    let tx = s.tx();
    tx.get("a").await?;
    s.put(&[("a", "2"), ("b", "2")]).await?;
    assert_eq!((tx.get("a").await?, tx.get("b").await?), (some("1"), some("1")));
    assert_eq!(tx.rows(RangeRequest::keys("a", "c")).await?, "a=1 b=1");
    Ok(())
}

pub(crate) async fn a_get_of_an_own_write_fetches_no_read_version(s: Space) -> Outcome {
    s.put(&[("a", "1"), ("b", "1"), ("c", "1")]).await?;
    let tx = s.tx();
    tx.set("a", "own");
    tx.clear("b");
    assert_eq!((tx.get("a").await?, tx.get("b").await?, tx.peek("a").await?), (some("own"), None, some("own")));
    s.put(&[("c", "2")]).await?;
    // The first read from the database.
    assert_eq!(tx.get("c").await?, some("2"));
    tx.commit().await?;
    Ok(())
}

pub(crate) async fn the_read_version_can_be_asked_for_and_stays(s: Space) -> Outcome {
    let tx = s.tx();
    let version = tx.read_version().await?;
    s.put(&[("a", "1")]).await?;
    assert_eq!(tx.read_version().await?, version);
    assert_eq!(tx.get("a").await?, None);
    assert_eq!(tx.read_version().await?, version);
    Ok(())
}

pub(crate) async fn a_fresh_read_version_is_no_less_than_any_acknowledged_commit(s: Space) -> Outcome {
    for round in 0..20 {
        let committed = s.put(&[("a", &round.to_string())]).await?;
        let tx = s.tx();
        let version = tx.read_version().await?;
        assert!(version >= committed, "read version {version} after a commit at {committed}");
        assert_eq!(tx.get("a").await?, some(round.to_string()));
    }
    Ok(())
}

pub(crate) async fn a_commit_version_is_greater_than_its_read_version(s: Space) -> Outcome {
    let tx = s.tx();
    let read = tx.read_version().await?;
    tx.set("a", "1");
    tx.commit().await?;
    assert!(tx.committed_version()? > read);
    Ok(())
}

pub(crate) async fn commit_versions_of_successive_transactions_rise(s: Space) -> Outcome {
    let mut last = 0;
    for _ in 0..20 {
        let version = s.put(&[("a", "1")]).await?;
        assert!(version > last, "{version} after {last}");
        last = version;
    }
    Ok(())
}

pub(crate) async fn reads_at_a_set_version_see_that_version(s: Space) -> Outcome {
    let first = s.put(&[("a", "1"), ("b", "1")]).await?;
    let second = s
        .write(|tx| {
            tx.set("a", "2");
            tx.clear("b");
            tx.set("c", "2");
        })
        .await?;
    for (version, rows) in [(first, "a=1 b=1"), (second - 1, "a=1 b=1"), (second, "a=2 c=2")] {
        let tx = s.tx();
        tx.set_read_version(version);
        assert_eq!(tx.read_version().await?, version);
        assert_eq!(tx.rows(RangeRequest::keys("a", "z")).await?, rows, "at {version}");
        assert_eq!(
            tx.rows(RangeRequest::keys("a", "z").reverse().limit(1)).await?,
            rows[rows.len() - 3..],
            "at {version}"
        );
    }
    Ok(())
}

pub(crate) async fn a_version_before_a_commit_does_not_see_it(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let version = s.put(&[("a", "2")]).await?;
    let tx = s.tx();
    tx.set_read_version(version - 1);
    assert_eq!(tx.get("a").await?, some("1"));
    Ok(())
}

pub(crate) async fn writes_at_a_set_version_conflict_with_what_came_after_it(s: Space) -> Outcome {
    let version = s.put(&[("a", "1")]).await?;
    s.put(&[("a", "2")]).await?;
    let tx = s.tx();
    tx.set_read_version(version);
    assert_eq!(tx.get("a").await?, some("1"));
    tx.set("b", "from a");
    fails(tx.commit().await, kv_api::error::NOT_COMMITTED);
    Ok(())
}

pub(crate) async fn setting_the_read_version_twice_is_2010(s: Space) -> Outcome {
    let version = s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    tx.set_read_version(version);
    tx.set_read_version(version);
    fails(tx.get("a").await, READ_VERSION_ALREADY_SET);
    Ok(())
}

pub(crate) async fn setting_the_read_version_after_a_read_is_2010(s: Space) -> Outcome {
    let version = s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    tx.get("a").await?;
    tx.set_read_version(version);
    fails(tx.get("a").await, READ_VERSION_ALREADY_SET);
    Ok(())
}

pub(crate) async fn setting_the_read_version_after_asking_for_it_is_2010_at_the_commit(s: Space) -> Outcome {
    let tx = s.tx();
    let version = tx.read_version().await?;
    tx.set_read_version(version);
    tx.set("a", "1");
    fails(tx.commit().await, READ_VERSION_ALREADY_SET);
    assert_eq!(s.get("a").await?, None);
    Ok(())
}

pub(crate) async fn a_read_version_that_is_not_positive_is_2011(s: Space) -> Outcome {
    for version in [0, -1, i64::MIN] {
        let tx = s.tx();
        tx.set_read_version(version);
        fails(tx.get("a").await, VERSION_INVALID);
        fails(tx.commit().await, VERSION_INVALID);
    }
    Ok(())
}

pub(crate) async fn a_read_at_a_version_from_the_future_is_1009(s: Space) -> Outcome {
    let version = s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    tx.set_read_version(version + 1_000_000_000);
    fails(tx.get("a").await, FUTURE_VERSION);
    let tx = s.tx();
    tx.set_read_version(version + 1_000_000_000);
    fails(tx.rows(RangeRequest::keys("a", "b")).await, FUTURE_VERSION);
    Ok(())
}

pub(crate) async fn a_read_older_than_the_window_is_1007(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    assert_eq!(tx.get("a").await?, some("1"));
    s.outlive_the_window().await?;
    fails(tx.get("b").await, TRANSACTION_TOO_OLD);
    fails(tx.rows(RangeRequest::keys("a", "b")).await, TRANSACTION_TOO_OLD);
    Ok(())
}

pub(crate) async fn a_commit_of_reads_older_than_the_window_is_1007(s: Space) -> Outcome {
    let tx = s.tx();
    tx.get("a").await?;
    tx.set("b", "1");
    s.outlive_the_window().await?;
    fails(tx.commit().await, TRANSACTION_TOO_OLD);
    assert_eq!(s.get("b").await?, None);
    Ok(())
}

pub(crate) async fn a_version_set_to_one_that_the_window_has_left_is_1007(s: Space) -> Outcome {
    let version = s.put(&[("a", "1")]).await?;
    s.outlive_the_window().await?;
    let tx = s.tx();
    tx.set_read_version(version);
    fails(tx.get("a").await, TRANSACTION_TOO_OLD);
    Ok(())
}

pub(crate) async fn a_transaction_that_began_long_ago_and_read_nothing_is_not_too_old(s: Space) -> Outcome {
    let tx = s.tx();
    tx.set("a", "1");
    s.outlive_the_window().await?;
    tx.commit().await?;
    assert_eq!(s.get("a").await?, some("1"));
    Ok(())
}

pub(crate) async fn a_reset_takes_a_new_read_version(s: Space) -> Outcome {
    let tx = s.tx();
    assert_eq!(tx.get("a").await?, None);
    s.put(&[("a", "1")]).await?;
    tx.reset();
    assert_eq!(tx.get("a").await?, some("1"));
    Ok(())
}
