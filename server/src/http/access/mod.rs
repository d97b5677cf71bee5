//! Who a client is: passwords and sessions; the configuration, and requests from web pages. What it may is in
//! [`authz`](crate::http::authz).
//!
//! ```text
//!   auth ─────── who sends a request: cookie, Basic, token, proxy
//!     ├─ users ────── documents of `_users`
//!     ├─ session ──── cookies
//!     ├─ bearer ───── JSON Web Tokens
//!     │    └─ public_key  RSA and elliptic curves
//!     ├─ proxy ────── names that a proxy gives
//!     ├─ hashing ──── one thread that hashes passwords, and the proven ones
//!     │    └─ passwords   CouchDB's schemes
//!     ├─ lockout ──── failed logins
//!     └─ settings ─── the configuration, parsed
//!          ├─ policy ───── that of passwords
//!          ├─ sandbox ──── what browsers may do with content of users
//!          ├─ forwarded ── what a proxy says of the client
//!          ├─ rows ───── the configuration, as it is stored, over its defaults
//!          │    └─ known ───── the settings that have an effect, and the defaults
//!          └─ unkept ─── settings of this process only
//!   peruser ────── the option of a database for each user
//!   quotas ─────── how many bytes a database may have
//!   auto_purge ─── the option that purges old tombstones
//!   principal ─── name and roles
//!   cors ──────── pages of other origins
//! ```

pub(crate) mod auth;
pub(crate) mod auto_purge;
mod bearer;
pub(crate) mod cors;
pub(crate) mod forwarded;
mod hashing;
pub(crate) mod known;
pub(crate) mod lockout;
pub(crate) mod passwords;
pub(crate) mod peruser;
pub(crate) mod policy;
pub(crate) mod principal;
mod proxy;
mod public_key;
pub(crate) mod quotas;
pub(crate) mod rows;
pub(crate) mod sandbox;
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod unkept;
pub(crate) mod users;
