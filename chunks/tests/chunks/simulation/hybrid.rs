//! The same simulation, with data documents that move to objects and back, in places that all replicas share. In
//! addition, there is exactly one object for each stub at the end.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use chunks::objects::{Connect, Object, Objects};
use chunks::store::IdRange;
use chunks::{CollectOptions, StoreError, StoreErrorKind};
use model::Environment;

use super::stepped::{Fault, Played};
use super::{GRACE, Play, World, play_each, with_more};
use crate::objects::{Always, Dated};

/// Seeds that are always played. In 106 a place was forgotten on one replica while another used it.
const SEEDS: &[u64] = &[1, 2, 106];

/// Objects as one actor sees them.
#[derive(Debug)]
struct SteppedObjects {
    inner: Arc<Dated>,
    played: Played,
}

impl SteppedObjects {
    async fn step(&self, what: &str) -> Result<(), StoreError> {
        let Played { stage, actor } = &self.played;
        stage.step(*actor).await;
        stage.note(what);
        match actor {
            Some(actor) if stage.fails(*actor) => Err(StoreError::new(StoreErrorKind::Unavailable, "no answer")),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Objects for SteppedObjects {
    async fn put(&self, name: &str, content: Bytes) -> Result<(), StoreError> {
        self.step("put").await?;
        self.inner.put(name, content).await?;
        self.step("put").await
    }

    async fn get(&self, name: &str) -> Result<Option<Bytes>, StoreError> {
        self.step("get").await?;
        self.inner.get(name).await
    }

    async fn list(&self, folder: &str) -> Result<Vec<Object>, StoreError> {
        self.step("list objects").await?;
        self.inner.list(folder).await
    }

    async fn delete(&self, name: &str) -> Result<(), StoreError> {
        self.step("delete").await?;
        self.inner.delete(name).await?;
        self.step("delete").await
    }
}

impl Play {
    /// A play with objects.
    async fn with_objects(world: &World, seed: u64) -> Play {
        let mut play = Play::new(world, seed, Fault::None).await;
        let clock = Played { stage: play.stage.clone(), actor: None };
        play.objects = Some(Dated::new(move || clock.now_ms()));
        play
    }

    pub(super) fn connect(&self, played: &Played) -> Arc<dyn Connect> {
        let objects = self.objects.clone().unwrap_or_else(|| Dated::new(|| 0));
        Arc::new(Always(Arc::new(SteppedObjects { inner: objects, played: played.clone() })))
    }

    /// Factor by which pieces are larger, so that data documents fill up.
    pub(super) fn size(&self) -> usize {
        if self.objects.is_some() { 4 } else { 1 }
    }

    pub(super) async fn offload(&self, number: usize, replica: usize) {
        let chunks = self.chunks(replica, Some(number), Fault::None);
        match self.stage.roll(5) {
            0 => drop(chunks.offload_back(None, false, |_, _| ()).await),
            place => drop(chunks.offload(["s3://one", "s3://other"][(place / 4) as usize], false, |_, _| ()).await),
        }
    }

    /// Runs a play. Also returns the number of objects ever written.
    async fn run_with_objects(&self) -> Result<(u64, usize), String> {
        let trace = self.run().await?;
        let objects = self.objects.as_ref().unwrap();
        let server = self.chunks(0, None, Fault::None);
        let everything = CollectOptions { unused_percent: 0, ..CollectOptions::default() };
        for _ in 0..3 {
            self.stage.pass(GRACE);
            let collected = server.collect(everything, |_| ()).await.map_err(|error| error.to_string())?;
            if let Some(damaged) = collected.damaged.first() {
                return Err(format!("something is missing: {damaged}"));
            }
        }
        self.meet().await;
        for replica in 0..super::REPLICAS {
            self.check(replica).await?;
        }
        let rows = self.replicas[0].list(&IdRange::prefix("dat:").with_bodies()).await.unwrap().rows;
        let stubs: BTreeSet<String> =
            rows.iter().filter_map(|row| Some(row.body.as_ref()?["chunks"].as_str()?.to_owned())).collect();
        let left = objects.list("").await.unwrap().into_iter().map(|object| object.name);
        let left: BTreeSet<String> = left.filter(|name| !name.ends_with("/place")).collect();
        if left != stubs {
            return Err(format!("objects are left: {:?}", left.symmetric_difference(&stubs).collect::<Vec<_>>()));
        }
        Ok((trace, objects.written()))
    }
}

async fn play(world: &World, seed: u64) -> Result<(u64, usize), String> {
    Play::with_objects(world, seed).await.run_with_objects().await
}

#[test]
fn nothing_is_lost_beside_objects() {
    let mut seeds = with_more(SEEDS);
    seeds.push(SEEDS[0]);
    let played = play_each("beside objects", &seeds, async |world, seed| play(world, seed).await);
    assert_eq!(played.first(), played.last(), "one seed is one play");
    let objects: usize = played[..SEEDS.len()].iter().map(|(_, written)| written).sum();
    println!("{objects} objects");
    assert!(objects > 30, "only {objects} objects: the plays are too tame");
}
