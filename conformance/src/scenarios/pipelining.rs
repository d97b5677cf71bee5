//! Pipelining: a read is issued by its call.
//!
//! Source: `api-c.rst`, "Asynchronous calls"; `ReadYourWrites.actor.cpp`: a read sees the write map as of the
//! call, and `commit` waits for reads in progress.

use kv_api::error::NOT_COMMITTED;
use kv_api::{Counted, KeySelector, RangeRequest, Read};

use crate::expect::{fails, show, some};
use crate::{Outcome, Space};

pub(crate) async fn two_reads_before_an_await_are_one_round_trip(s: Space) -> Outcome {
    s.put(&[("a", "1"), ("b", "1"), ("c", "1")]).await?;
    let counted = Counted::new(s.database().clone());
    let s = s.on(counted.clone());
    let tx = s.tx();
    let (a, b) = (tx.get("a"), tx.get("b"));
    let range = tx.batch(&RangeRequest::keys("a", "z"), Read::Snapshot);
    a.await?;
    b.await?;
    range.await?;
    tx.get("c").await?;
    tx.get("d").await?;
    let counts = counted.take();
    assert_eq!((counts[0].reads, counts[0].round_trips, counts[0].kvs_read), (5, 3, 6));
    Ok(())
}

pub(crate) async fn a_get_sees_the_transaction_as_it_was_at_the_call(s: Space) -> Outcome {
    s.put(&[("a", "1"), ("b", "1")]).await?;
    let tx = s.tx();
    let (a, b, c) = (tx.get("a"), tx.peek("b"), tx.get("c"));
    tx.set("a", "2");
    tx.clear("b");
    tx.set("c", "2");
    assert_eq!((a.await?, b.await?, c.await?), (some("1"), some("1"), None));
    assert_eq!((tx.get("a").await?, tx.get("b").await?, tx.get("c").await?), (some("2"), None, some("2")));
    Ok(())
}

pub(crate) async fn a_range_sees_the_transaction_as_it_was_at_the_call(s: Space) -> Outcome {
    s.put(&[("a", "1"), ("b", "1")]).await?;
    let tx = s.tx();
    tx.set("c", "own");
    let range = tx.batch(&RangeRequest::keys("a", "z"), Read::Serializable);
    let reverse = tx.batch(&RangeRequest::keys("a", "z").reverse(), Read::Serializable);
    let key = tx.get_key(&KeySelector::last_less_than("z"), Read::Serializable);
    tx.clear_range("a", "z");
    tx.set("x", "2");
    assert_eq!(show(&range.await?.rows), "a=1 b=1 c=own");
    assert_eq!(show(&reverse.await?.rows), "c=own b=1 a=1");
    assert_eq!(&key.await?[..], b"c");
    Ok(())
}

pub(crate) async fn reads_issued_together_see_one_version(s: Space) -> Outcome {
    s.put(&[("a", "1"), ("b", "1")]).await?;
    let tx = s.tx();
    tx.read_version().await?;
    let (a, b) = (tx.get("a"), tx.get("b"));
    s.put(&[("a", "2"), ("b", "2")]).await?;
    let c = tx.get("a");
    assert_eq!((b.await?, a.await?, c.await?), (some("1"), some("1"), some("1")));
    Ok(())
}

pub(crate) async fn a_read_that_was_issued_and_not_awaited_conflicts(s: Space) -> Outcome {
    let tx = s.tx();
    tx.read_version().await?;
    let read = tx.get("a");
    s.put(&[("a", "1")]).await?;
    tx.set("b", "1");
    fails(tx.commit().await, NOT_COMMITTED);
    drop(read);
    Ok(())
}

pub(crate) async fn reads_may_be_awaited_in_any_order(s: Space) -> Outcome {
    s.write(|tx| (0..50).for_each(|n| tx.set(format!("k{n:02}"), n.to_string()))).await?;
    let tx = s.tx();
    let reads: Vec<_> = (0..50).map(|n| (n, tx.get(format!("k{n:02}")))).collect();
    for (n, read) in reads.into_iter().rev() {
        assert_eq!(read.await?, some(n.to_string()));
    }
    Ok(())
}

pub(crate) async fn a_read_may_be_awaited_on_another_thread(s: Space) -> Outcome {
    s.put(&[("a", "1")]).await?;
    let tx = s.tx();
    let read = tx.get("a");
    let value = std::thread::spawn(move || crate::runtime::block_on(read)).join();
    assert_eq!(value.ok(), Some(Ok(some("1"))));
    Ok(())
}

pub(crate) async fn one_transaction_is_read_by_several_threads_at_once(s: Space) -> Outcome {
    s.write(|tx| (0..50).for_each(|n| tx.set(format!("k{n:02}"), n.to_string()))).await?;
    let tx = s.tx();
    let counts = s.threads(4, |_, thread| {
        let tx = tx.clone();
        async move {
            for n in (0..50).filter(|n| n % 4 == thread) {
                assert_eq!(tx.get(format!("k{n:02}")).await?, some(n.to_string()));
                tx.set(format!("t{n:02}"), thread.to_string());
            }
            Ok(())
        }
    })?;
    assert_eq!(counts.len(), 4);
    tx.commit().await?;
    let rows = s.tx().batch(&RangeRequest::prefix(b"t"), Read::Snapshot).await?.rows;
    assert_eq!(rows.len(), 50);
    Ok(())
}
