//! The space of deleted data: the size of the folder compared with the live data, while new documents replace old ones,
//! at rest, and after a database is dropped.
//!
//! While documents are written, the folder is measured ten times a second. The most that it had is printed with what it
//! consisted of: the log, flushes that are not compacted, tables of the levels below, and files that are in no level,
//! which a compaction writes or a snapshot still reads. The text is random, so that compression takes little of it.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use benches::engines::{Engine, Mem, Syncing};
use benches::work::{disk, folder};
use clap::{Args, ValueEnum};
use futures_executor::block_on;
use kv_api::figures::Value;
use kv_api::{Database, Figure};
use model::{BodyFormat, CreateOptions, Documents, Edit, JsonText, Layer, LayerOptions, RevId, UploadAs, WriteMode};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

#[derive(Args)]
pub(crate) struct Options {
    /// The engine: mem, lsm or sled
    #[arg(long, default_value = "lsm")]
    engine: String,
    /// Megabytes that stay live
    #[arg(long, default_value_t = 76)]
    live: usize,
    /// Megabytes that are written; a third of it for the dropped database
    #[arg(long, default_value_t = 915)]
    written: usize,
    /// Seconds of rest before the folder is measured again
    #[arg(long, default_value_t = 60)]
    rest: u64,
    /// The kind of data; all kinds by default
    #[arg(long)]
    kind: Option<Kind>,
}

/// The kind of written and deleted data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Documents of 80 KB
    Large,
    /// Documents of 4 KB
    Small,
    /// Attachments of a megabyte
    Attachments,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Large, Kind::Small, Kind::Attachments];

    fn name(self) -> &'static str {
        match self {
            Kind::Large => "documents of 80 KB",
            Kind::Small => "documents of 4 KB",
            Kind::Attachments => "attachments of 1 MB",
        }
    }

    fn bytes(self) -> usize {
        match self {
            Kind::Large => 80_000,
            Kind::Small => 4_000,
            Kind::Attachments => 1_000_000,
        }
    }
}

pub(crate) fn run(options: Options) -> Result<()> {
    match options.engine.as_str() {
        "mem" => measure::<Mem>(&options),
        #[cfg(feature = "lsm")]
        "lsm" => measure::<benches::engines::Lsm>(&options),
        #[cfg(feature = "sled")]
        "sled" => measure::<benches::engines::Sled>(&options),
        other => bail!("there is no engine {other} in this build"),
    }
}

fn measure<E: Engine>(options: &Options) -> Result<()> {
    println!("MB of the folder, {} MB live, on {}", options.live, E::NAME);
    println!("{:<22}{:>14}{:>10}{:>14}", "", "written", "folder", "for a byte");
    for kind in Kind::ALL.into_iter().filter(|kind| options.kind.is_none_or(|only| only == *kind)) {
        let folder = folder()?;
        let database = E::database(folder.path(), Syncing::Synced);
        let layer = block_on(Layer::open(database.clone(), LayerOptions::default()))?;
        let live = (options.live * 1_000_000 / kind.bytes()).max(1);
        let count = (options.written * 1_000_000 / kind.bytes()).max(1);
        let mut ring = Ring::new(&layer, "ring", kind)?;
        let written = written_bytes();
        let most = with_most(&database, folder.path(), || {
            for step in 1..=4 {
                ring.write_until(count * step / 4, live)?;
                print(kind, &megabytes((ring.count * kind.bytes()) as u64), folder.path(), options.live)?;
            }
            Ok(())
        })?;
        println!("{:<22}{most}", kind.name());
        ring.times.sort_unstable();
        let (all, slow) = (ring.times.iter().sum::<Duration>(), ring.times[ring.times.len() * 99 / 100]);
        let bytes = (ring.count * kind.bytes()) as f64;
        let factor = written.zip(written_bytes()).map(|(before, after)| (after - before) as f64 / bytes);
        let factor = factor.map_or("-".into(), |factor| format!("{factor:.2}"));
        println!(
            "{:<22}bytes written for a byte: {factor}; {:.1} s of writes, 99 % of them below {} ms",
            kind.name(),
            all.as_secs_f64(),
            slow.as_millis()
        );
        std::thread::sleep(Duration::from_secs(options.rest));
        print(kind, "at rest", folder.path(), options.live)?;

        let mut dropped = Ring::new(&layer, "dropped", kind)?;
        dropped.write_until(count / 3, usize::MAX)?;
        print(kind, "with another", folder.path(), options.live)?;
        block_on(layer.delete_database("dropped"))?;
        std::thread::sleep(Duration::from_secs(options.rest));
        print(kind, "it is dropped", folder.path(), options.live)?;
    }
    Ok(())
}

fn megabytes(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / 1e6)
}

fn print(kind: Kind, when: &str, folder: &Path, live: usize) -> Result<()> {
    let bytes = if folder.is_dir() { disk(folder)? } else { 0 };
    let times = bytes as f64 / 1e6 / live as f64;
    println!("{:<22}{when:>14}{:>10}{times:>14.2}", kind.name(), megabytes(bytes));
    Ok(())
}

/// Bytes that this process has written, if the system tells.
fn written_bytes() -> Option<u64> {
    let io = std::fs::read_to_string("/proc/self/io").ok()?;
    io.lines().find_map(|line| line.strip_prefix("wchar: "))?.parse().ok()
}

/// What a folder consists of at one moment, in bytes.
#[derive(Clone, Default)]
struct Parts {
    total: u64,
    log: u64,
    /// Current tables of each level.
    levels: Vec<u64>,
}

impl Parts {
    fn of(database: &impl Database, folder: &Path) -> Result<Self> {
        let is_level = |figure: &Figure| figure.name == "couch_layer_table_bytes";
        let levels = database.figures().into_iter().filter(is_level).map(|figure| match figure.value {
            Value::Gauge(bytes) => bytes as u64,
            _ => 0,
        });
        let log = |name| std::fs::metadata(folder.join(name)).map_or(0, |file| file.len());
        let (levels, log) = (levels.collect(), log("log.0") + log("log.1"));
        // A file may be deleted between its listing and the question for its length.
        let total = (0..20).find_map(|_| disk(folder).ok()).unwrap_or_default();
        Ok(Parts { total, log, levels })
    }
}

impl std::fmt::Display for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let listed: u64 = self.levels.iter().sum();
        let flushes = self.levels.first().copied().unwrap_or_default();
        write!(
            f,
            "most: {}, of them log {}, flushes {}, levels below {}, in no level {}",
            megabytes(self.total),
            megabytes(self.log),
            megabytes(flushes),
            megabytes(listed - flushes),
            megabytes(self.total.saturating_sub(listed + self.log))
        )
    }
}

/// Does the work, and returns the most that the folder had meanwhile.
fn with_most<D: Database>(database: &D, folder: &Path, work: impl FnOnce() -> Result<()>) -> Result<Parts> {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut most = Parts::default();
            while folder.is_dir() && !is_done.load(Ordering::Relaxed) {
                let now = Parts::of(database, folder)?;
                if now.total > most.total {
                    most = now;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(most)
        });
        let worked = work();
        is_done.store(true, Ordering::Relaxed);
        let most = watching.join().unwrap_or_else(|_| bail!("the folder could not be measured"));
        worked.and(most)
    })
}

/// A database whose oldest documents are deleted as new ones come.
struct Ring<D: Database> {
    documents: Documents<D>,
    kind: Kind,
    random: StdRng,
    /// Number of documents that were written.
    count: usize,
    live: VecDeque<(String, RevId)>,
    /// How long each write took.
    times: Vec<Duration>,
}

impl<D: Database> Ring<D> {
    fn new(layer: &Layer<D>, name: &str, kind: Kind) -> Result<Self> {
        let options = CreateOptions { format: Some(BodyFormat::Packed), ..CreateOptions::default() };
        let documents = block_on(layer.create_database(name, options))?;
        Ok(Ring {
            documents,
            kind,
            random: StdRng::seed_from_u64(1),
            count: 0,
            live: VecDeque::new(),
            times: Vec::new(),
        })
    }

    /// Writes until `count` documents were written, a megabyte in each bulk, and keeps the newest `live`.
    fn write_until(&mut self, count: usize, live: usize) -> Result<()> {
        while self.count < count {
            let bulk = (1_000_000 / self.kind.bytes()).clamp(1, count - self.count);
            self.count += bulk;
            let ids = (self.count - bulk..self.count).map(|number| format!("{number:09}"));
            if self.kind == Kind::Attachments {
                for id in ids {
                    let rev = self.attach(&id)?;
                    self.live.push_back((id, rev));
                }
            } else {
                let ids: Vec<String> = ids.collect();
                let edits = ids.iter().map(|id| Ok(Edit::new(id, self.body()?))).collect::<Result<_>>()?;
                let revs = self.write(edits)?;
                self.live.extend(ids.into_iter().zip(revs));
            }
            let old = self.live.len().saturating_sub(live);
            let deleted: Vec<Edit> = self
                .live
                .drain(..old)
                .map(|(id, rev)| Edit::new(id, JsonText::empty_object()).over(rev).deleting())
                .collect();
            if !deleted.is_empty() {
                self.write(deleted)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, edits: Vec<Edit>) -> Result<Vec<RevId>> {
        let begun = Instant::now();
        let results = block_on(self.documents.write(edits, WriteMode::Interactive))?;
        self.times.push(begun.elapsed());
        Ok(results.into_iter().collect::<Result<_, _>>()?)
    }

    fn body(&mut self) -> Result<JsonText> {
        let text: String = (0..self.kind.bytes()).map(|_| char::from(self.random.random_range(b'0'..=b'Z'))).collect();
        Ok(JsonText::parse(serde_json::json!({ "text": text }).to_string().as_bytes())?)
    }

    fn attach(&mut self, id: &str) -> Result<RevId> {
        let bytes: Vec<u8> = (0..self.kind.bytes()).map(|_| self.random.random()).collect();
        let begun = Instant::now();
        let rev = block_on(async {
            let mut upload = self.documents.upload("a", UploadAs::Plain { content_type: "image/png" });
            upload.write(&bytes).await?;
            let content = upload.finish().await?;
            Ok(self.documents.put_attachment(id, None, "a", "image/png", content).await?)
        });
        self.times.push(begun.elapsed());
        rev
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_documents_stay_live() {
        for kind in Kind::ALL {
            let layer = block_on(Layer::open(engine_mem::MemDatabase::new(), LayerOptions::default())).unwrap();
            let mut ring = Ring::new(&layer, "ring", kind).unwrap();
            ring.write_until(5, 2).unwrap();
            let info = block_on(ring.documents.info()).unwrap();
            assert_eq!((info.doc_count, info.doc_del_count), (2, 3), "{kind:?}");
        }
    }

    #[test]
    fn every_kind_is_measured() {
        let options = Options { engine: "mem".into(), live: 2, written: 4, rest: 0, kind: None };
        measure::<Mem>(&options).unwrap();
    }
}
