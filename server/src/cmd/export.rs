//! `couch-layer export`: writes every live document as a line of JSON.
//!
//! A line is the winning revision of a document with its `_id` and `_rev`, in the order of ids. `import` restores it
//! under the same revision. With `--all-leaves` there is a line for each leaf, tombstones included, with its ancestors
//! in `_revisions`, in the order of the feed. A document that changes meanwhile is written as it is when its page is
//! read, and with `--all-leaves` once more at the end. Documents that cannot be read are named and left out; the
//! command then fails at the end.
//!
//! With `--out` the file appears complete or not at all: it is written under another name, synced, and then renamed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use futures_util::TryStreamExt;
use indicatif::ProgressBar;
use model::BulkGet;
use peer::{Docs, FeedRequest, IdRange, Peer, ReadOptions, Revision, Steady};

use super::progress::{self, Unit, remark};
use super::records::MAX_RECORD_BYTES;
use super::source::{IfNoDatabase, Source, SourceArgs};
use crate::cmd::{Failure, failure};

/// Approximate number of bytes in a page of documents.
const PAGE_BYTES: usize = 8 << 20;

/// Export every document as a line of JSON, with its attachments
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The database
    #[arg(value_name = "DB")]
    database: String,
    /// The file to write; an existing one is replaced when everything is written. Default: standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write all leaves with their ancestors: conflicts and deleted documents too
    #[arg(long)]
    all_leaves: bool,
    #[command(flatten)]
    source: SourceArgs,
}

impl Export {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let source = self.source.open(&self.database, IfNoDatabase::Fail).await?.in_background().await?;
        let Some(place) = &self.out else {
            return match self.write(&source, BufWriter::new(io::stdout().lock())).await {
                // The reader closed the pipe: it has read enough.
                Err(error) if is_broken_pipe(&error) => Ok(()),
                outcome => outcome.and_then(|written| written.complete(self.all_leaves)),
            };
        };
        let mut draft = PartialFile::create(place)?;
        let written = tokio::select! {
            written = self.write(&source, BufWriter::new(&mut draft.file)) => written,
            _ = tokio::signal::ctrl_c() => Err(failure("interrupted; nothing was written")),
        };
        let written = written.map_err(|error| match error.downcast::<io::Error>() {
            Ok(cause) => failure(format!("cannot write {}: {cause}", place.display())),
            Err(error) => error,
        })?;
        draft.finish(place)?;
        progress::tell(&format!("{} documents written to {}", written.documents, place.display()));
        written.complete(self.all_leaves)
    }

    async fn write(&self, source: &Source, out: impl Write) -> Result<Written, Failure> {
        let peer = source.peer();
        let progress = progress::bar(peer.info().await?.documents, Unit::Documents);
        progress.set_message(self.database.clone());
        let mut lines = Lines { out, progress, written: Written::default(), bytes: 0 };
        if self.all_leaves {
            lines.leaves(&peer).await?;
        } else {
            lines.winners(&peer).await?;
        }
        lines.out.flush()?;
        lines.progress.finish_and_clear();
        Ok(lines.written)
    }
}

/// Writes the lines.
struct Lines<W> {
    out: W,
    progress: ProgressBar,
    written: Written,
    bytes: u64,
}

impl<W: Write> Lines<W> {
    /// The winners of live documents, in the order of ids.
    async fn winners(&mut self, peer: &Steady) -> Result<(), Failure> {
        let first = IdRange { docs: Docs::WithAttachments, limit: 16, skips_damaged: true, ..IdRange::default() };
        let mut range = Some(first);
        while let Some(wanted) = range {
            let page = peer.list(&wanted).await?;
            for (id, reason) in &page.damaged {
                self.leave_out(id, reason);
            }
            for (id, document) in page.rows.into_iter().filter_map(|row| Some((row.id, row.doc?))) {
                check_size(&id, document.len() as u64)?;
                self.out.write_all(document.as_bytes())?;
                self.end_line(document.len() as u64)?;
            }
            self.progress.set_position(self.written.documents);
            // Estimated from the average size of the documents so far.
            let average = (self.bytes / self.written.documents.max(1)).max(1);
            let limit = usize::try_from((PAGE_BYTES as u64 / average).clamp(1, 1_000))?;
            range = page.rest.map(|rest| IdRange { limit, ..rest });
        }
        Ok(())
    }

    /// All leaves of all documents, in the order of their last changes.
    async fn leaves(&mut self, peer: &Steady) -> Result<(), Failure> {
        let mut request = FeedRequest { limit: 500, ..FeedRequest::default() };
        loop {
            let page = peer.changes(&request).await?;
            let mut wanted = Vec::new();
            for row in page.rows {
                match row.error {
                    Some((_, reason)) => self.leave_out(&row.id, &reason),
                    None => wanted.push(BulkGet { id: row.id, rev: None }),
                }
            }
            let options = ReadOptions { ancestors: true, latest: false, most_bytes: Some(PAGE_BYTES) };
            let mut rest = &wanted[..];
            while !rest.is_empty() {
                let found = peer.read(rest, options).await?;
                let count = found.len();
                if count == 0 {
                    return Err(failure(format!("the database returned nothing for {}", rest[0].id)));
                }
                for (asked, leaves) in rest.iter().zip(found) {
                    match leaves {
                        Err(error) => self.leave_out(&asked.id, &error.to_string()),
                        Ok(leaves) => {
                            for leaf in leaves {
                                self.leaf(peer, leaf).await?;
                            }
                        }
                    }
                }
                rest = &rest[count..];
                self.progress.inc(count as u64);
            }
            if !page.more {
                return Ok(());
            }
            request.since = Some(page.last_seq);
        }
    }

    async fn leaf(&mut self, peer: &Steady, leaf: Revision) -> Result<(), Failure> {
        let content = |attachment| peer.attachment(&leaf.id, &leaf.rev, attachment);
        let contents = leaf.attachments.iter().map(content).collect();
        let id = leaf.id.clone();
        let (length, mut json) = leaf.into_json(contents);
        check_size(&id, length)?;
        while let Some(piece) = json.try_next().await? {
            self.out.write_all(&piece)?;
        }
        self.end_line(length)
    }

    fn end_line(&mut self, bytes: u64) -> Result<(), Failure> {
        self.out.write_all(b"\n")?;
        self.written.documents += 1;
        self.bytes += bytes;
        Ok(())
    }

    fn leave_out(&mut self, id: &str, reason: &str) {
        self.progress.suspend(|| remark(&format!("{id:?} cannot be read and is left out: {reason}")));
        self.written.damaged += 1;
    }
}

/// `import` refuses longer lines.
fn check_size(id: &str, length: u64) -> Result<(), Failure> {
    if length <= MAX_RECORD_BYTES as u64 {
        return Ok(());
    }
    Err(failure(format!("{id} with its attachments is too large for a line: replicate instead")))
}

/// Counts of what was written.
#[derive(Default)]
struct Written {
    /// Number of documents, or of their leaves.
    documents: u64,
    /// Number of documents, or of gaps between them, that cannot be read.
    damaged: u64,
}

impl Written {
    /// Says what an export never contains, and fails if something else is missing.
    fn complete(self, all_leaves: bool) -> Result<(), Failure> {
        remark(match all_leaves {
            true => "not exported: local documents, _security and other settings of the database",
            false => {
                "not exported: conflicts, deleted documents and histories, which --all-leaves exports; local documents, \
                 _security and other settings of the database"
            }
        });
        match self.damaged {
            0 => Ok(()),
            1 => Err(failure("a document cannot be read and is left out; everything else is written")),
            several => {
                Err(failure(format!("{several} documents cannot be read and are left out; all others are written")))
            }
        }
    }
}

fn is_broken_pipe(error: &Failure) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The unfinished file beside `--out`. Dropping it removes the file, unless it was finished.
struct PartialFile {
    path: PathBuf,
    file: File,
    is_finished: bool,
}

impl PartialFile {
    fn create(place: &Path) -> Result<Self, Failure> {
        let name = place.file_name().ok_or_else(|| failure(format!("{} does not name a file", place.display())))?;
        let mut draft = OsString::from(".");
        draft.push(name);
        draft.push(format!(".{}.partial", std::process::id()));
        let path = place.with_file_name(draft);
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.map_err(|error| failure(format!("cannot write {}: {error}", place.display())))?;
        Ok(PartialFile { path, file, is_finished: false })
    }

    fn finish(mut self, place: &Path) -> Result<(), Failure> {
        let cannot = |error| failure(format!("cannot write {}: {error}", place.display()));
        self.file.sync_all().map_err(cannot)?;
        fs::rename(&self.path, place).map_err(cannot)?;
        self.is_finished = true;
        let folder = match place.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(cannot)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = fs::remove_file(&self.path);
        }
    }
}
