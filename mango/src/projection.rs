//! Projections: the fields of documents to return.
//!
//! Source: `mango_fields:extract/2`, `mango_doc:set_field/3`.

use json::{JsonRef, JsonWriter};

use crate::error::Error;
use crate::path::{self, AtPath, look_up};

/// Maximum number of fields in a query. It limits the time for one document.
const MAX_FIELDS: usize = 1_000;

/// Maximum number of fields with an array index in another spelling, such as `00` and `+0` for `0`. Each spelling is a
/// separate member of an answer, so one element could appear a thousand times.
const MAX_SPELLINGS: usize = 10;

/// The fields that a query requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Projection {
    fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    name: String,
    path: Vec<String>,
}

/// A part of the answer for a document.
pub(crate) enum Part<'a> {
    Whole(JsonRef<'a>),
    /// Members, in the order in which they were requested.
    Some(Vec<(&'a str, Part<'a>)>),
}

impl Projection {
    /// Parses `fields`, an array of paths.
    ///
    /// # Errors
    /// `invalid_fields`, `invalid_field` and `invalid_field_name`.
    pub fn parse(fields: JsonRef<'_>) -> Result<Self, Error> {
        if !fields.is_array() {
            let says = "Fields must be an array of strings, not: ";
            return Err(Error::bad_value("invalid_fields", says, fields.text()));
        }
        if fields.elements().nth(MAX_FIELDS).is_some() {
            let reason = format!("A query may ask for {MAX_FIELDS} fields at most.");
            return Err(Error::plain("invalid_fields", &reason));
        }
        let fields = fields.elements().map(|field| {
            let wrong = || Error::bad_value("invalid_field", "Invalid JSON for field spec: ", field.text());
            let name = field.as_str().ok_or_else(wrong)?.into_owned();
            let mut path = Vec::new();
            path::parse(&name, &mut path)?;
            Ok(Field { name, path })
        });
        let fields = fields.collect::<Result<Vec<Field>, _>>()?;
        let is_spelled =
            |name: &String| name.len() > 1 && name.starts_with(['0', '+']) && name.parse::<usize>().is_ok();
        if fields.iter().filter(|field| field.path.iter().any(is_spelled)).count() > MAX_SPELLINGS {
            let reason = format!("A query may ask for {MAX_SPELLINGS} fields at most whose indexes begin with 0 or +.");
            return Err(Error::plain("invalid_fields", &reason));
        }
        Ok(Projection { fields })
    }

    /// Whether whole documents are requested.
    pub fn is_everything(&self) -> bool {
        self.fields.is_empty()
    }

    /// The fields as requested.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|field| field.name.as_str())
    }

    /// Their paths.
    pub fn paths(&self) -> impl Iterator<Item = &[String]> {
        self.fields.iter().map(|field| field.path.as_slice())
    }

    /// Writes the requested fields of `document`. Missing fields are left out. A step into an array becomes a member
    /// that is named like the index.
    pub fn write(&self, document: JsonRef<'_>, out: &mut Vec<u8>) {
        if self.is_everything() {
            JsonWriter::new(out).value(document);
            return;
        }
        let found = |field: &Field| match look_up(document, &field.path) {
            AtPath::Value(value) => Some(value),
            AtPath::Nothing | AtPath::BadPath => None,
        };
        self.write_found(self.fields.iter().map(found), out);
    }

    /// Writes the same from the values at the [`paths`](Self::paths), in the order of the paths.
    pub fn write_found<'a>(&'a self, values: impl Iterator<Item = Option<JsonRef<'a>>>, out: &mut Vec<u8>) {
        let mut whole = Vec::new();
        for (field, value) in self.fields.iter().zip(values) {
            if let Some(value) = value {
                put(&mut whole, &field.path, value);
            }
        }
        write_members(&whole, &mut JsonWriter::new(out));
    }
}

/// Sets the value at a path.
pub(crate) fn put<'a>(members: &mut Vec<(&'a str, Part<'a>)>, path: &'a [String], value: JsonRef<'a>) {
    let Some((name, rest)) = path.split_first() else { return };
    let at = members.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
        members.push((name, Part::Some(Vec::new())));
        members.len() - 1
    });
    match &mut members[at].1 {
        part if rest.is_empty() => *part = Part::Whole(value),
        // It contains the value already.
        Part::Whole(_) => {}
        Part::Some(members) => put(members, rest, value),
    }
}

pub(crate) fn write_members(members: &[(&str, Part<'_>)], json: &mut JsonWriter<'_>) {
    json.begin_object();
    for (name, part) in members {
        json.name(name);
        match part {
            Part::Whole(value) => {
                json.value(*value);
            }
            Part::Some(members) => write_members(members, json),
        }
    }
    json.end_object();
}

#[cfg(test)]
mod tests {
    use json::JsonText;

    use super::*;

    fn text(json: &str) -> JsonText {
        JsonText::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn fields_are_given_back_where_they_stand() {
        let document = text(r#"{"_id":"x","a":{"b":1,"c":[10,{"d":2}]},"e.f":3,"g":null}"#);
        for (fields, expected) in [
            (r#"[]"#, document.as_str()),
            (r#"["_id"]"#, r#"{"_id":"x"}"#),
            (r#"["g","_id","missing","a.x.y","a.b.c"]"#, r#"{"g":null,"_id":"x"}"#),
            (r#"["a.b","a.c.0"]"#, r#"{"a":{"b":1,"c":{"0":10}}}"#),
            (r#"["a.c.0","a.c.1.d","a.b"]"#, r#"{"a":{"c":{"0":10,"1":{"d":2}},"b":1}}"#),
            (r#"["a.c.01","a.c.-1","a.c.2"]"#, r#"{"a":{"c":{"01":{"d":2}}}}"#),
            (r#"["a.b","a"]"#, r#"{"a":{"b":1,"c":[10,{"d":2}]}}"#),
            (r#"["a","a.b"]"#, r#"{"a":{"b":1,"c":[10,{"d":2}]}}"#),
            (r#"["e\\.f"]"#, r#"{"e.f":3}"#),
            (r#"["b","b"]"#, r#"{}"#),
        ] {
            let mut out = Vec::new();
            Projection::parse(text(fields).root()).unwrap().write(document.root(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{fields}");
        }
    }

    #[test]
    fn an_element_is_not_written_under_many_spellings() {
        let spellings = |count: usize| {
            let names: Vec<String> = (1..=count).map(|zeros| format!("\"a.{}1\"", "0".repeat(zeros))).collect();
            Projection::parse(text(&format!("[\"a.0\",\"a.10\",{}]", names.join(","))).root()).is_ok()
        };
        assert!(spellings(MAX_SPELLINGS) && !spellings(MAX_SPELLINGS + 1));
    }

    #[test]
    fn what_names_no_field_is_refused() {
        for (fields, error) in [
            (r#""a""#, "invalid_fields"),
            (r#"{"a":1}"#, "invalid_fields"),
            (r#"["a",1]"#, "invalid_field"),
            (r#"[{"a":"asc"}]"#, "invalid_field"),
            (r#"["a..b"]"#, "invalid_field_name"),
            (r#"[""]"#, "invalid_field_name"),
        ] {
            assert_eq!(Projection::parse(text(fields).root()).unwrap_err().error(), error, "{fields}");
        }
        let many = |count: usize| text(&format!("[{}]", vec![r#""a""#; count].join(",")));
        assert!(Projection::parse(many(MAX_FIELDS).root()).is_ok());
        let refused = Projection::parse(many(MAX_FIELDS + 1).root()).unwrap_err();
        assert_eq!((refused.error(), refused.reason()), ("invalid_fields", "A query may ask for 1000 fields at most."));
        // Their depth is limited like that of selectors.
        let deep = format!(r#"["{}"]"#, vec!["a"; 101].join("."));
        assert_eq!(Projection::parse(text(&deep).root()).unwrap_err().error(), "invalid_field_name");
    }
}
