//! Attachments over HTTP: the memory of the server while a large one passes through it, and the speed of small and
//! large ones beside another server and beside files.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Args;

use super::client::{Address, Client};
use super::server::Spawned;
use benches::figures::Figures;
use benches::work::folder;

#[derive(Args)]
pub(crate) struct Options {
    /// The server to start
    #[arg(long, value_name = "PATH", default_value = "target/release/couch-layer")]
    binary: PathBuf,
    /// The engine, on a new temporary folder
    #[arg(long, default_value = "lsm")]
    engine: String,
    /// The cache of the engine, in bytes; without it the engine's default
    #[arg(long, value_name = "BYTES")]
    cache_size: Option<u64>,
    /// Size of the streamed attachments, in megabytes
    #[arg(long, default_value_t = 1_000)]
    large: u64,
    /// Another server, running already, as http://HOST:PORT or http://USER:PASSWORD@HOST:PORT
    #[arg(long, value_name = "URL")]
    rival: Option<Address>,
    /// Rounds of each size; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only memory, or only speed
    #[arg(long, value_enum)]
    only: Option<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Memory,
    Speed,
}

pub(crate) async fn run(options: Options) -> Result<()> {
    if options.only != Some(Part::Speed) {
        for format in ["exploded", "packed"] {
            stream(&options, format).await.with_context(|| format!("streams, {format}"))?;
        }
    }
    if options.only != Some(Part::Memory) {
        speed(&options).await?;
    }
    Ok(())
}

const PIECE: usize = 1 << 20;

/// 200 KB of English: this project's documents. zlib looks back only 32 KB, so it does not notice the repetition.
const PROSE: [&str; 13] = [
    include_str!("../../../CHANGELOG.md"),
    include_str!("../../../README.md"),
    include_str!("../../../docs/api.md"),
    include_str!("../../../docs/chunks.md"),
    include_str!("../../../docs/configuration.md"),
    include_str!("../../../docs/conformance.md"),
    include_str!("../../../docs/design.md"),
    include_str!("../../../docs/embedding.md"),
    include_str!("../../../docs/fdb-semantics.md"),
    include_str!("../../../docs/foundationdb.md"),
    include_str!("../../../docs/keyspace.md"),
    include_str!("../../../docs/rfcs.md"),
    include_str!("../../../docs/vault.md"),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Random bytes, which are stored uncompressed.
    Noise,
    /// English text, which is stored compressed.
    Text,
}

impl Kind {
    fn content_type(self) -> &'static str {
        match self {
            Kind::Noise => "application/octet-stream",
            Kind::Text => "text/plain",
        }
    }

    /// Content in pieces. Contents with different seeds differ, and so do the pieces of one.
    fn pieces(self, seed: u64, length: u64) -> impl Iterator<Item = Bytes> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let size = (PIECE as u64).min(length) as usize;
        let base: Vec<u8> = match self {
            Kind::Noise => std::iter::repeat_with(|| next().to_le_bytes()).flatten().take(size).collect(),
            Kind::Text => {
                let text = PROSE.concat();
                let begin = next() as usize % text.len();
                text.bytes().cycle().skip(begin).take(size).collect()
            }
        };
        (0..length.div_ceil(PIECE as u64)).map(move |n| {
            let mut piece = base[..(length - n * PIECE as u64).min(PIECE as u64) as usize].to_vec();
            let stamp = format!("{seed:016x}{n:016x}");
            let stamp = &stamp.as_bytes()[..stamp.len().min(piece.len())];
            piece[..stamp.len()].copy_from_slice(stamp);
            piece.into()
        })
    }
}

/// The largest resident memory of the server during each kind of transfer of an attachment.
async fn stream(options: &Options, format: &str) -> Result<()> {
    let length = options.large * 1_000_000;
    let arguments = options.cache_size.map(|bytes| vec!["--cache-size".to_owned(), bytes.to_string()]);
    let server = Spawned::start_with(&options.binary, &options.engine, &arguments.unwrap_or_default()).await?;
    let mut client = Client::connect(&server.address).await?;
    for database in ["a", "b", "c", "d"] {
        client.request("PUT", &format!("/{database}?format={format}"), Bytes::new()).await?;
    }
    let idle = server.memory().context("the system does not tell a process's memory")?;
    println!("{} MB, {format}; resident memory before: {:.0} MB", options.large, idle as f64 / 1e6);
    println!("{:<44} {:>8} {:>10} {:>12}", "stream", "MB/s", "peak MB", "above before");

    let document =
        format!(r#"{{"_attachments":{{"x":{{"follows":true,"content_type":"image/jpeg","length":{length}}}}}}}"#);
    let before = format!("--=\r\ncontent-type: application/json\r\n\r\n{document}\r\n--=\r\n\r\n");
    let after = "\r\n--=--";
    let address = server.address.to_string();
    let ranges = format!("range: bytes=1-{}\r\n", length - 2);
    let steps: &[(&str, Step<'_>)] = &[
        ("PUT of an attachment", Step::Put("/a/noise/x", Kind::Noise)),
        ("PUT of an attachment of text, compressed here", Step::Put("/b/text/x", Kind::Text)),
        ("PUT of a document in parts", Step::Parts("/c/parts")),
        ("GET of an attachment", Step::Get("/a/noise/x", "")),
        ("GET of a range of it", Step::Get("/a/noise/x", &ranges)),
        ("GET of text, as it is stored", Step::Get("/b/text/x", "accept-encoding: gzip\r\n")),
        ("GET of text, decompressed here", Step::Get("/b/text/x", "")),
        ("GET of a document in parts", Step::Get("/c/parts?attachments=true", "accept: multipart/related\r\n")),
        ("replication within the server", Step::Replicate("a".into(), "d".into())),
        ("replication over HTTP", Step::Replicate(format!("{address}/c"), format!("{address}/d"))),
    ];
    for (name, step) in steps {
        server.forget_most_memory()?;
        let begun = Instant::now();
        match step {
            Step::Put(path, kind) => {
                client.upload(path, kind.content_type(), length, kind.pieces(1, length)).await?;
            }
            Step::Parts(path) => {
                let all = (before.len() + after.len()) as u64 + length;
                let pieces = [Bytes::from(before.clone())].into_iter().chain(Kind::Noise.pieces(2, length));
                let pieces = pieces.chain([Bytes::from_static(after.as_bytes())]);
                client.upload(path, "multipart/related;boundary=\"=\"", all, pieces).await?;
            }
            Step::Get(path, headers) => {
                client.download(path, headers).await?;
            }
            Step::Replicate(source, target) => {
                let body = serde_json::json!({ "source": source, "target": target }).to_string();
                let answer = client.request("POST", "/_replicate", body).await?;
                let answer: serde_json::Value = serde_json::from_slice(&answer)?;
                ensure!(answer["history"][0]["docs_written"] == 1, "nothing was replicated: {answer}");
            }
        }
        let took = begun.elapsed();
        let peak = server.most_memory().context("the system does not tell a process's memory")?;
        println!(
            "{name:<44} {:>8.0} {:>10.0} {:>12.0}",
            options.large as f64 / took.as_secs_f64(),
            peak as f64 / 1e6,
            (peak as f64 - idle as f64) / 1e6
        );
    }
    server.stop().await
}

enum Step<'a> {
    Put(&'a str, Kind),
    Parts(&'a str),
    Get(&'a str, &'a str),
    Replicate(String, String),
}

/// A place for attachments.
enum Side {
    Server(Address),
    /// Files in a folder, each synced when it is written, as a server of ours syncs.
    Files,
}

/// Sizes, and the number of attachments in a round.
const SIZES: [(u64, usize); 3] = [(1_000, 400), (100_000, 100), (100_000_000, 2)];

/// Pause between writes and reads.
const PAUSE: Duration = Duration::from_secs(1);

/// Time for a round of one side. A side that needs longer, or fails, has no figures for that size.
const TIMEOUT: Duration = Duration::from_secs(120);

async fn speed(options: &Options) -> Result<()> {
    let server = Spawned::start(&options.binary, &options.engine).await?;
    let mut sides = vec![("ours", Side::Server(server.address.clone())), ("files", Side::Files)];
    if let Some(rival) = &options.rival {
        sides.push(("rival", Side::Server(rival.clone())));
    }
    print!("{:<28} {:<6}", "attachments a second", "");
    for (name, _) in &sides {
        print!(" {name:>10}");
    }
    println!("  ours/rival  spread");
    for kind in [Kind::Noise, Kind::Text] {
        for (length, count) in SIZES {
            let mut figures = vec![Some((Figures::default(), Figures::default())); sides.len()];
            for round in 0..options.rounds {
                for turn in 0..sides.len() {
                    // Every other round is backwards, so that a slow phase of the machine slows all sides equally.
                    let at = if round % 2 == 0 { turn } else { sides.len() - 1 - turn };
                    let Some((writes, reads)) = &mut figures[at] else { continue };
                    let seed = u64::from(round) << 32;
                    let rates = match &sides[at].1 {
                        Side::Server(address) => {
                            let rates = over_http(address, kind, length, count, seed);
                            tokio::time::timeout(TIMEOUT, rates).await.context("too slow").flatten()
                        }
                        Side::Files => in_files(kind, length, count, seed),
                    };
                    match rates {
                        Ok((written, read)) => {
                            writes.push(written);
                            reads.push(read);
                        }
                        Err(error) => {
                            eprintln!("{}, {length} B: {error:#}", sides[at].0);
                            figures[at] = None;
                        }
                    }
                }
            }
            let (written, read): (Vec<_>, Vec<_>) = figures.into_iter().map(Option::unzip).unzip();
            for (way, figures) in [("write", written), ("read", read)] {
                let spread = figures.iter().flatten().map(Figures::spread).fold(1.0, f64::max);
                print!("{:<28} {way:<6}", format!("{} B, {}", length, kind.content_type()));
                let median = |at: usize| figures.get(at)?.as_ref().map(Figures::median);
                let shown = |figure: Option<f64>| figure.map_or("none".to_owned(), |figure| format!("{figure:.1}"));
                (0..figures.len()).for_each(|at| print!(" {:>10}", shown(median(at))));
                let ratio = median(0).zip(median(2)).map(|(ours, rival)| ours / rival);
                println!("  {:>10}  {spread:.2}", ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.1}")));
            }
        }
    }
    server.stop().await
}

/// Writes attachments, each of a document of its own, and reads them. Returns the rates.
async fn over_http(address: &Address, kind: Kind, length: u64, count: usize, seed: u64) -> Result<(f64, f64)> {
    let mut client = Client::connect(address).await?;
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let database = format!("/attachments-{nanos:x}");
    client.request("PUT", &database, Bytes::new()).await?;
    let contents: Vec<Vec<Bytes>> = (0..count as u64).map(|n| kind.pieces(seed + n + 1, length).collect()).collect();
    let begun = Instant::now();
    for (n, content) in contents.into_iter().enumerate() {
        client.upload(&format!("{database}/doc-{n}/file"), kind.content_type(), length, content).await?;
    }
    let written = count as f64 / begun.elapsed().as_secs_f64();
    tokio::time::sleep(PAUSE).await;
    let begun = Instant::now();
    for n in 0..count {
        let path = format!("{database}/doc-{n}/file");
        ensure!(client.download(&path, "").await? == length, "{path} has another length");
    }
    let read = count as f64 / begun.elapsed().as_secs_f64();
    // The next round writes the same contents.
    client.request("DELETE", &database, Bytes::new()).await?;
    Ok((written, read))
}

fn in_files(kind: Kind, length: u64, count: usize, seed: u64) -> Result<(f64, f64)> {
    let folder = folder()?;
    let path = |n: usize| folder.path().join(format!("file-{n}"));
    let contents: Vec<Vec<Bytes>> = (0..count as u64).map(|n| kind.pieces(seed + n + 1, length).collect()).collect();
    let begun = Instant::now();
    for (n, content) in contents.into_iter().enumerate() {
        let mut file = std::fs::File::create(path(n))?;
        content.iter().try_for_each(|piece| file.write_all(piece))?;
        file.sync_all()?;
    }
    let written = count as f64 / begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    for n in 0..count {
        ensure!(std::fs::read(path(n))?.len() as u64 == length, "a file has another length");
    }
    Ok((written, count as f64 / begun.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_have_their_length_and_differ() {
        for kind in [Kind::Noise, Kind::Text] {
            for length in [1, 1_000, 2 * PIECE as u64 + 7] {
                let content = |seed| kind.pieces(seed, length).collect::<Vec<_>>().concat();
                assert_eq!(content(1).len() as u64, length);
                assert_eq!(content(1), content(1));
                assert!(length < 32 || content(1) != content(2));
            }
        }
    }
}
