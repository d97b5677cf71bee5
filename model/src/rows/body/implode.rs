//! Builds text from one row for each leaf.
//!
//! The leaves come in the document's order: it is key order, or the metadata restore it. So one stack of open
//! containers suffices. Each leaf shares a prefix of its path with the leaf before it, closes the containers that are
//! not shared, and opens new ones.

use super::metadata::RevisionMetadata;
use super::order;
use super::stored::{CorruptDocument, MAX_RESERVE};
use crate::rows::bigint::append_decimal;
use crate::rows::tuple::{self, Element};
use json::{FloatText, append_escaped, append_u64};

const NOT_A_PATH: CorruptDocument = CorruptDocument { reason: "the key of a leaf cannot be read" };
const NOT_A_LEAF: CorruptDocument = CorruptDocument { reason: "the value of a leaf cannot be read" };
const NOT_A_TREE: CorruptDocument = CorruptDocument { reason: "its paths do not form a document" };
const PART_MISSING: CorruptDocument = CorruptDocument { reason: "a part of a leaf is missing" };
const LEAVES_MISSING: CorruptDocument =
    CorruptDocument { reason: "the number of its leaves is not the one that was written" };

/// A row: the path of its leaf, the number of the part in it, and the value.
#[derive(Clone, Copy)]
struct LeafRow<'a> {
    path: &'a [u8],
    part: Option<u16>,
    value: &'a [u8],
}

impl LeafRow<'_> {
    fn begins_leaf(&self) -> bool {
        self.part.is_none_or(|part| part == 0)
    }
}

/// Builds the text of an exploded body.
pub(super) fn implode<'a>(
    metadata: &RevisionMetadata<'_>,
    rows: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<Vec<u8>, CorruptDocument> {
    let mut text = Text::new(metadata.text_bytes());
    let rows = rows.map(|(suffix, value)| leaf_row(suffix, value));
    if metadata.payload().is_empty() {
        for row in rows {
            text.row(row?)?;
        }
    } else {
        let most = metadata.leaves().min(MAX_RESERVE / size_of::<LeafRow<'_>>() as u64);
        let mut by_key = Vec::with_capacity(most as usize);
        for row in rows {
            by_key.push(row?);
        }
        if by_key.iter().all(|row| row.part.is_none()) {
            for rank in order::decode(metadata.payload(), by_key.len()).ok_or(LEAVES_MISSING)? {
                text.row(by_key[rank as usize])?;
            }
        } else {
            let leaves: Vec<&[LeafRow<'_>]> = by_key.chunk_by(|_, next| !next.begins_leaf()).collect();
            for rank in order::decode(metadata.payload(), leaves.len()).ok_or(LEAVES_MISSING)? {
                for row in leaves[rank as usize] {
                    text.row(*row)?;
                }
            }
        }
    }
    if text.leaves != metadata.leaves() {
        return Err(LEAVES_MISSING);
    }
    text.finish()
}

/// Joins the rows of some members, in key order, into a document of these members.
pub(super) fn implode_members(rows: &[(&[u8], &[u8])]) -> Result<Vec<u8>, CorruptDocument> {
    let mut text = Text::new(0);
    for (suffix, value) in rows {
        text.row(leaf_row(suffix, value)?)?;
    }
    text.finish()
}

/// Joins the rows of a part, whose suffixes start after the part's path, into its text. Members get the order of the
/// keys, so this must be the document's order.
pub(super) fn implode_part(rows: &[(&[u8], &[u8])]) -> Result<Vec<u8>, CorruptDocument> {
    // The part is decoded as the only member of a document, with an empty name.
    let name = [tuple::STRING, 0];
    let suffixes: Vec<Vec<u8>> = rows.iter().map(|(suffix, _)| [&name[..], suffix].concat()).collect();
    let mut text = Text::new(0);
    for (suffix, (_, value)) in suffixes.iter().zip(rows) {
        text.row(leaf_row(suffix, value)?)?;
    }
    let text = text.finish()?;
    let value = text.strip_prefix(b"{\"\":").and_then(|rest| rest.strip_suffix(b"}"));
    value.map(<[u8]>::to_vec).ok_or(NOT_A_TREE)
}

/// Splits the number of the part, if there is one, from the end of a suffix.
fn leaf_row<'a>(suffix: &'a [u8], value: &'a [u8]) -> Result<LeafRow<'a>, CorruptDocument> {
    // Few leaves have parts. A part's number is a byte element of two bytes, each of which may be an escaped NUL.
    const LONGEST_NUMBER: usize = 6;
    let end = &suffix[suffix.len().saturating_sub(LONGEST_NUMBER)..];
    let mut rest = if end.contains(&tuple::BYTES) { suffix } else { &[] };
    while let Some(&code) = rest.first() {
        if code == tuple::BYTES {
            let path = &suffix[..suffix.len() - rest.len()];
            return match tuple::read(rest) {
                Some((Element::Bytes(number), [])) => {
                    let number = <[u8; 2]>::try_from(number.as_ref()).map_err(|_| NOT_A_PATH)?;
                    Ok(LeafRow { path, part: Some(u16::from_be_bytes(number)), value })
                }
                _ => Err(NOT_A_PATH),
            };
        }
        let length = tuple::element_len(rest).ok_or(NOT_A_PATH)?;
        rest = rest.get(length..).ok_or(NOT_A_PATH)?;
    }
    Ok(LeafRow { path: suffix, part: None, value })
}

/// An open container. The root is the first.
struct Open {
    is_array: bool,
    /// Number of its children, including the current one.
    count: u64,
    /// Position in the path where the current child's element ends.
    child_end: usize,
}

/// A leaf whose next parts are expected.
struct OpenLeaf {
    next_part: u32,
    is_string: bool,
}

/// The text written so far.
struct Text<'a> {
    out: Vec<u8>,
    open: Vec<Open>,
    /// The path of the last leaf.
    path: &'a [u8],
    parts: Option<OpenLeaf>,
    leaves: u64,
}

impl<'a> Text<'a> {
    fn new(text_bytes: u64) -> Text<'a> {
        let mut out = Vec::with_capacity(text_bytes.min(MAX_RESERVE) as usize);
        out.push(b'{');
        let mut open = Vec::with_capacity(8);
        open.push(Open { is_array: false, count: 0, child_end: 0 });
        Text { out, open, path: &[], parts: None, leaves: 0 }
    }

    fn row(&mut self, row: LeafRow<'a>) -> Result<(), CorruptDocument> {
        if !row.begins_leaf() {
            return self.next_part(row);
        }
        self.end_parts();
        self.descend(row.path)?;
        self.path = row.path;
        self.leaves += 1;
        let (element, rest) = tuple::read(row.value).ok_or(NOT_A_LEAF)?;
        if !rest.is_empty() {
            return Err(NOT_A_LEAF);
        }
        match row.part {
            None => self.leaf(element),
            Some(_) => {
                let is_string = matches!(element, Element::Str(_));
                if is_string {
                    self.out.push(b'"');
                }
                self.parts = Some(OpenLeaf { next_part: 1, is_string });
                self.part(element, is_string)
            }
        }
    }

    /// Closes the containers that `path` does not share with the last leaf, and opens its own.
    fn descend(&mut self, path: &[u8]) -> Result<(), CorruptDocument> {
        let mut at = 0;
        let mut shared = 0;
        for open in &self.open {
            let end = open.child_end;
            // The same element, unless here an escape follows the byte that ends the element there.
            let is_shared = end > 0 && path.get(at..end) == self.path.get(at..end);
            if !is_shared || path.get(end) == Some(&tuple::ESCAPE) {
                break;
            }
            at = end;
            shared += 1;
        }
        if shared == self.open.len() {
            // A leaf below a leaf, or a repeated leaf.
            return Err(NOT_A_TREE);
        }
        self.close_to(shared + 1);
        loop {
            let (element, rest) = path.get(at..).and_then(tuple::read).ok_or(NOT_A_TREE)?;
            at = path.len() - rest.len();
            self.child(&element, at)?;
            if rest.is_empty() {
                return Ok(());
            }
            let is_array = rest.first() != Some(&tuple::STRING);
            self.out.push(if is_array { b'[' } else { b'{' });
            self.open.push(Open { is_array, count: 0, child_end: 0 });
        }
    }

    /// Starts the next child of the innermost container.
    fn child(&mut self, element: &Element<'_>, end: usize) -> Result<(), CorruptDocument> {
        let open = self.open.last_mut().ok_or(NOT_A_TREE)?;
        if open.count > 0 {
            self.out.push(b',');
        }
        match element {
            Element::Integer(index) if open.is_array && index.as_u64() == Some(open.count) => {}
            Element::Str(name) if !open.is_array => {
                self.out.push(b'"');
                append_escaped(&mut self.out, name);
                self.out.extend_from_slice(b"\":");
            }
            _ => return Err(NOT_A_TREE),
        }
        open.count += 1;
        open.child_end = end;
        Ok(())
    }

    fn close_to(&mut self, depth: usize) {
        while self.open.len() > depth {
            if let Some(open) = self.open.pop() {
                self.out.push(if open.is_array { b']' } else { b'}' });
            }
        }
    }

    fn leaf(&mut self, element: Element<'_>) -> Result<(), CorruptDocument> {
        match element {
            Element::Null => self.out.extend_from_slice(b"null"),
            Element::Bool(true) => self.out.extend_from_slice(b"true"),
            Element::Bool(false) => self.out.extend_from_slice(b"false"),
            Element::Double(value) if value.is_finite() => {
                self.out.extend_from_slice(FloatText::new().write(value).as_bytes());
            }
            Element::Double(_) => return Err(NOT_A_LEAF),
            Element::Integer(value) => {
                if value.is_negative() {
                    self.out.push(b'-');
                }
                match value.magnitude_u64() {
                    Some(magnitude) => append_u64(&mut self.out, magnitude),
                    None => append_decimal(&mut self.out, value.magnitude()),
                }
            }
            Element::Str(text) => {
                self.out.push(b'"');
                append_escaped(&mut self.out, &text);
                self.out.push(b'"');
            }
            Element::Bytes(text) => match text.as_ref() {
                b"{}" | b"[]" => self.out.extend_from_slice(&text),
                _ => return self.part(Element::Bytes(text), false),
            },
        }
        Ok(())
    }

    /// Continues the leaf whose parts are expected.
    fn next_part(&mut self, row: LeafRow<'a>) -> Result<(), CorruptDocument> {
        let leaf = self.parts.as_mut().ok_or(PART_MISSING)?;
        if row.part.map(u32::from) != Some(leaf.next_part) || row.path != self.path {
            return Err(PART_MISSING);
        }
        leaf.next_part += 1;
        let is_string = leaf.is_string;
        match tuple::read(row.value) {
            Some((element, [])) => self.part(element, is_string),
            _ => Err(NOT_A_LEAF),
        }
    }

    /// Writes a part of a string, or of an integer's digits.
    fn part(&mut self, element: Element<'_>, is_string: bool) -> Result<(), CorruptDocument> {
        match element {
            Element::Str(text) if is_string => append_escaped(&mut self.out, &text),
            Element::Bytes(digits) if !is_string => {
                if !digits.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-') {
                    return Err(NOT_A_LEAF);
                }
                self.out.extend_from_slice(&digits);
            }
            _ => return Err(NOT_A_LEAF),
        }
        Ok(())
    }

    fn end_parts(&mut self) {
        if let Some(OpenLeaf { is_string: true, .. }) = self.parts.take() {
            self.out.push(b'"');
        }
    }

    fn finish(mut self) -> Result<Vec<u8>, CorruptDocument> {
        self.end_parts();
        self.close_to(0);
        Ok(self.out)
    }
}
