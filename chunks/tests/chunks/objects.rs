//! Object stores for tests: memory, a directory, an S3 server, one that fails, and one with another clock.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use chunks::StoreError;
use chunks::objects::{Bucket, Connect, Connector, Object, Objects};
use tempfile::TempDir;
use tokio::task::JoinHandle;

type StoreResult<T> = Result<T, StoreError>;

/// The same objects at every location.
#[derive(Clone, Debug)]
pub(crate) struct Always(pub(crate) Arc<dyn Objects>);

impl Connect for Always {
    fn connect(&self, _: &str) -> StoreResult<Arc<dyn Objects>> {
        Ok(self.0.clone())
    }
}

/// Objects in memory. The test decides when they were written.
pub(crate) struct Dated {
    inner: Bucket,
    now_ms: Box<dyn Fn() -> u64 + Send + Sync>,
    times: Mutex<BTreeMap<String, u64>>,
    pub(crate) gets: AtomicU64,
}

impl Dated {
    pub(crate) fn new(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Arc<Dated> {
        let now_ms = Box::new(now_ms);
        Arc::new(Dated { inner: Bucket::in_memory(), now_ms, times: Mutex::default(), gets: AtomicU64::new(0) })
    }
}

impl Dated {
    /// Number of data documents' objects ever written.
    pub(crate) fn written(&self) -> usize {
        self.times.lock().unwrap().keys().filter(|name| name.contains('.') && !name.contains("/unused/")).count()
    }
}

impl fmt::Debug for Dated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dated")
    }
}

#[async_trait]
impl Objects for Dated {
    async fn put(&self, name: &str, content: Bytes) -> StoreResult<()> {
        self.inner.put(name, content).await?;
        self.times.lock().unwrap().insert(name.to_owned(), (self.now_ms)());
        Ok(())
    }

    async fn get(&self, name: &str) -> StoreResult<Option<Bytes>> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.inner.get(name).await
    }

    async fn list(&self, folder: &str) -> StoreResult<Vec<Object>> {
        let mut all = self.inner.list(folder).await?;
        let times = self.times.lock().unwrap();
        for object in &mut all {
            object.modified_ms = times[&object.name];
        }
        Ok(all)
    }

    async fn delete(&self, name: &str) -> StoreResult<()> {
        self.inner.delete(name).await
    }
}

/// An S3 server over a temporary directory.
pub(crate) struct S3 {
    address: SocketAddr,
    folder: TempDir,
    task: JoinHandle<()>,
}

impl S3 {
    /// A server with this bucket.
    pub(crate) async fn start(bucket: &str) -> S3 {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(bucket)).unwrap();
        let mut service = s3s::service::S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder.path()).unwrap());
        service.set_auth(s3s::auth::SimpleAuth::from_single("key", "secret"));
        let service = service.build();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let connection = hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
                    let io = hyper_util::rt::TokioIo::new(socket);
                    // A closed connection is not a failure of the test.
                    drop(connection.serve_connection(io, service).await);
                });
            }
        });
        S3 { address, folder, task }
    }

    /// Connects like a user, with these credentials.
    pub(crate) fn connector(&self, key: &str, secret: &str) -> Connector {
        let variables = [
            ("AWS_ACCESS_KEY_ID", key.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", secret.to_owned()),
            ("AWS_ENDPOINT", format!("http://{}", self.address)),
        ];
        Connector::with_variables(variables.map(|(name, value)| (name.to_owned(), value)))
    }

    /// The directory of its objects.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        self.task.abort();
    }
}
