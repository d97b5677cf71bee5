//! The security object of a database: who are its members, and who its administrators.

use model::{JsonRef, JsonText};

use crate::http::access::principal::Principal;

/// A security object, as `_security` has it.
#[derive(Clone, Debug)]
pub(crate) struct Security(JsonText);

impl Security {
    pub(crate) fn new(object: JsonText) -> Self {
        Security(object)
    }

    /// The members; `readers` is their name from before CouchDB 1.2.
    fn members(&self) -> Option<JsonRef<'_>> {
        self.0.get("members").or_else(|| self.0.get("readers"))
    }

    /// Whether everyone is a member: it names neither members nor their roles.
    pub(crate) fn is_public(&self) -> bool {
        let is_empty = |list: Option<JsonRef<'_>>| list.is_none_or(|list| list.elements().next().is_none());
        self.members().is_none_or(|members| is_empty(members.get("names")) && is_empty(members.get("roles")))
    }

    /// Whether this client is an administrator of the database. Those of the server are.
    pub(crate) fn is_admin(&self, principal: &Principal) -> bool {
        principal.is_server_admin() || self.0.get("admins").is_some_and(|admins| names(admins, principal))
    }

    /// Whether this client may read and write.
    pub(crate) fn is_member(&self, principal: &Principal) -> bool {
        self.is_admin(principal) || self.is_public() || self.members().is_some_and(|members| names(members, principal))
    }
}

/// Whether a group has the client's name or one of its roles.
fn names(group: JsonRef<'_>, principal: &Principal) -> bool {
    let list = |name: &str| group.get(name).into_iter().flat_map(JsonRef::elements).filter_map(JsonRef::as_str);
    principal.name.as_ref().is_some_and(|name| list("names").any(|one| one == name.as_str()))
        || list("roles").any(|role| principal.roles.iter().any(|own| *own == role))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::access::principal::Proof;

    fn security(text: &str) -> Security {
        Security::new(JsonText::parse(text.as_bytes()).unwrap())
    }

    fn user(name: &str, roles: &[&str]) -> Principal {
        let roles = roles.iter().map(|role| (*role).to_owned()).collect();
        Principal { name: Some(name.to_owned()), roles, proof: Proof::Basic }
    }

    #[test]
    fn a_database_is_public_when_its_security_names_nobody() {
        let public = |text: &str| security(text).is_member(&Principal::anonymous());
        assert!(public("{}"));
        assert!(public(r#"{"admins":{"names":["x"]}}"#));
        assert!(public(r#"{"members":{"names":[],"roles":[]}}"#));
        assert!(!public(r#"{"members":{"roles":["_admin"]},"admins":{"roles":["_admin"]}}"#));
        assert!(!public(r#"{"members":{"names":["x"]}}"#));
        assert!(!public(r#"{"readers":{"names":["x"]}}"#));
    }

    #[test]
    fn names_and_roles_admit_members_and_administrators() {
        let closed = security(
            r#"{"members":{"names":["anna"],"roles":["staff"]},"admins":{"names":["chef"],"roles":["lead"]}}"#,
        );
        for (principal, member, admin) in [
            (Principal::anonymous(), false, false),
            (user("anna", &[]), true, false),
            (user("Anna", &["Staff"]), false, false),
            (user("berta", &["x", "staff"]), true, false),
            (user("chef", &[]), true, true),
            (user("berta", &["lead"]), true, true),
            (user("staff", &["anna", "chef"]), false, false),
            (user("adm", &["_admin"]), true, true),
        ] {
            assert_eq!((closed.is_member(&principal), closed.is_admin(&principal)), (member, admin), "{principal:?}");
        }
        for nonsense in ["[]", r#"{"members":[],"admins":"x"}"#] {
            assert!(!security(nonsense).is_admin(&user("x", &["x"])));
        }
    }
}
