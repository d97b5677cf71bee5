//! The location of an object store, as people write it and the settings keep it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::{StoreError, StoreErrorKind};

/// Location of an object store: `s3://BUCKET/PREFIX`, or `file:PATH`.
///
/// It never contains a credential or an endpoint: each client has its own in its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A bucket, and a prefix in it, which may be empty.
    S3 {
        /// The bucket.
        bucket: String,
        /// The prefix, without a slash at either end.
        prefix: String,
    },
    /// A directory, at the same absolute path for all clients.
    Directory(PathBuf),
}

impl FromStr for Location {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = |why: &str| StoreError::new(StoreErrorKind::Refused, format!("\"{text}\" {why}"));
        if let Some(rest) = text.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let prefix = prefix.trim_matches('/');
            if rest.contains(['@', '?', '#', ':']) {
                return Err(refused(
                    "is not s3://BUCKET/PREFIX alone: credentials and the endpoint come from the environment (AWS_…)",
                ));
            }
            let is_plain = |part: &str| {
                !part.is_empty()
                    && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
                    && !part.bytes().all(|byte| byte == b'.')
            };
            if !is_plain(bucket) || !(prefix.is_empty() || prefix.split('/').all(is_plain)) {
                return Err(refused("has a bucket or a prefix with characters other than letters, digits, -, _ and ."));
            }
            return Ok(Location::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() });
        }
        let Some(path) = text.strip_prefix("file:") else {
            return Err(refused("is not a place for objects; write s3://BUCKET/PREFIX or file:PATH"));
        };
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() {
            return Err(refused("names no directory"));
        }
        let path = std::path::absolute(path).map_err(|error| refused(&error.to_string()))?;
        // A canonical form, without a slash at the end.
        Ok(Location::Directory(path.components().collect()))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::S3 { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Location::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
            Location::Directory(path) => write!(f, "file:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_have_one_form() {
        for (text, wanted) in [
            ("s3://vaults", "s3://vaults"),
            ("s3://vaults/", "s3://vaults"),
            ("s3://vaults/notes/of.mine/", "s3://vaults/notes/of.mine"),
            ("file:/srv/objects", "file:/srv/objects"),
            ("file:///srv/./objects/", "file:/srv/objects"),
        ] {
            let location: Location = text.parse().unwrap();
            assert_eq!(location.to_string(), wanted);
            assert_eq!(location.to_string().parse::<Location>().unwrap(), location);
        }
        assert!(matches!("file:objects".parse(), Ok(Location::Directory(path)) if path.is_absolute()));
    }

    #[test]
    fn what_has_credentials_or_means_nothing_is_refused() {
        for (text, wanted) in [
            ("s3://key:secret@vaults", "come from the environment"),
            ("s3://vaults?endpoint=x", "come from the environment"),
            ("s3://", "bucket or a prefix"),
            ("s3://vaults/a//b", "bucket or a prefix"),
            ("s3://vaults/../b", "bucket or a prefix"),
            ("https://vaults.example", "not a place for objects"),
            ("file:", "names no directory"),
        ] {
            let refused = text.parse::<Location>().unwrap_err().to_string();
            assert!(refused.contains(wanted), "{refused}");
        }
    }
}
