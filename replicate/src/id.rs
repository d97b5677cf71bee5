//! The id of a replication, as CouchDB 3 computes it.
//!
//! ```text
//!  md5(term_to_binary([Uuid, Source, Target | Filter ++ Options], [{minor_version, 1}]))
//!  Source, Target = {remote, User, Host, Port | default, Path, Headers, undefined}
//! ```
//! CouchDB 3 has no local endpoints. Here these are `{local, Name}`, as in CouchDB 2.
//!
//! Source: `replication_id/2`, version 4, of `couch_replicator_ids.erl`.

use std::collections::BTreeMap;

use model::{JsonRef, JsonText, JsonWriter, Term};
use peer::{Address, Filter};
use percent_encoding::percent_decode_str;

use crate::options::Options;

/// The version of these ids.
pub(crate) const VERSION: u64 = 4;

/// One side of a replication, as the id describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A database on a server.
    Remote(Address),
    /// A database in this process.
    Local(String),
}

/// The properties that identify a replication, with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The uuid of the server that runs it.
    pub uuid: String,
    /// Its source.
    pub source: Endpoint,
    /// Its target.
    pub target: Endpoint,
}

impl Identity {
    /// The id of a replication with these options, in hexadecimal. The text of a function that filters is not known yet; its
    /// name stands for it. So this is not always the id of the checkpoints.
    pub fn replication_id(&self, options: &Options) -> String {
        let mut filter = options.filter.clone();
        if let Filter::DocIds(ids) = &mut filter {
            *ids = doc_ids(ids);
        }
        self.id(&filter, None, options.winning_revs_only, options.since_seq.as_deref())
    }

    /// The id, in hexadecimal. `function` is the source code of the filter function, if there is one.
    pub(crate) fn id(&self, filter: &Filter, function: Option<&str>, winners: bool, since: Option<&str>) -> String {
        let mut term = Term::new();
        let filters = match filter {
            Filter::None => 0,
            Filter::DocIds(_) | Filter::Selector(_) => 1,
            Filter::Function { .. } => 2,
        };
        let elements = 3 + filters + u32::from(winners) + u32::from(since.is_some());
        term.list(elements, |term| {
            term.binary(self.uuid.as_bytes());
            self.source.write(term);
            self.target.write(term);
            match filter {
                Filter::None => {}
                Filter::DocIds(ids) => {
                    let mut ids = ids.clone();
                    ids.sort();
                    ids.dedup();
                    term.list(ids.len() as u32, |term| ids.iter().for_each(|id| term.binary(id.as_bytes())));
                }
                Filter::Selector(selector) => term.json(&sorted(selector.root())),
                Filter::Function { name, params } => {
                    term.binary(function.unwrap_or(name).trim().as_bytes());
                    term.json(&object(params));
                }
            }
            if winners {
                term.binary(b"winning_revs_only");
            }
            if let Some(since) = since {
                term.binary(since.as_bytes());
            }
        });
        term.md5().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Endpoint {
    fn write(&self, term: &mut Term) {
        let address = match self {
            Endpoint::Local(name) => {
                term.tuple(2).atom("local");
                term.binary(name.as_bytes());
                return;
            }
            Endpoint::Remote(address) => address,
        };
        let url = address.url();
        term.tuple(7).atom("remote");
        match address.user() {
            Some((user, _)) => drop(term.text(user)),
            None => term.atom("undefined"),
        }
        term.text(url.host_str().unwrap_or_default());
        match url.port_or_known_default() {
            Some(80 | 443 | 5984) | None => term.atom("default"),
            Some(port) => term.unsigned(u64::from(port)),
        }
        term.text(&format!("{}/", url.path().trim_end_matches('/')));
        let headers: Vec<_> = address.headers().iter().collect();
        term.list(headers.len() as u32, |term| {
            for (name, value) in headers {
                term.tuple(2).text(name.as_str()).text(value.to_str().unwrap_or_default());
            }
        });
        term.atom("undefined");
    }
}

/// The document ids for `ids`, which CouchDB accepts percent-encoded; sorted, without duplicates.
pub(crate) fn doc_ids(ids: &[String]) -> Vec<String> {
    let mut ids: Vec<String> = ids.iter().map(|id| percent_decode_str(id).decode_utf8_lossy().into_owned()).collect();
    ids.sort();
    ids.dedup();
    ids
}

fn object(params: &[(String, String)]) -> JsonText {
    let params: BTreeMap<&str, &str> = params.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut out = Vec::new();
    let mut json = JsonWriter::new(&mut out);
    json.begin_object();
    for (name, value) in params {
        json.name(name).str(value);
    }
    json.end_object();
    JsonText::parse(&out).unwrap_or_else(|_| JsonText::empty_object())
}

/// The same value, with the members of each object sorted by name.
fn sorted(value: JsonRef<'_>) -> JsonText {
    fn write(value: JsonRef<'_>, json: &mut JsonWriter<'_>) {
        if value.is_object() {
            let mut members: Vec<_> = value.members().collect();
            members.sort_by(|(one, _), (other, _)| one.cmp(other));
            json.begin_object();
            for (name, value) in members {
                json.name(&name);
                write(value, json);
            }
            json.end_object();
        } else if value.is_array() {
            json.begin_array();
            for element in value.elements() {
                write(element, json);
            }
            json.end_array();
        } else {
            json.value(value);
        }
    }
    let mut out = Vec::new();
    write(value, &mut JsonWriter::new(&mut out));
    JsonText::parse(&out).unwrap_or_else(|_| JsonText::empty_object())
}

#[cfg(test)]
mod tests {
    use md5::{Digest, Md5};

    use super::*;

    fn identity(source: &str) -> Identity {
        let source = Endpoint::Remote(source.parse().unwrap());
        Identity { uuid: "u1".into(), source, target: Endpoint::Local("db".into()) }
    }

    /// The term as Erlang writes it, built by hand.
    fn id_of(elements: u8, source: &[u8], more: &[u8]) -> String {
        let mut term = vec![131, 108, 0, 0, 0, elements, 109, 0, 0, 0, 2, b'u', b'1', 104, 7];
        term.extend_from_slice(b"d\0\x06remote");
        term.extend_from_slice(source);
        term.extend_from_slice(b"d\0\x09undefined");
        term.extend_from_slice(b"h\x02d\0\x05localm\0\0\0\x02db");
        term.extend_from_slice(more);
        term.push(106);
        Md5::digest(&term).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn ids_are_those_of_erlangs_terms() {
        let plain = identity("http://host:5984/a");
        let source = b"d\0\x09undefinedk\0\x04hostd\0\x07defaultk\0\x03/a/j";
        assert_eq!(plain.id(&Filter::None, None, false, None), id_of(3, source, b""));
        assert_eq!(plain, identity("http://host:5984/a/"), "with its slash or without");
        let more = b"m\0\0\0\x11winning_revs_onlym\0\0\0\x037-x";
        assert_eq!(plain.id(&Filter::None, None, true, Some("7-x")), id_of(5, source, more));
        let ids = Filter::DocIds(doc_ids(&["b".into(), "a%20c".into(), "b".into()]));
        let more = b"l\0\0\0\x02m\0\0\0\x03a cm\0\0\0\x01bj";
        assert_eq!(plain.id(&ids, None, false, None), id_of(4, source, more));
        let selector = Filter::Selector(JsonText::parse(br#"{"b":1,"a":{"z":[true],"y":null}}"#).unwrap());
        let more = b"h\x01l\0\0\0\x02h\x02m\0\0\0\x01ah\x01l\0\0\0\x02h\x02m\0\0\0\x01yd\0\x04nullh\x02m\0\0\0\x01zl\0\0\0\x01d\0\x04truejjh\x02m\0\0\0\x01ba\x01j";
        assert_eq!(plain.id(&selector, None, false, None), id_of(4, source, more));
        // The id depends on the user, and not on the password.
        let user = b"k\0\x02mek\0\x04hostb\0\0\x1f\x90k\0\x03/a/j";
        let known = identity("http://me:one@host:8080/a");
        assert_eq!(known.id(&Filter::None, None, false, None), id_of(3, user, b""));
        let changed = identity("http://me:two@host:8080/a");
        assert_eq!(changed.id(&Filter::None, None, false, None), known.id(&Filter::None, None, false, None));
        // The id depends on the function's source code, so a new function makes a new replication.
        let function = Filter::Function { name: "d/f".into(), params: vec![("k".into(), "v".into())] };
        let more = b"m\0\0\0\x02fnh\x01l\0\0\0\x01h\x02m\0\0\0\x01km\0\0\0\x01vj";
        assert_eq!(plain.id(&function, Some(" fn "), false, None), id_of(5, source, more));
    }
}
