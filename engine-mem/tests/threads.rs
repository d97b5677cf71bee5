//! Many threads on one database in memory.

use futures_executor::block_on;
use kv_api::{Database, DatabaseExt, Error, MutationType, Read, Transaction};

use engine_mem::MemDatabase;

#[test]
fn concurrent_counters_lose_nothing() {
    let db = MemDatabase::new();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let step = |tx: <MemDatabase as Database>::Transaction, _| async move {
                        let count = tx.get(b"read", Read::Serializable).await?.map_or(0, |value| value.len());
                        tx.set(b"read", vec![0; count + 1]);
                        tx.atomic_op(MutationType::Add, b"added", &1u32.to_le_bytes());
                        Ok::<_, Error>(())
                    };
                    block_on(db.run(step)).unwrap();
                }
            });
        }
    });
    let tx = db.begin().unwrap();
    assert_eq!(block_on(tx.get(b"read", Read::Serializable)).unwrap().unwrap().len(), 800);
    assert_eq!(block_on(tx.get(b"added", Read::Serializable)).unwrap().unwrap(), 800u32.to_le_bytes()[..]);
    db.close().unwrap();
    assert_eq!(db.begin().unwrap_err().code(), 1043);
}
