//! A fork that was away for longer than the grace period returns with files whose chunks are gone. This is
//! detected, and the chunks are restored from the fork's own copy, provided this happens before the fork
//! replicates the removal.
//!
//! A fork that has also collected while it was away removes chunks that others still use. They are restored from a
//! replica that has not replicated the removal yet.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use chunks::store::{DocumentStore, Edit, IdRange};
use serde_json::Value;

use super::{EPISODES, Fault, GRACE, Play, REPLICAS, World, play_each, with_more};
use crate::support::replicate;

/// Seeds that are always played, including all that failed once.
const SEEDS: &[u64] = &[1, 2, 3, 4, 5, 20054, 500615, 500839];
/// Index of the replica that leaves.
const FORK: usize = REPLICAS - 1;

/// All runs together must miss more chunks than this to prove anything about repairs.
const ENOUGH: usize = 20;

/// Result of a play with an old fork.
struct Ended {
    /// Number of chunks that were missing and repaired.
    missing: usize,
    trace: u64,
}

impl Play {
    async fn run_with_an_old_fork(&self) -> Result<Ended, String> {
        for _ in 0..EPISODES / 3 {
            self.episode().await?;
            self.meet().await;
        }
        // The fork and the others continue separately.
        let is_collecting = self.stage.roll(3) == 0;
        let mut away = 0;
        while away < 2 * GRACE {
            if self.stage.roll(2) == 0 {
                self.tidy_up().await;
            }
            for present in [(0..FORK).collect::<Vec<_>>(), vec![FORK]] {
                self.collects.store(is_collecting || present != [FORK], Ordering::Relaxed);
                // The others switch to other texts.
                self.first_piece.store(if present == [FORK] { 0 } else { 100 }, Ordering::Relaxed);
                *self.present.lock().unwrap() = present;
                self.episode().await?;
                self.meet_without_the_fork().await;
            }
            for replica in 0..REPLICAS {
                self.check(replica).await.map_err(|why| format!("while it is away: {why}"))?;
            }
            let pause = GRACE / 8 + self.stage.roll(GRACE / 2);
            self.stage.pass(pause);
            away += pause;
        }
        self.collects.store(true, Ordering::Relaxed);
        *self.present.lock().unwrap() = (0..REPLICAS).collect();

        // The fork returns. `verify` must name exactly the missing chunks.
        replicate(&*self.replicas[FORK], &*self.replicas[0]).await;
        let server = self.chunks(0, None, Fault::None);
        let verified = server.verify(|_| ()).await.map_err(|error| error.to_string())?;
        let missing: Vec<String> = verified.missing.into_keys().collect();
        let (referenced, unreadable) = self.unreadable(0).await;
        if unreadable != missing.iter().cloned().collect() {
            return Err(format!("{unreadable:?} cannot be read, and {missing:?} are said to be missing"));
        }
        if referenced.is_empty() {
            return Err("nothing is left to look at".into());
        }
        // Its own copy has them.
        let (mut still, mut brought) = (missing.clone(), 0);
        for source in [FORK, 1] {
            if source != FORK && !is_collecting && !still.is_empty() {
                return Err(format!("{still:?} are missing in the fork too"));
            }
            let source = self.chunks(source, None, Fault::None);
            let (receipt, left) = server.repair(&still, &source).await.map_err(|error| error.to_string())?;
            brought += receipt.new + receipt.known;
            still = left;
        }
        if brought != missing.len() as u64 || !still.is_empty() {
            return Err(format!("{brought} of {missing:?} were brought, and {still:?} are left"));
        }
        self.check(0).await.map_err(|why| format!("after the repair: {why}"))?;
        self.meet().await;
        for replica in 0..REPLICAS {
            self.check(replica).await.map_err(|why| format!("after all have met: {why}"))?;
        }
        self.quiet().await?;
        Ok(Ended { missing: missing.len(), trace: self.stage.trace() })
    }

    /// A client of the server deletes every file, so that only the fork refers to its chunks.
    async fn tidy_up(&self) {
        let store = &self.replicas[0];
        let ids: Vec<String> =
            store.list(&IdRange::prefix("file-")).await.unwrap().rows.into_iter().map(|row| row.id).collect();
        for (id, leaves) in ids.iter().zip(store.leaves(&ids, false).await.unwrap()) {
            for leaf in leaves.iter().filter(|leaf| !leaf.deleted) {
                store.write(vec![Edit::delete(id, &leaf.rev)]).await.unwrap().remove(0).unwrap();
            }
        }
    }

    async fn meet_without_the_fork(&self) {
        for replica in 1..FORK {
            for _ in 0..2 {
                replicate(&*self.replicas[replica], &*self.replicas[0]).await;
                replicate(&*self.replicas[0], &*self.replicas[replica]).await;
            }
        }
    }

    /// The chunks that files of a replica refer to, and those of them that no data document has. Reads the
    /// documents directly, without this crate.
    async fn unreadable(&self, replica: usize) -> (BTreeSet<String>, BTreeSet<String>) {
        let store: &dyn DocumentStore = &*self.replicas[replica];
        let (mut referenced, mut held) = (BTreeSet::new(), BTreeSet::new());
        for (prefix, is_data) in [("file-", false), ("dat:", true)] {
            let ids: Vec<String> =
                store.list(&IdRange::prefix(prefix)).await.unwrap().rows.into_iter().map(|row| row.id).collect();
            for leaf in store.leaves(&ids, false).await.unwrap().iter().flatten().filter(|leaf| !leaf.deleted) {
                if is_data {
                    held.extend(leaf.body["chunks"].as_object().unwrap().keys().cloned());
                } else {
                    let children = leaf.body["children"].as_array().unwrap().iter();
                    referenced.extend(children.filter_map(Value::as_str).map(str::to_owned));
                }
            }
        }
        let unreadable = referenced.difference(&held).cloned().collect();
        (referenced, unreadable)
    }
}

async fn play_old_fork(world: &World, seed: u64) -> Result<Ended, String> {
    Play::new(world, seed, Fault::None).await.run_with_an_old_fork().await
}

#[test]
fn forks_older_than_the_grace_are_detected_and_repaired() {
    let play_all = |seeds: &[u64]| play_each("old forks", seeds, async |world, seed| play_old_fork(world, seed).await);
    let mut seeds = with_more(SEEDS);
    seeds.push(SEEDS[0]);
    let played = play_all(&seeds);
    let (first, again) = (&played[0], &played[played.len() - 1]);
    assert_eq!(again.trace, first.trace, "one seed is one play");
    let mut missing: usize = played[..SEEDS.len()].iter().map(|ended| ended.missing).sum();
    // The number of missing chunks of a seed changes with each call of the store. Run more seeds until it is enough.
    for seed in (6..36).step_by(2) {
        if missing > ENOUGH {
            break;
        }
        missing += play_all(&[seed, seed + 1]).iter().map(|ended| ended.missing).sum::<usize>();
    }
    println!("{missing} chunks were missing");
    assert!(missing > ENOUGH, "only {missing} chunks were ever missing: the plays are too tame");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_fork_over_http_is_repaired() {
    let world = World::over_http().await;
    if let Err(why) = play_old_fork(&world, SEEDS[0]).await {
        panic!("seed {}: {why}", SEEDS[0]);
    }
}
