//! `GET /{db}/_conflicts`: the documents with more than one live leaf. CouchDB has no such endpoint.

use hyper::StatusCode;
use model::{Conflicted, JsonWriter, Seq};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::operation::{Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::params::parse_count;
use crate::http::wire::response::{self, Response};

/// Maximum number of documents in an answer, and the default.
const MOST: usize = 10_000;

/// What [`list`] does.
pub(crate) const LIST: Operation = Operation::new("Documents with conflicts.", &[Reply::object(200)]).query(&[&[
    Param::text("since", "Only changes after this sequence."),
    Param::count("limit", "How many documents at most."),
]]);

/// Answers with `{"results":[{"seq","id","revs"}],"last_seq","more"}`: continue with `since` while `more` is true. The
/// winner is the first of `revs`.
pub(crate) async fn list(request: &Request, db: &str) -> Result<Response> {
    let limit = request.params.get("limit").map(parse_count).transpose()?;
    let limit = limit.map_or(MOST, |limit| usize::try_from(limit).unwrap_or(MOST).min(MOST));
    let since = match request.params.get("since").map(|since| since.trim_matches('"').parse::<Seq>()) {
        None => Seq::ZERO,
        Some(since) => since.map_err(|_| ApiError::bad_request("`since` is not a sequence of this server"))?,
    };
    let app = &request.app;
    // This reads the whole feed.
    let list = |database: Documents| {
        app.scan(async move {
            let (mut found, mut since, mut more) = (Vec::new(), since, true);
            while more && found.len() < limit {
                let page = database.conflicts(since, Some(limit - found.len())).await?;
                found.extend(page.rows);
                (since, more) = (page.last_seq, page.more);
            }
            let seqs: Vec<Seq> = found.iter().map(|row| row.seq).chain([since]).collect();
            Ok((found, database.numbered_all(&seqs).await?, more))
        })
    };
    let (found, seqs, more) = request.with_database(db, list).await?;
    let mut body = Vec::with_capacity(64 + found.len() * 128);
    let mut json = JsonWriter::new(&mut body);
    json.begin_object().name("results").begin_array();
    for (Conflicted { id, revs, .. }, seq) in found.iter().zip(&seqs) {
        json.begin_object().name("seq").display(seq).name("id").str(id).name("revs").begin_array();
        for rev in revs {
            json.display(rev);
        }
        json.end_array().end_object();
    }
    json.end_array().name("last_seq").display(seqs[found.len()]).name("more").bool(more).end_object();
    Ok(response::json(StatusCode::OK, body))
}
