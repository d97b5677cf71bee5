//! The certificate that clients are shown.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

#[cfg(feature = "acme")]
use super::acme::challenges::Challenges;

/// The certificate for the next handshakes.
pub(super) struct Current {
    /// `None` until the first one was ordered. Handshakes fail until then.
    pub(super) certified: RwLock<Option<Arc<CertifiedKey>>>,
    #[cfg(feature = "acme")]
    pub(super) challenges: Challenges,
}

impl Current {
    pub(super) fn new(certified: Option<CertifiedKey>) -> Current {
        Current {
            certified: RwLock::new(certified.map(Arc::new)),
            #[cfg(feature = "acme")]
            challenges: Challenges::default(),
        }
    }

    pub(super) fn set(&self, certified: CertifiedKey) {
        *self.certified.write() = Some(Arc::new(certified));
    }
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Current")
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        #[cfg(feature = "acme")]
        if let Some(answer) = self.challenges.answer(&hello) {
            return answer;
        }
        let _ = hello;
        self.certified.read().clone()
    }
}
