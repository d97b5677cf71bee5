//! `couch-layer relocate`: moves a database to another store.
//!
//! With `--from` the command opens both stores itself. With `--url` a running server does the work, and the command
//! only shows its progress; it may be ended and run again. In both cases, the same command run again continues the
//! relocation, whatever ended the earlier run.

use std::ops::ControlFlow;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use kv_api::{AnyDatabase, Database, Durability};
use model::{ErrorKind, Layer, LayerOptions};
use peer::Address;

use super::progress::{self, Unit};
use super::source::{IfNoDatabase, Remote};
use super::tls_args::TrustArgs;
use crate::cmd::{Failure, failure};
use crate::engine::{self, EngineUrl, IfMissing};
use crate::relocation::{Outcome, RequestedRelocation, Status, phase_name};

/// Pause between two requests for a server's progress.
const POLL: Duration = Duration::from_millis(200);

/// Move a database to another store, with its revisions, sequences and local documents
#[derive(Debug, Args)]
pub(crate) struct Relocate {
    /// The database
    #[arg(value_name = "DB")]
    database: String,
    /// The store that the database is in: lsm:FOLDER, sled:FOLDER, a folder, which names its engine itself, or
    /// fdb:CLUSTER_FILE. No server may have the folder open
    #[arg(long, value_name = "URL", required_unless_present = "url", conflicts_with = "url")]
    from: Option<EngineUrl>,
    /// Let a running server do it, while it serves the database: http://HOST:PORT or
    /// https://HOST, with USER:PASSWORD@ before HOST if it needs one. Without a user in the URL, COUCHDB_USER and
    /// COUCHDB_PASSWORD are sent
    #[arg(long, value_name = "URL")]
    url: Option<Address>,
    /// The store that the database moves to; a missing folder is created. With --url it is on the server's machine,
    /// with an absolute path
    #[arg(long, value_name = "URL")]
    to: EngineUrl,
    /// Compare every document and revision on both sides before the database moves
    #[arg(long)]
    verify: bool,
    /// After the move, delete what is left of the database in its old store
    #[arg(long)]
    delete_source: bool,
    /// Abandon an unfinished relocation: remove the copy, and leave the database where it is
    #[arg(long, conflicts_with_all = ["verify", "delete_source", "json"])]
    abandon: bool,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trust: TrustArgs,
}

impl Relocate {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        if self.to == EngineUrl::Memory {
            return Err(failure("mem: keeps nothing when its process ends; name a store that does"));
        }
        let name = self.database.as_str();
        let (outcome, to) = match (&self.url, &self.from) {
            (Some(server), _) => {
                let remote = Remote::open(server, name, IfNoDatabase::Fail, &self.trust.read()?).await?;
                let to = self.to.to_string();
                if self.abandon {
                    return abandoned(name, remote.abandon_relocation(&to).await?);
                }
                (self.through(&remote).await?, to)
            }
            (None, Some(from)) => {
                let (source, from) = store(from, IfMissing::Fail).await?;
                let if_missing = if self.abandon { IfMissing::Fail } else { IfMissing::Create };
                if self.to.absolute()? == from {
                    return Err(failure(format!("{name} is in {from} already")));
                }
                let (target, to) = store(&self.to, if_missing).await?;
                if self.abandon {
                    let removed = model::abandon_relocation(&source, &target, name).await;
                    return abandoned(name, removed.map_err(|error| explained(name, &from, error))?);
                }
                (self.here(&source, &from, &target, &to).await?, to.to_string())
            }
            (None, None) => return Err(failure("--from must name the store of the database")),
        };
        if self.json {
            progress::print(&String::from_utf8_lossy(&outcome.to_json(name, &to)))?;
        } else {
            progress::print(&outcome.to_text(name, &to))?;
        }
        match outcome.verified {
            Some(verified) if verified.difference_count > 0 && outcome.moved => {
                Err(failure(format!("{name} is not the same on both sides; its rows in the old store were kept")))
            }
            Some(verified) if verified.difference_count > 0 => {
                Err(failure(format!("{name} was not moved; --abandon removes the copy, which may be damaged")))
            }
            _ => Ok(()),
        }
    }

    fn asked(&self, to: &EngineUrl) -> RequestedRelocation {
        RequestedRelocation { to: to.to_string(), verify: self.verify, delete_source: self.delete_source }
    }

    /// Relocates between two stores of this process.
    async fn here(
        &self,
        source: &Layer<AnyDatabase>,
        from: &EngineUrl,
        target: &Layer<AnyDatabase>,
        to: &EngineUrl,
    ) -> Result<Outcome, Failure> {
        let options = self.asked(to).options(from, to);
        let bar = progress::bar(0, Unit::Documents);
        let report = model::relocate(source, target, &self.database, &options, |at| {
            show(&bar, phase_name(at.phase), at.documents, at.expected);
            ControlFlow::Continue(())
        });
        let report = report.await;
        bar.finish_and_clear();
        Ok(report.map_err(|error| explained(&self.database, from, error))?.into())
    }

    /// Lets a server relocate, and shows its progress.
    async fn through(&self, remote: &Remote) -> Result<Outcome, Failure> {
        if !self.to.is_absolute() {
            let reason = format!("{} is relative; name the whole path on the server's machine", self.to);
            return Err(failure(reason));
        }
        remote.relocate(&self.asked(&self.to)).await?;
        let bar = progress::bar(0, Unit::Documents);
        let outcome = loop {
            match remote.relocation().await? {
                Status::Running { phase, documents, expected } => show(&bar, phase, documents, expected),
                Status::Ended(outcome) => break Ok(outcome),
                Status::Failed(reason) => break Err(failure(reason)),
                Status::None | Status::Abandoned(_) => {
                    break Err(failure("the server was restarted; run this command again to continue"));
                }
            }
            tokio::time::sleep(POLL).await;
        };
        bar.finish_and_clear();
        outcome
    }
}

/// Opens a store. Also returns its absolute URL.
async fn store(url: &EngineUrl, if_missing: IfMissing) -> Result<(Layer<AnyDatabase>, EngineUrl), Failure> {
    let engine = engine::open(url, if_missing)?;
    if engine.durability() == Durability::Process {
        return Err(failure(format!("{url} keeps nothing when its process ends")));
    }
    // The limit on size is for new documents: every stored body may move.
    Ok((Layer::open(engine, LayerOptions::default()).await?, url.absolute()?))
}

fn show(bar: &ProgressBar, phase: &str, documents: u64, expected: u64) {
    // Documents that are edited meanwhile are copied again.
    bar.set_length(expected.max(documents));
    bar.set_position(documents);
    bar.set_message(phase.to_owned());
}

fn abandoned(name: &str, was_there: bool) -> Result<(), Failure> {
    let outcome = if was_there { "the relocation is abandoned" } else { "there was no relocation to abandon" };
    Ok(progress::print(&format!("{name}: {outcome}"))?)
}

/// The message for a failed relocation.
fn explained(name: &str, from: &EngineUrl, error: model::Error) -> Failure {
    match error.kind() {
        ErrorKind::NotFound(_) => failure(format!("there is no database {name} in {from}")),
        ErrorKind::FileExists => failure(format!("there is another database {name} in the target already")),
        ErrorKind::Moved(to) => failure(format!("{name} has moved from {from} to {to} already")),
        ErrorKind::Relocation(reason) => failure(reason.as_ref()),
        _ => error.into(),
    }
}
