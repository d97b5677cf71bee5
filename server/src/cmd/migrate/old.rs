//! The old server: what it lists, and what a database of it is besides its documents.

use std::collections::HashSet;

use model::JsonText;
use peer::{Address, ErrorKind, Http, Method, Result, Trust};

use crate::cmd::target::{Configuration, configuration, known};

/// Number of names that are asked for at a time. pouchdb-server sends all of them whatever it is asked.
const NAMES: usize = 1_000;

/// The server that is left.
pub(super) struct Old {
    root: Http,
    pub(super) address: Address,
    trust: Trust,
}

/// A database of it.
pub(super) struct OldDatabase {
    pub(super) http: Http,
    pub(super) address: Address,
    /// What it is besides its documents.
    pub(super) about: About,
}

/// A database without its documents. `None` for what the server does not know.
#[derive(Debug, Default)]
pub(super) struct About {
    pub(super) partitioned: bool,
    pub(super) security: Option<JsonText>,
    pub(super) revs_limit: Option<u64>,
    pub(super) purged_infos_limit: Option<u64>,
}

impl Old {
    pub(super) fn at(address: Address, trust: Trust) -> Result<Old> {
        Ok(Old { root: Http::trusting(address.clone(), &trust)?, address, trust })
    }

    /// What the server says of itself: its uuid, which a Cloudant and old servers do not have.
    pub(super) async fn uuid(&self) -> Result<Option<String>> {
        let answer = self.root.ask(Method::GET, &[], &[], None).await?;
        Ok(answer.get("uuid").and_then(|uuid| Some(uuid.as_str()?.into_owned())))
    }

    /// The names of all databases, sorted.
    pub(super) async fn names(&self) -> Result<Vec<String>> {
        let mut names: Vec<String> = Vec::new();
        let mut known = HashSet::new();
        loop {
            let mut query = vec![("limit", (NAMES + 1).to_string())];
            if let Some(last) = names.last() {
                let mut key = Vec::new();
                model::JsonWriter::new(&mut key).str(last);
                query.push(("startkey", String::from_utf8_lossy(&key).into_owned()));
            }
            let page = self.root.ask(Method::GET, &["_all_dbs"], &query, None).await?;
            let before = names.len();
            for name in page.root().elements().filter_map(|name| Some(name.as_str()?.into_owned())) {
                if known.insert(name.clone()) {
                    names.push(name);
                }
            }
            let is_last = page.root().elements().count() != NAMES + 1 || names.len() == before;
            if is_last {
                names.sort();
                return Ok(names);
            }
        }
    }

    /// A database, with what it is besides its documents.
    pub(super) async fn database(&self, name: &str) -> Result<OldDatabase> {
        let address = self.address.clone().database(name);
        let address = address.map_err(|error| peer::Error::new(ErrorKind::Refused, error.to_string()))?;
        let http = Http::trusting(address.clone(), &self.trust)?;
        let info = http.ask(Method::GET, &[], &[], None).await?;
        let partitioned = info.get("props").and_then(|props| props.get("partitioned")?.as_bool()).unwrap_or_default();
        let number = |answer: Option<JsonText>| answer.and_then(|answer| answer.root().as_u64());
        let about = About {
            partitioned,
            security: known(http.ask(Method::GET, &["_security"], &[], None).await)?.filter(|it| it.root().is_object()),
            revs_limit: number(known(http.ask(Method::GET, &["_revs_limit"], &[], None).await)?),
            purged_infos_limit: number(known(http.ask(Method::GET, &["_purged_infos_limit"], &[], None).await)?),
        };
        Ok(OldDatabase { http, address, about })
    }

    /// The configuration; `None` if the server has none, or shows it to nobody, as a Cloudant.
    pub(super) async fn configuration(&self) -> Result<Option<Configuration>> {
        configuration(&self.root).await
    }
}
