//! `couch-layer export`: writes every live document as a line of JSON.
//!
//! A line is the winning revision of a document with its `_id` and `_rev`, in the order of ids. `import` restores it
//! under the same revision. Conflicts and histories are not exported; a replication carries them. A document that
//! changes meanwhile is written as it is when its page is read. Documents that cannot be read are named, and the rest is written;
//! then the command fails.
//!
//! With `--out` the file appears complete or not at all: it is written under another name, synced, and then renamed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use peer::{Docs, IdRange, Peer};

use super::progress::{self, Unit, remark};
use super::records::MAX_RECORD_BYTES;
use super::source::{IfNoDatabase, Source, SourceArgs, failure};
use crate::cmd::Failure;

/// Approximate number of bytes in a page of documents.
const PAGE_BYTES: u64 = 8 << 20;

/// Export every document as a line of JSON
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The database
    #[arg(value_name = "DB")]
    database: String,
    /// The file to write; it is replaced when everything is written. Default: standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
}

impl Export {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let source = self.source.open(&self.database, IfNoDatabase::Fail).await?;
        let Some(place) = &self.out else {
            return match self.write(&source, BufWriter::new(io::stdout().lock())).await {
                // The reader closed the pipe: it has read enough.
                Err(error) if is_broken_pipe(&error) => Ok(()),
                outcome => outcome.and_then(Written::complete),
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
        written.complete()
    }

    async fn write(&self, source: &Source, mut out: impl Write) -> Result<Written, Failure> {
        let peer = source.peer();
        let progress = progress::bar(peer.info().await?.documents, Unit::Documents);
        progress.set_message(self.database.clone());
        let (mut written, mut bytes, mut damaged) = (0u64, 0u64, 0u64);
        let first = IdRange { docs: Docs::WithAttachments, limit: 16, skips_damaged: true, ..IdRange::default() };
        let mut range = Some(first);
        while let Some(wanted) = range {
            let page = peer.list(&wanted).await?;
            for (id, reason) in &page.damaged {
                remark(&format!("{id:?} cannot be read and is left out: {reason}"));
            }
            damaged += page.damaged.len() as u64;
            for (id, document) in page.rows.into_iter().filter_map(|row| Some((row.id, row.doc?))) {
                if document.len() > MAX_RECORD_BYTES {
                    return Err(failure(format!(
                        "{id} is too large for a line, with its attachments: replicate instead"
                    )));
                }
                out.write_all(document.as_bytes())?;
                out.write_all(b"\n")?;
                written += 1;
                bytes += document.len() as u64;
            }
            progress.set_position(written);
            // Estimated from the average size of the documents so far.
            let limit = usize::try_from((PAGE_BYTES / (bytes / written.max(1)).max(1)).clamp(1, 1_000))?;
            range = page.rest.map(|rest| IdRange { limit, ..rest });
        }
        out.flush()?;
        progress.finish_and_clear();
        Ok(Written { documents: written, damaged })
    }
}

/// What was written.
struct Written {
    documents: u64,
    /// Number of documents, or of gaps between them, that cannot be read.
    damaged: u64,
}

impl Written {
    /// Fails if something is missing.
    fn complete(self) -> Result<(), Failure> {
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
        let name = place.file_name().ok_or_else(|| failure(format!("{} names no file", place.display())))?;
        let mut draft = OsString::from(".");
        draft.push(name);
        draft.push(format!(".{}.partial", std::process::id()));
        let path = place.with_file_name(draft);
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.map_err(|error| failure(format!("cannot write {}: {error}", path.display())))?;
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
