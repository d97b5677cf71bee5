//! An object store through the `object_store` crate: S3's protocol, a directory, memory.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{BackoffConfig, Error, ObjectStore, ObjectStoreExt, RetryConfig};

use super::{Connect, Location, Object, Objects};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::StoreResult;

/// Maximum number of retries of a request, and their time limit.
const RETRIES: usize = 6;
const RETRY_FOR: Duration = Duration::from_secs(60);

/// A part of an object store.
#[derive(Clone, Debug)]
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
    root: Path,
    /// Name in error messages.
    name: String,
}

impl Bucket {
    /// The part of a store below `root`, with a name for error messages.
    ///
    /// # Errors
    /// [`StoreErrorKind::Refused`] if `root` is not a valid path.
    pub fn new(store: Arc<dyn ObjectStore>, root: &str, name: &str) -> StoreResult<Self> {
        let root =
            Path::parse(root).map_err(|error| StoreError::new(StoreErrorKind::Refused, format!("{name}: {error}")))?;
        Ok(Bucket { store, root, name: name.to_owned() })
    }

    /// An empty store in memory.
    pub fn in_memory() -> Self {
        Bucket { store: Arc::new(InMemory::new()), root: Path::default(), name: "memory".to_owned() }
    }

    fn path(&self, name: &str) -> StoreResult<Path> {
        let whole = format!("{}/{name}", self.root.as_ref());
        Path::parse(whole.trim_start_matches('/')).map_err(|error| self.failure(error.into()))
    }

    fn failure(&self, error: Error) -> StoreError {
        let kind = match &error {
            Error::Generic { .. } | Error::JoinError { .. } => StoreErrorKind::Unavailable,
            _ => StoreErrorKind::Refused,
        };
        // In one line: each error's text includes its causes, and a server's answer may have several lines.
        let said = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        StoreError::new(kind, format!("the object store {}: {said}", self.name))
    }
}

#[async_trait]
impl Objects for Bucket {
    async fn put(&self, name: &str, content: Bytes) -> StoreResult<()> {
        let path = self.path(name)?;
        self.store.put(&path, content.into()).await.map_err(|error| self.failure(error))?;
        Ok(())
    }

    async fn get(&self, name: &str) -> StoreResult<Option<Bytes>> {
        let found = match self.store.get(&self.path(name)?).await {
            // A missing bucket is not the same as a missing object.
            Err(error @ Error::NotFound { .. }) if error.to_string().contains("NoSuchBucket") => {
                return Err(self.failure(error));
            }
            Err(Error::NotFound { .. }) => return Ok(None),
            found => found.map_err(|error| self.failure(error))?,
        };
        match found.bytes().await {
            Err(Error::NotFound { .. }) => Ok(None),
            read => read.map(Some).map_err(|error| self.failure(error)),
        }
    }

    async fn list(&self, folder: &str) -> StoreResult<Vec<Object>> {
        let folder = self.path(folder)?;
        let above = self.root.as_ref().len();
        let mut all = Vec::new();
        let mut listing = self.store.list(Some(&folder));
        while let Some(found) = listing.try_next().await.map_err(|error| self.failure(error))? {
            let whole = found.location.as_ref();
            let name = whole.get(above..).unwrap_or_default().trim_start_matches('/');
            let modified_ms = u64::try_from(found.last_modified.timestamp_millis()).unwrap_or(0);
            all.push(Object { name: name.to_owned(), bytes: found.size, modified_ms });
        }
        Ok(all)
    }

    async fn delete(&self, name: &str) -> StoreResult<()> {
        match self.store.delete(&self.path(name)?).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failure(error)),
        }
    }
}

/// Connects to the locations in the settings, with credentials and the endpoint from environment variables
/// (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT` and all others that `object_store`
/// knows).
///
/// An unencrypted endpoint is accepted on the loopback interface; elsewhere only if `AWS_ALLOW_HTTP` is true.
#[derive(Clone)]
pub struct Connector {
    variables: Vec<(String, String)>,
}

impl Connector {
    /// With the variables of this process.
    pub fn from_env() -> Self {
        let variables = std::env::vars_os();
        let variables =
            variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Connector::with_variables(variables)
    }

    /// With these variables.
    pub fn with_variables(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let variables = variables.into_iter().filter(|(name, _)| name.starts_with("AWS_"));
        Connector { variables: variables.collect() }
    }

    fn s3(&self, bucket: &str, name: &str) -> StoreResult<Arc<dyn ObjectStore>> {
        let mut builder = AmazonS3Builder::new().with_bucket_name(bucket);
        for (variable, value) in &self.variables {
            if let Ok(key) = variable.to_ascii_lowercase().parse::<AmazonS3ConfigKey>()
                && !matches!(key, AmazonS3ConfigKey::Bucket)
            {
                builder = builder.with_config(key, value);
            }
        }
        if builder.get_config_value(&AmazonS3ConfigKey::Endpoint).is_some_and(|endpoint| peer::is_loopback(&endpoint)) {
            builder = builder.with_allow_http(true);
        }
        let backoff = BackoffConfig { max_backoff: Duration::from_secs(10), ..BackoffConfig::default() };
        let retry = RetryConfig { backoff, max_retries: RETRIES, retry_timeout: RETRY_FOR };
        match builder.with_retry(retry).build() {
            Ok(store) => Ok(Arc::new(store)),
            Err(error) => Err(StoreError::new(StoreErrorKind::Refused, format!("the object store {name}: {error}"))),
        }
    }
}

impl std::fmt::Debug for Connector {
    // Some of the variables are secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

impl Connect for Connector {
    fn connect(&self, location: &str) -> StoreResult<Arc<dyn Objects>> {
        let bucket = match location.parse()? {
            Location::S3 { bucket, prefix } => Bucket::new(self.s3(&bucket, location)?, &prefix, location)?,
            Location::Directory(path) => {
                let store = LocalFileSystem::new_with_prefix(&path).map_err(|error| {
                    // Creating it here would hide that a disk is not mounted.
                    let sentence = format!("the object store {location}: the directory must be there: {error}");
                    StoreError::new(StoreErrorKind::Refused, sentence)
                })?;
                // The chunks have no other copy: an object must be on the disk before its document loses them.
                Bucket::new(Arc::new(store.with_fsync(true)), "", location)?
            }
        };
        Ok(Arc::new(bucket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let connector = Connector::with_variables([("AWS_SECRET_ACCESS_KEY".to_owned(), "hidden".to_owned())]);
        assert!(!format!("{connector:?}").contains("hidden"));
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let refused = Connector::from_env().connect("file:/nowhere/at/all").unwrap_err().to_string();
        assert!(refused.contains("file:/nowhere/at/all") && refused.contains("must be there"), "{refused}");
    }
}
