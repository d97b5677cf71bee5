//! `couch-layer import`: documents from JSON lines, arrays, and answers of CouchDB.
//!
//! The file is read as a stream and written in a few concurrent batches, so memory does not grow with the file. A
//! record that cannot be stored is reported with its line, and affects no other.
//!
//! A record with a `_rev` keeps it, as in a replication. So the output of `export` is restored exactly, and
//! importing a file twice changes nothing. A record without a `_rev` is a new document.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use indicatif::ProgressBar;
use model::{JsonKind, JsonText, JsonWriter};
use tokio::task::JoinSet;

use super::progress::{self, Unit};
use super::records::{Position, Records, Shape};
use super::source::{IfNoDatabase, NewDocument, NotWritten, Source, SourceArgs};
use crate::cmd::{Failure, failure};

/// Maximum number of documents in a batch.
const BATCH_DOCUMENTS: usize = 500;
/// Maximum number of bytes in a batch.
const BATCH_BYTES: usize = 1 << 20;
/// Number of concurrent batches.
const BATCHES: usize = 4;
/// Maximum number of bytes in concurrent batches. A single batch may have more: documents with large attachments.
const BYTES_AT_ONCE: usize = 64 << 20;
/// Number of failures shown one by one. All are counted.
const SHOWN_FAILURES: u64 = 100;

/// Import documents from a file: JSON lines or an array, or what CouchDB and its tools write (an answer of _all_docs
/// with include_docs, a body of _bulk_docs, a file of couchbackup)
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The database; it is created if missing
    #[arg(value_name = "DB")]
    database: String,
    /// The file to read, or - for the standard input
    file: PathBuf,
    /// The member to take ids from, a string or an integer; records without an id get a new one
    #[arg(long, value_name = "NAME")]
    id_field: Option<String>,
    /// Leave out records without a _rev whose ids exist in the database. They are counted, and are no failures
    #[arg(long)]
    skip_existing: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
}

impl Import {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let (input, size): (Box<dyn BufRead>, Option<u64>) = if self.file.as_os_str() == "-" {
            (Box::new(BufReader::with_capacity(1 << 18, io::stdin())), None)
        } else {
            let cannot = |error| failure(format!("cannot read {}: {error}", self.file.display()));
            let file = File::open(&self.file).map_err(cannot)?;
            let size = file.metadata().map_err(cannot)?;
            if size.is_dir() {
                return Err(failure(format!("{} is a folder", self.file.display())));
            }
            (Box::new(BufReader::with_capacity(1 << 18, file)), Some(size.len()))
        };
        let source = self.source.open(&self.database, IfNoDatabase::Create).await?;
        let progress = match size {
            Some(size) => progress::bar(size, Unit::Bytes),
            None => progress::counter(Unit::Bytes),
        };
        progress.set_message(self.database.clone());

        let started = Instant::now();
        let mut importer = Importer::new(source, progress.clone(), Ids::new()?, &self);
        let mut records = Records::new(input);
        let outcome = importer.all(&mut records).await;
        progress.finish_and_clear();
        let Importer { written, skipped, failed, .. } = importer;
        let seconds = started.elapsed().as_secs_f64();
        if self.json {
            let mut summary = Vec::new();
            let mut writer = JsonWriter::new(&mut summary);
            writer.begin_object().name("written").u64(written).name("failed").u64(failed);
            if self.skip_existing {
                writer.name("skipped").u64(skipped);
            }
            writer.name("shape").str(records.shape().name());
            writer.name("seconds").f64((seconds * 1_000.0).round() / 1_000.0).end_object();
            progress::print(&String::from_utf8_lossy(&summary))?;
        } else {
            let name = &self.database;
            let shape = records.shape();
            let existed = if self.skip_existing { format!("{skipped} existed, ") } else { String::new() };
            let summary = format!("{written} documents written to {name}, {existed}{failed} failed, in {seconds:.1} s");
            progress::tell(&format!("{summary}; the file has {shape}"));
        }
        outcome?;
        match failed {
            0 => Ok(()),
            failed => Err(failure(format!("{failed} of {} records could not be imported", written + skipped + failed))),
        }
    }
}

/// A batch in progress: the positions of its records, their ids and bytes, and their results.
type Sent = (Vec<Position>, Vec<String>, usize, Result<Vec<Option<NotWritten>>, Failure>);

struct Importer {
    source: Source,
    progress: ProgressBar,
    ids: Ids,
    id_field: Option<String>,
    skips_existing: bool,
    written: u64,
    /// Documents that existed.
    skipped: u64,
    failed: u64,
    batch: Vec<NewDocument>,
    positions: Vec<Position>,
    batch_bytes: usize,
    sending: JoinSet<Sent>,
    sending_bytes: usize,
    /// The ids in the batches in progress.
    ids_sent: HashSet<String>,
}

impl Importer {
    fn new(source: Source, progress: ProgressBar, ids: Ids, asked: &Import) -> Self {
        Importer {
            source,
            progress,
            ids,
            id_field: asked.id_field.clone(),
            skips_existing: asked.skip_existing,
            written: 0,
            skipped: 0,
            failed: 0,
            batch: Vec::new(),
            positions: Vec::new(),
            batch_bytes: 0,
            sending: JoinSet::new(),
            sending_bytes: 0,
            ids_sent: HashSet::new(),
        }
    }

    async fn all(&mut self, records: &mut Records<impl BufRead>) -> Result<(), Failure> {
        loop {
            let next = records.next().map_err(|error| failure(format!("cannot read on in the file: {error}")))?;
            let Some(record) = next else { break };
            self.progress.set_position(records.bytes());
            let position = record.position;
            let document = match record.content {
                Ok(bytes) => document(&bytes, records.shape(), self.id_field.as_deref(), &mut self.ids),
                Err(problem) => Err(problem.to_owned()),
            };
            match document {
                Ok(document) => self.add(position, document).await?,
                Err(problem) => self.fail(position, &problem),
            }
        }
        self.send().await?;
        self.join_all().await
    }

    async fn add(&mut self, position: Position, document: NewDocument) -> Result<(), Failure> {
        // Records with the same id are never written concurrently, so that the first in the file is stored.
        if self.ids_sent.contains(&document.id) {
            self.join_all().await?;
        }
        self.batch_bytes += document.json.len();
        self.batch.push(document);
        self.positions.push(position);
        if self.batch.len() >= BATCH_DOCUMENTS || self.batch_bytes >= BATCH_BYTES {
            self.send().await?;
        }
        Ok(())
    }

    /// Sends the batch when there is room for it.
    async fn send(&mut self) -> Result<(), Failure> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.batch_bytes);
        while self.sending.len() >= BATCHES || !self.sending.is_empty() && self.sending_bytes + bytes > BYTES_AT_ONCE {
            self.join_one().await?;
        }
        self.sending_bytes += bytes;
        let documents = std::mem::take(&mut self.batch);
        let positions = std::mem::take(&mut self.positions);
        let ids: Vec<String> = documents.iter().map(|document| document.id.clone()).collect();
        self.ids_sent.extend(ids.iter().cloned());
        let source = self.source.clone();
        self.sending.spawn(async move {
            let results = source.write(documents).await;
            (positions, ids, bytes, results)
        });
        Ok(())
    }

    /// Waits for all batches in progress.
    async fn join_all(&mut self) -> Result<(), Failure> {
        while !self.sending.is_empty() {
            self.join_one().await?;
        }
        Ok(())
    }

    async fn join_one(&mut self) -> Result<(), Failure> {
        let Some(joined) = self.sending.join_next().await else { return Ok(()) };
        let (positions, ids, bytes, results) = joined?;
        self.sending_bytes -= bytes;
        for id in &ids {
            self.ids_sent.remove(id);
        }
        for (position, result) in positions.into_iter().zip(results?) {
            match result {
                None => self.written += 1,
                Some(NotWritten::Exists(_)) if self.skips_existing => self.skipped += 1,
                Some(NotWritten::Exists(problem) | NotWritten::Refused(problem)) => self.fail(position, &problem),
            }
        }
        Ok(())
    }

    fn fail(&mut self, position: Position, problem: &str) {
        self.failed += 1;
        let line = match self.failed {
            failed if failed <= SHOWN_FAILURES => format!("{position}: {problem}"),
            failed if failed == SHOWN_FAILURES + 1 => "further failures are only counted".to_owned(),
            _ => return,
        };
        // A visible progress bar must be hidden meanwhile.
        self.progress.suspend(|| progress::remark(&line));
    }
}

/// The document for a record, or why there is none.
fn document(record: &[u8], shape: Shape, id_field: Option<&str>, ids: &mut Ids) -> Result<NewDocument, String> {
    let mut json = JsonText::parse(record).map_err(|error| error.to_string())?;
    if json.kind() != JsonKind::Object {
        return Err("the record is not a JSON object".into());
    }
    if shape == Shape::Rows {
        let doc = json.get("doc").filter(|doc| doc.kind() == JsonKind::Object);
        json = json.slice_ref(doc.ok_or("the row has no document; ask CouchDB for rows with include_docs=true")?);
    }
    let has_revision = json.get("_rev").is_some() || json.get("_revisions").is_some();
    if let Some(id) = json.get("_id") {
        let id = id.as_str().ok_or("its _id is not a string")?.into_owned();
        return Ok(NewDocument { id, json, has_revision });
    }
    let id = match id_field {
        None => ids.next(),
        Some(name) => match json.get(name) {
            None => return Err(format!("it has no \"{name}\" for its id")),
            Some(value) => match value.kind() {
                JsonKind::String => value.as_str().unwrap_or_default().into_owned(),
                JsonKind::Integer => value.text().to_owned(),
                _ => return Err(format!("its \"{name}\" is neither a string nor an integer")),
            },
        },
    };
    let mut with_id = Vec::with_capacity(json.len() + id.len() + 10);
    JsonWriter::new(&mut with_id).begin_object().name("_id").str(&id).members_of(&json).end_object();
    let json = JsonText::parse(&with_id).map_err(|error| error.to_string())?;
    Ok(NewDocument { id, json, has_revision })
}

/// New ids, as in CouchDB's `sequential` algorithm: 26 random hexadecimal digits, then a counter of six digits, so
/// that documents imported together are adjacent.
struct Ids {
    prefix: String,
    next: u32,
}

impl Ids {
    fn new() -> Result<Self, Failure> {
        Ok(Ids { prefix: random_prefix()?, next: 0 })
    }

    fn next(&mut self) -> String {
        self.next += 1;
        if self.next > 0xff_ffff {
            // If the random number generator fails, the prefix is counted up instead.
            self.prefix = random_prefix().unwrap_or_else(|_| format!("{:026x}", self.next));
            self.next = 0;
        }
        format!("{}{:06x}", self.prefix, self.next)
    }
}

fn random_prefix() -> Result<String, Failure> {
    let mut bytes = [0; 13];
    getrandom::fill(&mut bytes)
        .map_err(|error| failure(format!("the system's random number generator failed: {error}")))?;
    Ok(model::hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(record: &str, id_field: Option<&str>) -> Result<(String, String, bool), String> {
        let mut ids = Ids { prefix: "p".into(), next: 0 };
        document(record.as_bytes(), Shape::Lines, id_field, &mut ids)
            .map(|document| (document.id, document.json.to_string(), document.has_revision))
    }

    #[test]
    fn records_become_documents() {
        let is = |id: &str, json: &str, has_revision| Ok((id.to_owned(), json.to_owned(), has_revision));
        assert_eq!(take(r#" {"a":1.0} "#, None), is("p000001", r#"{"_id":"p000001","a":1.0}"#, false));
        assert_eq!(take(r#"{}"#, None), is("p000001", r#"{"_id":"p000001"}"#, false));
        assert_eq!(take(r#"{"_id":"x","_rev":"1-a"}"#, Some("n")), is("x", r#"{"_id":"x","_rev":"1-a"}"#, true));
        assert_eq!(take(r#"{"n":"\"","b":2}"#, Some("n")), is("\"", r#"{"_id":"\"","n":"\"","b":2}"#, false));
        assert_eq!(take(r#"{"n":12}"#, Some("n")), is("12", r#"{"_id":"12","n":12}"#, false));
        for (record, id_field, problem) in [
            ("", None, "invalid JSON"),
            ("{", None, "invalid JSON"),
            ("[]", None, "not a JSON object"),
            ("7", None, "not a JSON object"),
            (r#"{"_id":7}"#, None, "not a string"),
            (r#"{"a":1}"#, Some("n"), "has no \"n\""),
            (r#"{"n":1.5}"#, Some("n"), "neither"),
        ] {
            let refused = take(record, id_field).unwrap_err();
            assert!(refused.contains(problem), "{record}: {refused}");
        }
    }

    #[test]
    fn a_row_is_its_document() {
        let mut ids = Ids { prefix: "p".into(), next: 0 };
        let row = br#"{"id":"a","key":"a","value":{"rev":"1-a"},"doc":{"_id":"a","_rev":"1-a","n":1}}"#;
        let found = document(row, Shape::Rows, None, &mut ids).unwrap();
        assert_eq!((found.id.as_str(), found.has_revision), ("a", true));
        assert_eq!(found.json.as_str(), r#"{"_id":"a","_rev":"1-a","n":1}"#);
        for row in [br#"{"id":"a","value":1}"#.as_slice(), br#"{"id":"a","doc":null}"#] {
            assert!(document(row, Shape::Rows, None, &mut ids).unwrap_err().contains("include_docs"));
        }
    }

    #[test]
    fn new_ids_have_32_digits_and_count() {
        let mut ids = Ids::new().unwrap();
        let (first, second) = (ids.next(), ids.next());
        assert_eq!((first.len(), second.len()), (32, 32));
        assert_eq!(first[..26], second[..26]);
        assert!(first < second);
        ids.next = 0xff_ffff;
        assert_ne!(ids.next()[..26], first[..26]);
    }
}
