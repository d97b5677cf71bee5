//! `_revs_diff`, `_missing_revs`, `_revs_limit`: what a replicator asks before it sends anything.

use hyper::{Method, StatusCode};
use model::{JsonText, RevId, RevsDiff};

use super::error::{ApiError, Result};
use super::params::parse_rev;
use super::request::Request;
use super::response::{self, Response};

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

/// What of the body's revisions the database lacks; documents that lack nothing are left out.
async fn compare(request: &mut Request, db: &str) -> Result<Vec<RevsDiff>> {
    let database = request.database(db).await?;
    let wanted = wanted(&request.json_object().await?)?;
    let mut diffs = request.app.scan(async move { database.revs_diff(wanted).await }).await?;
    diffs.retain(|diff| !diff.missing.is_empty());
    Ok(diffs)
}

/// `{"id": ["1-a", …], …}`
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

pub(crate) async fn revs_limit(request: &mut Request, db: &str) -> Result<Response> {
    let database = request.database(db).await?;
    match request.method {
        Method::GET => {
            let limit = database.revs_limit().await?;
            Ok(response::json(StatusCode::OK, limit.to_string().into_bytes()))
        }
        Method::PUT => {
            let limit = request.json().await?.root().as_u64().and_then(|limit| u32::try_from(limit).ok());
            let limit = limit.ok_or_else(|| ApiError::bad_request("`_revs_limit` must be a positive integer"))?;
            database.set_revs_limit(limit).await?;
            Ok(response::ok(StatusCode::OK))
        }
        _ => Err(ApiError::unrouted()),
    }
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
