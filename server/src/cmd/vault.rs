//! `couch-layer vault`: stores a folder of files in a database, and writes it back.

use std::path::PathBuf;
use std::time::{Duration, Instant, UNIX_EPOCH};

use chunks::vault::{
    Forgotten, Listed, Problem, Progress, PullOptions, Pulled, PushOptions, Pushed, Stats, Vault, VerifiedFiles, shown,
};
use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::progress::{self, Unit};
use super::source::IfNoDatabase;
use super::vault_args::VaultArgs;
use super::vault_collect::Collect;
use super::vault_doctor::Doctor;
use crate::cmd::{Failure, failure};

/// Number of problems and of notes shown one by one. All are counted.
const SHOWN: usize = 50;
/// Number of bytes of a listing printed at once.
const PRINTED_AT_ONCE: usize = 1 << 14;

/// Store a folder of files in a database as a LiveSync vault, and write it back
#[derive(Debug, Args)]
pub(crate) struct VaultCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Push(Push),
    Pull(Pull),
    Ls(Ls),
    Verify(Verify),
    Stats(StatsCommand),
    Forget(Forget),
    Doctor(Doctor),
    Collect(Collect),
}

/// Store the files below a folder; unchanged files are skipped. A missing database is created.
///
/// The last writer wins: a changed file replaces the file in the database. Conflicting revisions beside it are kept and
/// reported. After an interruption, run the command again.
#[derive(Debug, Args)]
struct Push {
    /// The folder
    folder: PathBuf,
    /// Mark files that are not in the folder as deleted
    #[arg(long)]
    delete: bool,
    /// Read every file, not only those whose size or modification time differs
    #[arg(long)]
    checksum: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    vault: VaultArgs,
}

/// Write the files into a folder; other files in it are kept.
///
/// A file that differs there is kept and reported, unless --force is given.
#[derive(Debug, Args)]
struct Pull {
    /// Replace files that differ
    #[arg(long)]
    force: bool,
    /// Compare every file, not only those whose size or modification time differs
    #[arg(long)]
    checksum: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    vault: VaultArgs,
    /// The folder; a missing one is created
    folder: PathBuf,
}

/// List the files: size, modification time (UTC), number of chunks, path
#[derive(Debug, Args)]
struct Ls {
    /// Print each file as a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    vault: VaultArgs,
}

/// Assemble every file, at all its leaf revisions, and compare it with its document
#[derive(Debug, Args)]
struct Verify {
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    vault: VaultArgs,
}

/// Count files and chunks, and their bytes
#[derive(Debug, Args)]
struct StatsCommand {
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    vault: VaultArgs,
}

/// Remove files that were marked as deleted long ago; until then they keep their chunks.
///
/// They cannot be restored afterwards. `chunks gc` then removes the chunks that no other file refers to.
#[derive(Debug, Args)]
struct Forget {
    /// Minimum time since their deletion: 30d, 12h
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    older_than: Duration,
    /// Count, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    vault: VaultArgs,
}

impl VaultCommand {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Push(push) => push.run().await,
            Command::Pull(pull) => pull.run().await,
            Command::Ls(ls) => ls.run().await,
            Command::Verify(verify) => verify.run().await,
            Command::Stats(stats) => stats.run().await,
            Command::Forget(forget) => forget.run().await,
            Command::Doctor(doctor) => doctor.run().await,
            Command::Collect(collect) => collect.run().await,
        }
    }
}

async fn open(arguments: &VaultArgs, if_none: IfNoDatabase) -> Result<Vault, Failure> {
    Ok(Vault::new(arguments.open(if_none).await?.1))
}

impl Push {
    async fn run(self) -> Result<(), Failure> {
        if !self.folder.is_dir() {
            return Err(failure(format!("{} is not a folder", self.folder.display())));
        }
        let vault = open(&self.vault, IfNoDatabase::Create).await?;
        let options = PushOptions { checksum: self.checksum, delete: self.delete };
        let (bar, started) = (bar(&self.vault.database), Instant::now());
        let pushed = vault.push(&self.folder, options, |at| show(&bar, at)).await;
        bar.finish_and_clear();
        let (pushed, taken) = (pushed?, started.elapsed());
        let Pushed { written, unchanged, deleted, bytes_read, new_chunks, known_chunks, .. } = pushed;
        let Pushed { chunk_bytes, document_bytes, ref problems, ref notes, .. } = pushed;
        if self.json {
            progress::print(
                &json!({
                    "written": written, "unchanged": unchanged, "deleted": deleted, "bytes_read": bytes_read,
                    "new_chunks": new_chunks, "known_chunks": known_chunks, "new_chunk_bytes": chunk_bytes,
                    "document_bytes": document_bytes, "problems": listed(problems), "notes": listed(notes),
                    "seconds": seconds(taken),
                })
                .to_string(),
            )?;
        } else {
            let mut report = format!("{written} files written, {unchanged} unchanged");
            if self.delete {
                report += &format!(", {deleted} marked as deleted");
            }
            report += &format!(
                "\n{} read, {new_chunks} new chunks ({}), {known_chunks} known, in {}",
                bytes(bytes_read),
                bytes(chunk_bytes),
                duration(taken)
            );
            progress::print(&(report + &lines("note: ", notes) + &lines("", problems)))?;
        }
        conclude(problems.len(), "could not be pushed")
    }
}

impl Pull {
    async fn run(self) -> Result<(), Failure> {
        let vault = open(&self.vault, IfNoDatabase::Fail).await?;
        let options = PullOptions { checksum: self.checksum, force: self.force };
        let (bar, started) = (bar(&self.vault.database), Instant::now());
        let pulled = vault.pull(&self.folder, options, |at| show(&bar, at)).await;
        bar.finish_and_clear();
        let (pulled, taken) = (pulled?, started.elapsed());
        let Pulled { written, bytes_written, equal, deleted, ref problems, ref notes } = pulled;
        if self.json {
            progress::print(
                &json!({
                    "written": written, "bytes_written": bytes_written, "equal": equal, "deleted": deleted,
                    "problems": listed(problems), "notes": listed(notes), "seconds": seconds(taken),
                })
                .to_string(),
            )?;
        } else {
            let mut report = format!(
                "{written} files written ({}), {equal} unchanged, in {}",
                bytes(bytes_written),
                duration(taken)
            );
            if deleted > 0 {
                report += &format!("\n{deleted} files are marked as deleted, and were not written");
            }
            progress::print(&(report + &lines("note: ", notes) + &lines("", problems)))?;
        }
        conclude(problems.len(), "could not be pulled")
    }
}

impl Ls {
    async fn run(self) -> Result<(), Failure> {
        let vault = open(&self.vault, IfNoDatabase::Fail).await?;
        let (mut some, mut printed) = (String::new(), Ok(()));
        vault
            .files(|file| {
                let separator = if some.is_empty() { "" } else { "\n" };
                some = std::mem::take(&mut some) + separator + &if self.json { json_line(&file) } else { line(&file) };
                if some.len() >= PRINTED_AT_ONCE && printed.is_ok() {
                    printed = progress::print(&std::mem::take(&mut some));
                }
            })
            .await?;
        printed?;
        if !some.is_empty() {
            progress::print(&some)?;
        }
        Ok(())
    }
}

fn line(file: &Listed) -> String {
    let Listed { path, size, mtime, chunks, conflicts, closed, .. } = file;
    let path = shown(path);
    if let Some(reason) = closed {
        return format!("{:>12}  {:19}  {:>6}  {path}: {}", "-", "-", "-", shown(reason));
    }
    let conflicts = match conflicts {
        0 => String::new(),
        1 => "  (1 conflicting revision)".into(),
        several => format!("  ({several} conflicting revisions)"),
    };
    format!("{size:>12}  {}  {chunks:>6}  {path}{conflicts}", utc(*mtime))
}

fn json_line(file: &Listed) -> String {
    let Listed { id, path, size, mtime, chunks, conflicts, closed } = file;
    match closed {
        Some(reason) => json!({"id": id, "closed": reason, "conflicts": conflicts}).to_string(),
        None => json!({"id": id, "path": path, "size": size, "mtime": mtime, "chunks": chunks, "conflicts": conflicts})
            .to_string(),
    }
}

impl Verify {
    async fn run(self) -> Result<(), Failure> {
        let vault = open(&self.vault, IfNoDatabase::Fail).await?;
        let bar = bar(&self.vault.database);
        let verified = vault.verify(|at| show(&bar, at)).await;
        bar.finish_and_clear();
        let VerifiedFiles { files, bytes: total, ref problems, ref warnings } = verified?;
        if self.json {
            let found =
                json!({"files": files, "bytes": total, "problems": listed(problems), "warnings": listed(warnings)});
            progress::print(&found.to_string())?;
        } else {
            let report = format!("{files} files can be restored as they were ({})", bytes(total));
            progress::print(&(report + &lines("warning: ", warnings) + &lines("", problems)))?;
        }
        conclude(problems.len(), "cannot be restored")
    }
}

impl StatsCommand {
    async fn run(self) -> Result<(), Failure> {
        let vault = open(&self.vault, IfNoDatabase::Fail).await?;
        let bar = progress::counter(Unit::Documents);
        bar.set_message(format!("counting {}, documents:", self.vault.database));
        let stats = vault.stats(|done| bar.set_position(done)).await;
        bar.finish_and_clear();
        let stats = stats?;
        let Stats { files, bytes: total, deleted_files, closed_files, conflicted_files, references, .. } = stats;
        let Stats { referenced_chunks, stored_chunks, stored_bytes, own_documents, .. } = stats;
        let Stats { index_documents, data_documents, offloaded_documents, object_bytes, database, .. } = stats;
        let ratio = stats.references_to_a_chunk();
        if self.json {
            progress::print(
                &json!({
                    "files": files, "bytes": total, "deleted_files": deleted_files, "closed_files": closed_files,
                    "conflicted_files": conflicted_files, "references": references,
                    "referenced_chunks": referenced_chunks, "references_to_a_chunk": ratio,
                    "stored_chunks": stored_chunks, "stored_bytes": stored_bytes,
                    "chunks_in_documents_of_their_own": own_documents, "index_documents": index_documents,
                    "data_documents": data_documents, "offloaded_documents": offloaded_documents,
                    "object_bytes": object_bytes, "documents": database.documents,
                    "document_bytes": database.document_bytes, "file_bytes": database.file_bytes,
                })
                .to_string(),
            )?;
            return Ok(());
        }
        let disk = database.file_bytes.map(|file| format!(", {} on disk", bytes(file))).unwrap_or_default();
        progress::print(&format!(
            "{files} files ({}); {deleted_files} deleted, {conflicted_files} with conflicts, {closed_files} unreadable\n\
             {references} references to {referenced_chunks} chunks, {ratio:.2} per chunk\n\
             {stored_chunks} chunks ({}) in {data_documents} data documents, {index_documents} index documents\n\
             {offloaded_documents} data documents in an object store ({}), {own_documents} chunks in documents of their own\n\
             {} documents in all, {}{disk}",
            bytes(total),
            bytes(stored_bytes),
            bytes(object_bytes),
            database.documents,
            bytes(database.document_bytes),
        ))?;
        Ok(())
    }
}

impl Forget {
    async fn run(self) -> Result<(), Failure> {
        let vault = open(&self.vault, IfNoDatabase::Fail).await?;
        let older_than_ms = u64::try_from(self.older_than.as_millis()).unwrap_or(u64::MAX);
        let Forgotten { files, kept, ref problems } = vault.forget(older_than_ms, self.dry_run).await?;
        if self.json {
            progress::print(&json!({"files": files, "kept": kept, "problems": listed(problems)}).to_string())?;
        } else {
            let done = if self.dry_run { "would be forgotten" } else { "forgotten" };
            let report = format!("{files} deleted files {done}, {kept} were deleted later and are kept");
            progress::print(&(report + &lines("", problems)))?;
        }
        conclude(problems.len(), "could not be forgotten")
    }
}

fn bar(database: &str) -> ProgressBar {
    let bar = progress::bar(0, Unit::Bytes);
    bar.set_message(database.to_owned());
    bar
}

fn show(bar: &ProgressBar, at: Progress) {
    bar.set_length(at.total_bytes);
    bar.set_position(at.bytes);
}

/// A failure if there were problems.
fn conclude(problems: usize, what: &str) -> Result<(), Failure> {
    match problems {
        0 => Ok(()),
        1 => Err(failure(format!("1 file {what}"))),
        several => Err(failure(format!("{several} files {what}"))),
    }
}

fn lines(before: &str, problems: &[Problem]) -> String {
    let mut lines: String = problems.iter().take(SHOWN).map(|problem| format!("\n  {before}{problem}")).collect();
    if problems.len() > SHOWN {
        lines += &format!("\n  {before}and {} more", problems.len() - SHOWN);
    }
    lines
}

fn listed(problems: &[Problem]) -> Vec<Value> {
    problems.iter().map(|problem| json!({"path": problem.path, "what": problem.what})).collect()
}

fn bytes(bytes: u64) -> String {
    indicatif::DecimalBytes(bytes).to_string()
}

fn seconds(taken: Duration) -> f64 {
    (taken.as_secs_f64() * 1_000.0).round() / 1_000.0
}

fn duration(taken: Duration) -> String {
    format!("{:.1} s", taken.as_secs_f64())
}

/// A time as `2026-11-21 22:53:20`; as milliseconds if it has no date.
fn utc(milliseconds: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_millis(milliseconds.min(253_402_300_799_999));
    // `Sun, 06 Nov 1994 08:49:37 GMT`, which does not sort by time.
    let text = httpdate::fmt_http_date(time);
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut parts = text.split(' ').skip(1);
    let (Some(day), Some(month), Some(year), Some(clock)) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return milliseconds.to_string();
    };
    let month = MONTHS.iter().position(|name| *name == month).map_or(0, |index| index + 1);
    format!("{year}-{month:02}-{day} {clock}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_sort() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(1_795_221_368_666), "2026-11-21 00:36:08");
        assert_eq!(utc(u64::MAX), "9999-12-31 23:59:59");
    }

    #[test]
    fn a_line_shows_no_control_characters() {
        let file = Listed {
            id: "a".into(),
            path: "a\u{1b}[2J.md".into(),
            size: 7,
            mtime: 0,
            chunks: 1,
            conflicts: 1,
            closed: None,
        };
        assert_eq!(line(&file), "           7  1970-01-01 00:00:00       1  a\\u{1b}[2J.md  (1 conflicting revision)");
    }
}
