//! Writes multipart bodies, in CouchDB's form.
//!
//! Source: `encode_multipart_stream` and `length_multipart_stream` in CouchDB's `couch_httpd_multipart.erl`.

use crate::http::error::{ApiError, Result};
use crate::http::ids::random_hex;

/// The delimiters of one body.
#[derive(Clone, Debug)]
pub(crate) struct Multipart {
    boundary: String,
}

/// Properties in the head of an attachment's part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartHead<'a> {
    pub(crate) name: &'a str,
    pub(crate) content_type: &'a str,
    /// Bytes of the part.
    pub(crate) length: u64,
    pub(crate) is_gzip: bool,
}

impl Multipart {
    /// With a new random boundary, which no part contains.
    pub(crate) fn new() -> Result<Self> {
        let boundary = random_hex::<16>().map_err(|_| ApiError::internal())?;
        Ok(Multipart { boundary })
    }

    /// The media type of the body; `kind` is `related`, for example.
    pub(crate) fn content_type(&self, kind: &str) -> String {
        format!("multipart/{kind}; boundary=\"{}\"", self.boundary)
    }

    /// Start of the body. A head follows.
    pub(crate) fn begin(&self) -> String {
        format!("--{}", self.boundary)
    }

    /// End of a part. The next head or the end follows.
    pub(crate) fn next(&self) -> String {
        format!("\r\n--{}", self.boundary)
    }

    /// End of the body, after the end of the last part.
    pub(crate) const END: &'static str = "--";
}

/// The head of a part with this media type.
pub(crate) fn head(content_type: &str) -> String {
    format!("\r\nContent-Type: {}\r\n\r\n", header_text(content_type))
}

/// The head of a part that is a range of a content.
pub(crate) fn range_head(content_type: &str, content_range: &str) -> String {
    format!("\r\nContent-Type: {}\r\nContent-Range: {content_range}\r\n\r\n", header_text(content_type))
}

/// The head of a part with a document that has attachments, in a response with several parts.
pub(crate) fn document_head(id: &str, rev: &str, content_type: &str) -> String {
    format!("\r\nX-Doc-Id: {}\r\nX-Rev-Id: {rev}{}", header_text(id), head(content_type))
}

impl PartHead<'_> {
    pub(crate) fn write(&self) -> String {
        let name = header_text(self.name).replace('"', "%22");
        let encoding = if self.is_gzip { "\r\nContent-Encoding: gzip" } else { "" };
        format!(
            "\r\nContent-Disposition: attachment; filename=\"{name}\"\r\nContent-Type: {}\r\nContent-Length: {}{encoding}\r\n\r\n",
            header_text(self.content_type),
            self.length,
        )
    }
}

/// Text escaped so that it cannot end its header, like names in browsers' forms: an attachment may have any name.
fn header_text(text: &str) -> String {
    text.replace('\r', "%0D").replace('\n', "%0A").replace('\0', "%00")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::wire::multipart::splitter::{Event, Splitter};

    #[test]
    fn what_is_written_is_read_back() {
        let multipart = Multipart { boundary: "b0undary".into() };
        let evil = PartHead { name: "a\"\r\n\r\n--b0undary--", content_type: "x/\r\ny", length: 3, is_gzip: true };
        let body = [
            multipart.begin(),
            head("application/json"),
            "{}".into(),
            multipart.next(),
            evil.write(),
            "\r\n-".into(),
            multipart.next(),
            Multipart::END.into(),
        ];
        let body = body.concat();
        assert!(
            body.starts_with("--b0undary\r\nContent-Type: application/json\r\n\r\n{}\r\n--b0undary\r\nContent-Disp")
        );
        assert!(
            body.contains("\r\nContent-Length: 3\r\nContent-Encoding: gzip\r\n\r\n\r\n-\r\n--b0undary--"),
            "{body}"
        );
        let mut splitter = Splitter::new("b0undary");
        splitter.push(body.as_bytes());
        let mut events = Vec::new();
        while let Some(event) = splitter.next().unwrap().filter(|event| *event != Event::End) {
            events.push(event);
        }
        let data = |text: &'static str| Event::Data(text.into());
        assert_eq!(events, [Event::Part, data("{}"), Event::Part, data("\r\n-")]);
    }
}
