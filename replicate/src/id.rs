//! The id of a replication, as CouchDB 3 computes it.
//!
//! ```text
//!  md5(term_to_binary([Uuid, Source, Target | Filter ++ Options], [{minor_version, 1}]))
//!  Source, Target = {remote, User, Host, Port | default, Path, Headers, undefined}
//! ```
//! CouchDB 3 has no local endpoints. Here they are `{local, Name}`, as in CouchDB 2.
//!
//! URLs and headers count as given. A user in a header counts like one in the URL, not as a header.
//!
//! Source: `replication_id/2`, version 4, of `couch_replicator_ids.erl` of CouchDB 3.5, with
//! `couch_replicator_utils:normalize_basic_auth/1`, `couch_replicator_filters.erl` and `ibrowse_lib:parse_url/1`.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use model::{BulkGet, JsonRef, JsonText, JsonWriter, Term};
use peer::{Address, Error, ErrorKind, Filter, Peer, ReadOptions, Result};
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
    /// The id of a replication with these options, in hexadecimal. Its checkpoints have this id. `None` if the source
    /// must be asked: the source code of a filter function is part of the id.
    pub fn known_id(&self, options: &Options) -> Option<String> {
        named_function(&options.filter).is_none().then(|| self.id_with(options, None))
    }

    /// The same. Asks the source if that is needed.
    ///
    /// # Errors
    /// Errors of the source; a missing function is [`Refused`](peer::ErrorKind::Refused), with status 404.
    pub async fn find_id(&self, options: &Options, source: &dyn Peer) -> Result<String> {
        let Some((design, function)) = named_function(&options.filter) else { return Ok(self.id_with(options, None)) };
        let wanted = BulkGet { id: format!("_design/{design}"), rev: None };
        let found = source.read(&[wanted], ReadOptions::default()).await?.pop();
        let leaf = found.transpose()?.and_then(|leaves| leaves.into_iter().find(|leaf| !leaf.deleted));
        let text = leaf.and_then(|leaf| {
            let code = leaf.body.get("filters")?.get(function)?.as_str()?.into_owned();
            Some(code)
        });
        let missing = || {
            let sentence = format!("the source has no filter {design}/{function}");
            Error::new(ErrorKind::Refused, sentence).with_status(404)
        };
        Ok(self.id_with(options, Some(&text.ok_or_else(missing)?)))
    }

    fn id_with(&self, options: &Options, function: Option<&str>) -> String {
        let mut filter = options.filter.clone();
        if let Filter::DocIds(ids) = &mut filter {
            *ids = doc_ids(ids);
        }
        self.id(&filter, function, options.winning_revs_only, options.since_seq.as_ref())
    }

    /// The id, in hexadecimal. `function` is the source code of the filter function, if there is one.
    fn id(&self, filter: &Filter, function: Option<&str>, winners: bool, since: Option<&JsonText>) -> String {
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
                Filter::Selector(selector) => {
                    let normal = mango::Selector::parse(selector).map(|selector| selector.to_json());
                    term.json(&sorted(normal.as_ref().unwrap_or(selector).root()));
                }
                Filter::Function { name, params } => {
                    term.binary(function.map_or_else(|| name.clone(), trimmed).as_bytes());
                    term.json(&object(params));
                }
            }
            if winners {
                term.binary(b"winning_revs_only");
            }
            if let Some(since) = since {
                term.json(since);
            }
        });
        model::hex(&term.md5())
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
        let given = address.given();
        let (user, headers) = without_user(&given.headers);
        term.tuple(7).atom("remote");
        match given.user.as_ref().or(user.as_ref()) {
            Some(user) => drop(term.text(user)),
            None => term.atom("undefined"),
        }
        term.text(&given.host);
        match (address.is_secure(), address.url().port_or_known_default()) {
            (true, Some(443)) | (false, Some(80 | 5984)) | (_, None) => term.atom("default"),
            (_, Some(port)) => term.unsigned(u64::from(port)),
        }
        term.text(&given.path);
        term.list(headers.len() as u32, |term| {
            for (name, value) in headers {
                term.tuple(2).text(&name).text(&value);
            }
        });
        term.atom("undefined");
    }
}

/// The design document and the function that filter at the source. Filters that every source has begin with `_`.
fn named_function(filter: &Filter) -> Option<(&str, &str)> {
    let Filter::Function { name, .. } = filter else { return None };
    name.split_once('/').filter(|_| !name.starts_with('_'))
}

/// The document ids for `ids`, which CouchDB accepts encoded as in a query, where a plus is a space; sorted, without
/// duplicates.
pub(crate) fn doc_ids(ids: &[String]) -> Vec<String> {
    let decode = |id: &String| percent_decode_str(&id.replace('+', " ")).decode_utf8_lossy().into_owned();
    let mut ids: Vec<String> = ids.iter().map(decode).collect();
    ids.sort();
    ids.dedup();
    ids
}

/// The user in a header, and the other headers in CouchDB's order.
fn without_user(given: &[(String, String)]) -> (Option<String>, Vec<(String, String)>) {
    let (mut user, mut headers) = (None, given.to_vec());
    headers.sort_by(|(one, _), (other, _)| one.cmp(other));
    headers.dedup_by(|(one, _), (other, _)| one == other);
    let is_login = |(name, _): &(String, String)| name.eq_ignore_ascii_case("authorization");
    if headers.iter().any(is_login) {
        // CouchDB takes the headers through `mochiweb_headers`, which trims them and has another order.
        for (_, value) in &mut headers {
            *value = value.trim_matches([' ', '\t', '\n']).to_owned();
        }
        headers.sort_by_cached_key(|(name, _)| name.to_ascii_lowercase());
        headers.retain(|header| {
            let basic = header.1.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
            let Some((_, coded)) = basic.filter(|_| is_login(header)) else { return true };
            let coded: String = coded.split_ascii_whitespace().collect();
            let text = BASE64_STANDARD.decode(coded).ok().and_then(|text| String::from_utf8(text).ok());
            user = text.and_then(|text| Some(text.split_once(':')?.0.to_owned()));
            false
        });
    }
    // CouchDB sends it with every request, and leaves such headers out.
    headers.retain(|(name, value)| (name.as_str(), value.as_str()) != ("Accept", "application/json"));
    (user, headers)
}

/// The source code of a function as `couch_replicator_filters:fetch/3` trims it: `^ *(.*?) *$`, where `.` does not
/// match a line end, matches one line only, with or without its end.
fn trimmed(function: &str) -> String {
    let (line, end) = function.strip_suffix('\n').map_or((function, ""), |line| (line, "\n"));
    if line.contains('\n') { function.to_owned() } else { format!("{}{end}", line.trim_matches(' ')) }
}

fn object(params: &[(String, JsonText)]) -> JsonText {
    let mut out = Vec::new();
    let mut json = JsonWriter::new(&mut out);
    json.begin_object();
    for (name, value) in params {
        json.name(name).text(value);
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

    fn json(text: &str) -> JsonText {
        JsonText::parse(text.as_bytes()).unwrap()
    }

    /// The id of a replication that depends only on this side.
    fn id_from(address: Address) -> String {
        let source = Endpoint::Remote(address);
        let identity = Identity { uuid: "u1".into(), source, target: Endpoint::Local("db".into()) };
        identity.id(&Filter::None, None, false, None)
    }

    /// The term as Erlang writes it. This and the terms below are built by hand from CouchDB's source and Erlang's
    /// "External Term Format"; e2e/test/beside_replication.test.mjs compares such ids with those of a CouchDB.
    fn id_of(elements: u8, source: &[u8], more: &[u8]) -> String {
        let mut term = vec![131, 108, 0, 0, 0, elements, 109, 0, 0, 0, 2, b'u', b'1', 104, 7];
        term.extend_from_slice(b"d\0\x06remote");
        term.extend_from_slice(source);
        term.extend_from_slice(b"d\0\x09undefined");
        term.extend_from_slice(b"h\x02d\0\x05localm\0\0\0\x02db");
        term.extend_from_slice(more);
        term.push(106);
        model::hex(&Md5::digest(&term))
    }

    #[test]
    fn ids_are_those_of_erlangs_terms() {
        let plain = identity("http://host:5984/a");
        let source = b"d\0\x09undefinedk\0\x04hostd\0\x07defaultk\0\x03/a/j";
        assert_eq!(plain.id(&Filter::None, None, false, None), id_of(3, source, b""));
        assert_eq!(plain, identity("http://host:5984/a/"), "with its slash or without");
        let more = b"m\0\0\0\x11winning_revs_onlym\0\0\0\x037-x";
        assert_eq!(plain.id(&Filter::None, None, true, Some(&json(r#""7-x""#))), id_of(5, source, more));
        let ids = Filter::DocIds(doc_ids(&["b".into(), "a%20c".into(), "b".into(), "a+c".into(), "a%2Bc".into()]));
        let more = b"l\0\0\0\x03m\0\0\0\x03a cm\0\0\0\x03a+cm\0\0\0\x01bj";
        assert_eq!(plain.id(&ids, None, false, None), id_of(4, source, more));
        // The id depends on the user, and not on the password.
        let user = b"k\0\x02mek\0\x04hostb\0\0\x1f\x90k\0\x03/a/j";
        let known = identity("http://me:one@host:8080/a");
        assert_eq!(known.id(&Filter::None, None, false, None), id_of(3, user, b""));
        let changed = identity("http://me:two@host:8080/a");
        assert_eq!(changed.id(&Filter::None, None, false, None), known.id(&Filter::None, None, false, None));
        // The id depends on the function's source code, so a new function makes a new replication.
        let function = Filter::Function { name: "d/f".into(), params: vec![("k".into(), json(r#""v""#))] };
        let more = b"m\0\0\0\x02fnh\x01l\0\0\0\x01h\x02m\0\0\0\x01km\0\0\0\x01vj";
        assert_eq!(plain.id(&function, Some(" fn "), false, None), id_of(5, source, more));
    }

    #[test]
    fn a_port_is_the_usual_one_of_its_scheme() {
        // get_non_default_port(https, 443), (http, 80), (http, 5984) -> default; (_Schema, Port) -> Port.
        for (url, port) in [
            ("http://host/a", &b"d\0\x07default"[..]),
            ("http://host:80/a", b"d\0\x07default"),
            ("http://host:5984/a", b"d\0\x07default"),
            ("https://host/a", b"d\0\x07default"),
            ("https://host:443/a", b"d\0\x07default"),
            ("http://host:443/a", b"b\0\0\x01\xbb"),
            ("https://host:80/a", b"aP"),
            ("https://host:5984/a", b"b\0\0\x17\x60"),
        ] {
            let source = [b"d\0\x09undefinedk\0\x04host", port, b"k\0\x03/a/j"].concat();
            assert_eq!(id_from(url.parse().unwrap()), id_of(3, &source, b""), "{url}");
        }
    }

    #[test]
    fn urls_count_as_they_were_given() {
        for (url, source) in [
            // ibrowse_lib:parse_url/1 leaves the case of the host.
            ("http://Host/A%2fb", &b"d\0\x09undefinedk\0\x04Hostd\0\x07defaultk\0\x07/A%2fb/j"[..]),
            // parse_url([$] | T], get_ipv6_address, …): a host without brackets.
            ("http://[::1]:5984/a", b"d\0\x09undefinedk\0\x03::1d\0\x07defaultk\0\x03/a/j"),
            // maybe_add_trailing_slash/1: none after a query. parse_url([$? | T], …): a slash before one.
            ("http://host/a?x=/1", b"d\0\x09undefinedk\0\x04hostd\0\x07defaultk\0\x07/a?x=/1j"),
            ("http://host?x=1", b"d\0\x09undefinedk\0\x04hostd\0\x07defaultk\0\x05/?x=1j"),
            ("http://host/a//", b"d\0\x09undefinedk\0\x04hostd\0\x07defaultk\0\x04/a//j"),
            // extract_creds_from_url/1: uri_string:parse/1 decodes nothing.
            ("http://m%40e:p@host/a", b"k\0\x05m%40ek\0\x04hostd\0\x07defaultk\0\x03/a/j"),
            // extract_creds_from_url/1: [_] -> {undefined, undefined}; and an empty list of characters is [].
            ("http://me@host/a", b"d\0\x09undefinedk\0\x04hostd\0\x07defaultk\0\x03/a/j"),
            ("http://me:@host/a", b"k\0\x02mek\0\x04hostd\0\x07defaultk\0\x03/a/j"),
            ("http://:p@host/a", b"jk\0\x04hostd\0\x07defaultk\0\x03/a/j"),
        ] {
            assert_eq!(id_from(url.parse().unwrap()), id_of(3, source, b""), "{url}");
        }
        let server: Address = "http://Host/".parse().unwrap();
        let source = b"d\0\x09undefinedk\0\x04Hostd\0\x07defaultk\0\x03/a/j";
        assert_eq!(id_from(server.clone().database("a").unwrap()), id_of(3, source, b""));
        assert_eq!(id_from(server.database("b").unwrap().sibling("a").unwrap()), id_of(3, source, b""));
    }

    #[test]
    fn headers_count_as_they_were_given_and_a_user_in_them_as_a_user() {
        let id = |url: &str, headers: &[(&str, &str)]| {
            let address: Address = url.parse().unwrap();
            id_from(headers.iter().fold(address, |address, (name, value)| address.with_header(name, value).unwrap()))
        };
        let id_with = |user: &[u8], headers: &[u8]| {
            id_of(3, &[user, b"k\0\x04hostd\0\x07defaultk\0\x03/a/", headers].concat(), b"")
        };
        let (url, nobody) = ("http://host/a", &b"d\0\x09undefined"[..]);
        // parse_rep_db/3: lists:ukeysort(1, …) of the names as they are, so "X" is before "h".
        let sorted = b"l\0\0\0\x02h\x02k\0\x01Xk\0\x011h\x02k\0\x01hk\0\x02 vj";
        assert_eq!(id(url, &[("h", " v"), ("X", "1")]), id_with(nobody, sorted));
        // get_rep_endpoint/1: Headers -- DefaultHeaders.
        assert_eq!(id(url, &[("Accept", "application/json")]), id_with(nobody, b"j"));
        let accept = b"l\0\0\0\x01h\x02k\0\x06Acceptk\0\x03*/*j";
        assert_eq!(id(url, &[("Accept", "*/*")]), id_with(nobody, accept));
        // maybe_remove_basic_auth("basic", " " ++ Base64, …): the user moves, and mochiweb_headers trims the others and
        // sorts them by lower-case names. "bWU6b25l" is "me:one".
        let basic = ("authorization", "bAsic bWU6b25l");
        let others = b"l\0\0\0\x02h\x02k\0\x01hk\0\x01vh\x02k\0\x01Xk\0\x011j";
        assert_eq!(id(url, &[basic, ("h", " v"), ("X", "1")]), id_with(b"k\0\x02me", others));
        // normalize_basic_auth/1: `auth`, then the URL, then the header.
        assert_eq!(id("http://url:p@host/a", &[basic]), id_with(b"k\0\x03url", b"j"));
        let auth: Address = "http://url:p@host/a".parse().unwrap();
        let auth = auth.with_user(Some(("au%th".into(), "p".into()))).with_header(basic.0, basic.1).unwrap();
        assert_eq!(id_from(auth), id_with(b"k\0\x05au%th", b"j"));
        // decode_basic_creds/1: {undefined, undefined}, for a text that is not Base64, and for one without a colon. The
        // header is gone.
        assert_eq!(id(url, &[("Authorization", "Basic bad!")]), id_with(nobody, b"j"));
        assert_eq!(id(url, &[("Authorization", "Basic bWU=")]), id_with(nobody, b"j"));
        // maybe_remove_basic_auth(_, _, Headers): other credentials stay.
        let bearer = b"l\0\0\0\x01h\x02k\0\x0dAuthorizationk\0\x08Bearer xj";
        assert_eq!(id(url, &[("Authorization", "Bearer x ")]), id_with(nobody, bearer));
    }

    #[test]
    fn selectors_count_in_their_normal_form() {
        let source = b"d\0\x09undefinedk\0\x04hostd\0\x07defaultk\0\x03/a/j";
        let of_selector = |text: &str| identity("http://host/a").id(&Filter::Selector(json(text)), None, false, None);
        for (selector, term) in [
            // normalize({[]}) -> {[]}.
            ("{}", &b"h\x01j"[..]),
            // norm_ops(Value) -> {[{<<"$eq">>, Value}]}, and ejsort/1 sorts the members of the value too.
            (
                r#"{"a":{"$eq":{"z":[1,2],"y":null}}}"#,
                b"h\x01l\0\0\0\x01h\x02m\0\0\0\x01ah\x01l\0\0\0\x01h\x02m\0\0\0\x03$eqh\x01l\0\0\0\x02h\x02m\0\0\0\x01yd\0\x04nullh\x02m\0\0\0\x01zk\0\x02\x01\x02jjj",
            ),
            // norm_ops({[_, _ | _]}): an implicit $and, in the order given. norm_fields/2: <<Path/binary, ".",
            // Field/binary>>.
            (
                r#"{"b":1,"a":{"c":{"$gt":2}}}"#,
                b"h\x01l\0\0\0\x01h\x02m\0\0\0\x04$andl\0\0\0\x02h\x01l\0\0\0\x01h\x02m\0\0\0\x01bh\x01l\0\0\0\x01h\x02m\0\0\0\x03$eqa\x01jjh\x01l\0\0\0\x01h\x02m\0\0\0\x03a.ch\x01l\0\0\0\x01h\x02m\0\0\0\x03$gta\x02jjjj",
            ),
            // norm_negations({[{<<"$nor">>, …}]}): $and; negate({[{<<"$lt">>, Arg}]}): $gte.
            (
                r#"{"$nor":[{"a":{"$lt":1}}]}"#,
                b"h\x01l\0\0\0\x01h\x02m\0\0\0\x04$andl\0\0\0\x01h\x01l\0\0\0\x01h\x02m\0\0\0\x01ah\x01l\0\0\0\x01h\x02m\0\0\0\x04$gtea\x01jjjj",
            ),
            // norm_fields({[{<<"$elemMatch">>, Arg}]}, Path): its argument begins at <<>>. Nothing in it is negated.
            (
                r#"{"a":{"$elemMatch":{"$not":{"$gt":1}}}}"#,
                b"h\x01l\0\0\0\x01h\x02m\0\0\0\x01ah\x01l\0\0\0\x01h\x02m\0\0\0\x0a$elemMatchh\x01l\0\0\0\x01h\x02m\0\0\0\x04$noth\x01l\0\0\0\x01h\x02m\0\0\0\0h\x01l\0\0\0\x01h\x02m\0\0\0\x03$gta\x01jjjjj",
            ),
            // No backslash leaves a name in CouchDB 3.5.
            (
                r#"{"a\\.b":true}"#,
                b"h\x01l\0\0\0\x01h\x02m\0\0\0\x04a\\.bh\x01l\0\0\0\x01h\x02m\0\0\0\x03$eqd\0\x04truejj",
            ),
        ] {
            assert_eq!(of_selector(selector), id_of(4, source, term), "{selector}");
        }
    }

    #[test]
    fn parameters_and_sequences_count_as_their_json() {
        let source = b"d\0\x09undefinedk\0\x04hostd\0\x07defaultk\0\x03/a/j";
        let plain = identity("http://host/a");
        // query_params/1: {[…]} as it was given, in its order. replication_id/2: [Code, QueryParams].
        let params = vec![("z".into(), json("1")), ("a".into(), json("[true]"))];
        let function = Filter::Function { name: "d/f".into(), params };
        let more = b"m\0\0\0\x02fnh\x01l\0\0\0\x02h\x02m\0\0\0\x01za\x01h\x02m\0\0\0\x01al\0\0\0\x01d\0\x04truejj";
        assert_eq!(plain.id(&function, Some("fn"), false, None), id_of(5, source, more));
        // {view, Filter, QueryParams}: [Filter, QueryParams].
        let view = Filter::Function { name: "_view".into(), params: Vec::new() };
        assert_eq!(plain.id(&view, None, false, None), id_of(5, source, b"m\0\0\0\x05_viewh\x01j"));
        // replication_id/2: [SinceSeq], of its type.
        assert_eq!(plain.id(&Filter::None, None, false, Some(&json("0"))), id_of(4, source, b"a\0"));
        // fetch/3: re:replace(Code, "^ *(.*?) *$", "\\1"), where a dot is not a line feed, and a dollar may stand
        // before the last one.
        for (code, kept) in [
            ("  fn  ", "fn"),
            ("\tfn", "\tfn"),
            (" fn \n", "fn\n"),
            (" f\nn ", " f\nn "),
            (" fn\n\n", " fn\n\n"),
            ("  ", ""),
        ] {
            assert_eq!(trimmed(code), kept, "{code:?}");
        }
    }
}
