//! Brings view groups up to date.
//!
//! A small gap is closed within the request. A large one becomes a job in the store of the database, which any server
//! can take over; the request waits for it. On one server, updates of a group take turns: several at once would be
//! safe, but map the same documents twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use jobs::{JobId, NewJob};
use model::{ViewGroup, ViewProgress};
use tokio::sync::watch;

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::functions::view_group::ViewDesign;
use crate::http::jobs::index_build;
use crate::http::jobs::run::{End, Run, build_progress};
use crate::http::wire::response;

/// The kind of the jobs. Their ids are `DATABASE:DESIGN_DOCUMENT`.
pub(crate) const KIND: &str = "views";

/// Number of batches that a request processes by itself.
const IN_REQUEST: usize = 3;

/// Up to this number, changes are counted; above it, their number is estimated.
const COUNTED: usize = 100;

/// Brings a group up to the last sequence at the time of the call.
pub(crate) async fn update(app: &Arc<App>, database: &Documents, group: &ViewGroup) -> Result<()> {
    let wanted = {
        let database = database.clone();
        app.scan(async move { database.last_seq().await }).await?
    };
    loop {
        let (held, database_, group_) = (app.clone(), database.clone(), group.clone());
        let some = async move {
            let turn = held.view_turns.of(&database_, &group_);
            let _turn = turn.lock().await;
            let mut left_out = Counts::new(&database_, &group_);
            for _ in 0..IN_REQUEST {
                let progress = database_.update_views_batch(&group_, usize::MAX, None).await?;
                left_out.add(&progress);
                if progress.seq >= wanted || !progress.more {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        if app.scan(some).await? {
            return Ok(());
        }
        let id = JobId::new(KIND, format!("{}:{}", database.name(), group.name()));
        database.jobs().add(&id, &new_job(database.name(), group.name())).await?;
        index_build::wait_for(app, database, &id).await?;
    }
}

/// Documents left out of views. When an update ends, the log names each such view once.
struct Counts<'a> {
    database: &'a Documents,
    group: &'a ViewGroup,
    counts: BTreeMap<usize, u64>,
}

impl<'a> Counts<'a> {
    fn new(database: &'a Documents, group: &'a ViewGroup) -> Self {
        Counts { database, group, counts: BTreeMap::new() }
    }

    fn add(&mut self, progress: &ViewProgress) {
        for (view, count) in &progress.left_out {
            *self.counts.entry(*view).or_default() += count;
        }
    }
}

/// Logged however the update ends: these documents are not reported again.
impl Drop for Counts<'_> {
    fn drop(&mut self) {
        for (view, documents) in &self.counts {
            let (database, design) = (self.database.name(), self.group.name());
            let view = self.group.views().get(*view).map_or("", |view| &view.name);
            let why = "they exceed a limit of functions, or cannot be read";
            tracing::warn!(database, design, view, documents, "documents are left out of a view: {why}");
        }
    }
}

/// The same, without waiting for it.
pub(crate) fn update_later(app: &Arc<App>, database: &Documents, group: &ViewGroup) {
    let (held, database, group) = (app.clone(), database.clone(), group.clone());
    app.spawn_scan(async move {
        if let Err(error) = update(&held, &database, &group).await {
            tracing::debug!(database = database.name(), ?error, "views are not updated");
        }
    });
}

/// Whether this server is updating a group.
pub(crate) fn is_running(app: &App, database: &Documents, group: &ViewGroup) -> bool {
    let turn = app.view_turns.of(database, group);
    turn.try_lock().is_err()
}

fn new_job(database: &str, design: &str) -> NewJob {
    let data = response::object_text(|json| {
        json.name("task").begin_object();
        json.name("database").str(database).name("design_document").str(design).end_object();
    });
    NewJob { data: data.into(), ..NewJob::default() }
}

/// Runs a job: one batch after the other.
pub(crate) async fn run(app: Arc<App>, run: Arc<Run>) -> End {
    let (say, heard) = watch::channel(Vec::new());
    let updated = tokio::select! {
        updated = update_all(&app, &run, &say) => updated,
        never = run.report(heard) => match never {},
    };
    run.end_of(updated)
}

/// Updates to the end. Returns false if the run was stopped before the end.
async fn update_all(app: &App, run: &Run, say: &watch::Sender<Vec<u8>>) -> model::Result<bool> {
    let Some((name, design)) = run.job.id.id.split_once(':') else { return Ok(true) };
    let database = run.layer.database(name).await?;
    let document = database.get(design, &model::GetOptions::default()).await?;
    // A design document that has no views any more needs no update.
    let Ok(ViewDesign { group, .. }) = ViewDesign::of(&app.functions, &database, &document) else { return Ok(true) };
    let turn = app.view_turns.of(&database, &group);
    let _turn = turn.lock().await;
    let wanted = database.last_seq().await?;
    // Counts from the start of this run, as CouchDB does. A database does not know how many changes follow a sequence,
    // so above a hundred the total is an estimate (`Documents::pending`), which is repeated if it was too low.
    let from = database.view_stats(&group).await?.seq;
    let (mut done, mut total) = (0, database.pending(from, false, COUNTED).await?);
    say.send_replace(build_progress(done, total));
    let (mut update, mut left_out) = (database.view_update(&group), Counts::new(&database, &group));
    while !run.should_stop() && !app.is_stopping() {
        let now = update.next(usize::MAX, Some(&run.hold), |batch| app.in_parallel(batch)).await?;
        done += now.documents;
        left_out.add(&now);
        if now.seq >= wanted || !now.more {
            return Ok(true);
        }
        if done >= total {
            total = done + database.pending(now.seq, false, COUNTED).await?;
        }
        say.send_replace(build_progress(done, total));
    }
    Ok(false)
}
