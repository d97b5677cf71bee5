//! Replication of a database with another one, in both directions.

use std::future::{Future, pending};
use std::sync::Arc;

use peer::{Address, Http, Local, Peer};
use replicate::{Endpoint, Identity, Options, Replication, Report, replicate};

use crate::{Db, Error};

/// A replication of a database with another one, in both directions. Made by [`Db::sync`].
#[derive(Debug)]
pub struct Sync {
    push: Replication,
    pull: Replication,
    is_continuous: bool,
}

/// The result of a [`Sync`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Synced {
    /// From here to there.
    pub sent: Report,
    /// From there to here.
    pub fetched: Report,
}

impl Db {
    /// A replication, in both directions, with the database at `url`, of CouchDB or of this project. The URL may
    /// have a name and a password, and the database must exist there. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Address`] for a URL that does not name a database.
    pub fn sync(&self, url: &str) -> Result<Sync, Error> {
        let address: Address = url.parse()?;
        let here: Arc<dyn Peer> = Arc::new(Local::new((**self).clone()));
        let there: Arc<dyn Peer> = Arc::new(Http::new(address.clone())?);
        // Checkpoints are found by the identity, so each device has its own.
        let uuid = model::hex(&self.instance_id());
        let (ours, theirs) = (Endpoint::Local(self.name().to_owned()), Endpoint::Remote(address));
        let push = Identity { uuid: uuid.clone(), source: ours.clone(), target: theirs.clone() };
        let pull = Identity { uuid, source: theirs, target: ours };
        Ok(Sync {
            push: replicate(here.clone(), there.clone(), push),
            pull: replicate(there, here, pull),
            is_continuous: false,
        })
    }
}

impl Sync {
    /// Continues with later changes of both sides, until it is stopped or fails.
    #[must_use]
    pub fn continuous(self) -> Self {
        Sync { push: self.push.continuous(), pull: self.pull.continuous(), is_continuous: true }
    }

    /// The same options for both directions: filters, batches, retries.
    #[must_use]
    pub fn with_options(self, options: Options) -> Self {
        let is_continuous = options.continuous;
        let (push, pull) = (self.push.with_options(options.clone()), self.pull.with_options(options));
        Sync { push, pull, is_continuous }
    }

    /// Sends what the other side lacks, then fetches what is new there. A continuous one does both at the same time.
    /// Dropping the future stops it. Copied documents are kept, and the next run continues there.
    ///
    /// # Errors
    /// [`Error::Peer`] if the other side cannot be reached, refuses, or does not have the database.
    pub async fn run(&self) -> Result<Synced, Error> {
        self.run_until(pending()).await
    }

    /// Runs until `stop` completes, and then writes checkpoints. A run that is not continuous ignores `stop`: it ends
    /// when both directions are done.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_until(&self, stop: impl Future<Output = ()> + Send) -> Result<Synced, Error> {
        if !self.is_continuous {
            return Ok(Synced { sent: self.push.run().await?, fetched: self.pull.run().await? });
        }
        let (ended, signal) = tokio::sync::watch::channel(false);
        let stopped = || {
            let mut signal = signal.clone();
            async move { drop(signal.wait_for(|ended| *ended).await) }
        };
        let both = async { tokio::try_join!(self.push.run_until(stopped()), self.pull.run_until(stopped())) };
        tokio::pin!(both, stop);
        let (sent, fetched) = tokio::select! {
            done = &mut both => done?,
            () = &mut stop => {
                ended.send_replace(true);
                both.await?
            }
        };
        Ok(Synced { sent, fetched })
    }
}
