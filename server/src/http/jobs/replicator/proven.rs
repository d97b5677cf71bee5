//! How the owner of a replication proved its name, as its document or its job keeps it.
//!
//! ```text
//!  document   {"owner": "anna", "owner_proof": {"by": "user", "mac": "…"}, …}
//!             {"owner": "anna", "owner_proof": {"by": "token", "roles": ["staff"], "until": 4102444800, "key": "…", "mac": "…"}, …}
//!  job        {"owner": {"name": "anna", "by": "user"}, …}
//! ```
//!
//! The name alone gives no right: a token or a proxy may name a client like an administrator. An account is looked up
//! again before each use. A client that came with a token or through a proxy keeps the roles from there, for as long as
//! the server would accept that proof.
//!
//! Clients write documents, and replications bring them from other servers. So `mac` is a digest of the name, its proof
//! and [what the document replicates](SIGNED), keyed with the store's secret: a proof copied into another document
//! proves nothing. Only servers write jobs, so their proofs need no digest.

use std::mem::discriminant;

use model::{JsonRef, JsonText, JsonWriter, hex};

use crate::http::app::App;
use crate::http::authn::auth::Auth;
use crate::http::authn::passwords::{same, unhex};
use crate::http::authn::principal::{Principal, Proof, Voucher};
use crate::http::error::{ApiError, Result};

/// The member of documents that holds the proof.
pub(crate) const MEMBER: &str = "owner_proof";

/// The members of a document that its proof covers.
const SIGNED: [&str; 3] = ["source", "target", "user_ctx"];

/// A proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proven {
    /// The password or a session of an administrator of the server.
    Admin,
    /// The password or a session of a user.
    User,
    /// A token that gave these roles.
    Token(Voucher, Vec<String>),
    /// A proxy that gave these roles.
    Proxy(Voucher, Vec<String>),
}

impl Proven {
    /// How this client proved its name; `None` if it has no name.
    pub(crate) fn of_client(principal: &Principal) -> Option<Proven> {
        match principal.proof {
            Proof::Nothing | Proof::OpenAdmin | Proof::Setup => None,
            Proof::Cookie | Proof::Basic if principal.is_server_admin() => Some(Proven::Admin),
            Proof::Cookie | Proof::Basic => Some(Proven::User),
            Proof::Token(voucher) => Some(Proven::Token(voucher, principal.roles.clone())),
            Proof::Proxy(voucher) => Some(Proven::Proxy(voucher, principal.roles.clone())),
        }
    }

    /// The current account of this name.
    pub(crate) fn of_account(auth: &Auth, name: &str) -> Proven {
        if auth.is_administrator(name) { Proven::Admin } else { Proven::User }
    }

    /// The proof in a document with this owner; `None` unless a server of this store wrote it.
    pub(crate) fn of_document(auth: &Auth, body: &JsonText, name: &str) -> Option<Proven> {
        let stored = body.get(MEMBER)?;
        let proven = Proven::read(stored)?;
        same(&proven.mac(auth, name, body), &unhex(&stored.get("mac")?.as_str()?)?).then_some(proven)
    }

    /// Writes the proof into a document with this owner and body.
    pub(crate) fn write_signed(&self, auth: &Auth, name: &str, body: &JsonText, json: &mut JsonWriter<'_>) {
        json.name(MEMBER).begin_object();
        self.write(json);
        json.name("mac").str(&hex(&self.mac(auth, name, body))).end_object();
    }

    /// Whether both names were proved in the same way, so that the same name means the same client.
    pub(crate) fn is_like(&self, other: &Proven) -> bool {
        discriminant(self) == discriminant(other)
    }

    /// Whether the proof is a token that has expired.
    pub(crate) fn is_over(&self, now: u64) -> bool {
        self.vouched().and_then(|(voucher, _)| voucher.until).is_some_and(|until| until <= now)
    }

    /// The client with this name and its current rights.
    ///
    /// # Errors
    /// 401 and 403 if it has no rights.
    pub(crate) async fn principal(&self, app: &App, name: &str) -> Result<Principal> {
        let (roles, proof) = match self {
            Proven::Admin | Proven::User => {
                let found = app.auth.by_name(&app.databases, name).await?;
                let refused =
                    |what| Err(ApiError::forbidden(format!("the owner {name} of the replication has {what}")));
                return match found {
                    None => refused("no account"),
                    Some(found) if found.is_server_admin() != (*self == Proven::Admin) => {
                        refused("another account now")
                    }
                    Some(found) => Ok(found),
                };
            }
            Proven::Token(voucher, roles) if app.auth.trusts_token(voucher) => (roles, Proof::Token(*voucher)),
            Proven::Proxy(voucher, roles) if app.auth.trusts_proxy(voucher) => (roles, Proof::Proxy(*voucher)),
            Proven::Token(..) | Proven::Proxy(..) => {
                let reason = format!("the proof of the owner {name} of the replication is no longer accepted");
                return Err(ApiError::forbidden(reason));
            }
        };
        Ok(Principal { name: Some(name.to_owned()), roles: roles.clone(), proof })
    }

    fn by(&self) -> &'static str {
        match self {
            Proven::Admin => "admin",
            Proven::User => "user",
            Proven::Token(..) => "token",
            Proven::Proxy(..) => "proxy",
        }
    }

    fn vouched(&self) -> Option<(&Voucher, &[String])> {
        match self {
            Proven::Admin | Proven::User => None,
            Proven::Token(voucher, roles) | Proven::Proxy(voucher, roles) => Some((voucher, roles)),
        }
    }

    fn mac(&self, auth: &Auth, name: &str, body: &JsonText) -> [u8; 32] {
        let signed = SIGNED.map(|member| {
            let mut text = String::new();
            if let Some(value) = body.get(member) {
                append_sorted(value, &mut text);
            }
            text
        });
        let until = self.vouched().and_then(|(voucher, _)| voucher.until).map(u64::to_be_bytes);
        let mut parts = vec![name.as_bytes(), self.by().as_bytes(), until.as_ref().map_or(&[], |until| &until[..])];
        if let Some((voucher, roles)) = self.vouched() {
            parts.push(&voucher.key);
            parts.extend(roles.iter().map(String::as_bytes));
        }
        parts.extend(signed.iter().map(String::as_bytes));
        auth.sign_owner(&parts)
    }

    /// Writes the members.
    pub(crate) fn write(&self, json: &mut JsonWriter<'_>) {
        json.name("by").str(self.by());
        let Some((voucher, roles)) = self.vouched() else { return };
        json.name("roles").begin_array();
        for role in roles {
            json.str(role);
        }
        json.end_array();
        if let Some(until) = voucher.until {
            json.name("until").u64(until);
        }
        json.name("key").str(&hex(&voucher.key));
    }

    /// Reads the members, whoever wrote them.
    pub(crate) fn read(stored: JsonRef<'_>) -> Option<Proven> {
        let vouched = || {
            let roles = stored.get("roles")?.elements().map(|role| Some(role.as_str()?.into_owned()));
            let until = match stored.get("until") {
                Some(until) => Some(until.as_u64()?),
                None => None,
            };
            let key = unhex(&stored.get("key")?.as_str()?)?.try_into().ok()?;
            Some((Voucher { key, until }, roles.collect::<Option<Vec<_>>>()?))
        };
        Some(match &*stored.get("by")?.as_str()? {
            "admin" => Proven::Admin,
            "user" => Proven::User,
            "token" => vouched().map(|(voucher, roles)| Proven::Token(voucher, roles))?,
            "proxy" => vouched().map(|(voucher, roles)| Proven::Proxy(voucher, roles))?,
            _ => return None,
        })
    }
}

/// Appends a value whose members are in the order of their names: a document stored as rows has them in that order.
fn append_sorted(value: JsonRef<'_>, text: &mut String) {
    if value.is_object() {
        let mut members: Vec<_> = value.members().collect();
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        text.push('{');
        for (name, value) in members {
            // The length tells where the name ends.
            text.push_str(&format!("{} {name}", name.len()));
            append_sorted(value, text);
        }
        text.push('}');
    } else if value.is_array() {
        text.push('[');
        for element in value.elements() {
            append_sorted(element, text);
            text.push(',');
        }
        text.push(']');
    } else {
        text.push_str(value.text());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::authn::auth::SECRET_BYTES;
    use crate::http::config::settings::Flags;
    use crate::http::wire::response::json_object;

    fn auth(secret: u8) -> Auth {
        Auth::new(None, [secret; SECRET_BYTES], true, Flags::default())
    }

    fn all() -> Vec<Proven> {
        let (voucher, roles) =
            (Voucher { key: [7; 16], until: Some(4_102_444_800) }, vec!["a".to_owned(), "b".to_owned()]);
        let lasting = Voucher { until: None, ..voucher };
        let (token, proxy) = (Proven::Token(voucher, roles.clone()), Proven::Proxy(lasting, roles));
        vec![Proven::Admin, Proven::User, token, Proven::Token(lasting, Vec::new()), proxy]
    }

    #[test]
    fn a_proof_is_read_back_for_its_owner_at_servers_of_its_store_only() {
        for proven in all() {
            let side = JsonText::parse(br#"{"source":{"url":"a","headers":{"x":"1"}},"target":"b"}"#).unwrap();
            let written = |side: &JsonText| {
                json_object(|json| {
                    json.members_of(side);
                    proven.write_signed(&auth(1), "anna", side, json);
                })
            };
            let body = written(&side);
            assert_eq!(Proven::of_document(&auth(1), &body, "anna"), Some(proven.clone()));
            assert_eq!(Proven::of_document(&auth(1), &body, "adm"), None, "another owner");
            assert_eq!(Proven::of_document(&auth(2), &body, "anna"), None, "another store");
            let moved = body.as_str().replace(r#""target":"b""#, r#""target":"c""#);
            assert_eq!(Proven::of_document(&auth(1), &JsonText::parse(moved.as_bytes()).unwrap(), "anna"), None);
            let sorted =
                body.as_str().replace(r#"{"url":"a","headers":{"x":"1"}}"#, r#"{"headers":{"x":"1"},"url":"a"}"#);
            let sorted = JsonText::parse(sorted.as_bytes()).unwrap();
            assert_eq!(Proven::of_document(&auth(1), &sorted, "anna"), Some(proven.clone()), "as rows have it");
            let unsigned = json_object(|json| proven.write(json));
            assert_eq!(Proven::read(unsigned.root()), Some(proven));
        }
    }

    #[test]
    fn no_member_of_a_proof_can_be_changed() {
        let proven = &all()[2];
        let body = json_object(|json| proven.write_signed(&auth(1), "anna", &JsonText::empty_object(), json));
        for (member, other) in [
            (r#""by":"token""#, r#""by":"proxy""#),
            (r#""by":"token""#, r#""by":"admin""#),
            (r#"["a","b"]"#, r#"["a","_admin"]"#),
            (r#"["a","b"]"#, r#"["ab"]"#),
            ("4102444800", "4102444801"),
            (r#","until":4102444800"#, ""),
            (r#""key":"07"#, r#""key":"08"#),
        ] {
            let changed = body.as_str().replacen(member, other, 1);
            assert_ne!(changed, body.as_str(), "{member}");
            let changed = JsonText::parse(changed.as_bytes()).unwrap();
            assert_eq!(Proven::of_document(&auth(1), &changed, "anna"), None, "{member}");
        }
        for odd in ["{}", r#"{"owner_proof":1}"#, r#"{"owner_proof":{"by":"user"}}"#, r#"{"owner_proof":{"mac":"00"}}"#]
        {
            assert_eq!(Proven::of_document(&auth(1), &JsonText::parse(odd.as_bytes()).unwrap(), "anna"), None, "{odd}");
        }
    }

    #[test]
    fn the_same_name_proved_otherwise_is_another_client() {
        let all = all();
        for (at, one) in all.iter().enumerate() {
            let like: Vec<usize> = (0..all.len()).filter(|&other| one.is_like(&all[other])).collect();
            let expected = if matches!(at, 2 | 3) { vec![2, 3] } else { vec![at] };
            assert_eq!(like, expected);
        }
        assert!(all[2].is_over(4_102_444_800) && !all[2].is_over(4_102_444_799));
        assert!(![0, 1, 3, 4].iter().any(|&lasting: &usize| all[lasting].is_over(u64::MAX)));
    }
}
