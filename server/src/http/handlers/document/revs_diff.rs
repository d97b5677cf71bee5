//! `_revs_diff`, `_missing_revs`: tell a replicator which revisions are missing.
//!
//! The answer is read and sent in pages, like the request.

use std::sync::Arc;

use hyper::StatusCode;
use model::{JsonWriter, RevId, RevsDiff};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::operation::{Content, Kind, Operation, Reply};
use crate::http::request::Request;
use crate::http::wire::response::{self, Response};
use crate::http::wire::revisions;

/// The form of the answer.
#[derive(Clone, Copy)]
enum Form {
    /// `{"id": {"missing": ["1-a", …], "possible_ancestors": […]}, …}`
    Diffs,
    /// `{"missing_revs": {"id": ["1-a", …], …}}`
    Missing,
}

/// What [`revs_diff`] does.
pub(crate) const REVS_DIFF: Operation =
    Operation::new("Which revisions the database lacks.", &[Reply::object(200)]).bodies(&[Content::json(Kind::Object)]);

pub(crate) async fn revs_diff(request: &mut Request, db: &str) -> Result<Response> {
    compare(request, db, Form::Diffs).await
}

/// What [`missing_revs`] does.
pub(crate) const MISSING_REVS: Operation =
    Operation::new("Which revisions the database lacks, in an older form.", &[Reply::object(200)])
        .bodies(&[Content::json(Kind::Object)]);

pub(crate) async fn missing_revs(request: &mut Request, db: &str) -> Result<Response> {
    compare(request, db, Form::Missing).await
}

/// Those of the body's revisions that the database lacks.
async fn compare(request: &mut Request, db: &str, form: Form) -> Result<Response> {
    let body = revisions::read(request, "the revisions of a document must be an array").await?;
    let mut members = body.root().members();
    let first = revisions::next_page(&mut members);
    let (count, is_all) = (first.len(), members.next().is_none());
    let (app, first) = (request.app.clone(), &first);
    // The first page is read before the status is sent, so that an error has its own status.
    let begin = |database: Documents| {
        let (app, wanted) = (app.clone(), first.clone());
        async move {
            let diffs = read(&app, &database, wanted).await?;
            Ok((database, diffs))
        }
    };
    let (database, diffs) = request.with_database(db, begin).await?;
    let mut answer = Answer { form, is_begun: false };
    let mut text = answer.begin();
    answer.write(&mut text, &diffs);
    if is_all {
        answer.end(&mut text);
        return Ok(response::json(StatusCode::OK, text));
    }
    let body = response::stream(|writer| async move {
        let mut members = body.root().members();
        if let Some(last) = count.checked_sub(1) {
            members.nth(last);
        }
        loop {
            writer.send(std::mem::take(&mut text)).await?;
            let wanted = revisions::next_page(&mut members);
            if wanted.is_empty() {
                break;
            }
            answer.write(&mut text, &read(&app, &database, wanted).await?);
        }
        answer.end(&mut text);
        text.push(b'\n');
        Ok(writer.send(text).await?)
    });
    Ok(response::with_json(StatusCode::OK, body))
}

async fn read(app: &Arc<App>, database: &Documents, wanted: Vec<(String, Vec<RevId>)>) -> Result<Vec<RevsDiff>> {
    let database = database.clone();
    app.scan(async move { database.revs_diff(wanted).await }).await
}

/// Writes the answer. Documents without missing revisions are left out.
struct Answer {
    form: Form,
    /// Whether the next document is not the first.
    is_begun: bool,
}

impl Answer {
    fn begin(&self) -> Vec<u8> {
        match self.form {
            Form::Diffs => b"{".to_vec(),
            Form::Missing => b"{\"missing_revs\":{".to_vec(),
        }
    }

    fn write(&mut self, out: &mut Vec<u8>, diffs: &[RevsDiff]) {
        for diff in diffs.iter().filter(|diff| !diff.missing.is_empty()) {
            if std::mem::replace(&mut self.is_begun, true) {
                out.push(b',');
            }
            let mut json = JsonWriter::new(out);
            json.name(&diff.id);
            match self.form {
                Form::Missing => write_revs(&mut json, &diff.missing),
                Form::Diffs => {
                    write_revs(json.begin_object().name("missing"), &diff.missing);
                    if !diff.possible_ancestors.is_empty() {
                        write_revs(json.name("possible_ancestors"), &diff.possible_ancestors);
                    }
                    json.end_object();
                }
            }
        }
    }

    fn end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(match self.form {
            Form::Diffs => b"}",
            Form::Missing => b"}}",
        });
    }
}

/// Writes a list of revisions.
pub(crate) fn write_revs(json: &mut JsonWriter<'_>, revs: &[RevId]) {
    json.begin_array();
    for rev in revs {
        json.display(rev);
    }
    json.end_array();
}
