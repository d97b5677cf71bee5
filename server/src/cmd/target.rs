//! Whole stores that commands change: users, rights, settings and databases of a store that this process opens, or of
//! one behind a server.

use std::collections::BTreeMap;
use std::sync::Arc;

use kv_api::AnyDatabase;
use model::{CreateOptions, Documents, JsonRef, JsonText, JsonWriter, Layer};
use peer::{Address, ErrorKind, Http, Method, Peer, Trust};
use replicate::Endpoint;

use super::source::SourceArgs;
use crate::cmd::{Failure, failure};
use crate::http::{Identity, USER_PREFIX, USERS, Verifier, by_command, checked_setting};

/// The configuration by section and key.
pub(super) type Configuration = BTreeMap<(String, String), String>;

/// See the [module](self).
pub(super) enum Target {
    Store { layer: Layer<AnyDatabase>, uuid: String },
    Server { root: Http, address: Address, trust: Trust },
}

/// A database of it.
pub(super) struct TargetDatabase {
    pub(super) peer: Arc<dyn Peer>,
    pub(super) end: Endpoint,
    /// Whether this run created it.
    pub(super) is_new: bool,
    place: Place,
}

enum Place {
    Store(Documents<AnyDatabase>),
    Server(Http),
}

impl Target {
    /// The place that a command's options name. A missing store is created.
    pub(super) async fn open(place: &SourceArgs) -> Result<Target, Failure> {
        if let Some(address) = place.server() {
            let trust = place.trust()?;
            return Ok(Target::Server { root: Http::trusting(address.clone(), &trust)?, address, trust });
        }
        let layer = place.layer().await?;
        let uuid = Identity::load(&layer).await?.uuid;
        Ok(Target::Store { layer, uuid })
    }

    /// The uuid in the ids of replications: the same in each run.
    pub(super) fn replicator(&self) -> &str {
        match self {
            Target::Store { uuid, .. } => uuid,
            Target::Server { .. } => "couch-layer",
        }
    }

    /// The uuid that `GET /` has.
    pub(super) async fn uuid(&self) -> Result<Option<String>, Failure> {
        match self {
            Target::Store { uuid, .. } => Ok(Some(uuid.clone())),
            Target::Server { root, .. } => {
                let answer = root.ask(Method::GET, &[], &[], None).await?;
                Ok(answer.get("uuid").and_then(|uuid| Some(uuid.as_str()?.into_owned())))
            }
        }
    }

    /// A database, which is created if there is none.
    pub(super) async fn database(&self, name: &str, partitioned: bool) -> Result<TargetDatabase, Failure> {
        match self {
            Target::Store { layer, .. } => {
                let options = CreateOptions { partitioned, ..CreateOptions::default() };
                let (found, is_new) = match layer.create_database(name, options).await {
                    Ok(created) => (created, true),
                    Err(error) if error.status() == EXISTS => (layer.database(name).await?, false),
                    Err(error) => return Err(error.into()),
                };
                if !is_new && found.is_partitioned_now().await? != partitioned {
                    return Err(other_kind(partitioned));
                }
                // Documents of the old server were accepted there, perhaps before the functions that would refuse them
                // now. The rules of `_users` are ours, and they hash passwords.
                let written = match name {
                    USERS => by_command(layer, found.clone()).await?,
                    _ => found.clone().unvalidated(),
                };
                let peer = Arc::new(peer::Local::new(written));
                Ok(TargetDatabase { peer, end: Endpoint::Local(name.to_owned()), is_new, place: Place::Store(found) })
            }
            Target::Server { address, trust, .. } => {
                let address = address.clone().database(name)?;
                let http = Http::trusting(address.clone(), trust)?;
                let parameters = [("partitioned", "true".to_owned())];
                let is_new = http.create(if partitioned { &parameters } else { &[] }).await?;
                if !is_new {
                    let info = http.ask(Method::GET, &[], &[], None).await?;
                    let props = info.get("props");
                    let found = props.and_then(|props| props.get("partitioned")?.as_bool()).unwrap_or_default();
                    if found != partitioned {
                        return Err(other_kind(partitioned));
                    }
                }
                let (peer, end) = (Arc::new(http.clone()), Endpoint::Remote(address));
                Ok(TargetDatabase { peer, end, is_new, place: Place::Server(http) })
            }
        }
    }

    /// Whether it has a database of this name.
    pub(super) async fn has(&self, name: &str) -> Result<bool, Failure> {
        match self {
            Target::Store { layer, .. } => match layer.database(name).await {
                Ok(_) => Ok(true),
                Err(error) if error.status() == NOT_FOUND => Ok(false),
                Err(error) => Err(error.into()),
            },
            Target::Server { address, trust, .. } => {
                match Http::trusting(address.clone().database(name)?, trust)?.info().await {
                    Ok(_) => Ok(true),
                    Err(error) if error.kind() == ErrorKind::NoDatabase => Ok(false),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    pub(super) fn is_server(&self) -> bool {
        matches!(self, Target::Server { .. })
    }

    /// For each name, whether `_users` has a user of it.
    pub(super) async fn are_users(&self, names: &[&str]) -> Result<Vec<bool>, Failure> {
        let ids: Vec<String> = names.iter().map(|name| format!("{USER_PREFIX}{name}")).collect();
        let winners = match self {
            Target::Store { layer, .. } => match layer.database(USERS).await {
                Ok(users) => peer::Local::new(users).winners(&ids).await,
                Err(error) if error.status() == NOT_FOUND => return Ok(vec![false; names.len()]),
                Err(error) => return Err(error.into()),
            },
            Target::Server { address, trust, .. } => {
                Http::trusting(address.clone().database(USERS)?, trust)?.winners(&ids).await
            }
        };
        match winners {
            Err(error) if error.kind() == ErrorKind::NoDatabase => Ok(vec![false; names.len()]),
            winners => Ok(winners?.iter().map(Option::is_some).collect()),
        }
    }

    /// The settings that count here; `None` if the server shows them to nobody.
    pub(super) async fn configuration(&self) -> Result<Option<Configuration>, Failure> {
        match self {
            Target::Store { layer, .. } => {
                let stored = layer.configuration().await?.0.into_iter();
                Ok(Some(stored.map(|setting| ((setting.section, setting.name), setting.value)).collect()))
            }
            Target::Server { root, .. } => Ok(configuration(root).await?),
        }
    }

    /// Whether the password is that of the user with this document.
    pub(super) async fn proves(&self, name: &str, password: &str, user: &JsonText) -> Result<bool, Failure> {
        const WRONG: u16 = 401;
        match self {
            Target::Store { .. } => Ok(Verifier::of_user(user).is_some_and(|verifier| verifier.matches(password))),
            Target::Server { address, trust, .. } => {
                let address = address.clone().with_user(Some((name.to_owned(), password.to_owned())));
                match Http::trusting(address, trust)?.ask(Method::GET, &["_session"], &[], None).await {
                    Err(error) if error.status() == Some(WRONG) => Ok(false),
                    answer => {
                        let answer = answer?;
                        let found = answer.get("userCtx").and_then(|context| context.get("name")?.as_str());
                        Ok(found.as_deref() == Some(name))
                    }
                }
            }
        }
    }

    pub(super) async fn configure(&self, section: &str, key: &str, value: &str) -> Result<(), Failure> {
        match self {
            Target::Store { layer, .. } => {
                let value = checked_setting(section, key, value).map_err(|error| failure(error.reason().to_owned()))?;
                layer.configure(section, key, Some(&value)).await?;
            }
            Target::Server { root, .. } => {
                let mut body = Vec::new();
                JsonWriter::new(&mut body).str(value);
                root.ask(Method::PUT, &["_node", "_local", "_config", section, key], &[], Some(body)).await?;
            }
        }
        Ok(())
    }
}

/// The status of a database that exists.
const EXISTS: u16 = 412;

const NOT_FOUND: u16 = 404;

fn other_kind(partitioned: bool) -> Failure {
    failure(match partitioned {
        true => "it is partitioned there, and here is one of its name that is not",
        false => "here is a partitioned database of its name",
    })
}

impl TargetDatabase {
    pub(super) async fn security(&self) -> Result<Option<JsonText>, Failure> {
        match &self.place {
            Place::Store(documents) => Ok(Some(documents.security().await?)),
            Place::Server(http) => Ok(known(http.ask(Method::GET, &["_security"], &[], None).await)?),
        }
    }

    pub(super) async fn set_security(&self, security: &JsonText) -> Result<(), Failure> {
        match &self.place {
            Place::Store(documents) => documents.set_security(security.clone()).await?,
            Place::Server(http) => {
                http.ask(Method::PUT, &["_security"], &[], Some(security.as_bytes().to_vec())).await?;
            }
        }
        Ok(())
    }

    /// Whether it has had no document, not even a deleted one.
    pub(super) async fn is_empty(&self) -> Result<bool, Failure> {
        let info = self.peer.info().await?;
        Ok(info.documents == 0 && info.deleted == 0)
    }

    pub(super) async fn revs_limit(&self) -> Result<u64, Failure> {
        match &self.place {
            Place::Store(documents) => Ok(u64::from(documents.revs_limit().await?)),
            Place::Server(http) => get_number(http, "_revs_limit").await,
        }
    }

    pub(super) async fn purged_infos_limit(&self) -> Result<u64, Failure> {
        match &self.place {
            Place::Store(documents) => Ok(documents.purged_infos_limit().await?),
            Place::Server(http) => get_number(http, "_purged_infos_limit").await,
        }
    }

    pub(super) async fn set_revs_limit(&self, limit: u64) -> Result<(), Failure> {
        match &self.place {
            Place::Store(documents) => {
                documents.set_revs_limit(u32::try_from(limit).unwrap_or(u32::MAX)).await?;
            }
            Place::Server(http) => put_number(http, "_revs_limit", limit).await?,
        }
        Ok(())
    }

    pub(super) async fn set_purged_infos_limit(&self, limit: u64) -> Result<(), Failure> {
        match &self.place {
            Place::Store(documents) => documents.set_purged_infos_limit(limit).await?,
            Place::Server(http) => put_number(http, "_purged_infos_limit", limit).await?,
        }
        Ok(())
    }
}

async fn get_number(http: &Http, name: &str) -> Result<u64, Failure> {
    let answer = http.ask(Method::GET, &[name], &[], None).await?;
    answer.root().as_u64().ok_or_else(|| failure(format!("{name} here is not a number")))
}

async fn put_number(http: &Http, name: &str, number: u64) -> peer::Result<()> {
    http.ask(Method::PUT, &[name], &[], Some(number.to_string().into_bytes())).await.map(drop)
}

/// The configuration of a server; `None` if it has none, or shows it to nobody.
pub(super) async fn configuration(server: &Http) -> peer::Result<Option<Configuration>> {
    // CouchDB 1 and pouchdb-server have the second path.
    let mut listed = None;
    for path in [&["_node", "_local", "_config"][..], &["_config"]] {
        if listed.is_none() {
            listed = known(server.ask(Method::GET, path, &[], None).await)?;
        }
    }
    let Some(listed) = listed else { return Ok(None) };
    let mut configuration = Configuration::new();
    for (section, values) in listed.root().members().filter(|(_, values)| values.is_object()) {
        for (key, value) in values.members() {
            configuration.insert((section.clone().into_owned(), key.into_owned()), text(value));
        }
    }
    Ok(Some(configuration))
}

/// The text of a setting. pouchdb-server has numbers and booleans too.
fn text(value: JsonRef<'_>) -> String {
    value.str_or_text().into_owned()
}

/// `None` if the server does not know what was asked for, or shows it to nobody.
pub(super) fn known(answer: peer::Result<JsonText>) -> peer::Result<Option<JsonText>> {
    match answer {
        Err(error) if matches!(error.status(), Some(400 | 403 | 404 | 405 | 501)) => Ok(None),
        Err(error) if error.kind() == ErrorKind::Nonsense => Ok(None),
        answer => answer.map(Some),
    }
}
