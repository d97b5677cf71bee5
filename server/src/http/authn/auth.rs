//! Who sends a request.
//!
//! Administrators come from the server's options and from the store (`_config/admins`); if both have a name, the
//! store's password counts. Users are documents of `_users`. A server without administrators that listens on loopback
//! is open: every request without credentials is an administrator's, unless it comes through a proxy. Once it has had
//! an administrator, it does not become open again before a restart. What would outlast that state needs the token that
//! the server printed ([`setup`]).
//!
//! Requests without credentials, and administrators', read nothing from the store, unless the answer lists the
//! administrator's roles ([`users::with_stored_roles`]). A request of a user reads the user's document, so that a
//! change applies at once on all servers.
//!
//! Sources: CouchDB's `couch_httpd_auth.erl` and `chttpd_auth_request.erl`.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use hyper::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderValue};
use kv_api::AnyDatabase;
use model::{Layer, Setting};
use parking_lot::{Mutex, RwLock};

use crate::http::app::databases::Databases;
use crate::http::authn::hashing::{Hashing, Match};
use crate::http::authn::lockout::{Attempt, Lockout};
use crate::http::authn::passwords::{Prf, Scheme, Verifier, mac, same};
use crate::http::authn::policy::Policy;
use crate::http::authn::principal::{ANONYMOUS, OPEN_ADMIN, Principal, Proof, SERVER_ADMIN, SETUP_ADMIN, Voucher};
use crate::http::authn::session::{self, Claim, seconds_now};
use crate::http::authn::setup::{self, SetupToken, is_local_host, is_proxied};
use crate::http::authn::users::{self, Conflicted, User};
use crate::http::config::settings::{ADMINS, Flags, Settings};
use crate::http::config::unkept::Unkept;
use crate::http::error::{ApiError, Result};

/// Length of the secret for signing cookies, in bytes.
pub(crate) const SECRET_BYTES: usize = 32;

/// Time after which the server tries again to store a password with another scheme.
const UPGRADED_AGAIN: Duration = Duration::from_secs(5);

/// The administrator's name and password. Its `Debug` shows no password.
#[derive(Clone)]
pub struct Administrator {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Administrator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Administrator").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The client of a request, and the cookie that renews the session when it is due. The cookie's `Debug` shows nothing.
#[derive(Debug)]
pub(crate) struct Authenticated {
    pub(crate) principal: Principal,
    pub(crate) renewal: Option<HeaderValue>,
}

/// An account that can log in.
#[derive(Debug)]
pub(crate) struct Account {
    name: String,
    roles: Vec<String>,
    salt: String,
    stored: Stored,
}

#[derive(Debug)]
enum Stored {
    /// The password of the server's options.
    Own,
    Admin(Verifier),
    User(Box<User>),
}

impl Account {
    fn principal(&self, proof: Proof) -> Principal {
        Principal { name: Some(self.name.clone()), roles: self.roles.clone(), proof }
    }
}

/// Knows the administrators and the configuration, and signs sessions.
pub(crate) struct Auth {
    own: Option<Administrator>,
    /// The token of a server without an administrator.
    pub(crate) setup: Option<SetupToken>,
    /// Held while a client without an account changes the configuration: of several, one names an administrator.
    setting_up: tokio::sync::Mutex<()>,
    /// The salt of that administrator's password, the same at all servers with this administrator.
    own_salt: String,
    /// That password as `_config/admins` lists it. It is hashed when it is first listed.
    own_listed: tokio::sync::OnceCell<String>,
    secret: [u8; SECRET_BYTES],
    /// Whether only this machine can connect.
    is_local: bool,
    /// Addresses of proxies before the server.
    pub(crate) proxies: Vec<IpAddr>,
    speaks_tls: bool,
    flags: RwLock<Flags>,
    settings: RwLock<Arc<Settings>>,
    pub(crate) unkept: Unkept,
    /// Notified whenever settings were read.
    loaded: tokio::sync::watch::Sender<()>,
    /// Whether everyone is an administrator. Each request reads it.
    open_admin: AtomicBool,
    /// Whether tokens or proxies may name the client. Each request reads it.
    has_others: AtomicBool,
    /// Held while settings are read, so that an earlier reading never replaces a later one.
    reading: tokio::sync::Mutex<()>,
    pub(crate) hashing: Hashing,
    /// The users whose passwords were stored with another scheme within [`UPGRADED_AGAIN`], or should have been. Of
    /// many concurrent requests, one does it.
    upgrading: Mutex<HashMap<String, Instant>>,
    lockout: Arc<Lockout>,
    conflicted: Conflicted,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").field("own", &self.own).finish_non_exhaustive()
    }
}

impl Auth {
    pub(crate) fn new(own: Option<Administrator>, secret: [u8; SECRET_BYTES], is_local: bool, flags: Flags) -> Self {
        let settings = RwLock::new(Arc::new(Settings::new(Vec::new(), &Unkept::default(), &flags)));
        let mut key = [0; 32];
        if let Err(error) = getrandom::fill(&mut key) {
            tracing::warn!(%error, "the system's random number generator failed");
            key = mac(&secret, &[b"proofs"]);
        }
        let reading = Default::default();
        let lockout = Arc::new(Lockout::new(mac(&key, &[b"lockout"])));
        let open_admin = AtomicBool::new(own.is_none() && is_local);
        let has_others = AtomicBool::new(false);
        let salt = |own: &Administrator| mac(&secret, &[b"salt", own.name.as_bytes(), own.password.as_bytes()]);
        let own_salt = own.as_ref().map_or_else(String::new, |own| model::hex(&salt(own)));
        Auth {
            own,
            setup: None,
            setting_up: Default::default(),
            own_salt,
            own_listed: tokio::sync::OnceCell::new(),
            secret,
            is_local,
            proxies: Vec::new(),
            speaks_tls: flags.speaks_tls,
            flags: RwLock::new(flags),
            settings,
            unkept: Unkept::default(),
            loaded: Default::default(),
            open_admin,
            has_others,
            reading,
            hashing: Hashing::new(key),
            upgrading: Mutex::default(),
            lockout,
            conflicted: Conflicted::default(),
        }
    }

    /// The configuration.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.read().clone()
    }

    /// Changes whenever the configuration was read.
    pub(crate) fn loaded(&self) -> tokio::sync::watch::Receiver<()> {
        self.loaded.subscribe()
    }

    /// Replaces the file's settings. They apply from the next [load](Self::load) on.
    pub(crate) fn set_file(&self, settings: Vec<Setting>) {
        self.flags.write().settings = settings;
    }

    /// Reads the configuration from the store. Returns a future that completes when it has changed.
    pub(crate) async fn load(
        &self,
        layer: &Layer<AnyDatabase>,
    ) -> model::Result<impl Future<Output = kv_api::Result<()>> + Send + use<>> {
        let _reading = self.reading.lock().await;
        let (rows, changed) = layer.configuration().await?;
        let settings = Arc::new(Settings::new(rows, &self.unkept, &self.flags.read()));
        let is_open_admin = self.own.is_none() && self.is_local && !settings.has_admins();
        layer.limit_documents(Some(settings.max_document_size));
        layer.limit_attachments(Some(settings.max_attachment_size));
        let has_others = settings.tokens.is_some() || settings.proxy.is_some();
        if settings.cors.trusts_every_page() && !self.settings().cors.trusts_every_page() {
            tracing::warn!(
                "any web page may send passwords to this server (cors/origins has * and cors/credentials is true); \
                 list the origins of your pages to admit only these"
            );
        }
        *self.settings.write() = settings;
        self.loaded.send_replace(());
        // Never back to true: otherwise, behind a proxy, removing the last administrator would make everyone one.
        self.open_admin.fetch_and(is_open_admin, Ordering::AcqRel);
        self.has_others.store(has_others, Ordering::Release);
        Ok(changed)
    }

    /// Whether there is an administrator.
    pub(crate) fn has_administrator(&self) -> bool {
        self.own.is_some() || self.settings().has_admins()
    }

    /// Whether the store has another password for the administrator of the server's options.
    pub(crate) fn is_overridden(&self) -> bool {
        self.own.as_ref().is_some_and(|own| self.settings().rows.stored(ADMINS, &own.name).is_some())
    }

    /// Whether the server was started with an administrator, whom no setting can remove.
    pub(crate) fn has_own_administrator(&self) -> bool {
        self.own.is_some()
    }

    /// The administrator of the server's options, as `_config/admins` lists those of the store: name and hashed
    /// password. `None` where the store has another password for it.
    pub(crate) async fn own_listed(&self, address: IpAddr) -> Result<Option<(&str, &str)>> {
        let Some(own) = self.own.as_ref().filter(|_| !self.is_overridden()) else { return Ok(None) };
        let scheme = Scheme::Pbkdf2 { prf: Prf::Sha256, iterations: self.settings().passwords.iterations };
        let hash = || async { Ok::<_, ApiError>(self.hashing.hash(address, &own.password, scheme).await?.to_admin()) };
        Ok(Some((&own.name, self.own_listed.get_or_try_init(hash).await?)))
    }

    /// Whether everyone is an administrator.
    pub(crate) fn is_open_admin(&self) -> bool {
        self.open_admin.load(Ordering::Acquire)
    }

    /// The token that names the first administrator; `None` if there is one.
    pub(crate) fn setup_token(&self) -> Option<&SetupToken> {
        self.setup.as_ref().filter(|_| self.is_open_admin())
    }

    /// Whether the request shows the token that names the first administrator.
    pub(crate) fn shows_setup_token(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(setup::HEADER);
        self.setup_token().is_some_and(|token| shown.is_some_and(|shown| token.is(shown)))
    }

    /// Whether a request asks a server of this machine by itself: no proxy passed it on, and its host is this machine.
    /// (A web page could point a host name of its own at loopback, and ask as everyone may here.)
    pub(crate) fn is_of_this_machine(&self, headers: &HeaderMap, peer: IpAddr) -> bool {
        is_local_host(headers)
            && !is_proxied(headers, &self.settings().forwarded)
            && !self.proxies.contains(&peer.to_canonical())
    }

    /// The client who shows the token; `None` if the request has no token, or the server needs none.
    ///
    /// # Errors
    /// 401 for a wrong token.
    fn by_setup_token(&self, headers: &HeaderMap) -> Result<Option<&'static Principal>> {
        if self.setup_token().is_none() || !headers.contains_key(setup::HEADER) {
            return Ok(None);
        }
        match self.shows_setup_token(headers) {
            true => Ok(Some(&SETUP_ADMIN)),
            false => Err(ApiError::unauthorized("This is not the token that the server printed when it last started.")),
        }
    }

    /// The client of a request without a name.
    fn unnamed(&self, headers: &HeaderMap, peer: IpAddr) -> &'static Principal {
        match self.is_open_admin() && self.is_of_this_machine(headers, peer) {
            true => &OPEN_ADMIN,
            false => &ANONYMOUS,
        }
    }

    /// Refuses what needs the token to a client who is an administrator only because there is none.
    ///
    /// # Errors
    /// 403 without the token.
    pub(crate) fn require_setup_token(&self, principal: &Principal) -> Result<()> {
        match principal.proof {
            Proof::OpenAdmin if self.setup.is_some() => Err(ApiError::forbidden(
                "without an administrator this needs the token that the server printed when it started: send it as \
                 X-Couch-Layer-Setup-Token, or name an administrator in the console",
            )),
            _ => Ok(()),
        }
    }

    /// Admits a change of the configuration, of administrators and of other rights. A client without an account needs the token, and
    /// holds the returned turn until its change applies.
    ///
    /// # Errors
    /// 403 without the token; 401 if an administrator was named meanwhile.
    pub(crate) async fn admit_change(
        &self,
        layer: &Layer<AnyDatabase>,
        principal: &Principal,
    ) -> Result<Option<tokio::sync::MutexGuard<'_, ()>>> {
        self.require_setup_token(principal)?;
        if !principal.is_unnamed_admin() {
            return Ok(None);
        }
        let turn = self.setting_up.lock().await;
        // Also one that another server of the store named.
        drop(self.load(layer).await?);
        match self.is_open_admin() {
            true => Ok(Some(turn)),
            false => Err(has_administrator_now()),
        }
    }

    /// The account with this name, if somebody can log in with it.
    ///
    /// # Errors
    /// 401 for a user whose document is in conflict, as in CouchDB, even for a wrong password or a forged session.
    async fn account(&self, databases: &Databases, settings: &Settings, name: &str) -> Result<Option<Account>> {
        let admin = |salt: String, stored| {
            let (name, roles) = (name.to_owned(), vec![SERVER_ADMIN.to_owned()]);
            Ok(Some(Account { name, roles, salt, stored }))
        };
        if settings.rows.stored(ADMINS, name).is_some() {
            return match settings.admins.get(name) {
                Some(verifier) => admin(verifier.salt.clone(), Stored::Admin(verifier.clone())),
                None => Ok(None),
            };
        }
        if self.own.as_ref().is_some_and(|own| own.name == name) {
            return admin(self.own_salt.clone(), Stored::Own);
        }
        let Some(user) = users::find(databases, &self.conflicted, name).await? else { return Ok(None) };
        let (name, roles, salt) = (name.to_owned(), user.roles.clone(), user.verifier.salt.clone());
        Ok(Some(Account { name, roles, salt, stored: Stored::User(Box::new(user)) }))
    }

    /// The account with this name, for background work whose owner has proved it. `None` if nobody can log in with it.
    pub(crate) async fn by_name(&self, databases: &Databases, name: &str) -> Result<Option<Principal>> {
        let account = self.account(databases, &self.settings(), name).await?;
        Ok(account.map(|account| account.principal(Proof::Basic)))
    }

    /// Whether an administrator of the server has this name.
    pub(crate) fn is_administrator(&self, name: &str) -> bool {
        self.settings().rows.stored(ADMINS, name).is_some() || self.own.as_ref().is_some_and(|own| own.name == name)
    }

    /// Whether the server would still accept tokens signed with the key of this voucher.
    pub(crate) fn trusts_token(&self, voucher: &Voucher) -> bool {
        let settings = self.settings();
        settings.tokens.as_ref().is_some_and(|tokens| tokens.has_key(voucher, &settings.rows, &self.secret))
    }

    /// Whether the server would still accept a proxy with the secret of this voucher.
    pub(crate) fn trusts_proxy(&self, voucher: &Voucher) -> bool {
        let settings = self.settings();
        settings.proxy.as_ref().is_some_and(|proxy| proxy.voucher(&settings.rows, &self.secret) == *voucher)
    }

    /// Signs the owner of a replication, which a document stores. Only servers of this store can.
    pub(crate) fn sign_owner(&self, parts: &[&[u8]]) -> [u8; 32] {
        mac(&mac(&self.secret, &[b"owners"]), parts)
    }

    /// The account with this name and password.
    pub(crate) async fn login(
        &self,
        databases: &Databases,
        name: &str,
        password: &str,
        address: IpAddr,
    ) -> Result<Account> {
        let wrong = || ApiError::unauthorized("Name or password is incorrect.");
        let settings = self.settings();
        let Some(account) = self.account(databases, &settings, name).await? else { return Err(wrong()) };
        let attempt = self.lockout.attempt(settings.lockout, address, name, &account.salt);
        attempt.check()?;
        let found = match &account.stored {
            Stored::Own if self.own.as_ref().is_some_and(|own| same(own.password.as_bytes(), password.as_bytes())) => {
                Match::Known
            }
            Stored::Own => {
                attempt.failed();
                Match::No
            }
            Stored::Admin(verifier) => self.matches(&settings, verifier, password, &attempt).await?,
            Stored::User(user) => self.matches(&settings, &user.verifier, password, &attempt).await?,
        };
        if found == Match::No {
            tracing::warn!(name, peer = %address, "a login failed");
            return Err(wrong());
        }
        attempt.succeeded();
        if let Stored::User(user) = &account.stored
            && settings.passwords.is_outdated(&user.verifier)
        {
            let upgraded = Box::pin(self.upgrade(databases, &settings.passwords, user, name, password, address));
            if let Err(error) = upgraded.await {
                tracing::debug!(?error, "a stored password was not upgraded");
            }
        }
        Ok(account)
    }

    /// Whether this is the password. As in CouchDB, the bounds of iterations apply only to hashes that must be
    /// computed.
    async fn matches(
        &self,
        settings: &Settings,
        verifier: &Verifier,
        password: &str,
        attempt: &Attempt,
    ) -> Result<Match> {
        if self.hashing.knows(verifier, password) {
            return Ok(Match::Known);
        }
        settings.passwords.check(verifier)?;
        self.hashing.matches(verifier, password, attempt).await
    }

    /// Stores a proven password again with the configured scheme, if that scheme accepts it as a new password.
    async fn upgrade(
        &self,
        databases: &Databases,
        policy: &Policy,
        user: &User,
        name: &str,
        password: &str,
        address: IpAddr,
    ) -> Result<()> {
        let scheme = policy.admit(password)?;
        let now = Instant::now();
        {
            let mut upgrading = self.upgrading.lock();
            upgrading.retain(|_, began| now.duration_since(*began) < UPGRADED_AGAIN);
            if upgrading.contains_key(name) {
                return Ok(());
            }
            upgrading.insert(name.to_owned(), now);
        }
        let verifier = self.hashing.upgrade(address, &user.verifier, password, scheme).await?;
        user.upgrade(databases, &verifier).await
    }

    /// Logs in with the body of a request, and starts a session.
    pub(crate) async fn begin(
        &self,
        databases: &Databases,
        name: &str,
        password: &str,
        address: IpAddr,
        is_secure: bool,
    ) -> Result<(Principal, Option<HeaderValue>)> {
        let account = self.login(databases, name, password, address).await?;
        let settings = self.settings();
        let secret = self.signing_secret(&settings);
        let cookie = session::begin(&secret, &account.salt, name, &settings.session, is_secure, seconds_now());
        Ok((account.principal(Proof::Cookie), cookie))
    }

    /// The secret of the configuration, or that of the store.
    fn signing_secret(&self, settings: &Settings) -> Vec<u8> {
        let configured = settings.rows.get("chttpd_auth", "secret").filter(|secret| !secret.is_empty());
        configured.map_or_else(|| self.secret.to_vec(), |secret| secret.as_bytes().to_vec())
    }

    /// Whether the client uses TLS, with this server or with a proxy before it.
    pub(crate) fn is_secure(&self, headers: &HeaderMap) -> bool {
        self.speaks_tls || self.settings().forwarded.is_secure(headers)
    }

    /// The client of a request that has no credentials; `None` if it has some.
    pub(crate) fn without_credentials(&self, headers: &HeaderMap, peer: IpAddr) -> Option<&'static Principal> {
        let has_some = headers.contains_key(AUTHORIZATION)
            || headers.contains_key(COOKIE)
            || headers.contains_key(setup::HEADER)
            || self.has_others.load(Ordering::Acquire);
        (!has_some).then(|| self.unnamed(headers, peer))
    }

    /// The client of the request. The token of a server without an administrator comes first: nothing else could name
    /// one, and a browser may send a cookie of an earlier server along. A wrong password is refused. An expired or forged cookie proves nothing. If a user's
    /// document is in conflict, every request that names the user is refused.
    pub(crate) async fn authenticate(
        &self,
        databases: &Databases,
        headers: &HeaderMap,
        address: IpAddr,
        peer: IpAddr,
    ) -> Result<Authenticated> {
        if let Some(principal) = self.by_setup_token(headers)? {
            return Ok(Authenticated { principal: principal.clone(), renewal: None });
        }
        if headers.contains_key(COOKIE)
            && let Some(found) = self.session(databases, headers).await?
        {
            return Ok(found);
        }
        if let Some(principal) = self.by_token_or_proxy(headers)? {
            return Ok(Authenticated { principal, renewal: None });
        }
        let credentials = match headers.get(AUTHORIZATION) {
            Some(value) => basic_credentials(value)?,
            None => None,
        };
        let principal = match credentials {
            Some((name, password)) => self.login(databases, &name, &password, address).await?.principal(Proof::Basic),
            None => self.unnamed(headers, peer).clone(),
        };
        Ok(Authenticated { principal, renewal: None })
    }

    /// The client that a token or a proxy names, if the configuration allows this.
    fn by_token_or_proxy(&self, headers: &HeaderMap) -> Result<Option<Principal>> {
        if !self.has_others.load(Ordering::Acquire) {
            return Ok(None);
        }
        let settings = self.settings();
        let proxied = settings.proxy.as_ref().and_then(|proxy| proxy.principal(headers, &settings.rows, &self.secret));
        if proxied.is_some() {
            return Ok(proxied);
        }
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        match (&settings.tokens, bearer) {
            (Some(tokens), Some(token)) => {
                tokens.principal(token.trim(), &settings.rows, &self.secret, seconds_now()).map(Some)
            }
            _ => Ok(None),
        }
    }

    async fn session(&self, databases: &Databases, headers: &HeaderMap) -> Result<Option<Authenticated>> {
        let Some(claim) = Claim::read(headers)? else { return Ok(None) };
        let (settings, now) = (self.settings(), seconds_now());
        // Checked before the store is read for it.
        if claim.is_over(&settings.session, now) {
            return Ok(None);
        }
        let Some(account) = self.account(databases, &settings, &claim.name).await? else { return Ok(None) };
        let secret = self.signing_secret(&settings);
        let Some(valid) = claim.verify(&secret, &account.salt, &settings.session, now) else { return Ok(None) };
        let renewal = valid.is_to_be_renewed.then(|| {
            let is_secure = self.is_secure(headers);
            session::begin(&secret, &account.salt, &claim.name, &settings.session, is_secure, now)
        });
        Ok(Some(Authenticated { principal: account.principal(Proof::Cookie), renewal: renewal.flatten() }))
    }
}

/// The answer to a client who came too late to name the first administrator.
pub(crate) fn has_administrator_now() -> ApiError {
    ApiError::unauthorized("The server has an administrator now. Log in.")
}

/// The name that the credentials of a request claim, whether they prove it or not.
pub(crate) fn claimed_name(headers: &HeaderMap) -> Option<String> {
    let basic = headers.get(AUTHORIZATION).and_then(|value| basic_credentials(value).ok()?).map(|(name, _)| name);
    basic.or_else(|| Claim::read(headers).ok()?.map(|claim| claim.name))
}

/// The name and password of `Authorization: Basic`. Other schemes are ignored. As in CouchDB, so are `basic` in lower
/// case and `_:_`, which browsers send to log out.
fn basic_credentials(value: &HeaderValue) -> Result<Option<(String, String)>> {
    let Some((scheme, encoded)) = value.to_str().ok().and_then(|value| value.split_once(' ')) else { return Ok(None) };
    if scheme != "Basic" {
        return Ok(None);
    }
    let encoded = encoded.trim();
    let decoded = STANDARD.decode(encoded).or_else(|_| URL_SAFE.decode(encoded));
    let decoded = decoded.map_err(|_| ApiError::bad_request("Authorization header has invalid base64 value"))?;
    // Credentials that are not UTF-8 belong to nobody: refused like a wrong password.
    let pair = String::from_utf8_lossy(&decoded);
    let pair = pair.split_once(':').filter(|pair| *pair != ("_", "_"));
    Ok(pair.map(|(name, password)| (name.to_owned(), password.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basic(value: &str) -> Result<Option<(String, String)>> {
        basic_credentials(&HeaderValue::from_str(value).unwrap())
    }

    #[test]
    fn credentials_are_read_as_they_are() {
        let encode = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
        let pair = |name: &str, password: &str| Some((name.to_owned(), password.to_owned()));
        assert_eq!(basic(&encode("anna:a:b ü")).unwrap(), pair("anna", "a:b ü"));
        assert_eq!(basic(&encode(":")).unwrap(), pair("", ""));
        let lower_case = encode("anna:a").to_ascii_lowercase();
        // A name in Latin-1 is a wrong name, not a missing one.
        let latin = format!("Basic {}", STANDARD.encode(b"s\xf6ffi:p\xe4ss"));
        assert_eq!(basic(&latin).unwrap(), pair("s\u{fffd}ffi", "p\u{fffd}ss"));
        for none in [encode("anna"), encode("_:_"), lower_case, "Bearer x".to_owned(), "Basic".to_owned()] {
            assert_eq!(basic(&none).unwrap(), None, "{none}");
        }
        assert_eq!(basic("Basic %%%").unwrap_err().status(), 400);
    }

    #[test]
    fn open_administration_needs_no_administrator_and_loopback() {
        let own = Administrator { name: "adm".into(), password: "geheim".into() };
        for (own, is_local, is_open_admin) in [(None, true, true), (None, false, false), (Some(own), true, false)] {
            let auth = Auth::new(own, [7; SECRET_BYTES], is_local, Flags::default());
            assert_eq!(auth.is_open_admin(), is_open_admin);
            assert!(!format!("{auth:?}").contains("geheim"));
        }
    }
}
