//! The cost of each kind of documents in each layout: instructions of each use, and bytes at rest.
//!
//! Nothing is timed. Instructions are those of the calling thread, as in [`counts`](crate::counts): a write's without
//! the flush, and a read's from tables whose blocks are in the cache. The table decides the layout of a server's new
//! databases.

use std::hint::black_box;

use anyhow::{Context, Result, ensure};
use benches::documents::Source;
use benches::engines::{Engine, Lsm, Syncing};
use benches::work::documents::{FORMATS, create, store};
use benches::work::{disk, folder};
use clap::Args;
use futures_executor::block_on;
use kv_api::Database;
use model::{
    BodyFormat, ChangesRequest, CreateOptions, Documents, Edit, GetOptions, JsonText, Layer, LayerOptions, Since,
    WriteMode,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::counts::{Prepared, counted, instructions};

#[derive(Args)]
pub(crate) struct Options {
    /// Runs one cell of the table; callgrind is started with this
    #[arg(long, hide = true, value_name = "KIND/USE/LAYOUT")]
    inside: Option<String>,
}

/// A kind of documents. Each has a member `n`, by which a search finds it.
struct Kind {
    name: &'static str,
    /// Number of documents for counts, and for the folder at rest.
    counted: usize,
    kept: usize,
    body: fn(usize, &mut StdRng) -> String,
}

const KINDS: [Kind; 6] = [
    Kind { name: "a counter", counted: 300, kept: 30_000, body: |n, _| format!(r#"{{"n":{n}}}"#) },
    Kind {
        name: "a record, 11 leaves",
        counted: 300,
        kept: 30_000,
        body: |n, _| format!(r#"{{"n":{n},{}}}"#, Source::seeded(n as u64).members()),
    },
    Kind {
        name: "a chunk, 450 bytes of text",
        counted: 300,
        kept: 30_000,
        body: |n, random| format!(r#"{{"n":{n},"data":"{}","type":"leaf"}}"#, words(450, random)),
    },
    Kind {
        name: "20 records, 4 KB",
        counted: 100,
        kept: 2_000,
        body: |n, _| {
            let mut source = Source::seeded(n as u64);
            let records: Vec<String> = (0..20).map(|_| source.document()).collect();
            format!(r#"{{"n":{n},"records":[{}]}}"#, records.join(","))
        },
    },
    Kind {
        name: "80 KB of text",
        counted: 20,
        kept: 200,
        body: |n, random| format!(r#"{{"n":{n},"text":"{}"}}"#, words(80_000, random)),
    },
    Kind {
        name: "40 objects in one another",
        counted: 100,
        kept: 5_000,
        body: |n, _| (0..40).fold(format!(r#"{{"n":{n}}}"#), |inner, at| format!(r#"{{"n":{at},"child":{inner}}}"#)),
    },
];

/// Words of a small language, so that text compresses about as prose does.
fn words(bytes: usize, random: &mut StdRng) -> String {
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        // Few words are frequent: the third power of an even number.
        let rank = (random.random_range(0.0..1.0_f64).powi(3) * 4_000.0) as u64;
        let letters = StdRng::seed_from_u64(rank).random::<u64>();
        (0..2 + letters % 8).for_each(|at| text.push(char::from(b'a' + (letters >> (8 + at * 6) & 63) as u8 % 26)));
        text.push(' ');
    }
    text
}

impl Kind {
    fn edits(&self, seed: u64, count: usize) -> Result<Vec<Edit>> {
        let (mut ids, mut random) = (Source::seeded(seed), StdRng::seed_from_u64(seed));
        let body = |n| Ok(JsonText::parse((self.body)(n, &mut random).as_bytes())?);
        (0..count).map(body).map(|body: Result<_>| Ok(Edit::new(ids.id(), body?))).collect()
    }
}

/// Prepares a use of documents of a kind in a layout.
type Prepare = fn(&Kind, BodyFormat) -> Result<Prepared>;

/// Name of a use, and what prepares it for a kind in a layout.
const USES: [(&str, Prepare); 5] = [
    ("PUT", |kind, format| write(kind, 1, format)),
    ("bulk of 100", |kind, format| write(kind, 100, format)),
    ("GET", |kind, format| read(kind, format, get)),
    ("feed", |kind, format| read(kind, format, feed)),
    ("_find", |kind, format| read(kind, format, find)),
];

fn write(kind: &Kind, together: usize, format: BodyFormat) -> Result<Prepared> {
    let folder = folder()?;
    let (first, calls) = (kind.edits(1, 100)?, kind.edits(2, kind.counted)?);
    let documents = create(Lsm::database(folder.path(), Syncing::Synced), format)?;
    store(&documents, first)?;
    Ok(Box::new(move || {
        for call in calls.chunks(together) {
            for result in block_on(documents.write(call.to_vec(), WriteMode::Interactive))? {
                black_box(result?);
            }
        }
        Ok(Box::new((documents, folder)))
    }))
}

type Use<D> = fn(&Documents<D>, &[String]) -> Result<usize>;

fn read(kind: &Kind, format: BodyFormat, reads: Use<<Lsm as Engine>::Database>) -> Result<Prepared> {
    let folder = folder()?;
    let edits = kind.edits(1, kind.counted)?;
    let ids: Vec<String> = edits.iter().map(|edit| edit.id.clone()).collect();
    let database = Lsm::database(folder.path(), Syncing::Synced);
    let documents = create(database.clone(), format)?;
    block_on(documents.index().fields(["n"]).create())?;
    store(&documents, edits)?;
    database.close()?;
    drop((documents, database));
    let layer = block_on(Layer::open(Lsm::database(folder.path(), Syncing::Synced), LayerOptions::default()))?;
    let documents = block_on(layer.database("bench"))?;
    // The blocks are in the cache afterwards.
    ensure!(reads(&documents, &ids)? == ids.len(), "not all documents were read");
    Ok(Box::new(move || {
        reads(&documents, &ids)?;
        Ok(Box::new((documents, folder)))
    }))
}

fn get<D: Database>(documents: &Documents<D>, ids: &[String]) -> Result<usize> {
    for id in ids {
        black_box(block_on(documents.get(id, &GetOptions::default()))?.to_json());
    }
    Ok(ids.len())
}

/// Without the row of the design document.
fn feed<D: Database>(documents: &Documents<D>, _: &[String]) -> Result<usize> {
    let (mut read, mut request) = (0, ChangesRequest { include_docs: true, ..ChangesRequest::default() });
    loop {
        let batch = block_on(documents.changes(&request))?;
        for document in batch.rows.iter().filter_map(|change| change.doc.as_ref()) {
            black_box(document.to_json());
            read += 1;
        }
        if !batch.more {
            return Ok(read - 1);
        }
        request.since = Since::Seq(batch.last_seq);
    }
}

fn find<D: Database>(documents: &Documents<D>, _: &[String]) -> Result<usize> {
    let found = block_on(documents.find(JsonText::parse(br#"{"n":{"$gte":0}}"#)?).sort(["n"]).all())?;
    found.iter().for_each(|document| drop(black_box(document.to_json())));
    Ok(found.len())
}

/// Bytes of the folder for each document, after a clean close.
fn at_rest(kind: &Kind, format: BodyFormat) -> Result<f64> {
    let folder = folder()?;
    let database = Lsm::database(folder.path(), Syncing::Unsynced);
    let layer = block_on(Layer::open(database.clone(), LayerOptions::default()))?;
    let options = CreateOptions { format: Some(format), ..CreateOptions::default() };
    store(&block_on(layer.create_database("bench", options))?, kind.edits(1, kind.kept)?)?;
    drop(layer);
    database.close()?;
    Ok(disk(folder.path())? as f64 / kind.kept as f64)
}

pub(crate) fn run(options: Options) -> Result<()> {
    if let Some(cell) = &options.inside {
        let parts: Vec<&str> = cell.split('/').collect();
        let kind = KINDS.iter().find(|kind| parts.first() == Some(&kind.name)).context("no such kind")?;
        let (_, prepare) = USES.iter().find(|(name, _)| parts.get(1) == Some(name)).context("no such use")?;
        let (_, format) = FORMATS.into_iter().find(|(name, _)| parts.get(2) == Some(name)).context("no such layout")?;
        drop(counted(prepare(kind, format)?)?);
        return Ok(());
    }
    println!("instructions for a document, and bytes at rest, on lsm: exploded | packed");
    let titles = USES.iter().map(|(name, _)| *name).chain(["at rest"]);
    println!("{:<28}{}", "", titles.map(|title| format!("{title:>22}")).collect::<String>());
    for kind in &KINDS {
        print!("{:<28}", kind.name);
        for (name, _) in USES {
            let of = |layout| -> Result<u64> {
                let cell = format!("{}/{name}/{layout}", kind.name);
                Ok(instructions(&["layouts", "--inside", &cell])? / kind.counted as u64)
            };
            print!("{:>22}", format!("{} | {}", of("exploded")?, of("packed")?));
        }
        let [exploded, packed] = FORMATS.map(|(_, format)| at_rest(kind, format));
        println!("{:>22}", format!("{:.0} | {:.0}", exploded?, packed?));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_can_be_used_in_both_layouts() {
        for kind in KINDS {
            let kind = Kind { counted: 3, kept: 3, ..kind };
            for (_, format) in FORMATS {
                for (name, prepare) in USES {
                    prepare(&kind, format)
                        .and_then(counted)
                        .map(drop)
                        .unwrap_or_else(|error| panic!("{} {name}: {error:#}", kind.name));
                }
                assert!(at_rest(&kind, format).unwrap() > 0.0);
            }
        }
    }
}
