//! A peer behind CouchDB's endpoints.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use model::{BulkGet, Edit, Encoding, JsonRef, JsonText, JsonWriter, Purge, RevId, RevsDiff, WriteMode};
use reqwest::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue};

use super::address::{attachment_path, id_path, is_carried};
use super::answer::{is_success, problem, refusal};
use super::answers::{change, list, local_rev, rev, seq, text};
use super::ceilings::{self, DOCUMENT, SMALL, WITH_ATTACHMENTS};
use super::documents::BulkOutcome;
use super::inline::is_pouchdb;
use super::related::Related;
use super::sent::document;
use super::{Http, Method};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{
    Attachment, Changes, Docs, FeedRequest, Filter, IdRange, Info, ListedDocument, ListingPage, LocalDocument,
    ReadOptions, Revision,
};
use crate::{ByteStream, Peer};

/// After a page that was too long, this fraction of its rows is requested.
const FEWER: usize = 8;

/// Time that a server may take beyond the requested wait.
const GRACE: Duration = Duration::from_secs(60);

impl Http {
    /// Reads a page, with fewer rows if they are long.
    async fn feed(&self, request: &FeedRequest) -> Result<Changes> {
        let mut limit = request.limit;
        loop {
            match self.feed_of(request, limit).await {
                Err(error) if error.kind() == ErrorKind::TooLarge && limit > 1 => limit = limit.div_ceil(FEWER),
                page => return page,
            }
        }
    }

    async fn feed_of(&self, request: &FeedRequest, limit: usize) -> Result<Changes> {
        let mut query = vec![("since", request.since.clone().unwrap_or("0".to_owned())), ("limit", limit.to_string())];
        if request.all_leaves {
            query.push(("style", "all_docs".to_owned()));
        }
        if let Some(wait) = request.wait {
            // The server answers before its silence counts as a failure.
            let wait = wait.min(self.line.silence() / 3);
            query.extend([("feed", "longpoll".to_owned()), ("timeout", wait.as_millis().to_string())]);
        }
        let mut body = Vec::new();
        let mut json = JsonWriter::new(&mut body);
        match &request.filter {
            Filter::None => {}
            Filter::Function { name, params } => {
                query.push(("filter", name.clone()));
                query.extend(
                    params.iter().map(|(name, value)| (name.as_str(), value.root().str_or_text().into_owned())),
                );
            }
            Filter::DocIds(ids) => {
                query.push(("filter", "_doc_ids".to_owned()));
                json.begin_object().name("doc_ids").begin_array();
                for id in ids {
                    json.str(id);
                }
                json.end_array().end_object();
            }
            Filter::Selector(selector) => {
                query.push(("filter", "_selector".to_owned()));
                json.begin_object().name("selector").text(selector).end_object();
            }
        }
        let body = Some(body).filter(|body| !body.is_empty());
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let answer = self.send(ceilings::changes(limit), method, &["_changes"], &query, body).await?.into_json()?;
        let rows = list(answer.root(), "results")?.into_iter().map(change).collect::<Result<Vec<_>>>()?;
        let last_seq = answer.get("last_seq").filter(|seq| !seq.is_null()).map(seq).transpose()?;
        let last_seq = last_seq.ok_or_else(|| Error::nonsense("the server's _changes has no last_seq"))?;
        let pending = answer.get("pending").and_then(JsonRef::as_u64);
        let more = rows.len() >= limit && pending != Some(0);
        Ok(Changes { rows, last_seq, more, pending })
    }

    /// Requests the bytes of an attachment.
    async fn open(self, id: String, rev: RevId, attachment: Attachment) -> Result<ByteStream> {
        let path = attachment_path(&id, &attachment.name);
        if !path.iter().all(|name| is_carried(name)) {
            return self.open_in_json(&id, &rev, &attachment).await;
        }
        let packed = if attachment.encoding == Encoding::Gzip { "gzip" } else { "identity" };
        let mut request = self.request(Method::GET, &path, &[("rev", rev.to_string())], None)?;
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static(packed));
        let incoming = self.line.send(&self.address, request).await?;
        let status = incoming.status();
        if !is_success(status) {
            let name = &attachment.name;
            return Err(refusal(status, format!("the server answered {status} to the attachment {name} of \"{id}\"")));
        }
        let is_packed = incoming.header(CONTENT_ENCODING).is_some_and(|coding| coding.as_bytes() == b"gzip");
        if is_packed != (attachment.encoding == Encoding::Gzip) {
            return Err(Error::nonsense(format!(
                "the attachment {} is compressed in another way than it says",
                attachment.name
            )));
        }
        Ok(incoming.stream(attachment.encoded_length))
    }

    async fn revs_diff_of(&self, wanted: &[(String, Vec<RevId>)]) -> Result<Vec<RevsDiff>> {
        let mut body = Vec::new();
        let mut json = JsonWriter::new(&mut body);
        json.begin_object();
        for (id, revs) in wanted {
            json.name(id).begin_array();
            for rev in revs {
                json.display(rev);
            }
            json.end_array();
        }
        json.end_object();
        let ceiling = ceilings::revs_diff(body.len(), wanted.len());
        let answer = self.send(ceiling, Method::POST, &["_revs_diff"], &[], Some(body)).await?.into_json()?;
        let mut diffs = Vec::new();
        for (id, diff) in answer.root().members() {
            let revs = |name| -> Result<Vec<RevId>> {
                let revs = diff.get(name).map(JsonRef::elements).into_iter().flatten();
                revs.filter_map(|found| found.as_str()).map(|found| rev(&found)).collect()
            };
            let (missing, possible_ancestors) = (revs("missing")?, revs("possible_ancestors")?);
            if !missing.is_empty() {
                diffs.push(RevsDiff { id: id.into_owned(), missing, possible_ancestors });
            }
        }
        Ok(diffs)
    }

    /// A page of a listing with this many rows at most.
    async fn list_of(&self, range: &IdRange, limit: usize) -> Result<ListingPage> {
        let quoted = |id: &str| {
            let mut key = Vec::new();
            JsonWriter::new(&mut key).str(id);
            String::from_utf8_lossy(&key).into_owned()
        };
        let mut query = vec![("limit", limit.to_string())];
        if !range.start.is_empty() {
            query.push(("startkey", quoted(&range.start)));
        }
        if let Some(end) = &range.end {
            query.extend([("endkey", quoted(end)), ("inclusive_end", "false".to_owned())]);
        }
        if range.docs != Docs::Revs {
            query.push(("include_docs", "true".to_owned()));
        }
        if range.docs == Docs::WithAttachments {
            query.push(("attachments", "true".to_owned()));
        }
        let ceiling = match range.docs {
            Docs::Revs => ceilings::listing(limit),
            _ if limit > 1 => ceilings::SEVERAL,
            Docs::Bodies => DOCUMENT,
            Docs::WithAttachments => WITH_ATTACHMENTS,
        };
        let answer = self.send(ceiling, Method::GET, &["_all_docs"], &query, None).await?.into_json()?;
        let found = list(answer.root(), "rows")?;
        let reached = found
            .last()
            .filter(|_| found.len() >= limit)
            .and_then(|row| text(*row, "id").or_else(|| text(*row, "key")));
        let reached = reached.map(|id| id.into_owned());
        let mut rows = Vec::with_capacity(found.len());
        let mut damaged = Vec::new();
        for row in found {
            if range.skips_damaged && text(row, "error").is_some() {
                let id = text(row, "id").or_else(|| text(row, "key")).unwrap_or_default();
                damaged.push((id.into_owned(), problem(row).unwrap_or_default()));
                continue;
            }
            let known = row.get("value").and_then(|value| text(value, "rev"));
            let (Some(id), Some(known)) = (text(row, "id"), known) else {
                return Err(Error::nonsense("a row of the server's _all_docs has no id or no revision"));
            };
            let doc = match row.get("doc") {
                _ if range.docs == Docs::Revs => None,
                Some(doc) if doc.is_object() => Some(answer.slice_ref(doc)),
                // Deleted between the listing and the read.
                Some(doc) if doc.is_null() => continue,
                _ => return Err(Error::nonsense(format!("the server did not send the document \"{id}\""))),
            };
            rows.push(ListedDocument { rev: rev(&known)?, id: id.into_owned(), doc });
        }
        Ok(ListingPage { damaged, ..range.page(rows, reached) })
    }
}

#[async_trait]
impl Peer for Http {
    async fn info(&self) -> Result<Info> {
        let info = self.send(SMALL, Method::GET, &[], &[], None).await?.into_json()?;
        self.is_pouchdb.store(is_pouchdb(&info), Ordering::Relaxed);
        let number = |value: JsonRef<'_>| value.as_u64();
        let size = |name| info.get("sizes").and_then(|sizes| sizes.get(name)).and_then(number);
        let count = |name| {
            let count = info.get(name).and_then(number);
            count.ok_or_else(|| Error::nonsense("the database does not say how many documents it has"))
        };
        Ok(Info {
            documents: count("doc_count")?,
            deleted: info.get("doc_del_count").and_then(number).unwrap_or_default(),
            update_seq: info.get("update_seq").map(seq).transpose()?.unwrap_or_default(),
            external_bytes: size("external"),
            file_bytes: size("file"),
            is_compacting: info.get("compact_running").and_then(JsonRef::as_bool).unwrap_or_default(),
        })
    }

    async fn changes(&self, request: &FeedRequest) -> Result<Changes> {
        let Some(wait) = request.wait else { return self.feed(request).await };
        let (feed, late) = (std::pin::pin!(self.feed(request)), futures_timer::Delay::new(wait + GRACE));
        match futures_util::future::select(feed, late).await {
            futures_util::future::Either::Left((answer, _)) => answer,
            futures_util::future::Either::Right(_) => {
                let waited = wait + GRACE;
                let sentence = format!("{} has not answered for {waited:?}", self.address());
                Err(Error::new(ErrorKind::Unavailable, sentence))
            }
        }
    }

    async fn list(&self, range: &IdRange) -> Result<ListingPage> {
        let mut limit = range.limit;
        loop {
            match self.list_of(range, limit).await {
                Err(error) if error.kind() == ErrorKind::TooLarge && limit > 1 => limit = limit.div_ceil(FEWER),
                page => return page,
            }
        }
    }

    async fn winners(&self, ids: &[String]) -> Result<Vec<Option<RevId>>> {
        let mut revs = Vec::with_capacity(ids.len());
        while revs.len() < ids.len() {
            let some: Vec<&String> = ids[revs.len()..].iter().take(self.reading.at_once()).collect();
            let mut body = Vec::new();
            let mut json = JsonWriter::new(&mut body);
            json.begin_object().name("keys").begin_array();
            for id in &some {
                json.str(id);
            }
            json.end_array().end_object();
            let ceiling = ceilings::winners(body.len(), some.len());
            let answer = self.send(ceiling, Method::POST, &["_all_docs"], &[], Some(body));
            let answer = self.reading.keep(some.len(), answer).await?.into_json()?;
            let rows = list(answer.root(), "rows")?;
            if rows.len() != some.len() {
                return Err(Error::nonsense("the server's _all_docs has rows that were not requested"));
            }
            for (id, row) in some.into_iter().zip(rows) {
                // A document that cannot be read does exist.
                if text(row, "error").is_some_and(|error| error != "not_found") {
                    let problem = problem(row).unwrap_or_default();
                    return Err(Error::nonsense(format!("\"{id}\" cannot be read: {problem}")));
                }
                let value = row.get("value");
                let is_deleted = value.and_then(|value| value.get("deleted")?.as_bool()) == Some(true);
                let known = value.and_then(|value| text(value, "rev")).filter(|_| !is_deleted);
                revs.push(known.map(|known| rev(&known)).transpose()?);
            }
        }
        Ok(revs)
    }

    async fn read(&self, wanted: &[BulkGet], options: ReadOptions) -> Result<Vec<Result<Vec<Revision>>>> {
        self.bulk_get(wanted, options).await
    }

    fn attachment(&self, id: &str, rev: &RevId, attachment: &Attachment) -> ByteStream {
        let opening = self.clone().open(id.to_owned(), rev.clone(), attachment.clone());
        stream::once(opening).try_flatten().boxed()
    }

    async fn revs_diff(&self, wanted: Vec<(String, Vec<RevId>)>) -> Result<Vec<RevsDiff>> {
        let (mut diffs, mut rest, mut at_most) = (Vec::new(), &wanted[..], wanted.len());
        while !rest.is_empty() {
            let (some, others) = rest.split_at(rest.len().min(at_most));
            match self.revs_diff_of(some).await {
                // The documents have many conflicts.
                Err(error) if error.kind() == ErrorKind::TooLarge && some.len() > 1 => {
                    at_most = some.len().div_ceil(FEWER);
                }
                found => {
                    diffs.extend(found?);
                    rest = others;
                }
            }
        }
        Ok(diffs)
    }

    async fn write(&self, edits: Vec<Edit>, mode: WriteMode) -> Result<Vec<Result<RevId>>> {
        let interactive = mode == WriteMode::Interactive;
        let mut docs = Vec::with_capacity(edits.len());
        for edit in &edits {
            docs.push((edit.id.clone(), document(edit)?));
        }
        let BulkOutcome { results, answered, failed } = self.bulk(docs, interactive).await;
        if let Some(failure) = failed.clone().filter(|failure| answered == 0 || !failure.is_transient()) {
            return Err(failure);
        }
        // Rows of one document are in the order of its edits. For several leaves that were made elsewhere, rows do not
        // tell which one was refused: the first ones are assumed.
        let mut outcomes: HashMap<String, VecDeque<Result<Option<RevId>>>> = HashMap::new();
        for (id, outcome) in results {
            outcomes.entry(id).or_default().push_back(outcome);
        }
        let no_result = || match &failed {
            // A status would be one of the document, which was not sent or not answered.
            Some(failure) => Err(Error::new(failure.kind(), failure.to_string())),
            None => Err(Error::new(ErrorKind::Unavailable, "the server returned no result for it")),
        };
        let outcome = |(place, edit): (usize, Edit)| {
            match (outcomes.get_mut(&edit.id).and_then(VecDeque::pop_front), edit.rev) {
                (Some(Err(error)), _) => Err(error),
                (Some(Ok(Some(made))), _) if interactive => Ok(made),
                // For leaves that were made elsewhere, only failures are reported.
                (_, Some(own)) if !interactive && place < answered => Ok(own),
                _ => no_result(),
            }
        };
        Ok(edits.into_iter().enumerate().map(outcome).collect())
    }

    async fn put(&self, revision: &Revision, contents: Vec<Option<ByteStream>>) -> Result<()> {
        let path = id_path(&revision.id);
        if self.is_pouchdb.load(Ordering::Relaxed) || !path.iter().all(|name| is_carried(name)) {
            return self.put_inline(revision, contents).await;
        }
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| Error::refused(error.to_string()))?;
        let related = Related::new(revision, contents, &model::hex(&random));
        let url = self.url(&path, &[("new_edits", "false".to_owned())])?;
        let answer =
            self.send_stream(SMALL, Method::PUT, url, &related.content_type, related.length, related.body).await?;
        answer.into_json().map(drop)
    }

    async fn purge(&self, purges: &[Purge]) -> Result<Vec<Result<Vec<RevId>>>> {
        let mut body = Vec::new();
        let mut json = JsonWriter::new(&mut body);
        json.begin_object();
        for purge in purges {
            json.name(&purge.id).begin_array();
            for rev in &purge.revs {
                json.display(rev);
            }
            json.end_array();
        }
        json.end_object();
        let ceiling = ceilings::purged(body.len(), purges.len());
        let request = self.request(Method::POST, &["_purge"], &[], Some(body))?;
        // A document that cannot be purged decides the answer's status. The others were purged.
        let answer = self.line.send(&self.address, request).await?.whole_or_refusal(ceiling, ceiling).await?;
        let outcomes = JsonText::parse(&answer.body).ok().filter(|found| found.get("purged").is_some());
        let outcomes = outcomes.map_or_else(|| answer.into_json(), Ok)?;
        let outcome = |purge: &Purge| match outcomes.get("purged").and_then(|purged| purged.get(&purge.id)) {
            None => Ok(Vec::new()),
            Some(went) if went.is_array() => {
                went.elements().filter_map(|went| went.as_str()).map(|went| rev(&went)).collect()
            }
            Some(failed) => Err(Error::refused(problem(failed).unwrap_or_default())),
        };
        Ok(purges.iter().map(outcome).collect())
    }

    async fn get_local(&self, id: &str) -> Result<Option<LocalDocument>> {
        let answer = self.send(DOCUMENT, Method::GET, &id_path(id), &[], None).await?;
        if answer.is_missing() {
            return Ok(None);
        }
        let answer = answer.into_json()?;
        let rev = local_rev(text(answer.root(), "_rev").unwrap_or_default())?;
        let mut body = Vec::with_capacity(answer.len());
        let mut json = JsonWriter::new(&mut body);
        json.begin_object();
        for (name, value) in answer.root().members().filter(|(name, _)| !name.starts_with('_')) {
            json.name(&name).value(value);
        }
        json.end_object();
        let body = JsonText::parse(&body).map_err(|error| Error::nonsense(error.to_string()))?;
        Ok(Some(LocalDocument { rev, body }))
    }

    async fn put_local(&self, id: &str, rev: Option<&str>, body: &JsonText) -> Result<String> {
        let mut sent = Vec::with_capacity(body.len() + id.len() + 60);
        let mut json = JsonWriter::new(&mut sent);
        json.begin_object().name("_id").str(id);
        if let Some(rev) = rev {
            json.name("_rev").str(rev);
        }
        json.members_of(body).end_object();
        let answer = self.send(SMALL, Method::PUT, &id_path(id), &[], Some(sent)).await?.into_json()?;
        let made = text(answer.root(), "rev");
        local_rev(made.ok_or_else(|| Error::nonsense("the server's answer has no rev"))?)
    }

    async fn commit(&self) -> Result<String> {
        let body = Some(b"{}".to_vec());
        let answer = self.send(SMALL, Method::POST, &["_ensure_full_commit"], &[], body).await?.into_json()?;
        Ok(text(answer.root(), "instance_start_time").unwrap_or_default().into_owned())
    }
}
