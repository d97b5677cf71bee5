//! Measures how the figures change with growth: documents in a database, branches of a document, bytes of a
//! document, concurrent writers.

use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};
use benches::documents::Source;
use benches::engines::{Engine, Mem, Syncing};
use benches::work::documents::{create, edits, store};
use benches::work::{disk, folder, memory, rate};
use clap::{Args, ValueEnum};
use futures_executor::block_on;
use model::{BodyFormat, Edit, GetOptions, JsonText, RevHash, RevHistory, WriteMode};
use serde::{Deserialize, Serialize};

#[derive(Args)]
pub(crate) struct Options {
    /// What grows
    #[arg(value_enum)]
    what: What,
    /// The engine: mem, lsm or sled
    #[arg(long, default_value = "lsm")]
    engine: String,
    /// The layout of bodies
    #[arg(long, value_enum, default_value_t = Layout::Exploded)]
    format: Layout,
    /// The last size: documents, branches, bytes, writers; the default depends on what grows
    #[arg(long)]
    until: Option<usize>,
    /// One JSON object for each step instead of the table
    #[arg(long)]
    json: bool,
}

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// Documents in a database, written a thousand at a time, each thousand synced
    Documents,
    /// Branches of a document, whose winner is updated, each update synced
    Branches,
    /// Bytes of a document, each write synced
    Bytes,
    /// Threads that write documents at once, each write synced
    Writers,
}

impl What {
    pub(crate) const ALL: [What; 4] = [What::Documents, What::Branches, What::Bytes, What::Writers];

    /// The name on the command line and in the first column.
    pub(crate) fn name(self) -> &'static str {
        match self {
            What::Documents => "documents",
            What::Branches => "branches",
            What::Bytes => "bytes",
            What::Writers => "writers",
        }
    }

    fn usual_end(self) -> usize {
        match self {
            What::Documents => 100_000,
            What::Branches => 1_000,
            What::Bytes => 1_000_000,
            What::Writers => 128,
        }
    }

    /// The measured sizes.
    fn steps(self, until: usize) -> Vec<usize> {
        let (first, factors): (usize, &[usize]) = match self {
            What::Documents => (10_000, &[1, 3]),
            What::Branches => (1, &[1, 3]),
            What::Bytes => (100, &[1]),
            What::Writers => (1, &[1, 2, 4, 8]),
        };
        let base: usize = if let What::Writers = self { 16 } else { 10 };
        let mut steps: Vec<usize> = (0..8)
            .flat_map(|power| factors.iter().map(move |factor| first * factor * base.pow(power)))
            .take_while(|size| *size < until)
            .collect();
        steps.push(until);
        steps
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    /// A row for each leaf
    Exploded,
    /// As few rows as possible
    Packed,
}

impl From<Layout> for BodyFormat {
    fn from(layout: Layout) -> BodyFormat {
        match layout {
            Layout::Exploded => BodyFormat::Exploded,
            Layout::Packed => BodyFormat::Packed,
        }
    }
}

/// The figures at one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Step {
    /// The size.
    pub(crate) size: usize,
    /// Documents written a second, since the step before.
    pub(crate) writes: f64,
    /// Documents read a second, at this size.
    pub(crate) reads: f64,
    /// Resident memory of the process in bytes, if the system tells.
    pub(crate) resident: Option<u64>,
    /// Size of the folder on disk, in bytes.
    pub(crate) disk: u64,
}

pub(crate) fn run(options: Options) -> Result<()> {
    let until = options.until.unwrap_or_else(|| options.what.usual_end()).max(1);
    if !options.json {
        let name = options.what.name();
        println!("{name:>10} {:>12} {:>12} {:>12} {:>12}", "writes/s", "reads/s", "resident MB", "disk MB");
    }
    let print = |step: &Step| -> Result<()> {
        if options.json {
            println!("{}", serde_json::to_string(step)?);
        } else {
            let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
            let resident = step.resident.map_or("-".to_owned(), megabytes);
            let disk = megabytes(step.disk);
            println!("{:>10} {:>12.0} {:>12.0} {resident:>12} {disk:>12}", step.size, step.writes, step.reads);
        }
        Ok(())
    };
    match options.engine.as_str() {
        "mem" => grow::<Mem>(options.what, options.format.into(), until, print),
        #[cfg(feature = "lsm")]
        "lsm" => grow::<benches::engines::Lsm>(options.what, options.format.into(), until, print),
        #[cfg(feature = "sled")]
        "sled" => grow::<benches::engines::Sled>(options.what, options.format.into(), until, print),
        other => bail!("there is no engine {other} in this build"),
    }
}

/// Number of reads at each step.
const READS: usize = 2_000;

/// Number of updates of a document with branches.
const UPDATES: usize = 500;

fn grow<E: Engine>(
    what: What,
    format: BodyFormat,
    until: usize,
    mut each: impl FnMut(&Step) -> Result<()>,
) -> Result<()> {
    let folder = folder()?;
    let documents = create(E::database(folder.path(), Syncing::Synced), format)?;
    let mut source = Source::seeded(1);
    let mut ids: Vec<String> = Vec::new();
    let mut before = 0;
    for size in what.steps(until) {
        let begun = Instant::now();
        let written = match what {
            What::Documents => {
                let more = edits(size as u64, size - before)?;
                ids.extend(more.iter().map(|edit| edit.id.clone()));
                // Their creation is not counted.
                let begun = Instant::now();
                store(&documents, more)?;
                rate(size - before, begun.elapsed())
            }
            What::Branches => {
                // A new document for each size: one that was updated at earlier sizes has a longer history.
                let id = format!("{size} branches");
                for branch in 0..size {
                    let mut hash = [0; 16];
                    hash[..8].copy_from_slice(&(branch as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
                    let history = RevHistory { position: 1, ids: vec![RevHash::from_bytes(&hash)?] };
                    let body = JsonText::parse(source.document().as_bytes())?;
                    let edit = Edit::new(&*id, body).with_history(history);
                    for result in block_on(documents.write(vec![edit], WriteMode::Replicated))? {
                        result?;
                    }
                }
                let mut rev = block_on(documents.get(&id, &GetOptions::default()))?.rev;
                let begun = Instant::now();
                for _ in 0..UPDATES {
                    let body = JsonText::parse(source.document().as_bytes())?;
                    rev = block_on(documents.put(Edit::new(&*id, body).over(rev)))?;
                }
                ids = vec![id];
                rate(UPDATES, begun.elapsed())
            }
            What::Bytes => {
                let count = (2_000_000 / size).clamp(5, 500);
                let body = JsonText::parse(of_size(size).as_bytes())?;
                ids = (0..count).map(|n| format!("{size} {n}")).collect();
                for id in &ids {
                    block_on(documents.put(Edit::new(id.clone(), body.clone())))?;
                }
                rate(count, begun.elapsed())
            }
            What::Writers => {
                let each = (2_000 / size).max(50);
                ids = (0..size * each).map(|n| format!("{size} {n}")).collect();
                let (documents, ids) = (&documents, &ids);
                thread::scope(|scope| {
                    let writers: Vec<_> = (0..size)
                        .map(|writer| {
                            scope.spawn(move || -> Result<()> {
                                let mut source = Source::seeded(writer as u64);
                                for id in &ids[writer * each..(writer + 1) * each] {
                                    let body = JsonText::parse(source.document().as_bytes())?;
                                    block_on(documents.put(Edit::new(id.clone(), body)))?;
                                }
                                Ok(())
                            })
                        })
                        .collect();
                    for writer in writers {
                        writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                    }
                    anyhow::Ok(())
                })?;
                rate(ids.len(), begun.elapsed())
            }
        };
        let reads = READS.min(10 * ids.len().max(20));
        let begun = Instant::now();
        for n in 0..reads {
            block_on(documents.get(&ids[n * 7_919 % ids.len()], &GetOptions::default()))?;
        }
        let reads = rate(reads, begun.elapsed());
        each(&Step {
            size,
            writes: written,
            reads,
            resident: memory("/proc/self/status", "VmRSS:"),
            disk: disk(folder.path())?,
        })?;
        before = size;
    }
    Ok(())
}

/// A JSON document of that many bytes. The largest is the largest allowed, with names and quotes.
fn of_size(bytes: usize) -> String {
    let around = r#"{"text":""}"#.len();
    let text = bytes.saturating_sub(around);
    serde_json::json!({ "text": "lorem ipsum dolor sit amet ".repeat(text / 27 + 1)[..text] }).to_string()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn steps_rise_and_end_where_they_are_told() {
        assert_eq!(What::Documents.steps(250_000), [10_000, 30_000, 100_000, 250_000]);
        assert_eq!(What::Writers.steps(128), [1, 2, 4, 8, 16, 32, 64, 128]);
        assert_eq!(What::Bytes.steps(1_000_000), [100, 1_000, 10_000, 100_000, 1_000_000]);
        assert_eq!(What::Branches.steps(1), [1]);
    }

    #[test]
    fn the_largest_document_is_one_that_is_allowed() {
        assert_eq!(of_size(1_000).len(), 1_000);
        let largest = What::Bytes.usual_end();
        assert_eq!(of_size(largest).len(), largest);
        let documents = create(Mem::database(Path::new(""), Syncing::Unsynced), BodyFormat::Packed).unwrap();
        let body = JsonText::parse(of_size(largest).as_bytes()).unwrap();
        block_on(documents.put(Edit::new("large", body))).unwrap();
    }

    #[test]
    fn everything_that_grows_is_measured_at_each_step() {
        for what in What::ALL {
            for format in [BodyFormat::Exploded, BodyFormat::Packed] {
                let mut sizes = Vec::new();
                grow::<Mem>(what, format, 3, |step| {
                    assert!(step.writes > 0.0 && step.reads > 0.0);
                    sizes.push(step.size);
                    Ok(())
                })
                .unwrap();
                assert_eq!(sizes, what.steps(3), "{what:?}");
            }
        }
    }
}
