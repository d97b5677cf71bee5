//! Encodes values as bytes that compare like the values, for keys of indexes.
//!
//! ```text
//!   null     10
//!   false    20
//!   true     21
//!   number   30 …             -2^53 and below: like a positive one, with every byte complemented
//!            31 8 bytes       between: the double with its sign bit flipped; if negative, all bits
//!            32 n n n n …     2^53 and above: number of digits, the digits in pairs as 1 + 0 to 99, then 00
//!   string   40 … 00          ICU's sort key, which has no zero byte
//!   array    50 … 00          the elements one after the other
//!   object   60 … 00          the members one after the other: the name as a string, then the value
//! ```
//!
//! A number with a magnitude below 2^53 is a double, or an integer that equals a double. From there on, every double is
//! an integer. So each number has exactly one of the two forms, however it was written. Trailing pairs of zeros are
//! left out.
//!
//! Every key marks its own end. So keys can be concatenated, and no key is a prefix of another. Keys begin with bytes
//! from `10` to `60`, so `FF` after a key is above every key that continues there.
//!
//! A string cannot be decoded from its sort key. So values that are needed are stored beside the keys.

use json::{Event, JsonRef};

use super::{PRIMARY, ROOT, number};

/// The version of stored keys: of this layout, and of the collation's data. Keys of different versions must not be
/// compared. A test pins the order of all characters to the version.
pub const COLLATION_VERSION: &str = "1-icu4x-2.4";

const END: u8 = 0x00;
const NULL: u8 = 0x10;
const FALSE: u8 = 0x20;
const TRUE: u8 = 0x21;
const FAR_BELOW: u8 = 0x30;
const NEAR: u8 = 0x31;
const FAR_ABOVE: u8 = 0x32;
const STRING: u8 = 0x40;
const ARRAY: u8 = 0x50;
const OBJECT: u8 = 0x60;

/// Appends the key of `value`. Does not recurse, so values may have any depth.
pub fn append_key(out: &mut Vec<u8>, value: JsonRef<'_>) {
    for event in value.events() {
        match event {
            Event::BeginObject => out.push(OBJECT),
            Event::BeginArray => out.push(ARRAY),
            Event::EndObject | Event::EndArray => out.push(END),
            Event::Name(text) | Event::Str(text) => append_string(out, &text.to_cow()),
            Event::Int(text) => append_integer(out, text),
            Event::Float(value) => append_float(out, value),
            Event::Bool(value) => out.push(if value { TRUE } else { FALSE }),
            Event::Null => out.push(NULL),
        }
    }
}

/// Appends bytes that compare as [`compare_terms`](super::compare_terms) compares the values, for views in CouchDB's
/// raw collation. These keys end by themselves too, and have the same bounds:
///
/// ```text
///   number   10, 11, 12 and the rest of the key above      object   30 … 00
///   false    20                                            array    40 … 00
///   null     21                                            string   50 … 00, its bytes 00 and 01 as 01 01 and 01 02
///   true     22
/// ```
pub fn append_term_key(out: &mut Vec<u8>, value: JsonRef<'_>) {
    for event in value.events() {
        let (begin, is_number) = (out.len(), matches!(event, Event::Int(_) | Event::Float(_)));
        match event {
            Event::BeginObject => out.push(0x30),
            Event::BeginArray => out.push(0x40),
            Event::EndObject | Event::EndArray => out.push(END),
            Event::Name(text) | Event::Str(text) => {
                out.push(0x50);
                for byte in text.to_cow().bytes() {
                    match byte {
                        0 | 1 => out.extend_from_slice(&[1, byte + 1]),
                        other => out.push(other),
                    }
                }
                out.push(END);
            }
            Event::Int(text) => append_integer(out, text),
            Event::Float(value) => append_float(out, value),
            Event::Bool(value) => out.push(if value { 0x22 } else { 0x20 }),
            Event::Null => out.push(0x21),
        }
        if is_number {
            out[begin] -= FAR_BELOW - 0x10;
        }
    }
}

/// Appends the common prefix of the keys of all strings that begin with `prefix`, if a grapheme ends there.
///
/// It consists of the primary weights, which come first in a sort key. Some vowels are written before their consonant
/// and sorted after it, so they change places with the next letter. At the end of the prefix they are left out. So is
/// U+FDD1, which CLDR joins to the first letter of each script.
pub(crate) fn append_prefix(out: &mut Vec<u8>, prefix: &str) {
    out.push(STRING);
    let Ok(()) =
        PRIMARY.write_sort_key_to(prefix.trim_end_matches(|last| is_written_before(last) || last == '\u{fdd1}'), out);
}

/// Unicode's property `Logical_Order_Exception`.
fn is_written_before(letter: char) -> bool {
    matches!(letter, '\u{e40}'..='\u{e44}' | '\u{ec0}'..='\u{ec4}' | '\u{19b5}'..='\u{19b7}' | '\u{19ba}'
        | '\u{aab5}'..='\u{aab6}' | '\u{aab9}' | '\u{aabb}'..='\u{aabc}')
}

fn append_string(out: &mut Vec<u8>, text: &str) {
    out.push(STRING);
    // Writing to memory cannot fail.
    let Ok(()) = ROOT.write_sort_key_to(text, out);
    out.push(END);
}

fn append_integer(out: &mut Vec<u8>, text: &str) {
    match text.parse::<i64>() {
        Ok(small) if small.unsigned_abs() < number::EXACT as u64 => append_near(out, small as f64),
        _ => append_far(out, text),
    }
}

fn append_float(out: &mut Vec<u8>, value: f64) {
    if value.abs() < number::EXACT {
        append_near(out, value);
    } else {
        // Doubles of this size are integers, so this writes the whole value.
        append_far(out, &format!("{value:.0}"));
    }
}

fn append_near(out: &mut Vec<u8>, value: f64) {
    // Both zeros have the same key.
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    let ordered = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
    out.push(NEAR);
    out.extend_from_slice(&ordered.to_be_bytes());
}

fn append_far(out: &mut Vec<u8>, integer: &str) {
    let (negative, digits) = number::sign(integer);
    out.push(if negative { FAR_BELOW } else { FAR_ABOVE });
    let begin = out.len();
    // The length of a document fits easily in four bytes.
    out.extend_from_slice(&(digits.len() as u32).to_be_bytes());
    for pair in digits.trim_end_matches('0').as_bytes().chunks(2) {
        let tens = pair[0] - b'0';
        let ones = pair.get(1).map_or(0, |digit| digit - b'0');
        out.push(1 + 10 * tens + ones);
    }
    out.push(END);
    if negative {
        out[begin..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}
