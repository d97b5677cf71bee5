//! Replications between faulty peers, and replications that are interrupted.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use model::{BulkGet, Edit, JsonText, Purge, RevId, RevsDiff, WriteMode};
use peer::{
    Attachment, ByteStream, Changes, Error, ErrorKind, FeedRequest, IdRange, Info, ListingPage, LocalDocument, Peer,
    ReadOptions, Result, Revision, TimedEnvironment,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use replicate::{Options, replicate};

use crate::support::{World, contents, fill, identity, json};

/// An environment whose pauses take no time.
#[derive(Debug)]
struct Hasty(Mutex<StdRng>, AtomicU64);

impl model::Environment for Hasty {
    fn now_ms(&self) -> u64 {
        1_795_000_000_000 + self.1.fetch_add(1, Ordering::Relaxed)
    }

    fn random(&self, bytes: &mut [u8]) {
        self.0.lock().unwrap().fill(bytes);
    }
}

impl TimedEnvironment for Hasty {
    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }
}

pub(crate) fn hasty(seed: u64) -> Arc<dyn TimedEnvironment> {
    Arc::new(Hasty(Mutex::new(StdRng::seed_from_u64(seed)), AtomicU64::new(0)))
}

/// A peer that loses requests and responses, fails with 503, delays, does things twice and cuts attachments off.
#[derive(Debug)]
struct Faulty {
    inner: Arc<dyn Peer>,
    dice: Arc<Mutex<StdRng>>,
    /// One operation out of this number fails.
    rate: u64,
    /// Number of operations after which all are refused.
    left: AtomicU64,
    faults: AtomicU64,
    operations: AtomicU64,
    /// Maximum number of bytes of bodies in one write.
    largest_write: AtomicUsize,
}

impl Faulty {
    fn new(inner: Arc<dyn Peer>, seed: u64, rate: u64, left: u64) -> Arc<Faulty> {
        let dice = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        let (faults, operations, largest_write) = Default::default();
        Arc::new(Faulty { inner, dice, rate, left: AtomicU64::new(left), faults, operations, largest_write })
    }

    fn rolls(&self) -> bool {
        let rolls = self.dice.lock().unwrap().random_range(0..self.rate) == 0;
        self.faults.fetch_add(u64::from(rolls), Ordering::Relaxed);
        rolls
    }

    async fn before(&self) -> Result<()> {
        self.operations.fetch_add(1, Ordering::Relaxed);
        let ended = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err();
        if ended {
            return Err(Error::new(ErrorKind::Refused, "killed"));
        }
        if self.rolls() {
            tokio::task::yield_now().await;
        }
        self.after("not done")
    }

    fn after(&self, sentence: &str) -> Result<()> {
        if self.rolls() { Err(Error::new(ErrorKind::Unavailable, sentence).with_status(503)) } else { Ok(()) }
    }
}

#[async_trait]
impl Peer for Faulty {
    async fn info(&self) -> Result<Info> {
        self.before().await?;
        self.inner.info().await
    }

    async fn changes(&self, request: &FeedRequest) -> Result<Changes> {
        self.before().await?;
        let changes = self.inner.changes(request).await?;
        self.after("lost").map(|()| changes)
    }

    async fn list(&self, range: &IdRange) -> Result<ListingPage> {
        self.before().await?;
        self.inner.list(range).await
    }

    async fn winners(&self, ids: &[String]) -> Result<Vec<Option<RevId>>> {
        self.before().await?;
        self.inner.winners(ids).await
    }

    async fn read(&self, wanted: &[BulkGet], options: ReadOptions) -> Result<Vec<Result<Vec<Revision>>>> {
        self.before().await?;
        let mut found = self.inner.read(wanted, options).await?;
        if self.rolls() {
            let place = self.dice.lock().unwrap().random_range(0..found.len());
            found[place] = Err(Error::new(ErrorKind::Unavailable, "one of them is busy"));
        }
        if options.most_bytes.is_some() && self.rolls() {
            found.truncate(self.dice.lock().unwrap().random_range(1..=found.len()));
        }
        Ok(found)
    }

    fn attachment(&self, id: &str, rev: &RevId, attachment: &Attachment) -> ByteStream {
        let bytes = self.inner.attachment(id, rev, attachment);
        if !self.rolls() {
            return bytes;
        }
        let cut = stream::once(async { Err(Error::new(ErrorKind::Unavailable, "cut off")) });
        bytes.take(1).chain(cut).boxed()
    }

    async fn revs_diff(&self, wanted: Vec<(String, Vec<RevId>)>) -> Result<Vec<RevsDiff>> {
        self.before().await?;
        self.inner.revs_diff(wanted).await
    }

    async fn write(&self, edits: Vec<Edit>, mode: WriteMode) -> Result<Vec<Result<RevId>>> {
        self.before().await?;
        self.largest_write.fetch_max(edits.iter().map(|edit| edit.body.len()).sum(), Ordering::Relaxed);
        if self.rolls() {
            // Half of them, or all of them, are written twice.
            let some = if self.rolls() { edits.len() } else { edits.len() / 2 };
            self.inner.write(edits[..some].to_vec(), mode).await?;
        }
        let mut written = self.inner.write(edits, mode).await?;
        self.after("done, perhaps")?;
        if self.rolls() && !written.is_empty() {
            written[0] = Err(Error::new(ErrorKind::Unavailable, "done, perhaps"));
        }
        Ok(written)
    }

    async fn put(&self, revision: &Revision, contents: Vec<Option<ByteStream>>) -> Result<()> {
        self.before().await?;
        self.inner.put(revision, contents).await?;
        self.after("done, perhaps")
    }

    async fn purge(&self, purges: &[Purge]) -> Result<Vec<Result<Vec<RevId>>>> {
        self.inner.purge(purges).await
    }

    async fn get_local(&self, id: &str) -> Result<Option<LocalDocument>> {
        self.before().await?;
        self.inner.get_local(id).await
    }

    async fn put_local(&self, id: &str, rev: Option<&str>, body: &JsonText) -> Result<String> {
        self.before().await?;
        let written = self.inner.put_local(id, rev, body).await?;
        self.after("done, perhaps").map(|()| written)
    }

    async fn commit(&self) -> Result<String> {
        self.before().await?;
        self.inner.commit().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_are_equal_whatever_fails_on_the_way() {
    let mut faults = 0;
    for seed in 0..6 {
        println!("seed {seed}");
        let world = World::new().await;
        fill(&world.create("one").await, &mut StdRng::seed_from_u64(seed), 150, &[10, 70_000, 1_500_000]).await;
        world.create("other").await;
        let (one, other) = match seed % 2 {
            0 => (world.local("one").await, world.local("other").await),
            _ => (world.far("one").await, world.far("other").await),
        };
        let source = Faulty::new(one.clone(), seed, 6, u64::MAX);
        let target = Faulty::new(other.clone(), seed + 100, 6, u64::MAX);
        let options = Options { batch_size: 20, checkpoint_interval: Duration::ZERO, ..Options::default() };
        let replication = replicate(source.clone(), target.clone(), identity());
        let report = replication.with_options(options).with_environment(hasty(seed)).run().await.unwrap();
        assert_eq!(report.figures.doc_write_failures, 0, "seed {seed}");
        assert!(contents(&*one).await == contents(&*other).await, "seed {seed}");
        faults += source.faults.load(Ordering::Relaxed) + target.faults.load(Ordering::Relaxed);
        // A clean run finds nothing missing.
        let clean = Options { use_checkpoints: false, ..Options::default() };
        let again = replicate(one, other, identity()).with_options(clean).run().await.unwrap();
        assert_eq!((again.figures.missing_found, again.figures.docs_read), (0, 0));
    }
    assert!(faults > 100, "{faults}");
}

/// The size of a group follows from earlier documents, which here are unlike the next ones.
#[tokio::test(flavor = "multi_thread")]
async fn large_documents_behind_small_ones_are_copied_few_at_a_time() {
    let world = World::new().await;
    let documents = world.create("one").await;
    for (kind, count, bytes) in [("small", 600, 100), ("large", 400, 90_000)] {
        let text = "x".repeat(bytes);
        let edits = (0..count).map(|n| Edit::new(format!("{kind}-{n}"), json(&format!(r#"{{"text":"{text}"}}"#))));
        documents.write(edits.collect(), WriteMode::Interactive).await.unwrap();
    }
    for (name, one) in [("near", world.local("one").await), ("far", world.far("one").await)] {
        world.create(name).await;
        let target = Faulty::new(world.local(name).await, 0, u64::MAX, u64::MAX);
        let report = replicate(one, target.clone(), identity()).run().await.unwrap();
        assert_eq!(report.figures.docs_written, 1_000, "{name}");
        // A batch of the source, or an answer of two megabytes of bodies, and a document.
        let largest = target.largest_write.load(Ordering::Relaxed);
        assert!(largest < 4_200_000, "{name}: {largest} bytes");
    }
}

/// A replication that is killed after any number of operations at the target continues at its checkpoint.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_killed_goes_on_behind_its_checkpoint() {
    let world = World::new().await;
    fill(&world.create("one").await, &mut StdRng::seed_from_u64(7), 120, &[10, 20_000]).await;
    let one = world.local("one").await;
    let expected = contents(&*one).await;
    let options = Options { batch_size: 25, checkpoint_interval: Duration::ZERO, ..Options::default() };
    let whole = {
        world.create("whole").await;
        let counted = Faulty::new(world.local("whole").await, 0, u64::MAX, u64::MAX);
        replicate(one.clone(), counted.clone(), identity()).with_options(options.clone()).run().await.unwrap();
        counted.operations.load(Ordering::Relaxed)
    };
    let (mut resumed, mut ended) = (0, 0);
    for left in 0..whole {
        let name = format!("other-{left}");
        world.create(&name).await;
        let other = world.local(&name).await;
        let killed = Faulty::new(other.clone(), left, u64::MAX, left);
        let run = replicate(one.clone(), killed, identity()).with_options(options.clone());
        ended += u64::from(run.run().await.is_err());
        let report =
            replicate(one.clone(), other.clone(), identity()).with_options(options.clone()).run().await.unwrap();
        resumed += u64::from(report.figures.missing_checked < expected.len() as u64);
        assert_eq!(report.figures.doc_write_failures, 0);
        assert!(contents(&*other).await == expected, "killed after {left} operations");
        world.layer.delete_database(&name).await.unwrap();
    }
    assert_eq!(ended, whole);
    assert!(resumed > whole / 2, "{resumed} of {whole} went on behind a checkpoint");
}
