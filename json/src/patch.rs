//! Patches of values: JSON Merge Patch (RFC 7396) and JSON Patch (RFC 6902).
//!
//! ```text
//!  text ─► opened along the paths of the patch; the rest stays text ─► text
//!
//!  {"a": {"b": 1, "c": […]}, "d": …}   with  /a/b   ─►  { a: { b: "1", c: "[…]" }, d: "…" }
//! ```
//!
//! Members keep their places, and new ones are appended. Copied and moved values become text again, so values are never
//! opened deeper than the longest path, whose length is limited. The work of one patch is limited too, since each
//! operation may touch the whole value.

use std::collections::HashMap;
use std::fmt;

use crate::{JsonKind, JsonRef, JsonText, JsonWriter};

/// Maximum number of steps in a path, and of levels in a merge patch.
const MAX_STEPS: usize = 1_000;

/// Approximate maximum number of bytes that the operations of a patch may touch together.
const MAX_WORK: usize = 500_000_000;

/// Approximate cost in bytes of looking at or moving a member or element.
const CHILD_BYTES: usize = 32;

/// Weight of a byte that is written or compared as text: the copy is kept.
const TEXT_WEIGHT: usize = 8;

/// The reason why a patch cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatchError {
    /// It is no valid patch, for any value.
    Malformed(String),
    /// The value does not fit the patch: a path does not exist, or a test fails.
    Failed(String),
    /// It takes too much work.
    TooMuch,
}

impl fmt::Display for PatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PatchError::Malformed(why) | PatchError::Failed(why) => f.write_str(why),
            PatchError::TooMuch => f.write_str("the patch takes too much work"),
        }
    }
}

impl std::error::Error for PatchError {}

type Result<T, E = PatchError> = std::result::Result<T, E>;

fn malformed<T>(why: impl Into<String>) -> Result<T> {
    Err(PatchError::Malformed(why.into()))
}

fn failed<T>(why: impl Into<String>) -> Result<T> {
    Err(PatchError::Failed(why.into()))
}

/// A parsed patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Merge(JsonText),
    Operations(Vec<Operation>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Operation {
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

/// A JSON Pointer (RFC 6901).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Path(Vec<String>);

impl Path {
    fn read(member: Option<JsonRef<'_>>) -> Result<Path> {
        let Some(text) = member.and_then(JsonRef::as_str) else { return malformed("an operation without a path") };
        let mut parts = text.split('/');
        if parts.next() != Some("") {
            return malformed(format!("the path {text:?} does not begin with a slash"));
        }
        let mut steps = Vec::new();
        for part in parts {
            let is_escape = |after: &str| after.starts_with('0') || after.starts_with('1');
            if !part.split('~').skip(1).all(is_escape) {
                return malformed(format!("the path {text:?} has a bare ~"));
            }
            if steps.len() == MAX_STEPS {
                return malformed(format!("a path has up to {MAX_STEPS} steps"));
            }
            steps.push(part.replace("~1", "/").replace("~0", "~"));
        }
        Ok(Path(steps))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|step| write!(f, "/{}", step.replace('~', "~0").replace('/', "~1")))
    }
}

impl Patch {
    /// A JSON Merge Patch: members replace those of the same name, `null` removes them.
    pub fn merge(patch: JsonText) -> Patch {
        Patch(Kind::Merge(patch))
    }

    /// A JSON Patch: an array of operations, applied in order.
    ///
    /// # Errors
    /// [`PatchError::Malformed`].
    pub fn operations(patch: &JsonText) -> Result<Patch> {
        if !patch.root().is_array() {
            return malformed("a JSON Patch is an array of operations");
        }
        let read = |operation: JsonRef<'_>| {
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
        };
        Ok(Patch(Kind::Operations(patch.root().elements().map(read).collect::<Result<_>>()?)))
    }

    /// The value with the patch applied.
    ///
    /// # Errors
    /// [`PatchError`]. `value` itself never changes.
    pub fn apply(&self, value: &JsonText) -> Result<JsonText> {
        let mut root = Node::Text(value.clone());
        let mut work = Work(MAX_WORK);
        match &self.0 {
            Kind::Merge(patch) => merge(&mut root, patch, patch.root(), 0, &mut work)?,
            Kind::Operations(operations) => {
                for Operation { what, path } in operations {
                    match what {
                        What::Add(value) => root.add(path, Node::Text(value.clone()), &mut work)?,
                        What::Remove => drop(root.remove(path, &mut work)?),
                        What::Replace(value) => *root.find(path, &mut work)? = Node::Text(value.clone()),
                        What::Move(from) if from == path => drop(root.find(path, &mut work)?),
                        What::Move(from) => {
                            let moved = root.remove(from, &mut work)?.text(&mut work)?;
                            root.add(path, Node::Text(moved), &mut work)?;
                        }
                        What::Copy(from) => {
                            let copied = root.find(from, &mut work)?.text(&mut work)?;
                            root.add(path, Node::Text(copied), &mut work)?;
                        }
                        What::Test(expected) => {
                            let found = root.find(path, &mut work)?.text(&mut work)?;
                            if !equal(found.root(), expected.root(), 0) {
                                return failed(format!("the test of {path} failed"));
                            }
                        }
                    }
                }
            }
        }
        root.text(&mut work)
    }
}

/// The work that is left.
struct Work(usize);

impl Work {
    fn spend(&mut self, bytes: usize) -> Result<()> {
        self.0 = self.0.checked_sub(bytes).ok_or(PatchError::TooMuch)?;
        Ok(())
    }
}

/// A value that is opened where the patch changes it.
enum Node {
    Text(JsonText),
    Object(Vec<(String, Node)>),
    Array(Vec<Node>),
}

impl Node {
    /// Opens an object or an array.
    fn open(&mut self, work: &mut Work) -> Result<()> {
        if let Node::Text(text) = self {
            let own = |value| Node::Text(text.slice_ref(value));
            let opened = match text.kind() {
                JsonKind::Object => {
                    Node::Object(text.root().members().map(|(name, value)| (name.into_owned(), own(value))).collect())
                }
                JsonKind::Array => Node::Array(text.root().elements().map(own).collect()),
                _ => return Ok(()),
            };
            work.spend(text.len())?;
            *self = opened;
        }
        Ok(())
    }

    /// The node at a path.
    fn find(&mut self, path: &Path, work: &mut Work) -> Result<&mut Node> {
        let mut node = self;
        for step in &path.0 {
            node.open(work)?;
            let found = match node {
                Node::Text(_) => None,
                Node::Object(members) => {
                    work.spend(members.len() * CHILD_BYTES)?;
                    members.iter_mut().find(|(name, _)| name == step).map(|(_, value)| value)
                }
                Node::Array(elements) => index(step).and_then(|at| elements.get_mut(at)),
            };
            let Some(found) = found else { return failed(format!("there is nothing at {path}")) };
            node = found;
        }
        Ok(node)
    }

    /// The parent of the node at a path, and the last step; `None` for the whole value.
    fn parent<'n, 'p>(&'n mut self, path: &'p Path, work: &mut Work) -> Result<Option<(&'n mut Node, &'p str)>> {
        let Some((last, before)) = path.0.split_last() else { return Ok(None) };
        let parent = self.find(&Path(before.to_vec()), work)?;
        parent.open(work)?;
        Ok(Some((parent, last)))
    }

    fn add(&mut self, path: &Path, value: Node, work: &mut Work) -> Result<()> {
        match self.parent(path, work)? {
            None => *self = value,
            Some((Node::Object(members), name)) => {
                work.spend(members.len() * CHILD_BYTES)?;
                match members.iter_mut().find(|(known, _)| known == name) {
                    Some((_, there)) => *there = value,
                    None => members.push((name.to_owned(), value)),
                }
            }
            Some((Node::Array(elements), step)) => {
                work.spend(elements.len() * CHILD_BYTES)?;
                match if step == "-" { Some(elements.len()) } else { index(step) } {
                    Some(at) if at <= elements.len() => elements.insert(at, value),
                    _ => return failed(format!("there is no place at {path}")),
                }
            }
            Some((Node::Text(_), _)) => return failed(format!("there is no place at {path}")),
        }
        Ok(())
    }

    fn remove(&mut self, path: &Path, work: &mut Work) -> Result<Node> {
        let removed = match self.parent(path, work)? {
            Some((Node::Object(members), name)) => {
                work.spend(members.len() * CHILD_BYTES)?;
                members.iter().position(|(known, _)| known == name).map(|at| members.remove(at).1)
            }
            Some((Node::Array(elements), step)) => {
                work.spend(elements.len() * CHILD_BYTES)?;
                index(step).filter(|at| *at < elements.len()).map(|at| elements.remove(at))
            }
            Some((Node::Text(_), _)) | None => None,
        };
        removed.map_or_else(|| failed(format!("there is nothing to remove at {path}")), Ok)
    }

    fn text(&self, work: &mut Work) -> Result<JsonText> {
        if let Node::Text(text) = self {
            work.spend(TEXT_WEIGHT * text.len())?;
            return Ok(text.clone());
        }
        let mut out = Vec::new();
        self.write(&mut JsonWriter::new(&mut out));
        work.spend(TEXT_WEIGHT * out.len())?;
        JsonText::from_normalised(out).ok_or(PatchError::TooMuch)
    }

    fn write(&self, json: &mut JsonWriter<'_>) {
        match self {
            Node::Text(text) => drop(json.text(text)),
            Node::Object(members) => {
                json.begin_object();
                for (name, value) in members {
                    value.write(json.name(name));
                }
                json.end_object();
            }
            Node::Array(elements) => {
                json.begin_array();
                elements.iter().for_each(|value| value.write(json));
                json.end_array();
            }
        }
    }
}

/// The array index that a step names: digits without leading zeros.
fn index(step: &str) -> Option<usize> {
    let is_number = step == "0" || (!step.starts_with('0') && step.bytes().all(|byte| byte.is_ascii_digit()));
    step.parse().ok().filter(|_| is_number)
}

/// RFC 7396, `MergePatch`. `patch` is a part of `whole`.
fn merge(target: &mut Node, whole: &JsonText, patch: JsonRef<'_>, level: usize, work: &mut Work) -> Result<()> {
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
            (Some(place), false) => merge(&mut members[place].1, whole, value, level + 1, work)?,
            (None, false) => {
                let mut new = Node::Object(Vec::new());
                merge(&mut new, whole, value, level + 1, work)?;
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
    use super::*;

    fn json(text: &str) -> JsonText {
        JsonText::parse(text.as_bytes()).unwrap()
    }

    fn patched(value: &str, patch: &str) -> Result<String> {
        Patch::operations(&json(patch))?.apply(&json(value)).map(|text| text.as_str().to_owned())
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
