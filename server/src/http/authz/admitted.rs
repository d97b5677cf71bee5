//! `_users` as the target of a replication or of the command line: documents are checked and their passwords hashed, as
//! over HTTP. Only administrators start replications, so the documents are written on behalf of one.

use std::sync::Arc;

use async_trait::async_trait;
use kv_api::AnyDatabase;
use model::{BulkGet, Edit, JsonText, Layer, Purge, RevId, RevsDiff, WriteMode};
use peer::{
    Attachment, ByteStream, Changes, ChangesRequest, Error, ErrorKind, IdRange, Info, LocalDocument, Page, Peer,
    ReadOptions, Result, Revision,
};

use crate::http::access::settings::{Flags, Settings};
use crate::http::access::unkept::Unkept;
use crate::http::access::users::DATABASE;
use crate::http::authz::users::replicated;
use crate::http::error::ApiError;

/// The peer of a database of this store. That of `_users` admits only documents of users.
pub(crate) fn admitted(settings: Arc<Settings>, database: &str, inner: Arc<dyn Peer>) -> Arc<dyn Peer> {
    if database == DATABASE { Arc::new(Admitted { inner, settings }) } else { inner }
}

/// The same for a command, which has no configuration but that of the store.
pub(crate) async fn admitted_by_command(
    layer: &Layer<AnyDatabase>,
    database: &str,
    inner: Arc<dyn Peer>,
) -> model::Result<Arc<dyn Peer>> {
    // Other databases need no configuration, which may be unreadable.
    if database != DATABASE {
        return Ok(inner);
    }
    let (rows, _) = layer.configuration().await?;
    Ok(admitted(Arc::new(Settings::new(rows, &Unkept::default(), &Flags::default())), database, inner))
}

#[derive(Debug)]
struct Admitted {
    inner: Arc<dyn Peer>,
    /// How passwords are hashed.
    settings: Arc<Settings>,
}

impl Admitted {
    /// The body as it is to be stored.
    async fn body(&self, id: &str, deleted: bool, body: &JsonText) -> Result<JsonText> {
        let admitted = replicated(id, deleted, body, &self.settings.passwords).await;
        admitted.map_err(|error: ApiError| {
            Error::new(ErrorKind::Refused, error.reason().to_owned()).with_status(error.status().as_u16())
        })
    }
}

#[async_trait]
impl Peer for Admitted {
    async fn info(&self) -> Result<Info> {
        self.inner.info().await
    }

    async fn changes(&self, request: &ChangesRequest) -> Result<Changes> {
        self.inner.changes(request).await
    }

    async fn list(&self, range: &IdRange) -> Result<Page> {
        self.inner.list(range).await
    }

    async fn winners(&self, ids: &[String]) -> Result<Vec<Option<RevId>>> {
        self.inner.winners(ids).await
    }

    async fn read(&self, wanted: &[BulkGet], options: ReadOptions) -> Result<Vec<Result<Vec<Revision>>>> {
        self.inner.read(wanted, options).await
    }

    fn attachment(&self, id: &str, rev: &RevId, attachment: &Attachment) -> ByteStream {
        self.inner.attachment(id, rev, attachment)
    }

    async fn revs_diff(&self, wanted: Vec<(String, Vec<RevId>)>) -> Result<Vec<RevsDiff>> {
        self.inner.revs_diff(wanted).await
    }

    async fn write(&self, edits: Vec<Edit>, mode: WriteMode) -> Result<Vec<Result<RevId>>> {
        let (mut refused, mut admitted) = (Vec::with_capacity(edits.len()), Vec::with_capacity(edits.len()));
        for edit in edits {
            match self.body(&edit.id, edit.deleted, &edit.body).await {
                Ok(body) => {
                    refused.push(None);
                    admitted.push(Edit { body, ..edit });
                }
                Err(error) => refused.push(Some(error)),
            }
        }
        let mut written = self.inner.write(admitted, mode).await?.into_iter();
        let missing = || Err(Error::new(ErrorKind::Refused, "a write without a result"));
        let each = |refused: Option<Error>| match refused {
            Some(error) => Err(error),
            None => written.next().unwrap_or_else(missing),
        };
        Ok(refused.into_iter().map(each).collect())
    }

    async fn put(&self, revision: &Revision, contents: Vec<Option<ByteStream>>) -> Result<()> {
        let body = self.body(&revision.id, revision.deleted, &revision.body).await?;
        self.inner.put(&Revision { body, ..revision.clone() }, contents).await
    }

    async fn purge(&self, purges: &[Purge]) -> Result<Vec<Result<Vec<RevId>>>> {
        self.inner.purge(purges).await
    }

    async fn get_local(&self, id: &str) -> Result<Option<LocalDocument>> {
        self.inner.get_local(id).await
    }

    async fn put_local(&self, id: &str, rev: Option<&str>, body: &JsonText) -> Result<String> {
        self.inner.put_local(id, rev, body).await
    }

    async fn commit(&self) -> Result<String> {
        self.inner.commit().await
    }
}
