//! Why there is no new certificate.

use std::path::PathBuf;

/// Why there is no new certificate, as a sentence for the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrderError {
    #[error("the account in {} cannot be used: {why}", path.display())]
    Account { path: PathBuf, why: String },
    #[error("no server can be reached by TLS: {0}")]
    Client(String),
    #[error("{server}: {why}")]
    Failed { server: String, why: String },
    #[error("{server} did not find this server at {domain}, port 443 (tls-alpn-01): {why}")]
    NotProved { server: String, domain: String, why: String },
    #[error("{server} does not check {domain} by tls-alpn-01, the only way that this server knows")]
    NoChallenge { server: String, domain: String },
    #[error("a key or a request cannot be made: {0}")]
    Key(#[from] rcgen::Error),
    #[error("the new certificate cannot be used: {0}")]
    Unusable(String),
    #[error("the new certificate is to be renewed already; is this machine's clock right?")]
    Clock,
    #[error("the order took too long")]
    Slow,
}
