//! Sizes of documents in a store, and the bytes that writing and reading one moves.
//!
//! Nothing is timed: the figures are counts on the engine in memory, and hold on every engine.

use anyhow::{Context, Result};
use benches::documents::Source;
use clap::Args;
use engine_mem::MemDatabase;
use kv_api::{Counted, Counts, Database, RangeRequest, Read, TransactionExt};
use model::{BodyFormat, CreateOptions, Documents, Edit, JsonText, Layer, LayerOptions};

#[derive(Args)]
pub(crate) struct Options {}

/// A document: a name, its text, and the same text with one number changed.
struct Sample {
    name: &'static str,
    first: String,
    second: String,
}

impl Sample {
    fn new(name: &'static str, text: impl Fn(u32) -> String) -> Self {
        Sample { name, first: text(1), second: text(2) }
    }
}

fn samples() -> Vec<Sample> {
    let words = |bytes: usize| "the quick brown fox jumps over the lazy dog. ".chars().cycle().take(bytes).collect();
    let text = move |bytes: usize| -> String { words(bytes) };
    let flat = |leaves: usize, n: u32| {
        let members: Vec<String> = (0..leaves).map(|at| format!(r#""member{at}":"value {at}""#)).collect();
        format!(r#"{{"n":{n},{}}}"#, members.join(","))
    };
    vec![
        Sample::new("a counter", |n| format!(r#"{{"n":{n}}}"#)),
        Sample::new("a record, 11 leaves", |n| {
            let record = Source::seeded(1).members();
            format!(r#"{{"n":{n},{record}}}"#)
        }),
        Sample::new("a note, 2 kB of text", move |n| format!(r#"{{"n":{n},"text":"{}"}}"#, text(2_000))),
        Sample::new("100 members", move |n| flat(100, n)),
        Sample::new("2,000 members", move |n| flat(2_000, n)),
        Sample::new("900 kB of text", move |n| format!(r#"{{"n":{n},"text":"{}"}}"#, text(900_000))),
    ]
}

/// Number of all rows in the store, and bytes of their keys and values.
async fn stored(engine: &Counted<MemDatabase>) -> Result<(u64, u64)> {
    let transaction = engine.begin()?;
    let rows = transaction.get_all(RangeRequest::keys("", vec![0xff]), Read::Snapshot).await?;
    Ok((rows.len() as u64, rows.iter().map(|row| (row.key.len() + row.value.len()) as u64).sum()))
}

/// Counts of the one transaction of a write.
async fn of_one(
    engine: &Counted<MemDatabase>,
    documents: &Documents<Counted<MemDatabase>>,
    edit: Edit,
) -> Result<(Counts, model::RevId)> {
    engine.take();
    let rev = documents.put(edit).await?;
    let counts = engine.take();
    anyhow::ensure!(counts.len() == 1, "a document is written in one transaction");
    Ok((counts[0], rev))
}

pub(crate) async fn run(_: Options) -> Result<()> {
    println!(
        "{:<20} {:<9} {:>12} {:>20} {:>20} {:>20}",
        "document", "layout", "bytes of JSON", "kept", "insert", "update"
    );
    for sample in samples() {
        for (layout, format) in [("exploded", BodyFormat::Exploded), ("packed", BodyFormat::Packed)] {
            row(&sample, layout, format).await.with_context(|| format!("{}, {layout}", sample.name))?;
        }
    }
    Ok(())
}

async fn row(sample: &Sample, layout: &str, format: BodyFormat) -> Result<()> {
    let engine = Counted::new(MemDatabase::new());
    let layer = Layer::open(engine.clone(), LayerOptions::default()).await?;
    let documents =
        layer.create_database("sizes", CreateOptions { format: Some(format), ..CreateOptions::default() }).await?;
    // The first document of a database sets rows that all share.
    documents.put(Edit::new("before", JsonText::parse(b"{}")?)).await?;
    let before = stored(&engine).await?;
    let id = Source::seeded(1).id();
    let (insert, rev) = of_one(&engine, &documents, Edit::new(&id, JsonText::parse(sample.first.as_bytes())?)).await?;
    let after = stored(&engine).await?;
    let update = Edit::new(&id, JsonText::parse(sample.second.as_bytes())?).over(rev);
    let (update, _) = of_one(&engine, &documents, update).await?;
    let kvs = |kvs: u64, bytes: u64| format!("{kvs} KVs, {bytes} B");
    let written = |counts: Counts| {
        kvs(counts.sets + counts.atomic_ops + counts.clears + counts.range_clears, counts.bytes_written)
    };
    println!(
        "{:<20} {layout:<9} {:>12} {:>20} {:>20} {:>20}",
        sample.name,
        sample.first.len(),
        kvs(after.0 - before.0, after.1 - before.1),
        written(insert),
        written(update),
    );
    Ok(())
}
