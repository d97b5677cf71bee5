//! Documents of `_users`: one for each user, with CouchDB's members.
//!
//! A document with more than one live leaf proves nothing, as in CouchDB: its winner may have an old password or
//! withdrawn roles that came back with a replication. An administrator must end the conflict.
//!
//! Source: CouchDB's `couch_users_db.erl` and `couch_auth_cache.erl`.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use model::{AttachmentEdit, Document, Edit, GetOptions, JsonRef, JsonText, JsonWriter, RevId};

use parking_lot::Mutex;

use crate::http::app::databases::Databases;
use crate::http::app::stores::Documents;
use crate::http::authn::passwords::Verifier;
use crate::http::authn::principal::{Principal, SERVER_ADMIN};
use crate::http::error::{ApiError, Result};

/// The database of users.
pub(crate) const DATABASE: &str = "_users";

/// Prefix of the ids of its documents.
pub(crate) const PREFIX: &str = "org.couchdb.user:";

/// A user who can log in. Its `Debug` shows nothing of the document.
pub(crate) struct User {
    pub(crate) roles: Vec<String>,
    pub(crate) verifier: Verifier,
    document: Document,
}

/// Maximum number of conflicts remembered as logged.
const MOST_LOGGED: usize = 1_000;

/// The conflicts of users' documents that were logged.
#[derive(Debug, Default)]
pub(crate) struct Conflicted(Mutex<HashSet<String>>);

impl Conflicted {
    /// The answer to a request that names this user.
    fn refusal(&self, name: &str, document: &Document) -> ApiError {
        let leaves = document.conflicts.iter().flatten().chain([&document.rev]).map(RevId::to_string);
        let leaves = leaves.collect::<Vec<_>>().join(" ");
        if self.is_new(format!("{name} {leaves}")) {
            tracing::warn!(name, leaves, "a user cannot log in, since the document in _users is in conflict");
        }
        ApiError::unauthorized(
            "User document conflicts must be resolved before the document is used for authentication purposes.",
        )
    }

    /// Whether this conflict was not logged yet. Each gets one line, however often the user is named.
    fn is_new(&self, conflict: String) -> bool {
        let mut logged = self.0.lock();
        if logged.len() >= MOST_LOGGED {
            logged.clear();
        }
        logged.insert(conflict)
    }
}

/// The user with this name; `None` if nobody can log in with it.
///
/// # Errors
/// 401 if the document is in conflict.
pub(crate) async fn find(databases: &Databases, conflicted: &Conflicted, name: &str) -> Result<Option<User>> {
    match document(databases, name).await? {
        Some(document) if document.conflicts.is_some() => Err(conflicted.refusal(name, &document)),
        found => Ok(found.and_then(|document| User::read(name, document))),
    }
}

/// The client as `_session` and functions see it: an administrator also has the roles of the user's document with its
/// name, as in CouchDB. They give the administrator no further right, so other requests do not read them. A document in
/// conflict adds no roles.
pub(crate) async fn with_stored_roles<'p>(
    databases: &Databases,
    principal: &'p Principal,
) -> Result<Cow<'p, Principal>> {
    let name = principal.account().filter(|_| principal.is_server_admin());
    let Some(name) = name else { return Ok(Cow::Borrowed(principal)) };
    let document = document(databases, name).await?.filter(|document| document.conflicts.is_none());
    let Some(document) = document else { return Ok(Cow::Borrowed(principal)) };
    let mut shown = principal.clone();
    shown.roles.extend(roles(&document.body));
    Ok(Cow::Owned(shown))
}

async fn document(databases: &Databases, name: &str) -> Result<Option<Document>> {
    let id = &format!("{PREFIX}{name}");
    let options = &GetOptions { conflicts: true, ..GetOptions::default() };
    let get = |database: Documents| async move { Ok(database.get(id, options).await?) };
    match databases.with(DATABASE, get).await {
        Ok(document) => Ok(Some(document)),
        // The user or the database does not exist, or no document can have this id.
        Err(error) if error.status().is_client_error() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The roles in a document. Administrators are named in the configuration only.
fn roles(body: &JsonText) -> Vec<String> {
    let roles = body.get("roles").into_iter().flat_map(JsonRef::elements).filter_map(JsonRef::as_str);
    roles.filter(|role| role != SERVER_ADMIN).map(|role| role.into_owned()).collect()
}

impl User {
    fn read(name: &str, document: Document) -> Option<User> {
        let body = &document.body;
        let text = |member: &str| body.get(member).and_then(JsonRef::as_str);
        // A second factor is not implemented, so users who have one are not admitted with the first alone.
        if text("name")? != name || text("type")? != "user" || body.get("totp").is_some() {
            return None;
        }
        Some(User { roles: roles(body), verifier: Verifier::of_user(body)?, document })
    }

    /// Stores the password in another scheme. A conflict that arrives meanwhile counts as one that arrives afterwards.
    pub(crate) async fn upgrade(&self, databases: &Databases, verifier: &Verifier) -> Result<()> {
        let Document { id, rev, body, attachments, .. } = &self.document;
        let edit = Edit::new(id.clone(), with_verifier(body, verifier)?).over(rev.clone());
        let edit = &Edit { attachments: attachments.iter().cloned().map(AttachmentEdit::same).collect(), ..edit };
        // On behalf of no client: the password stays the same.
        let put = |database: Documents| async move { Ok(database.unvalidated().put(edit.clone()).await?) };
        databases.with(DATABASE, put).await?;
        Ok(())
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("roles", &self.roles).finish_non_exhaustive()
    }
}

/// The body without a password, for a tombstone.
pub(crate) fn without_verifier(body: &JsonText) -> Result<JsonText> {
    changed(body, |_| {})
}

/// The body with another password.
pub(crate) fn with_verifier(body: &JsonText, verifier: &Verifier) -> Result<JsonText> {
    changed(body, |json| verifier.write_user(json))
}

/// The body without its password, and with new members instead.
fn changed(body: &JsonText, write: impl FnOnce(&mut JsonWriter<'_>)) -> Result<JsonText> {
    let mut text = Vec::with_capacity(body.len() + 300);
    let mut json = JsonWriter::new(&mut text);
    json.begin_object();
    for (name, value) in body.root().members().filter(|(name, _)| !Verifier::MEMBERS.contains(&name.as_ref())) {
        json.name(&name).value(value);
    }
    write(&mut json);
    json.end_object();
    JsonText::parse(&text).map_err(|_| ApiError::internal())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::authn::passwords::{Prf, Scheme};

    #[test]
    fn a_new_password_replaces_all_members_of_the_old_one() {
        let verifier = Verifier::new("new", Scheme::Pbkdf2 { prf: Prf::Sha256, iterations: 2 }).unwrap();
        let old = r#"{"name":"anna","password":"new","password_sha":"00","salt":"x","more":{"salt":1},"iterations":1}"#;
        let body = with_verifier(&JsonText::parse(old.as_bytes()).unwrap(), &verifier).unwrap();
        assert_eq!(Verifier::of_user(&body), Some(verifier));
        assert!(body.get("password").is_none() && body.get("password_sha").is_none());
        assert_eq!(body.get("more").unwrap().text(), r#"{"salt":1}"#);
    }

    #[test]
    fn a_conflict_is_logged_once() {
        let logged = Conflicted::default();
        let first = || logged.is_new("anna 1-a 1-b".to_owned());
        assert!(first() && !first() && logged.is_new("anna 1-b 2-c".to_owned()));
        for number in 0..2 * MOST_LOGGED {
            assert!(logged.is_new(number.to_string()));
        }
        assert!(logged.0.lock().len() <= MOST_LOGGED);
    }

    #[test]
    fn nothing_secret_is_shown() {
        let json = r#"{"name":"anna","type":"user","roles":["a"],"salt":"salz","password_sha":"5baa61e4c9b93f3f0682250b6cf8331b7ee68fd8"}"#;
        let body = JsonText::parse(json.as_bytes()).unwrap();
        let document = Document {
            id: "org.couchdb.user:anna".into(),
            rev: "1-967a00dff5e02add41819138abb3284d".parse().unwrap(),
            deleted: false,
            body,
            revisions: None,
            revs_info: None,
            conflicts: None,
            deleted_conflicts: None,
            local_seq: None,
            attachments: Vec::new(),
            att_encoding_info: false,
        };
        let shown = format!("{:?}", User::read("anna", document).unwrap());
        assert!(!shown.contains("salz") && !shown.contains("5baa"), "{shown}");
    }
}
