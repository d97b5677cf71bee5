//! Numbers as text.

use std::fmt;

use super::error::JsonErrorKind;

/// Maximum length of a double's text: a sign, 17 digits, a point, `e-308`.
const MAX_FLOAT_TEXT: usize = 32;

/// Whether the text of a number is an integer: `1` is; `1.0` and `1e0` are not.
pub fn is_integer(text: &[u8]) -> bool {
    !text.iter().any(|byte| matches!(byte, b'.' | b'e'))
}

/// Writes doubles as text, with memory for one text.
///
/// # The text of a double
/// It has the shortest digits that read back as the same double. Among several that short, the nearest to its value is
/// taken; between two equally near ones, the even one. The layout is that of ECMAScript's `Number::toString` (plain
/// from 1e-6 to below 1e21, otherwise `1.5e-7`, `1e+21`), but with `.0` where the text would be an integer.
///
/// The text is part of the format of stored documents: the text of an exploded document is built again from its rows,
/// and its checksum must never change. So the layout is fixed here and does not depend on the library that finds the
/// digits.
pub struct FloatText {
    digits: zmij::Buffer,
    text: [u8; MAX_FLOAT_TEXT],
}

impl Default for FloatText {
    fn default() -> FloatText {
        FloatText::new()
    }
}

impl fmt::Debug for FloatText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FloatText").finish_non_exhaustive()
    }
}

impl FloatText {
    /// Memory for one text.
    pub fn new() -> FloatText {
        FloatText { digits: zmij::Buffer::new(), text: [0; MAX_FLOAT_TEXT] }
    }

    /// The text of `value`, which must be finite.
    pub fn write(&mut self, value: f64) -> &str {
        let magnitude = value.abs();
        let printed = self.digits.format_finite(value);
        let Some((digits, exponent)) = printed.split_once('e') else { return printed };
        let Ok(exponent) = exponent.parse::<i32>() else { return printed };
        let mut text = Cursor { text: &mut self.text, len: 0 };
        let (sign, digits) = digits.split_at(usize::from(value.is_sign_negative()));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let fraction = fraction.trim_end_matches('0');
        text.push(sign);
        if !(1e-6..1e21).contains(&magnitude) {
            text.push(whole);
            if !fraction.is_empty() {
                text.push(".");
                text.push(fraction);
            }
            text.push(if exponent < 0 { "e-" } else { "e+" });
            text.push_number(exponent.unsigned_abs());
        } else if exponent < 0 {
            text.push("0.");
            text.push_zeros(exponent.unsigned_abs() as usize - 1);
            text.push(whole);
            text.push(fraction);
        } else {
            // From 1e16 on, 17 digits never extend beyond the point.
            text.push(whole);
            text.push(fraction);
            text.push_zeros((exponent as usize).saturating_sub(fraction.len()));
            text.push(".0");
        }
        let len = text.len;
        std::str::from_utf8(&self.text[..len]).unwrap_or_default()
    }
}

/// Appends to a text that has enough room.
struct Cursor<'t> {
    text: &'t mut [u8; MAX_FLOAT_TEXT],
    len: usize,
}

impl Cursor<'_> {
    fn push(&mut self, part: &str) {
        if let Some(room) = self.text.get_mut(self.len..self.len + part.len()) {
            room.copy_from_slice(part.as_bytes());
            self.len += part.len();
        }
    }

    fn push_zeros(&mut self, count: usize) {
        self.push("000000000000000000000".get(..count).unwrap_or_default());
    }

    fn push_number(&mut self, number: u32) {
        for power in [100, 10, 1] {
            if number >= power {
                let digit = number / power % 10;
                self.push(&"0123456789"[digit as usize..=digit as usize]);
            }
        }
    }
}

/// Parses a number with a fraction or an exponent. As in CouchDB's decoder, underflow gives zero, and overflow is an
/// error.
pub(super) fn parse_float(text: &str) -> Result<f64, JsonErrorKind> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        Ok(_) => Err(JsonErrorKind::NumberOutOfRange),
        Err(_) => Err(JsonErrorKind::InvalidNumber),
    }
}

/// Whether [`FloatText`] certainly writes this text for its value: a number without an exponent, with these numbers of
/// digits before and after its point. Two different decimals of at most fifteen digits are never the same double. So
/// such a decimal is its own shortest text, if it has no unnecessary zero and needs no exponent.
pub(super) fn is_written_so(text: &[u8], whole: usize, fraction: usize) -> bool {
    const EXACT: usize = 15;
    const PLACES: usize = 6;
    let behind = &text[text.len() - fraction..];
    // From 1e-6 on, and for zero.
    let needs_no_exponent = text[text.len() - fraction - 1 - whole..].first() != Some(&b'0')
        || behind.iter().take(PLACES).any(|&digit| digit != b'0');
    match behind {
        [b'0'] => whole + fraction <= EXACT,
        _ => whole + fraction <= EXACT && behind.last() != Some(&b'0') && needs_no_exponent,
    }
}

/// Appends the decimal digits of `value`.
#[inline]
pub fn append_u64(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text is part of the stored format, so no line of this table may ever change.
    #[test]
    fn the_text_of_a_double_is_fixed() {
        for (value, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-1.5, "-1.5"),
            (0.1, "0.1"),
            (0.1 + 0.2, "0.30000000000000004"),
            (100.0, "100.0"),
            (123456.789, "123456.789"),
            (9007199254740993.0, "9007199254740992.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "10000000000000000.0"),
            (1.5e16, "15000000000000000.0"),
            (12345678901234567890.0, "12345678901234567000.0"),
            (-1e20, "-100000000000000000000.0"),
            (999999999999999900000.0, "999999999999999900000.0"),
            (1e21, "1e+21"),
            (-1.5e21, "-1.5e+21"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (1e100, "1e+100"),
            (0.001, "0.001"),
            (0.0001, "0.0001"),
            (0.00001, "0.00001"),
            (1.5e-5, "0.000015"),
            (0.000001, "0.000001"),
            (-1.25e-6, "-0.00000125"),
            (9.99999999999999e-7, "9.99999999999999e-7"),
            (1e-7, "1e-7"),
            (-1.5e-10, "-1.5e-10"),
            (2.2250738585072014e-308, "2.2250738585072014e-308"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(FloatText::new().write(value), expected);
            assert_eq!(parse_float(expected).unwrap().to_bits(), value.to_bits(), "{expected}");
        }
    }

    /// Texts that the function accepts are the ones that are written.
    #[test]
    fn what_is_written_so_is_written_so() {
        let mut random = fastrand::Rng::with_seed(20_251_123);
        let mut next = |below| random.u64(..below);
        let mut yes = 0;
        for _ in 0..200_000 {
            let digits = |count: u64, next: &mut dyn FnMut(u64) -> u64| -> String {
                (0..count).map(|_| char::from(b'0' + if next(3) == 0 { 0 } else { next(10) as u8 })).collect()
            };
            let whole = match next(3) {
                0 => "0".to_owned(),
                _ => digits(1 + next(16), &mut next).trim_start_matches('0').to_owned(),
            };
            let whole = if whole.is_empty() { "0".to_owned() } else { whole };
            let fraction = digits(1 + next(17), &mut next);
            let text = format!("{}{whole}.{fraction}", if next(2) == 0 { "-" } else { "" });
            if is_written_so(text.as_bytes(), whole.len(), fraction.len()) {
                yes += 1;
                assert_eq!(FloatText::new().write(text.parse().unwrap()), text);
            }
        }
        assert!(yes > 40_000, "{yes}");
        for (text, expected) in
            [("0.0", true), ("-0.0", true), ("0.000001", true), ("0.0000001", false), ("1.50", false)]
        {
            let (whole, fraction) = text.trim_start_matches('-').split_once('.').unwrap();
            assert_eq!(is_written_so(text.as_bytes(), whole.len(), fraction.len()), expected, "{text}");
        }
    }

    #[test]
    fn every_double_reads_back() {
        let mut random = fastrand::Rng::with_seed(20_251_121);
        for round in 0..200_000u64 {
            let bits = random.u64(..);
            // Half of them are between 1e-15 and 1e15, where both layouts occur.
            let value =
                f64::from_bits(if round % 2 == 0 { bits } else { bits & !(0x7ff << 52) | (973 + bits % 100) << 52 });
            if !value.is_finite() {
                continue;
            }
            let mut float = FloatText::new();
            let text = float.write(value);
            assert_eq!(text.parse::<f64>().unwrap().to_bits(), value.to_bits(), "{text}");
            assert!(text.contains(['.', 'e']), "{text}");
            let shortest = format!("{value:e}");
            let digits = |text: &str| -> String {
                let mantissa = text.split('e').next().unwrap_or_default();
                let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
                digits.trim_matches('0').to_owned()
            };
            if digits(text) != digits(&shortest) {
                // If two texts are equally near, the standard library takes the greater one.
                let exact = digits(&format!("{value:.40e}"));
                let ours = digits(text);
                let (kept, beyond) = exact.split_at(ours.len());
                assert_eq!(beyond, "5", "{text} is not the nearest to {exact}");
                assert!(ours.ends_with(['2', '4', '6', '8']), "{text} is odd, {kept} was cut");
            }
        }
    }
}
