//! Tokens of normalised text, for the two passes over every written document: the one that computes its revision, and
//! the one that lays it out in rows.
//!
//! [`Events`](super::Events) has the same content in another form. This iterator is inlined into its callers' loops and
//! looks at each byte only once: numbers are parsed while they are skipped, and strings stay bytes.

use super::string::{JsonStr, string_end};

/// Number of digits that always fit in an `i64`.
const SHORT: usize = 18;

/// Number of digits of integers that are doubles without rounding.
const EXACT: usize = 15;

/// Powers of ten.
const POWERS: [f64; EXACT + 1] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// A token. Commas and colons are not tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    /// An array or an object begins.
    Begin {
        /// Whether it is an array.
        is_array: bool,
    },
    /// The innermost container ends.
    End,
    /// The name of a member; its value comes next.
    Name(RawStr<'a>),
    /// A string.
    Str(RawStr<'a>),
    /// An integer.
    Int(i64),
    /// An integer with more digits than always fit, as written.
    LongInt(&'a str),
    /// A number with a fraction or an exponent.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// `null`.
    Null,
}

/// The contents of a string as in the text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawStr<'a> {
    contents: &'a [u8],
    escaped: bool,
}

impl<'a> RawStr<'a> {
    /// The string itself, if it is written without escapes. Then it has no NUL.
    #[inline(always)]
    pub fn plain(self) -> Option<&'a [u8]> {
        (!self.escaped).then_some(self.contents)
    }

    /// Length of the contents in the text. The string is at most as long.
    pub fn raw_len(self) -> usize {
        self.contents.len()
    }

    /// The string as in [`Events`](super::Events).
    pub fn json_str(self) -> JsonStr<'a> {
        // A part of UTF-8 text between two quotes.
        JsonStr::new(std::str::from_utf8(self.contents).unwrap_or_default(), self.escaped)
    }
}

/// An iterator over the tokens of a normalised text.
#[derive(Debug)]
pub struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Scan { text, at: 0 }
    }
}

impl<'a> Iterator for Scan<'a> {
    type Item = Token<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Token<'a>> {
        let mut byte = *self.text.get(self.at)?;
        if byte == b',' {
            self.at += 1;
            byte = *self.text.get(self.at)?;
        }
        let (token, len) = match byte {
            b'"' => {
                let (end, escaped) = string_end(self.text, self.at + 1)?;
                let string = RawStr { contents: &self.text[self.at + 1..end], escaped };
                // A string is a member's name exactly if a colon follows it.
                let is_name = self.text.get(end + 1) == Some(&b':');
                self.at = end + 1 + usize::from(is_name);
                return Some(if is_name { Token::Name(string) } else { Token::Str(string) });
            }
            b'{' => (Token::Begin { is_array: false }, 1),
            b'[' => (Token::Begin { is_array: true }, 1),
            b'}' | b']' => (Token::End, 1),
            b't' => (Token::Bool(true), 4),
            b'f' => (Token::Bool(false), 5),
            b'n' => (Token::Null, 4),
            _ => return self.number(),
        };
        self.at += len;
        Some(token)
    }
}

impl<'a> Scan<'a> {
    #[inline(always)]
    fn number(&mut self) -> Option<Token<'a>> {
        let rest = &self.text[self.at..];
        let sign = usize::from(rest.first() == Some(&b'-'));
        let (mut value, mut len) = (0i64, sign);
        while let Some(digit @ b'0'..=b'9') = rest.get(len) {
            value = value.wrapping_mul(10).wrapping_add(i64::from(digit - b'0'));
            len += 1;
        }
        match rest.get(len) {
            Some(b'.') => self.fraction(value, sign, len),
            Some(b'e') => self.long_number(len, true),
            _ if len > sign && len - sign <= SHORT => {
                self.at += len;
                Some(Token::Int(if sign == 1 { -value } else { value }))
            }
            _ => self.long_number(len, false),
        }
    }

    /// Parses a number with a fraction. `whole` bytes with the sign are before the point, and their value is `value`.
    fn fraction(&mut self, mut value: i64, sign: usize, whole: usize) -> Option<Token<'a>> {
        let rest = &self.text[self.at..];
        let mut len = whole + 1;
        while let Some(digit @ b'0'..=b'9') = rest.get(len) {
            value = value.wrapping_mul(10).wrapping_add(i64::from(digit - b'0'));
            len += 1;
        }
        let (digits, places) = (len - sign - 1, len - whole - 1);
        if digits > EXACT || rest.get(len) == Some(&b'e') {
            return self.long_number(whole, true);
        }
        self.at += len;
        // Both are exact doubles, so the division rounds only once, correctly.
        let magnitude = value as f64 / POWERS[places];
        Some(Token::Float(if sign == 1 { -magnitude } else { magnitude }))
    }

    /// Parses a number that is not a short integer. Its first `len` bytes are its sign and digits.
    fn long_number(&mut self, mut len: usize, is_float: bool) -> Option<Token<'a>> {
        let rest = &self.text[self.at..];
        if is_float {
            len += rest[len..].iter().take_while(|byte| !matches!(byte, b',' | b'}' | b']')).count();
        }
        self.at += len;
        let text = std::str::from_utf8(&rest[..len]).ok().filter(|text| !text.is_empty())?;
        if is_float { text.parse().ok().map(Token::Float) } else { Some(Token::LongInt(text)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, JsonText};

    /// The tokens that correspond to the events of a text.
    fn expected(text: &JsonText) -> Vec<String> {
        let token = |event: Event<'_>| match event {
            Event::BeginObject => "{".into(),
            Event::BeginArray => "[".into(),
            Event::EndObject | Event::EndArray => "end".into(),
            Event::Name(name) => format!("name {}", name.to_cow()),
            Event::Str(string) => format!("string {}", string.to_cow()),
            Event::Int(digits) => format!("integer {digits}"),
            Event::Float(value) => format!("float {:x}", value.to_bits()),
            Event::Bool(value) => format!("{value}"),
            Event::Null => "null".into(),
        };
        text.events().map(token).collect()
    }

    fn scanned(text: &JsonText) -> Vec<String> {
        let string = |string: RawStr<'_>| match string.plain() {
            Some(plain) => String::from_utf8(plain.to_vec()).unwrap(),
            None => string.json_str().to_cow().into_owned(),
        };
        let mut tokens = Vec::new();
        for token in text.scan() {
            tokens.push(match token {
                Token::Begin { is_array: false } => "{".into(),
                Token::Begin { is_array: true } => "[".into(),
                Token::End => "end".into(),
                Token::Name(name) => format!("name {}", string(name)),
                Token::Str(text) => format!("string {}", string(text)),
                Token::Int(value) => format!("integer {value}"),
                Token::LongInt(digits) => format!("integer {digits}"),
                Token::Float(value) => format!("float {:x}", value.to_bits()),
                Token::Bool(value) => format!("{value}"),
                Token::Null => "null".into(),
            });
        }
        tokens
    }

    #[test]
    fn tokens_are_those_of_the_events() {
        let long = "9".repeat(700);
        for text in [
            r#"{"a":1,"b":[true,false,null,[],{}],"":"","é\n":"q\"\\u\u0001","c":{"d":[[1,-2],{"e":"f"}]}}"#,
            "[0,-1,255,-256,2147483647,-2147483648,999999999999999999,-999999999999999999,1000000000000000000]",
            "[9223372036854775807,-9223372036854775808,18446744073709551616]",
            "[0.0,-0.0,0.5,-1.25,3.14,100.0,0.000001,1e+21,1.5e-7,-1e300,123456789012.345,0.1,0.3]",
            "[999999999999999.0,99999999999999.9,0.00000123456789012345,9007199254740993.0,12345678901234567.0]",
            &format!("[{long},-{long}]"),
            "7",
            "-0.25",
            r#""x""#,
            "null",
        ] {
            let text = JsonText::parse(text.as_bytes()).unwrap();
            assert_eq!(scanned(&text), expected(&text), "{text}");
        }
    }

    #[test]
    fn doubles_are_those_of_the_library() {
        let mut random = fastrand::Rng::with_seed(20_251_122);
        for _ in 0..200_000 {
            let state = random.u64(..);
            let digits = state >> 8 >> (state % 56);
            let places = (state >> 3) as usize % 17 + 1;
            let text = format!("{}{digits:0>width$}", if state & 1 == 0 { "" } else { "-" }, width = places + 1);
            let text = format!("[{}.{}]", &text[..text.len() - places], &text[text.len() - places..]);
            let number: f64 = text[1..text.len() - 1].parse().unwrap();
            let mut scan = Scan::new(text.as_bytes());
            scan.next();
            let Some(Token::Float(found)) = scan.next() else { panic!("{text}") };
            assert_eq!(found.to_bits(), number.to_bits(), "{text}");
            assert_eq!(scan.next(), Some(Token::End), "{text}");
        }
    }
}
