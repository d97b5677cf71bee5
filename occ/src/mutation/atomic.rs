//! Atomic operations as pure functions: from the existing value and the operand to the new value.
//!
//! Padding, truncation and the treatment of absent keys are those of FoundationDB's `fdbclient/Atomic.h` at
//! current API versions (`MIN` and `BIT_AND` store the operand on an absent key: `doMinV2`, `doAndV2`). If the
//! lengths differ, the value is cut or padded with zeros to the operand's length.

use bytes::Bytes;
use kv_api::MutationType;

/// The value after `operation` with `operand` on `existing`; `None` if the key ends up absent.
///
/// `value_limit` is the limit of `APPEND_IF_FITS`. A versionstamped operation returns its operand: the stamp is
/// filled in elsewhere.
pub fn apply(operation: MutationType, existing: Option<&Bytes>, operand: &Bytes, value_limit: usize) -> Option<Bytes> {
    let value = match operation {
        MutationType::Add => add(existing, operand),
        MutationType::BitAnd => match existing {
            Some(existing) => zip(existing, operand, |a, b| a & b),
            None => operand.clone(),
        },
        MutationType::BitOr => zip(existing.unwrap_or(&Bytes::new()), operand, |a, b| a | b),
        MutationType::BitXor => zip(existing.unwrap_or(&Bytes::new()), operand, |a, b| a ^ b),
        MutationType::AppendIfFits => append_if_fits(existing, operand, value_limit),
        MutationType::Max => greater(existing.unwrap_or(&Bytes::new()), operand),
        MutationType::Min => match existing {
            Some(existing) => lesser(existing, operand),
            None => operand.clone(),
        },
        MutationType::ByteMin => existing.filter(|existing| *existing < operand).unwrap_or(operand).clone(),
        MutationType::ByteMax => existing.filter(|existing| *existing > operand).unwrap_or(operand).clone(),
        MutationType::CompareAndClear => return existing.filter(|existing| *existing != operand).cloned(),
        MutationType::SetVersionstampedKey | MutationType::SetVersionstampedValue => operand.clone(),
    };
    Some(value)
}

/// The bytes of `existing`, cut or padded to the operand's length.
fn fitted<'a>(existing: &'a Bytes, operand: &Bytes) -> impl DoubleEndedIterator<Item = u8> + ExactSizeIterator + 'a {
    let existing = existing.as_ref();
    (0..operand.len()).map(move |at| existing.get(at).copied().unwrap_or(0))
}

fn zip(existing: &Bytes, operand: &Bytes, combine: fn(u8, u8) -> u8) -> Bytes {
    fitted(existing, operand).zip(operand.iter()).map(|(a, &b)| combine(a, b)).collect()
}

fn add(existing: Option<&Bytes>, operand: &Bytes) -> Bytes {
    let Some(existing) = existing.filter(|existing| !existing.is_empty()) else { return operand.clone() };
    let mut carry = 0;
    fitted(existing, operand)
        .zip(operand.iter())
        .map(|(a, &b)| {
            let sum = u16::from(a) + u16::from(b) + carry;
            carry = sum >> 8;
            sum as u8
        })
        .collect()
}

fn append_if_fits(existing: Option<&Bytes>, operand: &Bytes, value_limit: usize) -> Bytes {
    match existing {
        None => operand.clone(),
        Some(existing) if existing.is_empty() => operand.clone(),
        Some(existing) if operand.is_empty() || existing.len() + operand.len() > value_limit => existing.clone(),
        Some(existing) => [existing.as_ref(), operand.as_ref()].concat().into(),
    }
}

/// Compares the two as little-endian numbers of the operand's length.
fn compare(existing: &Bytes, operand: &Bytes) -> std::cmp::Ordering {
    fitted(existing, operand).rev().cmp(operand.iter().rev().copied())
}

fn greater(existing: &Bytes, operand: &Bytes) -> Bytes {
    if compare(existing, operand).is_gt() { fitted(existing, operand).collect() } else { operand.clone() }
}

fn lesser(existing: &Bytes, operand: &Bytes) -> Bytes {
    if compare(existing, operand).is_lt() { fitted(existing, operand).collect() } else { operand.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MutationType::*;

    #[test]
    fn each_operation_by_table() {
        type Case = (MutationType, Option<&'static [u8]>, &'static [u8], Option<&'static [u8]>);
        let table: &[Case] = &[
            (Add, None, b"\x01", Some(b"\x01")),
            (Add, Some(b""), b"\x01\x02", Some(b"\x01\x02")),
            (Add, Some(b"\x01"), b"", Some(b"")),
            (Add, Some(b"\xff"), b"\x01\x00", Some(b"\x00\x01")),
            (Add, Some(b"\xff\xff"), b"\x01", Some(b"\x00")),
            (Add, Some(b"\xff\xff"), b"\x01\x00", Some(b"\x00\x00")),
            (Add, Some(b"\x05\x00\x09"), b"\xff\xff", Some(b"\x04\x00")),
            (BitAnd, None, b"\x0f", Some(b"\x0f")),
            (BitAnd, Some(b""), b"\x0f", Some(b"\x00")),
            (BitAnd, Some(b"\x3c"), b"\x0f\xff", Some(b"\x0c\x00")),
            (BitAnd, Some(b"\x3c\xff"), b"\x0f", Some(b"\x0c")),
            (BitOr, None, b"\x0f", Some(b"\x0f")),
            (BitOr, Some(b"\x30"), b"\x0f\x01", Some(b"\x3f\x01")),
            (BitOr, Some(b"\x30\xff"), b"\x0f", Some(b"\x3f")),
            (BitXor, None, b"\x0f", Some(b"\x0f")),
            (BitXor, Some(b"\xff"), b"\x0f\x01", Some(b"\xf0\x01")),
            (BitXor, Some(b"\xff\xff"), b"\x0f", Some(b"\xf0")),
            (AppendIfFits, None, b"b", Some(b"b")),
            (AppendIfFits, Some(b"a"), b"b", Some(b"ab")),
            (AppendIfFits, Some(b"a"), b"", Some(b"a")),
            (AppendIfFits, Some(b"1234567"), b"8", Some(b"12345678")),
            (AppendIfFits, Some(b"1234567"), b"89", Some(b"1234567")),
            (Max, None, b"\x00\x01", Some(b"\x00\x01")),
            (Max, Some(b"\x02"), b"\x01", Some(b"\x02")),
            (Max, Some(b"\x02"), b"\x01\x00", Some(b"\x02\x00")),
            (Max, Some(b"\xff"), b"\x00\x01", Some(b"\x00\x01")),
            (Max, Some(b"\x00\x01"), b"\xff", Some(b"\xff")),
            (Max, Some(b"\x02\x09"), b"\x01", Some(b"\x02")),
            (Max, Some(b"\x02"), b"", Some(b"")),
            (Min, None, b"\x05", Some(b"\x05")),
            (Min, Some(b""), b"\x05", Some(b"\x00")),
            (Min, Some(b"\x02"), b"\x05\x00", Some(b"\x02\x00")),
            (Min, Some(b"\x02\x09"), b"\x05", Some(b"\x02")),
            (Min, Some(b"\xff"), b"\x00\x01", Some(b"\xff\x00")),
            (Min, Some(b"\x09"), b"\x05", Some(b"\x05")),
            (ByteMin, None, b"b", Some(b"b")),
            (ByteMin, Some(b"a"), b"b", Some(b"a")),
            (ByteMin, Some(b"ba"), b"b", Some(b"b")),
            (ByteMin, Some(b""), b"b", Some(b"")),
            (ByteMax, None, b"b", Some(b"b")),
            (ByteMax, Some(b"ba"), b"b", Some(b"ba")),
            (ByteMax, Some(b"a"), b"b", Some(b"b")),
            (CompareAndClear, None, b"a", None),
            (CompareAndClear, Some(b"a"), b"a", None),
            (CompareAndClear, Some(b"ab"), b"a", Some(b"ab")),
        ];
        for &(operation, existing, operand, expected) in table {
            let existing = existing.map(Bytes::from_static);
            let got = apply(operation, existing.as_ref(), &Bytes::from_static(operand), 8);
            assert_eq!(got.as_deref(), expected, "{operation:?} of {existing:?} with {operand:?}");
        }
    }
}
