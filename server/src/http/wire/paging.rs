//! Pages of an answer (RFC 014): `page_size` and `bookmark`.
//!
//! The answer to a request with `page_size` has that many rows, and bookmarks of other pages. A bookmark is opaque to
//! clients: JSON in URL-safe Base64.
//!
//! ```text
//!  {"v": 1, "of": "db/_all_docs", "params": [["startkey", "\"a\""], ["page_size", "10"]], "at": …, "before": …}
//!           what is listed         of the first request                                   │       └─ the same of the page before
//!                                                    where the page begins; absent: first ┘          null: first, absent: none
//! ```
//!
//! It holds all that the next request needs, so it is valid after a restart and on other servers. A client that forges
//! a bookmark gets what the same parameters would give.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::StatusCode;
use model::{JsonRef, JsonText, JsonWriter};

use crate::http::error::{ApiError, Result};
use crate::http::operation::Param;
use crate::http::request::Request;
use crate::http::wire::{params, response};

/// The version of bookmarks.
const VERSION: u64 = 1;

/// Maximum number of members of one query in `queries`, including unknown ones.
const MOST_MEMBERS: usize = 50;

/// The parameters of a page, which [`Asked::read`] reads.
pub(crate) const PAGES: &[Param] = &[
    Param::count("page_size", "How many rows at most; the answer has bookmarks of other pages."),
    Param::text("bookmark", "The page that an earlier answer named; without other parameters."),
];

/// The same where there are no pages.
pub(crate) const PAGES_REFUSED: &[Param] = &[Param::refused("page_size"), Param::refused("bookmark")];

/// Why a request with pages is refused by an endpoint without pages.
pub(crate) const REFUSED: &str = "`page_size` and `bookmark` are not supported here";

/// The page of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Paging {
    /// The listing.
    of: String,
    /// The parameters of the first request.
    params: Vec<(String, String)>,
    /// The start of the page; `None`: the first page.
    at: Option<JsonText>,
    /// The start of the previous page, if there is one and it is known.
    before: Option<Option<JsonText>>,
    /// Number of rows that the page still needs.
    left: usize,
}

/// The parameters of a request, and the page if it asks for one.
pub(crate) struct Asked {
    pub(crate) params: Vec<(String, String)>,
    pub(crate) paging: Option<Paging>,
}

impl Asked {
    /// Reads the parameters of a request for `of`; `None`: the listing has no pages. A page may have at most `most`
    /// rows.
    pub(crate) fn read<'p>(
        of: Option<&str>,
        params: impl Iterator<Item = (&'p str, &'p str)>,
        most: usize,
    ) -> Result<Asked> {
        let params: Vec<(String, String)> = params.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let Some(of) = of else { return Ok(Asked { params, paging: None }) };
        // The partition is named by the path, and is also in `of`.
        let is_other = |(name, _): &(String, String)| !matches!(name.as_str(), "bookmark" | "partition");
        let (mut params, at, before) = match params.iter().find(|(name, _)| name == "bookmark") {
            Some(_) if params.iter().any(is_other) => {
                return Err(ApiError::bad_request("`bookmark` is incompatible with other parameters"));
            }
            Some((_, word)) => read(word, of)?,
            None => (params, None, None),
        };
        let Some((_, size)) = params.iter().rev().find(|(name, _)| name == "page_size") else {
            return Ok(Asked { params, paging: None });
        };
        let size = params::parse_count(size)?;
        let left = usize::try_from(size).unwrap_or(usize::MAX);
        if left == 0 || left > most {
            return Err(ApiError::query_parse(format!("`page_size` must be between 1 and {most}")));
        }
        if params.iter().any(|(name, _)| name == "keys") {
            return Err(ApiError::query_parse("`page_size` is incompatible with `keys`"));
        }
        for (name, value) in &params {
            if name == "skip" && params::parse_count(value)? > size {
                return Err(ApiError::query_parse("`skip` must not be greater than `page_size`"));
            }
        }
        let paging = Paging { of: of.to_owned(), params: params.clone(), at, before, left };
        params.retain(|(name, _)| name != "page_size");
        Ok(Asked { params, paging: Some(paging) })
    }

    /// Reads one of several queries in a body. The request's parameters apply to it too.
    pub(crate) fn read_query(
        of: Option<&str>,
        request: &Request,
        body: &JsonText,
        query: JsonRef<'_>,
        most: usize,
    ) -> Result<Asked> {
        if !query.is_object() {
            return Err(ApiError::bad_request("each of `queries` must be an object"));
        }
        if query.members().nth(MOST_MEMBERS).is_some() {
            return Err(ApiError::too_many("each of `queries` has", MOST_MEMBERS, "members"));
        }
        let members = query.members().map(|(name, value)| as_param(&name, &body.slice_ref(value)));
        let members: Vec<(String, String)> = members.collect();
        let members = members.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        // As in CouchDB, these apply only if they are in the query itself.
        let of_all = request.params.iter().filter(|(name, _)| !matches!(*name, "keys" | "group" | "group_level"));
        Asked::read(of, of_all.chain(members), most)
    }
}

impl Paging {
    /// The start of the page, as given to [`write_members`](Self::write_members); `None`: the first row.
    pub(crate) fn at(&self) -> Option<JsonRef<'_>> {
        self.at.as_ref().map(JsonText::root)
    }

    /// Number of rows that the page still needs.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Counts a written row.
    pub(crate) fn take(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Writes the bookmarks as members of an object that already has members.
    pub(crate) fn write_members(&self, out: &mut Vec<u8>, next: Option<JsonText>) {
        let object = response::object_text(|json| self.write(json, next));
        if let Some(members) = object.get(1..object.len() - 1).filter(|members| !members.is_empty()) {
            out.extend_from_slice(b",\r\n");
            out.extend_from_slice(members);
        }
    }

    /// Writes the bookmarks after the rows. `next`: the start of the next page, if there is one.
    fn write(&self, json: &mut JsonWriter<'_>, next: Option<JsonText>) {
        if let Some(next) = next {
            json.name("next").str(&self.bookmark(Some(&next), Some(self.at.as_ref())));
        }
        if let Some(before) = &self.before {
            json.name("previous").str(&self.bookmark(before.as_ref(), None));
        }
        if self.at.is_some() {
            json.name("first").str(&self.bookmark(None, None));
        }
    }

    fn bookmark(&self, at: Option<&JsonText>, before: Option<Option<&JsonText>>) -> String {
        let mut out = Vec::new();
        let mut json = JsonWriter::new(&mut out);
        json.begin_object().name("v").u64(VERSION).name("of").str(&self.of).name("params").begin_array();
        for (name, value) in &self.params {
            json.begin_array().str(name).str(value).end_array();
        }
        json.end_array();
        if let Some(at) = at {
            json.name("at").text(at);
        }
        match before {
            Some(Some(before)) => json.name("before").text(before),
            Some(None) => json.name("before").null(),
            None => &mut json,
        };
        json.end_object();
        URL_SAFE_NO_PAD.encode(out)
    }
}

type Bookmark = (Vec<(String, String)>, Option<JsonText>, Option<Option<JsonText>>);

fn read(word: &str, of: &str) -> Result<Bookmark> {
    let parse = || {
        let json = URL_SAFE_NO_PAD.decode(word.trim_end_matches('=')).ok()?;
        let json =
            JsonText::parse(&json).ok().filter(|json| json.get("v").and_then(JsonRef::as_u64) == Some(VERSION))?;
        let pair = |pair: JsonRef<'_>| {
            let mut parts = pair.elements().map(|part| part.as_str().map(|part| part.into_owned()));
            Some((parts.next()??, parts.next()??))
        };
        let params = json.get("params")?.elements().map(pair).collect::<Option<Vec<_>>>()?;
        let at = json.get("at").map(|at| json.slice_ref(at));
        let before =
            json.get("before").map(|before| Some(json.slice_ref(before)).filter(|before| !before.root().is_null()));
        Some((json.get("of")?.as_str()?.into_owned(), (params, at, before)))
    };
    match parse() {
        None => Err(invalid(format!("Invalid bookmark value: {word:?}"))),
        Some((other, _)) if other != of => Err(invalid(format!("The bookmark is one of {other:?}"))),
        Some((_, bookmark)) => Ok(bookmark),
    }
}

/// The error of a bookmark without a valid place.
pub(crate) fn no_place() -> ApiError {
    invalid("The bookmark has no valid place".to_owned())
}

fn invalid(reason: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_bookmark", reason)
}

/// A member of a JSON body as the equivalent parameter of a URL.
fn as_param(name: &str, value: &JsonText) -> (String, String) {
    const JSON: [&str; 6] = ["key", "keys", "startkey", "start_key", "endkey", "end_key"];
    let text = value.root().as_str().filter(|_| !JSON.contains(&name));
    (name.to_owned(), text.unwrap_or(value.as_str().into()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(of: &str, params: &[(&str, &str)]) -> Result<Asked> {
        Asked::read(Some(of), params.iter().copied(), 100)
    }

    /// The bookmarks of a page: next, previous, first.
    fn bookmarks(paging: &Paging, next: Option<&str>) -> [Option<String>; 3] {
        let mut out = Vec::new();
        let mut json = JsonWriter::new(&mut out);
        json.begin_object();
        paging.write(&mut json, next.map(|next| JsonText::parse(next.as_bytes()).unwrap()));
        json.end_object();
        let json = JsonText::parse(&out).unwrap();
        ["next", "previous", "first"].map(|name| Some(json.get(name)?.as_str()?.into_owned()))
    }

    #[test]
    fn bookmarks_lead_to_the_pages_around() {
        let first = asked("x", &[("limit", "7"), ("page_size", "3")]).unwrap();
        assert_eq!(first.params, [("limit".to_owned(), "7".to_owned())]);
        let [next, None, None] = bookmarks(&first.paging.unwrap(), Some("2")) else { panic!() };
        let page = |word: &Option<String>| {
            let asked = asked("x", &[("bookmark", word.as_deref().unwrap())]).unwrap();
            assert_eq!(asked.params, first.params);
            asked.paging.unwrap()
        };
        let second = page(&next);
        assert_eq!((second.at().unwrap().text(), second.left()), ("2", 3));
        let [next, previous, to_first] = bookmarks(&second, Some("3"));
        assert!(page(&previous).at().is_none() && page(&to_first).at().is_none());
        let [none, previous, to_first] = bookmarks(&page(&next), None);
        assert!(none.is_none() && page(&to_first).at().is_none());
        assert_eq!(page(&previous).at().unwrap().text(), "2");
        assert_eq!(bookmarks(&page(&previous), Some("3"))[1], None, "the page before that one is not known");
    }

    #[test]
    fn others_are_refused() {
        let paging = asked("x", &[("page_size", "100")]).unwrap().paging.unwrap();
        let [Some(word), ..] = bookmarks(&paging, Some("1")) else { panic!() };
        let error = |of: &str, params: &[(&str, &str)]| {
            let error = asked(of, params).err().unwrap();
            assert_eq!(error.status(), StatusCode::BAD_REQUEST);
            error.error().to_owned()
        };
        assert_eq!(error("y", &[("bookmark", &word)]), "invalid_bookmark");
        assert_eq!(error("x", &[("bookmark", &word), ("limit", "1")]), "bad_request");
        let version_2 = URL_SAFE_NO_PAD.encode(r#"{"v":2,"of":"x","params":[]}"#);
        for word in ["", "nil", "e30", &word[1..], &version_2] {
            assert_eq!(error("x", &[("bookmark", word)]), "invalid_bookmark", "{word}");
        }
        for params in [
            &[("page_size", "0")][..],
            &[("page_size", "101")],
            &[("page_size", "x")],
            &[("page_size", "5"), ("skip", "6")],
            &[("page_size", "5"), ("keys", "[]")],
        ] {
            assert_eq!(error("x", params), "query_parse_error", "{params:?}");
        }
    }
}
