//! Databases whose documents are replications.
//!
//! ```text
//!  feed of _replicator ─┬─ a new definition ──────────► its job is added
//!                       ├─ deleted, completed, failed ► its job is removed
//!                       └─ cannot run here ───────────► failed, in the document
//! ```
//!
//! A job [follows](crate::http::jobs::following) the feed. A change that is seen twice has no effect. The hash of the
//! definition distinguishes a client's edit from states written here.

use std::sync::Arc;
use std::time::Duration;

use jobs::{JobId, JobState, NewJob};
use model::limits::DESIGN_PREFIX;
use model::{
    AttachmentEdit, Change, Document, Edit, ErrorKind, GetOptions, JsonText, JsonWriter, NameRange, WriteMode,
};
use sha2::{Digest, Sha256};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::authn::principal::Principal;
use crate::http::error::{ApiError, Result};
use crate::http::functions::validate::OnBehalf;
use crate::http::jobs::following::{self, Reached};
use crate::http::jobs::replicator::has_jobs;
use crate::http::jobs::replicator::owner::Owner;
use crate::http::jobs::replicator::record::{KIND, Origin, ReplicationJob, job_of_document, time};
use crate::http::jobs::replicator::requested::RequestedReplication;
use crate::http::jobs::run::{End, Run, now_ms};
use crate::http::wire::response::{self, json_object};

/// The kind of the jobs that follow such databases. Their ids are the names of the databases.
pub(crate) const FOLLOWERS: &str = "replicator";

/// Maximum length of the id of a document that is a replication, since it is part of a job's key.
const MOST_ID: usize = 1_000;

/// Maximum size of a job's data.
const MOST_DATA: usize = 90_000;

/// Number of attempts to write a state while others write the document.
const TRIES: usize = 20;

/// Pause after an error, and before a closed database is looked up again.
const PAUSE: Duration = Duration::from_secs(1);

/// Prefix of the members that replicators write.
const OWN: &str = "_replication_";

/// A document that is a replication.
#[derive(Debug)]
pub(crate) struct ReplicationDocument {
    pub(crate) id: String,
    pub(crate) body: JsonText,
    document: Document,
}

/// The outcome of a replication.
#[derive(Debug)]
pub(crate) enum Outcome {
    Completed { figures: Option<JsonText>, began_ms: u64 },
    Failed(String),
}

impl ReplicationDocument {
    pub(crate) fn new(document: Document) -> ReplicationDocument {
        ReplicationDocument { id: document.id.clone(), body: document.body.clone(), document }
    }

    /// The text of a member.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        Some(self.body.get(name)?.as_str()?.into_owned())
    }

    /// The state that a replicator wrote.
    pub(crate) fn state(&self) -> Option<String> {
        self.text("_replication_state")
    }

    /// Whether it has to run, or is running.
    pub(crate) fn is_to_run(&self) -> bool {
        !matches!(self.state().as_deref(), Some("completed" | "failed"))
    }

    /// A hash of the members that clients wrote.
    fn definition(&self) -> String {
        let own = json_object(|json| write_definition(&self.body, json));
        model::hex(&Sha256::digest(own.as_bytes()))
    }
}

/// The members that replicators do not write.
fn write_definition(body: &JsonText, json: &mut JsonWriter<'_>) {
    for (name, value) in body.root().members().filter(|(name, _)| !name.starts_with(OWN)) {
        json.name(&name).value(value);
    }
}

/// The document with this id, if it exists.
pub(crate) async fn find(app: &App, database: &str, id: &str) -> Result<Option<ReplicationDocument>> {
    let database = match app.databases.stores.database(database).await {
        Err(error) if error.is_no_database() => return Ok(None),
        found => found?,
    };
    find_in(&database, id).await
}

pub(crate) async fn find_in(database: &Documents, id: &str) -> Result<Option<ReplicationDocument>> {
    match database.get(id, &GetOptions::default()).await {
        Ok(document) => Ok(Some(ReplicationDocument::new(document))),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Refuses a document that could not run, since a stored one would claim that it runs. A replicated document is not
/// refused; it fails later.
pub(crate) fn check(mode: WriteMode, edit: &Edit) -> Result<()> {
    if mode == WriteMode::Replicated || edit.deleted || edit.id.starts_with(DESIGN_PREFIX) {
        return Ok(());
    }
    let state = edit.body.get("_replication_state").and_then(|state| state.as_str());
    if state.is_some_and(|state| state == "failed") {
        return Ok(());
    }
    readable(&edit.id, &edit.body).map(drop).map_err(|refused| ApiError::forbidden(refused.reason().to_owned()))
}

fn readable(id: &str, body: &JsonText) -> Result<RequestedReplication> {
    if id.len() > MOST_ID {
        return Err(ApiError::bad_request(format!("The id of a replication has at most {MOST_ID} bytes.")));
    }
    RequestedReplication::read(body)
}

/// Makes sure that an existing database is followed.
pub(crate) async fn ensure(app: &App, database: &str) -> Result<()> {
    let (jobs, id) = (app.layer.jobs(), JobId::new(FOLLOWERS, database));
    let known = jobs.get(&id).await?;
    if known.is_none_or(|job| job.state == JobState::Finished) {
        restart_follower(app, database).await?;
    }
    Ok(())
}

/// Starts to follow a new database. A run that is ending because the database was missing starts again.
pub(crate) async fn restart_follower(app: &App, database: &str) -> Result<()> {
    let id = JobId::new(FOLLOWERS, database);
    let data = response::object_text(|json| {
        json.name("task").begin_object().name("database").str(database).end_object();
    });
    let new = NewJob { data: data.into(), ..NewJob::default() };
    app.layer.jobs().add(&id, &new).await?;
    Ok(())
}

/// Starts to follow all existing databases when the server starts.
pub(crate) async fn begin(app: Arc<App>) {
    let beginning = async {
        while let Err(error) = ensure_all(&app).await {
            tracing::warn!(?error, "databases of replications cannot be found");
            tokio::time::sleep(PAUSE).await;
        }
    };
    app.until_stopping(beginning).await;
}

async fn ensure_all(app: &App) -> Result<()> {
    for name in app.layer.database_names(&NameRange::default()).await? {
        if has_jobs(&name) {
            ensure(app, &name).await?;
        }
    }
    Ok(())
}

/// Runs the job that follows a database, for as long as the database exists.
pub(crate) async fn follow(app: Arc<App>, run: Arc<Run>) -> End {
    following::run(&app, &run, follow_all(&app, &run)).await
}

async fn follow_all(app: &App, run: &Run) -> Result<()> {
    let name = run.job.id.id.as_str();
    let mut reached = Reached::of(run);
    loop {
        let database = &match app.databases.stores.database(name).await {
            Err(error) if error.is_no_database() => return remove_all(app, name).await,
            found => found?,
        };
        let instance = model::hex(&database.instance_id());
        let from = match reached.take().and_then(|reached| reached.of_instance(&instance)) {
            Some(reached) => reached,
            None => {
                // These are jobs of an earlier database of this name.
                remove_all(app, name).await?;
                Reached::new(instance)
            }
        };
        let each = |change| seen(app, database, change);
        reached = Some(following::follow(run, database, true, from, each).await?);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Does what a change of a document requires.
async fn seen(app: &App, database: &Documents, change: Change) -> Result<()> {
    match (change.deleted, change.doc) {
        _ if change.id.starts_with(DESIGN_PREFIX) => {}
        (false, Some(document)) => submit(app, database, ReplicationDocument::new(*document)).await?,
        (false, None) => tracing::warn!(id = change.id, "a document of a replication cannot be read"),
        (true, _) => remove(app, database.name(), &change.id).await?,
    }
    Ok(())
}

/// Adds the job of a document that has to run, if it has no job.
async fn submit(app: &App, database: &Documents, found: ReplicationDocument) -> Result<()> {
    let name = database.name();
    if !found.is_to_run() {
        return remove(app, name, &found.id).await;
    }
    let definition = found.definition();
    let asked = match readable(&found.id, &found.body) {
        Ok(asked) => asked,
        Err(refused) => {
            if found.id.len() <= MOST_ID {
                remove(app, name, &found.id).await?;
            }
            let outcome = Outcome::Failed(refused.reason().to_owned());
            return set_outcome_in(app, database, &found.id, &definition, &outcome).await;
        }
    };
    let (jobs, id) = (app.layer.jobs(), job_of_document(name, &found.id));
    let known = jobs.get(&id).await?.and_then(|job| ReplicationJob::read(&job.data));
    if known.is_some_and(|known| matches!(known.origin, Origin::Document { definition: one, .. } if one == definition))
    {
        return Ok(());
    }
    let origin = Origin::Document { database: name.to_owned(), id: found.id, definition };
    let owner = Owner::of_document(&app.auth, &found.body);
    let order = ReplicationJob::new(origin, &asked, owner.name.as_deref(), now_ms());
    let data = order.write();
    if data.len() > MOST_DATA {
        let reason = format!("The description of a replication, with its user, has at most {MOST_DATA} bytes.");
        let Origin::Document { id, definition, .. } = &order.origin else { return Ok(()) };
        return set_outcome_in(app, database, id, definition, &Outcome::Failed(reason)).await;
    }
    let new = NewJob { data: data.into(), name: asked.known_id(&app.uuid), ..NewJob::default() };
    jobs.add(&id, &new).await?;
    Ok(())
}

async fn remove(app: &App, database: &str, id: &str) -> Result<()> {
    app.layer.jobs().remove(&job_of_document(database, id)).await?;
    Ok(())
}

/// Removes the job of a document that was purged: the feed does not show purges.
pub(crate) async fn purged(app: &App, database: &str, id: &str) -> Result<()> {
    match find(app, database, id).await? {
        Some(_) => Ok(()),
        None => remove(app, database, id).await,
    }
}

/// Removes the jobs of all documents of a database.
async fn remove_all(app: &App, database: &str) -> Result<()> {
    let (jobs, first) = (app.layer.jobs(), job_of_document(database, "").id);
    for job in jobs.list(KIND).await? {
        if job.id.id.starts_with(&first) {
            jobs.remove(&job.id).await?;
        }
    }
    Ok(())
}

/// Writes the outcome of a replication into its document, unless the document has another definition or an outcome
/// already.
pub(crate) async fn set_outcome(
    app: &App,
    database: &str,
    id: &str,
    definition: &str,
    outcome: &Outcome,
) -> Result<()> {
    match app.databases.stores.database(database).await {
        Err(error) if error.is_no_database() => Ok(()),
        found => set_outcome_in(app, &found?, id, definition, outcome).await,
    }
}

async fn set_outcome_in(app: &App, database: &Documents, id: &str, definition: &str, outcome: &Outcome) -> Result<()> {
    // Functions are called as for an administrator. The rules for clients do not apply: the owner stays the same.
    let functions = OnBehalf::new(&app.functions, &Principal::open_admin(), None, database);
    let database = &database.clone().validated_by(Arc::new(functions));
    for _ in 0..TRIES {
        let Some(found) = find_in(database, id).await? else { return Ok(()) };
        if !found.is_to_run() || found.definition() != definition {
            return Ok(());
        }
        let body = json_object(|json| {
            write_definition(&found.body, json);
            outcome.write(now_ms(), json);
        });
        let Document { id, rev, attachments, .. } = found.document;
        let attachments = attachments.into_iter().map(AttachmentEdit::same).collect();
        let edit = Edit { attachments, ..Edit::new(id, body).over(rev) };
        match database.put(edit).await {
            Err(error) if *error.kind() == ErrorKind::Conflict => {}
            written => return Ok(written.map(drop)?),
        }
    }
    Err(ApiError::new(hyper::StatusCode::CONFLICT, "conflict", "The document was changed by others at each attempt."))
}

impl Outcome {
    fn write(&self, now_ms: u64, json: &mut JsonWriter<'_>) {
        let state = match self {
            Outcome::Completed { .. } => "completed",
            Outcome::Failed(_) => "failed",
        };
        json.name("_replication_state").str(state).name("_replication_state_time").str(&time(now_ms));
        match self {
            Outcome::Completed { figures, began_ms } => {
                json.name("_replication_stats").begin_object();
                // An ended replication needs no reached sequence. CouchDB leaves it out too.
                let figures = figures.iter().flat_map(|figures| figures.root().members());
                for (name, value) in figures.filter(|(name, _)| name != "source_seq" && name != "through_seq") {
                    json.name(&name).value(value);
                }
                json.name("start_time").str(&time(*began_ms)).end_object();
            }
            Outcome::Failed(reason) => {
                json.name("_replication_state_reason").str(&peer::cut(reason, peer::MOST_TEXT));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_run_is_taken() {
        let edit = |text: &str| Edit::new("x", JsonText::parse(text.as_bytes()).unwrap());
        let good = edit(r#"{"source":"a","target":"http://b/c"}"#);
        let bad = edit(r#"{"source":"ftp://u:geheim@a/b","target":"c"}"#);
        check(WriteMode::Interactive, &good).unwrap();
        let refused = check(WriteMode::Interactive, &bad).unwrap_err();
        assert_eq!((refused.status().as_u16(), refused.error()), (403, "forbidden"));
        assert!(!refused.reason().contains("geheim"));
        let long = Edit { id: "x".repeat(MOST_ID + 1), ..good };
        assert!(check(WriteMode::Interactive, &long).is_err());
        check(WriteMode::Replicated, &bad).unwrap();
        check(WriteMode::Interactive, &Edit { id: "_design/x".into(), ..bad.clone() }).unwrap();
        check(WriteMode::Interactive, &bad.clone().deleting()).unwrap();
        let failed = edit(r#"{"_replication_state":"failed"}"#);
        check(WriteMode::Interactive, &failed).unwrap();
    }
}
