//! Separates members from a top-level object without parsing the rest again.

use std::borrow::Cow;

use super::JsonText;
use super::view::JsonRef;

/// An object split in two.
#[derive(Clone, Debug)]
pub struct SplitObject<'a> {
    /// The separated members, in order: names and values.
    pub special: Vec<(Cow<'a, str>, JsonRef<'a>)>,
    /// The object without these members.
    pub rest: JsonText,
}

impl JsonText {
    /// Splits the top-level object into the members whose names `is_special` accepts, in order, and the object without
    /// them. `None` if the value is not an object.
    ///
    /// If there are no special members, the rest shares this buffer.
    ///
    /// ```
    /// use json::JsonText;
    ///
    /// let document = JsonText::parse(br#"{"_id": "x", "a": 1, "_deleted": true}"#)?;
    /// let split = document.split_top(|name| name.starts_with('_')).expect("an object");
    /// assert_eq!(split.rest.as_str(), r#"{"a":1}"#);
    /// assert_eq!(split.special[1].0, "_deleted");
    /// # Ok::<(), json::JsonError>(())
    /// ```
    pub fn split_top(&self, mut is_special: impl FnMut(&str) -> bool) -> Option<SplitObject<'_>> {
        let root = self.root();
        if !root.is_object() {
            return None;
        }
        let text = root.text();
        let mut special = Vec::new();
        let mut kept: Vec<u8> = Vec::new();
        // Beginning of the current run of members to keep. The run is copied when a special member ends it.
        let mut run = None;
        let mut members = root.members();
        while let Some(member) = members.next_raw() {
            let name = member.name.to_cow();
            if !is_special(&name) {
                run.get_or_insert((member.start, member.end)).1 = member.end;
                continue;
            }
            if let Some((start, end)) = run.take() {
                append_run(&mut kept, &text[start..end], text.len());
            }
            special.push((name, member.value));
        }
        if special.is_empty() {
            return Some(SplitObject { special, rest: self.clone() });
        }
        if let Some((start, end)) = run {
            append_run(&mut kept, &text[start..end], text.len());
        }
        let rest = if kept.is_empty() {
            JsonText::empty_object()
        } else {
            kept.push(b'}');
            JsonText(kept.into())
        };
        Some(SplitObject { special, rest })
    }
}

/// Appends a run of members to an object that is being written.
fn append_run(object: &mut Vec<u8>, members: &str, capacity: usize) {
    if object.is_empty() {
        object.reserve(capacity);
        object.push(b'{');
    } else {
        object.push(b',');
    }
    object.extend_from_slice(members.as_bytes());
}
