//! Paths to fields: `a.b` goes down two levels, `a\.b` is one name with a dot.

use std::ops::Deref;

use json::JsonRef;

use crate::error::Error;

/// Maximum depth of a path, and of a selector including its arguments. It limits the recursion of parsing, matching and
/// comparing.
pub const MAX_DEPTH: usize = 100;

/// Splits a field name and appends its parts to `path` (`mango_util:parse_field/1`). A dot after a backslash does not
/// split. Then all backslashes are removed.
pub(crate) fn parse(field: &str, path: &mut Vec<String>) -> Result<(), Error> {
    let mut name = String::new();
    let mut escaped = false;
    let mut end = |name: &mut String, any: bool| {
        // Code that follows paths is recursive. The limit is checked at once, since a name may have millions of dots.
        if !any || path.len() >= MAX_DEPTH {
            return Err(Error::invalid_field_name(field));
        }
        path.push(std::mem::take(name));
        Ok(())
    };
    // Whether the current part has a character, even if that is a removed backslash.
    let mut any = false;
    for character in field.chars() {
        match character {
            '.' if !escaped => {
                end(&mut name, any)?;
                any = false;
                continue;
            }
            '\\' => {}
            other => name.push(other),
        }
        any = true;
        escaped = character == '\\';
    }
    end(&mut name, any)
}

/// The field name of a path, with backslashes before special characters. Only its last name can be empty.
pub(crate) fn write(path: &[String]) -> String {
    let mut field = String::new();
    for (at, name) in path.iter().enumerate() {
        if at > 0 {
            field.push('.');
        }
        // An empty name is written as a backslash, which parsing removes. A name that begins with a dollar sign would
        // be an operator.
        if name.is_empty() || at == 0 && name.starts_with('$') {
            field.push('\\');
        }
        field.push_str(&name.replace('.', "\\."));
    }
    field
}

/// The path to a field of a selector.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path {
    names: Vec<String>,
    /// The field name as the client wrote it, which CouchDB shows. Empty in a kept path if [`write()`] gives the same
    /// name.
    written: String,
}

impl Path {
    /// Goes down to a field.
    pub(crate) fn push(&mut self, field: &str) -> Result<(), Error> {
        if !self.names.is_empty() {
            self.written.push('.');
        }
        self.written.push_str(field);
        parse(field, &mut self.names)
    }

    /// The current lengths, for [`truncate`](Self::truncate).
    pub(crate) fn lengths(&self) -> (usize, usize) {
        (self.names.len(), self.written.len())
    }

    pub(crate) fn truncate(&mut self, (names, written): (usize, usize)) {
        self.names.truncate(names);
        self.written.truncate(written);
    }

    /// A copy to keep with a condition.
    pub(crate) fn kept(&self) -> Path {
        let mut names = Vec::new();
        let is_own = self.written.contains('\\')
            && self.written != write(&self.names)
            // Joined with dots, names that end with a backslash would mean another path.
            && parse(&self.written, &mut names).is_ok()
            && names == self.names;
        Path { names: self.names.clone(), written: if is_own { self.written.clone() } else { String::new() } }
    }

    /// Number of bytes of a kept path.
    pub(crate) fn size(&self) -> usize {
        self.names.iter().map(String::len).sum::<usize>() + self.written.len()
    }

    /// The field name, if it differs from that of [`write()`].
    pub(crate) fn written(&self) -> Option<&str> {
        Some(self.written.as_str()).filter(|written| !written.is_empty())
    }

    /// The field name of a kept path.
    pub(crate) fn name(&self) -> String {
        self.written().map_or_else(|| write(&self.names), str::to_owned)
    }
}

impl Deref for Path {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.names
    }
}

/// The value at a path.
pub(crate) enum AtPath<'a> {
    Value(JsonRef<'a>),
    /// An object on the path lacks the member.
    Nothing,
    /// A step goes into a scalar, or beyond the end of an array.
    BadPath,
}

/// Follows a path (`mango_doc:get_field/2`). A step into an array is an index.
pub(crate) fn look_up<'a>(mut value: JsonRef<'a>, path: &[String]) -> AtPath<'a> {
    for name in path {
        value = match value.step(name) {
            Some(found) => found,
            None if value.is_object() => return AtPath::Nothing,
            None => return AtPath::BadPath,
        };
    }
    AtPath::Value(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(field: &str) -> Result<Vec<String>, Error> {
        let mut path = Vec::new();
        parse(field, &mut path).map(|()| path)
    }

    #[test]
    fn fields_split_at_dots_that_are_not_escaped() {
        for (field, expected) in [
            ("ab", &["ab"][..]),
            ("a.b", &["a", "b"]),
            (r"a\.b", &["a.b"]),
            ("a.b.c", &["a", "b", "c"]),
            (r"a.b\.c", &["a", "b.c"]),
            (r"\$price", &["$price"]),
            (r"\$price\.a.$b", &["$price.a", "$b"]),
            (r"\.\", &["."]),
            (r"a.\", &["a", ""]),
            ("ä.0", &["ä", "0"]),
        ] {
            assert_eq!(parts(field).unwrap(), expected, "{field}");
            assert_eq!(parts(&write(&parts(field).unwrap())).unwrap(), expected, "{field}");
        }
        for field in ["", ".", "a..b", ".a", "a."] {
            let error = parts(field).unwrap_err();
            assert_eq!(error.error(), "invalid_field_name");
            assert_eq!(error.reason(), format!("Invalid field name: {field}"));
        }
    }
}
