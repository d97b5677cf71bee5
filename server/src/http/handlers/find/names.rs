//! The default name of an index. It is CouchDB's, so the same index created in two places is the same document.
//!
//! It is the SHA-1 of an Erlang term, `{Def, Options}`, in hexadecimal.
//!
//! Source: `mango_idx:gen_name/2`.

use mango::NewIndex;
use model::{JsonText, JsonWriter, erlang_term};
use sha1::{Digest, Sha1};

const VERSION: u8 = 131;
const ATOM: u8 = 100;
const SMALL_TUPLE: u8 = 104;
const NIL: u8 = 106;
const LIST: u8 = 108;

/// The name of an index without one.
pub(super) fn auto_name(index: &NewIndex) -> String {
    let mut term = vec![VERSION, SMALL_TUPLE, 2];
    let def = erlang_term(&index.def);
    term.extend_from_slice(&def);
    // CouchDB's order of the options.
    let mut count = 0_u32;
    let mut options = Vec::new();
    let mut option = |name: &str, value: &[u8]| {
        count += 1;
        options.extend_from_slice(&[SMALL_TUPLE, 2]);
        options.extend_from_slice(&atom(name));
        options.extend_from_slice(value);
    };
    let name = |name: &Option<String>| match name {
        Some(name) => string(name),
        None => atom("auto_name"),
    };
    option("ddoc", &name(&index.ddoc));
    option("def", &def);
    option("name", &name(&index.name));
    option(
        "partitioned",
        &atom(match index.partitioned {
            None => "db_default",
            Some(true) => "true",
            Some(false) => "false",
        }),
    );
    option("type", &string("json"));
    option("w", &json(|json| json.u64(index.copies)));
    term.push(LIST);
    term.extend_from_slice(&count.to_be_bytes());
    term.extend_from_slice(&options);
    term.push(NIL);
    model::hex(&Sha1::digest(&term))
}

fn atom(name: &str) -> Vec<u8> {
    let mut atom = vec![ATOM];
    atom.extend_from_slice(&(name.len() as u16).to_be_bytes());
    atom.extend_from_slice(name.as_bytes());
    atom
}

fn string(text: &str) -> Vec<u8> {
    json(|json| json.str(text))
}

fn json(write: impl for<'j, 'o> FnOnce(&'j mut JsonWriter<'o>) -> &'j mut JsonWriter<'o>) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut JsonWriter::new(&mut out));
    JsonText::from_normalised(out).map_or_else(Vec::new, |text| erlang_term(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(body: &str) -> String {
        auto_name(&NewIndex::parse(&JsonText::parse(body.as_bytes()).unwrap()).unwrap())
    }

    /// The manual's example, `a5f4711f…`, predates the option `partitioned`. With it, the names are these.
    #[test]
    fn names_are_couchdbs() {
        for (body, expected) in [
            (r#"{"index": {"fields": ["foo"]}, "name": "foo-index"}"#, "74644dcd981a77aa2a982e4eb0956fbad86c5a3f"),
            (r#"{"index": {"fields": ["foo"]}}"#, "a138cce43c361000dcca40cb1fbb8c6776e04ba0"),
        ] {
            assert_eq!(name(body), expected, "{body}");
        }
    }
}
