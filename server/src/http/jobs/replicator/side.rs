//! A database of this server as one side of a replication, used with the rights of the replication's owner.
//!
//! The rights are looked up again before each step, and after a wait for changes: a changed `_security`, another
//! password, other roles or a deleted user apply at once. An administrator's replication reads nothing for that.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use hyper::StatusCode;
use model::{BulkGet, Edit, GetOptions, JsonText, OpenRev, Purge, RevId, RevsDiff, WriteMode};
use peer::{
    Attachment, ByteStream, Change, Changes, Error, ErrorKind, FeedRequest, Filter, IdRange, Info, ListingPage, Local,
    LocalDocument, Peer, ReadOptions, Result, Revision,
};
use tokio::sync::OnceCell;

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::authn::principal::Principal;
use crate::http::authn::users;
use crate::http::authz::rights::admit_elsewhere;
use crate::http::authz::writer::on_behalf;
use crate::http::error::ApiError;
use crate::http::functions::FilterFunction;
use crate::http::functions::filter::Named;
use crate::http::jobs::replicator::owner::Owner;

/// Number of changes whose documents are read and filtered at a time.
const FILTERED_AT_ONCE: usize = 100;

/// A side, and what is needed to look up its rights.
#[derive(Clone, Debug)]
struct Owned {
    inner: Arc<dyn Peer>,
    rights: Rights,
    /// The function that filters the feed: the one it had at the start.
    filter: Arc<OnceCell<FilterFunction>>,
}

#[derive(Clone)]
struct Rights {
    app: Arc<App>,
    documents: Documents,
    owner: Owner,
    /// The owner when the side was opened: functions that validate documents are called on its behalf.
    principal: Principal,
}

impl std::fmt::Debug for Rights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rights").field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// Opens a side with the rights of the owner.
///
/// # Errors
/// 401 or 403 if the owner may not use the database.
pub(crate) async fn open(
    app: &Arc<App>,
    documents: Documents,
    owner: &Owner,
    principal: Principal,
) -> Result<Arc<dyn Peer>, ApiError> {
    let quota = app.auth.settings().quotas.of(documents.name());
    let writable = on_behalf(app, &principal, None, documents.clone()).limited_to(quota);
    let inner = Arc::new(Local::new(writable));
    let rights = Rights { app: app.clone(), documents, owner: owner.clone(), principal };
    admit_elsewhere(app, &rights.documents, &rights.principal).await?;
    Ok(Arc::new(Owned { inner, rights, filter: Arc::default() }))
}

impl Rights {
    /// Whether the owner may still use the database. Its handle checks the rights to write.
    async fn check(&self) -> Result<()> {
        let checked = async {
            if self.owner.principal(&self.app).await? != self.principal {
                return Err(ApiError::forbidden("the rights of the replication's owner have changed"));
            }
            admit_elsewhere(&self.app, &self.documents, &self.principal).await
        };
        checked.await.map_err(|error| of_peer(&error))
    }

    /// A filter function of this database.
    async fn filter(&self, name: &str, params: &[(String, JsonText)]) -> Result<FilterFunction> {
        let text = |(name, value): &(String, JsonText)| (name.clone(), value.root().str_or_text().into_owned());
        let params: Vec<_> = params.iter().map(text).collect();
        let function = async {
            let named = Named::parse(name, false)?;
            let principal = users::with_stored_roles(&self.app.databases, &self.principal).await?;
            named.of_replication(&self.documents, &principal, &params).await
        };
        function.await.map_err(|error| of_peer(&error))
    }

    /// The rows and leaves that pass. A row whose document cannot be read passes: it may match.
    async fn passing(&self, function: &FilterFunction, rows: Vec<Change>) -> Result<Vec<Change>> {
        let mut passing = Vec::new();
        for some in rows.chunks(FILTERED_AT_ONCE) {
            let mut wanted = Vec::new();
            for row in some.iter().filter(|row| row.error.is_none()) {
                let leaf = |rev: &String| Some(BulkGet { id: row.id.clone(), rev: Some(RevId::parse(rev).ok()?) });
                wanted.extend(row.revs.iter().filter_map(leaf));
            }
            let mut documents = Vec::with_capacity(wanted.len());
            let mut asked = Vec::with_capacity(wanted.len());
            let mut unread = HashSet::new();
            for (id, leaves) in self.documents.get_many(wanted, &GetOptions::default()).await? {
                match leaves {
                    Ok(leaves) => {
                        for leaf in leaves {
                            if let OpenRev::Found(document) = leaf {
                                asked.push((id.clone(), document.rev.to_string()));
                                documents.push(document.to_text());
                            }
                        }
                    }
                    Err(_) => drop(unread.insert(id)),
                }
            }
            let verdicts = self.app.functions.filter(function, documents).await;
            // A function that throws would throw again.
            let verdicts = verdicts.map_err(|error| Error::new(ErrorKind::Refused, error.reason().to_owned()))?;
            let yes: HashSet<(String, String)> =
                asked.into_iter().zip(verdicts).filter(|(_, passes)| *passes).map(|(asked, _)| asked).collect();
            for row in some {
                let mut row = row.clone();
                if row.error.is_none() && !unread.contains(&row.id) {
                    row.revs.retain(|rev| yes.contains(&(row.id.clone(), rev.clone())));
                }
                if !row.revs.is_empty() {
                    passing.push(row);
                }
            }
        }
        Ok(passing)
    }
}

/// An error of this server, as a peer returns it.
fn of_peer(error: &ApiError) -> Error {
    // A feature that this build lacks will not appear later.
    let may_pass = error.status().is_server_error() && error.status() != StatusCode::NOT_IMPLEMENTED;
    let kind = if may_pass { ErrorKind::Unavailable } else { ErrorKind::Refused };
    Error::new(kind, error.reason().to_owned()).with_status(error.status().as_u16())
}

#[async_trait]
impl Peer for Owned {
    async fn info(&self) -> Result<Info> {
        self.rights.check().await?;
        self.inner.info().await
    }

    async fn changes(&self, request: &FeedRequest) -> Result<Changes> {
        self.rights.check().await?;
        let Filter::Function { name, params } = &request.filter else {
            let changes = self.inner.changes(request).await?;
            // The read may have waited for long.
            self.rights.check().await?;
            return Ok(changes);
        };
        let function = self.filter.get_or_try_init(|| self.rights.filter(name, params)).await?;
        let unfiltered = FeedRequest { filter: Filter::None, ..request.clone() };
        let mut changes = self.inner.changes(&unfiltered).await?;
        self.rights.check().await?;
        changes.rows = self.rights.passing(function, changes.rows).await?;
        Ok(changes)
    }

    async fn list(&self, range: &IdRange) -> Result<ListingPage> {
        self.rights.check().await?;
        self.inner.list(range).await
    }

    async fn winners(&self, ids: &[String]) -> Result<Vec<Option<RevId>>> {
        self.rights.check().await?;
        self.inner.winners(ids).await
    }

    async fn read(&self, wanted: &[BulkGet], options: ReadOptions) -> Result<Vec<Result<Vec<Revision>>>> {
        self.rights.check().await?;
        self.inner.read(wanted, options).await
    }

    fn attachment(&self, id: &str, rev: &RevId, attachment: &Attachment) -> ByteStream {
        let (rights, bytes) = (self.rights.clone(), self.inner.attachment(id, rev, attachment));
        let checked = async move { rights.check().await.map(|()| bytes) };
        stream::once(checked).try_flatten().boxed()
    }

    async fn revs_diff(&self, wanted: Vec<(String, Vec<RevId>)>) -> Result<Vec<RevsDiff>> {
        self.rights.check().await?;
        self.inner.revs_diff(wanted).await
    }

    async fn write(&self, edits: Vec<Edit>, mode: WriteMode) -> Result<Vec<Result<RevId>>> {
        self.rights.check().await?;
        self.inner.write(edits, mode).await
    }

    async fn put(&self, revision: &Revision, contents: Vec<Option<ByteStream>>) -> Result<()> {
        self.rights.check().await?;
        self.inner.put(revision, contents).await
    }

    async fn purge(&self, purges: &[Purge]) -> Result<Vec<Result<Vec<RevId>>>> {
        self.rights.check().await?;
        self.inner.purge(purges).await
    }

    async fn get_local(&self, id: &str) -> Result<Option<LocalDocument>> {
        self.rights.check().await?;
        self.inner.get_local(id).await
    }

    async fn put_local(&self, id: &str, rev: Option<&str>, body: &JsonText) -> Result<String> {
        self.rights.check().await?;
        self.inner.put_local(id, rev, body).await
    }

    async fn commit(&self) -> Result<String> {
        self.rights.check().await?;
        self.inner.commit().await
    }
}
