//! Arithmetic on keys: the key after a key, the end of a prefix.

use bytes::Bytes;

/// First key of the system's own keyspace. Every user key is below it.
pub const SYSTEM_BEGIN: &[u8] = b"\xff";

/// The first key after `key` in byte order: `key` with a zero byte appended.
pub fn key_after(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}

/// The first key after every key that begins with `prefix` (FoundationDB's `strinc`). `None` for an empty prefix, or
/// one of `\xff` bytes only.
///
/// ```
/// use kv_api::keys::prefix_end;
/// assert_eq!(prefix_end(b"ab").unwrap(), b"ac"[..]);
/// assert_eq!(prefix_end(b"a\xff").unwrap(), b"b"[..]);
/// assert_eq!(prefix_end(b"\xff\xff"), None);
/// ```
pub fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}
