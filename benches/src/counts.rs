//! Instructions of hot operations, compared with committed figures.
//!
//! Times vary from run to run; counts of instructions hardly do. Callgrind counts those of one function, [`counted`],
//! on one thread. CI fails if an operation takes over a tenth more instructions than its figure; fewer are always
//! accepted. Counts depend on the compiler and its target; the file names both.

use std::any::Any;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use benches::engines::{Engine, Mem, Syncing};
use benches::work::documents::{create, edits, store};
use benches::work::folder;
use bytes::Bytes;
use clap::Args;
use engine_mem::MemDatabase;
use futures_executor::block_on;
use kv_api::{Database, RangeRequest, Read, Transaction};
use model::{BodyFormat, ChangesRequest, Documents, GetOptions, JsonText, WriteMode};
use serde::{Deserialize, Serialize};

#[derive(Args)]
pub(crate) struct Options {
    /// The committed figures
    #[arg(long, value_name = "PATH", default_value = "benches/counts.json")]
    file: PathBuf,
    /// Write the figures instead of comparing with them
    #[arg(long)]
    update: bool,
    /// How far a count may exceed its figure, in percent: room for a simplification
    #[arg(long, default_value_t = 10.0)]
    tolerance: f64,
    /// Runs one operation; callgrind is started with this
    #[arg(long, hide = true, value_name = "OPERATION")]
    inside: Option<String>,
}

/// The committed figures: instructions for one unit of each operation.
#[derive(Default, Serialize, Deserialize)]
struct Figures {
    /// Compiler and target of the counted code.
    compiler: String,
    instructions: BTreeMap<String, u64>,
}

/// An operation. It returns values whose drop must not be counted, such as a database with its data.
pub(crate) type Prepared = Box<dyn FnOnce() -> Result<Box<dyn Any>>>;

struct Operation {
    name: &'static str,
    /// Number of units in one run, by which the count is divided.
    units: u64,
    prepare: fn(u64) -> Result<Prepared>,
}

const OPERATIONS: &[Operation] = &[
    Operation { name: "commit of 10 rows", units: 500, prepare: commit::<Mem> },
    Operation { name: "get of a row", units: 5_000, prepare: get },
    Operation { name: "row of a range", units: 5_000, prepare: range },
    Operation { name: "JSON text parsed", units: 1_000, prepare: parse },
    Operation {
        name: "document inserted, exploded",
        units: 300,
        prepare: |n| insert::<Mem>(n, 1, BodyFormat::Exploded),
    },
    Operation { name: "document inserted, packed", units: 300, prepare: |n| insert::<Mem>(n, 1, BodyFormat::Packed) },
    Operation {
        name: "document in a bulk of 100, exploded",
        units: 500,
        prepare: |n| insert::<Mem>(n, 100, BodyFormat::Exploded),
    },
    Operation {
        name: "document in a bulk of 100, packed",
        units: 500,
        prepare: |n| insert::<Mem>(n, 100, BodyFormat::Packed),
    },
    Operation { name: "document read, exploded", units: 500, prepare: |n| read(n, BodyFormat::Exploded) },
    Operation { name: "document read, packed", units: 500, prepare: |n| read(n, BodyFormat::Packed) },
    Operation { name: "row of changes", units: 2_000, prepare: changes },
];

/// The function whose instructions are counted, with those of all calls from it.
#[inline(never)]
pub(crate) fn counted(work: Prepared) -> Result<Box<dyn Any>> {
    black_box(work)()
}

/// Pattern for callgrind: the function above, with the compiler's additions to its name.
const COUNTED: &str = "*counts*counted*";

pub(crate) fn run(options: Options) -> Result<()> {
    if let Some(name) = &options.inside {
        let operation = OPERATIONS.iter().find(|operation| operation.name == name);
        let operation = operation.with_context(|| format!("there is no operation {name:?}"))?;
        drop(counted((operation.prepare)(operation.units)?)?);
        return Ok(());
    }
    let compiler = compiler()?;
    let committed: Figures = match std::fs::read(&options.file) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| options.file.display().to_string())?,
        Err(error) if options.update && error.kind() == std::io::ErrorKind::NotFound => Figures::default(),
        Err(error) => return Err(error).with_context(|| options.file.display().to_string()),
    };
    println!("{:<38} {:>14} {:>14} {:>9}", "instructions for one", "counted", "committed", "change");
    let mut figures = Figures { compiler, instructions: BTreeMap::new() };
    let mut slower = Vec::new();
    for operation in OPERATIONS {
        let count = count(operation)?;
        let before = committed.instructions.get(operation.name).copied();
        let change = before.map(|before| (count as f64 / before as f64 - 1.0) * 100.0);
        println!(
            "{:<38} {count:>14} {:>14} {:>9}",
            operation.name,
            before.map_or("-".into(), |before| before.to_string()),
            change.map_or("-".into(), |change| format!("{change:+.1} %")),
        );
        if change.is_none_or(|change| change > options.tolerance) {
            slower.push(operation.name);
        }
        figures.instructions.insert(operation.name.into(), count);
    }
    if options.update {
        let text = serde_json::to_string_pretty(&figures)? + "\n";
        return std::fs::write(&options.file, text).with_context(|| options.file.display().to_string());
    }
    if figures.compiler != committed.compiler {
        println!("counted with {}, committed with {}", figures.compiler, committed.compiler);
    }
    if !slower.is_empty() {
        bail!(
            "{}: over {} % slower than in {}: find out why, or commit the new figures (--update)",
            slower.join(", "),
            options.tolerance,
            options.file.display()
        );
    }
    Ok(())
}

fn compiler() -> Result<String> {
    let output = Command::new("rustc").arg("--version").output().context("rustc")?;
    Ok(format!("{} on {}", String::from_utf8_lossy(&output.stdout).trim(), std::env::consts::ARCH))
}

/// Runs an operation under callgrind. Returns the instructions for one unit.
fn count(operation: &Operation) -> Result<u64> {
    Ok(instructions(&["counts", "--inside", operation.name])? / operation.units)
}

/// Runs this program with these arguments under callgrind. Returns the instructions of [`counted`].
pub(crate) fn instructions(arguments: &[&str]) -> Result<u64> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("callgrind.out");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", &format!("--toggle-collect={COUNTED}")])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe()?)
        .args(arguments)
        .output()
        .context("valgrind, which must be installed")?;
    if !output.status.success() {
        bail!("{}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    let text = std::fs::read_to_string(&out).context("callgrind's figures")?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals:").or_else(|| line.strip_prefix("summary:")));
    let total: u64 = total.context("callgrind gave no total")?.trim().parse().context("callgrind's total")?;
    if total == 0 {
        bail!("callgrind did not see {COUNTED}: are the symbols there?");
    }
    Ok(total)
}

fn row(n: u64) -> (Bytes, Bytes) {
    // Scattered keys. The multiplier is odd, so they do not repeat.
    let key = format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (Bytes::from(key), Bytes::from(vec![n as u8; 100]))
}

fn filled<D: Database>(database: D, count: u64) -> Result<D> {
    let transaction = database.begin()?;
    for (key, value) in (0..count).map(row) {
        transaction.set(&key, &value);
    }
    block_on(transaction.commit())?;
    Ok(database)
}

fn commit<E: Engine>(units: u64) -> Result<Prepared> {
    let folder = folder()?;
    let rows: Vec<_> = (10_000..10_000 + 10 * units).map(row).collect();
    let database = filled(E::database(folder.path(), Syncing::Synced), 10_000)?;
    Ok(Box::new(move || {
        for rows in rows.chunks(10) {
            let transaction = database.begin()?;
            for (key, value) in rows {
                transaction.set(key, value);
            }
            block_on(transaction.commit())?;
        }
        Ok(Box::new((database, folder)))
    }))
}

fn get(units: u64) -> Result<Prepared> {
    let database = filled(MemDatabase::new(), 10_000)?;
    let keys: Vec<_> = (0..units).map(|n| row(n).0).collect();
    Ok(Box::new(move || {
        let transaction = database.begin()?;
        for key in &keys {
            black_box(block_on(transaction.get(key, Read::Serializable))?);
        }
        Ok(Box::new(database))
    }))
}

fn range(units: u64) -> Result<Prepared> {
    let database = filled(MemDatabase::new(), units)?;
    Ok(Box::new(move || {
        let transaction = database.begin()?;
        let mut request = Some(RangeRequest::keys(Bytes::new(), Bytes::from_static(b"\xff")));
        while let Some(range) = request {
            let batch = block_on(transaction.get_range(&range, Read::Serializable))?;
            request = range.after(&batch);
            black_box(batch);
        }
        Ok(Box::new(database))
    }))
}

fn parse(units: u64) -> Result<Prepared> {
    let mut source = benches::documents::Source::seeded(1);
    let texts: Vec<String> = (0..units).map(|_| source.document()).collect();
    Ok(Box::new(move || {
        for text in &texts {
            black_box(JsonText::parse(text.as_bytes())?);
        }
        Ok(Box::new(()))
    }))
}

fn insert<E: Engine>(units: u64, together: usize, format: BodyFormat) -> Result<Prepared> {
    let folder = folder()?;
    let (first, calls) = (edits(1, 1_000)?, edits(2, units as usize)?);
    let calls: Vec<Vec<_>> = calls.chunks(together).map(<[_]>::to_vec).collect();
    let documents = create(E::database(folder.path(), Syncing::Synced), format)?;
    // Directly before the counted part: after a second without a commit, the log of a store is flushed.
    store(&documents, first)?;
    Ok(Box::new(move || {
        for call in calls {
            for result in block_on(documents.write(call, WriteMode::Interactive))? {
                black_box(result?);
            }
        }
        Ok(Box::new((documents, folder)))
    }))
}

fn read(units: u64, format: BodyFormat) -> Result<Prepared> {
    let documents = create(MemDatabase::new(), format)?;
    let stored = edits(1, units as usize)?;
    let ids: Vec<String> = stored.iter().map(|edit| edit.id.clone()).collect();
    store(&documents, stored)?;
    Ok(Box::new(move || {
        read_all(&documents, &ids)?;
        Ok(Box::new(documents))
    }))
}

fn read_all<D: Database>(documents: &Documents<D>, ids: &[String]) -> Result<()> {
    for id in ids {
        black_box(block_on(documents.get(id, &GetOptions::default()))?.to_json());
    }
    Ok(())
}

fn changes(units: u64) -> Result<Prepared> {
    let documents = create(MemDatabase::new(), BodyFormat::Exploded)?;
    store(&documents, edits(1, units as usize)?)?;
    Ok(Box::new(move || {
        let mut request = ChangesRequest::default();
        loop {
            let batch = block_on(documents.changes(&request))?;
            if !black_box(&batch).more {
                return Ok(Box::new(documents));
            }
            request.since = model::Since::Seq(batch.last_seq);
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_can_be_done() {
        for operation in OPERATIONS {
            (operation.prepare)(20)
                .and_then(counted)
                .map(drop)
                .unwrap_or_else(|error| panic!("{}: {error:#}", operation.name));
        }
    }

    #[test]
    fn every_operation_has_a_committed_figure() {
        let figures: Figures = serde_json::from_str(include_str!("../counts.json")).unwrap();
        let names: Vec<&str> = figures.instructions.keys().map(String::as_str).collect();
        let mut expected: Vec<&str> = OPERATIONS.iter().map(|operation| operation.name).collect();
        expected.sort_unstable();
        assert_eq!(names, expected);
    }
}
