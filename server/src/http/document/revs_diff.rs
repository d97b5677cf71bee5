//! `_revs_diff`, `_missing_revs`: tell a replicator which revisions are missing.

use model::{JsonText, RevId, RevsDiff};

use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::request::Request;
use crate::http::wire::params::parse_rev;
use crate::http::wire::response::{self, Response};

pub(crate) async fn revs_diff(request: &mut Request, db: &str) -> Result<Response> {
    let diffs = compare(request, db).await?;
    Ok(response::object(|json| {
        for diff in &diffs {
            json.name(&diff.id).begin_object();
            json.name("missing").begin_array();
            for rev in &diff.missing {
                json.display(rev);
            }
            json.end_array();
            if !diff.possible_ancestors.is_empty() {
                json.name("possible_ancestors").begin_array();
                for rev in &diff.possible_ancestors {
                    json.display(rev);
                }
                json.end_array();
            }
            json.end_object();
        }
    }))
}

pub(crate) async fn missing_revs(request: &mut Request, db: &str) -> Result<Response> {
    let diffs = compare(request, db).await?;
    Ok(response::object(|json| {
        json.name("missing_revs").begin_object();
        for diff in &diffs {
            json.name(&diff.id).begin_array();
            for rev in &diff.missing {
                json.display(rev);
            }
            json.end_array();
        }
        json.end_object();
    }))
}

/// Those of the body's revisions that the database lacks. Documents without missing revisions are left out.
async fn compare(request: &mut Request, db: &str) -> Result<Vec<RevsDiff>> {
    let wanted = wanted(&request.json_object().await?)?;
    let compare = |database: Documents| {
        let wanted = wanted.clone();
        request.app.scan(async move { database.revs_diff(wanted).await })
    };
    let mut diffs = request.with_database(db, compare).await?;
    diffs.retain(|diff| !diff.missing.is_empty());
    Ok(diffs)
}

/// Parses `{"id": ["1-a", …], …}`.
fn wanted(object: &JsonText) -> Result<Vec<(String, Vec<RevId>)>> {
    let documents = object.root().members().map(|(id, revs)| {
        if !revs.is_array() {
            return Err(ApiError::bad_request("the revisions of a document must be an array"));
        }
        let revs = revs.elements().map(|rev| match rev.as_str() {
            Some(rev) => parse_rev(&rev),
            None => Err(ApiError::bad_request("Invalid rev format")),
        });
        Ok((id.into_owned(), revs.collect::<Result<Vec<_>>>()?))
    });
    documents.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_that_name_no_revisions_are_refused() {
        for wrong in [r#"{"a":"1-x"}"#, r#"{"a":[1]}"#, r#"{"a":["x"]}"#] {
            assert_eq!(wanted(&JsonText::parse(wrong.as_bytes()).unwrap()).unwrap_err().status(), 400, "{wrong}");
        }
        let read = wanted(&JsonText::parse(br#"{"a":["1-x","2-y"],"b":[]}"#).unwrap()).unwrap();
        assert_eq!((read.len(), read[0].1.len()), (2, 2));
    }
}
