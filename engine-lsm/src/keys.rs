//! Keys as they are stored in a table: unchanged, except keys that consist of NULs only.
//!
//! `lsm-tree` refuses the empty key, which the contract allows. So a key of NULs only, including the empty key,
//! gets one more NUL. The order of keys does not change.
//!
//! ```text
//!   ours     ""     00       00 00       00 00 01   00 01   01
//!   stored   00     00 00    00 00 00    00 00 01   00 01   01
//! ```

use std::borrow::Cow;

fn is_nuls(key: &[u8]) -> bool {
    key.iter().all(|&byte| byte == 0)
}

/// The key as it is stored in a table.
pub fn stored(key: &[u8]) -> Cow<'_, [u8]> {
    if is_nuls(key) { Cow::Owned(vec![0; key.len() + 1]) } else { Cow::Borrowed(key) }
}

/// The key that is stored as `stored`.
pub fn ours(stored: &[u8]) -> &[u8] {
    match stored.split_first() {
        Some((_, rest)) if is_nuls(stored) => rest,
        _ => stored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key of up to five bytes from an alphabet of three.
    fn all() -> Vec<Vec<u8>> {
        let mut keys = vec![Vec::new()];
        let mut begin = 0;
        for _ in 0..5 {
            let end = keys.len();
            for at in begin..end {
                for byte in [0, 1, 255] {
                    keys.push([keys[at].as_slice(), &[byte]].concat());
                }
            }
            begin = end;
        }
        keys.sort();
        keys
    }

    #[test]
    fn keys_come_back_and_keep_their_order() {
        let keys = all();
        let stored: Vec<_> = keys.iter().map(|key| stored(key).into_owned()).collect();
        assert!(stored.is_sorted_by(|a, b| a < b), "one by one, in order");
        assert!(stored.iter().all(|key| !key.is_empty()));
        assert!(stored.iter().map(|key| ours(key)).eq(keys.iter().map(Vec::as_slice)));
    }
}
