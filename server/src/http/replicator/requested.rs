//! Parses replications: of requests, and of documents of `_replicator`.
//!
//! Each side is a URL, or the name of a database of this server, which is read and written directly. Credentials are in
//! the URL, in `auth` or in `headers`, and appear in no answer and no log.
//!
//! Source: CouchDB's `couch_replicator_parse.erl`.

use std::time::Duration;

use model::{JsonRef, JsonText};
use peer::{Address, Filter};
use replicate::{Endpoint, Identity, Options};

use crate::http::error::{ApiError, Result};

/// Maximum number of changes in a batch, whatever is requested.
const MOST_BATCH: u64 = 10_000;
/// Maximum number of groups of documents that are transferred at the same time.
const MOST_WORKERS: u64 = 20;

/// One side of a requested replication.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) endpoint: Endpoint,
    /// Its name without credentials.
    pub(crate) name: String,
}

/// A requested replication.
#[derive(Debug)]
pub(crate) struct RequestedReplication {
    pub(crate) source: Side,
    pub(crate) target: Side,
    pub(crate) create_target: bool,
    pub(crate) create_parameters: Vec<(&'static str, String)>,
    pub(crate) options: Options,
}

impl RequestedReplication {
    /// Reads a request, or a document of `_replicator`.
    ///
    /// # Errors
    /// 400 and 501, with sentences that name no credentials.
    pub(crate) fn read(asked: &JsonText) -> Result<RequestedReplication> {
        read(asked)
    }

    /// The id of the replication, as CouchDB's scheduler names it.
    pub(crate) fn id(&self, uuid: &str) -> String {
        let mut id = self.identity(uuid).replication_id(&self.options);
        if self.options.continuous {
            id.push_str("+continuous");
        }
        if self.create_target {
            id.push_str("+create_target");
        }
        id
    }

    /// What its checkpoints are found by.
    pub(crate) fn identity(&self, uuid: &str) -> Identity {
        let (source, target) = (self.source.endpoint.clone(), self.target.endpoint.clone());
        Identity { uuid: uuid.to_owned(), source, target }
    }
}

fn read(asked: &JsonText) -> Result<RequestedReplication> {
    let wrong = |name: &str, what: &str| ApiError::bad_request(format!("parameter `{name}` must be {what}"));
    let given = |name: &str| asked.get(name).filter(|value| !value.is_null());
    let flag = |name: &str| match given(name).map(|value| value.as_bool()) {
        Some(None) => Err(wrong(name, "a boolean")),
        flag => Ok(flag.flatten().unwrap_or_default()),
    };
    let number = |name: &str, most: u64| match given(name).map(JsonRef::as_u64) {
        Some(Some(number)) if number > 0 => Ok(Some(usize::try_from(number.min(most)).unwrap_or(1))),
        Some(_) => Err(wrong(name, "a positive integer")),
        None => Ok(None),
    };
    for name in ["proxy", "source_proxy", "target_proxy"] {
        if given(name).is_some() {
            return Err(ApiError::not_implemented("replications through proxies"));
        }
    }
    let filters = ["doc_ids", "selector", "filter"].into_iter().filter(|name| given(name).is_some()).count();
    if filters > 1 {
        return Err(ApiError::bad_request("`doc_ids`,`filter`,`selector` are mutually exclusive options"));
    }
    let filter = if let Some(ids) = given("doc_ids") {
        let ids = ids.is_array().then(|| ids.elements().map(|id| id.as_str().map(|id| id.into_owned())));
        Filter::DocIds(ids.and_then(Iterator::collect).ok_or_else(|| wrong("doc_ids", "an array"))?)
    } else if let Some(selector) = given("selector") {
        let selector = asked.slice_ref(selector);
        mango::Selector::parse(&selector).map_err(|error| ApiError::bad_request(error.to_string()))?;
        Filter::Selector(selector)
    } else if let Some(name) = given("filter") {
        let name = name.as_str().ok_or_else(|| wrong("filter", "a string"))?.into_owned();
        let params = given("query_params").map(JsonRef::members).into_iter().flatten();
        let text = |value: JsonRef<'_>| value.str_or_text().into_owned();
        Filter::Function { name, params: params.map(|(name, value)| (name.into_owned(), text(value))).collect() }
    } else {
        Filter::None
    };
    let usual = Options::default();
    let since = given("since_seq");
    let options = Options {
        continuous: flag("continuous")?,
        filter,
        since_seq: since.map(|seq| seq.str_or_text().into_owned()),
        winning_revs_only: flag("winning_revs_only")?,
        use_checkpoints: given("use_checkpoints").is_none() || flag("use_checkpoints")?,
        checkpoint_interval: number("checkpoint_interval", u64::MAX)?
            .map_or(usual.checkpoint_interval, |ms| Duration::from_millis(ms as u64)),
        batch_size: number("worker_batch_size", MOST_BATCH)?.unwrap_or(usual.batch_size),
        workers: number("worker_processes", MOST_WORKERS)?.unwrap_or(usual.workers),
    };
    let parameters = given("create_target_params");
    if parameters.is_some_and(|parameters| !parameters.is_object()) {
        return Err(wrong("create_target_params", "a JSON object"));
    }
    let parameter = |name: &'static str| Some((name, parameters?.get(name)?.text().trim_matches('"').to_owned()));
    let (source, target) = (side(given("source"))?, side(given("target"))?);
    Ok(RequestedReplication {
        source,
        target,
        create_target: flag("create_target")?,
        create_parameters: ["q", "n", "partitioned"].into_iter().filter_map(parameter).collect(),
        options,
    })
}

/// Reads one side: a URL, a name, or an object with a URL and credentials.
fn side(value: Option<JsonRef<'_>>) -> Result<Side> {
    let missing = || ApiError::bad_request("Missing replicator database");
    let value = value.ok_or_else(missing)?;
    let url = match value.is_object() {
        true => value.get("url").and_then(JsonRef::as_str),
        false => value.as_str(),
    };
    let url = url.ok_or_else(missing)?;
    if !url.contains("://") {
        return match value.is_object() {
            true => Err(ApiError::bad_request("a database with credentials needs a URL")),
            false => Ok(Side { name: url.to_string(), endpoint: Endpoint::Local(url.into_owned()) }),
        };
    }
    // The error of an address names no credentials.
    let mut address: Address =
        url.parse().map_err(|error| ApiError::bad_request(format!("the URL of a database is wrong: {error}")))?;
    let text = |value: JsonRef<'_>, name: &str| value.get(name).and_then(JsonRef::as_str).map(|text| text.into_owned());
    if let Some(basic) = value.get("auth").and_then(|auth| auth.get("basic")) {
        let user = text(basic, "username").zip(text(basic, "password"));
        address = address
            .with_user(Some(user.ok_or_else(|| ApiError::bad_request("`auth.basic` needs username and password"))?));
    }
    for (name, value) in value.get("headers").map(JsonRef::members).into_iter().flatten() {
        let value = value.as_str().ok_or_else(|| ApiError::bad_request("headers must be strings"))?;
        address = address.with_header(&name, &value).map_err(|error| ApiError::bad_request(error.to_string()))?;
    }
    Ok(Side { name: address.to_string(), endpoint: Endpoint::Remote(address) })
}

/// A side as it may be shown: without credentials. `None` where it is none.
pub(crate) fn shown(value: JsonRef<'_>) -> Option<String> {
    side(Some(value)).ok().map(|side| side.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<RequestedReplication> {
        RequestedReplication::read(&JsonText::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn credentials_are_not_shown() {
        let text = r#"{"source":"http://anna:geheim@a:1/x","target":{"url":"http://b/y","headers":{"Authorization":
            "Basic geheim"},"auth":{"basic":{"username":"bert","password":"geheim"}}}}"#;
        let asked = asked(text).unwrap();
        assert_eq!((asked.source.name.as_str(), asked.target.name.as_str()), ("http://a:1/x", "http://b/y"));
        let shown = format!("{asked:?}");
        assert!(!shown.contains("geheim") && !shown.contains("anna"), "{shown}");
        let Endpoint::Remote(target) = asked.target.endpoint else { panic!("it is a URL") };
        assert_eq!(target.user(), Some(&("bert".into(), "geheim".into())));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, status, reason) in [
            ("{}", 400, "Missing replicator database"),
            (r#"{"source":"a"}"#, 400, "Missing replicator database"),
            (r#"{"source":"a","target":7}"#, 400, "Missing replicator database"),
            (r#"{"source":"a","target":"b","continuous":1}"#, 400, "parameter `continuous` must be a boolean"),
            (r#"{"source":"a","target":"b","doc_ids":{}}"#, 400, "parameter `doc_ids` must be an array"),
            (r#"{"source":"a","target":"b","doc_ids":[],"selector":{}}"#, 400, "mutually exclusive"),
            (r#"{"source":"a","target":"b","worker_batch_size":0}"#, 400, "a positive integer"),
            (r#"{"source":"a","target":"ftp://x:geheim@b/c"}"#, 400, "the URL of a database is wrong"),
            (r#"{"source":"a","target":"https://x:geheim@b/c","proxy":"http://x:geheim@d"}"#, 501, "proxies"),
            (r#"{"source":"a","target":"http://x:geheim@:a/c"}"#, 400, "the URL of a database is wrong"),
        ] {
            let refused = asked(text).unwrap_err();
            let sentence = format!("{refused:?}");
            assert_eq!(refused.status().as_u16(), status, "{text}: {sentence}");
            assert!(sentence.contains(reason) && !sentence.contains("geheim"), "{text}: {sentence}");
        }
    }
}
