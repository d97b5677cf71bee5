//! What an ACME server gets that checks a domain (TLS-ALPN-01, RFC 8737).

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::server::ClientHello;
use rustls::sign::CertifiedKey;

/// The protocol of a handshake that checks a domain (RFC 8737).
pub(in super::super) const CHALLENGE_PROTOCOL: &[u8] = b"acme-tls/1";

/// The certificates that answer challenges, by domain.
#[derive(Default)]
pub(in super::super) struct Challenges(RwLock<HashMap<String, Arc<CertifiedKey>>>);

impl Challenges {
    /// The answer to a handshake that is a challenge. The outer `None` means that it is none.
    pub(in super::super) fn answer(&self, hello: &ClientHello<'_>) -> Option<Option<Arc<CertifiedKey>>> {
        let mut protocols = hello.alpn()?;
        if protocols.next()? != CHALLENGE_PROTOCOL || protocols.next().is_some() {
            return None;
        }
        Some(hello.server_name().and_then(|domain| self.0.read().get(&domain.to_ascii_lowercase()).cloned()))
    }

    pub(super) fn set(&self, domain: String, certified: CertifiedKey) {
        self.0.write().insert(domain, Arc::new(certified));
    }

    pub(super) fn clear(&self) {
        self.0.write().clear();
    }
}
