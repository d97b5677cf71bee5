//! Tuple elements written and read in place, byte for byte as the `foundationdb-tuple` crate does.
//!
//! Source: `design/tuple.md` of FoundationDB.
//!
//! The crate packs a tuple that exists as a value; a document's rows are thousands of paths that
//! differ in their last element, and integers longer than the crate's own, so elements are appended
//! one at a time here and read without allocating. A test holds the two together.

use std::borrow::Cow;

const NULL: u8 = 0x00;
pub(crate) const BYTES: u8 = 0x01;
pub(crate) const STRING: u8 = 0x02;
const NEGATIVE_BIG: u8 = 0x0b;
const ZERO: u8 = 0x14;
const POSITIVE_BIG: u8 = 0x1d;
const DOUBLE: u8 = 0x21;
const FALSE: u8 = 0x26;
const TRUE: u8 = 0x27;
const ESCAPE: u8 = 0xff;

/// The longest magnitude that an integer element can have, in bytes.
pub(crate) const MAX_INT_BYTES: usize = 255;

pub(crate) fn append_null(out: &mut Vec<u8>) {
    out.push(NULL);
}

pub(crate) fn append_bool(out: &mut Vec<u8>, value: bool) {
    out.push(if value { TRUE } else { FALSE });
}

/// Appends a double. Every bit survives, the sign of zero included.
pub(crate) fn append_double(out: &mut Vec<u8>, value: f64) {
    let bits = value.to_bits();
    let sortable = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
    out.push(DOUBLE);
    out.extend_from_slice(&sortable.to_be_bytes());
}

pub(crate) fn append_u64(out: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    let leading = value.leading_zeros() as usize / 8;
    out.push(ZERO + (8 - leading) as u8);
    out.extend_from_slice(&bytes[leading..]);
}

/// Appends an integer by its magnitude, least significant byte first and without leading zeros, at
/// most [`MAX_INT_BYTES`] of them.
pub(crate) fn append_integer(out: &mut Vec<u8>, negative: bool, magnitude: &[u8]) {
    debug_assert!(magnitude.len() <= MAX_INT_BYTES && magnitude.last() != Some(&0));
    let length = magnitude.len() as u8;
    match (negative, length) {
        (false, ..=8) => out.push(ZERO + length),
        (true, ..=8) => out.push(ZERO - length),
        (false, _) => out.extend_from_slice(&[POSITIVE_BIG, length]),
        (true, _) => out.extend_from_slice(&[NEGATIVE_BIG, !length]),
    }
    let flip = if negative { 0xff } else { 0 };
    out.extend(magnitude.iter().rev().map(|byte| byte ^ flip));
}

pub(crate) fn append_str(out: &mut Vec<u8>, value: &str) {
    begin_str(out);
    append_run(out, value.as_bytes());
    end_run(out);
}

pub(crate) fn append_bytes(out: &mut Vec<u8>, value: &[u8]) {
    out.push(BYTES);
    append_run(out, value);
    end_run(out);
}

/// Begins a string whose contents come in several [runs](append_run), until [`end_run`].
pub(crate) fn begin_str(out: &mut Vec<u8>) {
    out.push(STRING);
}

pub(crate) fn append_run(out: &mut Vec<u8>, run: &[u8]) {
    let mut from = 0;
    for at in memchr::memchr_iter(NULL, run) {
        out.extend_from_slice(&run[from..=at]);
        out.push(ESCAPE);
        from = at + 1;
    }
    out.extend_from_slice(&run[from..]);
}

pub(crate) fn end_run(out: &mut Vec<u8>) {
    out.push(NULL);
}

/// The length of a string or byte element that holds `contents`.
pub(crate) fn encoded_len(contents: &[u8]) -> usize {
    contents.len() + memchr::memchr_iter(NULL, contents).count() + 2
}

/// One element as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Element<'a> {
    Null,
    Bool(bool),
    Double(f64),
    Integer(Integer<'a>),
    Str(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
}

/// An integer of up to [`MAX_INT_BYTES`] bytes as it stands in its element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Integer<'a> {
    negative: bool,
    /// Most significant first, complemented if negative.
    stored: &'a [u8],
}

impl Integer<'_> {
    pub(crate) fn is_negative(&self) -> bool {
        self.negative
    }

    /// The magnitude, most significant byte first.
    pub(crate) fn magnitude(&self) -> impl Iterator<Item = u8> {
        let flip = if self.negative { 0xff } else { 0 };
        self.stored.iter().map(move |byte| byte ^ flip)
    }

    /// The magnitude, if it fits.
    pub(crate) fn magnitude_u64(&self) -> Option<u64> {
        (self.stored.len() <= 8).then(|| self.magnitude().fold(0, |value, byte| value << 8 | u64::from(byte)))
    }

    /// The value, if it is not negative and fits.
    pub(crate) fn as_u64(&self) -> Option<u64> {
        self.magnitude_u64().filter(|_| !self.negative)
    }
}

/// Reads the element at the front of `input`: it and what follows it. `None` if that is no element
/// of the kinds that documents are made of.
pub(crate) fn read(input: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let (&code, rest) = input.split_first()?;
    let element = match code {
        NULL => Element::Null,
        FALSE => Element::Bool(false),
        TRUE => Element::Bool(true),
        BYTES => {
            let (contents, rest) = read_run(rest)?;
            return Some((Element::Bytes(contents), rest));
        }
        STRING => {
            let (contents, rest) = read_run(rest)?;
            let text = match contents {
                Cow::Borrowed(bytes) => Cow::Borrowed(std::str::from_utf8(bytes).ok()?),
                Cow::Owned(bytes) => Cow::Owned(String::from_utf8(bytes).ok()?),
            };
            return Some((Element::Str(text), rest));
        }
        DOUBLE => {
            let (stored, rest) = rest.split_first_chunk::<8>()?;
            let sortable = u64::from_be_bytes(*stored);
            let bits = if sortable >> 63 == 1 { sortable & !(1 << 63) } else { !sortable };
            return Some((Element::Double(f64::from_bits(bits)), rest));
        }
        _ => {
            let (negative, length, rest) = match code {
                POSITIVE_BIG => (false, usize::from(*rest.first()?), rest.get(1..)?),
                NEGATIVE_BIG => (true, usize::from(!*rest.first()?), rest.get(1..)?),
                ZERO..POSITIVE_BIG => (false, usize::from(code - ZERO), rest),
                code if code > NEGATIVE_BIG && code < ZERO => (true, usize::from(ZERO - code), rest),
                _ => return None,
            };
            let (stored, rest) = rest.split_at_checked(length)?;
            return Some((Element::Integer(Integer { negative, stored }), rest));
        }
    };
    Some((element, rest))
}

/// Where the element at the front of `input` ends, without reading what it holds.
pub(crate) fn element_len(input: &[u8]) -> Option<usize> {
    match *input.first()? {
        BYTES | STRING => run_end(input.get(1..)?).map(|end| end + 2),
        _ => read(input).map(|(_, rest)| input.len() - rest.len()),
    }
}

/// Where the NUL stands that ends a run.
fn run_end(input: &[u8]) -> Option<usize> {
    memchr::memchr_iter(NULL, input).find(|&at| input.get(at + 1) != Some(&ESCAPE))
}

fn read_run(input: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let end = memchr::memchr(NULL, input)?;
    if input.get(end + 1) != Some(&ESCAPE) {
        return Some((Cow::Borrowed(&input[..end]), &input[end + 1..]));
    }
    let mut contents = Vec::new();
    let mut from = 0;
    for at in memchr::memchr_iter(NULL, input) {
        if input.get(at + 1) == Some(&ESCAPE) {
            contents.extend_from_slice(&input[from..=at]);
            from = at + 2;
        } else {
            contents.extend_from_slice(&input[from..at]);
            return Some((Cow::Owned(contents), &input[at + 1..]));
        }
    }
    None
}
