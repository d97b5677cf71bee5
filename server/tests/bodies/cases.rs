//! The bodies sent to each row of the table of endpoints.

use std::collections::HashSet;
use std::sync::LazyLock;

/// Bodies for the rows that read one. In each, the text between `<` and `>` is repeated until the body is large, with a
/// comma between two, or without one after `|`. A `%` in it becomes a number, and `@` many attachments. In a list, the
/// entries of [`ENTRIES`] are sent too. A head up to the first space is a query string, or a path instead of the row's
/// own.
///
/// Every row whose method may have a body must be listed here, even if it reads none.
#[rustfmt::skip]
const BODIES: &[(&str, &str, &[&str])] = &[
    ("POST", "/_session", &[r#"{"name":"<a|>","password":"b"}"#, r#"{<"%":0>}"#]),
    ("*", "/favicon.ico", &[]),
    ("POST", "/_dbs_info", &[r#"{"keys":[<"a">]}"#]),
    ("POST", "/_replicate", &[
        r#"{"source":"pub","target":"none","doc_ids":[<"a%">]}"#,
        r#"{"source":"pub","target":"none","selector":{"$or":[<{"a":1}>]}}"#,
        r#"{"source":"pub","target":"none","query_params":{<"%":"a">}}"#,
    ]),
    ("POST", "/_transact", &[
        r#"{"edits":[<{"db":"pub","doc":{"_attachments":{@}}}>]}"#,
        r#"{"edits":[<{"db":"pub","doc":{}}>]}"#,
        r#"{"edits":[{"db":"pub","doc":{"_attachments":{<"%":{"stub":true}>}}}]}"#,
    ]),
    ("POST", "/_node/{node}/_config/_reload", &[]),
    ("PUT", "/_node/{node}/_config/{section}/{key}", &[r#""<a|>""#]),
    ("*", "/_node/*", &[]),
    ("*", "/_reshard/*", &[]),
    ("POST", "/_search_analyze", &[]),
    ("POST", "/_cluster_setup", &[r#"{"ensure_dbs_exist":[<"A">]}"#]),
    ("POST", "/{db}", &[r#"{<"%":0>}"#, r#"{"_attachments":{<"%":{"stub":true}>}}"#]),
    ("PUT", "/{db}", &[]),
    ("POST", "/{db}/_bulk_docs", &[
        r#"{"docs":[<{}>]}"#,
        r#"{"docs":<[|>"#,
        r#"{"docs":[{<"_%":0>}]}"#,
        r#"{"docs":[{"_attachments":{<"%":{"stub":true}>}}]}"#,
        r#"{"docs":[<{"_attachments":{@}}>]}"#,
        r#"{"new_edits":false,"docs":[<{"_id":"%","_rev":"1-a","_attachments":{@}}>]}"#,
        r#"{"docs":[{"_revs_info":[<{}>],"_conflicts":[{}]}]}"#,
        r#"{"new_edits":false,"docs":[{"_id":"a","_revisions":{"start":99999999,"ids":[<"">]}}]}"#,
    ]),
    ("POST", "/{db}/_bulk_get", &[r#"{"docs":[<{"id":"a"}>]}"#, r#"{"docs":[{"id":"a","atts_since":[<"1-a">]}]}"#]),
    ("POST", "/{db}/_all_docs", &[r#"{"keys":[<"a">]}"#, r#"?descending=true {"keys":[<"a">]}"#]),
    ("POST", "/{db}/_all_docs/queries", QUERIES),
    ("POST", "/{db}/_design_docs", &[r#"{"keys":[<"a">]}"#]),
    ("POST", "/{db}/_design_docs/queries", QUERIES),
    ("POST", "/{db}/_local_docs", &[r#"{"keys":[<"_local/a">]}"#]),
    ("POST", "/{db}/_local_docs/queries", QUERIES),
    ("POST", "/{db}/_changes", &[
        r#"?filter=_doc_ids {"doc_ids":[<"%">]}"#,
        r#"?filter=_selector {"selector":{"$or":[<{"a":1}>]}}"#,
        r#"?filter=_selector {"selector":{"n":{"$in":[<0>]}}}"#,
    ]),
    ("PUT", "/{db}/_couch_layer/format", &[r#""<a|>""#]),
    ("POST", "/_couch_layer/promote", &[r#"{"anyway":"<a|>"}"#]),
    ("POST", "/_couch_layer/snapshot", &[r#"{"to":"<a|>"}"#]),
    ("POST", "/_couch_layer/backup", &[r#"{"to":"<a|>"}"#, r#"{"to":"a","databases":[<"%">]}"#]),
    ("POST", "/_couch_layer/backup/runs", &[r#"{"to":"<a|>"}"#]),
    ("POST", "/_couch_layer/backup/verify", &[r#"{"to":"<a|>"}"#]),
    ("POST", "/{db}/_couch_layer/relocate", &[r#"{"to":"<a|>"}"#]),
    ("POST", "/{db}/_couch_layer/try_view", &[
        r#"{"view":"v","design":{"views":{"v":{"map":"doc => emit(1)"},<"%":{"map":"x"}>}}}"#,
        r#"{"view":"v","design":{<"%":0>,"views":{"v":{"map":"doc => emit(1)"}}}}"#,
    ]),
    ("POST", "/{db}/_couch_layer/vault", &[r#"{"grace":"<1|>"}"#]),
    ("PUT", "/{db}/_couch_layer/vault", &[r#"{"collect":"<1|>"}"#, r#"{"collect":null,"grace":"<1|>"}"#]),
    ("POST", "/{db}/_revs_diff", REVISIONS),
    ("POST", "/{db}/_missing_revs", REVISIONS),
    ("PUT", "/{db}/_keep_replaced", &[r#"{<"%":0>}"#]),
    ("PUT", "/{db}/_revs_limit", &["<1|>"]),
    ("PUT", "/{db}/_security", &[r#"{"members":{"names":[<"a">]}}"#]),
    ("POST", "/{db}/_compact", &[]),
    ("POST", "/{db}/_view_cleanup", &[]),
    ("POST", "/{db}/_search_cleanup", &[]),
    ("POST", "/{db}/_nouveau_cleanup", &[]),
    ("POST", "/{db}/_ensure_full_commit", &[]),
    ("POST", "/{db}/_compact/{view}", &[]),
    ("*", "/{db}/_temp_view", &[]),
    ("POST", "/{db}/_find", SEARCHES),
    ("POST", "/{db}/_explain", SEARCHES),
    ("POST", "/{db}/_index", &[
        r#"{"index":{"fields":[<"a">]}}"#,
        r#"{"index":{"fields":["a"],"partial_filter_selector":{"$or":[<{"a":1}>]}}}"#,
    ]),
    ("POST", "/{db}/_index/_bulk_delete", &[r#"{"docids":[<"a">]}"#]),
    ("*", "/{db}/_index/*", &[]),
    ("POST", "/{db}/_couch_layer/purge_tombstones", &[r#"{"older":"<1|>"}"#]),
    ("POST", "/{db}/_purge", REVISIONS),
    ("PUT", "/{db}/_purged_infos_limit", &["<1|>"]),
    ("*", "/{db}/_partition", &[]),
    ("*", "/{db}/_partition/{partition}", &[]),
    ("POST", "/{db}/_partition/{partition}/_all_docs", &[r#"{"keys":[<"p:a">]}"#]),
    ("POST", "/{db}/_partition/{partition}/_all_docs/queries", QUERIES),
    ("POST", "/{db}/_partition/{partition}/_find", SEARCHES),
    ("POST", "/{db}/_partition/{partition}/_explain", SEARCHES),
    ("POST", "/{db}/_partition/{partition}/{ddoc}/_view/{view}", &[r#"{"keys":[<0>]}"#]),
    ("POST", "/{db}/_partition/{partition}/{ddoc}/_view/{view}/queries", QUERIES),
    ("*", "/{db}/_partition/{partition}/*", &[]),
    ("*", "/{db}/_sync_shards/*", &[]),
    ("*", "/{db}/_shards/*", &[]),
    ("PUT", "/{db}/_auto_purge", &[r#"{"deleted_document_ttl":"<1|>"}"#]),
    ("*", "/{db}/_local", &[]),
    ("PUT", "/{db}/{local}", &[r#"{<"%":0>}"#, r#"{"_revisions":{"start":0,"ids":[<"a">]}}"#]),
    ("*", "/{db}/_local/*", &[]),
    ("POST", "/{db}/{ddoc}/_view/{view}", &[r#"{"keys":[<0>]}"#]),
    ("POST", "/{db}/{ddoc}/_view/{view}/queries", QUERIES),
    ("*", "/{db}/{ddoc}/_view/*", &[]),
    ("POST", "/{db}/{ddoc}/_search/*", &[]),
    ("POST", "/{db}/{ddoc}/_nouveau/*", &[]),
    ("*", "/{db}/{ddoc}/_show/*", &[]),
    ("*", "/{db}/{ddoc}/_list/*", &[]),
    ("*", "/{db}/{ddoc}/_update/*", &["<a&|>", r#"{<"%":0>}"#]),
    ("*", "/{db}/{ddoc}/_rewrite/*", &[]),
    ("POST", "/{db}/{docid}", &[]),
    ("PUT", "/{db}/{docid}", &[
        r#"{<"%":0>}"#,
        r#"{<"":0>}"#,
        r#"{"_attachments":{<"%":{"stub":true}>}}"#,
        r#"?new_edits=false {"_revisions":{"start":99999999,"ids":[<"a">]}}"#,
        r#"/pub/_design/large {"views":{<"%":{"map":"function () {}"}>}}"#,
        r#"/_users/org.couchdb.user:a {"type":"user","name":"a","password":"a","roles":[<"a">]}"#,
        r#"/_replicator/a {"source":"none","target":"none","doc_ids":[<"%">]}"#,
    ]),
    ("COPY", "/{db}/{docid}", &[]),
    ("PATCH", "/{db}/{docid}", &[r#"[<{"op":"remove","path":""}>]"#, r#"[{"op":"remove","path":"</a|>"}]"#]),
    ("PUT", "/{db}/{docid}/*", &[]),
];

const QUERIES: &[&str] = &[r#"{"queries":[<{}>]}"#, r#"{"queries":[{<"%":0>}]}"#, r#"{"queries":[{"keys":[<"a">]}]}"#];

const REVISIONS: &[&str] = &[r#"{<"%":["1-a"]>}"#, r#"{<"%":[]>}"#, r#"{"a":[<"1-a">]}"#];

const SEARCHES: &[&str] = &[
    r#"{"selector":{"n":{"$in":[<0>]}}}"#,
    r#"{"selector":{"n":{"$all":[<0>]}}}"#,
    r#"{"selector":{"$or":[<{"$and":[]}>]}}"#,
    r#"{"selector":{"$nor":[<{"$and":[{"$and":[{"$and":[]}]}]}>]}}"#,
    r#"{"selector":{"<a.|>":1}}"#,
    r#"{"selector":{},"sort":[<"a">]}"#,
    r#"{"selector":{},"fields":[<"a">]}"#,
    r#"{"selector":{},"use_index":[<"a">]}"#,
    r#"{"selector":{},"use_index":"</|>"}"#,
];

/// Sent to every row: handlers should not read them, and must not be harmed by them.
pub(crate) const ANYWHERE: &[&str] = &["[<0>]", "[<{}>]", r#"[<"">]"#, "<[|>", r#"{<"%":0>}"#, "< |>"];

/// Entries of a list in a body, instead of its own.
const ENTRIES: &[&str] = &["0", "{}", "[]", r#""""#];

/// Attachments that fill the rest of their document.
static ATTACHMENTS: LazyLock<String> =
    LazyLock::new(|| (0..200).map(|number| format!(r#""{number}":{{"data":""}}"#)).collect::<Vec<_>>().join(","));

/// A request with a body that may have any size.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    before: &'static str,
    entry: &'static str,
    after: &'static str,
}

impl Case {
    fn of(method: &'static str, row: &str, body: &'static str) -> Case {
        let (head, body) = match body.split_once(' ') {
            Some((head, body)) if head.starts_with(['?', '/']) && !head.contains('<') => (head, body),
            _ => ("", body),
        };
        let path = if head.starts_with('/') { head.to_owned() } else { example(row) + head };
        let (before, rest) = body.split_once('<').unwrap();
        let (entry, after) = rest.rsplit_once('>').unwrap();
        Case { method, path, before, entry, after }
    }

    /// The body, of this many bytes at most.
    pub(crate) fn body(&self, bytes: usize) -> String {
        let (entry, comma) = self.entry.strip_suffix('|').map_or((self.entry, ","), |entry| (entry, ""));
        let entry = entry.replace('@', &ATTACHMENTS);
        let parts: Vec<&str> = entry.split('%').collect();
        let mut body = String::with_capacity(bytes);
        body.push_str(self.before);
        let (mut before, mut number) = (body.len(), String::new());
        for next in 1.. {
            body.push_str(parts[0]);
            for part in &parts[1..] {
                body.push_str(&number);
                body.push_str(part);
            }
            if body.len() + self.after.len() > bytes {
                body.truncate(before);
                break;
            }
            before = body.len();
            body.push_str(comma);
            if parts.len() > 1 {
                number = next.to_string();
            }
        }
        body + self.after
    }

    /// Whether a 503 is the permanent answer: search is not supported.
    pub(crate) fn is_search(&self) -> bool {
        self.path.contains("/_search")
    }

    /// The media type of its body.
    pub(crate) fn kind(&self) -> &'static str {
        match (self.method, self.entry) {
            ("PATCH", _) => "application/json-patch+json",
            (_, "a&|") => "application/x-www-form-urlencoded",
            _ => "application/json",
        }
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Case { method, path, before, entry, after } = self;
        write!(f, "{method} {path} {before}<{entry}>{after}")
    }
}

/// A path that a row matches.
pub(crate) fn example(row: &str) -> String {
    let db = if row.contains("{partition}") { "parts" } else { "pub" };
    row.replace("{db}", db)
        .replace("{ddoc}", "_design/d")
        .replace("{local}", "_local/a")
        .replace("{node}", "_local")
        .replace("{docid}", "doc")
        .replace("{view}", "v")
        .replace("_update/*", "_update/form")
        .replace(['{', '}'], "")
        .replace('*', "a")
}

/// The rows of the table, one method each. Rows for any method are sent `POST`.
pub(crate) fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    server::http::endpoints().flat_map(|(path, methods)| methods.split(',').map(move |method| (method, path)))
}

/// All cases, row by row.
pub(crate) fn cases() -> Vec<Vec<Case>> {
    assert_eq!(gaps(), Vec::<String>::new(), "the table of endpoints and that of bodies differ");
    let of_row = |(method, path): (&'static str, &'static str)| {
        let known = BODIES.iter().filter(|(of, row, _)| (*of, *row) == (method, path));
        let method = if method == "*" { "POST" } else { method };
        let anywhere = ANYWHERE.iter().map(move |body| Case::of(method, path, body));
        let own = known.flat_map(|(.., bodies)| *bodies).flat_map(move |body| {
            let own = Case::of(method, path, body);
            let is_list = own.before.ends_with('[') && own.after.starts_with(']');
            let other = ENTRIES.iter().filter(|_| is_list).map(|entry| Case { entry, ..own.clone() });
            other.chain([own.clone()]).collect::<Vec<_>>()
        });
        own.chain(anywhere).collect()
    };
    // An answer to HEAD differs only in its body.
    rows().filter(|(method, _)| *method != "HEAD").map(of_row).collect()
}

/// Rows that are not listed here, and listed bodies without a row.
fn gaps() -> Vec<String> {
    let brings = |(method, _): &(&str, &str)| !matches!(*method, "GET" | "HEAD" | "DELETE");
    let rows: HashSet<(&str, &str)> = rows().filter(brings).collect();
    let known: HashSet<(&str, &str)> = BODIES.iter().map(|(method, path, _)| (*method, *path)).collect();
    rows.symmetric_difference(&known).map(|(method, path)| format!("{method} {path}")).collect()
}
