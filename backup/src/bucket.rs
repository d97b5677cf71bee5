//! A place in an object store that speaks S3's protocol.
//!
//! A file is created by a conditional request (`If-None-Match: *`), which S3, Garage, MinIO and R2 know. Credentials and the
//! endpoint come from the environment (`AWS_…`).

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode};

use crate::error::{Error, Result};
use crate::place::{Place, Stored};

/// A part of an object store.
#[derive(Debug)]
pub(crate) struct Bucket {
    store: Arc<dyn ObjectStore>,
    root: Path,
}

impl Bucket {
    /// The place `s3://BUCKET/PREFIX`. Of the variables, those that begin with `AWS_` count.
    pub(crate) fn new(name: &str, variables: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let refused = |reason: String| Error::refused(format!("{name}: {reason}"));
        let rest = name.strip_prefix("s3://").unwrap_or(name);
        let (bucket, root) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() || rest.contains(['@', '?', '#', ':']) {
            let reason =
                "it is not s3://BUCKET/PREFIX alone: credentials and the endpoint come from the environment (AWS_…)";
            return Err(refused(reason.to_owned()));
        }
        let root = Path::parse(root.trim_matches('/')).map_err(|error| refused(error.to_string()))?;
        let mut builder = AmazonS3Builder::new().with_bucket_name(bucket);
        for (variable, value) in variables.into_iter().filter(|(variable, _)| variable.starts_with("AWS_")) {
            if let Ok(key) = variable.to_ascii_lowercase().parse::<AmazonS3ConfigKey>()
                && !matches!(key, AmazonS3ConfigKey::Bucket)
            {
                builder = builder.with_config(key, value);
            }
        }
        if builder.get_config_value(&AmazonS3ConfigKey::Endpoint).is_some_and(|endpoint| peer::is_loopback(&endpoint)) {
            builder = builder.with_allow_http(true);
        }
        let store = builder.build().map_err(|error| refused(error.to_string()))?;
        Ok(Bucket { store: Arc::new(store), root })
    }

    fn path(&self, path: &str) -> io::Result<Path> {
        let whole = format!("{}/{path}", self.root.as_ref());
        Path::parse(whole.trim_matches('/')).map_err(|error| io::Error::other(error.to_string()))
    }
}

fn failed(error: object_store::Error) -> io::Error {
    use object_store::Error::{AlreadyExists, NotFound, Precondition};
    let kind = match &error {
        // A missing bucket is not the same as a missing file.
        NotFound { .. } if !error.to_string().contains("NoSuchBucket") => io::ErrorKind::NotFound,
        AlreadyExists { .. } | Precondition { .. } => io::ErrorKind::AlreadyExists,
        _ => io::ErrorKind::Other,
    };
    // In one line: a server's answer may have several.
    io::Error::new(kind, error.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
}

#[async_trait]
impl Place for Bucket {
    async fn create(&self, path: &str, content: Bytes) -> io::Result<()> {
        let path = self.path(path)?;
        self.store.put_opts(&path, content.into(), PutMode::Create.into()).await.map(drop).map_err(failed)
    }

    async fn read(&self, path: &str) -> io::Result<Bytes> {
        self.store.get(&self.path(path)?).await.map_err(failed)?.bytes().await.map_err(failed)
    }

    async fn read_part(&self, path: &str, at: u64, bytes: usize) -> io::Result<Bytes> {
        let path = self.path(path)?;
        let end = at.saturating_add(bytes as u64);
        if self.store.head(&path).await.map_err(failed)?.size < end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.store.get_range(&path, at..end).await.map_err(failed)
    }

    async fn list(&self, path: &str) -> io::Result<Vec<Stored>> {
        let above = self.root.as_ref().len();
        let mut listing = self.store.list(Some(&self.path(path)?));
        let mut found = Vec::new();
        while let Some(object) = listing.try_next().await.map_err(failed)? {
            let whole = object.location.as_ref();
            let path = whole.get(above..).unwrap_or_default().trim_start_matches('/').to_owned();
            found.push(Stored { path, bytes: object.size });
        }
        found.sort();
        Ok(found)
    }

    async fn delete(&self, path: &str) -> io::Result<()> {
        match self.store.delete(&self.path(path)?).await.map_err(failed) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
