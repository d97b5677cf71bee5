//! Values as bytes that compare as the values do, for the keys of indexes.
//!
//! ```text
//!   null     10
//!   false    20
//!   true     21
//!   number   30 …             -2^53 and below: as a positive one, every byte complemented
//!            31 8 bytes       between: the double, its sign bit flipped, all bits where it is negative
//!            32 n n n n …     2^53 and above: how many digits, then the digits in pairs, 1 + 0 to 99, then 00
//!   string   40 … 00          ICU's sort key, which has no zero byte
//!   array    50 … 00          the elements one after the other
//!   object   60 … 00          the members one after the other: the name as a string, then the value
//!   id       70 … 00          the text of an `_id`: 00 is written 01 01, and 01 is written 01 02
//! ```
//!
//! A number below 2^53 in size is a double or an integer that a double equals, and from there on every
//! double is an integer: so each has exactly one of the two forms, whichever way it was written.
//! Trailing pairs of zeros are left out.
//!
//! Every key says itself where it ends, so that keys can stand one behind the other, and none is a prefix of
//! another. No key begins with a byte below `10` or above `70`: `FF` behind a key is above every key that goes on there.
//!
//! A string cannot be read back from its sort key. Whoever needs the value keeps it beside the key.

use json::{Event, JsonRef};

use super::{PRIMARY, ROOT, number};

/// What stored keys depend on: this layout, and the data of the collation. Keys of another version are not to be
/// compared with those of this one. A test pins the order of all characters to it.
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
const ID: u8 = 0x70;

/// Appends the key of `value`. Does not recurse, so that a value may be as deep as it likes.
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

/// Appends what the key of every string begins with that begins with `prefix`, where no character that people see is
/// cut in two behind it.
///
/// These are the primary weights, which stand before all others. A vowel that is written before its consonant and
/// sorted behind it changes places with what follows: it is left out at the end. So is the one character that CLDR
/// joins to the first letter of each script.
pub(super) fn append_prefix(out: &mut Vec<u8>, prefix: &str) {
    out.push(STRING);
    let Ok(()) =
        PRIMARY.write_sort_key_to(prefix.trim_end_matches(|last| is_written_before(last) || last == '\u{fdd1}'), out);
}

/// Unicode's property Logical_Order_Exception.
fn is_written_before(letter: char) -> bool {
    matches!(letter, '\u{e40}'..='\u{e44}' | '\u{ec0}'..='\u{ec4}' | '\u{19b5}'..='\u{19b7}' | '\u{19ba}'
        | '\u{aab5}'..='\u{aab6}' | '\u{aab9}' | '\u{aabb}'..='\u{aabc}')
}

/// Appends the key of an id, which compares as its bytes do.
pub(super) fn append_id(out: &mut Vec<u8>, id: &str) {
    append_id_prefix(out, id);
    out.push(END);
}

/// Appends what the key of every id begins with that begins with `prefix`.
pub(super) fn append_id_prefix(out: &mut Vec<u8>, prefix: &str) {
    out.push(ID);
    for byte in prefix.bytes() {
        match byte {
            END => out.extend_from_slice(&[1, 1]),
            1 => out.extend_from_slice(&[1, 2]),
            byte => out.push(byte),
        }
    }
}

fn append_string(out: &mut Vec<u8>, text: &str) {
    out.push(STRING);
    // Writing to memory does not fail.
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
        // An integer, so that this is all of it.
        append_far(out, &format!("{value:.0}"));
    }
}

fn append_near(out: &mut Vec<u8>, value: f64) {
    // One zero, whatever its sign.
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    let ordered = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
    out.push(NEAR);
    out.extend_from_slice(&ordered.to_be_bytes());
}

fn append_far(out: &mut Vec<u8>, integer: &str) {
    let (negative, digits) = number::sign(integer);
    out.push(if negative { FAR_BELOW } else { FAR_ABOVE });
    let begin = out.len();
    // A document is far shorter than four bytes count.
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
