//! Jobs that follow the feed of a database.
//!
//! The progress of such a job is a sequence, from which it continues after a restart, even on another server. It may
//! see a change twice.

use std::future::Future;
use std::time::Duration;

use model::{Change, ChangesRequest, ErrorKind, JsonText, NotFound, Seq, Since};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::jobs::run::{End, Run, backoff, now_ms};
use crate::http::wire::response;

/// The progress of following a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    /// The database's instance, to distinguish it from another database of the same name.
    instance: String,
    since: Seq,
}

impl Reached {
    /// The progress at the start.
    pub(crate) fn new(instance: String) -> Reached {
        Reached { instance, since: Seq::ZERO }
    }

    /// The stored progress of the job's earlier runs.
    pub(crate) fn of(run: &Run) -> Option<Reached> {
        run.job.progress.as_ref().and_then(|progress| Reached::read(&progress.bytes))
    }

    /// The progress, if it belongs to this instance.
    pub(crate) fn of_instance(self, instance: &str) -> Option<Reached> {
        Some(self).filter(|reached| reached.instance == instance)
    }

    fn write(&self) -> Vec<u8> {
        response::object_text(|json| {
            json.name("instance").str(&self.instance).name("through_seq").str(&self.since.to_string());
        })
    }

    fn read(bytes: &[u8]) -> Option<Reached> {
        let json = JsonText::parse(bytes).ok()?;
        let text = |name| Some(json.get(name)?.as_str()?.into_owned());
        let Since::Seq(since) = text("through_seq")?.parse().ok()? else { return None };
        Some(Reached { instance: text("instance")?, since })
    }
}

/// Runs such a job until `work` ends, or the run or the server should stop.
pub(crate) async fn run(app: &App, run: &Run, work: impl Future<Output = Result<()>>) -> End {
    tokio::select! {
        ended = work => match ended {
            Ok(()) => End::Removed,
            Err(error) => {
                tracing::warn!(job = ?run.job.id, ?error, "a database cannot be followed");
                // The progress is kept, since it is the checkpoint.
                End::Failed(None, backoff(run.job.attempts))
            }
        },
        () = run.stopped() => End::Again(Duration::ZERO),
        () = app.stopping() => End::Again(Duration::ZERO),
    }
}

/// Follows a database until it is gone or has moved, and calls `each` for every change. Returns the progress.
pub(crate) async fn follow<F>(
    run: &Run,
    database: &Documents,
    include_docs: bool,
    mut reached: Reached,
    each: impl Fn(Change) -> F,
) -> Result<Reached>
where
    F: Future<Output = Result<()>>,
{
    let is_gone =
        |error: &model::Error| matches!(error.kind(), ErrorKind::NotFound(NotFound::Database) | ErrorKind::Moved(_));
    let mut watcher = database.watch_changes(reached.since);
    loop {
        let since = Since::Seq(reached.since);
        let batch = match database.changes(&ChangesRequest { since, include_docs, ..ChangesRequest::default() }).await {
            Err(error) if is_gone(&error) => return Ok(reached),
            batch => batch?,
        };
        for change in batch.rows {
            each(change).await?;
        }
        if batch.last_seq != reached.since {
            reached.since = batch.last_seq;
            run.layer.jobs().update(&run.hold, &reached.write(), now_ms()).await?;
        }
        if batch.more {
            continue;
        }
        watcher.saw(reached.since);
        match watcher.changed().await {
            Err(error) if is_gone(&error) => return Ok(reached),
            changed => drop(changed?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_a_database_was_followed_is_read_back() {
        let reached = Reached::new("00ff".into());
        assert_eq!(Reached::read(&reached.write()), Some(reached));
        for wrong in [&b""[..], b"{}", br#"{"instance":"a","through_seq":"now"}"#] {
            assert_eq!(Reached::read(wrong), None);
        }
    }
}
