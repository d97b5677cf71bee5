//! Values that are opened where a patch changes them.

use std::fmt;

use super::limits::{CHILD_BYTES, MAX_STEPS, PatchError, Result, TEXT_WEIGHT, Work, failed, malformed};
use crate::{JsonKind, JsonRef, JsonText, JsonWriter};

/// A JSON Pointer (RFC 6901).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path(pub(super) Vec<String>);

impl Path {
    pub(super) fn read(member: Option<JsonRef<'_>>) -> Result<Path> {
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

/// A value that is opened where the patch changes it.
pub(super) enum Node {
    Text(JsonText),
    Object(Vec<(String, Node)>),
    Array(Vec<Node>),
}

impl Node {
    /// Opens an object or an array.
    pub(super) fn open(&mut self, work: &mut Work) -> Result<()> {
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
    pub(super) fn find(&mut self, path: &Path, work: &mut Work) -> Result<&mut Node> {
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

    pub(super) fn add(&mut self, path: &Path, value: Node, work: &mut Work) -> Result<()> {
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

    pub(super) fn remove(&mut self, path: &Path, work: &mut Work) -> Result<Node> {
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

    pub(super) fn text(&self, work: &mut Work) -> Result<JsonText> {
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
