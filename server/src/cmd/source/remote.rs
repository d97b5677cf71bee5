//! A database behind a server: couch-layer's, or any CouchDB, except for checks and relocations.

use std::sync::Arc;
use std::time::Duration;

use model::{BodyFormat, JsonRef, JsonText};
use peer::{Address, ErrorKind, Http, Method, Peer, Trust};

use super::if_no_database::IfNoDatabase;
use crate::cmd::{Failure, failure};
use crate::relocation::{RequestedRelocation, Status};
use crate::report::Checked;

/// Pause between two requests that ask whether a compaction has ended.
const COMPACTION_PAUSE: Duration = Duration::from_millis(500);

/// Path of relocations below the database.
const RELOCATE: [&str; 2] = ["_couch_layer", "relocate"];

/// Path of what concerns a vault below the database.
const VAULT: [&str; 2] = ["_couch_layer", "vault"];

/// Path of the layout of bodies below the database.
const FORMAT: [&str; 2] = ["_couch_layer", "format"];

/// A database behind a server.
#[derive(Clone, Debug)]
pub(crate) struct Remote(Arc<Http>);

impl Remote {
    pub(crate) async fn open(
        server: &Address,
        name: &str,
        if_none: IfNoDatabase,
        trust: &Trust,
    ) -> Result<Self, Failure> {
        if server.url().cannot_be_a_base() {
            return Err(failure(format!("{server} cannot have a database")));
        }
        Self::at(with_own_user(server.clone().database(name)?), if_none, trust).await
    }

    /// The database at this address.
    pub(crate) async fn at(address: Address, if_none: IfNoDatabase, trust: &Trust) -> Result<Self, Failure> {
        let remote = Remote(Arc::new(Http::trusting(address.clone(), trust)?));
        match if_none {
            IfNoDatabase::Create => {
                remote.0.create(&[]).await?;
            }
            IfNoDatabase::Fail => {}
            IfNoDatabase::FailNaming(_) => match remote.0.info().await {
                Err(error) if error.kind() == ErrorKind::NoDatabase => {
                    return Err(failure(format!("there is no database {address}{}", if_none.advice())));
                }
                // Whoever uses it meets any other failure too.
                _ => {}
            },
        }
        Ok(remote)
    }

    /// The database as a peer.
    pub(crate) fn peer(&self) -> Arc<dyn Peer> {
        self.0.clone()
    }

    pub(super) fn sibling(&self, name: &str) -> Result<Self, Failure> {
        Ok(Remote(Arc::new(self.0.sibling(name)?)))
    }

    async fn ask(&self, method: Method, path: &[&str], body: Option<Vec<u8>>) -> Result<JsonText, Failure> {
        Ok(self.0.ask(method, path, &[], body).await?)
    }

    pub(super) async fn compact(&self) -> Result<(), Failure> {
        self.ask(Method::POST, &["_compact"], Some(Vec::new())).await?;
        loop {
            if !self.0.info().await?.is_compacting {
                return Ok(());
            }
            tokio::time::sleep(COMPACTION_PAUSE).await;
        }
    }

    pub(super) async fn check(&self) -> Result<Checked, Failure> {
        let answer = self.ask(Method::GET, &["_couch_layer", "check"], None).await?;
        let number = |name| {
            let number = answer.get(name).and_then(JsonRef::as_u64);
            number.ok_or_else(|| failure("the server's answer is not a report of a check; is it couch-layer?"))
        };
        let sentences = |name| -> Vec<String> {
            let all = answer.get(name).map(JsonRef::elements).into_iter().flatten();
            all.map(|one| one.as_str().unwrap_or_default().into_owned()).collect()
        };
        let views_left_out = match answer.get("view_groups") {
            Some(_) => sentences("views_left_out"),
            None => vec!["no views were compared with their functions: the server is too old for that".to_owned()],
        };
        Ok(Checked {
            documents: number("documents")?,
            revisions: number("revisions")?,
            changes: number("changes")?,
            problem_count: number("problem_count")?,
            // Only a repair reads the store itself.
            unreadable: 0,
            changed_meanwhile: answer.get("changed_meanwhile").and_then(JsonRef::as_bool).unwrap_or_default(),
            problems: sentences("problems"),
            view_groups: number("view_groups").unwrap_or_default(),
            views_left_out,
            views_incomplete: sentences("views_incomplete"),
        })
    }

    /// One run of a collection of a vault's chunks within the server.
    pub(super) async fn collect_vault(&self, asked: Vec<u8>) -> Result<JsonText, Failure> {
        self.ask(Method::POST, &VAULT, Some(asked)).await
    }

    pub(super) async fn vault_collections(&self) -> Result<JsonText, Failure> {
        let examine = [("examine", "false".to_owned())];
        Ok(self.0.ask(Method::GET, &VAULT, &examine, None).await?)
    }

    pub(super) async fn schedule_vault(&self, asked: Vec<u8>) -> Result<JsonText, Failure> {
        self.ask(Method::PUT, &VAULT, Some(asked)).await
    }

    pub(super) async fn format(&self) -> Result<(String, bool), Failure> {
        let answer = self.ask(Method::GET, &FORMAT, None).await?;
        let format = answer.get("format").and_then(|format| Some(format.as_str()?.into_owned()));
        let format = format.zip(answer.get("rewriting").and_then(JsonRef::as_bool));
        format.ok_or_else(|| failure("the server's answer is not about a layout; is it couch-layer?"))
    }

    pub(super) async fn set_format(&self, format: BodyFormat, poll: Duration) -> Result<(), Failure> {
        self.ask(Method::PUT, &FORMAT, Some(format!("\"{}\"", format.name()).into_bytes())).await?;
        while self.format().await?.1 {
            tokio::time::sleep(poll).await;
        }
        Ok(())
    }

    /// Starts a relocation of the database within the server, or joins the running one.
    pub(crate) async fn relocate(&self, asked: &RequestedRelocation) -> Result<(), Failure> {
        self.ask(Method::POST, &RELOCATE, Some(asked.to_json())).await.map(drop)
    }

    /// The progress of the relocation.
    pub(crate) async fn relocation(&self) -> Result<Status, Failure> {
        let answer = self.ask(Method::GET, &RELOCATE, None).await?;
        Status::from_json(&answer)
            .ok_or_else(|| failure("the server's answer is not about a relocation; is it couch-layer?"))
    }

    /// Stops the relocation and removes the copy. Returns whether there was one.
    pub(crate) async fn abandon_relocation(&self, to: &str) -> Result<bool, Failure> {
        let answer = self.0.ask(Method::DELETE, &RELOCATE, &[("to", to.to_owned())], None).await?;
        Ok(answer.get("abandoned").and_then(JsonRef::as_bool).unwrap_or_default())
    }
}

/// The address, with the user from the environment unless it names one, and with the password from there unless it has
/// one: others could read a command line.
pub(crate) fn with_own_user(address: Address) -> Address {
    let named = address.user().cloned();
    match (named, std::env::var("COUCHDB_USER"), std::env::var("COUCHDB_PASSWORD")) {
        (None, Ok(user), Ok(password)) => address.with_user(Some((user, password))),
        (Some((user, own)), _, Ok(password)) if own.is_empty() => address.with_user(Some((user, password))),
        _ => address,
    }
}
