//! A store that does not answer: a cluster that is down or cannot be reached.
//!
//! Each request that waits for it holds its connection and its memory until its time has passed (`--store-timeout`).
//! So after the first such request, further ones are refused at once, and one read is tried again and again. They are
//! admitted when it is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::header::{HeaderValue, RETRY_AFTER};
use kv_api::{AnyDatabase, Read, Runner, Transaction};
use model::Layer;

use crate::http::error::{ApiError, Result};

/// Time after which a try counts as not answered.
const ANSWER: Duration = Duration::from_secs(1);

/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(250);

/// Whether the store does not answer.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// Whether requests are refused.
    refuses: AtomicBool,
    /// Whether a task tries to read.
    tries: AtomicBool,
}

impl Outage {
    /// Refuses a request during an outage.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.refuses.load(Ordering::Acquire) {
            return Ok(());
        }
        let refusal = ApiError::unavailable("The store does not answer at the moment; try again.");
        Err(refusal.with_header(RETRY_AFTER, HeaderValue::from_static("1")))
    }

    /// Tries the store, unless that is under way. If a try fails, requests are refused until one succeeds. Called when
    /// a request had no answer within its whole time. That may have other reasons, such as very many conflicts, so only
    /// a try decides. A slow `/_up` is no reason to call it: while a cluster recovers, other requests are still served
    /// in time.
    pub(crate) fn suspect(self: &Arc<Self>, layer: &Layer<AnyDatabase>) {
        if self.tries.swap(true, Ordering::AcqRel) {
            return;
        }
        let (outage, layer) = (self.clone(), layer.clone());
        tokio::spawn(async move {
            while let Err(error) = try_store(&layer).await {
                if !outage.refuses.swap(true, Ordering::AcqRel) {
                    tracing::error!(error, "the store does not answer: requests are refused until it does");
                }
                tokio::time::sleep(PAUSE).await;
            }
            outage.tries.store(false, Ordering::Release);
            if outage.refuses.swap(false, Ordering::AcqRel) {
                tracing::info!("the store answers again");
            }
        });
    }
}

/// Reads the store, which answers within a second unless there is an outage.
///
/// # Errors
/// The store's error, for the log.
pub(crate) async fn try_store(layer: &Layer<AnyDatabase>) -> std::result::Result<(), String> {
    // Any key will do. It need not exist.
    let read =
        Runner::new(layer.engine()).run(|transaction, _| async move { transaction.get(b"", Read::Snapshot).await });
    match tokio::time::timeout(ANSWER, read).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer in {} s", ANSWER.as_secs())),
    }
}
