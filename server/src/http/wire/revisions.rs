//! Bodies that name revisions of documents: `{"id": ["1-a", …], …}`.
//!
//! They are checked as a whole and then taken page by page. All revisions at once would take many times the size of
//! their text.

use model::{JsonText, Members, RevId};

use crate::http::error::{ApiError, Result};
use crate::http::request::Request;
use crate::http::wire::body::off_thread_if_large;
use crate::http::wire::params::parse_rev;

/// Maximum number of documents in a page, and of bytes of their text after which it ends.
const PAGE: usize = 500;
const PAGE_BYTES: usize = 1 << 20;

/// Maximum number of revisions of a document, which are all in one page.
const MOST_REVS: usize = 100_000;

/// Reads and checks the body. `no_list`: the reason of the refusal if the revisions of a document are not an array.
pub(crate) async fn read(request: &mut Request, no_list: &'static str) -> Result<JsonText> {
    let body = request.json_object().await?;
    off_thread_if_large(body.len(), move || check(&body, no_list).map(|()| body)).await?
}

fn check(body: &JsonText, no_list: &'static str) -> Result<()> {
    for (_, revs) in body.root().members() {
        if !revs.is_array() {
            return Err(ApiError::bad_request(no_list));
        }
        for (count, rev) in revs.elements().enumerate() {
            let rev = rev.as_str().ok_or_else(|| ApiError::bad_request("Invalid rev format"))?;
            parse_rev(&rev)?;
            if count == MOST_REVS {
                return Err(ApiError::too_many("a request names", MOST_REVS, "revisions of a document"));
            }
        }
    }
    Ok(())
}

/// The next documents of a checked body, with their revisions; empty at the end.
pub(crate) fn next_page(members: &mut Members<'_>) -> Vec<(String, Vec<RevId>)> {
    let (mut page, mut bytes) = (Vec::new(), 0);
    while page.len() < PAGE
        && bytes < PAGE_BYTES
        && let Some((id, revs)) = members.next()
    {
        bytes += id.len() + revs.text().len();
        let parse = |rev: model::JsonRef<'_>| parse_rev(&rev.as_str()?).ok();
        page.push((id.into_owned(), revs.elements().filter_map(parse).collect()));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> JsonText {
        JsonText::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn bodies_that_name_no_revisions_are_refused() {
        for wrong in [r#"{"a":"1-x"}"#, r#"{"a":[1]}"#, r#"{"a":["x"]}"#, r#"{"a":["1-x"],"b":["1-x",7]}"#] {
            assert_eq!(check(&json(wrong), "no list").unwrap_err().status(), 400, "{wrong}");
        }
        let many = |count: usize| json(&format!(r#"{{"a":[{}]}}"#, vec![r#""1-x""#; count].join(",")));
        check(&many(MOST_REVS), "").unwrap();
        assert_eq!(check(&many(MOST_REVS + 1), "").unwrap_err().status(), 413);
    }

    #[test]
    fn pages_have_all_documents_in_their_order() {
        let (count, rev) = (PAGE_BYTES / 35 + 1, format!(",\"2-{}\"", "y".repeat(30)));
        let long = format!(r#"["1-x"{}]"#, rev.repeat(count));
        let few: String = (0..PAGE + 7).map(|n| format!(r#""{n}":["1-x","2-y"],"#)).collect();
        let body = json(&format!(r#"{{"long":{long},{few}"none":[]}}"#));
        check(&body, "").unwrap();
        let (mut members, mut pages, mut ids) = (body.root().members(), Vec::new(), Vec::new());
        loop {
            let page = next_page(&mut members);
            if page.is_empty() {
                break;
            }
            pages.push(page.len());
            ids.extend(page.into_iter().map(|(id, revs)| (id, revs.len())));
        }
        assert_eq!(pages, [1, PAGE, 8], "a large document is a page of its own");
        assert_eq!(ids.first().unwrap(), &("long".to_owned(), 1 + count));
        assert_eq!((&ids[8], ids.last().unwrap()), (&("7".to_owned(), 2), &("none".to_owned(), 0)));
    }
}
