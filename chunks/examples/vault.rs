//! Measures a push of a folder of one gigabyte to a database, and the pull.
//!
//! ```text
//! cargo run --release -p couch-layer-chunks --example vault -- generate FOLDER [MEGABYTES]
//! cargo run --release -p couch-layer-chunks --example vault -- measure FOLDER ENGINE [http]
//! cargo run --release -p couch-layer-chunks --example vault -- cuts
//! cargo run --release -p couch-layer-chunks --example vault -- versions
//! ```
//!
//! `generate` makes a folder of notes and attachments, the same in every run. `measure` pushes it to a new
//! database in ENGINE (`lsm:FOLDER`, `sled:FOLDER`), in process or through a server process, pushes it again,
//! pulls it, and compares all bytes. Memory is the peak of the process (`VmHWM`), with the server's beside it.
//! `cuts` inserts a character at the front of files of 64 MiB, `versions` edits a note a thousand times.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chunks::ChunkStore;
use chunks::store::{DocumentStore, PeerStore};
use chunks::vault::{Progress, PushOptions, Vault};
use engine_mem::MemDatabase;
use model::{CreateOptions, Layer, LayerOptions};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use server::engine::{self, IfMissing};
use server::http::{Options, Server};

/// The same allocator as the server's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "generate FOLDER [MEGABYTES] | measure FOLDER ENGINE [http] | cuts | versions";
const SEED: u64 = 20_261_121;
const MEGABYTE: u64 = 1_000_000;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["generate", folder] => generate(Path::new(folder), 1_000),
        ["generate", folder, megabytes] => generate(Path::new(folder), megabytes.parse()?),
        ["measure", folder, engine] => measure(Path::new(folder), engine, false).await,
        ["measure", folder, engine, "http"] => measure(Path::new(folder), engine, true).await,
        ["cuts"] => cuts().await,
        ["versions"] => versions().await,
        ["serve", engine] => serve(engine).await,
        _ => Err(USAGE.into()),
    }
}

/// Notes for a twentieth of the bytes, long texts for another twentieth, attachments of all sizes for the rest.
fn generate(folder: &Path, megabytes: u64) -> Result<(), Failure> {
    let mut dice = StdRng::seed_from_u64(SEED);
    let words: Vec<String> = (0..20_000)
        .map(|_| {
            let length = dice.random_range(2..11);
            (0..length).map(|_| char::from(dice.random_range(b'a'..=b'z'))).collect()
        })
        .collect();
    let (total, mut done, mut number) = (megabytes * MEGABYTE, 0, 0);
    let (mut notes, mut tables) = (0, 0);
    while done < total {
        number += 1;
        let (path, content) = if notes * 20 <= done {
            let length = 200 * dice.random_range(1..10) * dice.random_range(1..10);
            let content = note(&mut dice, &words, length).into_bytes();
            notes += content.len() as u64;
            (format!("Notes {}/{}/Note {number}.md", number % 7, words[number % 90]), content)
        } else if tables * 20 <= done {
            let length = dice.random_range(50_000..2_000_000);
            let content = note(&mut dice, &words, length).into_bytes();
            tables += content.len() as u64;
            (format!("Tables/table {number}.csv"), content)
        } else {
            // Most files are small, most bytes are in large files.
            let length = 1_000 << dice.random_range(0..14);
            let length = length + dice.random_range(0..length);
            let mut content = vec![0; length];
            dice.fill_bytes(&mut content);
            (format!("Attachments/{}/image {number}.png", number % 50), content)
        };
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().ok_or("no folder")?)?;
        std::fs::write(path, &content)?;
        done += content.len() as u64;
        eprint!("\r{} of {megabytes} MB, {number} files", done / MEGABYTE);
    }
    eprintln!();
    Ok(())
}

fn note(dice: &mut StdRng, words: &[String], bytes: usize) -> String {
    let mut note = String::from("---\ntags: [note]\n---\n");
    while note.len() < bytes {
        // Some words are more frequent than others.
        let word = dice.random_range(0..words.len()) * dice.random_range(0..100) / 100;
        note.push_str(&words[word]);
        note.push_str(match dice.random_range(0..40) {
            0 => ".\n\n",
            1 => ".\n- [[",
            2 => " \u{2013} ",
            _ => " ",
        });
    }
    note
}

async fn measure(folder: &Path, url: &str, over_http: bool) -> Result<(), Failure> {
    let mut serving = None;
    let store: Arc<dyn DocumentStore> = if over_http {
        let (process, address) = start(url)?;
        serving = Some(process);
        Arc::new(PeerStore::http(&format!("http://{address}/vault"), None)?)
    } else {
        let layer = Layer::open(engine::open(&url.parse()?, IfMissing::Create)?, LayerOptions::default()).await?;
        Arc::new(PeerStore::local(layer.create_database("vault", CreateOptions::default()).await?))
    };
    let vault = Vault::new(ChunkStore::new(store));
    let way = if over_http { "over HTTP" } else { "in process" };
    println!("{url}, {way}");

    let (started, before) = (Instant::now(), processor_seconds(&serving));
    let pushed = vault.push(folder, PushOptions::default(), tell(started)).await?;
    let (taken, used) = (started.elapsed(), processor_seconds(&serving) - before);
    eprintln!();
    if !pushed.problems.is_empty() {
        return Err(format!("{} problems, {} among them", pushed.problems.len(), pushed.problems[0]).into());
    }
    let (megabytes, files) = (pushed.bytes_read as f64 / 1e6, pushed.written);
    println!(
        "push: {files} files, {megabytes:.0} MB in {:.1} s, {:.1} MB/s ({used:.1} s of a processor); {} chunks, {:.0} MB of documents; memory {}",
        taken.as_secs_f64(),
        megabytes / taken.as_secs_f64(),
        pushed.new_chunks,
        pushed.document_bytes as f64 / 1e6,
        memory(&serving),
    );

    let started = Instant::now();
    let again = vault.push(folder, PushOptions::default(), |_| ()).await?;
    println!("push again: {} unchanged in {:.2} s", again.unchanged, started.elapsed().as_secs_f64());
    let started = Instant::now();
    let again = vault.push(folder, PushOptions { checksum: true, ..PushOptions::default() }, |_| ()).await?;
    println!("push again, all read: {} unchanged in {:.1} s", again.unchanged, started.elapsed().as_secs_f64());

    let into = tempfile::tempdir_in(folder.parent().unwrap_or(folder))?;
    let (started, before) = (Instant::now(), processor_seconds(&serving));
    let pulled = vault.pull(into.path(), Default::default(), tell(started)).await?;
    let (taken, used) = (started.elapsed(), processor_seconds(&serving) - before);
    eprintln!();
    println!(
        "pull: {} files in {:.1} s, {:.1} MB/s ({used:.1} s of a processor); memory {}",
        pulled.written,
        taken.as_secs_f64(),
        pulled.bytes_written as f64 / 1e6 / taken.as_secs_f64(),
        memory(&serving),
    );
    let compared = compare(folder, into.path())?;
    println!("compared byte for byte: {compared} files");
    if compared != files || !pulled.problems.is_empty() {
        return Err("not all came back".into());
    }
    let stats = vault.stats(|_| ()).await?;
    println!(
        "{} documents, {} of indexes, {} of data, {:.0} MB of JSON",
        stats.database.documents,
        stats.index_documents,
        stats.data_documents,
        stats.database.document_bytes as f64 / 1e6
    );
    drop(vault);
    if let Some(mut process) = serving {
        // It ends when its input ends.
        drop(process.stdin.take());
        process.wait()?;
    }
    let folder = url.split_once(':').map_or(url, |(_, folder)| folder);
    if !folder.is_empty() {
        println!("on disk: {:.0} MB", size_of(Path::new(folder))? as f64 / 1e6);
    }
    Ok(())
}

fn tell(started: Instant) -> impl FnMut(Progress) + Send {
    let mut last = Duration::ZERO;
    move |at: Progress| {
        let now = started.elapsed();
        if now - last > Duration::from_millis(500) {
            last = now;
            eprint!(
                "\r{} of {} MB, {} files, {} s   ",
                at.bytes / MEGABYTE,
                at.total_bytes / MEGABYTE,
                at.files,
                now.as_secs()
            );
        }
    }
}

/// Number of files that are equal in both folders. A difference is an error.
fn compare(one: &Path, other: &Path) -> Result<u64, Failure> {
    let (mut count, mut folders) = (0, vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(one.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if std::fs::read(one.join(&path))? == std::fs::read(other.join(&path))? {
                count += 1;
            } else {
                return Err(format!("{} differs", path.display()).into());
            }
        }
    }
    Ok(count)
}

fn size_of(folder: &Path) -> Result<u64, Failure> {
    let mut size = 0;
    for entry in std::fs::read_dir(folder)? {
        let metadata = entry?;
        let kind = metadata.metadata()?;
        size += if kind.is_dir() { size_of(&metadata.path())? } else { kind.len() };
    }
    Ok(size)
}

/// Peak memory of this process, and of the server.
fn memory(serving: &Option<Child>) -> String {
    let peak = |process: &str| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
        let kilobytes = line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
        format!("{} MB", kilobytes / 1_000)
    };
    match serving {
        None => peak("self"),
        Some(child) => format!("{}, the server {}", peak("self"), peak(&child.id().to_string())),
    }
}

/// Processor time of this process and of the server, which other load on the machine does not change.
fn processor_seconds(serving: &Option<Child>) -> f64 {
    let used = |process: &str| -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // After the name, which may contain spaces: user and system time, in hundredths of a second.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
    };
    used("self") + serving.as_ref().map_or(0.0, |child| used(&child.id().to_string()))
}

/// Starts this program again as a server.
fn start(engine: &str) -> Result<(Child, String), Failure> {
    let mut process = Command::new(std::env::current_exe()?)
        .args(["serve", engine])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut address = String::new();
    BufReader::new(process.stdout.take().ok_or("no output")?).read_line(&mut address)?;
    Ok((process, address.trim().to_owned()))
}

/// Serves until the input ends.
async fn serve(url: &str) -> Result<(), Failure> {
    let layer = Layer::open(engine::open(&url.parse()?, IfMissing::Create)?, LayerOptions::default()).await?;
    layer.create_database("vault", CreateOptions::default()).await?;
    let server = Server::start(layer, "127.0.0.1:0".parse()?, Options::default()).await?;
    println!("{}", server.address());
    std::io::stdout().flush()?;
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    server.stop().await;
    Ok(())
}

/// A vault in memory, and a folder to push from.
async fn in_memory() -> Result<(Vault, tempfile::TempDir), Failure> {
    let layer = Layer::open(MemDatabase::new(), LayerOptions::default()).await?;
    let documents = layer.create_database("vault", CreateOptions::default()).await?;
    Ok((Vault::new(ChunkStore::new(Arc::new(PeerStore::local(documents)))), tempfile::tempdir()?))
}

async fn cuts() -> Result<(), Failure> {
    println!("| 64 MiB of | chunks | after a character at the front: new | used again |");
    println!("|---|---|---|---|");
    let mut dice = StdRng::seed_from_u64(SEED);
    let words: Vec<String> = (0..5_000).map(|number| format!("word{number}")).collect();
    let mut noise = vec![0; 64 << 20];
    dice.fill_bytes(&mut noise);
    for (kind, content) in [("text", note(&mut dice, &words, 64 << 20).into_bytes()), ("noise", noise)] {
        let (vault, folder) = in_memory().await?;
        let place = folder.path().join("file");
        std::fs::write(&place, &content)?;
        vault.push(folder.path(), PushOptions::default(), |_| ()).await?;
        let before = vault.stats(|_| ()).await?;
        std::fs::write(&place, [b"x".to_vec(), content].concat())?;
        let pushed = vault.push(folder.path(), PushOptions::default(), |_| ()).await?;
        let after = vault.stats(|_| ()).await?;
        let used = after.referenced_chunks - pushed.new_chunks;
        println!(
            "| {kind} | {} | {} | {:.2} % |",
            before.referenced_chunks,
            pushed.new_chunks,
            used as f64 * 100.0 / after.referenced_chunks as f64
        );
    }
    Ok(())
}

async fn versions() -> Result<(), Failure> {
    println!("| note | versions | changed in each | all versions whole | chunks stored | for each version |");
    println!("|---|---|---|---|---|---|");
    let words: Vec<String> = (0..5_000).map(|number| format!("word{number}")).collect();
    for size in [4_000, 16_000, 40_000] {
        let mut dice = StdRng::seed_from_u64(SEED);
        let (vault, folder) = in_memory().await?;
        let place = folder.path().join("note.md");
        let mut text = note(&mut dice, &words, size);
        std::fs::write(&place, &text)?;
        let mut stored = vault.push(folder.path(), PushOptions::default(), |_| ()).await?.chunk_bytes;
        let (mut whole, mut changed, first, mut seen) = (text.len() as u64, 0, stored, HashSet::new());
        for _ in 0..1_000 {
            let mut at = dice.random_range(0..text.len());
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            let length = dice.random_range(10..100);
            let mut sentence = note(&mut dice, &words, length + 21).split_off(21);
            // Each change removes as much as it inserts, so the note keeps its size.
            let end = (at + sentence.len()..text.len()).find(|&end| text.is_char_boundary(end)).unwrap_or(text.len());
            changed += sentence.len() as u64;
            sentence.push('\n');
            text.replace_range(at..end, &sentence);
            seen.insert(text.clone());
            std::fs::write(&place, &text)?;
            let options = PushOptions { checksum: true, ..PushOptions::default() };
            stored += vault.push(folder.path(), options, |_| ()).await?.chunk_bytes;
            whole += text.len() as u64;
        }
        let versions = seen.len() as u64;
        println!(
            "| {size} | {versions} | {} | {whole} | {stored} | {} |",
            changed / versions,
            (stored - first) / versions
        );
    }
    Ok(())
}
