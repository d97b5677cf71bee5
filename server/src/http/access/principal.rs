//! The client of a request.

/// The role of a server administrator.
pub(crate) const SERVER_ADMIN: &str = "_admin";

/// How a request proved its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Not at all: an anonymous request.
    Nothing,
    /// No proof is needed: the server has no administrator, so everyone is one.
    Party,
    Cookie,
    Basic,
}

/// The client of a request: a name and roles, as in CouchDB's `userCtx`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    pub(crate) name: Option<String>,
    pub(crate) roles: Vec<String>,
    pub(crate) proof: Proof,
}

impl Principal {
    pub(crate) fn anonymous() -> Self {
        Principal { name: None, roles: Vec::new(), proof: Proof::Nothing }
    }

    /// Everyone, on a server without an administrator.
    pub(crate) fn party() -> Self {
        Principal { name: None, roles: vec![SERVER_ADMIN.to_owned()], proof: Proof::Party }
    }

    pub(crate) fn administrator(name: &str, proof: Proof) -> Self {
        Principal { name: Some(name.to_owned()), roles: vec![SERVER_ADMIN.to_owned()], proof }
    }

    pub(crate) fn is_server_admin(&self) -> bool {
        self.roles.iter().any(|role| role == SERVER_ADMIN)
    }
}
