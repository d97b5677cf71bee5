//! Self-signed certificates, for trying out.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};

use super::error::TlsError;

/// A certificate and its key, in PEM.
pub(super) struct SelfSigned {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// A new certificate for these names and addresses.
pub(super) fn make(names: &[String]) -> Result<SelfSigned, TlsError> {
    let made = || -> Result<SelfSigned, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, "couch-layer, self-signed");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.self_signed(&key)?.pem();
        Ok(SelfSigned { certificate, key: key.serialize_pem() })
    };
    made().map_err(|error| TlsError::Unusable(error.to_string()))
}

impl SelfSigned {
    /// Writes new files. Only their owner can read the key.
    pub(super) fn write(&self, certificate: &Path, key: &Path) -> Result<(), TlsError> {
        let write = |path: &Path, text: &str, is_secret: bool| {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true);
            #[cfg(unix)]
            if is_secret {
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            }
            #[cfg(not(unix))]
            let _ = is_secret;
            let mut file = options.open(path)?;
            file.write_all(text.as_bytes())
        };
        let failed = |path: &Path, source| TlsError::Write { path: path.to_owned(), source };
        write(key, &self.key, true).map_err(|error| failed(key, error))?;
        write(certificate, &self.certificate, false).map_err(|error| failed(certificate, error))
    }
}
