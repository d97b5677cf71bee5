//! The option `couch_peruser`: which database a user has, and what its `_security` says.
//!
//! Source: CouchDB's `couch_peruser.erl`.

use model::{JsonRef, JsonText, JsonWriter};

use crate::http::config::rows::SettingRows;
use crate::http::wire::response;

/// The option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PerUser {
    /// Whether the database of a user who is deleted is dropped.
    pub(crate) delete_dbs: bool,
    pub(crate) prefix: String,
}

impl PerUser {
    /// `None` unless the configuration enables it.
    pub(crate) fn read(rows: &SettingRows) -> Option<PerUser> {
        rows.flag("couch_peruser", "enable").then(|| PerUser {
            delete_dbs: rows.flag("couch_peruser", "delete_dbs"),
            prefix: rows.get("couch_peruser", "database_prefix").unwrap_or_default().to_owned(),
        })
    }

    /// The name of a user's database.
    pub(crate) fn database(&self, user: &str) -> String {
        format!("{}{}", self.prefix, model::hex(user.as_bytes()))
    }

    /// Whether a database of this name is that of a user.
    pub(crate) fn is_of_a_user(&self, database: &str) -> bool {
        let is_hex =
            |user: &str| !user.is_empty() && user.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        database.strip_prefix(&self.prefix).is_some_and(is_hex)
    }
}

const GROUPS: [&str; 2] = ["admins", "members"];

fn names<'a>(security: &'a JsonText, group: &str) -> impl Iterator<Item = JsonRef<'a>> {
    let names = security.get(group).and_then(|group| group.get("names"));
    names.filter(|names| names.is_array()).into_iter().flat_map(JsonRef::elements)
}

fn has(security: &JsonText, group: &str, user: &str) -> bool {
    names(security, group).any(|name| name.as_str().as_deref() == Some(user))
}

/// The security object with the user in both groups; `None` if nothing changes.
pub(crate) fn with_user(security: &JsonText, user: &str) -> Option<JsonText> {
    let missing = GROUPS.map(|group| !has(security, group, user));
    missing.contains(&true).then(|| {
        changed(security, |group, json| {
            if !has(security, group, user) {
                json.str(user);
            }
            for name in names(security, group) {
                json.value(name);
            }
        })
    })
}

/// The security object without the user; `None` if nothing changes.
pub(crate) fn without_user(security: &JsonText, user: &str) -> Option<JsonText> {
    GROUPS.into_iter().any(|group| has(security, group, user)).then(|| {
        changed(security, |group, json| {
            let others = names(security, group).filter(|name| name.as_str().as_deref() != Some(user));
            for name in others {
                json.value(name);
            }
        })
    })
}

/// The security object with other names in both groups.
fn changed(security: &JsonText, write: impl Fn(&str, &mut JsonWriter<'_>)) -> JsonText {
    let text = response::object_text(|json| {
        for (name, value) in security.root().members().filter(|(name, _)| !GROUPS.contains(&name.as_ref())) {
            json.name(&name).value(value);
        }
        for group in GROUPS {
            json.name(group).begin_object();
            let others = security.get(group).filter(|group| group.is_object()).into_iter().flat_map(JsonRef::members);
            for (name, value) in others.filter(|(name, _)| name != "names") {
                json.name(&name).value(value);
            }
            json.name("names").begin_array();
            write(group, json);
            json.end_array().end_object();
        }
    });
    JsonText::parse(&text).unwrap_or_else(|_| JsonText::empty_object())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::config::rows::rows_of;

    fn json(text: &str) -> JsonText {
        JsonText::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn names_of_databases_are_those_of_couchdb() {
        let option = PerUser::read(&rows_of(&[("couch_peruser", "enable", "true")])).unwrap();
        assert_eq!(option.database("bob"), "userdb-626f62");
        assert_eq!(option.database("jürgen/x"), "userdb-6ac3bc7267656e2f78");
        let other = rows_of(&[("couch_peruser", "enable", "true"), ("couch_peruser", "database_prefix", "u/")]);
        assert_eq!(PerUser::read(&other).unwrap().database("a"), "u/61");
        assert!(PerUser::read(&rows_of(&[("couch_peruser", "delete_dbs", "true")])).is_none());
    }

    #[test]
    fn a_user_is_added_and_removed_and_others_stay() {
        let usual = json(r#"{"members":{"roles":["_admin"]},"admins":{"roles":["_admin"]}}"#);
        let with = with_user(&usual, "bob").unwrap();
        let expected =
            r#"{"admins":{"roles":["_admin"],"names":["bob"]},"members":{"roles":["_admin"],"names":["bob"]}}"#;
        assert_eq!(with.as_str(), expected);
        assert!(with_user(&with, "bob").is_none() && without_user(&usual, "bob").is_none());
        let others = json(r#"{"x":[1],"admins":{"names":["anna"]},"members":{"names":["bob","carl"],"more":2}}"#);
        let with = with_user(&others, "bob").unwrap();
        let expected = r#"{"x":[1],"admins":{"names":["bob","anna"]},"members":{"more":2,"names":["bob","carl"]}}"#;
        assert_eq!(with.as_str(), expected);
        let without = without_user(&with, "bob").unwrap();
        let expected = r#"{"x":[1],"admins":{"names":["anna"]},"members":{"more":2,"names":["carl"]}}"#;
        assert_eq!(without.as_str(), expected);
        for odd in ["{}", r#"{"admins":[],"members":"x"}"#, r#"{"admins":{"names":{"a":1}}}"#] {
            assert!(has(&with_user(&json(odd), "bob").unwrap(), "members", "bob"), "{odd}");
        }
    }
}
