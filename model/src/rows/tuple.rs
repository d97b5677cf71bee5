//! Writes and reads tuple elements in place, with the same bytes as the `foundationdb-tuple` crate.
//!
//! Source: `design/tuple.md` of FoundationDB.
//!
//! The crate packs a tuple that exists as a value. A document's rows are thousands of paths that differ in their last
//! element, and have longer integers than the crate supports. So elements are appended one at a time here, and read
//! without allocating. A test compares the two.

use std::borrow::Cow;

const NULL: u8 = 0x00;
pub(crate) const BYTES: u8 = 0x01;
pub(crate) const STRING: u8 = 0x02;
const NEGATIVE_BIG: u8 = 0x0b;
pub(crate) const ZERO: u8 = 0x14;
const POSITIVE_BIG: u8 = 0x1d;
const DOUBLE: u8 = 0x21;
pub(crate) const FALSE: u8 = 0x26;
pub(crate) const TRUE: u8 = 0x27;
/// After a NUL: the NUL does not end the run.
pub(crate) const ESCAPE: u8 = 0xff;

/// Maximum length of an integer element's magnitude, in bytes.
pub(crate) const MAX_INT_BYTES: usize = 255;

pub(crate) fn append_null(out: &mut Vec<u8>) {
    out.push(NULL);
}

pub(crate) fn append_bool(out: &mut Vec<u8>, value: bool) {
    out.push(if value { TRUE } else { FALSE });
}

/// Appends a double with all its bits, the sign of zero included.
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

pub(crate) fn append_i64(out: &mut Vec<u8>, value: i64) {
    let magnitude = value.unsigned_abs();
    append_integer(out, value < 0, &magnitude.to_le_bytes()[..8 - magnitude.leading_zeros() as usize / 8]);
}

/// Length of an unsigned integer's element.
pub(crate) fn u64_len(value: u64) -> usize {
    9 - value.leading_zeros() as usize / 8
}

/// Appends an integer from its magnitude: least significant byte first, without leading zeros, at most
/// [`MAX_INT_BYTES`] bytes.
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

/// Starts a string whose contents are appended in several [runs](append_run), until [`end_run`].
pub(crate) fn begin_str(out: &mut Vec<u8>) {
    out.push(STRING);
}

pub(crate) fn append_run(out: &mut Vec<u8>, run: &[u8]) {
    let mut rest = run;
    while let Some(at) = find_nul(rest) {
        out.extend_from_slice(&rest[..=at]);
        out.push(ESCAPE);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Position of the first NUL. Most runs are names and short strings, for which a vectorised search takes long to
/// start: their first words are checked one by one.
pub(crate) fn find_nul(bytes: &[u8]) -> Option<usize> {
    const WORDS: usize = 5;
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let (words, rest) = bytes.as_chunks::<8>();
    for (number, word) in words.iter().take(WORDS).enumerate() {
        let word = u64::from_le_bytes(*word);
        // The lowest flag is exact: a borrow can only falsify the flags above a true one.
        let nuls = word.wrapping_sub(ONES) & !word & HIGH;
        if nuls != 0 {
            return Some(number * 8 + nuls.trailing_zeros() as usize / 8);
        }
    }
    if words.len() > WORDS {
        return memchr::memchr(NULL, &bytes[WORDS * 8..]).map(|at| at + WORDS * 8);
    }
    rest.iter().position(|&byte| byte == NULL).map(|at| words.len() * 8 + at)
}

pub(crate) fn end_run(out: &mut Vec<u8>) {
    out.push(NULL);
}

/// Length of a string or byte element with these contents.
pub(crate) fn encoded_len(contents: &[u8]) -> usize {
    contents.len() + memchr::memchr_iter(NULL, contents).count() + 2
}

/// An element that was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Element<'a> {
    Null,
    Bool(bool),
    Double(f64),
    Integer(Integer<'a>),
    /// UTF-8, unchecked.
    Str(Cow<'a, [u8]>),
    Bytes(Cow<'a, [u8]>),
}

/// An integer of up to [`MAX_INT_BYTES`] bytes, in its stored form.
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

/// Reads the element at the front of `input`. Returns it and the rest. `None` if it is malformed, or of a kind
/// that documents do not have.
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
            return Some((Element::Str(contents), rest));
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

/// Length of the element at the front of `input`, found without decoding it.
pub(crate) fn element_len(input: &[u8]) -> Option<usize> {
    match *input.first()? {
        BYTES | STRING => run_end(input.get(1..)?).map(|end| end + 2),
        _ => read(input).map(|(_, rest)| input.len() - rest.len()),
    }
}

/// Position of the NUL that ends a run.
fn run_end(input: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + find_nul(&input[from..])?;
        if input.get(at + 1) != Some(&ESCAPE) {
            return Some(at);
        }
        from = at + 2;
    }
}

/// Reads the contents of a string or byte element, after its type code. Returns them and the rest.
pub(crate) fn read_run(input: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let end = find_nul(input)?;
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

#[cfg(test)]
mod tests {
    use foundationdb_tuple::{Bytes, Element as Theirs, pack, unpack};

    use super::*;

    fn written(append: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        append(&mut out);
        out
    }

    /// The whole of `encoded` as one element.
    fn only(encoded: &[u8]) -> Element<'_> {
        assert_eq!(element_len(encoded), Some(encoded.len()), "{encoded:?}");
        let (element, rest) = read(encoded).unwrap();
        assert!(rest.is_empty());
        element
    }

    #[test]
    fn elements_are_those_of_the_tuple_crate() {
        let mut random = fastrand::Rng::with_seed(20_251_121);
        let edges = [0, 1, 255, 256, 65_535, 65_536, 1 << 32, i64::MAX as u64, 1 << 63, u64::MAX];
        for round in 0..20_000 {
            let value = edges.get(round).copied().unwrap_or_else(|| random.u64(..) >> random.u32(..64));
            assert_eq!(written(|out| append_u64(out, value)), pack(&value));
            assert_eq!(u64_len(value), pack(&value).len());
            assert_eq!(only(&pack(&value)), only(&written(|out| append_u64(out, value))));

            let length = 8 - value.leading_zeros() as usize / 8;
            let negative = written(|out| append_integer(out, value > 0, &value.to_le_bytes()[..length]));
            assert_eq!(negative, pack(&-i128::from(value)));
            let Element::Integer(read) = only(&negative) else { panic!("{negative:?}") };
            assert_eq!((read.is_negative(), read.magnitude_u64()), (value > 0, Some(value)));

            assert_eq!(written(|out| append_i64(out, value as i64)), pack(&(value as i64)));

            let bits = f64::from_bits(random.u64(..));
            let double = written(|out| append_double(out, bits));
            assert_eq!(double, pack(&bits));
            assert!(matches!(only(&double), Element::Double(read) if read.to_bits() == bits.to_bits()));

            let length = random.usize(..12);
            let bytes: Vec<u8> = (0..length).map(|_| [0, 0xff, 1, b'a'][random.usize(..4)]).collect();
            let encoded = written(|out| append_bytes(out, &bytes));
            assert_eq!(encoded, pack(&Bytes::from(bytes.as_slice())));
            assert_eq!(encoded.len(), encoded_len(&bytes));
            assert_eq!(only(&encoded), Element::Bytes(bytes.into()));

            let text: String = (0..length).map(|_| ['\0', 'é', '\u{1}', '😀'][random.usize(..4)]).collect();
            let encoded = written(|out| append_str(out, &text));
            assert_eq!(encoded, pack(&text));
            assert_eq!(only(&encoded), Element::Str(text.into_bytes().into()));
        }
        assert_eq!(written(append_null), pack(&None::<i64>));
        assert_eq!(written(|out| append_bool(out, true)), pack(&true));
        assert_eq!(written(|out| append_bool(out, false)), pack(&false));
    }

    #[test]
    fn the_first_nul_is_found_wherever_it_stands() {
        for length in 0..80 {
            let mut bytes = vec![0x80; length];
            assert_eq!(find_nul(&bytes), None);
            for at in (0..length).rev() {
                bytes[at] = NULL;
                assert_eq!(find_nul(&bytes), Some(at), "of {length}");
                // A borrow from the NUL below could flag this byte.
                if let Some(next) = bytes.get_mut(at + 1) {
                    *next = 1;
                }
            }
        }
    }

    #[test]
    fn long_integers_have_their_length() {
        for negative in [false, true] {
            for length in [9, 16, 254, 255] {
                let magnitude: Vec<u8> = (0..length).map(|byte| byte as u8 ^ 0x5a | 1).collect();
                let encoded = written(|out| append_integer(out, negative, &magnitude));
                if length <= 16 {
                    // The limit of the crate without a library for long integers.
                    let value = magnitude.iter().rev().fold(0u128, |value, &byte| value << 8 | u128::from(byte));
                    let value = value as i128;
                    let (value, fits) = if negative { (value.wrapping_neg(), value > 0) } else { (value, value >= 0) };
                    if fits {
                        assert_eq!(encoded, pack(&value));
                    }
                }
                let Element::Integer(read) = only(&encoded) else { panic!("{encoded:?}") };
                assert_eq!(read.is_negative(), negative);
                assert!(read.magnitude().eq(magnitude.iter().rev().copied()));
                assert_eq!((read.magnitude_u64(), read.as_u64()), (None, None));
            }
        }
    }

    #[test]
    fn a_row_of_elements_is_a_tuple_of_the_crate() {
        let mut path = Vec::new();
        append_str(&mut path, "a\0b");
        append_u64(&mut path, 7);
        append_str(&mut path, "");
        append_bytes(&mut path, &[0, 1]);
        let theirs: Vec<Theirs<'_>> = unpack(&path).unwrap();
        assert_eq!(
            theirs,
            [
                Theirs::String("a\0b".into()),
                Theirs::Int(7),
                Theirs::String("".into()),
                Theirs::Bytes(Bytes::from(&[0u8, 1][..])),
            ]
        );
    }

    #[test]
    fn what_is_cut_short_is_no_element() {
        for encoded in [
            &[][..],
            &[STRING],
            &[STRING, b'a'],
            &[STRING, 0, ESCAPE],
            &[BYTES, 1, 2],
            &[DOUBLE, 1, 2, 3, 4, 5, 6, 7],
            &[ZERO + 3, 1, 2],
            &[ZERO - 1],
            &[POSITIVE_BIG],
            &[POSITIVE_BIG, 4, 1],
            &[NEGATIVE_BIG],
            &[NEGATIVE_BIG, 0, 1],
            &[0x05],
            &[0x33],
            &[0xff],
        ] {
            assert_eq!(read(encoded), None, "{encoded:?}");
        }
    }
}
