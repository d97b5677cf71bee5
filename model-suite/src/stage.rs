//! The stage of a scenario, and helpers for common steps.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use conformance::Fixture;
use kv_api::{AnyDatabase, Database};
use model::{
    AllDocsRequest, AllDocsRow, Change, ChangesRequest, CreateOptions, Document, Documents, Edit, Environment,
    ErrorKind, GetOptions, JsonText, Layer, LayerOptions, NotFound, RevHistory, RevId, Since, SystemEnvironment,
    WriteMode,
};

/// An engine with an empty keyspace, for one scenario.
pub(crate) struct Stage(Fixture<AnyDatabase>);

impl Stage {
    pub(crate) fn new<D: Database>(fixture: Fixture<D>) -> Self {
        Stage(fixture.alone())
    }

    pub(crate) fn engine(&self) -> AnyDatabase {
        self.0.database().clone()
    }

    pub(crate) async fn layer(&self) -> Layer<AnyDatabase> {
        layer(self.engine()).await
    }

    /// Waits until every current read version is too old.
    pub(crate) async fn outlive_read_versions(&self) {
        let window = self.0.database().limits().read_window;
        self.0.pass(window + Duration::from_secs(1)).await;
    }

    /// A database in a layer over the bare engine.
    pub(crate) async fn documents(&self) -> Documents<AnyDatabase> {
        database(self.engine()).await
    }
}

pub(crate) fn json(text: &str) -> JsonText {
    JsonText::parse(text.as_bytes()).expect("JSON")
}

pub(crate) fn rev(text: &str) -> RevId {
    text.parse().expect("a revision")
}

pub(crate) fn edit(id: &str, body: &str) -> Edit {
    Edit::new(id, json(body))
}

/// A replicated edit. `path` is the revision and its ancestors, newest first. Only the first has its position:
/// `replicated("a", "3-c b a", "{}")`.
pub(crate) fn replicated(id: &str, path: &str, body: &str) -> Edit {
    let mut names = path.split(' ');
    let leaf = rev(names.next().expect("a revision"));
    let mut ids = vec![leaf.hash().clone()];
    ids.extend(names.map(|name| name.parse().expect("a hash")));
    edit(id, body).with_history(RevHistory { position: leaf.position(), ids })
}

pub(crate) async fn layer<D: Database>(engine: D) -> Layer<D> {
    Layer::open(engine, LayerOptions::default()).await.expect("a layer")
}

pub(crate) async fn database<D: Database>(engine: D) -> Documents<D> {
    layer(engine).await.create_database("db", CreateOptions::default()).await.expect("a database")
}

pub(crate) async fn get<D: Database>(documents: &Documents<D>, id: &str) -> Document {
    documents.get(id, &GetOptions::default()).await.expect("a document")
}

/// Whether a document never existed, or was purged.
pub(crate) async fn is_missing<D: Database>(documents: &Documents<D>, id: &str) -> bool {
    let found = documents.get(id, &GetOptions::default()).await;
    found.is_err_and(|error| *error.kind() == ErrorKind::NotFound(NotFound::Missing))
}

/// Options that ask for all optional members.
pub(crate) fn all_members() -> GetOptions {
    GetOptions {
        revs: true,
        revs_info: true,
        conflicts: true,
        deleted_conflicts: true,
        local_seq: true,
        ..GetOptions::default()
    }
}

pub(crate) async fn merge<D: Database>(documents: &Documents<D>, edit: Edit) {
    for result in documents.write(vec![edit], WriteMode::Replicated).await.expect("a write") {
        result.expect("a merge");
    }
}

/// The live leaves that lost, best first.
pub(crate) async fn lost<D: Database>(documents: &Documents<D>, id: &str) -> Vec<RevId> {
    let options = GetOptions { conflicts: true, ..GetOptions::default() };
    documents.get(id, &options).await.expect("a document").conflicts.unwrap_or_default()
}

/// The complete feed after `since`.
pub(crate) async fn feed<D: Database>(documents: &Documents<D>, mut request: ChangesRequest) -> Vec<Change> {
    let mut rows = Vec::new();
    loop {
        let batch = documents.changes(&request).await.expect("changes");
        rows.extend(batch.rows);
        if !batch.more {
            return rows;
        }
        request.since = Since::Seq(batch.last_seq);
        request.before = Some(batch.last_seq);
    }
}

/// A complete listing.
pub(crate) async fn list<D: Database>(documents: &Documents<D>, request: AllDocsRequest) -> Vec<AllDocsRow> {
    let (mut rows, mut next) = (Vec::new(), Some(request));
    while let Some(request) = next {
        let batch = documents.all_docs(&request).await.expect("a listing");
        rows.extend(batch.rows);
        next = batch.next;
    }
    rows
}

/// Checks the database's rows.
pub(crate) async fn assert_sound<D: Database>(documents: &Documents<D>) {
    let report = documents.check(|_| {}).await.expect("a check");
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    assert!(report.is_sound(), "{problems:#?}");
    assert!(!report.changed_meanwhile);
}

/// Polls a future once.
pub(crate) fn poll_once<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// A clock that the scenario sets. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Clock(Arc<AtomicU64>);

impl Default for Clock {
    fn default() -> Self {
        Clock(Arc::new(AtomicU64::new(1_000_000)))
    }
}

impl Clock {
    /// Options of a layer with this clock.
    pub(crate) fn options(&self) -> LayerOptions {
        LayerOptions { environment: Arc::new(self.clone()), ..LayerOptions::default() }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now_ms()
    }

    pub(crate) fn pass(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }

    pub(crate) fn set_back(&self, ms: u64) {
        self.0.fetch_sub(ms, Ordering::Relaxed);
    }
}

impl Environment for Clock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn random(&self, bytes: &mut [u8]) {
        SystemEnvironment.random(bytes);
    }
}
