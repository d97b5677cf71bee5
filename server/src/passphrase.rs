//! Passphrases of backups and vaults, and passwords of users, from files: others could read a command line.

use std::path::Path;

/// Maximum size of a file with a passphrase.
const MOST_BYTES: u64 = 64 << 10;

/// Reads it. A line break at the end is ignored.
///
/// # Errors
/// A sentence for a person.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, String> {
    let cannot = |error: std::io::Error| format!("{}: {error}", file.display());
    if std::fs::metadata(file).map_err(cannot)?.len() > MOST_BYTES {
        return Err(format!("{} is too long for a passphrase", file.display()));
    }
    let content = std::fs::read(file).map_err(cannot)?;
    let line = content.strip_suffix(b"\n").unwrap_or(&content);
    let passphrase = line.strip_suffix(b"\r").unwrap_or(line);
    if passphrase.is_empty() {
        return Err(format!("there is no passphrase in {}", file.display()));
    }
    Ok(passphrase.to_vec())
}

/// The same as a text.
pub(crate) fn read_text(file: &Path) -> Result<String, String> {
    String::from_utf8(read(file)?).map_err(|error| format!("{}: {error}", file.display()))
}
