//! Which servers are trusted over TLS.
//!
//! ```text
//!  roots of the system ─┐
//!                       ├─► is the certificate signed by one of them, for this name, and valid today?
//!  own roots ───────────┘
//!      └── or is it one of them itself, as self-signed certificates are
//! ```
//!
//! No other certificate is trusted: no option turns off the check.

use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme, WantsVerifier,
};
use rustls_platform_verifier::Verifier;

use crate::error::{Error, Result};

/// The system's roots, read once for all peers without roots of their own.
static SYSTEM: LazyLock<Trust> = LazyLock::new(|| Trust(Arc::default()));

/// The root certificates that servers are trusted by: those of the system, and additional ones.
#[derive(Clone)]
pub struct Trust(Arc<Parts>);

#[derive(Default)]
struct Parts {
    own: Vec<CertificateDer<'static>>,
    /// Made at the first use, since a system has many roots.
    config: OnceLock<Result<ClientConfig>>,
}

impl Default for Trust {
    fn default() -> Self {
        SYSTEM.clone()
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("own", &self.0.own.len()).finish_non_exhaustive()
    }
}

/// The reason why a text has no valid roots.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrustError {
    /// It has no certificate in PEM.
    NoCertificate,
    /// One of its certificates cannot be read, with the reason.
    Malformed(String),
}

impl fmt::Display for TrustError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrustError::NoCertificate => f.write_str("it has no certificate in PEM (-----BEGIN CERTIFICATE-----)"),
            TrustError::Malformed(why) => write!(f, "a certificate cannot be read: {why}"),
        }
    }
}

impl std::error::Error for TrustError {}

impl Trust {
    /// The system's roots, and the certificates in this text in PEM. A server's own certificate may be one of them.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn with_roots(pem: &[u8]) -> Result<Trust, TrustError> {
        let malformed = |error: &dyn fmt::Display| TrustError::Malformed(error.to_string());
        let own: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let own = own.map_err(|error| malformed(&error))?;
        if own.is_empty() {
            return Err(TrustError::NoCertificate);
        }
        let mut roots = RootCertStore::empty();
        for root in &own {
            roots.add(root.clone()).map_err(|error| malformed(&error))?;
        }
        Ok(Trust(Arc::new(Parts { own, config: OnceLock::new() })))
    }

    /// The configuration of TLS for servers behind `https://`.
    ///
    /// # Errors
    /// [`Refused`](crate::ErrorKind::Refused) if the system's roots cannot be read.
    pub fn config(&self) -> Result<ClientConfig> {
        let config = self.0.config.get_or_init(|| {
            let provider = Arc::new(ring::default_provider());
            let system = Verifier::new_with_extra_roots(self.0.own.iter().cloned(), provider);
            let verifier = system.map_err(|error| Error::refused(format!("no server can be trusted: {error}")))?;
            let verifier = Arc::new(RootsVerifier { verifier, own: self.0.own.clone() });
            Ok(builder()?.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
        });
        config.clone()
    }

    /// For servers behind `http://`, which show no certificate. Reads no roots.
    pub(super) fn unused() -> Result<ClientConfig> {
        static UNUSED: OnceLock<Result<ClientConfig>> = OnceLock::new();
        let make = || Ok(builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
        UNUSED.get_or_init(make).clone()
    }
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>> {
    // The provider is named, since another crate of the program may enable another one.
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    builder.with_safe_default_protocol_versions().map_err(|error| Error::refused(error.to_string()))
}

/// Whether a failure is an untrusted certificate.
pub(super) fn is_untrusted(error: &(dyn std::error::Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return matches!(error, rustls::Error::InvalidCertificate(_));
    }
    // An I/O error contains the error that it wraps, but does not return it as its source.
    error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref).is_some_and(|inner| is_untrusted(inner))
}

/// Trusts the certificates that the system's and the additional roots sign.
#[derive(Debug)]
struct RootsVerifier {
    verifier: Verifier,
    own: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for RootsVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // Most self-signed certificates are marked as certificate authorities, and a server must not present such a
            // certificate. Dates are checked before that mark, names after it.
            Err(rustls::Error::InvalidCertificate(CertificateError::Other(_))) if self.own.contains(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_without_roots_are_refused() {
        for text in ["", "no PEM", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            assert_eq!(Trust::with_roots(text.as_bytes()).unwrap_err(), TrustError::NoCertificate, "{text}");
        }
        for text in
            ["-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "-----BEGIN CERTIFICATE-----\nAAAA"]
        {
            let error = Trust::with_roots(text.as_bytes()).unwrap_err();
            assert!(matches!(error, TrustError::Malformed(_)), "{text}: {error}");
        }
    }
}
