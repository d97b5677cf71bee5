//! Options of TLS: for the server's own listener, and for servers that a command or a replication reaches.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use peer::{Trust, TrustError};

use crate::http::{Tls, TlsError};

/// Which servers behind `https://` are trusted.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TrustArgs {
    /// Trust servers behind https:// by the certificates in this file (PEM) too, as well as the system's: roots, or the
    /// servers' own certificates
    #[arg(long, value_name = "FILE", env = "COUCH_LAYER_TLS_ROOTS")]
    tls_roots: Option<PathBuf>,
}

/// Why no roots can be read from a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RootsError {
    #[error("{} cannot be read", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} contains no usable certificates", path.display())]
    NoRoots { path: PathBuf, source: TrustError },
}

impl TrustArgs {
    /// Reads the file.
    pub(crate) fn read(&self) -> Result<Trust, RootsError> {
        let Some(path) = &self.tls_roots else { return Ok(Trust::default()) };
        let pem = fs::read(path).map_err(|source| RootsError::Read { path: path.clone(), source })?;
        Trust::with_roots(&pem).map_err(|source| RootsError::NoRoots { path: path.clone(), source })
    }
}

/// Options of the listener.
#[derive(Debug, Args)]
pub(crate) struct TlsArgs {
    /// Serve HTTPS with this certificate: a file in PEM, followed by its intermediate certificates. It is read again
    /// when it changes
    #[arg(long, value_name = "FILE", env = "COUCH_LAYER_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The certificate's key: a file in PEM, without a password
    #[arg(long, value_name = "FILE", env = "COUCH_LAYER_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Serve HTTPS with a certificate that the server makes itself, for trying it out. With --tls-cert and --tls-key it
    /// is written to these files, unless they exist; otherwise it lasts until the server stops
    #[arg(long, env = "COUCH_LAYER_TLS_SELF_SIGNED")]
    tls_self_signed: bool,
}

impl TlsArgs {
    /// The certificate for a listener at this address.
    pub(crate) fn read(&self, listen: &str, address: SocketAddr) -> Result<Option<Tls>, TlsError> {
        match (&self.tls_cert, &self.tls_key, self.tls_self_signed) {
            (Some(certificate), Some(key), true) => {
                Tls::self_signed_in_files(&names(listen, address), certificate, key).map(Some)
            }
            (Some(certificate), Some(key), false) => Tls::from_files(certificate, key).map(Some),
            (_, _, true) => Tls::self_signed(&names(listen, address)).map(Some),
            (_, _, false) => Ok(None),
        }
    }

    /// Whether the next start makes another certificate.
    pub(crate) fn is_passing(&self) -> bool {
        self.tls_self_signed && self.tls_cert.is_none()
    }
}

/// The names by which clients may reach the server: the host it was told to listen on, and this machine's local names.
fn names(listen: &str, address: SocketAddr) -> Vec<String> {
    let mut names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host).trim_matches(['[', ']']).to_owned();
    let is_any = address.ip().is_unspecified();
    for name in [host, address.ip().to_string()] {
        if !is_any && !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_names_what_clients_connect_to() {
        let own = ["localhost", "127.0.0.1", "::1"];
        for (listen, address, more) in [
            ("127.0.0.1:5984", "127.0.0.1:5984", &[][..]),
            ("[::1]:5984", "[::1]:5984", &[]),
            ("0.0.0.0:5984", "0.0.0.0:5984", &[]),
            ("couch.example:5984", "192.0.2.7:5984", &["couch.example", "192.0.2.7"]),
            ("[2001:db8::7]:5984", "[2001:db8::7]:5984", &["2001:db8::7"]),
        ] {
            assert_eq!(names(listen, address.parse().unwrap()), [&own[..], more].concat(), "{listen}");
        }
    }
}
