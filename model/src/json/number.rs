//! Numbers as text.

use super::error::JsonErrorKind;

/// A double as text, and room for it.
pub(crate) struct FloatText(zmij::Buffer);

impl FloatText {
    pub(crate) fn new() -> FloatText {
        FloatText(zmij::Buffer::new())
    }

    /// The shortest text that reads back as the same double and still reads as a float: it has a
    /// fraction or an exponent. `value` must be finite.
    pub(crate) fn write(&mut self, value: f64) -> &str {
        self.0.format_finite(value)
    }
}

/// Reads a number that has a fraction or an exponent. What underflows is zero, what overflows is
/// refused, as CouchDB's own decoder does it.
pub(super) fn parse_float(text: &str) -> Result<f64, JsonErrorKind> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        Ok(_) => Err(JsonErrorKind::NumberOutOfRange),
        Err(_) => Err(JsonErrorKind::InvalidNumber),
    }
}

/// Appends the decimal digits of `value`.
pub(crate) fn append_u64(out: &mut Vec<u8>, mut value: u64) {
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
