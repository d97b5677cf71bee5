//! Integers of any length between decimal text and bytes.

/// Largest power of ten in a 64-bit limb, and its number of digits.
const CHUNK: u64 = 10_000_000_000_000_000_000;
const CHUNK_DIGITS: usize = 19;

/// Number of chunks that are converted directly, before joining begins.
const BLOCK_CHUNKS: usize = 64;
const BLOCK_DIGITS: usize = BLOCK_CHUNKS * CHUNK_DIGITS;

/// Number of limbs from which Karatsuba's method is faster.
const KARATSUBA_LIMBS: usize = 40;

/// The magnitude of `digits` (decimal, no sign), least significant byte first, without leading zeros. Zero is
/// empty.
pub(crate) fn decimal_to_le_bytes(digits: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = decimal_to_limbs(digits.as_bytes()).iter().flat_map(|limb| limb.to_le_bytes()).collect();
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}

/// Least significant limb first.
///
/// Blocks of digits are converted directly, then joined in pairs, pairs of pairs, and so on. The time is that of
/// the multiplications: a document may have integers of a million digits, for which schoolbook conversion takes
/// seconds.
fn decimal_to_limbs(digits: &[u8]) -> Vec<u64> {
    let mut blocks: Vec<Vec<u64>> = digits.rchunks(BLOCK_DIGITS).map(block_to_limbs).collect();
    if blocks.len() < 2 {
        return blocks.pop().unwrap_or_default();
    }
    // Factor for the upper one of two neighbouring blocks.
    let mut power = multiply(&[CHUNK], &[1]);
    for _ in 1..BLOCK_CHUNKS {
        power = multiply(&power, &[CHUNK]);
    }
    loop {
        blocks = blocks
            .chunks(2)
            .map(|pair| match pair {
                [low, high] => {
                    let mut joined = multiply(high, &power);
                    add_at(&mut joined, low, 0);
                    joined
                }
                alone => alone.concat(),
            })
            .collect();
        if blocks.len() < 2 {
            return blocks.pop().unwrap_or_default();
        }
        power = multiply(&power, &power);
    }
}

/// Schoolbook conversion, chunk by chunk.
fn block_to_limbs(digits: &[u8]) -> Vec<u64> {
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

/// The product, with `left.len() + right.len()` limbs. Uses Karatsuba's method if that is faster, with one level
/// of recursion for each halving of the length.
fn multiply(left: &[u64], right: &[u64]) -> Vec<u64> {
    let (long, short) = if left.len() >= right.len() { (left, right) } else { (right, left) };
    let mut product = vec![0; long.len() + short.len()];
    if short.len() < KARATSUBA_LIMBS {
        for (at, &factor) in short.iter().enumerate() {
            let mut carry = 0;
            for (limb, &other) in product[at..].iter_mut().zip(long) {
                let sum = u128::from(other) * u128::from(factor) + u128::from(*limb) + u128::from(carry);
                *limb = sum as u64;
                carry = (sum >> 64) as u64;
            }
            product[at + long.len()] = carry;
        }
        return product;
    }
    let half = long.len().div_ceil(2);
    let (low, high) = long.split_at(half);
    if short.len() <= half {
        add_at(&mut product, &multiply(low, short), 0);
        add_at(&mut product, &multiply(high, short), half);
        return product;
    }
    let (short_low, short_high) = short.split_at(half);
    let lows = multiply(low, short_low);
    let highs = multiply(high, short_high);
    let mut middle = multiply(&sum(low, high), &sum(short_low, short_high));
    subtract(&mut middle, &lows);
    subtract(&mut middle, &highs);
    add_at(&mut product, &lows, 0);
    add_at(&mut product, &highs, 2 * half);
    add_at(&mut product, &middle, half);
    product
}

fn sum(left: &[u64], right: &[u64]) -> Vec<u64> {
    let mut sum = Vec::with_capacity(left.len().max(right.len()) + 1);
    sum.extend_from_slice(left);
    sum.resize(left.len().max(right.len()) + 1, 0);
    add_at(&mut sum, right, 0);
    sum
}

/// Adds `other`, shifted up by `at` limbs. The sum must fit `number`; limbs of `other` beyond it are zeros.
fn add_at(number: &mut [u64], other: &[u64], at: usize) {
    let mut carry = false;
    for (index, limb) in number.iter_mut().skip(at).enumerate() {
        let addend = match other.get(index) {
            Some(&addend) => addend,
            None if carry => 0,
            None => return,
        };
        (*limb, carry) = limb.carrying_add(addend, carry);
    }
}

/// Subtracts `other`, which is not greater.
fn subtract(number: &mut [u64], other: &[u64]) {
    let mut borrow = false;
    for (index, limb) in number.iter_mut().enumerate() {
        let subtrahend = match other.get(index) {
            Some(&subtrahend) => subtrahend,
            None if borrow => 0,
            None => return,
        };
        (*limb, borrow) = limb.borrowing_sub(subtrahend, borrow);
    }
}

/// Appends the decimal text of a magnitude, most significant byte first.
///
/// The time is quadratic in the length. For integers in tuples, of at most 255 bytes.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn digits(length: usize, seed: u64) -> String {
        let mut random = fastrand::Rng::with_seed(seed);
        std::iter::once('7').chain((1..length).map(|_| char::from(b'0' + random.u8(..10)))).collect()
    }

    #[test]
    fn decimal_and_back() {
        for length in [1, 18, 19, 20, 37, 38, 39, 255, 614, 1215, 1216, 1217, 2432, 2433, 5000, 20_000] {
            let text = digits(length, length as u64);
            let bytes = decimal_to_le_bytes(&text);
            let mut back = Vec::new();
            append_decimal(&mut back, bytes.iter().rev().copied());
            assert_eq!(String::from_utf8(back).unwrap(), text);
        }
    }

    #[test]
    fn zero_is_empty_and_powers_are_exact() {
        assert!(decimal_to_le_bytes("0").is_empty());
        assert_eq!(decimal_to_le_bytes("256"), [0, 1]);
        assert_eq!(decimal_to_le_bytes("18446744073709551616"), [0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let mut zero = Vec::new();
        append_decimal(&mut zero, [].into_iter());
        assert_eq!(zero, b"0");
    }

    #[test]
    fn joining_blocks_is_the_schoolbook() {
        for length in [1217, 3000, 9999, 50_000, 77_824, 123_457] {
            for text in [digits(length, 1), "9".repeat(length), format!("1{}", "0".repeat(length - 1))] {
                let mut joined = decimal_to_limbs(text.as_bytes());
                while joined.last() == Some(&0) {
                    joined.pop();
                }
                assert!(joined == block_to_limbs(text.as_bytes()), "{length} digits");
            }
        }
    }
}
