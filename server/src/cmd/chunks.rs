//! `couch-layer chunks`: aggregates, collects, indexes and checks the chunks of a vault.

mod offload;
mod repair;
mod report;
mod settings;

use chunks::{CollectOptions, CollectStep, Collected, LEAST_GRACE_MS, Migrated};
use clap::{Args, Subcommand};
use indicatif::ProgressBar;

use self::report::{SHOWN, bytes, left_alone, sizes, unread_files};
use super::progress::{self, Unit};
use super::source::IfNoDatabase;
use super::vault_args::VaultArgs;
use crate::cmd::{Failure, failure};

/// Aggregate the chunks of a LiveSync vault into few documents, and maintain them
#[derive(Debug, Args)]
pub(crate) struct Chunks {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Migrate(Migrate),
    Gc(Gc),
    Offload(offload::Offload),
    Reindex(Reindex),
    Verify(Verify),
    Repair(repair::Repair),
    Settings(settings::Show),
}

/// Move chunks from documents of their own into few documents, or back; files stay as they are.
///
/// Afterwards only clients that know the aggregated form can read the vault. LiveSync's own clients stop and report
/// that the vault is newer than they are. Let them send their changes first, then close them. After an interruption,
/// run the command again.
#[derive(Debug, Args)]
struct Migrate {
    /// Give every chunk a document of its own again; nobody may write aggregated chunks meanwhile
    #[arg(long)]
    back: bool,
    /// Count, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    vault: VaultArgs,
}

/// Remove chunks that no file has referred to for the grace period; clients may write meanwhile.
///
/// One collection condemns unreferenced chunks. A collection after the grace period (a week, unless the vault's
/// settings say otherwise) removes them.
#[derive(Debug, Args)]
struct Gc {
    /// Count, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Rewrite a document when this percentage of it can be removed
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u8).range(0..=100))]
    unused: u8,
    /// Let the server compact the database afterwards, and report the space gained
    #[arg(long, conflicts_with = "dry_run")]
    compact: bool,
    #[command(flatten)]
    vault: VaultArgs,
}

/// Rebuild the index documents from the data documents alone
#[derive(Debug, Args)]
struct Reindex {
    #[command(flatten)]
    vault: VaultArgs,
}

/// Look for every chunk that a file refers to
#[derive(Debug, Args)]
struct Verify {
    #[command(flatten)]
    vault: VaultArgs,
}

impl Chunks {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Migrate(migrate) => migrate.run().await,
            Command::Gc(gc) => gc.run().await,
            Command::Offload(offload) => offload.run().await,
            Command::Reindex(reindex) => reindex.run().await,
            Command::Verify(verify) => verify.run().await,
            Command::Repair(repair) => repair.run().await,
            Command::Settings(settings) => settings.run().await,
        }
    }
}

impl Migrate {
    async fn run(self) -> Result<(), Failure> {
        let chunks = self.vault.open(IfNoDatabase::Fail).await?.1;
        let (name, will) = (&self.vault.database, if self.dry_run { "would" } else { "will" });
        progress::remark(&match self.back {
            false => format!(
                "LiveSync's own clients cannot read aggregated chunks: from now on they {will} stop at {name} and say that \
                 it is newer than they are; `chunks migrate {name} --back` makes it usable for them again"
            ),
            true => format!("LiveSync's own clients {will} be able to use {name} again once all chunks are back"),
        });
        let bar = progress::bar(0, Unit::Documents);
        bar.set_message(self.vault.database.clone());
        let tell = |done: u64, total: u64| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let migrated = if self.back {
            chunks.migrate_back(self.dry_run, tell).await
        } else {
            chunks.migrate(self.dry_run, tell).await
        };
        bar.finish_and_clear();
        progress::print(&self.report(&migrated?))?;
        Ok(())
    }

    fn report(&self, migrated: &Migrated) -> String {
        let Migrated { chunks, chunk_bytes, left, before, after } = migrated;
        let moved = match (self.dry_run, self.back) {
            (true, false) => "would be aggregated",
            (true, true) => "would have documents of their own",
            (false, false) => "aggregated",
            (false, true) => "have documents of their own",
        };
        let mut report = format!("{chunks} chunks ({}) {moved}", bytes(*chunk_bytes));
        if !self.dry_run {
            report += &format!("\n{}", sizes(before, after));
        }
        report + &left_alone(left)
    }
}

impl Gc {
    async fn run(self) -> Result<(), Failure> {
        let (source, chunks) = self.vault.open(IfNoDatabase::Fail).await?;
        if let Some(settings) = chunks.settings().await?.filter(|settings| settings.grace_ms < LEAST_GRACE_MS) {
            progress::remark(&format!(
                "the grace of {} is {} s: a slow writer, or one whose clock differs, may lose chunks",
                self.vault.database,
                settings.grace_ms / 1_000
            ));
        }
        let disk_before = source.disk_bytes().await?;
        let bar = progress::counter(Unit::Documents);
        let options = CollectOptions { dry_run: self.dry_run, unused_percent: self.unused };
        let collected = chunks.collect(options, |step| show(&bar, step)).await;
        bar.finish_and_clear();
        let collected = collected?;
        let mut report = self.report(&collected);
        if let (false, Some(before), Some(after)) = (self.dry_run, disk_before, source.disk_bytes().await?) {
            report += &format!("\non disk: {} before, {} after", bytes(before), bytes(after));
            if self.compact {
                source.compact().await?;
                let compacted = source.disk_bytes().await?.unwrap_or(after);
                report += &format!(", {} after compaction", bytes(compacted));
            }
        }
        for line in &collected.damaged {
            report += &format!("\n  {line}");
        }
        progress::print(&report)?;
        match collected.damaged.len() {
            0 => Ok(()),
            damaged => {
                Err(failure(format!("{damaged} documents are damaged and were left alone; see `chunks reindex`")))
            }
        }
    }

    fn report(&self, collected: &Collected) -> String {
        let Collected { files, referenced, condemned, reprieved, removed, removed_bytes, .. } = collected;
        let Collected { adopted, copies_marked, copies_removed, dangling, before, after, .. } = collected;
        let would = if self.dry_run { "would be " } else { "" };
        let mut report = format!(
            "{files} files refer to {referenced} chunks\n{condemned} chunks {would}condemned, {reprieved} reprieved, \
             {removed} removed ({})",
            bytes(*removed_bytes)
        );
        if adopted + copies_marked + copies_removed > 0 {
            report += &format!(
                "\n{adopted} in no index {would}entered; {copies_marked} copies and strays {would}marked, {copies_removed} removed"
            );
        }
        if collected.objects_marked + collected.objects_removed > 0 {
            report += &format!(
                "\n{} unneeded objects {would}marked, {} removed ({})",
                collected.objects_marked,
                collected.objects_removed,
                bytes(collected.object_bytes_removed)
            );
        }
        if *dangling > 0 {
            report += &format!("\n{dangling} chunks have no data document: run `chunks verify` to look for them");
        }
        if !self.dry_run {
            report += &format!("\n{}", sizes(before, after));
        }
        report
    }
}

impl Reindex {
    async fn run(self) -> Result<(), Failure> {
        let chunks = self.vault.open(IfNoDatabase::Fail).await?.1;
        let bar = progress::bar(0, Unit::Documents);
        bar.set_message(self.vault.database.clone());
        let reindexed = chunks
            .reindex(|done, total| {
                bar.set_length(total);
                bar.set_position(done);
            })
            .await;
        bar.finish_and_clear();
        let reindexed = reindexed?;
        let mut report = format!(
            "{} data documents read, {} chunks entered, {} copies and strays marked, {} damaged indexes replaced",
            reindexed.data_documents, reindexed.entered, reindexed.copies, reindexed.replaced
        );
        for line in &reindexed.damaged {
            report += &format!("\n  {line}");
        }
        progress::print(&report)?;
        match reindexed.damaged.len() {
            0 => Ok(()),
            damaged => Err(failure(format!("{damaged} data documents are damaged"))),
        }
    }
}

impl Verify {
    async fn run(self) -> Result<(), Failure> {
        let chunks = self.vault.open(IfNoDatabase::Fail).await?.1;
        let bar = progress::counter(Unit::Documents);
        bar.set_message(format!("checking {}, chunks:", self.vault.database));
        let verified = chunks.verify(|done| bar.set_position(done)).await;
        bar.finish_and_clear();
        let verified = verified?;
        let mut report = format!("{} files refer to {} chunks", verified.files, verified.chunks);
        for (chunk, files) in verified.missing.iter().take(SHOWN) {
            report += &format!("\n  {chunk} is missing, for {}", files.join(", "));
        }
        for line in verified.damaged.iter().chain(&verified.unread).take(SHOWN) {
            report += &format!("\n  {line}");
        }
        progress::print(&report)?;
        match (verified.missing.len(), verified.unread.len()) {
            (0, 0) => Ok(()),
            (0, unread) => Err(failure(unread_files(unread))),
            (missing, 0) => Err(failure(format!("{missing} chunks are missing"))),
            (missing, unread) => Err(failure(format!("{missing} chunks are missing; {}", unread_files(unread)))),
        }
    }
}

fn show(bar: &ProgressBar, step: CollectStep) {
    let (message, position) = match step {
        CollectStep::References => ("reading files", 0),
        CollectStep::Indexes(done) => ("indexes:", done),
        CollectStep::Documents(done) => ("data documents:", done),
    };
    bar.set_message(message);
    bar.set_position(position);
}
