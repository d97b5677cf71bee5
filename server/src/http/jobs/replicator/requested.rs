//! Parses replications: from requests, and from documents of `_replicator`.
//!
//! Each side is a URL, or the name of a database of this server, which is read and written directly. Credentials are in
//! the URL, in `auth` or in `headers`, and never appear in answers or logs.
//!
//! Source: CouchDB's `couch_replicator_parse.erl`.

use std::time::Duration;

use hyper::StatusCode;
use model::{JsonRef, JsonText};
use peer::{Address, Connecting, Filter};
use replicate::{Endpoint, Identity, Options};

use crate::http::config::rows::{SettingRows, truth};
use crate::http::error::{ApiError, Result};
use crate::http::wire::body::at_most;

/// The section of the settings of replications.
const SECTION: &str = "replicator";

/// Maximum time without a byte from a side, in milliseconds.
const MOST_SILENCE_MS: u64 = 3_600_000;

/// Maximum number of changes in a batch, whatever is requested.
const MOST_BATCH: u64 = 10_000;
/// Maximum number of documents that a replication names.
const MOST_IDS: usize = 100_000;
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
    /// How sides behind a URL are reached.
    pub(crate) connecting: Connecting,
}

impl RequestedReplication {
    /// Reads a request, or a document of `_replicator`.
    ///
    /// # Errors
    /// 400 and 501, with reasons that contain no credentials.
    pub(crate) fn read(asked: &JsonText) -> Result<RequestedReplication> {
        Reader { asked, settings: None }.replication()
    }

    /// The same. The section `replicator` of the settings has defaults for what is not requested.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_with(asked: &JsonText, settings: &SettingRows) -> Result<RequestedReplication> {
        Reader { asked, settings: Some(settings) }.replication()
    }

    /// The id of the replication, as CouchDB's scheduler names it. `None` if the source must be asked first.
    pub(crate) fn known_id(&self, uuid: &str) -> Option<String> {
        self.identity(uuid).known_id(&self.options).map(|id| self.full_id(id))
    }

    /// The full id, from the id of the checkpoints.
    pub(crate) fn full_id(&self, mut id: String) -> String {
        if self.options.continuous {
            id.push_str("+continuous");
        }
        if self.create_target {
            id.push_str("+create_target");
        }
        id
    }

    /// The identity of its checkpoints.
    pub(crate) fn identity(&self, uuid: &str) -> Identity {
        let (source, target) = (self.source.endpoint.clone(), self.target.endpoint.clone());
        Identity { uuid: uuid.to_owned(), source, target }
    }
}

/// Reads the members of a request. If settings are given, they have the defaults.
struct Reader<'r> {
    asked: &'r JsonText,
    settings: Option<&'r SettingRows>,
}

fn wrong(name: &str, what: &str) -> ApiError {
    ApiError::bad_request(format!("parameter `{name}` must be {what}"))
}

impl<'r> Reader<'r> {
    fn replication(&self) -> Result<RequestedReplication> {
        let params = self.object("query_params", "an object")?;
        self.refuse_proxies()?;
        let options = self.options(self.filter(params)?)?;
        let connecting = self.connecting()?;
        // It has no effect: this server always requests many documents at once.
        self.flag("use_bulk_get")?;
        let parameters = self.object("create_target_params", "a JSON object")?;
        let parameter = |name: &'static str| Some((name, parameters?.get(name)?.text().trim_matches('"').to_owned()));
        let (source, target) = (side(self.given("source"))?, side(self.given("target"))?);
        Ok(RequestedReplication {
            source,
            target,
            create_target: self.flag("create_target")?,
            create_parameters: ["q", "n", "partitioned"].into_iter().filter_map(parameter).collect(),
            options,
            connecting,
        })
    }

    fn given(&self, name: &str) -> Option<JsonRef<'r>> {
        self.asked.get(name).filter(|value| !value.is_null())
    }

    fn flag(&self, name: &str) -> Result<bool> {
        match self.asked.get(name).map(|value| value.as_bool()) {
            Some(None) => Err(wrong(name, "a boolean")),
            flag => Ok(flag.flatten().unwrap_or_default()),
        }
    }

    fn object(&self, name: &str, what: &str) -> Result<Option<JsonRef<'r>>> {
        match self.asked.get(name) {
            Some(value) if !value.is_object() => Err(wrong(name, what)),
            object => Ok(object),
        }
    }

    /// A positive number, at most `most`. A setting of 0 is ignored.
    fn number(&self, name: &str, most: u64) -> Result<Option<usize>> {
        let number = match self.given(name).map(number_of) {
            Some(number) => Some(number.filter(|&number| number > 0).ok_or_else(|| wrong(name, "a positive integer"))?),
            None => self.settings.and_then(|settings| settings.positive(SECTION, name)),
        };
        Ok(number.map(|number| usize::try_from(number.min(most)).unwrap_or(1)))
    }

    fn refuse_proxies(&self) -> Result<()> {
        let has = |name: &str| {
            let proxy = self.given(name);
            proxy.is_some_and(|proxy| proxy.as_str().is_none_or(|proxy| !proxy.is_empty()))
        };
        for name in ["source_proxy", "target_proxy"] {
            if has("proxy") && has(name) {
                return Err(ApiError::bad_request(format!("`proxy` is mutually exclusive with `{name}`")));
            }
        }
        if ["proxy", "source_proxy", "target_proxy"].into_iter().any(has) {
            return Err(ApiError::not_implemented("replications through proxies"));
        }
        Ok(())
    }

    /// The documents to replicate. `params` are for a filter function.
    fn filter(&self, params: Option<JsonRef<'r>>) -> Result<Filter> {
        let filters = ["doc_ids", "selector", "filter"].into_iter().filter(|name| self.given(name).is_some());
        if filters.count() > 1 {
            return Err(ApiError::bad_request("`doc_ids`,`filter`,`selector` are mutually exclusive"));
        }
        if let Some(ids) = self.given("doc_ids") {
            let wrong = || wrong("doc_ids", "an array");
            if !ids.is_array() {
                return Err(wrong());
            }
            let ids = at_most(ids, MOST_IDS, || ApiError::too_many("a replication names", MOST_IDS, "documents"))?;
            let ids = ids.map(|id| id.as_str().map(|id| id.into_owned())).collect::<Option<_>>().ok_or_else(wrong)?;
            return Ok(Filter::DocIds(ids));
        }
        if let Some(selector) = self.object("selector", "a JSON object")? {
            let selector = self.asked.slice_ref(selector);
            mango::Selector::parse(&selector).map_err(|error| ApiError::bad_request(error.to_string()))?;
            return Ok(Filter::Selector(selector));
        }
        let Some(name) = self.given("filter") else { return Ok(Filter::None) };
        let name = name.as_str().ok_or_else(|| wrong("filter", "a string"))?.into_owned();
        if !name.starts_with('_') && !name.contains('/') {
            return Err(ApiError::bad_request("Invalid filter. Must match `ddocname/filtername`."));
        }
        let view = params.and_then(|params| params.get("view")).and_then(JsonRef::as_str);
        if name == "_view" && view.is_none_or(|view| view.split('/').count() != 2) {
            return Err(ApiError::bad_request("Invalid `view` parameter."));
        }
        let params = params.map(JsonRef::members).into_iter().flatten();
        let params = params.map(|(name, value)| (name.into_owned(), self.asked.slice_ref(value))).collect();
        Ok(Filter::Function { name, params })
    }

    fn options(&self, filter: Filter) -> Result<Options> {
        let usual = Options::default();
        Ok(Options {
            continuous: self.flag("continuous")?,
            filter,
            since_seq: self.given("since_seq").map(|seq| self.asked.slice_ref(seq)),
            winning_revs_only: self.flag("winning_revs_only")?,
            use_checkpoints: match self.given("use_checkpoints") {
                Some(_) => self.flag("use_checkpoints")?,
                None => {
                    let set = self.settings.and_then(|settings| settings.read(SECTION, "use_checkpoints", truth));
                    set != Some(false)
                }
            },
            checkpoint_interval: self
                .number("checkpoint_interval", u64::MAX)?
                .map_or(usual.checkpoint_interval, |ms| Duration::from_millis(ms as u64)),
            batch_size: self.number("worker_batch_size", MOST_BATCH)?.unwrap_or(usual.batch_size),
            workers: self.number("worker_processes", MOST_WORKERS)?.unwrap_or(usual.workers),
            retries: match self.given("retries_per_request").map(number_of) {
                Some(Some(times)) => Some(times),
                Some(None) => return Err(wrong("retries_per_request", "a non negative integer")),
                None => self.settings.and_then(|settings| settings.number(SECTION, "retries_per_request")),
            }
            .map(|times| u32::try_from(times).unwrap_or(u32::MAX)),
        })
    }

    fn connecting(&self) -> Result<Connecting> {
        let mut connecting = Connecting::default();
        if let Some(ms) = self.number("connection_timeout", MOST_SILENCE_MS)? {
            connecting.silence = Duration::from_millis(ms as u64);
        }
        if let Some(connections) = self.number("http_connections", u64::from(u16::MAX))? {
            connecting.connections = connections;
        }
        let socket = match self.given("socket_options").map(JsonRef::as_str) {
            Some(Some(text)) => Some(text.into_owned()),
            Some(None) => return Err(wrong("socket_options", "a string")),
            None => {
                let read = |text: &str| set_socket(text, &mut Connecting::default()).map(|()| text.to_owned());
                self.settings.and_then(|settings| settings.read(SECTION, "socket_options", read))
            }
        };
        if let Some(socket) = socket {
            set_socket(&socket, &mut connecting).ok_or_else(|| wrong("socket_options", "a list of Erlang's terms"))?;
        }
        Ok(connecting)
    }
}

/// A number. CouchDB accepts it as text too.
fn number_of(value: JsonRef<'_>) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// Reads options of sockets as Erlang writes them, `[{keepalive, true}, {nodelay, false}]`. Other options are ignored.
/// `None` if the text is not such a list.
fn set_socket(text: &str, connecting: &mut Connecting) -> Option<()> {
    let text: String = text.split_whitespace().collect();
    let list = text.strip_suffix('.').unwrap_or(&text).strip_prefix('[')?.strip_suffix(']')?;
    if list.is_empty() {
        return Some(());
    }
    for term in list.strip_prefix('{')?.strip_suffix('}')?.split("},{") {
        match term.split_once(',')? {
            ("nodelay", value) => connecting.is_nodelay = value.parse().ok()?,
            ("keepalive", value) => connecting.is_kept_alive = value.parse().ok()?,
            _ => {}
        }
    }
    Some(())
}

/// Reads one side: a URL, a name, or an object with a URL and credentials.
fn side(value: Option<JsonRef<'_>>) -> Result<Side> {
    let missing = || ApiError::bad_request("Missing replicator database");
    let value = value.ok_or_else(missing)?;
    let url = match value.is_object() {
        true => value.get("url").and_then(JsonRef::as_str),
        false => value.as_str(),
    };
    let invalid = |why: &str| {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_replication", format!("endpoint has an invalid url{why}"))
    };
    let url = match value.is_object() {
        true => url.ok_or_else(|| invalid(""))?,
        false => url.ok_or_else(missing)?,
    };
    if !url.contains("://") {
        return match value.is_object() {
            true => Err(ApiError::bad_request("a database with credentials needs a URL")),
            false => Ok(Side { name: url.to_string(), endpoint: Endpoint::Local(url.into_owned()) }),
        };
    }
    // Errors of addresses contain no credentials.
    let mut address: Address = url.parse().map_err(|error| invalid(&format!(": {error}")))?;
    for name in ["auth", "headers"] {
        if value.get(name).is_some_and(|part| !part.is_object()) {
            return Err(ApiError::bad_request(format!("`{name}` of a database must be a JSON object")));
        }
    }
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
    // CouchDB shows the address in this form.
    let mut name = address.to_string();
    if !name.ends_with('/') {
        name.push('/');
    }
    Ok(Side { name, endpoint: Endpoint::Remote(address) })
}

/// A side as it is shown: without credentials, and a URL with a slash at its end. `None` if it is not a side.
pub(crate) fn side_name(value: JsonRef<'_>) -> Option<String> {
    side(Some(value)).ok().map(|side| side.name)
}

/// A side as it was given, without credentials. `None` if it is not a side.
pub(crate) fn without_credentials(value: JsonRef<'_>) -> Option<String> {
    let name = side_name(value)?;
    let given = value.get("url").unwrap_or(value).as_str()?;
    Some(if given.ends_with('/') { name } else { name.strip_suffix('/').unwrap_or(&name).to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::config::rows::rows_of;

    fn asked(text: &str) -> Result<RequestedReplication> {
        RequestedReplication::read(&JsonText::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn credentials_are_not_shown() {
        let text = r#"{"source":"http://anna:geheim@a:1/x","target":{"url":"http://b/y","headers":{"Authorization":
            "Basic geheim"},"auth":{"basic":{"username":"bert","password":"geheim"}}}}"#;
        let asked = asked(text).unwrap();
        assert_eq!((asked.source.name.as_str(), asked.target.name.as_str()), ("http://a:1/x/", "http://b/y/"));
        let shown = format!("{asked:?}");
        assert!(!shown.contains("geheim") && !shown.contains("anna"), "{shown}");
        let Endpoint::Remote(target) = asked.target.endpoint else { panic!("it is a URL") };
        assert_eq!(target.user(), Some(&("bert".into(), "geheim".into())));
    }

    #[test]
    fn parameters_and_sequences_keep_their_types_and_order() {
        let text =
            r#"{"source":"a","target":"b","filter":"d/f","query_params":{"z":1,"a":"x","b":[true]},"since_seq":0}"#;
        let options = asked(text).unwrap().options;
        let Filter::Function { params, .. } = options.filter else { panic!("it is a function") };
        let params: Vec<_> = params.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(params, [("z", "1"), ("a", r#""x""#), ("b", "[true]")]);
        assert_eq!(options.since_seq.unwrap().as_str(), "0");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, status, reason) in [
            ("{}", 400, "Missing replicator database"),
            (r#"{"source":"a","target":"b","http_connections":0}"#, 400, "a positive integer"),
            (r#"{"source":"a","target":"b","connection_timeout":"x"}"#, 400, "a positive integer"),
            (r#"{"source":"a","target":"b","retries_per_request":-1}"#, 400, "a non negative integer"),
            (r#"{"source":"a","target":"b","socket_options":"keepalive"}"#, 400, "a list of Erlang's terms"),
            (r#"{"source":"a"}"#, 400, "Missing replicator database"),
            (r#"{"source":"a","target":7}"#, 400, "Missing replicator database"),
            (r#"{"source":"a","target":"b","continuous":1}"#, 400, "parameter `continuous` must be a boolean"),
            (r#"{"source":"a","target":"b","doc_ids":{}}"#, 400, "parameter `doc_ids` must be an array"),
            (r#"{"source":"a","target":"b","doc_ids":[],"selector":{}}"#, 400, "mutually exclusive"),
            (r#"{"source":"a","target":"b","worker_batch_size":0}"#, 400, "a positive integer"),
            (r#"{"source":"a","target":"ftp://x:geheim@b/c"}"#, 400, "endpoint has an invalid url: it is neither"),
            (r#"{"source":"a","target":{}}"#, 400, "endpoint has an invalid url"),
            (r#"{"source":"a","target":{"url":"http://x:geheim@b/c","headers":[]}}"#, 400, "`headers` of a database"),
            (r#"{"source":"a","target":"b","continuous":null}"#, 400, "parameter `continuous` must be a boolean"),
            (r#"{"source":"a","target":"b","use_bulk_get":1}"#, 400, "parameter `use_bulk_get` must be a boolean"),
            (r#"{"source":"a","target":"b","selector":[]}"#, 400, "parameter `selector` must be a JSON object"),
            (r#"{"source":"a","target":"b","filter":"x"}"#, 400, "Must match `ddocname/filtername`."),
            (r#"{"source":"a","target":"b","filter":"_view"}"#, 400, "Invalid `view` parameter."),
            (r#"{"source":"a","target":"b","query_params":1}"#, 400, "parameter `query_params` must be an object"),
            (r#"{"source":"a","target":"b","proxy":"http://a","source_proxy":"http://b"}"#, 400, "`proxy` is mutually"),
            (r#"{"source":"a","target":"https://x:geheim@b/c","proxy":"http://x:geheim@d"}"#, 501, "proxies"),
            (r#"{"source":"a","target":"http://x:geheim@:a/c"}"#, 400, "endpoint has an invalid url"),
        ] {
            let refused = asked(text).unwrap_err();
            let sentence = format!("{refused:?}");
            assert_eq!(refused.status().as_u16(), status, "{text}: {sentence}");
            assert!(sentence.contains(reason) && !sentence.contains("geheim"), "{text}: {sentence}");
        }
    }

    #[test]
    fn connections_are_those_that_are_requested_or_configured() {
        let settings = rows_of(&[
            ("replicator", "connection_timeout", "7000"),
            ("replicator", "http_connections", "3"),
            ("replicator", "retries_per_request", "2"),
            ("replicator", "worker_batch_size", "9"),
            ("replicator", "use_checkpoints", "false"),
            ("replicator", "socket_options", "[{keepalive, true}, {nodelay, false}]"),
        ]);
        let read = |text: &str| {
            let text = JsonText::parse(text.as_bytes()).unwrap();
            RequestedReplication::read_with(&text, &settings).unwrap()
        };
        let configured = read(r#"{"source":"a","target":"b"}"#);
        let connecting =
            Connecting { silence: Duration::from_secs(7), connections: 3, is_nodelay: false, is_kept_alive: true };
        assert_eq!(configured.connecting, connecting);
        assert_eq!((configured.options.retries, configured.options.batch_size), (Some(2), 9));
        assert!(!configured.options.use_checkpoints);
        let own = read(
            r#"{"source":"a","target":"b","connection_timeout":"30000","http_connections":20,"retries_per_request":"0","proxy":"",
                "socket_options":"[{sndbuf, 4096}, {keepalive, false}].","use_checkpoints":true}"#,
        );
        let connecting =
            Connecting { silence: Duration::from_secs(30), connections: 20, is_nodelay: true, is_kept_alive: false };
        assert_eq!((own.connecting, own.options.retries), (connecting, Some(0)));
        assert!(own.options.use_checkpoints);
    }

    #[test]
    fn what_is_not_configured_is_as_the_replicator_has_it() {
        let asked = JsonText::parse(br#"{"source":"a","target":"b"}"#).unwrap();
        let listed = RequestedReplication::read_with(&asked, &rows_of(&[])).unwrap();
        let (usual, own) = (replicate::Options::default(), listed.options);
        assert_eq!((own.batch_size, own.workers, own.retries), (usual.batch_size, usual.workers, usual.retries));
        assert_eq!((own.checkpoint_interval, own.use_checkpoints), (usual.checkpoint_interval, usual.use_checkpoints));
        assert_eq!(listed.connecting, Connecting::default());
    }
}
