//! The memory of the server while clients read a long answer slowly.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::client::Client;
use super::server::Spawned;
use benches::documents::Source;

#[derive(Args)]
pub(crate) struct Options {
    /// The server to start
    #[arg(long, value_name = "PATH", default_value = "target/release/couch-layer")]
    binary: PathBuf,
    /// The engine, on a new temporary folder
    #[arg(long, default_value = "lsm")]
    engine: String,
    /// Number of documents, which is the number of rows in each answer
    #[arg(long, default_value_t = 1_000_000)]
    rows: usize,
    /// Number of clients; one client reads first, alone
    #[arg(long, default_value_t = 1_000)]
    clients: usize,
    /// Bytes that each client reads in a second
    #[arg(long, default_value_t = 10_000)]
    rate: usize,
    /// Seconds for which they read
    #[arg(long, default_value_t = 20)]
    seconds: u32,
}

/// Size of the buffer for bytes that a client's system receives before the client reads them. With the usual size,
/// megabytes of each answer would be on their way to the client, and the server would not wait.
const RECEIVE_BUFFER: u32 = 16 << 10;

pub(crate) async fn run(options: Options) -> Result<()> {
    let server = Spawned::start(&options.binary, &options.engine).await?;
    let mut client = Client::connect(&server.address).await?;
    client.request("PUT", "/slow", Bytes::new()).await?;
    let mut documents = Source::seeded(1);
    let mut left = options.rows;
    while left > 0 {
        let some = left.min(1_000);
        client.request("POST", "/slow/_bulk_docs", documents.bulk(some)).await?;
        left -= some;
    }
    println!("{:<34} {:>8} {:>12} {:>10} {:>12}", "answer", "clients", "MB before", "peak MB", "KB a client");
    for path in
        ["/slow/_changes", "/slow/_all_docs", "/slow/_changes?include_docs=true", "/slow/_all_docs?include_docs=true"]
    {
        for clients in [1, options.clients] {
            // Caches and memory that the allocator keeps are not part of a client's cost. A connection that was idle
            // during the earlier reads may have been closed by the server.
            client = Client::connect(&server.address).await?;
            client.download(path, "").await?;
            tokio::time::sleep(Duration::from_secs(3)).await;
            server.forget_most_memory()?;
            let before = server.memory().context("the system does not tell a process's memory")?;
            let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", server.address.host());
            let mut reading = Vec::with_capacity(clients);
            for _ in 0..clients {
                let host = server.address.host().parse()?;
                let (request, rate, seconds) = (request.clone(), options.rate, options.seconds);
                reading.push(tokio::spawn(async move {
                    let socket = TcpSocket::new_v4()?;
                    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
                    let mut stream = socket.connect(host).await?;
                    stream.write_all(request.as_bytes()).await?;
                    let mut ticks = tokio::time::interval(Duration::from_secs(1));
                    let mut buffer = vec![0; rate];
                    for _ in 0..seconds {
                        ticks.tick().await;
                        stream.read_exact(&mut buffer).await?;
                    }
                    ensure!(!buffer.is_empty(), "nothing was read");
                    anyhow::Ok(stream)
                }));
            }
            // The connections stay until all have read.
            let mut streams = Vec::with_capacity(clients);
            for reading in reading {
                streams.push(reading.await??);
            }
            let peak = server.most_memory().context("the system does not tell a process's memory")?;
            println!(
                "{path:<34} {clients:>8} {:>12.0} {:>10.0} {:>12.0}",
                before as f64 / 1e6,
                peak as f64 / 1e6,
                (peak as f64 - before as f64) / 1e3 / clients as f64
            );
            drop(streams);
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }
    server.stop().await
}
