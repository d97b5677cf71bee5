//! The rules of the database `_users`: who may write what, and who may read it.
//!
//! Passwords are hashed before a document is stored, whatever the path of the write. The rules are those of the
//! validation function in CouchDB's design document `_auth`; this server has them in Rust. They bind server
//! administrators too, unless they say otherwise.
//!
//! | client | may |
//! |---|---|
//! | administrator of the server or the database | anything that is a valid document of a user |
//! | a member, by `_security` | read, change and delete its own document, but not its roles |
//! | an anonymous member | write a new document without roles: sign-up |
//!
//! A member's own document is that of the account whose password or session the request has. It holds the password, so
//! a token or a proxy that names somebody gives no right to it; in CouchDB it does.
//!
//! Other documents do not exist for a member (404), unless `chttpd_auth/public_fields` names members that everyone may
//! see.
//!
//! Source: CouchDB's `couch_users_db.erl` and `couch_js_functions.hrl`.

use async_trait::async_trait;
use hyper::StatusCode;
use model::limits::DESIGN_PREFIX;
use model::{Document, Edit, ErrorKind, GetOptions, JsonKind, JsonRef, JsonText, NotFound, Result, WriteMode};

use crate::http::authn::passwords::{LONGEST_SALT, MOST_ITERATIONS};
use crate::http::authn::principal::Principal;
use crate::http::authn::users::{PREFIX, with_verifier, without_verifier};
use crate::http::authz::client::Client;
use crate::http::authz::rules::{Rules, forbidden, refusal};
use crate::http::authz::security::Security;
use crate::http::error::ApiError;
use crate::http::wire::params::Params;
use crate::http::wire::response::{self, Response};

/// Maximum size of the body of a document that a member writes. Each request with the user's name reads it.
const MOST_BYTES: usize = 64 * 1024;

/// The rules of `_users`.
pub(crate) struct Users;

#[async_trait]
impl Rules for Users {
    fn is_member(&self, security: &Security, principal: &Principal) -> bool {
        security.is_member(principal)
    }

    fn is_admin(&self, security: &Security, principal: &Principal) -> bool {
        security.is_admin(principal)
    }

    fn is_for_members(&self, path: &str) -> bool {
        matches!(path, "/{db}" | "/{db}/{docid}" | "/{db}/_bulk_docs" | "/{db}/_security" | "/{db}/_revs_limit")
    }

    /// Also hashes the password.
    async fn admit(&self, client: &Client<'_>, mode: WriteMode, edit: &mut Edit) -> Result<()> {
        if edit.id.starts_with(DESIGN_PREFIX) {
            return Ok(());
        }
        let Client { principal, is_admin, .. } = *client;
        require_own(principal, is_admin, &edit.id)?;
        if !is_admin && mode == WriteMode::Replicated {
            return Err(forbidden("Only administrators may replicate documents of users."));
        }
        if edit.deleted {
            require_deletable(principal, is_admin, &edit.id)?;
            edit.body = without_verifier(&edit.body).map_err(refusal)?;
            return Ok(());
        }
        if !is_admin && edit.body.len() > MOST_BYTES {
            return Err(refusal(ApiError::too_large()));
        }
        let settings = client.means.settings();
        // First, as in CouchDB: other faults of the document are reported only if its password is acceptable.
        let password = password(&edit.body);
        let scheme = password.as_deref().map(|password| settings.passwords.admit(password)).transpose();
        let scheme = scheme.map_err(refusal)?;
        let old = match mode {
            WriteMode::Interactive => replaced(client, edit).await?,
            WriteMode::Replicated => None,
        };
        let old = old.as_ref().map(|old| &old.body);
        validate(&edit.id, &edit.body, old, principal, is_admin)?;
        if !is_admin {
            refuse_costly(&edit.body, old, settings.passwords.iterations)?;
        }
        if let (Some(password), Some(scheme)) = (password, scheme) {
            let verifier = client.means.hash(password, scheme).await.map_err(refusal)?;
            edit.body = with_verifier(&edit.body, &verifier).map_err(refusal)?;
        }
        Ok(())
    }

    fn refuse_computed(&self, _: &Client<'_>, id: &str) -> Result<()> {
        if !id.starts_with(DESIGN_PREFIX) {
            return Err(forbidden("Documents of users are written whole."));
        }
        Ok(())
    }

    fn require_admin(&self, client: &Client<'_>) -> Result<()> {
        if !client.is_admin {
            return Err(forbidden("Only administrators may do this in the users database."));
        }
        Ok(())
    }

    async fn hidden(
        &self,
        client: &Client<'_>,
        params: &Params,
        id: &str,
    ) -> std::result::Result<Option<Response>, ApiError> {
        if client.is_admin {
            return Ok(None);
        }
        if id.starts_with(DESIGN_PREFIX) {
            return Err(ApiError::forbidden("Only administrators can view design docs in the users database."));
        }
        if is_own(client.principal, id) {
            return Ok(None);
        }
        let settings = client.means.settings();
        let missing = || ApiError::not_found("missing");
        if settings.public_fields.is_empty() || !params.is_empty() {
            return Err(missing());
        }
        let document = match client.database.get(id, &GetOptions::default()).await.map_err(ApiError::from) {
            // This must not reveal whether such a user existed.
            Err(error) if error.status() == StatusCode::NOT_FOUND && !error.is_no_database() => return Err(missing()),
            found => found?,
        };
        let is_public = |name: &str| settings.public_fields.iter().any(|field| field == name);
        let mut members = document.body.root().members().filter(|(name, _)| is_public(name)).peekable();
        if members.peek().is_none() {
            return Err(missing());
        }
        Ok(Some(response::object_with(StatusCode::OK, |json| {
            json.name("_id").str(id).name("_rev").display(&document.rev);
            for (name, value) in members {
                json.name(&name).value(value);
            }
        })))
    }
}

/// Refuses a stored password that takes longer to check than those made here, so that a member's logins do not cost
/// more than others. An administrator may have stored one before.
fn refuse_costly(new: &JsonText, old: Option<&JsonText>, most: u32) -> Result<()> {
    let iterations = |body: &JsonText| body.get("iterations").and_then(JsonRef::as_f64);
    let known = old.and_then(iterations).unwrap_or_default();
    if password(new).is_none() && iterations(new).is_some_and(|new| new > known.max(most.into())) {
        return Err(forbidden("Iteration count is too high for this server"));
    }
    Ok(())
}

fn is_own(principal: &Principal, id: &str) -> bool {
    id.strip_prefix(PREFIX).is_some_and(|name| principal.account() == Some(name))
}

/// 404 for a document of somebody else. An anonymous client may be signing up.
fn require_own(principal: &Principal, is_admin: bool, id: &str) -> Result<()> {
    if is_admin || principal.name.is_none() || is_own(principal, id) {
        return Ok(());
    }
    Err(ErrorKind::NotFound(NotFound::Missing).into())
}

fn require_deletable(principal: &Principal, is_admin: bool, id: &str) -> Result<()> {
    if is_admin || is_own(principal, id) {
        return Ok(());
    }
    Err(forbidden("Only admins may delete other user docs."))
}

/// The live document that an interactive edit replaces. If another revision is stored before the write, the write
/// conflicts.
///
/// # Errors
/// 409 if the edit conflicts already, so that no password is hashed for it.
async fn replaced(client: &Client<'_>, edit: &Edit) -> Result<Option<Document>> {
    let is_new = edit.rev.is_none();
    let options = &GetOptions { rev: edit.rev.clone(), ..GetOptions::default() };
    match client.database.get(&edit.id, options).await {
        Ok(document) if document.deleted => Ok(None),
        Ok(_) if is_new => Err(ErrorKind::Conflict.into()),
        Ok(document) => Ok(Some(document)),
        Err(error) if *error.kind() == ErrorKind::NotFound(NotFound::Database) => Err(error),
        Err(error) if error.status() == 404 && !is_new => Err(ErrorKind::Conflict.into()),
        // The revision is not stored. The write will report the error.
        Err(error) if error.status() < 500 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks a document as CouchDB's `_auth` does.
fn validate(id: &str, new: &JsonText, old: Option<&JsonText>, principal: &Principal, is_admin: bool) -> Result<()> {
    let refuse = |reason: &str| Err(forbidden(reason));
    let text = |name: &str| new.get(name).and_then(JsonRef::as_str);
    if text("type").as_deref() != Some("user") {
        return refuse("doc.type must be user");
    }
    let Some(name) = text("name").filter(|name| !name.is_empty()) else { return refuse("doc.name is required") };
    let Some(roles) = new.get("roles").filter(|roles| !roles.is_null()) else { return refuse("doc.roles must exist") };
    if !roles.is_array() {
        return refuse("doc.roles must be an array");
    }
    let Some(mut roles) = strings(roles) else { return refuse("doc.roles can only contain strings") };
    if id.strip_prefix(PREFIX) != Some(&*name) {
        return refuse("Doc ID must be of the form org.couchdb.user:name");
    }
    let old_name = old.map(|old| old.get("name").and_then(JsonRef::as_str));
    if old_name.is_some_and(|old| old.as_deref() != Some(&*name)) {
        return refuse("Usernames can not be changed.");
    }
    let has = |member: &str| new.get(member).is_some_and(|value| !value.is_null());
    if has("password") && text("password").is_none() {
        return refuse("doc.password must be a string");
    }
    // A new password replaces the stored members of the earlier one.
    if !has("password") {
        validate_stored(new)?;
    }
    if !is_admin {
        match old {
            Some(_) if principal.account() != Some(&*name) => {
                return refuse("You may only update your own user document.");
            }
            Some(old) => {
                let mut before = old.get("roles").and_then(strings).unwrap_or_default();
                before.sort();
                roles.sort();
                if before != roles {
                    return refuse("Only _admin may edit roles");
                }
            }
            None if !roles.is_empty() => return refuse("Only _admin may set roles"),
            None => {}
        }
    }
    if roles.iter().any(|role| role.starts_with('_') && role != "_metrics") {
        return refuse("No system roles (starting with underscore) in users db.");
    }
    if name.starts_with('_') {
        return refuse("Username may not start with underscore.");
    }
    if name.contains(':') {
        return refuse("Character `:` is not allowed in usernames.");
    }
    Ok(())
}

/// Checks the members that hold a hashed password.
fn validate_stored(new: &JsonText) -> Result<()> {
    let refuse = |reason: &str| Err(forbidden(reason));
    let text = |name: &str| new.get(name).and_then(JsonRef::as_str);
    let given = |name: &str| new.get(name).filter(|value| !value.is_null());
    if given("password_sha").is_some() && given("salt").is_none() {
        return refuse("Users with password_sha must have a salt.");
    }
    if text("salt").is_some_and(|salt| salt.len() > LONGEST_SALT) {
        return refuse("doc.salt is too long");
    }
    let scheme = given("password_scheme").map(|scheme| scheme.as_str().unwrap_or(scheme.text().into()));
    match scheme.as_deref() {
        None | Some("simple") => {}
        Some("pbkdf2" | "simple+pbkdf2") => {
            let Some(iterations) = new.get("iterations").and_then(JsonRef::as_f64) else {
                return refuse("iterations must be a number.");
            };
            if iterations > f64::from(MOST_ITERATIONS) {
                return refuse("Iteration count is too high for this server");
            }
            if text("derived_key").is_none() {
                return refuse("derived_key must be a string.");
            }
        }
        Some(other) => return refuse(&format!("Password scheme `{other}` not supported.")),
    }
    Ok(())
}

fn strings(list: JsonRef<'_>) -> Option<Vec<String>> {
    list.elements().map(|entry| Some(entry.as_str()?.into_owned())).collect()
}

/// The new password in a document. It is replaced by its hash with a new salt, so that earlier sessions end.
fn password(body: &JsonText) -> Option<String> {
    let password = body.get("password").filter(|password| password.kind() == JsonKind::String)?;
    Some(password.as_str().unwrap_or_default().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::authn::principal::{Proof, Voucher};

    fn json(text: &str) -> JsonText {
        JsonText::parse(text.as_bytes()).unwrap()
    }

    fn user(name: &str) -> Principal {
        Principal { name: Some(name.to_owned()), roles: Vec::new(), proof: Proof::Basic }
    }

    fn refused(id: &str, new: &str, old: Option<&str>, principal: &Principal, is_admin: bool) -> String {
        let old = old.map(json);
        match validate(id, &json(new), old.as_ref(), principal, is_admin) {
            Ok(()) => String::new(),
            Err(error) => {
                assert_eq!(error.status(), 403);
                error.reason().into_owned()
            }
        }
    }

    const ANNA: &str = "org.couchdb.user:anna";

    #[test]
    fn a_document_has_the_form_of_a_user() {
        let admin = |id: &str, new: &str| refused(id, new, None, &user("adm"), true);
        for (new, reason) in [
            (r#"{"type":"user","name":"anna","roles":["a","_metrics"],"password":"x"}"#, ""),
            (r#"{"type":"user","name":"anna","roles":[],"password":null}"#, ""),
            (r#"{"name":"anna","roles":[]}"#, "doc.type must be user"),
            (r#"{"type":"user","roles":[]}"#, "doc.name is required"),
            (r#"{"type":"user","name":"","roles":[]}"#, "doc.name is required"),
            (r#"{"type":"user","name":"anna"}"#, "doc.roles must exist"),
            (r#"{"type":"user","name":"anna","roles":{}}"#, "doc.roles must be an array"),
            (r#"{"type":"user","name":"anna","roles":[1]}"#, "doc.roles can only contain strings"),
            (r#"{"type":"user","name":"Anna","roles":[]}"#, "Doc ID must be of the form org.couchdb.user:name"),
            (
                r#"{"type":"user","name":"anna","roles":["_admin"]}"#,
                "No system roles (starting with underscore) in users db.",
            ),
            (
                r#"{"type":"user","name":"anna","roles":[],"password_sha":"00"}"#,
                "Users with password_sha must have a salt.",
            ),
            (
                r#"{"type":"user","name":"anna","roles":[],"password_scheme":"rot13"}"#,
                "Password scheme `rot13` not supported.",
            ),
            (r#"{"type":"user","name":"anna","roles":[],"password_scheme":"pbkdf2"}"#, "iterations must be a number."),
            (
                r#"{"type":"user","name":"anna","roles":[],"password_scheme":"pbkdf2","iterations":1}"#,
                "derived_key must be a string.",
            ),
            (
                r#"{"type":"user","name":"anna","roles":[],"password_scheme":"pbkdf2","iterations":1e12,"derived_key":""}"#,
                "Iteration count is too high for this server",
            ),
            (r#"{"type":"user","name":"anna","roles":[],"password":1}"#, "doc.password must be a string"),
        ] {
            assert_eq!(admin(ANNA, new), reason, "{new}");
        }
        // The new password replaces the members of an earlier one.
        for (more, reason) in [
            (r#""password_sha":"00""#, ""),
            (r#""password_scheme":"rot13""#, ""),
            (r#""password_scheme":"pbkdf2","iterations":"x""#, ""),
        ] {
            let new = format!(r#"{{"type":"user","name":"anna","roles":[],"password":"x",{more}}}"#);
            assert_eq!(admin(ANNA, &new), reason, "{new}");
        }
        let scheme = r#"{"type":"user","name":"anna","roles":[],"password_scheme":1}"#;
        assert_eq!(admin(ANNA, scheme), "Password scheme `1` not supported.");
        let salted = |bytes: usize| {
            let salt = "s".repeat(bytes);
            admin(ANNA, &format!(r#"{{"type":"user","name":"anna","roles":[],"password_sha":"00","salt":"{salt}"}}"#))
        };
        assert_eq!((salted(256), salted(257)), (String::new(), "doc.salt is too long".to_owned()));
        let named = |name: &str| format!(r#"{{"type":"user","name":"{name}","roles":[]}}"#);
        assert_eq!(admin("org.couchdb.user:_a", &named("_a")), "Username may not start with underscore.");
        assert_eq!(admin("org.couchdb.user:a:b", &named("a:b")), "Character `:` is not allowed in usernames.");
        assert_eq!(admin("anna", &named("anna")), "Doc ID must be of the form org.couchdb.user:name");
    }

    #[test]
    fn users_change_only_themselves_and_not_their_roles() {
        let anna = |roles: &str| format!(r#"{{"type":"user","name":"anna","roles":{roles}}}"#);
        let check = |old: Option<&str>, new: &str, who: &Principal, is_admin| {
            let old = old.map(anna);
            refused(ANNA, &anna(new), old.as_deref(), who, is_admin)
        };
        assert_eq!(check(None, "[]", &Principal::anonymous(), false), "");
        assert_eq!(check(None, r#"["a"]"#, &Principal::anonymous(), false), "Only _admin may set roles");
        assert_eq!(check(None, r#"["a"]"#, &user("adm"), true), "");
        let (a, ab, ba) = (r#"["a"]"#, r#"["a","b"]"#, r#"["b","a"]"#);
        assert_eq!(check(Some(ab), ba, &user("anna"), false), "");
        assert_eq!(check(Some(a), ab, &user("anna"), false), "Only _admin may edit roles");
        assert_eq!(check(Some(ab), a, &user("anna"), false), "Only _admin may edit roles");
        assert_eq!(check(Some(a), ab, &user("adm"), true), "");
        for other in [user("berta"), Principal::anonymous()] {
            assert_eq!(check(Some(a), a, &other, false), "You may only update your own user document.");
        }
        let renamed = refused(ANNA, &anna("[]"), Some(r#"{"name":"x","roles":[]}"#), &user("adm"), true);
        assert_eq!(renamed, "Usernames can not be changed.");
    }

    #[test]
    fn members_store_no_password_that_is_costly_to_check() {
        let body = |iterations: u32| json(&format!(r#"{{"iterations":{iterations}}}"#));
        let refused = |new: &JsonText, old: Option<u32>| refuse_costly(new, old.map(body).as_ref(), 10).is_err();
        assert!(!refused(&body(10), None) && refused(&body(11), None) && refused(&body(12), Some(11)));
        assert!(!refused(&body(11), Some(11)), "an administrator stored it");
        assert!(!refused(&json(r#"{"iterations":11,"password":"x"}"#), None), "it is hashed anew");
    }

    #[test]
    fn documents_of_others_do_not_exist() {
        assert!(require_own(&user("anna"), false, ANNA).is_ok());
        assert!(require_own(&Principal::anonymous(), false, ANNA).is_ok(), "who may be signing up");
        assert!(require_own(&user("berta"), true, ANNA).is_ok());
        for id in [ANNA, "anna", "org.couchdb.user:", "org.couchdb.user:berta2"] {
            assert_eq!(require_own(&user("berta"), false, id).unwrap_err().status(), 404, "{id}");
        }
        assert!(require_deletable(&user("anna"), false, ANNA).is_ok());
        let voucher = Voucher { key: [0; 16], until: None };
        for proof in [Proof::Token(voucher), Proof::Proxy(voucher)] {
            let named = Principal { proof, ..user("anna") };
            assert_eq!(require_own(&named, false, ANNA).unwrap_err().status(), 404);
            let reason =
                refused(ANNA, r#"{"type":"user","name":"anna","roles":[]}"#, Some(r#"{"name":"anna"}"#), &named, false);
            assert_eq!(reason, "You may only update your own user document.");
        }
        assert_eq!(require_deletable(&Principal::anonymous(), false, ANNA).unwrap_err().status(), 403);
    }
}
