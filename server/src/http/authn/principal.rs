//! The client of a request.

use std::sync::LazyLock;

use model::JsonWriter;

use crate::http::authn::passwords::mac;

/// The role of a server administrator.
pub(crate) const SERVER_ADMIN: &str = "_admin";

/// How a request proved its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Not at all: an anonymous request.
    Nothing,
    /// No proof is needed: the server has no administrator, so everyone is one.
    OpenAdmin,
    /// The token that the server printed, on a server without an administrator.
    Setup,
    Cookie,
    Basic,
    /// A JSON Web Token.
    Token(Voucher),
    /// A proxy before the server.
    Proxy(Voucher),
}

/// Vouches for a name and roles that do not belong to an account of this server: the holder of a configured key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Voucher {
    /// A keyed digest of the key. Stored vouchers reveal nothing of the key, and a replaced key has another digest.
    pub(crate) key: [u8; 16],
    /// When a token expires, in seconds.
    pub(crate) until: Option<u64>,
}

impl Voucher {
    /// `secret` is the store's, and `key` the configured one.
    pub(crate) fn new(secret: &[u8], key: &str, until: Option<u64>) -> Voucher {
        let digest = mac(secret, &[b"voucher", key.as_bytes()]);
        let mut key = [0; 16];
        key.copy_from_slice(&digest[..16]);
        Voucher { key, until }
    }
}

/// The client of a request without credentials.
pub(crate) static ANONYMOUS: Principal = Principal::anonymous();

/// The same on a server without an administrator, where everyone is one.
pub(crate) static OPEN_ADMIN: LazyLock<Principal> = LazyLock::new(Principal::open_admin);

/// The same with the token that the server printed.
pub(crate) static SETUP_ADMIN: LazyLock<Principal> =
    LazyLock::new(|| Principal { proof: Proof::Setup, ..Principal::open_admin() });

/// The client of a request: a name and roles, as in CouchDB's `userCtx`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    pub(crate) name: Option<String>,
    pub(crate) roles: Vec<String>,
    pub(crate) proof: Proof,
}

impl Principal {
    pub(crate) const fn anonymous() -> Self {
        Principal { name: None, roles: Vec::new(), proof: Proof::Nothing }
    }

    /// Everyone, on a server without an administrator.
    pub(crate) fn open_admin() -> Self {
        Principal { name: None, roles: vec![SERVER_ADMIN.to_owned()], proof: Proof::OpenAdmin }
    }

    pub(crate) fn is_server_admin(&self) -> bool {
        self.roles.iter().any(|role| role == SERVER_ADMIN)
    }

    /// The name of the account of this server that the request's password or session proves. `None` for a name from a
    /// token or a proxy, even if an account has that name.
    pub(crate) fn account(&self) -> Option<&str> {
        self.name.as_deref().filter(|_| matches!(self.proof, Proof::Basic | Proof::Cookie))
    }

    /// Writes the `userCtx` object that functions get.
    pub(crate) fn write_user(&self, json: &mut JsonWriter<'_>, db: &str) {
        json.begin_object();
        json.name("db").str(db);
        self.write_context(json);
        json.end_object();
    }

    /// Writes the members `name` and `roles`, as `userCtx` has them.
    pub(crate) fn write_context(&self, json: &mut JsonWriter<'_>) {
        match &self.name {
            Some(name) => json.name("name").str(name),
            None => json.name("name").null(),
        };
        self.write_roles(json);
    }

    /// Writes the member `roles`.
    pub(crate) fn write_roles(&self, json: &mut JsonWriter<'_>) {
        json.name("roles").begin_array();
        for role in &self.roles {
            json.str(role);
        }
        json.end_array();
    }
}
