//! Integers of any length between decimal text and bytes.

/// The largest power of ten in a 64-bit limb, and how many digits it stands for.
const CHUNK: u64 = 10_000_000_000_000_000_000;
const CHUNK_DIGITS: usize = 19;

/// The magnitude that `digits` (decimal, no sign) stands for, least significant byte first, without
/// leading zeros; zero is empty.
pub(crate) fn decimal_to_le_bytes(digits: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = decimal_to_limbs(digits.as_bytes()).iter().flat_map(|limb| limb.to_le_bytes()).collect();
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}

/// Least significant limb first.
fn decimal_to_limbs(digits: &[u8]) -> Vec<u64> {
    let mut limbs: Vec<u64> = Vec::with_capacity(digits.len() / CHUNK_DIGITS + 1);
    let (first, rest) = digits.split_at(digits.len() % CHUNK_DIGITS);
    for chunk in std::iter::once(first).chain(rest.chunks(CHUNK_DIGITS)) {
        let mut carry = chunk.iter().fold(0, |value, digit| value * 10 + u64::from(digit.wrapping_sub(b'0')));
        for limb in &mut limbs {
            let product = u128::from(*limb) * u128::from(CHUNK) + u128::from(carry);
            *limb = product as u64;
            carry = (product >> 64) as u64;
        }
        if carry > 0 {
            limbs.push(carry);
        }
    }
    limbs
}

/// Appends the decimal text of a magnitude, most significant byte first.
///
/// The time is quadratic in the length: for the at most 255 bytes of an integer in a tuple.
pub(crate) fn append_decimal(out: &mut Vec<u8>, magnitude: impl Iterator<Item = u8>) {
    // Limbs in base 10^19, least significant first.
    let mut limbs: Vec<u64> = Vec::new();
    for byte in magnitude {
        let mut carry = u64::from(byte);
        for limb in &mut limbs {
            let value = u128::from(*limb) * 256 + u128::from(carry);
            *limb = (value % u128::from(CHUNK)) as u64;
            carry = (value / u128::from(CHUNK)) as u64;
        }
        if carry > 0 {
            limbs.push(carry);
        }
    }
    let mut limbs = limbs.iter().rev();
    let first = limbs.next().copied().unwrap_or(0);
    out.extend_from_slice(first.to_string().as_bytes());
    for limb in limbs {
        out.extend_from_slice(format!("{limb:019}").as_bytes());
    }
}
