//! The atomic operations, from their description in FoundationDB's `api-c.rst`.

use std::cmp::Ordering;

use kv_api::MutationType;

/// `value` truncated or extended with zeros to `length`.
fn fit(value: &[u8], length: usize) -> Vec<u8> {
    (0..length).map(|at| value.get(at).copied().unwrap_or(0)).collect()
}

fn bytewise(value: &[u8], operand: &[u8], join: impl Fn(u8, u8) -> u8) -> Vec<u8> {
    fit(value, operand.len()).into_iter().zip(operand).map(|(a, &b)| join(a, b)).collect()
}

fn add(value: &[u8], operand: &[u8]) -> Vec<u8> {
    let mut carry = 0_u16;
    let mut sum = Vec::new();
    for (a, &b) in fit(value, operand.len()).into_iter().zip(operand) {
        carry += u16::from(a) + u16::from(b);
        sum.push((carry & 0xff) as u8);
        carry >>= 8;
    }
    sum
}

/// Compares little-endian numbers of one length.
fn compare(a: &[u8], b: &[u8]) -> Ordering {
    a.iter().rev().cmp(b.iter().rev())
}

/// The value of a key after the operation, from its value before.
pub(super) fn apply(mutation: MutationType, value: Option<&[u8]>, operand: &[u8], longest: usize) -> Option<Vec<u8>> {
    let or_nothing = value.unwrap_or_default();
    let fitted = fit(or_nothing, operand.len());
    let result = match (mutation, value) {
        (MutationType::CompareAndClear, _) => return value.filter(|value| *value != operand).map(<[u8]>::to_vec),
        (MutationType::BitAnd | MutationType::Min | MutationType::ByteMin | MutationType::ByteMax, None) => {
            operand.to_vec()
        }
        (MutationType::Add, _) => add(or_nothing, operand),
        (MutationType::BitAnd, _) => bytewise(or_nothing, operand, |a, b| a & b),
        (MutationType::BitOr, _) => bytewise(or_nothing, operand, |a, b| a | b),
        (MutationType::BitXor, _) => bytewise(or_nothing, operand, |a, b| a ^ b),
        (MutationType::AppendIfFits, _) if or_nothing.len() + operand.len() > longest => or_nothing.to_vec(),
        (MutationType::AppendIfFits, _) => [or_nothing, operand].concat(),
        (MutationType::Max, _) if compare(&fitted, operand).is_gt() => fitted,
        (MutationType::Min, _) if compare(&fitted, operand).is_lt() => fitted,
        (MutationType::ByteMax, Some(value)) if value > operand => value.to_vec(),
        (MutationType::ByteMin, Some(value)) if value < operand => value.to_vec(),
        _ => operand.to_vec(),
    };
    Some(result)
}
