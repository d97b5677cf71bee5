//! The folder of accounts, keys and certificates. Only its owner can read it.
//!
//! ```text
//!   FOLDER/acme-v02.api.letsencrypt.org-directory/     one for each ACME server
//!       account.json        the account: its URL and its key
//!       account.json.old    an account that the ACME server did not know
//!       certificate.pem     the key, the certificate, and its intermediate certificates
//!       failed.json         the last failed orders; none after a success
//! ```
//!
//! A key and its certificate are one file, so that no crash leaves one without the other. Files are replaced as a
//! whole, and synced.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use disk::folder::sync_folder;
use instant_acme::AccountCredentials;

use super::super::error::TlsError;
use super::super::pair::Pair;
use super::error::OrderError;
use super::failed::Failed;

/// Maximum bytes of a file.
const MOST_BYTES: u64 = 1 << 20;

/// Bytes that must find room before an order: more than an account, a key and a certificate.
const ROOM: usize = 16 << 10;

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// The files of one ACME server.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Makes the folder of this ACME server, unless it exists. It must be writable; a full disk is enough for one that has a
    /// certificate.
    pub(super) fn open(folder: &Path, directory: &str) -> Result<Folder, TlsError> {
        let path = folder.join(name_of(directory));
        let failed = |source| TlsError::Write { path: path.clone(), source };
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&path).map_err(failed)?;
        // Whether files can be written is known now, and not after the first order. A full disk takes an empty one.
        let (probe, mut file) = new_file(&path.join("writable")).map_err(failed)?;
        let written = file.write_all(&[0; ROOM]).and_then(|()| file.sync_all());
        let written = fs::remove_file(probe).and(written);
        let folder = Folder(path.clone());
        match written {
            // A server with a certificate starts, so that somebody can free space.
            Err(error) if is_full(&error) && folder.certificate_path().exists() => {
                tracing::warn!("{}: {error}; no certificate can be ordered", path.display());
            }
            written => written.map_err(failed)?,
        }
        for path in folder.open_to_others() {
            tracing::warn!("{} is open to others than its owner; take their rights away (chmod go=)", path.display());
        }
        Ok(folder)
    }

    pub(super) fn certificate_path(&self) -> PathBuf {
        self.0.join("certificate.pem")
    }

    fn account_path(&self) -> PathBuf {
        self.0.join("account.json")
    }

    /// The certificate and its key, each in the same text. `None` if there is no file.
    pub(super) fn certificate(&self) -> Result<Option<Pair>, TlsError> {
        let path = self.certificate_path();
        let read = read(&path).map_err(|source| TlsError::Read { path, source })?;
        Ok(read.map(|pem| Pair { certificate: pem.clone(), key: pem }))
    }

    pub(super) fn write_certificate(&self, pem: &[u8]) -> Result<(), TlsError> {
        let path = self.certificate_path();
        self.replace(&path, pem).map_err(|source| TlsError::Write { path, source })
    }

    /// The account. An unreadable one is an error, since another account would replace it.
    pub(super) fn account(&self) -> Result<Option<AccountCredentials>, OrderError> {
        let failed = |why: String| OrderError::Account { path: self.account_path(), why };
        let Some(text) = read(&self.account_path()).map_err(|error| failed(error.to_string()))? else {
            return Ok(None);
        };
        // The parser's message might show a part of the key.
        let malformed = |_| failed("it is not an account; move it away, and another one is created".to_owned());
        serde_json::from_slice(&text).map(Some).map_err(malformed)
    }

    pub(super) fn write_account(&self, account: &AccountCredentials) -> Result<(), OrderError> {
        let failed = |error: io::Error| OrderError::Account { path: self.account_path(), why: error.to_string() };
        let text = serde_json::to_vec(account).map_err(|error| failed(error.into()))?;
        self.replace(&self.account_path(), &text).map_err(failed)
    }

    /// Renames the account, so that it is not lost when another one replaces it.
    pub(super) fn set_account_aside(&self) -> Result<(), OrderError> {
        let path = self.account_path();
        let failed = |error: io::Error| OrderError::Account { path: path.clone(), why: error.to_string() };
        fs::rename(&path, path.with_added_extension("old")).map_err(failed)
    }

    fn failed_path(&self) -> PathBuf {
        self.0.join("failed.json")
    }

    /// The last failed orders.
    pub(super) fn failed(&self) -> Failed {
        match read(&self.failed_path()) {
            Ok(None) => Failed::default(),
            Ok(Some(text)) => Failed::from_json(&text).unwrap_or_else(Failed::unknown),
            Err(_) => Failed::unknown(),
        }
    }

    pub(super) fn write_failed(&self, failed: &Failed) -> io::Result<()> {
        let path = self.failed_path();
        if !failed.is_none() {
            return self.replace(&path, failed.to_json().to_string().as_bytes());
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// What others than the owner may read or write, of the folder and its files with keys.
    pub(super) fn open_to_others(&self) -> Vec<PathBuf> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let paths = [self.0.clone(), self.account_path(), self.certificate_path()];
            let is_open =
                |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0);
            paths.into_iter().filter(is_open).collect()
        }
        #[cfg(not(unix))]
        Vec::new()
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let (new, mut file) = new_file(path)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(new, path)?;
        sync_folder(&self.0)
    }
}

/// An empty file that only its owner can read, beside this one.
fn new_file(path: &Path) -> io::Result<(PathBuf, File)> {
    let path = path.with_added_extension("new");
    // One that a crash left may have another mode.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(&path).map(|file| (path, file))
}

/// The bytes of a file; `None` if it does not exist.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(found) if found.len() > MOST_BYTES => Err(io::Error::new(ErrorKind::InvalidData, "it is too large")),
        Ok(_) => fs::read(path).map(Some),
    }
}

/// The name of an ACME server's folder: its URL without the scheme, with what no file name can have as `-`.
fn name_of(directory: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') { c } else { '-' };
    directory.trim_start_matches("https://").trim_end_matches('/').chars().map(plain).take(150).collect()
}
