//! An engine whose scans take as long as on a cold disk. Requests that do not scan are served meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kv_api::{
    AnyDatabase, AnyTransaction, BoxFuture, Bytes, ConflictRange, Database, Durability, Error, IntoBytes, KeySelector,
    Limits, MutationType, RangeBatch, RangeRequest, Read, Result, Transaction, TransactionOption, Versionstamp,
};
use serde_json::json;
use server::http::Options;

use crate::support::Couch;

/// Time for which each batch of a scan blocks its thread.
const COLD: Duration = Duration::from_secs(1);

/// Time that a read of one key takes on a distant engine.
const DISTANT: Duration = Duration::from_millis(30);

/// An engine that reads ranges on the calling thread, as embedded engines do: slowly while it is cold. While it is
/// distant, reads of keys take as long as over a network.
#[derive(Clone, Debug)]
struct Slow<T> {
    inner: T,
    cold: Arc<AtomicBool>,
    distant: Arc<AtomicBool>,
}

impl Database for Slow<AnyDatabase> {
    type Transaction = Slow<AnyTransaction>;

    fn begin(&self) -> Result<Self::Transaction> {
        Ok(Slow { inner: self.inner.begin()?, cold: self.cold.clone(), distant: self.distant.clone() })
    }
    fn limits(&self) -> Limits {
        self.inner.limits()
    }
    fn durability(&self) -> Durability {
        self.inner.durability()
    }
}

#[allow(refining_impl_trait, reason = "the inner transaction's futures are boxed already")]
impl Transaction for Slow<AnyTransaction> {
    fn get_range(&self, request: &RangeRequest, read: Read) -> BoxFuture<Result<RangeBatch>> {
        if self.cold.load(Ordering::Relaxed) {
            std::thread::sleep(COLD);
        }
        self.inner.get_range(request, read)
    }
    fn get_read_version(&self) -> BoxFuture<Result<i64>> {
        self.inner.get_read_version()
    }
    fn set_read_version(&self, version: i64) {
        self.inner.set_read_version(version);
    }
    fn get(&self, key: &[u8], read: Read) -> BoxFuture<Result<Option<Bytes>>> {
        let value = self.inner.get(key, read);
        if !self.distant.load(Ordering::Relaxed) {
            return value;
        }
        Box::pin(async move {
            tokio::time::sleep(DISTANT).await;
            value.await
        })
    }
    fn get_key(&self, selector: &KeySelector, read: Read) -> BoxFuture<Result<Bytes>> {
        self.inner.get_key(selector, read)
    }
    fn set(&self, key: impl IntoBytes, value: impl IntoBytes) {
        self.inner.set(key, value);
    }
    fn clear(&self, key: &[u8]) {
        self.inner.clear(key);
    }
    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.inner.clear_range(begin, end);
    }
    fn atomic_op(&self, mutation: MutationType, key: impl IntoBytes, operand: impl IntoBytes) {
        self.inner.atomic_op(mutation, key, operand);
    }
    fn add_conflict_range(&self, begin: &[u8], end: &[u8], side: ConflictRange) {
        self.inner.add_conflict_range(begin, end, side);
    }
    fn set_option(&self, option: TransactionOption) {
        self.inner.set_option(option);
    }
    fn get_approximate_size(&self) -> BoxFuture<Result<u64>> {
        self.inner.get_approximate_size()
    }
    fn get_estimated_range_size(&self, begin: &[u8], end: &[u8]) -> BoxFuture<Result<u64>> {
        self.inner.get_estimated_range_size(begin, end)
    }
    fn get_range_split_points(&self, begin: &[u8], end: &[u8], chunk: u64) -> BoxFuture<Result<Vec<Bytes>>> {
        self.inner.get_range_split_points(begin, end, chunk)
    }
    fn get_versionstamp(&self) -> BoxFuture<Result<Versionstamp>> {
        self.inner.get_versionstamp()
    }
    fn watch(&self, key: &[u8]) -> BoxFuture<Result<()>> {
        self.inner.watch(key)
    }
    fn commit(&self) -> BoxFuture<Result<()>> {
        self.inner.commit()
    }
    fn get_committed_version(&self) -> Result<i64> {
        self.inner.get_committed_version()
    }
    fn on_error(&self, error: Error) -> BoxFuture<Result<()>> {
        self.inner.on_error(error)
    }
    fn reset(&self) {
        self.inner.reset();
    }
    fn cancel(&self) {
        self.inner.cancel();
    }
}

/// A server over an engine that is not cold yet.
async fn couch() -> (Couch, Arc<AtomicBool>) {
    let (couch, cold, _) = slow_couch().await;
    (couch, cold)
}

/// A server over an engine that is neither cold nor distant yet.
async fn slow_couch() -> (Couch, Arc<AtomicBool>, Arc<AtomicBool>) {
    let (cold, distant) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let inner = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    let slow = AnyDatabase::new(Slow { inner, cold: cold.clone(), distant: distant.clone() });
    let couch = Couch::over(slow, Options { scan_threads: 2, ..Options::default() }).await;
    couch.database("db").await;
    (couch, cold, distant)
}

#[tokio::test(flavor = "multi_thread")]
async fn all_who_come_at_once_find_the_new_database_of_an_old_name() {
    let (couch, _, distant) = slow_couch().await;
    // The server keeps a handle of the database that it reads.
    assert_eq!(couch.get("/db").await.status, 200);
    couch.call("DELETE", "/db").await;
    couch.database("db").await;
    distant.store(true, Ordering::Relaxed);
    // All of them use the stale handle, and one of them is the first to forget it.
    let answers = futures_util::future::join_all((0..8).map(|_| couch.get("/db"))).await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    assert_eq!(couch.get("/none").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_breaks_off_does_not_look_whole() {
    let (couch, cold) = couch().await;
    let docs: Vec<_> = (0..9_900).map(|n| json!({"_id": format!("{n:04}")})).collect();
    for (name, list) in [("feed", "_changes"), ("list", "_all_docs")] {
        cold.store(false, Ordering::Relaxed);
        couch.database(name).await;
        couch.json("POST", &format!("/{name}/_bulk_docs"), json!({"docs": docs})).await;
        let path = format!("/{name}/{list}");
        let whole = couch.get(&path).await.text;
        assert!(whole.contains("9899") && serde_json::from_str::<serde_json::Value>(&whole).is_ok());
        cold.store(true, Ordering::Relaxed);
        let begun = couch.request("GET", &path).send().await.unwrap();
        assert_eq!(begun.status(), 200);
        couch.layer.delete_database(name).await.unwrap();
        let half = begun.text().await.unwrap();
        assert!(!half.contains("9899"), "the database was to be dropped in between");
        assert!(serde_json::from_str::<serde_json::Value>(&half).is_err());
        let last: serde_json::Value = serde_json::from_str(half.lines().last().unwrap()).unwrap();
        assert_eq!((&last["code"], &last["error"]), (&json!(404), &json!("not_found")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_and_small_requests_survive_cold_scans() {
    let (couch, cold) = couch().await;
    couch.put("/db/a", json!({})).await;
    let mut feed = couch.request("GET", "/db/_changes?feed=continuous&since=now&heartbeat=50").send().await.unwrap();
    cold.store(true, Ordering::Relaxed);

    // More cold scans than there are threads of either kind.
    let scans: Vec<_> = (0..6)
        .map(|n| {
            let path = if n % 2 == 0 { "/db/_all_docs?include_docs=true" } else { "/db/_changes?include_docs=true" };
            let request = couch.request("GET", path);
            tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    let (mut beats, mut longest, mut last) = (0, Duration::ZERO, Instant::now());
    while begun.elapsed() < Duration::from_millis(800) {
        let small = couch.get("/_up").await;
        assert_eq!(small.status, 200);
        beats += feed.chunk().await.unwrap().unwrap().len();
        longest = longest.max(last.elapsed());
        last = Instant::now();
    }
    assert!(!scans.iter().all(|scan| scan.is_finished()), "the scans were to be cold");
    assert!(beats >= 8 && longest < Duration::from_millis(500), "{beats} heartbeats, {longest:?} without one");
    cold.store(false, Ordering::Relaxed);
    for scan in scans {
        assert!(scan.await.unwrap().contains("\"a\""));
    }
}
