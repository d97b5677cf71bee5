//! Databases to test with: in process, and the same kind behind a server of its own.

use std::net::SocketAddr;
use std::sync::Arc;

use chunks::store::{Body, DocumentStore, Edit, HttpStore, ModelStore};
use chunks::{Chunk, ChunkStore};
use kv_api::AnyDatabase;
use model::{CreateOptions, JsonText, Layer, LayerOptions};
use serde_json::Value;
use server::http::{Options, Server};

/// The largest document that the databases take, in bytes: tests of the limit need no large ones then.
pub(crate) const DOCUMENT_LIMIT: usize = 1_000_000;

/// Some databases, and what keeps them alive.
pub(crate) struct World {
    layer: Layer<AnyDatabase>,
    server: Option<Server>,
}

impl World {
    /// Databases in process.
    pub(crate) async fn in_process() -> World {
        World::over("mem:", false).await
    }

    /// Databases behind a server on a free port.
    pub(crate) async fn over_http() -> World {
        World::over("mem:", true).await
    }

    pub(crate) async fn over(engine: &str, over_http: bool) -> World {
        let engine = server::engine::open(&engine.parse().unwrap(), server::engine::IfMissing::Create).unwrap();
        let options = LayerOptions { max_document_size: DOCUMENT_LIMIT, ..LayerOptions::default() };
        let layer = Layer::open(engine, options).await.unwrap();
        let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let server = if over_http {
            Some(Server::start(layer.clone(), address, Options::default()).await.unwrap())
        } else {
            None
        };
        World { layer, server }
    }

    /// A new database.
    pub(crate) async fn database(&self, name: &str) -> Arc<dyn DocumentStore> {
        let documents = self.layer.create_database(name, CreateOptions::default()).await.unwrap();
        match &self.server {
            Some(server) => Arc::new(HttpStore::new(&format!("http://{}/{name}", server.address()), None).unwrap()),
            None => Arc::new(ModelStore::new(documents)),
        }
    }

    /// Writes a local document.
    pub(crate) async fn put_local(&self, name: &str, id: &str, body: Body) {
        let documents = self.layer.database(name).await.unwrap();
        documents.put_local(id, None, JsonText::from_serde(&Value::Object(body)).unwrap()).await.unwrap();
    }

    /// Where the server listens, if there is one.
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

/// Brings everything that `source` has to `target`, as a replicator does.
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

/// Chunks of text, with the ids that LiveSync gives them.
pub(crate) fn texts(prefix: &str, count: usize) -> Vec<(String, Chunk)> {
    (0..count)
        .map(|number| {
            let text = format!("{prefix} {number}: a line of text that could stand in a note\n");
            (chunks::chunk_id(&text), Chunk::plain(text))
        })
        .collect()
}

/// That all of these chunks read back as they are.
#[track_caller]
pub(crate) fn assert_read(found: &std::collections::BTreeMap<String, Option<Chunk>>, wanted: &[(String, Chunk)]) {
    for (id, chunk) in wanted {
        assert_eq!(found.get(id).and_then(Option::as_ref), Some(chunk), "{id}");
    }
}

/// Sets a grace that `configure` would refuse, as a test needs it.
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
