//! Databases for tests: in process, and behind a server.
//!
//! `scenarios!` runs a scenario on the engine in memory. `on_every_engine!` runs it on every engine of the server:
//! engines on disk in new folders, FoundationDB under a separate prefix in the cluster of `FDB_CLUSTER_FILE`.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use chunks::store::{Body, DocumentStore, Edit, PeerStore};
use chunks::{Chunk, ChunkStore};
use kv_api::{AnyDatabase, Database, Transaction};
use model::{CreateOptions, Documents, Environment, JsonText, KeepReplaced, Layer, LayerOptions};
use serde_json::Value;
use server::engine::{self, EngineError, IfMissing};
use server::http::{Options, Server};
use tempfile::TempDir;

/// Size limit of the databases' documents, in bytes. Low, so that tests of the limit are quick.
pub(crate) const DOCUMENT_LIMIT: usize = 1_000_000;

/// Some databases, and the handles that keep them alive.
pub(crate) struct World {
    layer: Layer<AnyDatabase>,
    server: Option<Server>,
    /// Folder of an engine on disk. Removed last.
    _folder: Option<TempDir>,
}

impl World {
    /// Databases in process.
    pub(crate) async fn in_process() -> World {
        World::over("mem", false).await
    }

    /// Databases behind a server on a free port.
    pub(crate) async fn over_http() -> World {
        World::over("mem", true).await
    }

    /// Databases of the engine with this name. An engine on disk gets a new folder.
    pub(crate) async fn over(engine: &str, over_http: bool) -> World {
        let folder = (engine != "mem").then(|| tempfile::tempdir().unwrap());
        let path = folder.as_ref().map(|folder| folder.path().join("data").display().to_string());
        let url = format!("{engine}:{}", path.unwrap_or_default());
        let store = engine::open(&url.parse().unwrap(), IfMissing::Create).unwrap();
        World { _folder: folder, ..World::of(store, over_http, LayerOptions::default()).await }
    }

    /// Databases in process, with a clock of the test.
    pub(crate) async fn in_process_at(environment: Arc<dyn Environment>) -> World {
        let store = engine::open(&"mem:".parse().unwrap(), IfMissing::Create).unwrap();
        World::of(store, false, LayerOptions { environment, ..LayerOptions::default() }).await
    }

    async fn of(engine: AnyDatabase, over_http: bool, options: LayerOptions) -> World {
        let options = LayerOptions { max_document_size: DOCUMENT_LIMIT, ..options };
        let layer = Layer::open(engine, options).await.unwrap();
        let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let server = if over_http {
            Some(Server::start(layer.clone(), address, Options::default()).await.unwrap())
        } else {
            None
        };
        World { layer, server, _folder: None }
    }

    /// A new database.
    pub(crate) async fn database(&self, name: &str) -> Arc<dyn DocumentStore> {
        let documents = self.layer.create_database(name, CreateOptions::default()).await.unwrap();
        match &self.server {
            Some(server) => Arc::new(PeerStore::http(&format!("http://{}/{name}", server.address()), None).unwrap()),
            None => Arc::new(PeerStore::local(documents)),
        }
    }

    /// An existing database, in process.
    pub(crate) async fn opened(&self, name: &str) -> Arc<dyn DocumentStore> {
        Arc::new(PeerStore::local(self.documents(name).await))
    }

    /// An existing database of this world, by its layer.
    pub(crate) async fn documents(&self, name: &str) -> Documents<AnyDatabase> {
        self.layer.database(name).await.unwrap()
    }

    /// Keeps the bodies of replaced revisions in a database.
    pub(crate) async fn keep_replaced(&self, name: &str) {
        let documents = self.layer.database(name).await.unwrap();
        documents.set_keep_replaced(Some(KeepReplaced::Revisions(1_000))).await.unwrap();
    }

    /// Writes a local document over the one that may be there.
    pub(crate) async fn put_local(&self, name: &str, id: &str, body: Body) {
        let documents = self.layer.database(name).await.unwrap();
        let rev = documents.get_local(id).await.ok().map(|found| found.rev);
        documents.put_local(id, rev, JsonText::from_serde(&Value::Object(body)).unwrap()).await.unwrap();
    }

    /// Address of the server, if there is one.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(Server::address)
    }

    pub(crate) async fn chunks(&self, name: &str) -> ChunkStore {
        ChunkStore::new(self.database(name).await)
    }
}

/// Makes two tests of a scenario: in process, and over HTTP.
#[macro_export]
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        mod in_process {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name($crate::support::World::in_process().await).await;
            })*
        }
        mod over_http {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name($crate::support::World::over_http().await).await;
            })*
        }
    };
}

/// Makes a test of a scenario for each engine, and one over HTTP with the default engine of new servers.
#[macro_export]
macro_rules! on_every_engine {
    ($name:ident) => {
        $crate::on_every_engine!($name on mem sled lsm);
    };
    ($name:ident on $($engine:ident)*) => {
        mod $name {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $engine() {
                super::$name($crate::support::World::over(stringify!($engine), false).await).await;
            })*

            #[tokio::test(flavor = "multi_thread")]
            async fn over_http() {
                super::$name($crate::support::World::over("lsm", true).await).await;
            }

            #[test]
            fn fdb() {
                $crate::support::on_a_cluster(stringify!($name), super::$name);
            }
        }
    };
}

/// Runs a scenario in the cluster of `FDB_CLUSTER_FILE`, and removes its keys afterwards. Skipped without that
/// variable, and in a build without the engine (`--features server/fdb`).
pub(crate) fn on_a_cluster<F: Future<Output = ()>>(scenario: &str, run: impl Fn(World) -> F) {
    let Ok(file) = std::env::var("FDB_CLUSTER_FILE") else {
        println!("skipped: {scenario} on FoundationDB: FDB_CLUSTER_FILE names no cluster file");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    // A prefix of its own.
    let own = folder.path().file_name().unwrap().to_str().unwrap();
    let url = format!("fdb:{file}?prefix=couch-layer%20tests/{own}/").parse().unwrap();
    let store = match engine::open(&url, IfMissing::Create) {
        Err(EngineError::NotBuilt { .. }) => {
            println!("skipped: {scenario} on FoundationDB: this build has no engine fdb");
            return;
        }
        store => store.unwrap(),
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ran = std::panic::catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async { run(World::of(store.clone(), false, LayerOptions::default()).await).await });
    }));
    runtime.block_on(async {
        let transaction = store.begin().unwrap();
        // The keys under the prefix: this database has no others.
        transaction.clear_range(b"", b"\xff");
        transaction.commit().await.unwrap();
    });
    ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// The last sequence of a database.
pub(crate) async fn last_seq(store: &dyn DocumentStore) -> String {
    let mut since: Option<String> = None;
    loop {
        let changes = store.changes(since.as_deref(), 1_000).await.unwrap();
        if !changes.more {
            return changes.last_seq;
        }
        since = Some(changes.last_seq);
    }
}

/// Copies everything from `source` to `target`, as a replicator does.
pub(crate) async fn replicate(source: &dyn DocumentStore, target: &dyn DocumentStore) {
    let mut since: Option<String> = None;
    loop {
        let changes = source.changes(since.as_deref(), 100).await.unwrap();
        let ids: Vec<String> = changes.rows.iter().map(|row| row.id.clone()).collect();
        for (id, leaves) in ids.iter().zip(source.leaves(&ids, true).await.unwrap()) {
            target.graft(leaves.into_iter().map(|leaf| (id.clone(), leaf)).collect()).await.unwrap();
        }
        if !changes.more {
            return;
        }
        since = Some(changes.last_seq);
    }
}

/// Chunks of text, with LiveSync's ids.
pub(crate) fn texts(prefix: &str, count: usize) -> Vec<(String, Chunk)> {
    (0..count)
        .map(|number| {
            let text = format!("{prefix} {number}: a line of text that could stand in a note\n");
            (chunks::chunk_id(&text), Chunk::plain(text))
        })
        .collect()
}

/// Checks that all of these chunks were read unchanged.
#[track_caller]
pub(crate) fn assert_read(found: &std::collections::BTreeMap<String, Option<Chunk>>, wanted: &[(String, Chunk)]) {
    for (id, chunk) in wanted {
        assert_eq!(found.get(id).and_then(Option::as_ref), Some(chunk), "{id}");
    }
}

/// Sets a grace period that `configure` would refuse.
pub(crate) async fn set_grace(store: &dyn DocumentStore, grace_ms: u64) {
    let id = "chunks:settings".to_owned();
    let leaf = store.leaves(std::slice::from_ref(&id), false).await.unwrap().remove(0).remove(0);
    let mut body = leaf.body;
    body.insert("grace_ms".into(), grace_ms.into());
    let edit = Edit { id, rev: Some(leaf.rev), deleted: false, body };
    store.write(vec![edit]).await.unwrap().remove(0).unwrap();
}

pub(crate) fn ids(chunks: &[(String, Chunk)]) -> Vec<String> {
    chunks.iter().map(|(id, _)| id.clone()).collect()
}
