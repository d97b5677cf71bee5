//! JSON Merge Patch (RFC 7396).

use std::collections::HashMap;

use super::limits::{CHILD_BYTES, MAX_STEPS, NEW_MEMBER_BYTES, Result, Work, malformed};
use super::node::Node;
use crate::{JsonRef, JsonText};

/// RFC 7396, `MergePatch`. `patch` is a part of `whole`.
pub(super) fn apply(
    target: &mut Node,
    whole: &JsonText,
    patch: JsonRef<'_>,
    level: usize,
    work: &mut Work,
) -> Result<()> {
    if !patch.is_object() {
        *target = Node::Text(whole.slice_ref(patch));
        return Ok(());
    }
    if level == MAX_STEPS {
        return malformed(format!("a merge patch has up to {MAX_STEPS} levels"));
    }
    target.open(work)?;
    if !matches!(target, Node::Object(_)) {
        *target = Node::Object(Vec::new());
    }
    let Node::Object(members) = target else { return Ok(()) };
    work.spend(members.len() * CHILD_BYTES)?;
    let mut places: HashMap<String, usize> =
        members.iter().enumerate().map(|(at, (name, _))| (name.clone(), at)).collect();
    let mut gone = Vec::new();
    for (name, value) in patch.members() {
        let place = places.get(name.as_ref()).copied();
        match (place, value.is_null()) {
            (None, true) => {}
            (Some(place), true) => gone.push(place),
            (Some(place), false) => apply(&mut members[place].1, whole, value, level + 1, work)?,
            (None, false) => {
                work.spend(NEW_MEMBER_BYTES)?;
                let mut new = Node::Object(Vec::new());
                apply(&mut new, whole, value, level + 1, work)?;
                places.insert(name.as_ref().to_owned(), members.len());
                members.push((name.into_owned(), new));
            }
        }
    }
    if !gone.is_empty() {
        gone.sort_unstable();
        let mut at = 0;
        members.retain(|_| {
            at += 1;
            gone.binary_search(&(at - 1)).is_err()
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Patch, PatchError};
    use super::*;

    fn json(text: &str) -> JsonText {
        JsonText::parse(text.as_bytes()).unwrap()
    }

    fn merged(value: &str, patch: &str) -> String {
        Patch::merge(json(patch)).apply(&json(value)).unwrap().as_str().to_owned()
    }

    #[test]
    fn merge_patches_of_the_rfc() {
        // RFC 7396, appendix A.
        for (value, patch, expected) in [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, "{}"),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            (r#"["a","b"]"#, r#"["c","d"]"#, r#"["c","d"]"#),
            (r#"{"a":"b"}"#, r#"["c"]"#, r#"["c"]"#),
            (r#"{"a":"foo"}"#, "null", "null"),
            (r#"{"a":"foo"}"#, r#""bar""#, r#""bar""#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
            (r#"[1,2]"#, r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
            ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
            // Members keep their places, and numbers their digits.
            (
                r#"{"z":1,"a":12345678901234567890123,"m":{"x":1.50}}"#,
                r#"{"m":{"y":2},"z":0}"#,
                r#"{"z":0,"a":12345678901234567890123,"m":{"x":1.5,"y":2}}"#,
            ),
            (r#"{"a":1,"b":2,"c":3}"#, r#"{"c":null,"a":null,"d":4}"#, r#"{"b":2,"d":4}"#),
        ] {
            assert_eq!(merged(value, patch), expected, "{value} and {patch}");
        }
        let deep = format!("{}1{}", r#"{"a":"#.repeat(1_001), "}".repeat(1_001));
        let refused = Patch::merge(json(&deep)).apply(&json("{}"));
        assert!(matches!(refused, Err(PatchError::Malformed(_))));
    }
}
