//! Why a certificate cannot be used.

use std::io;
use std::path::PathBuf;

/// Why a certificate cannot be used, as a message for a person.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("{} cannot be written", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file has no certificate.
    #[error("{} has no certificate in PEM (-----BEGIN CERTIFICATE-----)", .0.display())]
    NoCertificate(PathBuf),
    /// The file has a certificate that cannot be read.
    #[error("the certificate in {} cannot be read: {why}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The file has no usable key.
    #[error("the key in {} cannot be read: {why}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The certificate and the key cannot be used together.
    #[error("the certificate and the key cannot be used: {0}")]
    Unusable(String),
}
