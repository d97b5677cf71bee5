//! Headers as text.

use std::borrow::Cow;

use hyper::header::HeaderValue;

/// The value as text. `HeaderValue::to_str` refuses all bytes beyond ASCII, but clients send them: mostly UTF-8, and
/// Latin-1 if their libraries write headers like this.
pub(crate) fn text(value: &HeaderValue) -> Cow<'_, str> {
    let bytes = value.as_bytes();
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(bytes.iter().map(|&byte| char::from(byte)).collect()),
    }
}

#[cfg(test)]
#[test]
fn bytes_beyond_ascii_are_letters() {
    for (bytes, expected) in [(&b"a=b"[..], "a=b"), ("ü".as_bytes(), "ü"), (b"\xfc", "ü"), (b"\xc3\xbc\xfc", "Ã¼ü")]
    {
        assert_eq!(text(&HeaderValue::from_bytes(bytes).unwrap()), expected);
    }
}
