//! Collects the chunks of vaults now and then, where an administrator has asked for it.
//!
//! ```text
//!  PUT /{db}/_couch_layer/vault   {"collect": "1d"} ─► the job of this database, due at once
//!  a run                          census ─► condemn, delete ─► its result ─► due again after a day
//! ```
//!
//! The job is the setting. It is in the server's own store, and so is the database, or in a folder to which it moved:
//! after a move to another cluster a run only says so. A database without it has no row and no job, and whoever drops the
//! setting removes the job.
//!
//! Invariants: the job names the instance of its database, so one that was dropped and created again has no setting. One
//! server runs the job; if two believe that they do, the database's own number of collections ends the older run
//! ([`model::Documents::begin_collection`]). What stands in the way of a collection is a result like any other: the next
//! run comes after the period, since each reads the whole vault. What ends by itself is tried again sooner: a store that
//! does not answer, and a collection that an edit or another collection ended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use budget::{Owner, Use};
use chunks::{CensusOptions, Error, StoreErrorKind, Trash, VaultCollectOptions, VaultCollected, collect_vault};
use jobs::{JobId, Jobs, NewJob};
use kv_api::AnyDatabase;
use model::{DatabaseInfo, ErrorKind, KeepReplaced};
use serde_json::{Value, json};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::jobs::run::{End, Run, backoff, now_ms};
use crate::http::journal::Actor;
use crate::http::wire::body::WAIT;

/// The kind of the job. Its id is the name of the database.
pub(crate) const KIND: &str = "vault_collection";

/// Ids of chunks in memory. A vault with more takes several passes.
pub(crate) const IDS: usize = 250_000;
/// Memory of a census: ids that files name, ids of missing chunks, and documents as trees.
pub(crate) const CENSUS_MEMORY: usize = IDS * 36 + IDS * 18 + (16 << 20);

/// Number of unreferenced chunks that one collection takes, and their memory: the list of ids, and a part of it again.
const TAKEN: usize = 100_000;
const TAKEN_MEMORY: usize = TAKEN * 300;
/// Memory of a collection.
pub(crate) const MEMORY: usize = CENSUS_MEMORY + TAKEN_MEMORY;

const UNREADABLE: &str = "the vault cannot be read as a whole at the moment; the log says why";

/// Why a collection ended early: another one has begun, or a list became unreadable.
const ENDED: &str = "another collection or an edit ended the run; the next one goes on, and the log says which it was";

/// Why a database that moved to a cluster is not collected: other servers may serve it too. A folder has one owner.
pub(crate) const ELSEWHERE: &str = "the database has moved to another cluster, and a server collects only what is in its own store and in folders: set \
     it on a server of that cluster, and here to off";

/// The time between condemning a chunk and deleting it, in milliseconds, unless another one is asked for.
pub(crate) const GRACE_MS: u64 = 30 * 24 * 3_600 * 1_000;

/// When the chunks of a database are collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// The time between two runs, in milliseconds.
    pub(crate) every_ms: u64,
    /// The times of chunks.
    pub(crate) times: Times,
}

/// How long chunks that no file needs are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// The time between condemning a chunk and deleting it, in milliseconds.
    pub(crate) grace_ms: u64,
    /// The time for which its text stays in the trash after all devices have passed the deletion, in milliseconds. `None`:
    /// none leaves the trash.
    pub(crate) trash_ms: Option<u64>,
}

/// The instance of a database, as text.
fn instance(database: &DatabaseInfo) -> String {
    format!("{:032x}", u128::from_be_bytes(database.instance_id))
}

impl Schedule {
    fn data(self, database: &DatabaseInfo) -> Vec<u8> {
        let (task, instance) = (json!({"database": database.name}), instance(database));
        let Schedule { every_ms, times: Times { grace_ms, trash_ms } } = self;
        let data = json!({"task": task, "instance": instance, "every_ms": every_ms, "grace_ms": grace_ms,
            "trash_ms": trash_ms});
        data.to_string().into_bytes()
    }

    /// The schedule in a job's data, if the job is of this instance.
    fn of(data: &[u8], database: &DatabaseInfo) -> Option<Schedule> {
        let data: Value = serde_json::from_slice(data).ok()?;
        if data["instance"].as_str()? != instance(database) {
            return None;
        }
        let grace_ms = data["grace_ms"].as_u64()?;
        let trash_ms = data["trash_ms"].as_u64();
        Some(Schedule { every_ms: data["every_ms"].as_u64()?, times: Times { grace_ms, trash_ms } })
    }

    /// Sets or removes the schedule of a database. The first run is due at once.
    pub(crate) async fn set(
        jobs: &Jobs<AnyDatabase>,
        database: &DatabaseInfo,
        schedule: Option<Schedule>,
    ) -> jobs::Result<()> {
        let id = JobId::new(KIND, &database.name);
        match schedule {
            Some(schedule) => {
                let data = schedule.data(database).into();
                jobs.add(&id, &NewJob { data, ..NewJob::default() }).await?;
            }
            None => drop(jobs.remove(&id).await?),
        }
        Ok(())
    }
}

/// The setting of a database as JSON, and what its last run did; `None` if it has none.
///
/// ```text
///   {"every": "1d", "grace": "30d", "trash": "30d", "last": {"at": 1795365506967, "holds": […],
///    "trash_holds": […], "collected": {…}}}
/// ```
pub(crate) async fn scheduled(jobs: &Jobs<AnyDatabase>, database: &DatabaseInfo) -> jobs::Result<Option<Value>> {
    let Some(job) = jobs.get(&JobId::new(KIND, &database.name)).await? else { return Ok(None) };
    let Some(Schedule { every_ms, times: Times { grace_ms, trash_ms } }) = Schedule::of(&job.data, database) else {
        return Ok(None);
    };
    let progress = job.progress.and_then(|progress| serde_json::from_slice::<Value>(&progress.bytes).ok());
    let last = progress.map(|mut progress| progress["last"].take());
    let time = |ms| KeepReplaced::Milliseconds(ms).to_string();
    let trash = trash_ms.map(time);
    Ok(Some(json!({"every": time(every_ms), "grace": time(grace_ms), "trash": trash, "last": last})))
}

/// One run in a database. The error inside is that of the collection.
pub(crate) async fn collect(
    app: &App,
    database: &Documents,
    Times { grace_ms, trash_ms }: Times,
) -> Result<std::result::Result<VaultCollected, Error>> {
    let held = app.budget.part(Owner::Work("vaults")).take(MEMORY, Use::Quick, WAIT).await?;
    let census = CensusOptions { most_ids: IDS, most_named: TAKEN, most_named_bytes: TAKEN_MEMORY / 2 };
    let options = VaultCollectOptions { grace_ms, trash_ms, census };
    let done = collect_vault(database, options, |_| ()).await;
    drop(held);
    Ok(done)
}

/// Runs the job of a database.
pub(crate) async fn run(app: Arc<App>, run: Arc<Run>) -> End {
    tokio::select! {
        end = run_once(&app, &run) => match end {
            Ok(end) => end,
            // Dropped.
            Err(error) if error.is_no_database() => End::Removed,
            Err(error) => failed(&run, &error),
        },
        // Each step is a transaction of its own, so the next run goes on.
        () = run.stopped() => End::Again(Duration::ZERO),
        () = app.stopping() => End::Again(Duration::ZERO),
    }
}

async fn run_once(app: &App, run: &Run) -> Result<End> {
    let name = &run.job.id.id;
    let database = run.database(app, name).await?;
    let Some(schedule) = Schedule::of(&run.job.data, &database.info().await?) else { return Ok(End::Removed) };
    let every = Duration::from_millis(schedule.every_ms);
    if is_elsewhere(app, name).await? {
        tracing::warn!(database = name, "the chunks of a vault are not collected: {ELSEWHERE}");
        return Ok(End::Answered(progress(json!({"error": ELSEWHERE})), every));
    }
    let mut done = match collect(app, &database, schedule.times).await? {
        Ok(done) => done,
        Err(error) => {
            let (mut told, is_passing) = cannot(name, &error);
            if let Error::Unread { .. } = &error
                && let Ok(trash) = Trash::read(&database).await
                && let Some(warning) = trash.warning()
            {
                told = format!("{told}; {warning}");
            }
            return Ok(ended(run, every, json!({"error": told}), is_passing));
        }
    };
    if done.has_written() {
        app.audit(&Actor::default(), "vault_collected", &[("db", name)]);
    }
    let told = done.to_json();
    let mut last = json!({"holds": told["holds"], "trash_holds": told["trash_holds"], "collected": told["collected"]});
    if let Some(error) = done.failed.take() {
        let (error, is_passing) = cannot(name, &error);
        last["error"] = error.into();
        return Ok(ended(run, every, last, is_passing));
    }
    if done.found.holds.is_empty() {
        tracing::info!(database = name, collected = %told["collected"], "the chunks of a vault were collected");
    } else {
        tracing::warn!(database = name, holds = ?done.found.holds, "no chunk of a vault may be removed now");
    }
    Ok(ended(run, every, last, false))
}

/// Whether a database is in another store than the server's own, and in none that only this server can have open.
pub(crate) async fn is_elsewhere(app: &App, name: &str) -> Result<bool> {
    match app.layer.database(name).await {
        Ok(_) => Ok(false),
        Err(error) if matches!(error.kind(), ErrorKind::Moved(_)) => {
            let home = app.databases.stores.home(name).await?;
            Ok(home.url.is_none_or(|url| url.folder().is_none()))
        }
        Err(error) => Err(error.into()),
    }
}

/// What a client may know of the error that ended a collection, and whether it is to be expected that another run soon
/// goes further.
fn cannot(name: &str, error: &Error) -> (String, bool) {
    tracing::warn!(database = name, %error, "the chunks of a vault cannot be collected");
    let Error::Store(store) = error else {
        return (peer::cut(&error.to_string(), peer::MOST_TEXT).into_owned(), false);
    };
    match (store.kind(), store.status()) {
        (_, Some(507)) => ("the disk is full".into(), false),
        // It may have paths of this machine.
        (StoreErrorKind::Refused, Some(500)) => (UNREADABLE.into(), false),
        (_, Some(400)) => (ENDED.into(), true),
        (StoreErrorKind::Unavailable | StoreErrorKind::NoDatabase, _) | (_, Some(503)) => (UNREADABLE.into(), true),
        _ => (peer::cut(&store.to_string(), peer::MOST_TEXT).into_owned(), false),
    }
}

fn ended(run: &Run, every: Duration, last: Value, is_passing: bool) -> End {
    match is_passing {
        true => End::Failed(Some(progress(last)), backoff(run.job.attempts)),
        false => End::Answered(progress(last), every),
    }
}

/// The progress of a job: members of a task, of which it has none, and what its last run did.
fn progress(mut last: Value) -> Vec<u8> {
    last["at"] = now_ms().into();
    json!({"task": {}, "last": last}).to_string().into_bytes()
}

fn failed(run: &Run, error: &dyn fmt::Debug) -> End {
    tracing::warn!(database = run.job.id.id, ?error, "the chunks of a vault cannot be collected now");
    End::Failed(Some(progress(json!({"error": UNREADABLE}))), backoff(run.job.attempts))
}
