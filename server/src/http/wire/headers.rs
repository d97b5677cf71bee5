//! Headers as text.

use std::borrow::Cow;

use hyper::header::HeaderValue;

/// The value as text. `HeaderValue::to_str` refuses all bytes beyond ASCII, which clients send: in UTF-8 mostly, and in Latin-1
/// where their libraries write headers so.
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
