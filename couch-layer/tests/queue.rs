//! A queue of jobs in rows of the program's own: an order and its job are written together or not at all.
//!
//! A worker takes the oldest free job: it writes a *lease* into the job's row, the time until which only this worker may
//! have the job. It does the work outside of any transaction. Then one transaction removes the job and writes the result
//! into the order. If a worker dies, its lease runs out, and another worker takes the job. So each job is finished once.
//! The work itself may be done twice, by a worker that was too slow and by the next one; effects outside the store, such
//! as a mail, may happen twice.
//!
//! The time is a number that the caller passes, for example the seconds since 1970. Clocks of workers may differ: one
//! whose clock is fast takes a job too early, which costs work, but the row decides who finishes.

use std::pin::pin;

use couch_layer::engine_mem::MemDatabase;
use couch_layer::kv::{Bytes, Database, KeyValue, RangeRequest, Read, Transaction, TransactionExt};
use couch_layer::model::Error;
use couch_layer::{CreateOptions, Documents, Edit, Edits, ErrorKind, Layer, LayerOptions, NotFound};
use futures_util::TryStreamExt;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    item: String,
    parcel: Option<String>,
}

/// The number of the next job.
const NEXT: &[u8] = b"queue/next";
/// The jobs, in the order of their numbers.
const JOBS: &[u8] = b"queue/job/";
/// How long a worker may take, in seconds.
const LEASE: u64 = 60;

/// A job. Its row is the time at which its lease ends, and the id of its order.
struct Job {
    key: Bytes,
    until: u64,
    order: String,
}

impl Job {
    fn read(row: &KeyValue) -> Option<Job> {
        let (until, order) = row.value.split_first_chunk()?;
        let order = String::from_utf8(order.to_vec()).ok()?;
        Some(Job { key: row.key.clone(), until: u64::from_be_bytes(*until), order })
    }

    fn row(&self) -> Vec<u8> {
        [self.until.to_be_bytes().as_slice(), self.order.as_bytes()].concat()
    }
}

/// Writes an order and its job, or neither.
async fn place<D: Database>(orders: &Documents<D>, id: &str, item: &str) -> Result<(), Error> {
    let place = async |edits: Edits<D>| {
        let transaction = edits.transaction();
        let next = transaction.get(NEXT, Read::Serializable).await?;
        let number = next.and_then(|row| row.first_chunk().copied()).map_or(0, u64::from_be_bytes);
        transaction.set(NEXT, &(number + 1).to_be_bytes());
        // The job is free: its lease ended at 0.
        let job = Job { key: [JOBS, &number.to_be_bytes()].concat().into(), until: 0, order: id.into() };
        transaction.set(&job.key, job.row());
        edits.put(orders, Edit::of_value(id, &Order { item: item.into(), parcel: None })?)
    };
    orders.layer().transact(place).await.map(drop)
}

/// Takes the oldest job that is free.
async fn take<D: Database>(orders: &Documents<D>, now: u64) -> Result<Option<Job>, Error> {
    let take = async |edits: Edits<D>| {
        let transaction = edits.transaction();
        // A snapshot read: changes of other jobs do not conflict.
        let mut rows = pin!(transaction.stream(RangeRequest::prefix(JOBS), Read::Snapshot));
        while let Some(rows) = rows.try_next().await? {
            let free = rows.iter().filter_map(Job::read).find(|job| job.until <= now);
            let Some(mut job) = free else { continue };
            // Reading this row serializably makes it a conflict: if two workers lease the same job, one retries and
            // takes the next.
            transaction.get(&job.key, Read::Serializable).await?;
            job.until = now + LEASE;
            transaction.set(&job.key, job.row());
            return Ok(Some(job));
        }
        Ok::<_, Error>(None)
    };
    Ok(orders.layer().transact(take).await?.0)
}

/// Removes a job and writes its result. False, and writes nothing, if the worker has lost the job.
async fn finish<D: Database>(orders: &Documents<D>, job: &Job, parcel: &str) -> Result<bool, Error> {
    let finish = async |edits: Edits<D>| {
        // A lease begins after the previous one has ended, so the ends of all leases of a job differ.
        let row = edits.transaction().get(&job.key, Read::Serializable).await?;
        if row.is_none_or(|row| row != job.row()) {
            return Ok(false);
        }
        edits.transaction().clear(&job.key);
        match edits.get(orders, &job.order).await {
            Ok(document) => {
                let order = Order { parcel: Some(parcel.into()), ..document.value()? };
                edits.put(orders, Edit::of_value(&job.order, &order)?.over(document.rev))?;
            }
            // An order that was deleted needs no parcel.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound(NotFound::Missing | NotFound::Deleted)) => {}
            Err(error) => return Err(error),
        }
        Ok(true)
    };
    Ok(orders.layer().transact(finish).await?.0)
}

/// A worker: does jobs until none is free. The numbers of those that it took and that it finished.
async fn work<D: Database>(orders: Documents<D>, now: u64) -> Result<(usize, usize), Error> {
    let (mut taken, mut finished) = (0, 0);
    while let Some(job) = take(&orders, now).await? {
        taken += 1;
        // The work. A program with a clock reads the time again for each job.
        let parcel = format!("parcel of {}", job.order);
        finished += usize::from(finish(&orders, &job, &parcel).await?);
    }
    Ok((taken, finished))
}

#[test]
fn each_job_is_finished_once() -> Result<(), Box<dyn std::error::Error>> {
    couch_layer::block_on(async {
        let options = LayerOptions { prefix: "docs/".into(), ..LayerOptions::default() };
        let layer = Layer::open(MemDatabase::new(), options).await?;
        let orders = layer.create_database("orders", CreateOptions::default()).await?;

        // The second order is refused, and with it its job.
        place(&orders, "order-1", "bread").await?;
        assert_eq!(place(&orders, "order-1", "salt").await.unwrap_err().status(), 409);

        // A worker takes the job and dies. No other worker gets it before the lease ends.
        let dead = take(&orders, 0).await?.expect("a free job");
        assert!(take(&orders, LEASE - 1).await?.is_none());
        let job = take(&orders, LEASE).await?.expect("the job of the dead worker");
        // The first worker was only slow. It lost the job, and changes nothing.
        assert!(!finish(&orders, &dead, "late").await?);
        assert!(finish(&orders, &job, "in time").await?);
        // A finished job cannot be finished again, by either of them.
        assert!(!finish(&orders, &dead, "late").await? && !finish(&orders, &job, "twice").await?);
        let order = orders.of::<Order>().get("order-1").await?;
        assert_eq!((order.rev.position(), order.value.parcel.as_deref()), (2, Some("in time")));

        // 30 jobs, a worker that takes ten of them and dies, and four workers at once.
        for number in 10..40 {
            place(&orders, &format!("order-{number}"), "bread").await?;
        }
        for number in 10..20 {
            let job = take(&orders, 100).await?.expect("a free job");
            // The oldest one comes first.
            assert_eq!(job.order, format!("order-{number}"));
        }
        for (now, expected) in [(101, 20), (100 + LEASE, 10), (1_000, 0)] {
            let workers: Vec<_> = (0..4).map(|_| tokio::spawn(work(orders.clone(), now))).collect();
            let mut sums = (0, 0);
            for worker in workers {
                let (taken, finished) = worker.await??;
                sums = (sums.0 + taken, sums.1 + finished);
            }
            // No two workers took the same job, and each job was finished.
            assert_eq!(sums, (expected, expected));
        }
        for number in 10..40 {
            // The second revision: its parcel was written once.
            let order = orders.of::<Order>().get(&format!("order-{number}")).await?;
            assert_eq!((order.rev.position(), order.value.parcel.is_some()), (2, true));
        }
        Ok(())
    })
}
