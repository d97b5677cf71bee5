//! Jobs that run while an option of the configuration is set.

use jobs::{JobId, NewJob};

use crate::http::app::App;
use crate::http::config::settings::Settings;
use crate::http::error::Result;
use crate::http::jobs::run::PAUSE;

/// Adds and removes a job as the configuration says, until the server stops. When the option changes, the current run
/// stops and the job starts again.
pub(crate) async fn begin<T: PartialEq + Clone>(app: &App, id: JobId, data: &[u8], read: fn(&Settings) -> &Option<T>) {
    let mut known = None;
    let mut loaded = app.auth.loaded();
    let beginning = async {
        loop {
            loaded.borrow_and_update();
            if let Err(error) = configure(app, &id, data, read, &mut known).await {
                tracing::warn!(job = ?id, ?error, "cannot start or end a job as the configuration says");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            // An error says that the server is gone.
            if loaded.changed().await.is_err() {
                return;
            }
        }
    };
    app.until_stopping(beginning).await;
}

/// Adds or removes the job when the option has changed.
async fn configure<T: PartialEq + Clone>(
    app: &App,
    id: &JobId,
    data: &[u8],
    read: fn(&Settings) -> &Option<T>,
    known: &mut Option<T>,
) -> Result<()> {
    let settings = app.auth.settings();
    let wanted = read(&settings);
    if wanted == known {
        return Ok(());
    }
    match wanted {
        Some(_) => drop(app.layer.jobs().add(id, &NewJob { data: data.to_vec().into(), ..NewJob::default() }).await?),
        None => drop(app.layer.jobs().remove(id).await?),
    }
    *known = wanted.clone();
    Ok(())
}
