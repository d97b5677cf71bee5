//! A certificate that the server orders itself, by ACME (RFC 8555), and renews without a restart.
//!
//! ```text
//!   the folder ── at the start ──► in use ── a third of its time is left ──► order ──► the folder, in use
//!                                                                             ▲  │ failed: logged
//!                                                                             └──┘ pause; SIGHUP ends it
//! ```
//!
//! The ACME server checks that a domain leads here by TLS-ALPN-01 (RFC 8737): it starts a handshake for the domain with
//! the protocol `acme-tls/1` alone, and gets a certificate that contains its challenge. No other protocol is spoken on
//! such a connection.
//!
//! Until there is a certificate, handshakes fail: nothing is served in the clear on a port for TLS. A certificate that
//! could not be renewed stays in use; clients refuse it when it has expired.

pub(super) mod challenges;
mod client;
mod error;
mod failed;
mod folder;
mod order;
mod validity;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use tokio::sync::Notify;

use super::current::Current;
use super::error::TlsError;
use super::pair::Pair;
use crate::causes::causes;
use error::OrderError;
use failed::Failed;
use folder::Folder;
pub use order::AcmeOptions;
use order::Orders;
use validity::Validity;

/// Maximum time between two looks at the clock.
const LOOK: Duration = Duration::from_secs(3_600);

/// Maximum time of an order, whatever the ACME server does.
const ORDER_TIME: Duration = Duration::from_secs(600);

/// A certificate by ACME.
pub(super) struct Acme {
    orders: Orders,
    /// Ends a pause between two orders.
    hurry: Notify,
}

impl fmt::Debug for Acme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acme").field("options", &self.orders.options).finish_non_exhaustive()
    }
}

impl Acme {
    /// Makes the folder, and reads the certificate in it. `None` if there is none for all of these domains.
    ///
    /// # Errors
    /// The folder cannot be written: each start would order another certificate, and an ACME server allows few. A full disk
    /// is no error if there is a certificate.
    pub(super) fn open(options: AcmeOptions) -> Result<(Acme, Option<CertifiedKey>), TlsError> {
        let folder = Folder::open(&options.folder, &options.directory)?;
        let unusable =
            |why: &String| tracing::warn!("another certificate is ordered instead of the one in the folder: {why}");
        let kept = match folder.certificate()? {
            Some(pair) => certified(&pair, &folder, &options.domains).inspect_err(unusable).ok(),
            None => None,
        };
        Ok((Acme { orders: Orders { options, folder }, hurry: Notify::new() }, kept))
    }

    /// Ends a pause between two orders.
    pub(super) fn hurry(&self) {
        self.hurry.notify_one();
    }

    /// Orders certificates when they are needed. Never returns.
    pub(super) async fn keep(&self, current: &Current) {
        let domains = self.orders.options.domains.join(", ");
        let mut failed = self.orders.folder.failed();
        if until_renewal(current).is_zero() && !failed.rest().is_zero() {
            let minutes = failed.rest().as_secs().div_ceil(60);
            tracing::warn!(domains, "the last order failed; the next one is in {minutes} min, or at SIGHUP");
        }
        loop {
            if until_renewal(current).max(failed.rest()).is_zero() {
                tracing::info!(domains, directory = self.orders.options.directory, "ordering a certificate");
                let is_issued = AtomicBool::new(false);
                let ordered = tokio::time::timeout(ORDER_TIME, self.renew(current, &is_issued)).await;
                current.challenges.clear();
                // A signal during the order does not end the pause after it.
                let _ = self.hurry.notified().now_or_never();
                match ordered.unwrap_or(Err(OrderError::Slow)).and_then(|()| due_later(current)) {
                    Ok(()) => failed = Failed::default(),
                    Err(error) => {
                        failed = failed.again(is_issued.load(Ordering::Relaxed));
                        let minutes = failed.rest().as_secs().div_ceil(60);
                        let state = match current.certified.read().is_some() {
                            true => "the old one is kept",
                            false => "no client can connect until then",
                        };
                        tracing::error!(
                            domains,
                            "no new certificate, {state}; the next order is in {minutes} min, or at SIGHUP: {error}"
                        );
                    }
                }
                if let Err(error) = self.orders.folder.write_failed(&failed) {
                    tracing::error!("the pause between two orders does not outlast a restart: {error}");
                }
            }
            // By the wall clock, which a machine that slept has moved on.
            tokio::select! {
                () = tokio::time::sleep(until_renewal(current).max(failed.rest()).min(LOOK)) => {}
                () = self.hurry.notified() => failed.hurry(),
            }
        }
    }

    /// Orders a certificate, keeps it in the folder, and uses it for the next handshakes.
    async fn renew(&self, current: &Current, is_issued: &AtomicBool) -> Result<(), OrderError> {
        let pem = self.orders.order(&current.challenges, is_issued).await?.into_bytes();
        let pair = Pair { certificate: pem.clone(), key: pem };
        let certified =
            certified(&pair, &self.orders.folder, &self.orders.options.domains).map_err(OrderError::Unusable)?;
        // A certificate that cannot be kept is used all the same: the next start orders another one.
        if let Err(error) = self.orders.folder.write_certificate(&pair.certificate) {
            let causes = causes(&error);
            tracing::error!("the new certificate is used, but not kept for the next start: {error}{causes}");
        }
        current.set(certified);
        tracing::info!(domains = self.orders.options.domains.join(", "), "a new certificate is in use");
        Ok(())
    }
}

/// The certificate and the key of a text in PEM, if it is for all of these domains.
fn certified(pair: &Pair, folder: &Folder, domains: &[String]) -> Result<CertifiedKey, String> {
    let path = folder.certificate_path();
    let certified = pair.certified(&path, &path).map_err(|error| error.to_string())?;
    let certificate = ParsedCertificate::try_from(&certified.cert[0]).map_err(|error| error.to_string())?;
    for domain in domains {
        let name = ServerName::try_from(domain.as_str()).map_err(|error| error.to_string())?;
        verify_server_name(&certificate, &name).map_err(|_| format!("it is not for {domain}"))?;
    }
    match Validity::of(&certified.cert[0]) {
        Some(_) => Ok(certified),
        None => Err("its dates cannot be read".to_owned()),
    }
}

/// Time until the certificate is renewed; zero if there is none.
fn until_renewal(current: &Current) -> Duration {
    let certified = current.certified.read();
    let validity = certified.as_ref().and_then(|certified| Validity::of(&certified.cert[0]));
    let renewal = validity.map(|validity| validity.renewal());
    renewal.and_then(|renewal| renewal.duration_since(SystemTime::now()).ok()).unwrap_or_default()
}

/// A certificate that is to be renewed when it is issued would be ordered again and again.
fn due_later(current: &Current) -> Result<(), OrderError> {
    if until_renewal(current).is_zero() { Err(OrderError::Clock) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
