//! Purges documents that were deleted long ago. It is an option (`couch_auto_purge_plugin`).
//!
//! ```text
//!  each database ─► how long are tombstones kept? ─► a sequence of that time ─► the feed up to it ─► purges
//! ```
//!
//! One job of the server's own store goes through all databases, also those that moved to other stores, and repeats
//! after a while. Each round starts at a random database. A tombstone is old if a row that counts edits says so
//! ([`Documents::since_time`]). Each round leaves such a row, so that later rounds know the age of the last edits.
//!
//! A clock that leaps ahead makes everything look old. So a round purges nothing in a database unless it has a known
//! time within the last half of its ttl, or within the last two periods between rounds if those are longer. After a
//! leap, one round purges nothing, and the clock can be corrected.
//!
//! A round purges no more than half of the purges that a database remembers, so that views queried meanwhile can
//! follow. The rest is left to the next round, which then comes soon.
//!
//! An administrator may ask for a round of one database (`POST /{db}/_couch_layer/purge_tombstones`).
//!
//! Invariants: a document with a live leaf is kept, even if it comes back during the round. What cannot be read is
//! kept, and so is everything in a vault, also in one of which only tombstones are left: its clients decide when their
//! devices have seen a deletion. So the feed is read up to the border before anything is purged.
//!
//! Source: CouchDB's `couch_auto_purge_plugin.erl`.
//!
//! [`Documents::since_time`]: model::Documents::since_time

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jobs::JobId;
use model::{
    AllDocsRequest, ChangesRequest, Environment, ErrorKind, GetOptions, NameRange, NotFound, Purge, Style,
    SystemEnvironment,
};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::config::auto_purge::{AutoPurge, Ttl};
use crate::http::error::Result;
use crate::http::jobs::optional;
use crate::http::jobs::replicator;
use crate::http::jobs::run::{End, Run, backoff, now_ms};
use crate::http::journal::Actor;

/// The kind of the job.
pub(crate) const KIND: &str = "auto_purge";

/// Number of changes that are read together.
const ROWS: usize = 500;

/// Number of documents that are purged together.
const AT_ONCE: usize = 500;

/// Pause before the next round if tombstones are left.
const PAUSE_IF_MORE: Duration = Duration::from_secs(600);

/// Maximum number of documents that a round purges: their ids are kept together.
const MOST: u64 = 5_000;

/// Documents of a vault: one id, and the prefixes of the ids of chunks, also of those that are not aggregated.
const VAULT_SETTINGS: &str = "chunks:settings";
const OF_VAULTS: [&str; 3] = ["h:", "idx:", "dat:"];

/// The local document of a vault in the form of Self-hosted LiveSync.
const MILESTONE: &str = "_local/obsydian_livesync_milestone";

/// Starts and ends the job as the configuration says, until the server stops.
pub(crate) async fn begin(app: Arc<App>) {
    optional::begin(&app, JobId::new(KIND, "_all_dbs"), br#"{"task":{}}"#, |settings| &settings.auto_purge).await;
}

/// Runs the job: one round.
pub(crate) async fn run(app: Arc<App>, run: Arc<Run>) -> End {
    match purge_all(&app, &run).await {
        Ok(Some(pause)) => End::Again(pause),
        Ok(None) => End::Removed,
        Err(error) => {
            tracing::warn!(?error, "old tombstones cannot be purged");
            End::Failed(None, backoff(run.job.attempts))
        }
    }
}

/// Purges in all databases. Returns the pause before the next round; `None` if the option is no longer set.
async fn purge_all(app: &App, run: &Run) -> Result<Option<Duration>> {
    // Another server may have changed the option just now.
    drop(app.auth.load(&app.layer).await?);
    let Some(option) = app.auth.settings().auto_purge else { return Ok(None) };
    let mut pause = option.repeat;
    let mut names = app.layer.database_names(&NameRange::default()).await?;
    let mut random = [0; 8];
    SystemEnvironment.random(&mut random);
    begin_anywhere(&mut names, u64::from_le_bytes(random));
    for name in names {
        match purge_old(app, run, option, &name).await {
            Err(error) if error.is_no_database() => {}
            Err(error) => tracing::warn!(database = name, ?error, "old tombstones of a database cannot be purged"),
            Ok(IsDone::Yes) => {}
            Ok(IsDone::No) => pause = pause.min(PAUSE_IF_MORE),
        }
        if is_to_stop(app, run) {
            return Ok(Some(Duration::ZERO));
        }
    }
    Ok(Some(pause))
}

/// Rotates a list to a random start. A round may end early with its server, so rounds that all start at the first name
/// might never reach the last ones.
fn begin_anywhere(names: &mut [String], random: u64) {
    if let Some(at) = random.checked_rem(names.len() as u64) {
        names.rotate_left(at as usize);
    }
}

fn is_to_stop(app: &App, run: &Run) -> bool {
    app.is_stopping() || run.should_stop()
}

/// Whether a round has purged all old tombstones of a database.
enum IsDone {
    Yes,
    No,
}

/// Purges in a database, if its settings say so.
async fn purge_old(app: &App, run: &Run, option: AutoPurge, name: &str) -> Result<IsDone> {
    let database = run.database(app, name).await?;
    let ttl = match database.deleted_document_ttl().await? {
        Some(own) => Ttl::parse(&own).unwrap_or(Ttl::Infinity),
        None => option.ttl,
    };
    let Ttl::Of(ttl) = ttl else { return Ok(IsDone::Yes) };
    let asked = Asked { ttl, apart: option.repeat, dry_run: option.dry_run };
    let Round { old, purged, failed, .. } =
        match round(app, &Actor::default(), &database, asked, &|| is_to_stop(app, run)).await? {
            Ok(round) => round,
            Err(kept @ Kept::Vault) => {
                tracing::info!(database = name, "{kept}");
                return Ok(IsDone::Yes);
            }
            Err(kept @ Kept::NoTime) => {
                tracing::warn!(database = name, "{kept}");
                return Ok(IsDone::Yes);
            }
        };
    if old > 0 {
        tracing::info!(
            database = name,
            old,
            purged,
            failed,
            dry_run = option.dry_run,
            "old tombstones were purged, or only counted in a dry run"
        );
    }
    // Those that failed would fail again soon.
    Ok(if option.dry_run || old <= purged + failed { IsDone::Yes } else { IsDone::No })
}

/// What is asked of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// How long tombstones are kept.
    pub(crate) ttl: Duration,
    /// Time between two rounds.
    pub(crate) apart: Duration,
    /// Whether tombstones are only counted.
    pub(crate) dry_run: bool,
}

/// What a round did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Round {
    /// Number of documents that were deleted longer ago than was asked for.
    pub(crate) old: u64,
    /// Number of those that were purged.
    pub(crate) purged: u64,
    /// Number of those that could not be purged; the log says why.
    pub(crate) failed: u64,
    /// Maximum number that a round purges.
    pub(crate) most: u64,
}

/// Why a round purges nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kept {
    Vault,
    NoTime,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kept::Vault => "old tombstones of a vault are not purged: a device that was away needs them",
            Kept::NoTime => {
                "no recent time is known, or the clock leapt ahead: nothing is purged this time; check the clock, which \
                 is trusted the next time"
            }
        })
    }
}

/// Purges old tombstones of a database, or only counts them. `Err` inside if all of them are kept.
pub(crate) async fn round(
    app: &App,
    actor: &Actor<'_>,
    database: &Documents,
    asked: Asked,
    is_to_stop: &(dyn Fn() -> bool + Sync),
) -> Result<std::result::Result<Round, Kept>> {
    if is_vault(database).await? {
        return Ok(Err(Kept::Vault));
    }
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let ttl_ms = milliseconds(asked.ttl);
    let known_ms = (ttl_ms / 2).max(milliseconds(asked.apart).saturating_mul(2));
    let newest = database.mark_time(known_ms / 2).await?;
    if newest.is_none_or(|newest| now_ms().saturating_sub(newest) > known_ms) {
        return Ok(Err(Kept::NoTime));
    }
    let most = (database.purged_infos_limit().await? / 2).clamp(1, MOST);
    let upto = database.since_time(now_ms().saturating_sub(ttl_ms)).await?;
    let mut request = ChangesRequest { style: Style::AllDocs, limit: Some(ROWS), ..ChangesRequest::default() };
    let (mut round, mut purges) = (Round { most, ..Round::default() }, Vec::new());
    loop {
        let batch = database.changes(&request).await?;
        let old = batch.rows.into_iter().take_while(|change| change.seq <= upto);
        for change in old.filter(|change| change.deleted && change.error.is_none()) {
            if OF_VAULTS.iter().any(|begin| change.id.starts_with(begin)) {
                return Ok(Err(Kept::Vault));
            }
            round.old += 1;
            if !asked.dry_run && round.old <= most {
                purges.push(Purge::new(change.id, change.revs));
            }
        }
        if !batch.more || batch.last_seq >= upto {
            break;
        }
        if is_to_stop() {
            return Ok(Ok(round));
        }
        request.since = batch.last_seq.into();
    }
    for some in purges.chunks(AT_ONCE) {
        if is_to_stop() {
            break;
        }
        let (purged, failed) = purge(app, actor, database, some).await?;
        (round.purged, round.failed) = (round.purged + purged, round.failed + failed);
    }
    Ok(Ok(round))
}

/// Purges deleted documents. Returns how many were purged, and how many could not be.
async fn purge(app: &App, actor: &Actor<'_>, database: &Documents, purges: &[Purge]) -> Result<(u64, u64)> {
    let (mut purged, mut failed) = (0, 0);
    for (purge, result) in purges.iter().zip(database.purge_deleted(purges).await?) {
        match result {
            // Empty if the document exists again.
            Ok(revs) if revs.is_empty() => {}
            Ok(_) => {
                app.audit(actor, "document_purged", &[("db", database.name()), ("id", &purge.id)]);
                purged += 1;
            }
            Err(error) => {
                tracing::warn!(database = database.name(), id = purge.id, %error, "a tombstone cannot be purged");
                failed += 1;
            }
        }
        if replicator::has_jobs(database.name()) {
            replicator::documents::purged(app, database.name(), &purge.id).await?;
        }
    }
    Ok((purged, failed))
}

/// Whether a database has a vault, or had one.
async fn is_vault(database: &Documents) -> Result<bool> {
    for beginning in OF_VAULTS {
        let (start, end) = (beginning.to_owned(), beginning.replace(':', ";"));
        let range = AllDocsRequest { start: Some(start), end: Some(end), limit: Some(1), ..AllDocsRequest::default() };
        if !database.all_docs(&range).await?.rows.is_empty() {
            return Ok(true);
        }
    }
    let settings = database.get(VAULT_SETTINGS, &GetOptions::default()).await.map(drop);
    for found in [settings, database.get_local(MILESTONE).await.map(drop)] {
        match found {
            Ok(()) => return Ok(true),
            Err(error) => match error.kind() {
                ErrorKind::NotFound(NotFound::Missing) => {}
                ErrorKind::NotFound(NotFound::Deleted) => return Ok(true),
                _ => return Err(error.into()),
            },
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_begin_at_any_database_and_reach_all() {
        let all: Vec<String> = ["a", "b", "c"].map(str::to_owned).into();
        let mut first = Vec::new();
        for random in 0..3 {
            let mut names = all.clone();
            begin_anywhere(&mut names, u64::MAX - random);
            first.push(names[0].clone());
            names.sort();
            assert_eq!(names, all);
        }
        first.sort();
        assert_eq!(first, all);
        begin_anywhere(&mut [], 7);
    }
}
