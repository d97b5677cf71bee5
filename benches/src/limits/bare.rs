//! The limits: hyper, `lsm-tree` and QuickJS doing the same work without us.

use std::convert::Infallible;
use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use benches::documents::Source;
use benches::recording::RawRead;
use benches::work::rate;
use bytes::Bytes;
use engine_lsm::keys::stored;
use http_body_util::Full;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kv_api::Direction;
use lsm_tree::compaction::Leveled;
use lsm_tree::config::{CompressionPolicy, RestartIntervalPolicy};
use lsm_tree::{AbstractTree, AnyTree, Cache, CompressionType, Config, Guard, SeqNo, SequenceNumberCounter};
use occ::store::Batch;
use rquickjs::{Function, Runtime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::http::client::Address;

/// An answer of a server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    /// Without those that hyper adds itself.
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    #[cfg(test)]
    pub(super) fn new<const N: usize>(headers: [(&'static str, &'static str); N], body: &'static str) -> Answer {
        let header = |(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        Answer { headers: headers.map(header).into_iter().collect(), body: body.into() }
    }

    /// The answer to a `GET`.
    pub(super) async fn of(address: &Address, path: &str) -> Result<Answer> {
        let mut stream = TcpStream::connect(address.host()).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", address.host());
        stream.write_all(request.as_bytes()).await?;
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await?;
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        let length = match response.parse(&read)? {
            httparse::Status::Complete(length) => length,
            httparse::Status::Partial => bail!("{path}: an answer without an end of its head"),
        };
        ensure!(response.code == Some(200), "{path}: {:?}", response.code);
        let mut headers = HeaderMap::new();
        for header in response.headers {
            let name = HeaderName::from_bytes(header.name.as_bytes())?;
            if !["connection", "content-length", "date"].contains(&name.as_str()) {
                headers.append(name, HeaderValue::from_bytes(header.value)?);
            }
        }
        Ok(Answer { headers, body: Bytes::copy_from_slice(&read[length..]) })
    }
}

/// A server of hyper alone. It sends one answer to all requests, on as many threads as ours has. It is no process of its
/// own, and its memory is from the system's allocator, while ours is from mimalloc.
pub(super) struct Hyper {
    pub(super) address: Address,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Hyper {
    pub(super) fn start(answer: Answer) -> Result<Hyper> {
        let threads = thread::available_parallelism().map_or(2, usize::from) + 1;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = format!("http://{}", listener.local_addr()?).parse()?;
        // For its driver.
        let entered = runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        drop(entered);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(connection(stream, answer.clone()));
            }
        });
        Ok(Hyper { address, runtime: Some(runtime) })
    }
}

impl Drop for Hyper {
    fn drop(&mut self) {
        // The caller is a task, which must not wait for other tasks' threads.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Serves a connection until the client closes it.
async fn connection(stream: TcpStream, answer: Answer) {
    let service = service_fn(|_| {
        let mut response = hyper::Response::new(Full::new(answer.body.clone()));
        *response.headers_mut() = answer.headers.clone();
        async { Ok::<_, Infallible>(response) }
    });
    if stream.set_nodelay(true).is_ok() {
        let mut builder = http1::Builder::new();
        // A client that is gone has closed its connection.
        let _ = builder.writev(false).serve_connection(TokioIo::new(stream), service).await;
    }
}

/// Size of the rows in memory at which they are flushed: the engine's.
const FLUSH_BYTES: u64 = 16 << 20;

/// A tree of `lsm-tree`, with the cache, the compression and the filters of the engine.
pub(super) fn tree(folder: &Path, numbers: &SequenceNumberCounter) -> Result<AnyTree> {
    let config = Config::new(folder.join("tree"), numbers.clone(), SequenceNumberCounter::default())
        .use_cache(Arc::new(Cache::with_capacity_bytes(disk::DEFAULT_CACHE_BYTES)))
        .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
        .data_block_restart_interval_policy(RestartIntervalPolicy::all(8))
        .expect_point_read_hits(true);
    Ok(config.open()?)
}

/// Writes batches to a new tree, each first to a file, which is synced. A thread flushes and compacts meanwhile. Returns
/// the time without the last flush.
pub(super) fn write(folder: &Path, batches: &[Batch]) -> Result<Duration> {
    let numbers = SequenceNumberCounter::default();
    let tree = tree(folder, &numbers)?;
    let mut log = File::create(folder.join("log"))?;
    let mut record = Vec::new();
    let took = thread::scope(|scope| {
        // Rows of two flushes wait at most.
        let (full, filled) = mpsc::sync_channel(1);
        let (flushed, counter) = (tree.clone(), numbers.clone());
        let flusher = scope.spawn(move || filled.iter().try_for_each(|()| flush(&flushed, &counter)));
        let begun = Instant::now();
        for batch in batches {
            ensure!(batch.clears().is_empty(), "new documents clear no range");
            record.clear();
            for part in batch.rows().flat_map(|(key, value)| [Some(key), value]).flatten() {
                record.extend_from_slice(&u32::try_from(part.len())?.to_le_bytes());
                record.extend_from_slice(part);
            }
            log.write_all(&record)?;
            log.sync_data()?;
            let (number, mut bytes) = (numbers.next(), 0);
            for (key, value) in batch.rows() {
                let key = &*stored(key);
                (_, bytes) = match value {
                    Some(value) => tree.insert(key, &**value, number),
                    None => tree.remove(key, number),
                };
            }
            if bytes >= FLUSH_BYTES {
                tree.rotate_memtable();
                if full.send(()).is_err() {
                    break;
                }
            }
        }
        let took = begun.elapsed();
        drop(full);
        flusher.join().unwrap_or_else(|_| bail!("the flushes ended in a panic"))?;
        Ok(took)
    })?;
    tree.rotate_memtable();
    flush(&tree, &numbers)?;
    Ok(took)
}

/// Flushes the full rows in memory. Then compacts, if the level of the flushes is full.
fn flush(tree: &AnyTree, numbers: &SequenceNumberCounter) -> Result<()> {
    tree.flush(&tree.get_flush_lock(), numbers.get())?;
    Ok(tree.compact(Arc::new(Leveled::default()), numbers.get())?)
}

/// Repeats reads on a tree. Returns the bytes of the keys and values that were found.
pub(super) fn read(tree: &AnyTree, reads: &[RawRead]) -> Result<usize> {
    let mut bytes = 0;
    for read in reads {
        match read {
            RawRead::Get(key) => {
                bytes += tree.get(stored(key), SeqNo::MAX)?.map_or(0, |value| key.len() + black_box(value).len());
            }
            RawRead::Range { begin, end, direction, asked } => {
                let mut rows = tree.range(stored(begin)..stored(end), SeqNo::MAX, None);
                for _ in 0..*asked {
                    let row = if *direction == Direction::Forward { rows.next() } else { rows.next_back() };
                    let Some(row) = row else { break };
                    let (key, value) = black_box(row.into_inner()?);
                    bytes += key.len() + value.len();
                }
            }
        }
    }
    Ok(bytes)
}

/// The texts of the documents that [`Database::fill`](crate::http::work::Database::fill) writes, as a view gets them.
pub(super) fn texts(count: usize) -> Vec<String> {
    let mut source = Source::seeded(1);
    let rev = "0".repeat(32);
    let mut text = || format!(r#"{{"_id":"{}","_rev":"1-{rev}",{}}}"#, source.id(), source.members());
    (0..count).map(|_| text()).collect()
}

/// Maps documents in QuickJS, on as many threads as a server maps them, and returns the number of documents a second.
/// Rows come out as text. The function emits a row for each document.
pub(super) fn map(function: &str, texts: &[String]) -> Result<f64> {
    let script = format!(
        "(() => {{
            let rows;
            const emit = (key, value) => rows.push(JSON.stringify(key), JSON.stringify(value));
            const map = ({function});
            return (document) => {{ rows = []; map(document); return rows; }};
        }})()"
    );
    let of_thread = |texts: &[String]| -> Result<usize> {
        let context = rquickjs::Context::full(&Runtime::new()?)?;
        context.with(|context| {
            let map: Function<'_> = context.eval(script.as_str())?;
            let mut rows = 0;
            for text in texts {
                let emitted: Vec<String> = map.call((context.json_parse(text.as_str())?,))?;
                rows += black_box(emitted).len() / 2;
            }
            Ok(rows)
        })
    };
    let threads = thread::available_parallelism().map_or(2, usize::from).max(2);
    let begun = Instant::now();
    let rows: usize = thread::scope(|scope| {
        let parts = texts.chunks(texts.len().div_ceil(threads)).map(|texts| scope.spawn(|| of_thread(texts)));
        let parts: Vec<_> = parts.collect();
        parts
            .into_iter()
            .map(|part| part.join().unwrap_or_else(|_| bail!("a thread ended in a panic")))
            .sum::<Result<_>>()
    })?;
    ensure!(rows == texts.len(), "{rows} rows of {} documents", texts.len());
    Ok(rate(rows, begun.elapsed()))
}
