//! Stores that fail at random, from a seed: in process, and a proxy before a server.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use chunks::store::{
    Body, Changes, DocumentStore, Edit, Figures, IdRange, Leaf, ListingPage, Refusal, StoreResult, Written,
};
use chunks::{ChunkStore, StoreError, StoreErrorKind, TimedEnvironment};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Pauses that take no time.
#[derive(Debug)]
pub(crate) struct Hasty {
    dice: Mutex<StdRng>,
    /// Milliseconds of all pauses.
    pub(crate) slept: AtomicU64,
}

impl Hasty {
    pub(crate) fn new(seed: u64) -> Arc<Hasty> {
        Arc::new(Hasty { dice: Mutex::new(StdRng::seed_from_u64(seed)), slept: AtomicU64::new(0) })
    }
}

impl model::Environment for Hasty {
    fn now_ms(&self) -> u64 {
        1_795_000_000_000 + self.slept.load(Ordering::Relaxed)
    }

    fn random(&self, bytes: &mut [u8]) {
        self.dice.lock().unwrap().fill(bytes);
    }
}

impl TimedEnvironment for Hasty {
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()> {
        self.slept.fetch_add(u64::try_from(pause.as_millis()).unwrap(), Ordering::Relaxed);
        std::future::ready(()).boxed()
    }
}

/// A store that fails before an operation, after it, and at single edits.
#[derive(Debug)]
pub(crate) struct Flaky {
    inner: Arc<dyn DocumentStore>,
    dice: Mutex<StdRng>,
    /// One operation in `rate` fails before it is done, and one in `rate` after; zero: all fail.
    rate: u64,
    pub(crate) failures: AtomicU64,
    pub(crate) operations: AtomicU64,
}

impl Flaky {
    pub(crate) fn new(inner: Arc<dyn DocumentStore>, seed: u64, rate: u64) -> Arc<Flaky> {
        let dice = Mutex::new(StdRng::seed_from_u64(seed));
        Arc::new(Flaky { inner, dice, rate, failures: AtomicU64::new(0), operations: AtomicU64::new(0) })
    }

    /// Its chunks.
    pub(crate) fn chunks(self: &Arc<Flaky>, seed: u64) -> ChunkStore {
        ChunkStore::with_environment(self.clone(), Hasty::new(seed))
    }

    fn fails(&self) -> bool {
        let fails = self.rate == 0 || self.dice.lock().unwrap().random_range(0..self.rate) == 0;
        self.failures.fetch_add(u64::from(fails), Ordering::Relaxed);
        fails
    }

    fn before(&self) -> StoreResult<()> {
        self.operations.fetch_add(1, Ordering::Relaxed);
        self.after("not done")
    }

    fn after(&self, sentence: &str) -> StoreResult<()> {
        if self.fails() { Err(StoreError::new(StoreErrorKind::Unavailable, sentence)) } else { Ok(()) }
    }
}

#[async_trait]
impl DocumentStore for Flaky {
    async fn leaves(&self, ids: &[String], with_ancestors: bool) -> StoreResult<Vec<Vec<Leaf>>> {
        self.before()?;
        self.inner.leaves(ids, with_ancestors).await
    }

    async fn local(&self, id: &str) -> StoreResult<Option<Body>> {
        self.before()?;
        self.inner.local(id).await
    }

    async fn revs(&self, ids: &[String]) -> StoreResult<Vec<Option<String>>> {
        self.before()?;
        self.inner.revs(ids).await
    }

    async fn write(&self, edits: Vec<Edit>) -> StoreResult<Vec<Written>> {
        self.before()?;
        let done = |number: usize| match self.rate {
            0 => true,
            // Single edits fail too: some were written, some were not.
            _ => !number.is_multiple_of(3) || !self.fails(),
        };
        let (mut some, mut places) = (Vec::new(), Vec::new());
        let mut outcomes: Vec<Written> = edits.iter().map(|_| Err(Refusal::Unknown("not done".into()))).collect();
        for (place, edit) in edits.into_iter().enumerate() {
            if done(place) {
                places.push(place);
                some.push(edit);
            }
        }
        for (place, written) in places.into_iter().zip(self.inner.write(some).await?) {
            let lost = place % 5 == 1 && self.fails();
            outcomes[place] = if lost { Err(Refusal::Unknown("done, perhaps".into())) } else { written };
        }
        self.after("done, perhaps")?;
        Ok(outcomes)
    }

    async fn graft(&self, leaves: Vec<(String, Leaf)>) -> StoreResult<()> {
        self.before()?;
        self.inner.graft(leaves).await?;
        self.after("done, perhaps")
    }

    async fn list(&self, range: &IdRange) -> StoreResult<ListingPage> {
        self.before()?;
        self.inner.list(range).await
    }

    async fn changes(&self, since: Option<&str>, limit: usize) -> StoreResult<Changes> {
        self.before()?;
        self.inner.changes(since, limit).await
    }

    async fn figures(&self) -> StoreResult<Figures> {
        self.before()?;
        self.inner.figures().await
    }

    async fn takes(&self, bytes: usize) -> StoreResult<bool> {
        self.before()?;
        self.inner.takes(bytes).await
    }
}

/// A proxy before a server: one request in `rate` fails, in one of four ways.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) failures: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(server: SocketAddr, seed: u64, rate: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let failures = Arc::new(AtomicU64::new(0));
        let count = failures.clone();
        let task = tokio::spawn(async move {
            let mut dice = StdRng::seed_from_u64(seed);
            while let Ok((client, _)) = listener.accept().await {
                let roll = dice.random_range(0..rate * 4);
                count.fetch_add(u64::from(roll < 4), Ordering::Relaxed);
                tokio::spawn(serve(client, server, roll));
            }
        });
        Proxy { address, failures, task }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One request. Errors towards a closed connection are ignored.
async fn serve(mut client: TcpStream, server: SocketAddr, roll: u64) -> Option<()> {
    if roll == 0 {
        // Closed before it is read.
        return None;
    }
    let mut request = Vec::new();
    let head = loop {
        if client.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
        if let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
    };
    let text = String::from_utf8_lossy(&request[..head]).to_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    while request.len() < head + 4 + length.unwrap_or(0) {
        if client.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
    }
    if roll == 1 {
        let busy = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbusy";
        return client.write_all(busy).await.ok();
    }
    let mut upstream = TcpStream::connect(server).await.ok()?;
    upstream.write_all(&request[..head]).await.ok()?;
    upstream.write_all(b"\r\nconnection: close").await.ok()?;
    upstream.write_all(&request[head..]).await.ok()?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer).await.ok()?;
    match roll {
        // Done, without an answer.
        2 => None,
        // Truncated in the middle.
        3 => client.write_all(&answer[..answer.len() * 2 / 3]).await.ok(),
        _ => client.write_all(&answer).await.ok(),
    }
}
