//! TLS of the listener: the certificate, its renewal without a restart, and the handshake.
//!
//! ```text
//!   files ──── read every ten seconds; if their bytes changed ───► Current ──► the next handshakes
//!                            └── an unusable one is logged, and the old certificate is kept
//! ```
//!
//! Or the server orders its certificate itself (`acme`).
//!
//! A key never appears in a message or in `Debug` output.

#[cfg(feature = "acme")]
mod acme;
mod current;
mod error;
mod handshake;
mod pair;
mod self_signed;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

#[cfg(feature = "acme")]
pub use acme::AcmeOptions;
use current::Current;
pub use error::TlsError;
use pair::{Pair, provider};

/// The name of HTTP/2 in a handshake.
pub(crate) const HTTP2: &[u8] = b"h2";

/// Pause between two reads of the files.
const REREAD: Duration = Duration::from_secs(10);

/// The certificate of a server, for TLS.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    current: Arc<Current>,
    origin: Origin,
    reread: Duration,
}

/// Where a certificate comes from.
#[derive(Clone, Debug)]
enum Origin {
    /// It was made for this process.
    Memory,
    Files(Arc<Files>),
    /// The server orders it.
    #[cfg(feature = "acme")]
    Acme(Arc<acme::Acme>),
}

/// The files of a certificate and its key.
#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    seen: Mutex<Seen>,
}

/// The files as last read.
#[derive(Debug)]
struct Seen {
    /// The hash of their bytes, or why they could not be read.
    found: Result<[u8; 32], String>,
    /// Whether they are in use.
    is_in_use: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Tls {
    /// A certificate and its key, in files in PEM. The certificate may be followed by its intermediate certificates.
    /// The files are read again when they change.
    ///
    /// # Errors
    /// [`TlsError`], whose message is for a person.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Tls, TlsError> {
        let seen = Mutex::new(Seen { found: Err(String::new()), is_in_use: true });
        let files = Files { certificate: certificate.to_owned(), key: key.to_owned(), seen };
        let pair = files.read()?;
        files.seen.lock().found = Ok(pair.hash());
        let certified = files.certified(&pair)?;
        Tls::new(Some(certified), Origin::Files(Arc::new(files)))
    }

    /// A self-signed certificate, for trying out. It is in memory, so the next start has another one.
    ///
    /// # Errors
    /// [`TlsError::Unusable`].
    pub fn self_signed(names: &[String]) -> Result<Tls, TlsError> {
        let made = self_signed::make(names)?;
        let nowhere = Path::new("the new certificate");
        let pair = Pair { certificate: made.certificate.into_bytes(), key: made.key.into_bytes() };
        Tls::new(Some(pair.certified(nowhere, nowhere)?), Origin::Memory)
    }

    /// The same in files, so that the certificate persists and can be given to clients. Existing files are used
    /// unchanged.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn self_signed_in_files(names: &[String], certificate: &Path, key: &Path) -> Result<Tls, TlsError> {
        if !certificate.exists() && !key.exists() {
            self_signed::make(names)?.write(certificate, key)?;
        }
        Tls::from_files(certificate, key)
    }

    /// A certificate that the server orders by ACME, and renews. It is read from its folder if it is there.
    ///
    /// # Errors
    /// [`TlsError::Read`] and [`TlsError::Write`]: the folder cannot be used.
    #[cfg(feature = "acme")]
    pub fn by_acme(options: AcmeOptions) -> Result<Tls, TlsError> {
        let (acme, certified) = acme::Acme::open(options)?;
        Tls::new(certified, Origin::Acme(Arc::new(acme)))
    }

    /// Reads the files at this interval.
    #[must_use]
    pub fn reread_every(mut self, pause: Duration) -> Tls {
        self.reread = pause;
        self
    }

    fn new(certified: Option<CertifiedKey>, origin: Origin) -> Result<Tls, TlsError> {
        let current = Arc::new(Current::new(certified));
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| TlsError::Unusable(error.to_string()))?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(current.clone());
        config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
        #[cfg(feature = "acme")]
        if let Origin::Acme(_) = origin {
            config.alpn_protocols.push(acme::challenges::CHALLENGE_PROTOCOL.to_vec());
        }
        Ok(Tls { config: Arc::new(config), current, origin, reread: REREAD })
    }

    /// Reads the files. If they changed, the next handshakes use them. A certificate by ACME is ordered now, if its
    /// order failed. Returns whether there is a certificate, and it is the one in the files.
    pub(crate) fn reread(&self) -> bool {
        let files = match &self.origin {
            Origin::Memory => return true,
            Origin::Files(files) => files,
            #[cfg(feature = "acme")]
            Origin::Acme(acme) => {
                acme.hurry();
                return self.current.certified.read().is_some();
            }
        };
        // Locked before reading: of two concurrent reads, the later one has the newer files.
        let mut seen = files.seen.lock();
        let read = files.read();
        let found = read.as_ref().map(Pair::hash).map_err(ToString::to_string);
        if seen.found == found {
            return seen.is_in_use;
        }
        seen.found = found;
        let certificate = files.certificate.display();
        match read.and_then(|pair| files.certified(&pair)) {
            Ok(certified) => {
                self.current.set(certified);
                seen.is_in_use = true;
                tracing::info!(%certificate, "a new certificate is in use");
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
                tracing::warn!(%certificate, "the new certificate cannot be used, the old one is kept: {error}{cause}");
                seen.is_in_use = false;
            }
        }
        seen.is_in_use
    }
}

impl Files {
    fn read(&self) -> Result<Pair, TlsError> {
        let read = |path: &Path| fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source });
        Ok(Pair { certificate: read(&self.certificate)?, key: read(&self.key)? })
    }

    fn certified(&self, pair: &Pair) -> Result<CertifiedKey, TlsError> {
        pair.certified(&self.certificate, &self.key)
    }
}

/// Reads the files from time to time, or orders certificates, until the server stops.
pub(crate) async fn follow(tls: Option<Tls>, mut stopping: watch::Receiver<bool>) {
    let Some(tls) = tls else { return };
    let following = async {
        match &tls.origin {
            Origin::Memory => {}
            Origin::Files(_) => loop {
                tokio::time::sleep(tls.reread).await;
                let tls = tls.clone();
                // Files may be on a slow disk. A panic was logged.
                let _ = tokio::task::spawn_blocking(move || tls.reread()).await;
            },
            #[cfg(feature = "acme")]
            Origin::Acme(acme) => acme.keep(&tls.current).await,
        }
    };
    tokio::select! {
        () = following => {}
        // An error means that the server is gone.
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_files_is_named_and_no_key_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let names = ["localhost".to_owned()];
        let [one, other] = [(); 2].map(|()| self_signed::make(&names).unwrap());
        for (name, text) in [
            ("cert", one.certificate.as_str()),
            ("key", &one.key),
            ("other", &other.key),
            ("empty", ""),
            ("half", &one.certificate[..one.certificate.len() / 2]),
            ("noise", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        ] {
            fs::write(path(name), text).unwrap();
        }
        let tls = Tls::from_files(&path("cert"), &path("key")).unwrap();
        assert!(!format!("{tls:?}").contains("PRIVATE"));
        for (certificate, key, sentence) in [
            ("none", "key", "none cannot be read"),
            ("cert", "none", "none cannot be read"),
            ("empty", "key", "empty has no certificate in PEM"),
            ("key", "key", "key has no certificate in PEM"),
            ("half", "key", "half cannot be read"),
            ("noise", "key", "cannot be used"),
            ("cert", "empty", "the key in"),
            ("cert", "cert", "the key in"),
            ("cert", "other", "cannot be used"),
        ] {
            let error = Tls::from_files(&path(certificate), &path(key)).unwrap_err();
            assert!(error.to_string().contains(sentence), "{certificate} {key}: {error}");
            assert!(!format!("{error} {error:?}").contains("PRIVATE"), "{error:?}");
        }
    }

    #[test]
    fn changed_files_are_taken_and_broken_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("cert"), folder.path().join("key"));
        let names = ["localhost".to_owned()];
        let tls = Tls::self_signed_in_files(&names, &certificate, &key).unwrap();
        let shown = || tls.current.certified.read().as_ref().unwrap().cert[0].clone();
        let first = shown();
        // Existing files are kept.
        Tls::self_signed_in_files(&names, &certificate, &key).unwrap();
        assert!(tls.reread());
        assert_eq!(shown(), first);

        let second = self_signed::make(&names).unwrap();
        fs::write(&certificate, &second.certificate).unwrap();
        assert!(!tls.reread() && !tls.reread(), "also when it is seen again");
        assert_eq!(shown(), first, "the key is still that of the first");
        fs::write(&key, &second.key).unwrap();
        assert!(tls.reread());
        let after = shown();
        assert_ne!(after, first);
        for broken in ["", "no certificate"] {
            fs::write(&certificate, broken).unwrap();
            assert!(!tls.reread());
            assert_eq!(shown(), after);
        }
        fs::remove_file(&certificate).unwrap();
        assert!(!tls.reread());
        assert_eq!(shown(), after);
        fs::write(&certificate, &second.certificate).unwrap();
        assert!(tls.reread());
        assert_eq!(shown(), after);
    }

    #[cfg(unix)]
    #[test]
    fn a_written_key_is_for_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("cert"), folder.path().join("key"));
        Tls::self_signed_in_files(&["localhost".to_owned()], &certificate, &key).unwrap();
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
