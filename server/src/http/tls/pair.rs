//! A certificate and its key, in PEM.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};

use super::error::TlsError;

/// The bytes of the two files.
pub(super) struct Pair {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
}

impl Pair {
    pub(super) fn hash(&self) -> [u8; 32] {
        let hash = Sha256::new().chain_update((self.certificate.len() as u64).to_le_bytes());
        hash.chain_update(&self.certificate).chain_update(&self.key).finalize().into()
    }

    /// The certificates and the key in these bytes, read from these files.
    pub(super) fn certified(&self, certificate: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.certificate).collect();
        let chain =
            chain.map_err(|error| TlsError::Certificate { path: certificate.to_owned(), why: error.to_string() })?;
        if chain.is_empty() {
            return Err(TlsError::NoCertificate(certificate.to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| TlsError::Key { path: key.to_owned(), why: error.to_string() })?;
        CertifiedKey::from_der(chain, key, &provider()).map_err(|error| TlsError::Unusable(error.to_string()))
    }
}

/// The cryptography. It is named explicitly, since another crate of the program may enable another provider.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
