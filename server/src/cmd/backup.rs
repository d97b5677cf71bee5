//! `couch-layer backup`: makes a run in a repository, verifies a repository, lists its runs. `couch-layer restore`
//! brings databases back. [`backup`] does the work.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use ::backup::{Protection, Repository, RestoreOptions, RunInfo, place};
use clap::{Args, Subcommand};
use model::{JsonWriter, LayerOptions, SystemEnvironment};
use peer::{Address, Http, Method};

use super::progress::{self, Unit, remark};
use super::source::{SourceArgs, with_own_user};
use super::tls_args::TrustArgs;
use crate::cmd::{Failure, failure};
use crate::engine::{self, EngineUrl, IfMissing};
use crate::passphrase;

/// Pause between two requests for a server's progress.
const POLL: Duration = Duration::from_millis(300);

/// Back up databases into a folder: all revisions, attachments, local documents, settings, users, configuration
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Backup {
    #[command(subcommand)]
    command: Option<BackupCommand>,
    /// The databases [default: all databases of the store]
    #[arg(value_name = "DB")]
    databases: Vec<String>,
    /// The place of the backup: a folder, which is created if missing, or, without --url, s3://BUCKET/PREFIX. Later
    /// runs add what changed
    #[arg(long, value_name = "PLACE", required = true)]
    to: Option<String>,
    #[command(flatten)]
    store: StoreArgs,
    /// Let a running server do it, while it serves the databases: http://HOST:PORT or https://HOST, with USER:PASSWORD@
    /// before HOST if it needs one. Without a user in the URL, COUCHDB_USER and COUCHDB_PASSWORD are sent. The files of
    /// --to and --passphrase-file are on the server's machine, with absolute paths
    #[arg(long, value_name = "URL", conflicts_with = "engine")]
    url: Option<Address>,
    #[command(flatten)]
    protection: ProtectionArgs,
    #[command(flatten)]
    trust: TrustArgs,
    /// Ignore earlier runs and write everything again, for example after `backup verify` found damage
    #[arg(long)]
    whole: bool,
    /// Afterwards remove runs older than this (7d, 12h), and data that only they need. The newest run of each database
    /// stays. Nothing is removed if a database cannot be backed up
    #[arg(long, value_name = "TIME", value_parser = time)]
    keep: Option<String>,
}

#[derive(Debug, Subcommand)]
enum BackupCommand {
    Verify(Verify),
    List(List),
}

/// A command has the processors for itself, unlike a server with clients.
fn of_command() -> LayerOptions {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    LayerOptions { threads, ..LayerOptions::default() }
}

/// Read a whole backup, and check that every run can be restored
#[derive(Debug, Args)]
struct Verify {
    /// The place of the backup: a folder, or s3://BUCKET/PREFIX
    #[arg(value_name = "PLACE")]
    place: String,
    #[command(flatten)]
    protection: ProtectionArgs,
}

/// List the runs of a backup
#[derive(Debug, Args)]
struct List {
    /// The place of the backup: a folder, or s3://BUCKET/PREFIX
    #[arg(value_name = "PLACE")]
    place: String,
    #[command(flatten)]
    protection: ProtectionArgs,
}

/// Restore databases from a backup into a store, on any engine. None of them may exist there
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The place of the backup: a folder, or s3://BUCKET/PREFIX
    #[arg(value_name = "FROM")]
    from: String,
    /// The databases [default: all of the run, and the servers' configuration if the store has none]
    #[arg(value_name = "DB")]
    databases: Vec<String>,
    /// The run, as `backup list` names it [default: the newest of this store, or of the one store that the backup has]
    #[arg(long, value_name = "ID")]
    run: Option<String>,
    /// Restore the whole store that `serve --ship-to` shipped there, as it was at this time (2026-11-27T14:05:30Z, or latest),
    /// into a new folder. `serve` takes it into use
    #[arg(long, value_name = "TIME", value_parser = instant, conflicts_with_all = ["databases", "run", "rename"])]
    at: Option<Instant>,
    /// Restore the one database under this name
    #[arg(long = "as", value_name = "NAME", requires = "databases")]
    rename: Option<String>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    protection: ProtectionArgs,
}

/// The store of a command.
#[derive(Debug, Args)]
struct StoreArgs {
    /// The store: a folder, which names its engine itself, lsm:FOLDER, sled:FOLDER, or fdb:CLUSTER_FILE. No server may
    /// have the folder open [default: COUCH_LAYER_ENGINE if it is set, ./couch-data otherwise]
    #[arg(long, value_name = "URL")]
    engine: Option<EngineUrl>,
}

impl StoreArgs {
    fn url(&self) -> Result<EngineUrl, Failure> {
        SourceArgs::in_store_or_default(self.engine.as_ref()).engine()
    }
}

/// Whether and how a backup is encrypted.
#[derive(Debug, Args)]
struct ProtectionArgs {
    // From a file, since others could read a command line.
    /// A file with the passphrase of the backup, or with any bytes as the key; a line break at its end is ignored
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    /// Do not encrypt: anyone who can read the backup gets every document, the password hashes, and the secret that
    /// signs sessions
    #[arg(long, conflicts_with = "passphrase_file")]
    no_encryption: bool,
}

impl ProtectionArgs {
    fn read(&self) -> Result<Protection, Failure> {
        match self.file()? {
            Some(file) => Ok(Protection::Passphrase(passphrase::read(file).map_err(failure)?)),
            None => Ok(Protection::None),
        }
    }

    /// The file with the passphrase. `None` only with `--no-encryption`.
    fn file(&self) -> Result<Option<&Path>, Failure> {
        match &self.passphrase_file {
            None if !self.no_encryption => {
                Err(failure("--passphrase-file must name the file with the passphrase; or say --no-encryption"))
            }
            file => Ok(file.as_deref()),
        }
    }

    async fn open(&self, name: &str) -> Result<Repository, Failure> {
        Ok(Repository::open(place(name)?, &self.read()?, Arc::new(SystemEnvironment)).await?)
    }
}

impl Backup {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        match self.command {
            Some(BackupCommand::Verify(verify)) => return verify.run().await,
            Some(BackupCommand::List(list)) => return list.run().await,
            None => {}
        }
        let Some(to) = &self.to else { return Err(failure("--to must name the folder of the backup")) };
        if let Some(server) = &self.url {
            return self.through(server, to).await;
        }
        let place = place(to)?;
        let protection = self.protection.read()?;
        let engine = engine::open(&self.store.url()?, IfMissing::Fail)?;
        let repository = Repository::open_or_create(place, &protection, Arc::new(SystemEnvironment)).await?;
        let bar = progress::counter(Unit::Documents);
        let mut show = |name: &str, documents: u64| {
            bar.set_message(name.to_owned());
            bar.set_position(documents);
        };
        let (options, names) = (of_command(), &self.databases[..]);
        let report = match self.whole {
            true => repository.back_up_whole(engine, &options, names, &mut show).await?,
            false => repository.back_up(engine, &options, names, &mut show).await?,
        };
        bar.finish_and_clear();
        print_run(&report.run.id, report.run.databases.len(), report.whole as u64, report.bytes)?;
        report.remarks.iter().for_each(|sentence| remark(sentence));
        if let Some(keep) = self.keep.as_deref().and_then(model::parse_time)
            && report.failed.is_empty()
        {
            let pruned = repository.prune(keep).await?;
            let (runs, packs, bytes) = (pruned.runs.len(), pruned.packs, pruned.bytes);
            progress::print(&format!("removed: runs: {runs}, packs: {packs}, bytes: {bytes}"))?;
        }
        let of = |database: &::backup::RunDatabase| (database.name.clone(), database.damaged.clone());
        complete(report.run.databases.iter().map(of), &report.failed)
    }

    /// Lets a server make the backup, and shows its progress.
    async fn through(&self, server: &Address, to: &str) -> Result<(), Failure> {
        let passphrase_file = self.protection.file()?;
        if let Some(file) = passphrase_file.filter(|file| !file.is_absolute()) {
            return Err(failure(format!("{} must be an absolute path of the server's machine", file.display())));
        }
        let server = with_own_user(server.clone().database("_couch_layer")?);
        let server = Http::trusting(server, &self.trust.read()?)?;
        let mut body = Vec::new();
        let mut json = JsonWriter::new(&mut body);
        json.begin_object().name("to").str(to);
        match passphrase_file {
            Some(file) => json.name("passphrase_file").str(&file.display().to_string()),
            None => json.name("no_encryption").bool(true),
        };
        if let Some(keep) = &self.keep {
            json.name("keep").str(keep);
        }
        if self.whole {
            json.name("whole").bool(true);
        }
        if !self.databases.is_empty() {
            json.name("databases").begin_array();
            self.databases.iter().for_each(|name| {
                json.str(name);
            });
            json.end_array();
        }
        json.end_object();
        let mut state = server.ask(Method::POST, &["backup"], &[], Some(body)).await?;
        let bar = progress::counter(Unit::Documents);
        loop {
            let text = |name: &str| state.get(name).and_then(|text| Some(text.as_str()?.into_owned()));
            let number = |name: &str| state.get(name).and_then(|number| number.as_u64()).unwrap_or_default();
            match text("state").as_deref() {
                Some("running") => {
                    bar.set_message(text("database").unwrap_or_default());
                    bar.set_position(number("documents"));
                }
                Some("ended") => {
                    bar.finish_and_clear();
                    let (id, whole, bytes) = (text("run").unwrap_or_default(), number("copied_whole"), number("bytes"));
                    let databases: Vec<_> =
                        state.get("databases").map(|all| all.elements()).into_iter().flatten().collect();
                    print_run(&id, databases.len(), whole, bytes)?;
                    let damaged = databases.into_iter().map(|database| {
                        let name = database.get("name").and_then(|name| Some(name.as_str()?.into_owned()));
                        let ids = database.get("damaged").map(|all| all.elements()).into_iter().flatten();
                        let ids = ids.filter_map(|id| Some(id.as_str()?.into_owned())).collect();
                        (name.unwrap_or_default(), ids)
                    });
                    let listed = |name: &str| state.get(name).map(|all| all.elements()).into_iter().flatten();
                    listed("remarks").filter_map(|said| said.as_str().map(|said| remark(&said))).for_each(drop);
                    let member = |of: &model::JsonRef<'_>, name: &str| Some(of.get(name)?.as_str()?.into_owned());
                    let failed = listed("failed").map(|database| {
                        let of = |name: &str| member(&database, name).unwrap_or_default();
                        (of("name"), of("reason"))
                    });
                    return complete(damaged, &failed.collect::<Vec<_>>());
                }
                Some("failed") => return Err(failure(text("reason").unwrap_or_default())),
                _ => {
                    return Err(failure("the server no longer knows the backup: it may have been restarted"));
                }
            }
            tokio::time::sleep(POLL).await;
            state = server.ask(Method::GET, &["backup"], &[], None).await?;
        }
    }
}

fn print_run(id: &str, databases: usize, whole: u64, bytes: u64) -> Result<(), Failure> {
    let figures = format!("databases: {databases}, copied as a whole: {whole}, bytes written: {bytes}");
    Ok(progress::print(&format!("run {id}: {figures}"))?)
}

/// Fails if databases or documents could not be read, and names them.
fn complete(
    databases: impl Iterator<Item = (String, Vec<String>)>,
    failed: &[(String, String)],
) -> Result<(), Failure> {
    for (name, reason) in failed {
        remark(&format!("{name} was not backed up; the run has it as an earlier one, or not at all: {reason}"));
    }
    let mut damaged = 0;
    for (name, ids) in databases {
        for id in ids {
            remark(&format!("{id:?} in {name} cannot be read; it is as in an earlier run, or missing"));
            damaged += 1;
        }
    }
    match damaged {
        _ if !failed.is_empty() => Err(failure(format!("databases that were not backed up: {}", names(failed)))),
        0 => Ok(()),
        1 => Err(failure("a document cannot be read; everything else is in the backup")),
        several => Err(failure(format!("{several} documents cannot be read; all others are in the backup"))),
    }
}

/// The names of these databases, separated by commas.
fn names(databases: &[(String, String)]) -> String {
    databases.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
}

impl Verify {
    async fn run(self) -> Result<(), Failure> {
        let repository = self.protection.open(&self.place).await?;
        let bar = progress::counter(Unit::Documents);
        let verified = repository
            .verify(&mut |file| {
                bar.set_message(file.to_owned());
                bar.inc(1);
            })
            .await?;
        bar.finish_and_clear();
        for (file, reason) in &verified.problems {
            remark(&format!("{file}: {reason}"));
        }
        let (runs, files, bytes) = (verified.runs, verified.files, verified.bytes);
        progress::print(&format!("runs that can be restored: {runs}; files read: {files}, bytes: {bytes}"))?;
        if verified.bases > 0 {
            progress::print(&format!("bases of a shipped store that can be restored: {}", verified.bases))?;
        }
        if verified.unused > 0 {
            remark(&format!("packs that no run needs, which --keep removes: {}", verified.unused));
        }
        match verified.problems.len() {
            0 => Ok(()),
            1 => Err(failure("the backup has a problem")),
            several => Err(failure(format!("the backup has {several} problems"))),
        }
    }
}

impl List {
    async fn run(self) -> Result<(), Failure> {
        let repository = self.protection.open(&self.place).await?;
        if let Some(span) = repository.shipped().await? {
            let (from, until, bases) = (time_of(span.from_ms), time_of(span.until_ms), span.bases);
            progress::print(&format!("shipped: {from} to {until}  of the store {}, bases: {bases}", span.store))?;
            for (file, reason) in &span.damaged {
                remark(&format!("{file} is damaged: {reason}"));
            }
        }
        for id in repository.runs().await? {
            let RunInfo { began_ms, store, databases, .. } = repository.run(&id).await?;
            let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(began_ms));
            progress::print(&format!("{id}  {time}  of the store {store}"))?;
            for database in databases {
                let damaged = match database.damaged.len() {
                    0 => String::new(),
                    several => format!(", {several} not readable"),
                };
                let old = if database.not_renewed.is_some() { ", as in an earlier run" } else { "" };
                let (name, documents, seq) = (database.name, database.documents, database.seq);
                progress::print(&format!("  {name}: {documents} documents{damaged}{old}, up to {seq}"))?;
            }
        }
        Ok(())
    }
}

impl Restore {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let repository = self.protection.open(&self.from).await?;
        if let Some(at) = self.at {
            return restore_shipped(&repository, at, &self.store.url()?).await;
        }
        if repository.runs().await?.is_empty() && repository.shipped().await?.is_some() {
            return Err(failure(
                "there is no run here, but a shipped store: restore it with --at TIME, or --at latest",
            ));
        }
        let wanted = RestoreOptions { run: self.run, databases: self.databases, rename: self.rename };
        let is_whole = wanted.databases.is_empty();
        let engine = engine::open(&self.store.url()?, IfMissing::Create)?;
        let bar = progress::counter(Unit::Documents);
        let mut show = |name: &str, documents: u64| {
            bar.set_message(name.to_owned());
            bar.set_position(documents);
        };
        let restored = repository.restore(engine, &of_command(), &wanted, &mut show).await?;
        bar.finish_and_clear();
        for (name, documents) in &restored.databases {
            progress::print(&format!("{name}: {documents} documents of the run {}", restored.run))?;
        }
        for (name, id) in &restored.damaged {
            remark(&format!("{id:?} in {name} could not be read by the run; it is as in an earlier one, or missing"));
        }
        for (name, reason) in restored.failed.iter().chain(&restored.different) {
            remark(&format!("{name}: {reason}"));
        }
        if is_whole && !restored.configuration {
            remark("the configuration of the servers was not restored: the store has one");
        }
        if is_whole && !restored.identity {
            remark("the store keeps its own uuid: clients that replicated with the old one start from the beginning");
        }
        remark(
            "replicas and consumers read the feed again from its start, and transfer only what they lack; \
             views and indexes are rebuilt",
        );
        let said =
            [("databases that were not restored", restored.failed), ("databases to compare", restored.different)];
        let said: Vec<String> = said
            .iter()
            .filter(|(_, databases)| !databases.is_empty())
            .map(|(what, databases)| format!("{what}: {}", names(databases)))
            .collect();
        if said.is_empty() { Ok(()) } else { Err(failure(said.join("; "))) }
    }
}

/// Restores a shipped store into a folder.
async fn restore_shipped(repository: &Repository, at: Instant, url: &EngineUrl) -> Result<(), Failure> {
    let bar = progress::counter(Unit::Documents);
    let mut show = |file: &str| {
        bar.set_message(file.to_owned());
        bar.inc(1);
    };
    let restored = engine::restore_shipped(repository, url, at.0, &mut show).await?;
    bar.finish_and_clear();
    progress::print(&format!(
        "{url}: the store as it was at {}; `couch-layer serve --engine {url}` takes it into use",
        time_of(restored.ms)
    ))?;
    for (file, reason) in &restored.stepped_over {
        remark(&format!("{file}: {reason}; an older base and more of the log replaced it"));
    }
    if let Some(earlier) = restored.earlier_ms {
        remark(&format!(
            "the clock was set back meanwhile: states that were shipped before this one go up to {}",
            time_of(earlier)
        ));
    }
    let until = time_of(restored.ms);
    match (&restored.ended_by, restored.next_ms) {
        (Some((file, reason)), _) => Err(failure(format!("what came after {until} cannot be read: {file}: {reason}"))),
        (None, None) => {
            remark(&format!("what came after {until} is not known here"));
            Ok(())
        }
        (None, Some(next)) if at.0.is_none_or(|at| next <= at) => Err(failure(format!(
            "later states are shipped, but the tables that they need are not complete or were lost: the next is of {}",
            time_of(next)
        ))),
        (None, Some(next)) if restored.gap => Err(failure(format!(
            "writes after {until} may be missing: the log does not continue here, and the next state is of {}",
            time_of(next)
        ))),
        (None, Some(next)) => {
            remark(&format!("the next state that is shipped is of {}", time_of(next)));
            Ok(())
        }
    }
}

/// A time in milliseconds since 1970; `None` for the latest.
#[derive(Clone, Copy, Debug)]
struct Instant(Option<u64>);

fn instant(text: &str) -> Result<Instant, String> {
    if text == "latest" {
        return Ok(Instant(None));
    }
    let time = humantime::parse_rfc3339_weak(text).ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let ms = time.and_then(|since| u64::try_from(since.as_millis()).ok());
    ms.map(|ms| Instant(Some(ms))).ok_or_else(|| "a time in UTC such as 2026-11-27T14:05:30Z, or latest".to_owned())
}

fn time_of(ms: u64) -> impl std::fmt::Display {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms.min(LAST_MS)))
}

/// The last time that has a text: the year 9999.
const LAST_MS: u64 = 253_402_300_799_000;

fn time(text: &str) -> Result<String, String> {
    model::parse_time(text).map(|_| text.to_owned()).ok_or_else(|| "a time such as 7d or 12h".to_owned())
}
