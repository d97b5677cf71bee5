//! FoundationDB's users expect of a layer: no hot key, a number of watches that grows with databases instead of
//! clients, and transactions far below the limits.

mod support;

use std::time::Duration;

use engine_fdb::foundationdb::options::DatabaseOption;
use kv_api::{Counted, Database};
use model::{CreateOptions, Edit, JsonText, Layer, LayerOptions, Seq, WriteMode};

use support::{Subspace, cluster, own_handle};

async fn layer<D: Database>(engine: D, subspace: &Subspace) -> Layer<D> {
    let options = LayerOptions { prefix: subspace.prefix().clone(), ..LayerOptions::default() };
    Layer::open(engine, options).await.unwrap()
}

fn body(n: usize) -> JsonText {
    JsonText::parse(format!(r#"{{"n":{n},"tags":["a","b"]}}"#).as_bytes()).unwrap()
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap().block_on(future)
}

#[test]
fn writers_of_different_documents_never_conflict() {
    const WRITERS: usize = 64;
    const EDITS: usize = 20;
    let database = match cluster() {
        Ok(database) => database,
        Err(missing) => return missing.skip("conflicts on a cluster"),
    };
    let subspace = Subspace::new(&database);
    block_on(async {
        // A refused transaction commits again, so equal numbers of commits and writes mean no conflict. Sweeps of
        // abandoned uploads, one for each thousand writes, write nothing here.
        let counted = Counted::new(database.clone());
        let documents = layer(counted.clone(), &subspace).await;
        let documents = documents.create_database("db", CreateOptions::default()).await.unwrap();
        counted.take();
        let writers = (0..WRITERS).map(|writer| {
            let documents = documents.clone();
            tokio::spawn(async move {
                let id = format!("doc-{writer}");
                let mut rev = documents.put(Edit::new(&id, body(0))).await.unwrap();
                for n in 1..EDITS {
                    rev = documents.put(Edit::new(&id, body(n)).over(rev)).await.unwrap();
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
        let written = counted.take().into_iter().filter(|counts| counts.bytes_written > 0);
        let commits: u64 = written.map(|counts| counts.commits).sum();
        println!("{} writes, {commits} commits", WRITERS * EDITS);
        assert_eq!(commits, (WRITERS * EDITS) as u64);
        assert_eq!(documents.info().await.unwrap().doc_count, WRITERS as u64);
    });
}

#[test]
fn any_number_of_waiting_feeds_take_one_watch_for_each_database() {
    const DATABASES: usize = 3;
    const WAITERS: usize = 1_000;
    // A handle of its own, which allows exactly as many watches as there are databases.
    let database = match cluster() {
        Ok(database) => own_handle(&database),
        Err(missing) => return missing.skip("watches on a cluster"),
    };
    block_on(async {
        database.native().set_option(DatabaseOption::MaxWatches(DATABASES as i32)).unwrap();
        let subspace = Subspace::new(&database);
        let layer = layer(database, &subspace).await;
        for round in 0..3 {
            let mut waiters = Vec::new();
            let mut databases = Vec::new();
            for number in 0..DATABASES {
                let name = format!("db-{round}-{number}");
                let documents = layer.create_database(&name, CreateOptions::default()).await.unwrap();
                for _ in 0..WAITERS {
                    let mut watcher = documents.watch_changes(Seq::ZERO);
                    waiters.push(tokio::spawn(async move { watcher.changed().await }));
                }
                databases.push(documents);
            }
            // Long enough for each waiter to fail with 1032, if there were too many watches.
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "nothing has changed");
            for documents in &databases {
                documents.put(Edit::new("a", body(round))).await.unwrap();
            }
            for waiter in waiters {
                let changed = tokio::time::timeout(Duration::from_secs(60), waiter).await.expect("a wake-up");
                changed.unwrap().expect("no 1032: too many watches");
            }
        }
    });
}

#[test]
fn large_batches_stay_far_from_the_limits() {
    let database = match cluster() {
        Ok(database) => database,
        Err(missing) => return missing.skip("large batches on a cluster"),
    };
    let subspace = Subspace::new(&database);
    block_on(async {
        let counted = Counted::new(database.clone());
        let documents = layer(counted.clone(), &subspace).await;
        let documents = documents.create_database("db", CreateOptions::default()).await.unwrap();
        counted.take();
        let text = "x".repeat(5_000);
        let edits = (0..4_000).map(|n| {
            let json = format!(r#"{{"n":{n},"text":"{text}"}}"#);
            Edit::new(format!("doc-{n:05}"), JsonText::parse(json.as_bytes()).unwrap())
        });
        for result in documents.write(edits.collect(), WriteMode::Interactive).await.unwrap() {
            result.unwrap();
        }
        let counts = counted.take();
        let most = counts.iter().map(|counts| counts.bytes_written).max().unwrap();
        let again = counts.iter().filter(|counts| counts.commits > 1).count();
        println!("20 MB in {} transactions, the largest of {most} bytes", counts.len());
        assert!(most < 5_000_000, "far from 10 MB: {most}");
        assert_eq!(again, 0, "none was begun again");
        assert_eq!(documents.info().await.unwrap().doc_count, 4_000);
    });
}
