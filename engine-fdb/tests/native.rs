//! Operations outside the trait, made on the crate's own objects in the same transaction.

mod support;

use std::time::{Duration, Instant};

use engine_fdb::foundationdb::options::{DatabaseOption, TransactionOption as NativeOption};
use engine_fdb::{FdbDatabase, OpenOptions};
use futures_executor::block_on;
use kv_api::{Database, Error, Read, Tag, Transaction, TransactionOption, error};

use support::{Subspace, cluster, own_handle};

#[test]
fn the_native_transaction_is_lent_and_is_the_same() {
    let database = match cluster() {
        Ok(database) => database,
        Err(missing) => return missing.skip("the native transaction"),
    };
    let subspace = Subspace::new(&database);
    let key = [subspace.prefix(), b"key".as_slice()].concat();
    block_on(async {
        let tx = database.begin()?;
        tx.set(&key, b"ours");
        let (own, addresses) = tx.native(|native| {
            // Not part of the trait.
            native.set_option(NativeOption::Tag("couch-layer".into())).map_err(|error| Error::new(error.code()))?;
            Ok::<_, Error>((native.get(&key, false), native.get_addresses_for_key(&key)))
        })??;
        let code = |error: engine_fdb::foundationdb::FdbError| Error::new(error.code());
        assert_eq!(own.await.map_err(code)?.as_deref(), Some(b"ours".as_slice()), "it sees what was written here");
        assert!(!addresses.await.map_err(code)?.is_empty(), "a key has a server");
        tx.native(|native| native.set(&key, b"native"))?;
        tx.commit().await?;
        assert_eq!(tx.native(|_| ()).unwrap_err().code(), error::USED_DURING_COMMIT);
        let read = database.begin()?.get(&key, Read::Serializable).await?;
        assert_eq!(read.as_deref(), Some(b"native".as_slice()), "it was committed with the rest");
        let cancelled = database.begin()?;
        cancelled.cancel();
        assert_eq!(cancelled.native(|_| ()).unwrap_err().code(), error::TRANSACTION_CANCELLED);
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn the_native_database_takes_the_options_of_the_database() {
    // A handle of its own: options belong to the handle, not to the cluster.
    let database = match cluster() {
        Ok(database) => own_handle(&database),
        Err(missing) => return missing.skip("the native database"),
    };
    let subspace = Subspace::new(&database);
    database.native().set_option(DatabaseOption::MaxWatches(2)).unwrap();
    let key = |n: u32| [subspace.prefix(), n.to_be_bytes().as_slice()].concat();
    block_on(async {
        let tx = database.begin()?;
        let _kept = [tx.watch(&key(1)), tx.watch(&key(2))];
        tx.get(&key(1), Read::Snapshot).await?;
        assert_eq!(tx.watch(&key(3)).await.unwrap_err().code(), error::TOO_MANY_WATCHES);
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn answers_that_there_is_no_room_end_no_work_in_the_background() {
    let database = match cluster() {
        Ok(database) => database,
        Err(missing) => return missing.skip("answers 1051"),
    };
    block_on(async {
        let transaction = database.in_background().begin()?;
        transaction.set_option(TransactionOption::RetryLimit(Some(1)));
        transaction.set_option(TransactionOption::Timeout(Duration::from_secs(1)));
        // Each waits for half a second at least.
        for _ in 0..3 {
            transaction.on_error(Error::new(error::BATCH_TRANSACTION_THROTTLED)).await?;
            transaction.get_read_version().await?;
        }
        transaction.on_error(Error::new(error::NOT_COMMITTED)).await?;
        let last = transaction.on_error(Error::new(error::NOT_COMMITTED)).await.unwrap_err();
        assert_eq!(last.code(), error::NOT_COMMITTED, "other errors count");

        let request = database.begin()?;
        request.set_option(TransactionOption::RetryLimit(Some(1)));
        request.on_error(Error::new(error::BATCH_TRANSACTION_THROTTLED)).await?;
        assert!(request.on_error(Error::new(error::BATCH_TRANSACTION_THROTTLED)).await.is_err());
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn a_transaction_of_many_tags_has_the_first_one() {
    let database = match cluster() {
        Ok(database) => database,
        Err(missing) => return missing.skip("tags"),
    };
    block_on(async {
        let options = OpenOptions {
            cluster_file: Some(database.cluster_file().to_owned()),
            tags: true,
            ..OpenOptions::default()
        };
        let transaction = FdbDatabase::open_with(options).await?.begin()?;
        for attempt in 0..3 {
            for n in 0..8 {
                transaction.set_option(TransactionOption::Tag(Tag::new(&format!("{attempt}-{n}")).unwrap()));
            }
            transaction.get_read_version().await?;
            match attempt {
                0 => transaction.on_error(Error::new(error::NOT_COMMITTED)).await?,
                _ => transaction.reset(),
            }
        }
        Ok::<_, Error>(())
    })
    .unwrap();
}

/// Number of transactions that the cluster has started at batch priority, which it counts every five seconds.
async fn started_in_batch(database: &FdbDatabase) -> Result<u64, Error> {
    let status = database.begin()?.get(b"\xff\xff/status/json", Read::Snapshot).await?.expect("a status");
    let status = String::from_utf8(status.to_vec()).expect("JSON");
    let counter = status.split_once(r#""started_batch_priority":{"counter":"#).map(|(_, counter)| counter);
    let digits = counter.and_then(|counter| counter.split_once(',')).map_or("0", |(digits, _)| digits);
    Ok(digits.parse().expect("a number"))
}

#[test]
fn the_cluster_starts_transactions_in_the_background_at_batch_priority() {
    const TRANSACTIONS: u64 = 100;
    let database = match cluster() {
        Ok(database) => database,
        Err(missing) => return missing.skip("batch priority"),
    };
    block_on(async {
        let before = started_in_batch(&database).await?;
        let background = database.in_background();
        let mut transactions = Vec::new();
        for _ in 0..TRANSACTIONS {
            transactions.push(background.begin()?);
        }
        // The first attempt, a repeated one, and one after a reset.
        for attempt in 0..3 {
            for transaction in &transactions {
                match attempt {
                    0 => {}
                    1 => transaction.on_error(Error::new(error::NOT_COMMITTED)).await?,
                    _ => transaction.reset(),
                }
                transaction.get_read_version().await?;
            }
        }
        let begun = Instant::now();
        while started_in_batch(&database).await? < before + 3 * TRANSACTIONS {
            assert!(begun.elapsed() < Duration::from_secs(120), "the cluster has not started them all");
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok::<_, Error>(())
    })
    .unwrap();
}
