//! The security object of a database: its members and its administrators.
//!
//! A request reads the object as it is stored, so that a removed member is out at once, at every server. The text may
//! have 1 MB, so the parsed object is kept while the text stays the same.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use model::{JsonRef, JsonText};
use parking_lot::Mutex;

use crate::http::app::stores::Documents;
use crate::http::authn::principal::Principal;

/// Maximum number of bytes of the kept objects.
const MOST_BYTES: usize = 16 << 20;

/// A security object, as `_security` has it.
#[derive(Debug)]
pub(crate) struct Security {
    text: JsonText,
    members: Group,
    admins: Group,
}

/// Names and roles, sorted.
#[derive(Debug, Default)]
struct Group {
    names: Vec<Box<str>>,
    roles: Vec<Box<str>>,
    /// Whether it lists anything, even if that is not text.
    lists_any: bool,
}

impl Group {
    fn read(group: JsonRef<'_>) -> Group {
        let list = |name: &str| group.get(name).into_iter().flat_map(JsonRef::elements);
        let sorted = |name: &str| {
            let texts = list(name).filter_map(JsonRef::as_str);
            let mut texts: Vec<Box<str>> = texts.map(|text| text.into_owned().into_boxed_str()).collect();
            texts.sort_unstable();
            texts
        };
        let lists_any = list("names").chain(list("roles")).next().is_some();
        Group { names: sorted("names"), roles: sorted("roles"), lists_any }
    }

    /// Whether it has the client's name or one of its roles.
    fn has(&self, principal: &Principal) -> bool {
        let is_in = |list: &[Box<str>], text: &str| list.binary_search_by(|one| (**one).cmp(text)).is_ok();
        principal.name.as_ref().is_some_and(|name| is_in(&self.names, name))
            || principal.roles.iter().any(|role| is_in(&self.roles, role))
    }

    fn bytes(&self) -> usize {
        self.names.iter().chain(&self.roles).map(|text| text.len() + 2 * size_of::<Box<str>>()).sum()
    }
}

impl Security {
    pub(crate) fn new(text: JsonText) -> Self {
        // `readers` is the name of the members from before CouchDB 1.2.
        let members = text.get("members").or_else(|| text.get("readers")).map(Group::read).unwrap_or_default();
        let admins = text.get("admins").map(Group::read).unwrap_or_default();
        Security { text, members, admins }
    }

    /// Whether everyone is a member: it names neither members nor their roles.
    pub(crate) fn is_public(&self) -> bool {
        !self.members.lists_any
    }

    /// Whether this client is an administrator of the database. Administrators of the server are.
    pub(crate) fn is_admin(&self, principal: &Principal) -> bool {
        principal.is_server_admin() || self.admins.has(principal)
    }

    /// Whether this client may read and write.
    pub(crate) fn is_member(&self, principal: &Principal) -> bool {
        self.is_admin(principal) || self.is_public() || self.members.has(principal)
    }

    /// Memory of a kept object, in bytes.
    fn bytes(&self) -> usize {
        /// The object itself, and its entries in the maps.
        const OTHER_BYTES: usize = 512;
        OTHER_BYTES + self.text.len() + self.members.bytes() + self.admins.bytes()
    }
}

/// The security objects of recently used databases, by the ids of their instances.
#[derive(Debug, Default)]
pub(crate) struct Securities(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    objects: HashMap<[u8; 16], Arc<Security>>,
    /// The oldest first.
    order: VecDeque<[u8; 16]>,
    bytes: usize,
}

impl Securities {
    /// The security object of a database, as it is stored now.
    pub(crate) async fn of(&self, database: &Documents) -> model::Result<Arc<Security>> {
        Ok(self.meaning(database.instance_id(), database.security().await?))
    }

    /// The parsed text.
    fn meaning(&self, database: [u8; 16], text: JsonText) -> Arc<Security> {
        let known = self.0.lock().objects.get(&database).cloned();
        if let Some(known) = known.filter(|known| known.text == text) {
            return known;
        }
        let read = Arc::new(Security::new(text));
        self.0.lock().keep(database, read.clone());
        read
    }
}

impl Known {
    fn keep(&mut self, database: [u8; 16], object: Arc<Security>) {
        if self.objects.contains_key(&database) {
            self.forget(database);
            self.order.retain(|other| *other != database);
        }
        if object.bytes() > MOST_BYTES {
            return;
        }
        while self.bytes + object.bytes() > MOST_BYTES {
            let Some(oldest) = self.order.pop_front() else { return };
            self.forget(oldest);
        }
        self.bytes += object.bytes();
        self.order.push_back(database);
        self.objects.insert(database, object);
    }

    fn forget(&mut self, database: [u8; 16]) {
        if let Some(object) = self.objects.remove(&database) {
            self.bytes -= object.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::authn::principal::Proof;

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

    #[test]
    fn what_is_kept_is_used_for_the_same_text_only() {
        let known = Securities::default();
        let read = |database: u8, text: &str| known.meaning([database; 16], JsonText::parse(text.as_bytes()).unwrap());
        let with_anna = r#"{"members":{"names":["anna","berta"]}}"#;
        let before = read(1, with_anna);
        assert!(before.is_member(&user("anna", &[])));
        assert!(Arc::ptr_eq(&before, &read(1, with_anna)), "it was read again");
        let after = read(1, r#"{"members":{"names":["berta"]}}"#);
        assert!(!after.is_member(&user("anna", &[])), "who was removed is out at once");
        assert!(!read(2, r#"{"members":{"names":["carla"]}}"#).is_member(&user("berta", &[])), "of another database");
        assert!(read(1, with_anna).is_member(&user("anna", &[])));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let known = Securities::default();
        let names = |many: usize| {
            let names: Vec<String> = (0..many).map(|name| format!(r#""{name:06}""#)).collect();
            JsonText::parse(format!(r#"{{"members":{{"names":[{}]}}}}"#, names.join(",")).as_bytes()).unwrap()
        };
        // A megabyte, of which a few fit.
        let large = names(110_000);
        for database in 0..20 {
            let read = known.meaning([database; 16], large.clone());
            assert!(read.is_member(&user("109999", &[])) && !read.is_member(&user("110000", &[])));
            let known = known.0.lock();
            let bytes: usize = known.objects.values().map(|object| object.bytes()).sum();
            assert!(known.bytes == bytes && bytes <= MOST_BYTES && known.objects.contains_key(&[database; 16]));
            assert_eq!(known.objects.len(), known.order.len());
        }
        // An object larger than the limit is parsed each time, and the others are kept.
        let before = known.0.lock().order.clone();
        known.meaning([21; 16], names(1_000_000));
        assert_eq!(known.0.lock().order, before);
        // Small ones are limited too.
        for database in 0..40_000_u32 {
            let mut instance = [0xff; 16];
            instance[..4].copy_from_slice(&database.to_be_bytes());
            known.meaning(instance, JsonText::empty_object());
        }
        let known = known.0.lock();
        assert!(known.objects.len() < 33_000 && known.objects.len() == known.order.len(), "{}", known.objects.len());
    }

    #[test]
    fn a_database_without_members_is_open() {
        let is_open = |text: &str| Security::new(JsonText::parse(text.as_bytes()).unwrap()).is_public();
        assert!(is_open("{}") && is_open(r#"{"admins":{"names":["a"]},"members":{"names":[],"roles":[]}}"#));
        assert!(is_open(r#"{"members":{"names":[],"roles":[]}}"#) && is_open(r#"{"admins":{"names":["a"]}}"#));
        assert!(!is_open(r#"{"members":{"roles":["a"]}}"#) && !is_open(r#"{"readers":{"names":["a"]}}"#));
        assert!(!is_open(r#"{"members":{"roles":["_admin"]}}"#));
        assert!(!is_open(model::default_security().as_str()));
    }
}
