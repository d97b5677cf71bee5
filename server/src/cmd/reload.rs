//! SIGHUP: a running server reads its settings file and its certificate again, and reopens its logs, for example after
//! they were renamed. What cannot be read is logged, and the earlier state stays in effect.

use std::convert::Infallible;
use std::io;

use clap::{Args, Command};

use crate::cmd::Failure;
use crate::cmd::config_file::ConfigFile;
use crate::cmd::serve::Serve;
use crate::http::Server;

/// The received signals.
pub(super) struct Hangups {
    #[cfg(unix)]
    signals: tokio::signal::unix::Signal,
}

impl Hangups {
    /// From now on the signal does not end the process.
    pub(super) fn new() -> io::Result<Hangups> {
        Ok(Hangups {
            #[cfg(unix)]
            signals: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        #[cfg(unix)]
        if self.signals.recv().await.is_some() {
            return;
        }
        std::future::pending().await
    }

    /// Reads everything again at each signal. Never returns.
    pub(super) async fn reload(&mut self, server: &Server, options: &Serve) -> Infallible {
        loop {
            self.next().await;
            let mut failed = Vec::new();
            let settings = settings(options).unwrap_or_else(|error| {
                let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
                tracing::error!("the settings were not changed: {error}{cause}");
                failed.push("settings");
                None
            });
            failed.extend(server.reload(settings).await);
            match failed.is_empty() {
                true => tracing::info!("reloaded settings, certificate and logs"),
                false => tracing::error!(failed = failed.join(", "), "some could not be reloaded"),
            }
        }
    }
}

/// The settings of the file; `None` without one.
fn settings(options: &Serve) -> Result<Option<Vec<model::Setting>>, Failure> {
    let Some(path) = &options.config else { return Ok(None) };
    let settings = ConfigFile::read(path, &Serve::augment_args(Command::new("serve")))?.settings;
    options.check_twice(&settings)?;
    Ok(Some(settings))
}
