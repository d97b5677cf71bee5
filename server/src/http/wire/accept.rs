//! `Accept` and `Accept-Encoding`: the media types and codings that a client accepts.

use hyper::header::{ACCEPT, ACCEPT_ENCODING, AsHeaderName, HeaderMap, HeaderValue};

/// The elements of a list header, each with its quality.
fn elements(headers: &HeaderMap, name: impl AsHeaderName) -> impl Iterator<Item = (&str, f32)> {
    // An element with a letter beyond ASCII is ignored; the others count.
    let values = headers.get_all(name).into_iter().map(HeaderValue::as_bytes);
    let elements = values.flat_map(|value| value.split(|&byte| byte == b','));
    elements.filter_map(|element| std::str::from_utf8(element).ok()).map(|element| {
        let (what, parameters) = element.split_once(';').unwrap_or((element, ""));
        let quality = parameters.split(';').find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse().unwrap_or(0.0))
        });
        (what.trim(), quality.unwrap_or(1.0))
    })
}

/// Whether the client accepts answers of this media type. Without the header it accepts everything.
pub(crate) fn takes(headers: &HeaderMap, kind: &str) -> bool {
    if !headers.contains_key(ACCEPT) {
        return true;
    }
    let family = kind.split('/').next().unwrap_or(kind);
    let rank = |accepted: &str| match accepted {
        "*/*" => Some(0),
        accepted if accepted.strip_suffix("/*").is_some_and(|accepted| accepted.eq_ignore_ascii_case(family)) => {
            Some(1)
        }
        accepted if accepted.eq_ignore_ascii_case(kind) => Some(2),
        _ => None,
    };
    // The most specific element counts.
    let best = elements(headers, ACCEPT).filter_map(|(accepted, quality)| Some((rank(accepted)?, quality)));
    best.max_by_key(|(rank, _)| *rank).is_some_and(|(_, quality)| quality > 0.0)
}

/// Whether the client accepts answers in this content coding.
pub(crate) fn takes_coding(headers: &HeaderMap, coding: &str) -> bool {
    let mut others = None;
    for (accepted, quality) in elements(headers, ACCEPT_ENCODING) {
        if accepted.eq_ignore_ascii_case(coding) {
            return quality > 0.0;
        }
        if accepted == "*" {
            others = Some(quality > 0.0);
        }
    }
    others.unwrap_or(coding == "identity")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_are_taken_by_name_and_by_family() {
        let takes = |accept: &str, kind: &str| takes(&HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]), kind);
        assert!(super::takes(&HeaderMap::new(), "multipart/related"));
        for accept in ["*/*", "multipart/*", "application/json, Multipart/Related;q=0.5", "text/html, */*;q=0.1"] {
            assert!(takes(accept, "multipart/related"), "{accept}");
        }
        for accept in ["application/json", "text/html", "multipart/mixed", "*/*, multipart/related;q=0", ""] {
            assert!(!takes(accept, "multipart/related"), "{accept}");
        }
    }

    #[test]
    fn codings_are_taken_by_name() {
        let takes = |accept: &str, coding: &str| {
            takes_coding(&HeaderMap::from_iter([(ACCEPT_ENCODING, accept.parse().unwrap())]), coding)
        };
        assert!(!takes_coding(&HeaderMap::new(), "gzip") && takes_coding(&HeaderMap::new(), "identity"));
        assert!(takes("deflate, GZip;q=0.5", "gzip") && takes("*", "gzip") && takes("gzip", "identity"));
        assert!(!takes("gzip;q=0, *", "gzip") && !takes("identity", "gzip") && !takes("gzip;q=x", "gzip"));
        assert!(
            !takes("identity;q=0", "identity") && !takes("*;q=0", "identity") && takes("*;q=0, identity", "identity")
        );
    }
}
