//! A client of a database, as the database's rules see it.

use std::net::IpAddr;
use std::sync::Arc;

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::authn::auth::Auth;
use crate::http::authn::passwords::{Scheme, Verifier};
use crate::http::authn::principal::Principal;
use crate::http::authz::security::Security;
use crate::http::config::settings::Settings;
use crate::http::error::{ApiError, Result};
use crate::http::wire::body::off_thread;

/// A client of a database.
pub(crate) struct Client<'c> {
    pub(crate) principal: &'c Principal,
    /// Whether it administers the database.
    pub(crate) is_admin: bool,
    /// The database, to read what the rules need.
    pub(crate) database: &'c Documents,
    pub(crate) means: &'c Means,
}

/// Who applies the rules.
pub(crate) enum Means {
    /// A server. Passwords are hashed in the turn of this address. Replications do not wait for turns.
    Server(Arc<App>, Option<IpAddr>),
    /// A command. Its only configuration is the store's.
    Command(Arc<Settings>),
}

impl Means {
    pub(crate) fn settings(&self) -> Arc<Settings> {
        match self {
            Means::Server(app, _) => app.auth.settings(),
            Means::Command(settings) => settings.clone(),
        }
    }

    /// The security object of a database, as it is stored now.
    pub(crate) async fn security(&self, database: &Documents) -> model::Result<Arc<Security>> {
        match self {
            Means::Server(app, _) => app.securities.of(database).await,
            Means::Command(_) => Ok(Arc::new(Security::new(database.security().await?))),
        }
    }

    /// Verifies the owner of a replication, and knows whether a client needs the setup token; `None` for a command,
    /// which needs neither.
    pub(crate) fn auth(&self) -> Option<&Auth> {
        match self {
            Means::Server(app, _) => Some(&app.auth),
            Means::Command(_) => None,
        }
    }

    /// Hashes a new password, which [`admit`](crate::http::authn::policy::Policy::admit) has admitted.
    pub(crate) async fn hash(&self, password: String, scheme: Scheme) -> Result<Verifier> {
        match self {
            Means::Server(app, Some(address)) => app.auth.hashing.hash(*address, &password, scheme).await,
            Means::Server(_, None) | Means::Command(_) => {
                off_thread(move || Verifier::new(&password, scheme)).await?.map_err(|_| ApiError::internal())
            }
        }
    }
}
