//! The parts of a URL: path segments and the query's parameters, decoded.
//!
//! A segment is split off before it is decoded, so `%2F` is a slash inside a name. As in CouchDB, `+` is a space, also
//! in the path unless `decode_plus_to_space` is `false`; empty segments (a trailing slash) are ignored; the last value
//! of a repeated parameter counts.

use std::borrow::Cow;
use std::str::FromStr;

use hyper::StatusCode;
use model::{JsonText, RevId};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode_str, utf8_percent_encode};

use crate::http::error::{ApiError, Result};
use crate::http::operation::{Operation, Param};

/// Splits and decodes a path. The flag reports that a name within a database is not UTF-8. Nothing can have such a
/// name: reads return 404 and writes 400.
///
/// `has_plus_as_space`: whether `+` is a space.
pub(crate) fn segments(path: &str, has_plus_as_space: bool) -> Result<(Vec<Cow<'_, str>>, bool)> {
    let mut segments = Vec::with_capacity(4);
    let mut is_no_name = false;
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        let decoded = if has_plus_as_space { decode_form(segment) } else { decode(segment) };
        segments.push(match decoded {
            Err(_) if !segments.is_empty() && has_valid_escapes(segment) => {
                is_no_name = true;
                Cow::Owned(String::from_utf8_lossy(&percent_decode_str(segment).collect::<Vec<u8>>()).into_owned())
            }
            decoded => decoded?,
        });
    }
    Ok((segments, is_no_name))
}

/// Whether each percent sign is followed by two hexadecimal digits.
fn has_valid_escapes(text: &str) -> bool {
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|&byte| byte == b'%') {
        match rest.get(at + 1..at + 3) {
            Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => rest = &rest[at + 3..],
            _ => return false,
        }
    }
    true
}

/// Decodes percent signs. 400 for one that is not followed by two hexadecimal digits, and for text that is not
/// UTF-8.
pub(crate) fn decode(text: &str) -> Result<Cow<'_, str>> {
    if !has_valid_escapes(text) {
        return Err(ApiError::bad_request("invalid_url_encoding"));
    }
    percent_decode_str(text).decode_utf8().map_err(|_| not_utf8())
}

pub(crate) fn not_utf8() -> ApiError {
    ApiError::bad_request("the URL is not UTF-8")
}

/// A path segment as CouchDB encodes it (`couch_util:url_encode`).
pub(crate) fn encode(segment: &str) -> PercentEncode<'_> {
    const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':');
    utf8_percent_encode(segment, KEPT)
}

/// The parameter that [`Params::is_batch`] reads.
pub(crate) const BATCH: &[Param] =
    &[Param::choice("batch", &["ok"], "202 without a revision. The write is on the disk all the same.")];

/// The parameters of a query.
#[derive(Debug, Default)]
pub(crate) struct Params {
    all: Vec<(String, String)>,
    /// If set, the others are left out, except for functions of design documents.
    only: Option<&'static Operation>,
}

impl Params {
    /// Whether the query has `batch=ok`. With it CouchDB does not wait for the disk, and answers 202 without a
    /// revision. Here the answer is the same, and the write is as durable as any other.
    pub(crate) fn is_batch(&self) -> bool {
        self.get("batch") == Some("ok")
    }

    /// Decodes a query, or a form. As in CouchDB, `;` separates pairs too.
    pub(crate) fn parse(query: &str) -> Result<Self> {
        let mut params = Vec::new();
        for pair in query.split(['&', ';']).filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            params.push((decode_form(name)?.into_owned(), decode_form(value)?.into_owned()));
        }
        Ok(Params { all: params, only: None })
    }

    /// From now on only the parameters that the operation describes are seen, so none is read that is not described.
    pub(crate) fn limit_to(&mut self, operation: &'static Operation) {
        self.only = Some(operation);
    }

    /// The parameters, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &str)> {
        self.all().filter(|(name, _)| self.only.is_none_or(|only| only.reads(name)))
    }

    /// All parameters of the request, also those that no endpoint reads: functions of design documents get them.
    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = (&str, &str)> {
        self.all.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Sets a parameter.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.all.retain(|(known, _)| known != name);
        self.all.push((name.to_owned(), value.to_owned()));
    }

    /// The value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.all().rev().find(|(known, _)| *known == name)?;
        self.only.is_none_or(|only| only.reads(name)).then_some(value)
    }

    /// The first value of a field of a form. CouchDB takes the first value in a form, and the last one in a query.
    pub(crate) fn first(&self, name: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Whether the query is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether the parameter is `true`. Any other value counts as false, as in CouchDB for documents and feeds.
    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// The value of a parameter that is a revision.
    pub(crate) fn rev(&self, name: &str) -> Result<Option<RevId>> {
        self.get(name).map(parse_rev).transpose()
    }
}

fn decode_form(text: &str) -> Result<Cow<'_, str>> {
    if memchr::memchr2(b'%', b'+', text.as_bytes()).is_none() {
        return Ok(Cow::Borrowed(text));
    }
    if text.contains('+') {
        return decode(&text.replace('+', " ")).map(|decoded| Cow::Owned(decoded.into_owned()));
    }
    decode(text)
}

/// Parses a revision of a client.
pub(crate) fn parse_rev(text: &str) -> Result<RevId> {
    RevId::from_str(text).map_err(|_| ApiError::bad_request("Invalid rev format"))
}

/// Parses a boolean of a listing: `true` or `false` in any case, or 400.
pub(crate) fn parse_bool(value: &str) -> Result<bool> {
    if value.eq_ignore_ascii_case("true") {
        Ok(true)
    } else if value.eq_ignore_ascii_case("false") {
        Ok(false)
    } else {
        Err(ApiError::query_parse(format!("Invalid boolean parameter: {value:?}")))
    }
}

/// Parses a count of a listing, or 400. A count that is too large for a number becomes the largest number.
pub(crate) fn parse_count(value: &str) -> Result<u64> {
    let digits = value.strip_prefix('-').or_else(|| value.strip_prefix('+')).unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ApiError::query_parse(format!("Invalid value for integer: {value:?}")));
    }
    let is_zero = digits.bytes().all(|byte| byte == b'0');
    if value.starts_with('-') && !is_zero {
        return Err(ApiError::query_parse(format!("Invalid value for positive integer: {value:?}")));
    }
    Ok(digits.parse().unwrap_or(u64::MAX))
}

/// The largest `limit` of a listing (CouchDB's `MAX_VIEW_LIMIT`).
const MAX_LIMIT: u64 = (1 << 59) - 1;

/// Parses the number of rows of a listing, or 400.
pub(crate) fn parse_limit(value: &str) -> Result<u64> {
    let limit = parse_count(value)?;
    if limit > MAX_LIMIT {
        return Err(ApiError::query_parse(format!("Limit is too large, must not exceed {MAX_LIMIT}")));
    }
    Ok(limit)
}

/// Refuses invalid names of partitions.
pub(crate) fn check_partition(value: &str) -> Result<()> {
    if value.is_empty() {
        let reason = "Partition must not be empty";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "illegal_partition", reason));
    }
    Ok(mango::check_partition(value)?)
}

/// Parses a parameter that is JSON.
pub(crate) fn parse_json(value: &str) -> Result<JsonText> {
    JsonText::parse(value.as_bytes()).map_err(|_| ApiError::invalid_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_inside_a_segment_does_not_split_it() {
        let segments = |path| super::segments(path, true);
        assert_eq!(segments("/a%2Fb//c+d/").unwrap(), (vec!["a/b".into(), "c d".into()], false));
        assert_eq!(super::segments("/a/c+d%2B", false).unwrap(), (vec!["a".into(), "c+d+".into()], false));
        assert_eq!(segments("/").unwrap(), (vec![], false));
        assert!(segments("/db/%ff").unwrap().1);
        for wrong in ["/a%", "/a%2", "/a%zz", "/%ff"] {
            assert_eq!(segments(wrong).unwrap_err().status(), 400, "{wrong}");
        }
    }

    #[test]
    fn parameters_are_decoded_and_the_last_one_counts() {
        let params = Params::parse("a=1&b=x+y%2B&&c;e=%3B;a=2").unwrap();
        assert_eq!(params.get("e"), Some(";"));
        assert_eq!(params.get("a"), Some("2"));
        assert_eq!(params.get("b"), Some("x y+"));
        assert_eq!(params.get("c"), Some(""));
        assert_eq!(params.get("d"), None);
        assert!(Params::parse("a=%g0").is_err());
    }

    #[test]
    fn only_parameters_that_are_described_are_seen_except_by_functions() {
        static OPERATION: Operation = Operation::new("", &[]).query(&[BATCH, &[Param::refused("w")]]);
        let mut params = Params::parse("batch=ok&limit=3&w=1&Batch=x").unwrap();
        assert_eq!(params.get("limit"), Some("3"));
        params.limit_to(&OPERATION);
        assert!(params.is_batch());
        assert_eq!((params.get("limit"), params.get("w")), (None, Some("1")));
        assert_eq!(params.iter().collect::<Vec<_>>(), [("batch", "ok"), ("w", "1"), ("Batch", "x")]);
        assert_eq!(params.all().count(), 4);
    }

    #[test]
    fn values_of_the_wrong_kind_are_refused_by_name() {
        assert!(parse_bool("TRUE").unwrap());
        assert_eq!(parse_bool("maybe").unwrap_err().error(), "query_parse_error");
        assert_eq!(parse_count("17").unwrap(), 17);
        assert!(parse_count("-1").unwrap_err().reason().contains("positive"));
        assert!(parse_count("x").unwrap_err().reason().contains("integer"));
        assert_eq!(parse_count("99999999999999999999").unwrap(), u64::MAX);
        assert_eq!(parse_count("-0").unwrap(), 0);
        assert!(parse_count("-99999999999999999999").unwrap_err().reason().contains("positive"));
        assert_eq!(parse_limit("576460752303423487").unwrap(), 576_460_752_303_423_487);
        assert!(parse_limit("576460752303423488").unwrap_err().reason().contains("too large"));
        for partition in ["", "_x", "a:b"] {
            assert_eq!(check_partition(partition).unwrap_err().error(), "illegal_partition");
        }
    }

    #[test]
    fn ids_are_encoded_as_couchdb_does() {
        assert_eq!(encode("_design/a b").to_string(), "_design%2Fa%20b");
    }
}
