//! Histories of real threads on the engine in memory have a serial order.

use conformance::serializability::{Workload, check, record};
use engine_mem::MemDatabase;

#[test]
fn histories_of_real_threads_are_strictly_serializable() {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64);
    println!("SEED={seed}");
    for (keys, operations) in [(2, 4), (6, 5), (30, 8)] {
        let workload = Workload { seed, keys, operations, ..Workload::default() };
        let database = MemDatabase::new();
        let history = record(&database, b"lists/", workload).unwrap();
        let committed = history
            .transactions
            .iter()
            .filter(|transaction| transaction.outcome == conformance::serializability::Outcome::Committed);
        assert!(committed.count() > 100, "so few that nothing is shown");
        if let Err(anomaly) = check(&history) {
            panic!("{workload:?}: {anomaly}");
        }
    }
}
