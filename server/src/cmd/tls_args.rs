//! Options of TLS: for the server's own listener, and for servers that a command or a replication reaches.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use peer::{Trust, TrustError, Url};
use rustls::pki_types::DnsName;

use crate::engine::EngineUrl;
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

    /// Serve HTTPS with a certificate for these DNS names, separated by commas, that the server orders by ACME and
    /// renews. Port 443 of each name must lead to the server. You agree to the terms of the ACME server
    #[arg(long, value_name = "NAME", env = "COUCH_LAYER_DOMAIN", value_delimiter = ',', value_parser = read_domain)]
    domain: Vec<String>,

    /// The address to which the ACME server may send warnings
    #[arg(long, value_name = "ADDRESS", env = "COUCH_LAYER_ACME_EMAIL", requires = "domain")]
    acme_email: Option<String>,

    /// The directory of the ACME server [default: Let's Encrypt's]. That of a private one is trusted by --tls-roots
    #[arg(long, value_name = "URL", env = "COUCH_LAYER_ACME_DIRECTORY", requires = "domain",
          value_parser = read_directory)]
    acme_directory: Option<String>,

    /// The folder of the account, the key and the certificate [default: beside the store's folder, with .acme after its
    /// name]
    #[arg(long, value_name = "FOLDER", env = "COUCH_LAYER_ACME_FOLDER", requires = "domain")]
    acme_folder: Option<PathBuf>,
}

/// The port at which ACME servers look for a name (RFC 8737).
#[cfg(feature = "acme")]
const HTTPS: u16 = 443;

/// Let's Encrypt.
#[cfg(feature = "acme")]
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// Why a listener has no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsArgsError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Roots(#[from] RootsError),
    #[error("--domain orders a certificate, and --{0} names another one; leave one of them out")]
    TwoCertificates(&'static str),
    #[cfg(feature = "acme")]
    #[error("{0} is no public name, so Let's Encrypt issues nothing for it; name your ACME server by --acme-directory")]
    NotPublic(String),
    #[cfg(feature = "acme")]
    #[error("--domain keeps its certificate in a folder, and {0} has none; name one with --acme-folder")]
    NoFolder(EngineUrl),
    #[cfg(not(feature = "acme"))]
    #[error(
        "this couch-layer was built without the feature acme, which --domain needs: build it with `cargo build \
         --release -p couch-layer-server --features acme`, or get a certificate elsewhere for --tls-cert"
    )]
    NoAcme,
}

impl TlsArgs {
    /// The certificate for a listener at this address. One that is ordered is kept beside this store.
    pub(crate) fn read(
        &self,
        listen: &str,
        address: SocketAddr,
        store: &EngineUrl,
        trust: &TrustArgs,
    ) -> Result<Option<Tls>, TlsArgsError> {
        if !self.domain.is_empty() {
            return self.ordered(address, store, trust).map(Some);
        }
        Ok(self.given(listen, address)?)
    }

    /// A certificate by ACME.
    fn ordered(&self, address: SocketAddr, store: &EngineUrl, trust: &TrustArgs) -> Result<Tls, TlsArgsError> {
        for (flag, is_given) in [("tls-cert", self.tls_cert.is_some()), ("tls-self-signed", self.tls_self_signed)] {
            if is_given {
                return Err(TlsArgsError::TwoCertificates(flag));
            }
        }
        #[cfg(feature = "acme")]
        {
            let is_public = |domain: &String| domain.contains('.') && !domain.contains('_');
            let private = self.domain.iter().find(|domain| !is_public(domain));
            if let (Some(domain), None) = (private, &self.acme_directory) {
                return Err(TlsArgsError::NotPublic(domain.clone()));
            }
            let beside = match store {
                EngineUrl::Folder { path, .. } if path.file_name().is_some() => Some(path.with_added_extension("acme")),
                _ => None,
            };
            let folder = self.acme_folder.clone().or(beside);
            let tls = Tls::by_acme(crate::http::AcmeOptions {
                domains: without_duplicates(&self.domain),
                email: self.acme_email.clone(),
                directory: self.acme_directory.clone().unwrap_or_else(|| LETS_ENCRYPT.to_owned()),
                folder: folder.ok_or_else(|| TlsArgsError::NoFolder(store.clone()))?,
                trust: trust.read()?,
            })?;
            if address.port() != HTTPS {
                tracing::info!("port {HTTPS} of {} must lead to {address}, for ACME", self.domain.join(", "));
            }
            Ok(tls)
        }
        #[cfg(not(feature = "acme"))]
        {
            let _ = (address, store, trust);
            Err(TlsArgsError::NoAcme)
        }
    }

    /// A certificate in files, or one that is made now.
    fn given(&self, listen: &str, address: SocketAddr) -> Result<Option<Tls>, TlsError> {
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

/// A DNS name, in lower case.
fn read_domain(text: &str) -> Result<String, String> {
    let name = text.trim().trim_end_matches('.').to_ascii_lowercase();
    if name.starts_with("*.") {
        return Err("name each domain; ACME servers check a wildcard in the DNS only".to_owned());
    }
    if !name.is_ascii() {
        return Err("write a name of other letters in its form for the DNS, which begins with xn--".to_owned());
    }
    match DnsName::try_from(name.as_str()) {
        Ok(_) if name.parse::<IpAddr>().is_err() => Ok(name),
        _ => Err("a domain is a DNS name, for example notes.example.org".to_owned()),
    }
}

/// The names in their order, each once.
#[cfg(feature = "acme")]
fn without_duplicates(names: &[String]) -> Vec<String> {
    let mut once: Vec<String> = Vec::new();
    for name in names {
        if !once.contains(name) {
            once.push(name.clone());
        }
    }
    once
}

/// The URL of an ACME server's directory.
fn read_directory(text: &str) -> Result<String, String> {
    match Url::parse(text) {
        Ok(url) if url.scheme() == "https" && url.has_host() => Ok(url.into()),
        _ => Err("the directory of an ACME server is a URL that begins with https://".to_owned()),
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
    fn a_domain_is_a_name_that_can_be_checked() {
        assert_eq!(read_domain(" Notes.Example. ").unwrap(), "notes.example");
        assert_eq!(read_domain("localhost").unwrap(), "localhost");
        for (text, sentence) in [
            ("*.example.org", "wildcard"),
            ("müller.example", "xn--"),
            ("192.0.2.7", "DNS name"),
            ("2001:db8::7", "DNS name"),
            ("", "DNS name"),
            ("https://notes.example", "DNS name"),
            ("notes.example:443", "DNS name"),
        ] {
            let error = read_domain(text).unwrap_err();
            assert!(error.contains(sentence), "{text}: {error}");
        }
        #[cfg(feature = "acme")]
        assert_eq!(without_duplicates(&["b", "a", "b"].map(str::to_owned)), ["b", "a"]);
        assert_eq!(read_directory("https://ca.example:9000/dir").unwrap(), "https://ca.example:9000/dir");
        for text in ["http://ca.example/dir", "ca.example", "https://", ""] {
            assert!(read_directory(text).unwrap_err().contains("https://"), "{text}");
        }
    }

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
