//! Multipart bodies (RFC 2046), in both directions and piece by piece.
//!
//! ```text
//!   --BOUNDARY                       multipart/related: a document, then its attachments in the document's order
//!   Content-Type: application/json
//!
//!   {"_id":…,"_attachments":{"a":{"follows":true,"length":3,…}}}
//!   --BOUNDARY
//!   Content-Disposition: attachment; filename="a"
//!   Content-Type: text/plain
//!   Content-Length: 3
//!
//!   abc
//!   --BOUNDARY--
//! ```
//!
//! Every line ends with CRLF. The CRLF before a delimiter belongs to the delimiter.

pub(crate) mod splitter;
pub(crate) mod writer;

use hyper::header::{CONTENT_TYPE, HeaderMap};

use crate::http::wire::headers::text;

/// Maximum length of a boundary. RFC 2046 allows 70. Each piece of a body is searched for the boundary.
const MAX_BOUNDARY: usize = 200;

/// The boundary of a request's body, if that is `multipart/related`.
pub(crate) fn related_boundary(headers: &HeaderMap) -> Option<String> {
    let value = text(headers.get(CONTENT_TYPE)?);
    let (kind, parameters) = value.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/related") {
        return None;
    }
    parameter(parameters, "boundary").filter(|boundary| (1..=MAX_BOUNDARY).contains(&boundary.len()))
}

/// The value of a parameter of a media type, with or without quotes.
fn parameter(mut parameters: &str, wanted: &str) -> Option<String> {
    loop {
        let (name, rest) = parameters.split_once('=')?;
        let rest = rest.trim_start();
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let mut value = String::new();
                let mut chars = quoted.char_indices();
                let end = loop {
                    match chars.next()? {
                        (at, '"') => break at + 1,
                        (_, '\\') => value.push(chars.next()?.1),
                        (_, other) => value.push(other),
                    }
                };
                (value, quoted[end..].split_once(';').map_or("", |(_, rest)| rest))
            }
            None => {
                let (value, rest) = rest.split_once(';').unwrap_or((rest, ""));
                (value.trim().to_owned(), rest)
            }
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        parameters = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boundary_is_found_among_the_parameters() {
        let boundary = |value: &str| related_boundary(&HeaderMap::from_iter([(CONTENT_TYPE, value.parse().unwrap())]));
        let found = |text: &str| Some(text.to_owned());
        assert_eq!(boundary("multipart/related; boundary=abc"), found("abc"));
        assert_eq!(boundary(&format!("multipart/related; boundary={}", "b".repeat(MAX_BOUNDARY + 1))), None);
        assert_eq!(boundary("Multipart/Related;type=\"a;boundary=b\"; BOUNDARY = \"a b\\\"c\" ; x=y"), found("a b\"c"));
        for none in [
            "multipart/related",
            "multipart/related; boundary=",
            "multipart/related; boundary=\"a",
            "multipart/mixed; boundary=a",
            "application/json; boundary=a",
        ] {
            assert_eq!(boundary(none), None, "{none}");
        }
    }
}
