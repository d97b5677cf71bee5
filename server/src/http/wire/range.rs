//! `Range`: the part of a content that a client requests.
//!
//! Source: `parse_ranges` in CouchDB's `chttpd_db.erl`, and `parse_range_request` of mochiweb.

use std::ops::Range;

/// From this number of ranges on, the whole content is sent.
const TOO_MANY: usize = 10;

/// The part to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Whole,
    One(Range<u64>),
    /// As `multipart/byteranges`.
    Several(Vec<Range<u64>>),
}

/// A range lies outside of the content: 416.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unsatisfiable;

/// Parses the header for a content of `length` bytes. A malformed header is ignored.
pub(crate) fn parse(header: Option<&str>, length: u64) -> Result<Wanted, Unsatisfiable> {
    let Some(specs) = header.and_then(specs) else { return Ok(Wanted::Whole) };
    let mut ranges = Vec::new();
    for spec in specs {
        let (from, last) = match spec {
            // A range from the first byte to the end: the whole content, whatever else is requested.
            (Some(0), None) => return Ok(Wanted::Whole),
            (Some(from), Some(last)) if last < from => return Err(Unsatisfiable),
            (Some(from), last) => (from, last.unwrap_or(u64::MAX)),
            (None, Some(0)) | (None, None) => return Err(Unsatisfiable),
            (None, Some(count)) => (length.saturating_sub(count), u64::MAX),
        };
        let end = last.saturating_add(1).min(length);
        if from >= end {
            return Err(Unsatisfiable);
        }
        ranges.push(from..end);
    }
    Ok(match ranges.len() {
        1 => Wanted::One(ranges.remove(0)),
        2..TOO_MANY => Wanted::Several(ranges),
        _ => Wanted::Whole,
    })
}

/// Parses a header such as `bytes=1-2,3-,-4`.
fn specs(header: &str) -> Option<Vec<(Option<u64>, Option<u64>)>> {
    let number = |text: &str| match text {
        "" => Some(None),
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(Some(digits.parse().unwrap_or(u64::MAX))),
        _ => None,
    };
    let specs = header.trim().strip_prefix("bytes=")?.split(',').map(|spec| {
        let (from, last) = spec.trim().split_once('-')?;
        Some((number(from)?, number(last)?)).filter(|spec| *spec != (None, None))
    });
    specs.collect()
}

/// The value of `Content-Range`.
pub(crate) fn content_range(range: &Range<u64>, length: u64) -> String {
    format!("bytes {}-{}/{length}", range.start, range.end - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_couchdb_reads_them() {
        let of_256 = |header: &str| parse(Some(header), 256);
        assert_eq!(parse(None, 256), Ok(Wanted::Whole));
        for whole in ["bytes=0-", "garbage", "bytes=a-b", "bytes=1-2-3x", "lines=1-2", "bytes=-", "bytes=0-,5-2"] {
            assert_eq!(of_256(whole), Ok(Wanted::Whole), "{whole}");
        }
        for (header, range) in [
            ("bytes=0-255", 0..256),
            ("bytes=0-0", 0..1),
            ("bytes=255-", 255..256),
            ("bytes=10-1000", 10..256),
            ("bytes=-6", 250..256),
            ("bytes=-1000", 0..256),
            (" bytes= 3-4 ", 3..5),
            ("bytes=7-99999999999999999999999", 7..256),
        ] {
            assert_eq!(of_256(header), Ok(Wanted::One(range)), "{header}");
        }
        for outside in ["bytes=256-", "bytes=256-300", "bytes=5-2", "bytes=-0", "bytes=0-1,300-", "bytes=0-0,5-2"] {
            assert_eq!(of_256(outside), Err(Unsatisfiable), "{outside}");
        }
        assert_eq!(of_256("bytes=0-1,4-,-1"), Ok(Wanted::Several(vec![0..2, 4..256, 255..256])));
        let many = |count: usize| format!("bytes={}", vec!["1-2"; count].join(","));
        assert!(matches!(of_256(&many(9)), Ok(Wanted::Several(ranges)) if ranges.len() == 9));
        assert_eq!(of_256(&many(11)), Ok(Wanted::Whole));
        assert_eq!(parse(Some("bytes=0-5"), 0), Err(Unsatisfiable));
        assert_eq!(parse(Some("bytes=-5"), 0), Err(Unsatisfiable));
        assert_eq!(content_range(&(5..9), 100), "bytes 5-8/100");
    }
}
