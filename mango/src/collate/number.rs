//! Compares numbers in Erlang's order, from their text.
//!
//! CouchDB's integers have any size, and its floats are doubles. An integer and a float are compared by their exact
//! values and never rounded: `9007199254740993` is greater than `9007199254740992.0`.

use std::cmp::Ordering;

use json::is_integer;

/// From here on every double is an integer, but not every integer is a double.
pub(super) const EXACT: f64 = 9_007_199_254_740_992.0;

/// Compares two numbers by value.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    match (is_integer(a.as_bytes()), is_integer(b.as_bytes())) {
        (true, true) => compare_integers(a, b),
        (true, false) => compare_integer_with_float(a, float(b)),
        (false, true) => compare_integer_with_float(b, float(a)).reverse(),
        (false, false) => compare_floats(float(a), float(b)),
    }
}

/// `text` modulo `divisor`, with the sign of `text` (Erlang's `rem`). `None` for a float, or if the divisor is zero.
pub(crate) fn remainder(text: &str, divisor: i64) -> Option<i64> {
    if divisor == 0 || !is_integer(text.as_bytes()) {
        return None;
    }
    let (negative, digits) = sign(text);
    let modulus = i128::from(divisor).abs();
    let mut rest: i128 = 0;
    for digit in digits.bytes() {
        rest = (rest * 10 + i128::from(digit.checked_sub(b'0')?)) % modulus;
    }
    i64::try_from(if negative { -rest } else { rest }).ok()
}

/// `0.0` equals `-0.0`. JSON has no NaN, so the partial order is total.
pub(super) fn compare_floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or(Ordering::Equal)
}

pub(super) fn float(text: &str) -> f64 {
    text.parse().unwrap_or(0.0)
}

/// The sign of an integer, and its digits without leading zeros. Zero has no sign.
pub(super) fn sign(text: &str) -> (bool, &str) {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let digits = digits.trim_start_matches('0');
    (negative && !digits.is_empty(), digits)
}

pub(super) fn compare_integers(a: &str, b: &str) -> Ordering {
    let ((a_negative, a), (b_negative, b)) = (sign(a), sign(b));
    match (a_negative, b_negative) {
        (false, true) => Ordering::Greater,
        (true, false) => Ordering::Less,
        (negative, _) => {
            let magnitude = a.len().cmp(&b.len()).then_with(|| a.cmp(b));
            if negative { magnitude.reverse() } else { magnitude }
        }
    }
}

pub(super) fn compare_integer_with_float(integer: &str, float: f64) -> Ordering {
    if let Ok(small) = integer.parse::<i64>()
        && small.unsigned_abs() <= EXACT as u64
    {
        return compare_floats(small as f64, float);
    }
    if float.abs() < EXACT {
        return if sign(integer).0 { Ordering::Less } else { Ordering::Greater };
    }
    compare_integers(integer, &format!("{float:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_compare_by_exact_value() {
        // Each is greater than the one before.
        let rising = [
            "-1e300",
            "-123456789012345678901234567890",
            "-9007199254740993",
            "-9007199254740992.0",
            "-2",
            "-1.5",
            "0",
            "1e-300",
            "0.1",
            "1",
            "1.0000000000000002",
            "2",
            "10",
            "9007199254740992.0",
            "9007199254740993",
            "123456789012345678901234567890",
            "1e300",
        ];
        for (i, a) in rising.iter().enumerate() {
            for (j, b) in rising.iter().enumerate() {
                assert_eq!(compare(a, b), i.cmp(&j), "{a} against {b}");
            }
        }
        for (a, b) in
            [("1", "1.0"), ("0", "-0"), ("0", "-0.0"), ("100", "1e2"), ("9007199254740992", "9007199254740992.0")]
        {
            assert_eq!(compare(a, b), Ordering::Equal, "{a} against {b}");
        }
    }

    #[test]
    fn the_remainder_has_the_sign_of_the_value() {
        assert_eq!(remainder("57", 28), Some(1));
        assert_eq!(remainder("-57", 28), Some(-1));
        assert_eq!(remainder("57", -28), Some(1));
        assert_eq!(
            remainder("123456789012345678901234567890", 97),
            Some((123456789012345678901234567890_i128 % 97) as i64)
        );
        assert_eq!(remainder("1.0", 2), None);
        assert_eq!(remainder("1", 0), None);
        assert_eq!(remainder("5", i64::MIN), Some(5));
    }
}
