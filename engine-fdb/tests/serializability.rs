//! Histories of real threads on a cluster have a serial order.

mod support;

use conformance::serializability::{Outcome, Workload, check, record};

use support::{Subspace, cluster, random};

#[test]
fn histories_of_real_threads_are_strictly_serializable() {
    let database = match cluster() {
        Ok(database) => database,
        Err(missing) => return missing.skip("serializability on a cluster"),
    };
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(random);
    println!("SEED={seed}");
    for (keys, operations) in [(2, 4), (6, 5), (30, 8)] {
        let subspace = Subspace::new(&database);
        let workload = Workload { seed, keys, operations, ..Workload::default() };
        let history = record(&database, subspace.prefix(), workload).unwrap();
        let committed = history.transactions.iter().filter(|one| one.outcome == Outcome::Committed).count();
        println!("{keys} keys: {committed} of {} committed", history.transactions.len());
        assert!(committed > 100, "so few that nothing is shown");
        if let Err(anomaly) = check(&history) {
            panic!("{workload:?}: {anomaly}");
        }
    }
}
