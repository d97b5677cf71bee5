//! JSON Patch (RFC 6902).

use std::collections::HashMap;

use super::limits::{MAX_ALL_STEPS, MAX_STEPS, Result, Work, failed, malformed};
use super::node::{Node, Path};
use crate::{JsonKind, JsonRef, JsonText};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    what: What,
    path: Path,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Add(JsonText),
    Remove,
    Replace(JsonText),
    Move(Path),
    Copy(Path),
    Test(JsonText),
}

impl Operation {
    /// Reads an operation, which is a part of `patch`.
    fn read(patch: &JsonText, operation: JsonRef<'_>) -> Result<Operation> {
        let (mut name, mut path, mut from, mut value) = (None, None, None, None);
        for (member, found) in operation.members() {
            match member.as_ref() {
                "op" => name = found.as_str(),
                "path" => path = Some(found),
                "from" => from = Some(found),
                "value" => value = Some(found),
                _ => {}
            }
        }
        let value = || match value {
            Some(value) => Ok(patch.slice_ref(value)),
            None => malformed("an operation without a value"),
        };
        let path = Path::read(path)?;
        let what = match name.as_deref() {
            Some("add") => What::Add(value()?),
            Some("remove") => What::Remove,
            Some("replace") => What::Replace(value()?),
            Some("move") => What::Move(Path::read(from)?),
            Some("copy") => What::Copy(Path::read(from)?),
            Some("test") => What::Test(value()?),
            Some(other) => return malformed(format!("there is no operation {other:?}")),
            None => return malformed("an operation without an op"),
        };
        if let What::Move(from) = &what
            && path.0.len() > from.0.len()
            && path.0.starts_with(&from.0)
        {
            return malformed(format!("{from} cannot be moved into itself"));
        }
        Ok(Operation { what, path })
    }

    /// Number of steps in its paths.
    fn steps(&self) -> usize {
        let from = match &self.what {
            What::Move(from) | What::Copy(from) => from.0.len(),
            What::Add(_) | What::Remove | What::Replace(_) | What::Test(_) => 0,
        };
        self.path.0.len() + from
    }

    /// Changes the value at `root`.
    pub(super) fn apply(&self, root: &mut Node, work: &mut Work) -> Result<()> {
        let Operation { what, path } = self;
        match what {
            What::Add(value) => root.add(path, Node::Text(value.clone()), work)?,
            What::Remove => drop(root.remove(path, work)?),
            What::Replace(value) => *root.find(path, work)? = Node::Text(value.clone()),
            What::Move(from) if from == path => drop(root.find(path, work)?),
            What::Move(from) => {
                let moved = root.remove(from, work)?.text(work)?;
                root.add(path, Node::Text(moved), work)?;
            }
            What::Copy(from) => {
                let copied = root.find(from, work)?.text(work)?;
                root.add(path, Node::Text(copied), work)?;
            }
            What::Test(expected) => {
                let found = root.find(path, work)?.text(work)?;
                if !equal(found.root(), expected.root(), 0) {
                    return failed(format!("the test of {path} failed"));
                }
            }
        }
        Ok(())
    }
}

/// Reads a patch: an array of operations.
pub(super) fn read(patch: &JsonText) -> Result<Vec<Operation>> {
    if !patch.root().is_array() {
        return malformed("a JSON Patch is an array of operations");
    }
    let mut steps = 0;
    let read = |operation| {
        let read = Operation::read(patch, operation)?;
        steps += read.steps();
        if steps > MAX_ALL_STEPS {
            return malformed(format!("the paths of a patch have up to {MAX_ALL_STEPS} steps together"));
        }
        Ok(read)
    };
    patch.root().elements().map(read).collect()
}

/// RFC 6902, "test": numbers are compared by value, members in any order. Values below the maximum depth of paths are
/// equal only if their texts are.
fn equal(one: JsonRef<'_>, other: JsonRef<'_>, level: usize) -> bool {
    if one.text() == other.text() {
        return true;
    }
    if one.kind() != other.kind() || level == MAX_STEPS {
        return is_number(one.kind()) && is_number(other.kind()) && same_number(one, other);
    }
    match one.kind() {
        JsonKind::Object => {
            let others: HashMap<_, JsonRef<'_>> = other.members().collect();
            let mut count = 0;
            one.members().all(|(name, value)| {
                count += 1;
                others.get(&name).is_some_and(|other| equal(value, *other, level + 1))
            }) && count == others.len()
        }
        JsonKind::Array => {
            let (mut one, mut other) = (one.elements(), other.elements());
            loop {
                match (one.next(), other.next()) {
                    (None, None) => return true,
                    (Some(one), Some(other)) if equal(one, other, level + 1) => {}
                    _ => return false,
                }
            }
        }
        kind => is_number(kind) && same_number(one, other),
    }
}

fn is_number(kind: JsonKind) -> bool {
    matches!(kind, JsonKind::Integer | JsonKind::Float)
}

/// Whether an integer and a double are the same number.
fn same_number(one: JsonRef<'_>, other: JsonRef<'_>) -> bool {
    let (integer, double) = match (one.kind(), other.kind()) {
        (JsonKind::Integer, JsonKind::Float) => (one, other),
        (JsonKind::Float, JsonKind::Integer) => (other, one),
        _ => return false,
    };
    // All digits of the double, if it is an integer.
    let whole = double.as_f64().filter(|value| value.fract() == 0.0);
    whole
        .is_some_and(|value| if value == 0.0 { integer.text() == "0" } else { format!("{value:.0}") == integer.text() })
}

#[cfg(test)]
mod tests {
    use super::super::{Patch, PatchError};
    use super::*;

    fn json(text: &str) -> JsonText {
        JsonText::parse(text.as_bytes()).unwrap()
    }

    fn patched(value: &str, patch: &str) -> Result<String> {
        Patch::operations(&json(patch))?.apply(&json(value)).map(|text| text.as_str().to_owned())
    }

    #[test]
    fn operations_of_the_rfc() {
        // RFC 6902, appendix A.
        for (value, patch, expected) in [
            (r#"{"foo":"bar"}"#, r#"[{"op":"add","path":"/baz","value":"qux"}]"#, r#"{"foo":"bar","baz":"qux"}"#),
            (
                r#"{"foo":["bar","baz"]}"#,
                r#"[{"op":"add","path":"/foo/1","value":"qux"}]"#,
                r#"{"foo":["bar","qux","baz"]}"#,
            ),
            (r#"{"baz":"qux","foo":"bar"}"#, r#"[{"op":"remove","path":"/baz"}]"#, r#"{"foo":"bar"}"#),
            (r#"{"foo":["bar","qux","baz"]}"#, r#"[{"op":"remove","path":"/foo/1"}]"#, r#"{"foo":["bar","baz"]}"#),
            (
                r#"{"baz":"qux","foo":"bar"}"#,
                r#"[{"op":"replace","path":"/baz","value":"boo"}]"#,
                r#"{"baz":"boo","foo":"bar"}"#,
            ),
            (
                r#"{"foo":{"bar":"baz","waldo":"fred"},"qux":{"corge":"grault"}}"#,
                r#"[{"op":"move","from":"/foo/waldo","path":"/qux/thud"}]"#,
                r#"{"foo":{"bar":"baz"},"qux":{"corge":"grault","thud":"fred"}}"#,
            ),
            (
                r#"{"foo":["all","grass","cows","eat"]}"#,
                r#"[{"op":"move","from":"/foo/1","path":"/foo/3"}]"#,
                r#"{"foo":["all","cows","eat","grass"]}"#,
            ),
            (
                r#"{"baz":"qux","foo":["a",2,"c"]}"#,
                r#"[{"op":"test","path":"/baz","value":"qux"},{"op":"test","path":"/foo/1","value":2}]"#,
                r#"{"baz":"qux","foo":["a",2,"c"]}"#,
            ),
            (
                r#"{"foo":"bar"}"#,
                r#"[{"op":"add","path":"/child","value":{"grandchild":{}}}]"#,
                r#"{"foo":"bar","child":{"grandchild":{}}}"#,
            ),
            (
                r#"{"foo":"bar"}"#,
                r#"[{"op":"add","path":"/baz","value":"qux","xyz":123}]"#,
                r#"{"foo":"bar","baz":"qux"}"#,
            ),
            (r#"{"/":9,"~1":10}"#, r#"[{"op":"test","path":"/~01","value":10}]"#, r#"{"/":9,"~1":10}"#),
            (
                r#"{"foo":["bar"]}"#,
                r#"[{"op":"add","path":"/foo/-","value":["abc","def"]}]"#,
                r#"{"foo":["bar",["abc","def"]]}"#,
            ),
            // The whole value, an empty name, a copy, and a move to the same place.
            ("{}", r#"[{"op":"add","path":"","value":{"a":1}}]"#, r#"{"a":1}"#),
            (r#"{"":1}"#, r#"[{"op":"replace","path":"/","value":2}]"#, r#"{"":2}"#),
            (
                r#"{"a":[1]}"#,
                r#"[{"op":"copy","from":"/a","path":"/a/0"},{"op":"add","path":"/a/0/-","value":2}]"#,
                r#"{"a":[[1,2],1]}"#,
            ),
            (r#"{"a":1}"#, r#"[{"op":"move","from":"/a","path":"/a"}]"#, r#"{"a":1}"#),
            (
                r#"{"a":{"b":1,"c":[2.0]}}"#,
                r#"[{"op":"test","path":"","value":{"a":{"c":[2],"b":1.0}}}]"#,
                r#"{"a":{"b":1,"c":[2.0]}}"#,
            ),
        ] {
            assert_eq!(patched(value, patch).as_deref(), Ok(expected), "{value} and {patch}");
        }
    }

    #[test]
    fn what_the_value_does_not_allow_fails() {
        for patch in [
            r#"[{"op":"test","path":"/a","value":2}]"#,
            r#"[{"op":"test","path":"/a","value":"1"}]"#,
            r#"[{"op":"test","path":"/l","value":[1]}]"#,
            r#"[{"op":"test","path":"/b","value":null}]"#,
            r#"[{"op":"test","path":"/big","value":9007199254740992.0}]"#,
            r#"[{"op":"test","path":"","value":{"a":1,"l":[1,2]}}]"#,
            r#"[{"op":"remove","path":"/b"}]"#,
            r#"[{"op":"remove","path":""}]"#,
            r#"[{"op":"replace","path":"/b","value":1}]"#,
            r#"[{"op":"add","path":"/b/c","value":1}]"#,
            r#"[{"op":"add","path":"/a/b","value":1}]"#,
            r#"[{"op":"add","path":"/l/3","value":1}]"#,
            r#"[{"op":"add","path":"/l/01","value":1}]"#,
            r#"[{"op":"add","path":"/l/+1","value":1}]"#,
            r#"[{"op":"remove","path":"/l/-"}]"#,
            r#"[{"op":"remove","path":"/l/99999999999999999999"}]"#,
            r#"[{"op":"copy","from":"/b","path":"/c"}]"#,
        ] {
            let value = r#"{"a":1,"l":[1,2],"big":9007199254740993}"#;
            assert!(matches!(patched(value, patch), Err(PatchError::Failed(_))), "{patch}");
        }
    }

    #[test]
    fn what_is_no_patch_is_malformed() {
        for patch in [
            "{}",
            "[1]",
            r#"[{"op":"add","path":"/a"}]"#,
            r#"[{"op":"add","value":1}]"#,
            r#"[{"op":"add","path":"a","value":1}]"#,
            r#"[{"op":"add","path":"/~","value":1}]"#,
            r#"[{"op":"add","path":"/~2","value":1}]"#,
            r#"[{"op":"spoil","path":"/a"}]"#,
            r#"[{"path":"/a"}]"#,
            r#"[{"op":"move","path":"/a"}]"#,
            r#"[{"op":"move","from":"/a","path":"/a/b"}]"#,
        ] {
            assert!(matches!(patched("{}", patch), Err(PatchError::Malformed(_))), "{patch}");
        }
        let long = format!(r#"[{{"op":"remove","path":"{}"}}]"#, "/a".repeat(1_001));
        assert!(matches!(patched("{}", &long), Err(PatchError::Malformed(_))));
        // So are paths that have too many steps together.
        let deep = format!(r#"{{"op":"copy","from":"{0}","path":"{0}"}}"#, "/a".repeat(1_000));
        let read = |count: usize| Patch::operations(&json(&format!("[{}]", vec![deep.as_str(); count].join(","))));
        assert!(read(MAX_ALL_STEPS / 2_000).is_ok());
        assert!(matches!(read(MAX_ALL_STEPS / 2_000 + 1), Err(PatchError::Malformed(_))));
    }

    #[test]
    fn a_small_patch_of_much_work_ends() {
        let doubling = vec![r#"{"op":"copy","from":"/a","path":"/a/-"}"#; 60].join(",");
        assert_eq!(patched(r#"{"a":["0123456789"]}"#, &format!("[{doubling}]")).unwrap_err(), PatchError::TooMuch);
        // Deep values do not matter if no path leads into them.
        let deep = format!(r#"{{"d":{}1{},"a":1}}"#, "[".repeat(100_000), "]".repeat(100_000));
        let patch = r#"[{"op":"copy","from":"/d","path":"/e"},{"op":"test","path":"/d","value":0},{"op":"remove","path":"/a"}]"#;
        assert!(matches!(patched(&deep, patch), Err(PatchError::Failed(_))));
    }
}
